//! Exact best fit by ordered sets: the smallest free span that fits, the lowest of those.

use std::collections::{BTreeMap, BTreeSet};

use super::Peer;

/// Free spans by offset, and again by size.
pub(crate) struct BestFit {
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl BestFit {
    fn insert(&mut self, offset: u64, size: u64) {
        self.by_offset.insert(offset, size);
        self.by_size.insert((size, offset));
    }

    fn remove(&mut self, offset: u64, size: u64) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(size, offset));
    }
}

impl Peer for BestFit {
    const NAME: &'static str = "best-fit tree";
    type Handle = (u64, u64);

    fn new(capacity_units: u64) -> Self {
        let mut tree = BestFit { by_offset: BTreeMap::new(), by_size: BTreeSet::new() };
        tree.insert(0, capacity_units);
        tree
    }

    fn allocate(&mut self, size_units: u32) -> Option<Self::Handle> {
        let size_units = u64::from(size_units);
        let &(found, offset) = self.by_size.range((size_units, 0)..).next()?;
        self.remove(offset, found);
        if found > size_units {
            self.insert(offset + size_units, found - size_units);
        }
        Some((offset, size_units))
    }

    fn free(&mut self, handle: Self::Handle) {
        let (mut offset, mut size) = handle;
        if let Some(&above) = self.by_offset.get(&(offset + size)) {
            self.remove(offset + size, above);
            size += above;
        }
        if let Some((&lower, &below)) = self.by_offset.range(..offset).next_back()
            && lower + below == offset
        {
            self.remove(lower, below);
            (offset, size) = (lower, size + below);
        }
        self.insert(offset, size);
    }

    fn offset_units(&self, handle: &Self::Handle) -> u64 {
        handle.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_span_is_taken_and_neighbours_coalesce() {
        let mut tree = BestFit::new(100);
        let blocks = [10, 1, 5, 1].map(|units| tree.allocate(units).unwrap());
        let [large, _, small, _] = blocks;
        tree.free(large);
        tree.free(small);
        assert_eq!(tree.allocate(4), Some((11, 4)));
        tree.free((11, 4));
        tree.free(blocks[1]);
        assert_eq!(tree.allocate(16), Some((0, 16)), "three spans have become one");
    }
}
