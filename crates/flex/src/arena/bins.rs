//! Segregated bins of the free blocks of one region, found through a two-level bitmap. Each zone has rows of its own.
//!
//! Sizes are binned by their leading bit (row) and the five bits after it (column), as in the two-level
//! segregated fit of Masmano et al. (TLSF, ECRTS 2004). Below 64 units a bin holds one size; above, the sizes of a
//! bin differ by less than 1/32. A bin is a doubly linked list, newest block first.
//!
//! The first block of a list has the bin where others have the link to the one before: who takes a block out needs its
//! bin only then.
//!
//! Invariants: a column bit is set iff its list is not empty; a row bit is set iff one of its column bits is; a
//! block is in the bin of its size.
//!
//! Protected by the allocator mutex.

use super::blocks::{Blocks, MAX_NODES, NIL, Node, NodeState, Table, Zone};

const COLUMN_BITS: u32 = 5;
const COLUMNS: usize = 1 << COLUMN_BITS;
/// Row 0 of a zone holds sizes below 32, each later row one power of two. 28 rows reach to 2^31; the rest stay empty,
/// so that all tables have a power of two of entries and an index cut to that needs no check.
const ZONE_ROWS: usize = 32;
/// The rows of the small zone, then those of the large one.
pub(crate) const ROWS: usize = 2 * ZONE_ROWS;
const LISTS: usize = ROWS * COLUMNS;
/// In place of a link: what else is in it is a bin. No index has this bit.
const FIRST: u32 = MAX_NODES;

/// Which list a size belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bin(u32);

impl Bin {
    /// The bin of blocks of a size in a zone.
    #[inline]
    pub(crate) fn of(size_units: u32, zone: Zone) -> Bin {
        // The bits above the column; row 1 starts at the size that has none to spare.
        let shift = (size_units | COLUMNS as u32).ilog2() - COLUMN_BITS;
        let place = (shift << COLUMN_BITS) + (size_units >> shift);
        Bin((zone.first_row() << COLUMN_BITS) + place)
    }

    #[inline]
    fn at(row: u32, column: u32) -> Bin {
        Bin(row << COLUMN_BITS | column)
    }

    /// What the first block of the list has as its link to the one before.
    #[inline]
    pub(crate) fn first(self) -> u32 {
        FIRST | self.0
    }

    /// The row of the bitmap the bin is in.
    #[inline]
    pub(crate) fn row(self) -> usize {
        (self.0 >> COLUMN_BITS) as usize % ROWS
    }

    #[inline]
    fn column(self) -> u32 {
        self.0 % COLUMNS as u32
    }

    #[inline]
    fn list(self) -> usize {
        self.0 as usize % LISTS
    }
}

impl Zone {
    #[inline]
    fn first_row(self) -> u32 {
        self as u32 * ZONE_ROWS as u32
    }

    /// The bits of its rows.
    #[inline]
    fn row_bits(self) -> u64 {
        u64::from(u32::MAX) << self.first_row()
    }
}

/// The free blocks of one region, by zone and size.
#[derive(Debug)]
pub(crate) struct Bins {
    /// Bit `r`: row `r` has a block.
    rows: u64,
    /// Bit `c` of entry `r`: the list at row `r`, column `c` has a block.
    columns: [u32; ROWS],
    /// Heads of the lists. Apart, so that a region is small enough for the stacks of the model checkers.
    heads: Box<[u32; LISTS]>,
}

impl Bins {
    /// No blocks.
    pub(crate) fn new() -> Bins {
        Bins { rows: 0, columns: [0; ROWS], heads: Box::new([NIL; LISTS]) }
    }

    /// Marks a block free and adds it to the bins of its zone.
    #[inline]
    pub(crate) fn link(&mut self, blocks: &mut Blocks, index: u32) {
        let node = blocks.node_mut(index);
        let zone = node.state.zone();
        node.state = NodeState::free(zone);
        let bin = Bin::of(node.size_units, zone);
        self.insert(&mut blocks.table(), index, bin);
    }

    /// Takes a free block out and marks it occupied. Its size may have changed since it was linked.
    #[inline]
    pub(crate) fn unlink(&mut self, blocks: &mut Blocks, index: u32) {
        let state = blocks.node(index).state;
        debug_assert!(state.is_free());
        self.remove(&mut blocks.table(), index);
        blocks.node_mut(index).state = NodeState::occupied(state.zone());
    }

    /// Adds a block to a bin; its state is the caller's to set.
    #[inline(always)]
    pub(crate) fn insert(&mut self, table: &mut Table<'_>, index: u32, bin: Bin) {
        let head = std::mem::replace(&mut self.heads[bin.list()], index);
        let node = table.node_mut(index);
        node.previous_free = bin.first();
        node.next_free = head;
        table.node_mut(head).previous_free = index;
        self.columns[bin.row()] |= 1 << bin.column();
        self.rows |= 1 << bin.row();
    }

    /// Takes out a free block; its state is the caller's to set.
    #[inline(always)]
    pub(crate) fn remove(&mut self, table: &mut Table<'_>, index: u32) {
        let Node { previous_free: previous, next_free: next, .. } = *table.node(index);
        table.node_mut(next).previous_free = previous;
        if previous & FIRST == 0 {
            table.node_mut(previous).next_free = next;
            return;
        }
        let bin = Bin(previous);
        self.heads[bin.list()] = next;
        // Without a branch: whether it was the last one is as good as random.
        let columns = &mut self.columns[bin.row()];
        *columns &= !(u32::from(next == NIL) << bin.column());
        self.rows &= !(u64::from(*columns == 0) << bin.row());
    }

    /// A free block of the zone of at least `size_units` (not 0), by good fit; `NIL` only if there is none beyond the
    /// request's own bin.
    ///
    /// The newest block of the request's own bin if that is large enough, else the newest of the next bin that has one
    /// (all of them fit). To look at more blocks of the own bin first packs no better; see [`search`](Self::search) for
    /// what is left to try.
    #[inline(always)]
    pub(crate) fn find(&self, nodes: &[Node], size_units: u32, zone: Zone) -> u32 {
        let floor = Bin::of(size_units, zone);
        let newest = self.heads[floor.list()];
        // The edge marker, which ends every list, is too small for any request.
        if nodes[newest as usize].size_units >= size_units {
            return newest;
        }
        self.first_above(floor, zone)
    }

    /// Any block of at least `size_units` in the request's own bin.
    pub(crate) fn search(&self, blocks: &Blocks, size_units: u32, zone: Zone) -> Option<u32> {
        self.list(blocks, Bin::of(size_units, zone))
            .find(|&index| blocks.node(index).size_units >= size_units)
    }

    /// Any free block of the zone.
    pub(crate) fn any(&self, zone: Zone) -> Option<u32> {
        let rows = self.rows & zone.row_bits();
        Some(self.newest_of_row(rows.checked_ilog2()?))
    }

    /// The size of the largest free block of the zone, 0 without one.
    pub(crate) fn largest_units(&self, blocks: &Blocks, zone: Zone) -> u32 {
        let rows = self.rows & zone.row_bits();
        let Some(row) = rows.checked_ilog2() else { return 0 };
        let column = self.columns[row as usize].ilog2();
        self.list(blocks, Bin::at(row, column)).map(|index| blocks.node(index).size_units).max().unwrap_or(0)
    }

    /// The blocks of a bin, newest first.
    pub(crate) fn list<'a>(&self, blocks: &'a Blocks, bin: Bin) -> impl Iterator<Item = u32> + use<'a> {
        let head = self.heads[bin.list()];
        std::iter::successors(Some(head), |&index| Some(blocks.node(index).next_free))
            .take_while(|&index| index != NIL)
    }

    /// The free blocks of a zone.
    pub(crate) fn blocks<'a>(
        &self,
        blocks: &'a Blocks,
        zone: Zone,
    ) -> impl Iterator<Item = u32> + use<'a, '_> {
        let rows = (zone.first_row()..).take(ZONE_ROWS).filter(|&row| self.rows & (1 << row) != 0);
        let bins = rows.flat_map(|row| (0..COLUMNS as u32).map(move |column| Bin::at(row, column)));
        bins.flat_map(|bin| self.list(blocks, bin))
    }

    /// Every bin of rows where anything is set, with what the bitmaps say of it: the row bit and the column bit.
    pub(crate) fn bits(&self) -> impl Iterator<Item = (Bin, bool, bool)> + '_ {
        (0..ROWS).filter(|&row| !self.is_blank(row)).flat_map(move |row| {
            (0..COLUMNS as u32).map(move |column| {
                let column_bit = self.columns[row] & (1 << column) != 0;
                (Bin::at(row as u32, column), self.rows & (1 << row) != 0, column_bit)
            })
        })
    }

    fn is_blank(&self, row: usize) -> bool {
        self.rows & (1 << row) == 0
            && self.columns[row] == 0
            && self.heads[row * COLUMNS..][..COLUMNS] == [NIL; COLUMNS]
    }

    /// The newest block of the first bin of the zone above this one that has one, else `NIL`.
    #[inline(always)]
    fn first_above(&self, bin: Bin, zone: Zone) -> u32 {
        // The bin after the last of a row is the first of the next row; after the last of a zone there is an empty one.
        let next = Bin(bin.0 + 1);
        let in_row = self.columns[next.row()] & (u32::MAX << next.column());
        if in_row != 0 {
            return self.heads[Bin::at(next.row() as u32, in_row.trailing_zeros()).list()];
        }
        let rows = self.rows & zone.row_bits() & (u64::MAX << next.row() << 1);
        if rows == 0 { NIL } else { self.newest_of_row(rows.trailing_zeros()) }
    }

    /// The newest block of the smallest size in a row that has one.
    #[inline]
    fn newest_of_row(&self, row: u32) -> u32 {
        let column = self.columns[row as usize % ROWS].trailing_zeros();
        self.heads[Bin::at(row, column).list()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_grow_with_the_size_and_are_exact_when_small() {
        let zone = Zone::Large;
        for size_units in 1..64 {
            assert!(Bin::of(size_units, zone) < Bin::of(size_units + 1, zone), "{size_units}");
        }
        assert_eq!(Bin::of(64, zone), Bin::of(65, zone));
        assert!(Bin::of(65, zone) < Bin::of(66, zone));
        for shift in 6..32 {
            let size_units = 1_u32 << shift;
            assert!(Bin::of(size_units - 1, zone) < Bin::of(size_units, zone));
        }
        assert_eq!(
            Bin::of(u32::MAX, zone),
            Bin(((ZONE_ROWS + 28) * COLUMNS) as u32 - 1),
            "28 rows are in use"
        );
        assert!(Bin::of(u32::MAX, Zone::Small) < Bin::of(1, zone));
    }

    fn take(blocks: &mut Blocks, size_units: u32) -> u32 {
        blocks.keep_spare();
        blocks.table().take(Node { size_units, state: NodeState::OccupiedSmall, ..Node::EDGE }).0
    }

    fn find(bins: &Bins, blocks: &mut Blocks, size_units: u32, zone: Zone) -> Option<u32> {
        match bins.find(blocks.table().nodes(), size_units, zone) {
            NIL => bins.search(blocks, size_units, zone),
            index => Some(index),
        }
    }

    fn bins_with(sizes: &[u32]) -> (Bins, Blocks, Vec<u32>) {
        let (mut bins, mut blocks) = (Bins::new(), Blocks::new());
        let indices = sizes.iter().map(|&size_units| take(&mut blocks, size_units)).collect::<Vec<_>>();
        for &index in &indices {
            bins.link(&mut blocks, index);
        }
        (bins, blocks, indices)
    }

    #[test]
    fn find_takes_the_newest_of_its_own_bin_if_that_fits() {
        let (bins, mut blocks, indices) = bins_with(&[2020, 2047, 2040, 4000]);
        assert_eq!(Bin::of(2047, Zone::Small), Bin::of(2020, Zone::Small));
        assert_eq!(find(&bins, &mut blocks, 2030, Zone::Small), Some(indices[2]));
        assert_eq!(
            find(&bins, &mut blocks, 2045, Zone::Small),
            Some(indices[3]),
            "the next bin comes before the rest"
        );
        assert_eq!(find(&bins, &mut blocks, 2048, Zone::Small), Some(indices[3]));
        assert_eq!(find(&bins, &mut blocks, 4001, Zone::Small), None);
        assert_eq!(bins.largest_units(&blocks, Zone::Small), 4000);
    }

    #[test]
    fn the_whole_floor_bin_is_searched_before_giving_up() {
        // The only fitting block is the oldest.
        let mut sizes = vec![2047];
        sizes.extend([2016; 20]);
        let (mut bins, mut blocks, indices) = bins_with(&sizes);
        assert_eq!(find(&bins, &mut blocks, 2047, Zone::Small), Some(indices[0]));
        bins.unlink(&mut blocks, indices[0]);
        assert_eq!(find(&bins, &mut blocks, 2047, Zone::Small), None);
        let larger = take(&mut blocks, 9000);
        bins.link(&mut blocks, larger);
        assert_eq!(find(&bins, &mut blocks, 2047, Zone::Small), Some(larger));
    }

    #[test]
    fn emptied_bins_clear_their_bits() {
        let (mut bins, mut blocks, indices) = bins_with(&[10, 10, 3000]);
        for &index in &indices {
            bins.unlink(&mut blocks, index);
        }
        assert!(bins.bits().all(|(bin, row, column)| !row && !column && bins.heads[bin.list()] == NIL));
        assert_eq!(bins.largest_units(&blocks, Zone::Small), 0);
        assert_eq!(find(&bins, &mut blocks, 1, Zone::Small), None);
    }

    #[test]
    fn zones_do_not_see_each_other() {
        let (bins, mut blocks, indices) = bins_with(&[10, 3000]);
        assert_eq!(find(&bins, &mut blocks, 1, Zone::Large), None);
        assert_eq!((bins.any(Zone::Large), bins.largest_units(&blocks, Zone::Large)), (None, 0));
        assert_eq!(find(&bins, &mut blocks, 20, Zone::Small), Some(indices[1]));
        assert!(bins.any(Zone::Small).is_some());
        assert_eq!(bins.blocks(&blocks, Zone::Small).count(), 2);
        assert_eq!(bins.blocks(&blocks, Zone::Large).count(), 0);
    }
}
