//! What is live and reserved on one device, moment by moment. Both passes play the events on a ledger.
//!
//! Invariants: `live_bytes` is the sum of the sizes in `live` unless it stands at the most that 64 bits hold; open
//! regions do not overlap.

use std::collections::{BTreeMap, HashMap};

use flex_trace::{Action, Event};

use super::sites::SiteId;

/// A block that is live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) site: SiteId,
    /// The moment since which it is there.
    pub(super) born: u64,
}

/// What an event did to blocks. One that allocates what is already live does both.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) died: Option<Block>,
    pub(super) born: Option<Block>,
}

/// Memory taken from a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) born: u64,
    /// The moment since which it is gone.
    pub(super) died: Option<u64>,
}

/// The blocks of a device.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    live: HashMap<u64, Block, foldhash::fast::RandomState>,
    /// The number of events.
    pub(super) moment: u64,
    pub(super) live_bytes: u64,
    pub(super) reserved_bytes: u64,
    pub(super) allocations: u64,
    pub(super) frees: u64,
    pub(super) contradictions: u64,
}

impl Ledger {
    /// A ledger of a device of which so much was reserved before the first event.
    pub(super) fn with_reserved(reserved_bytes: u64) -> Self {
        Ledger { reserved_bytes, ..Ledger::default() }
    }

    pub(super) fn live_blocks(&self) -> u64 {
        self.live.len() as u64
    }

    pub(super) fn live(&self) -> impl Iterator<Item = &Block> {
        self.live.values()
    }

    /// Plays an event. One of the baseline is no moment of its own.
    pub(super) fn play(&mut self, event: &Event, site: SiteId) -> Change {
        if !matches!(event.action, Action::Baseline { .. }) {
            self.moment += 1;
        }
        match event.action {
            Action::Allocated { address, size_bytes, .. } => {
                self.allocations += 1;
                self.add(address.0, size_bytes, site)
            }
            Action::Baseline { address, size_bytes, .. } => self.add(address.0, size_bytes, site),
            Action::Freed { address, .. } => {
                self.frees += 1;
                let died = self.remove(address.0);
                self.contradictions += u64::from(died.is_none());
                Change { died, born: None }
            }
            Action::RegionAcquired { size_bytes, .. } => {
                self.reserved_bytes = self.reserved_bytes.saturating_add(size_bytes);
                Change::default()
            }
            Action::RegionReleased { size_bytes, .. } => {
                self.reserved_bytes = self.reserved_bytes.saturating_sub(size_bytes);
                Change::default()
            }
            _ => Change::default(),
        }
    }

    /// Adds a block that is there from now on.
    pub(super) fn add(&mut self, address: u64, size_bytes: u64, site: SiteId) -> Change {
        let died = self.remove(address);
        self.contradictions += u64::from(died.is_some());
        let block = Block { address, size_bytes, site, born: self.moment };
        self.live.insert(address, block);
        self.live_bytes = self.live_bytes.saturating_add(size_bytes);
        Change { died, born: Some(block) }
    }

    fn remove(&mut self, address: u64) -> Option<Block> {
        let block = self.live.remove(&address)?;
        self.live_bytes = self.live_bytes.saturating_sub(block.size_bytes);
        Some(block)
    }
}

/// The regions of a device, found from events and from the state at the end.
#[derive(Debug, Default)]
pub(super) struct Regions {
    /// Acquired and not yet released, by address.
    open: BTreeMap<u64, Region>,
    /// Gone, the largest of them.
    closed: Vec<Region>,
    limit: usize,
    pub(super) count: u64,
    /// Of those that were there before the first event.
    pub(super) before_bytes: u64,
}

impl Regions {
    pub(super) fn new(limit: usize) -> Self {
        Regions { limit, ..Regions::default() }
    }

    pub(super) fn acquire(&mut self, address: u64, size_bytes: u64, moment: u64) {
        self.close(address, size_bytes, moment, false);
        self.open(Region { address, size_bytes, born: moment, died: None });
    }

    pub(super) fn release(&mut self, address: u64, size_bytes: u64, moment: u64) {
        self.close(address, size_bytes, moment, true);
    }

    /// A region that is there at the end: what events do not account for was there from the beginning.
    pub(super) fn state(&mut self, address: u64, size_bytes: u64) {
        for (gap, size_bytes) in self.gaps(address, size_bytes) {
            self.before_bytes = self.before_bytes.saturating_add(size_bytes);
            self.open(Region { address: gap, size_bytes, born: 0, died: None });
        }
    }

    fn open(&mut self, mut region: Region) {
        region.size_bytes = region.size_bytes.min(u64::MAX - region.address);
        if region.size_bytes > 0 {
            self.count += 1;
            self.open.insert(region.address, region);
        }
    }

    /// Ends what is open between two addresses. Where nothing is, `was_there` says that something was, from the
    /// beginning.
    fn close(&mut self, address: u64, size_bytes: u64, moment: u64, was_there: bool) {
        if was_there {
            for (gap, size_bytes) in self.gaps(address, size_bytes) {
                self.count += 1;
                self.before_bytes = self.before_bytes.saturating_add(size_bytes);
                self.bury(Region { address: gap, size_bytes, born: 0, died: Some(moment) });
            }
        }
        let end = address.saturating_add(size_bytes);
        for region in self.overlapping(address, end) {
            self.open.remove(&region.address);
            let region_end = region.address + region.size_bytes;
            let (start, stop) = (region.address.max(address), region_end.min(end));
            for (left, right) in [(region.address, start), (stop, region_end)] {
                if left < right {
                    self.open.insert(left, Region { address: left, size_bytes: right - left, ..region });
                }
            }
            self.bury(Region { address: start, size_bytes: stop - start, died: Some(moment), ..region });
        }
    }

    /// What no open region has of a range.
    fn gaps(&self, address: u64, size_bytes: u64) -> Vec<(u64, u64)> {
        let end = address.saturating_add(size_bytes);
        let mut gaps = Vec::new();
        let mut from = address;
        for region in self.overlapping(address, end) {
            if region.address > from {
                gaps.push((from, region.address - from));
            }
            from = region.address + region.size_bytes;
        }
        if from < end {
            gaps.push((from, end - from));
        }
        gaps
    }

    /// The open regions that have a part of a range, by address.
    fn overlapping(&self, address: u64, end: u64) -> Vec<Region> {
        let before = self.open.range(..address).next_back();
        let reaches = before.filter(|(_, region)| region.address.saturating_add(region.size_bytes) > address);
        let within = if address < end { Some(self.open.range(address..end)) } else { None };
        reaches.into_iter().chain(within.into_iter().flatten()).map(|(_, region)| *region).collect()
    }

    fn bury(&mut self, region: Region) {
        self.closed.push(region);
        if self.closed.len() > 2 * self.limit {
            self.closed.select_nth_unstable_by_key(self.limit, |region| std::cmp::Reverse(region.size_bytes));
            self.closed.truncate(self.limit);
        }
    }

    /// All of them, but for the smallest if there are too many; by address.
    pub(super) fn into_largest(self) -> Vec<Region> {
        let mut all = self.closed;
        all.extend(self.open.into_values());
        all.sort_by_key(|region| std::cmp::Reverse(region.size_bytes));
        all.truncate(self.limit);
        all.sort_by_key(|region| (region.address, region.born));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(address: u64, size_bytes: u64, born: u64, died: Option<u64>) -> Region {
        Region { address, size_bytes, born, died }
    }

    #[test]
    fn an_address_that_is_allocated_twice_is_a_contradiction_and_ends_the_first() {
        let mut ledger = Ledger::default();
        let first = ledger.add(16, 100, SiteId(1)).born;
        let change = ledger.add(16, 50, SiteId(2));
        assert_eq!((change.died, ledger.contradictions, ledger.live_bytes), (first, 1, 50));
    }

    #[test]
    fn what_is_released_without_having_been_acquired_was_there_before() {
        let mut regions = Regions::new(10);
        regions.release(100, 50, 3);
        regions.state(200, 10);
        assert_eq!(regions.before_bytes, 60);
        assert_eq!(regions.into_largest(), [region(100, 50, 0, Some(3)), region(200, 10, 0, None)]);
    }

    #[test]
    fn a_part_that_is_unmapped_leaves_the_rest() {
        let mut regions = Regions::new(10);
        regions.acquire(100, 100, 1);
        regions.release(120, 30, 2);
        regions.state(100, 100);
        assert_eq!(regions.before_bytes, 30, "the state at the end says that the part is there");
        let expected = [
            region(100, 20, 1, None),
            region(120, 30, 0, None),
            region(120, 30, 1, Some(2)),
            region(150, 50, 1, None),
        ];
        assert_eq!(regions.into_largest(), expected);
    }

    #[test]
    fn only_the_largest_are_kept() {
        let mut regions = Regions::new(2);
        for size in 1..=9 {
            regions.acquire(size * 1000, size, size);
            regions.release(size * 1000, size, size + 1);
        }
        let sizes: Vec<u64> = regions.into_largest().iter().map(|region| region.size_bytes).collect();
        assert_eq!(sizes, [8, 9]);
    }

    #[test]
    fn regions_at_the_end_of_the_address_space_do_no_harm() {
        let mut regions = Regions::new(4);
        regions.acquire(u64::MAX - 10, u64::MAX, 1);
        regions.acquire(u64::MAX - 5, 100, 2);
        regions.release(0, u64::MAX, 3);
        assert!(regions.into_largest().len() <= 4);
    }
}
