//! The first pass over a trace: it counts, and decides what the page will show.
//!
//! `device_survey` has what it counts of each device.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use flex_trace::record::{BlockState, ClockOrigin};
use flex_trace::{ReadError, Record};

use super::Limits;
use super::device_survey::DeviceSurvey;
use super::sites::{SiteId, Sites, short};
use super::summary::{Site, SiteUse, Source, Summary};
use crate::TraceFile;

/// The most texts of a kind that have no other limit: settings, sources.
const MAX_TEXTS: usize = 200;

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
}
