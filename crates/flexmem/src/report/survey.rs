//! The first pass over a trace: it counts, and decides what the page will show.
//!
//! Blocks are ranked by the product of their size and the moments that they lived, which is the area that they would
//! take in a picture of the whole trace. A histogram of its logarithm says from where on they are shown.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use flex_trace::record::{BlockState, ClockOrigin};
use flex_trace::{Action, Event, ReadError, Record};

use super::Limits;
use super::ledger::{Block, Change, Ledger, Region, Regions};
use super::sites::{SiteId, Sites, short};
use super::summary::{Device, MapExtent, Site, SiteUse, Source, Summary};
use crate::TraceFile;

/// The most texts of a kind that have no other limit: settings, sources.
const MAX_TEXTS: usize = 200;
/// Classes of blocks for each doubling of size times moments.
const CLASSES_PER_DOUBLING: f64 = 8.0;

/// The class of a block for [`DeviceSurvey::classes`]. The larger, the more worth showing.
pub(super) fn class(size_bytes: u64, moments: u64) -> u16 {
    let area = (size_bytes.max(1) as f64) * (moments.max(1) as f64);
    (area.log2() * CLASSES_PER_DOUBLING) as u16
}

#[derive(Debug, Default, Clone, Copy)]
struct SiteTotals {
    live_bytes: u64,
    peak_bytes: u64,
    allocated_bytes: u64,
    allocations: u64,
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
    sites: HashMap<SiteId, SiteTotals, foldhash::fast::RandomState>,
    regions: Regions,
    reserved_before_bytes: Option<u64>,
    /// Blocks by their class.
    classes: BTreeMap<u16, u64>,
    /// Live blocks of the state at the end, as long as no event tells of blocks.
    state: Vec<Block>,
    /// Where the next block of the state begins.
    state_address: u64,
    pub(super) cut: Cut,
    /// The largest regions.
    pub(super) shown_regions: Vec<Region>,
}

impl DeviceSurvey {
    fn new(device: u32, limits: &Limits) -> Self {
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
    fn moments(&self) -> u64 {
        self.ledger.moment + 1
    }

    fn play(&mut self, event: &Event, site: SiteId) {
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
    fn state_block(&mut self, size_bytes: u64, requested_bytes: u64, live: bool, site: SiteId) {
        let address = self.state_address;
        self.state_address = address.wrapping_add(size_bytes);
        let known_from_events = self.ledger.allocations > 0 || self.summary.baseline_blocks > 0;
        if live && !known_from_events {
            self.state.push(Block { address, size_bytes: requested_bytes, site, born: 0 });
        }
    }

    fn finish(&mut self) {
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
    fn cut_blocks(&mut self, most: u64) {
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

/// The first pass.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) summary: Summary,
    /// By number; `summary.devices` is empty until the second pass has finished.
    pub(super) devices: BTreeMap<u32, DeviceSurvey>,
    /// The place of each site that is shown in `summary.sites`.
    pub(super) shown_sites: HashMap<SiteId, u32, foldhash::fast::RandomState>,
    sites: Sites,
    devices_left_out: std::collections::BTreeSet<u32>,
    state_device: u32,
    limits: Limits,
}

impl Survey {
    pub(super) fn of(trace: &mut TraceFile, file: &str, limits: &Limits) -> Result<Survey, ReadError> {
        let mut survey = Survey {
            summary: Summary {
                file: short(file),
                kind: trace.kind().name(),
                growing: trace.is_growing(),
                sources: Vec::new(),
                clock: None,
                settings: Vec::new(),
                sites: Vec::new(),
                devices: Vec::new(),
                devices_left_out: 0,
                sites_left_out: 0,
            },
            devices: BTreeMap::new(),
            shown_sites: HashMap::default(),
            sites: Sites::new(),
            devices_left_out: std::collections::BTreeSet::new(),
            state_device: 0,
            limits: *limits,
        };
        trace.each_record(|record| survey.take(record))?;
        survey.finish();
        Ok(survey)
    }

    fn take(&mut self, record: &Record<'_>) {
        if self.sites.keep(record) {
            return;
        }
        match record {
            Record::Event(event) => {
                let site = self.sites.site(event.stack);
                if let Some(device) = self.device(event.device) {
                    device.play(event, site);
                }
            }
            Record::Device(described) => {
                if let Some(device) = self.device(described.device) {
                    device.summary.name = described.name.map(short);
                    device.summary.capacity_bytes = described.capacity_bytes;
                }
            }
            Record::History(history) => {
                if let Some(device) = self.device(history.device) {
                    device.reserved_before_bytes = history.reserved_before_bytes;
                    device.summary.contradictions = history.contradictions;
                }
            }
            Record::RegionState(region) => {
                self.state_device = region.device;
                if let Some(device) = self.device(region.device) {
                    device.regions.state(region.address.0, region.size_bytes);
                    device.state_address = region.address.0;
                }
            }
            Record::Block(block) => {
                let site = self.sites.site(block.stack);
                if let Some(device) = self.device(self.state_device) {
                    let live = block.state != BlockState::Free;
                    device.state_block(block.size_bytes, block.requested_bytes, live, site);
                }
            }
            other => self.take_text(other),
        }
    }

    fn take_text(&mut self, record: &Record<'_>) {
        match record {
            Record::Source(source) if self.summary.sources.len() < MAX_TEXTS => {
                let (producer, kind, name) = (short(source.producer), short(source.kind), short(source.name));
                self.summary.sources.push(Source { producer, kind, name });
            }
            Record::Setting { key, value } if self.summary.settings.len() < MAX_TEXTS => {
                self.summary.settings.push((short(key), short(value)));
            }
            Record::Clock(origin) => {
                self.summary.clock = Some(match origin {
                    ClockOrigin::Unix => "unix",
                    ClockOrigin::Monotonic => "monotonic",
                    ClockOrigin::Steps => "steps",
                });
            }
            _ => {}
        }
    }

    /// A device; `None` if it is one too many.
    fn device(&mut self, number: u32) -> Option<&mut DeviceSurvey> {
        let limit = self.limits.devices;
        if !self.devices.contains_key(&number) {
            if self.devices.len() >= limit {
                // A bound, for files that name a device for each event.
                if self.devices_left_out.len() < 1 << 16 {
                    self.devices_left_out.insert(number);
                }
                return None;
            }
            self.devices.insert(number, DeviceSurvey::new(number, &self.limits));
        }
        self.devices.get_mut(&number)
    }

    fn finish(&mut self) {
        self.summary.devices_left_out = self.devices_left_out.len() as u64;
        self.devices.values_mut().for_each(DeviceSurvey::finish);
        self.choose_sites();
        let moments: Vec<u64> = self.devices.values().map(DeviceSurvey::moments).collect();
        let blocks: Vec<u64> = self.devices.values().map(|device| device.summary.map.blocks).collect();
        let moments_shares = shares(self.limits.buckets as u64, &moments);
        let block_shares = shares(self.limits.blocks as u64, &blocks);
        for (place, device) in self.devices.values_mut().enumerate() {
            let most = moments_shares[place].max(1);
            let bucket = device.moments().div_ceil(most).next_power_of_two();
            device.summary.bucket_moments = bucket;
            device.summary.buckets = device.moments().div_ceil(bucket);
            device.cut_blocks(block_shares[place]);
        }
        self.share_regions();
    }

    fn share_regions(&mut self) {
        let wanted: Vec<u64> =
            self.devices.values().map(|device| device.shown_regions.len() as u64).collect();
        let shares = shares(self.limits.regions as u64, &wanted);
        for (device, share) in self.devices.values_mut().zip(shares) {
            device.shown_regions.sort_by_key(|region| Reverse(region.size_bytes));
            device.shown_regions.truncate(share as usize);
            device.shown_regions.sort_by_key(|region| (region.address, region.born));
            device.summary.map.regions_left_out =
                device.summary.map.regions.saturating_sub(device.shown_regions.len() as u64);
        }
    }

    /// Gives the sites with the highest peaks a place in the summary.
    fn choose_sites(&mut self) {
        let mut peaks: HashMap<SiteId, u64> = HashMap::new();
        for device in self.devices.values() {
            for (&site, totals) in &device.sites {
                let peak = peaks.entry(site).or_default();
                *peak = (*peak).max(totals.peak_bytes);
            }
        }
        let mut ranked: Vec<(SiteId, u64)> = peaks.into_iter().collect();
        ranked.sort_by_key(|&(site, peak)| (Reverse(peak), site));
        self.summary.sites_left_out = ranked.len().saturating_sub(self.limits.sites) as u64;
        ranked.truncate(self.limits.sites);
        self.summary.sites.push(Site { label: "other sites".into(), stack: Vec::new() });
        for (site, _) in ranked {
            self.shown_sites.insert(site, self.summary.sites.len() as u32);
            self.summary.sites.push(self.sites.describe(site));
        }
        let bands = self.limits.bands;
        for device in self.devices.values_mut() {
            let shown = device.sites.iter().filter_map(|(site, totals)| {
                self.shown_sites.get(site).map(|&site| SiteUse {
                    site,
                    peak_bytes: totals.peak_bytes,
                    at_peak_bytes: 0,
                    at_end_bytes: totals.live_bytes,
                    allocated_bytes: totals.allocated_bytes,
                    allocations: totals.allocations,
                })
            });
            let mut shown: Vec<SiteUse> = shown.collect();
            shown.sort_by_key(|of_site| (Reverse(of_site.peak_bytes), of_site.site));
            device.summary.bands = shown.len().min(bands);
            device.summary.sites = shown;
        }
    }
}

/// Divides a budget so that whoever wants little gets it and the others get the same.
fn shares(budget: u64, wanted: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|&place| wanted[place]);
    let mut shares = vec![0; wanted.len()];
    let mut left = budget;
    for (done, &place) in order.iter().enumerate() {
        shares[place] = wanted[place].min(left / (wanted.len() - done) as u64);
        left -= shares[place];
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_little_gets_it() {
        assert_eq!(shares(100, &[500, 3, 500]), [48, 3, 49]);
        assert_eq!(shares(100, &[5, 3]), [5, 3]);
        assert_eq!(shares(1, &[5, 3]), [1, 0]);
    }

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
