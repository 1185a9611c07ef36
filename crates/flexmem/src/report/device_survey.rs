//! What the first pass counts of one device, and what of it the page shows.
//!
//! Blocks are ranked by the product of their size and the moments that they lived, which is the area that they would
//! take in a picture of the whole trace. A histogram of its logarithm says from where on they are shown.

use std::collections::{BTreeMap, HashMap};

use flex_trace::{Action, Event};

use super::Limits;
use super::ledger::{Block, Change, Ledger, Region, Regions};
use super::sites::SiteId;
use super::summary::{Device, MapExtent};

/// Classes of blocks for each doubling of size times moments.
const CLASSES_PER_DOUBLING: f64 = 8.0;

/// The class of a block for [`DeviceSurvey::classes`]. The larger, the more worth showing.
pub(super) fn class(size_bytes: u64, moments: u64) -> u16 {
    let area = (size_bytes.max(1) as f64) * (moments.max(1) as f64);
    (area.log2() * CLASSES_PER_DOUBLING) as u16
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct SiteTotals {
    pub(super) live_bytes: u64,
    pub(super) peak_bytes: u64,
    pub(super) allocated_bytes: u64,
    pub(super) allocations: u64,
}

/// Which blocks of a device the map shows: all of the classes above one, and the first of that one.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Cut {
    pub(super) class: u16,
    pub(super) of_class: u64,
}

/// What is known of one device after the first pass.
#[derive(Debug, Default)]
pub(super) struct DeviceSurvey {
    pub(super) summary: Device,
    ledger: Ledger,
    pub(super) sites: HashMap<SiteId, SiteTotals, foldhash::fast::RandomState>,
    pub(super) regions: Regions,
    pub(super) reserved_before_bytes: Option<u64>,
    /// Blocks by their class.
    classes: BTreeMap<u16, u64>,
    /// Live blocks of the state at the end, as long as no event tells of blocks.
    state: Vec<Block>,
    /// Where the next block of the state begins.
    pub(super) state_address: u64,
    pub(super) cut: Cut,
    /// The largest regions.
    pub(super) shown_regions: Vec<Region>,
}

impl DeviceSurvey {
    pub(super) fn new(device: u32, limits: &Limits) -> Self {
        DeviceSurvey {
            summary: Device { device, ..Device::default() },
            regions: Regions::new(limits.regions),
            ..DeviceSurvey::default()
        }
    }

    /// What was reserved before the first event.
    pub(super) fn reserved_before_bytes(&self) -> u64 {
        self.reserved_before_bytes.unwrap_or(self.regions.before_bytes)
    }

    /// Blocks that are known from the state at the end alone.
    pub(super) fn state_blocks(&self) -> &[Block] {
        &self.state
    }

    /// Moments, with the one before the first event.
    pub(super) fn moments(&self) -> u64 {
        self.ledger.moment + 1
    }

    pub(super) fn play(&mut self, event: &Event, site: SiteId) {
        let change = self.ledger.play(event, site);
        let moment = self.ledger.moment;
        match event.action {
            Action::Baseline { size_bytes, .. } => {
                self.summary.baseline_blocks += 1;
                self.summary.baseline_bytes = self.summary.baseline_bytes.saturating_add(size_bytes);
            }
            Action::RegionAcquired { address, size_bytes, .. } => {
                self.regions.acquire(address.0, size_bytes, moment);
            }
            Action::RegionReleased { address, size_bytes, .. } => {
                self.regions.release(address.0, size_bytes, moment);
            }
            Action::Lost { events } => {
                self.summary.lost_events = self.summary.lost_events.saturating_add(events);
                self.summary.lost_places += 1;
            }
            _ => {}
        }
        if event.time_ns.is_some() {
            self.summary.first_time_ns = self.summary.first_time_ns.or(event.time_ns);
            self.summary.last_time_ns = event.time_ns;
        }
        self.count(change);
    }

    fn count(&mut self, change: Change) {
        if let Some(block) = change.died {
            self.count_death(&block);
        }
        if let Some(block) = change.born {
            let totals = self.sites.entry(block.site).or_default();
            totals.live_bytes = totals.live_bytes.saturating_add(block.size_bytes);
            totals.peak_bytes = totals.peak_bytes.max(totals.live_bytes);
            totals.allocated_bytes = totals.allocated_bytes.saturating_add(block.size_bytes);
            totals.allocations += 1;
            if self.ledger.live_bytes > self.summary.peak.live_bytes {
                self.summary.peak.live_bytes = self.ledger.live_bytes;
                self.summary.peak.moment = self.ledger.moment;
            }
        }
    }

    fn count_death(&mut self, block: &Block) {
        if let Some(totals) = self.sites.get_mut(&block.site) {
            totals.live_bytes = totals.live_bytes.saturating_sub(block.size_bytes);
        }
        *self.classes.entry(class(block.size_bytes, self.ledger.moment - block.born)).or_default() += 1;
    }

    /// A block of the state. It counts if no event tells of blocks, which is known at the end.
    pub(super) fn state_block(&mut self, size_bytes: u64, requested_bytes: u64, live: bool, site: SiteId) {
        let address = self.state_address;
        self.state_address = address.wrapping_add(size_bytes);
        let known_from_events = self.ledger.allocations > 0 || self.summary.baseline_blocks > 0;
        if live && !known_from_events {
            self.state.push(Block { address, size_bytes: requested_bytes, site, born: 0 });
        }
    }

    pub(super) fn finish(&mut self) {
        if self.ledger.allocations > 0 || self.summary.baseline_blocks > 0 {
            self.state = Vec::new();
        }
        self.summary.from_state = !self.state.is_empty();
        for block in std::mem::take(&mut self.state) {
            let moment = std::mem::take(&mut self.ledger.moment);
            let change = self.ledger.add(block.address, block.size_bytes, block.site);
            self.count(change);
            self.ledger.moment = moment;
            self.state.push(block);
        }
        let moments = self.moments();
        for block in self.ledger.live() {
            *self.classes.entry(class(block.size_bytes, moments - block.born)).or_default() += 1;
        }
        let totals = std::mem::take(&mut self.regions);
        let (count, before_bytes) = (totals.count, totals.before_bytes);
        self.shown_regions = totals.into_largest();
        self.regions.before_bytes = before_bytes;
        self.summary.map =
            MapExtent { blocks: self.classes.values().sum(), regions: count, ..MapExtent::default() };
        self.summary.events = self.ledger.moment;
        self.summary.allocations = self.ledger.allocations;
        self.summary.frees = self.ledger.frees;
        self.summary.contradictions = self.summary.contradictions.saturating_add(self.ledger.contradictions);
    }

    /// Decides which blocks are shown, at most so many.
    pub(super) fn cut_blocks(&mut self, most: u64) {
        let mut left = most;
        self.cut = Cut { class: 0, of_class: u64::MAX };
        for (&class, &count) in self.classes.iter().rev() {
            if count >= left {
                self.cut = Cut { class, of_class: left };
                return;
            }
            left -= count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cut_leaves_out_the_smallest_classes() {
        let mut device =
            DeviceSurvey { classes: BTreeMap::from([(1, 10), (5, 4), (9, 3)]), ..Default::default() };
        device.cut_blocks(5);
        assert_eq!((device.cut.class, device.cut.of_class), (5, 2));
        device.cut_blocks(1000);
        assert_eq!((device.cut.class, device.cut.of_class), (0, u64::MAX));
    }

    #[test]
    fn a_class_holds_blocks_of_about_the_same_area() {
        assert_eq!(class(512, 1), class(1, 512));
        assert!(class(512, 100) > class(512, 90));
        assert!(class(u64::MAX, u64::MAX) < 1100);
    }
}
