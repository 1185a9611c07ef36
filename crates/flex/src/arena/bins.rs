//! Segregated bins of the free blocks of one region, found through a two-level bitmap.
//!
//! Sizes are binned by their leading bit (row) and the five bits after it (column), as in the two-level
//! segregated fit of Masmano et al. (TLSF, ECRTS 2004). Below 64 units a bin holds one size; above, the sizes of a
//! bin differ by less than 1/32. A bin is a doubly linked list, newest block first.
//!
//! Invariants: a column bit is set iff its list is not empty; a row bit is set iff one of its column bits is; a
//! block is in the bin of its size.
//!
//! Protected by the allocator mutex.

use super::blocks::{Blocks, NIL, NodeState};

const COLUMN_BITS: u32 = 5;
const COLUMNS: usize = 1 << COLUMN_BITS;
/// Row 0 holds sizes below 32, each later row one power of two, up to 2^31.
pub(crate) const ROWS: usize = 32 - COLUMN_BITS as usize + 1;

/// Blocks of the request's own bin looked at before a larger bin is preferred.
const FLOOR_BIN_TRIES: usize = 8;

/// Which list a size belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bin {
    row: usize,
    column: usize,
}

impl Bin {
    /// The bin of blocks of a size.
    #[inline]
    pub(crate) fn of(size_units: u32) -> Bin {
        if (size_units as usize) < COLUMNS {
            return Bin { row: 0, column: size_units as usize };
        }
        let leading = size_units.ilog2();
        let column = (size_units >> (leading - COLUMN_BITS)) as usize - COLUMNS;
        Bin { row: (leading - COLUMN_BITS) as usize + 1, column }
    }

    /// Whether all blocks of the bin have the same size.
    #[inline]
    fn is_exact(self) -> bool {
        self.row <= 1
    }

    /// The row of the bitmap the bin is in.
    pub(crate) fn row(self) -> usize {
        self.row
    }

    #[inline]
    fn list(self) -> usize {
        self.row * COLUMNS + self.column
    }
}

/// The free blocks of one region, by size.
#[derive(Debug)]
pub(crate) struct Bins {
    /// Bit `r`: row `r` has a block.
    rows: u32,
    /// Bit `c` of entry `r`: the list at row `r`, column `c` has a block.
    columns: [u32; ROWS],
    /// Heads of the lists.
    heads: Box<[u32]>,
}

impl Bins {
    /// No blocks.
    pub(crate) fn new() -> Bins {
        Bins { rows: 0, columns: [0; ROWS], heads: vec![NIL; ROWS * COLUMNS].into_boxed_slice() }
    }

    /// Marks a block free and adds it.
    pub(crate) fn link(&mut self, blocks: &mut Blocks, index: u32) {
        let bin = Bin::of(blocks.node(index).size_units);
        let head = std::mem::replace(&mut self.heads[bin.list()], index);
        let node = blocks.node_mut(index);
        node.state = NodeState::Free;
        node.previous_free = NIL;
        node.next_free = head;
        blocks.node_mut(head).previous_free = index;
        self.columns[bin.row] |= 1 << bin.column;
        self.rows |= 1 << bin.row;
    }

    /// Takes a free block out and marks it occupied. Its size must not have changed since it was linked.
    pub(crate) fn unlink(&mut self, blocks: &mut Blocks, index: u32) {
        let node = blocks.node_mut(index);
        debug_assert_eq!(node.state, NodeState::Free);
        node.state = NodeState::Occupied;
        let (previous, next, bin) = (node.previous_free, node.next_free, Bin::of(node.size_units));
        blocks.node_mut(next).previous_free = previous;
        if previous != NIL {
            blocks.node_mut(previous).next_free = next;
            return;
        }
        self.heads[bin.list()] = next;
        if next == NIL {
            self.columns[bin.row] &= !(1 << bin.column);
            if self.columns[bin.row] == 0 {
                self.rows &= !(1 << bin.row);
            }
        }
    }

    /// A free block of at least `size_units`, by good fit; `None` only if there is none.
    ///
    /// The tightest of the first few blocks of the request's own bin, else the newest of the next bin that has
    /// one (all of them fit), else any of the request's own bin.
    #[inline]
    pub(crate) fn find(&self, blocks: &Blocks, size_units: u32) -> Option<u32> {
        let floor = Bin::of(size_units);
        self.tightest(blocks, floor, size_units)
            .or_else(|| self.first_above(floor))
            .or_else(|| self.list(blocks, floor).find(|&index| blocks.node(index).size_units >= size_units))
    }

    /// The size of the largest free block, 0 without one.
    pub(crate) fn largest_units(&self, blocks: &Blocks) -> u32 {
        if self.rows == 0 {
            return 0;
        }
        let row = self.rows.ilog2() as usize;
        let column = self.columns[row].ilog2() as usize;
        self.list(blocks, Bin { row, column }).map(|index| blocks.node(index).size_units).max().unwrap_or(0)
    }

    /// The blocks of a bin, newest first.
    pub(crate) fn list<'a>(&self, blocks: &'a Blocks, bin: Bin) -> impl Iterator<Item = u32> + use<'a> {
        let head = self.heads[bin.list()];
        std::iter::successors(Some(head), |&index| Some(blocks.node(index).next_free))
            .take_while(|&index| index != NIL)
    }

    /// Every bin of rows where anything is set, with what the bitmaps say of it: the row bit and the column bit.
    pub(crate) fn bits(&self) -> impl Iterator<Item = (Bin, bool, bool)> + '_ {
        (0..ROWS).filter(|&row| !self.is_blank(row)).flat_map(move |row| {
            (0..COLUMNS).map(move |column| {
                let column_bit = self.columns[row] & (1 << column) != 0;
                (Bin { row, column }, self.rows & (1 << row) != 0, column_bit)
            })
        })
    }

    fn is_blank(&self, row: usize) -> bool {
        self.rows & (1 << row) == 0
            && self.columns[row] == 0
            && self.heads[row * COLUMNS..][..COLUMNS] == [NIL; COLUMNS]
    }

    #[inline]
    fn tightest(&self, blocks: &Blocks, bin: Bin, size_units: u32) -> Option<u32> {
        if self.columns[bin.row] & (1 << bin.column) == 0 {
            return None;
        }
        if bin.is_exact() {
            return Some(self.heads[bin.list()]);
        }
        self.list(blocks, bin)
            .take(FLOOR_BIN_TRIES)
            .filter(|&index| blocks.node(index).size_units >= size_units)
            .min_by_key(|&index| blocks.node(index).size_units)
    }

    #[inline]
    fn first_above(&self, bin: Bin) -> Option<u32> {
        // Shifting twice keeps the count below the width of the word.
        let in_row = self.columns[bin.row] & (u32::MAX << bin.column << 1);
        let (row, columns) = if in_row != 0 {
            (bin.row, in_row)
        } else {
            let rows = self.rows & (u32::MAX << bin.row << 1);
            if rows == 0 {
                return None;
            }
            let row = rows.trailing_zeros() as usize;
            (row, self.columns[row])
        };
        Some(self.heads[row * COLUMNS + columns.trailing_zeros() as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_grow_with_the_size_and_are_exact_when_small() {
        for size_units in 1..64 {
            assert!(Bin::of(size_units) < Bin::of(size_units + 1), "{size_units}");
            assert!(Bin::of(size_units).is_exact());
        }
        assert!(!Bin::of(64).is_exact());
        assert_eq!(Bin::of(64), Bin::of(65));
        assert!(Bin::of(65) < Bin::of(66));
        for shift in 6..32 {
            let size_units = 1_u32 << shift;
            assert!(Bin::of(size_units - 1) < Bin::of(size_units));
        }
        assert_eq!(Bin::of(u32::MAX), Bin { row: ROWS - 1, column: COLUMNS - 1 });
    }

    fn bins_with(sizes: &[u32]) -> (Bins, Blocks, Vec<u32>) {
        let (mut bins, mut blocks) = (Bins::new(), Blocks::new());
        let indices = sizes.iter().map(|&size_units| blocks.take(0, 0, size_units)).collect::<Vec<_>>();
        for &index in &indices {
            bins.link(&mut blocks, index);
        }
        (bins, blocks, indices)
    }

    #[test]
    fn find_prefers_the_tightest_of_its_own_bin() {
        let (bins, blocks, indices) = bins_with(&[2047, 2020, 2040, 4000]);
        assert_eq!(Bin::of(2047), Bin::of(2020));
        assert_eq!(bins.find(&blocks, 2030), Some(indices[2]));
        assert_eq!(bins.find(&blocks, 2048), Some(indices[3]));
        assert_eq!(bins.find(&blocks, 4001), None);
        assert_eq!(bins.largest_units(&blocks), 4000);
    }

    #[test]
    fn the_whole_floor_bin_is_searched_before_giving_up() {
        // The only fitting block is the oldest, so it is the last of more than FLOOR_BIN_TRIES.
        let mut sizes = vec![2047];
        sizes.extend([2016; 20]);
        let (mut bins, mut blocks, indices) = bins_with(&sizes);
        assert_eq!(bins.find(&blocks, 2047), Some(indices[0]));
        bins.unlink(&mut blocks, indices[0]);
        assert_eq!(bins.find(&blocks, 2047), None);
        let larger = blocks.take(0, 0, 9000);
        bins.link(&mut blocks, larger);
        assert_eq!(bins.find(&blocks, 2047), Some(larger));
    }

    #[test]
    fn emptied_bins_clear_their_bits() {
        let (mut bins, mut blocks, indices) = bins_with(&[10, 10, 3000]);
        for &index in &indices {
            bins.unlink(&mut blocks, index);
        }
        assert!(bins.bits().all(|(bin, row, column)| !row && !column && bins.heads[bin.list()] == NIL));
        assert_eq!(bins.largest_units(&blocks), 0);
        assert_eq!(bins.find(&blocks, 1), None);
    }
}
