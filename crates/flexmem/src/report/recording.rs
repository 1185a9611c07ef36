//! The second pass over a trace: the columns that the page draws from.
//!
//! The chart of a device is cut into buckets of as many moments each. A bucket has the least and the most that was in
//! use, what was in use at its end, and the parts of the sites that have a band, both at its end and when most was in
//! use: a picture of any width can then show every peak with what it was made of.
//!
//! Invariant: all columns of the buckets of a device are of the same length, and so are those of its blocks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use flex_trace::{Action, Event, Record};

use super::Limits;
use super::columns::Column;
use super::device_survey::{Cut, DeviceSurvey, class};
use super::ledger::{Block, Change, Ledger, Region};
use super::marks::{At, Marker};
use super::sites::{SiteId, Sites};
use super::summary::{Device, MapExtent, Moment, Summary};
use super::survey::Survey;

/// The columns of one device.
#[derive(Debug, Default)]
pub(super) struct DeviceRecording {
    buckets: Buckets,
    blocks: Vec<ShownBlock>,
    regions: Vec<Region>,
}

/// A block of the map.
#[derive(Debug, Clone, Copy)]
struct ShownBlock {
    born: u64,
    died: Option<u64>,
    address: u64,
    size_bytes: u64,
    site: u32,
    class: u16,
}

#[derive(Debug, Default)]
struct Buckets {
    /// Since the first time of the device; 0 before it.
    time_ns: Column,
    least: Column,
    most: Column,
    last: Column,
    blocks: Column,
    reserved: Column,
    bands_last: Vec<Column>,
    /// None if each bucket is one moment.
    bands_most: Vec<Column>,
}

impl DeviceRecording {
    /// Leaves out half of the blocks, those with the smallest areas, and says so in the summary; how many that were.
    pub(super) fn leave_out_half(&mut self, summary: &mut Device) -> usize {
        let keep = self.blocks.len() / 2;
        self.blocks.sort_by_key(|block| Reverse(block.class));
        let left_out = self.blocks.split_off(keep);
        self.sort();
        let map = &mut summary.map;
        for block in &left_out {
            map.largest_left_out_bytes = map.largest_left_out_bytes.max(block.size_bytes);
            map.left_out_bytes = map.left_out_bytes.saturating_add(block.size_bytes);
        }
        map.left_out += left_out.len() as u64;
        map.shown -= left_out.len() as u64;
        left_out.len()
    }

    fn sort(&mut self) {
        self.blocks.sort_by_key(|block| (block.born, block.address));
    }

    /// The columns by name, for the page.
    pub(super) fn columns(&self) -> Vec<(String, Column)> {
        let buckets = &self.buckets;
        let mut columns: Vec<(String, Column)> = vec![
            ("time".into(), buckets.time_ns.clone()),
            ("least".into(), buckets.least.clone()),
            ("most".into(), buckets.most.clone()),
            ("last".into(), buckets.last.clone()),
            ("blocks".into(), buckets.blocks.clone()),
            ("reserved".into(), buckets.reserved.clone()),
        ];
        let bands = |name: &str, bands: &[Column]| -> Vec<(String, Column)> {
            bands.iter().enumerate().map(|(band, column)| (format!("{name}{band}"), column.clone())).collect()
        };
        columns.extend(bands("bandLast", &buckets.bands_last));
        columns.extend(bands("bandMost", &buckets.bands_most));
        let of_blocks = |name: &str, value: fn(&ShownBlock) -> u64| {
            (format!("block{name}"), self.blocks.iter().map(value).collect())
        };
        // What does not end has a lifetime of 0.
        columns.extend([
            of_blocks("Born", |block| block.born),
            of_blocks("Lifetime", |block| block.died.map_or(0, |died| died - block.born)),
            of_blocks("Address", |block| block.address),
            of_blocks("Size", |block| block.size_bytes),
            of_blocks("Site", |block| u64::from(block.site)),
        ]);
        let of_regions = |name: &str, value: fn(&Region) -> u64| {
            (format!("region{name}"), self.regions.iter().map(value).collect())
        };
        columns.extend([
            of_regions("Born", |region| region.born),
            of_regions("Died", |region| region.died.unwrap_or(u64::MAX)),
            of_regions("Address", |region| region.address),
            of_regions("Size", |region| region.size_bytes),
        ]);
        columns
    }
}

/// One device in the second pass.
#[derive(Debug)]
struct DeviceRecorder {
    ledger: Ledger,
    summary: Device,
    recording: DeviceRecording,
    marker: Marker,
    begun: bool,
    /// By the place of the site in the summary.
    site_bytes: Vec<u64>,
    /// The band of each of those sites.
    band_of_site: Vec<u32>,
    bands: Vec<u64>,
    bands_most: Vec<u64>,
    least: u64,
    most: u64,
    time_ns: Option<u64>,
    cut: Cut,
    extent: MapExtent,
}

impl DeviceRecorder {
    fn new(mut survey: DeviceSurvey, sites: usize, marks: usize, shown: &ShownSites) -> Self {
        let summary = std::mem::take(&mut survey.summary);
        let others = summary.bands as u32;
        let mut band_of_site = vec![others; sites];
        for (band, of_site) in summary.sites.iter().take(summary.bands).enumerate() {
            band_of_site[of_site.site as usize] = band as u32;
        }
        let bands = summary.bands + 1;
        let buckets = Buckets {
            bands_last: vec![Column::default(); bands],
            bands_most: vec![Column::default(); if summary.bucket_moments > 1 { bands } else { 0 }],
            ..Buckets::default()
        };
        let mut recorder = DeviceRecorder {
            ledger: Ledger::with_reserved(survey.reserved_before_bytes()),
            extent: summary.map.clone(),
            cut: survey.cut,
            recording: DeviceRecording {
                buckets,
                regions: std::mem::take(&mut survey.shown_regions),
                ..DeviceRecording::default()
            },
            summary,
            marker: Marker::new(marks),
            begun: false,
            site_bytes: vec![0; sites],
            band_of_site,
            bands: vec![0; bands],
            bands_most: vec![0; bands],
            least: u64::MAX,
            most: 0,
            time_ns: None,
        };
        for block in survey.state_blocks() {
            let change = recorder.ledger.add(block.address, block.size_bytes, block.site);
            recorder.follow(change, shown);
        }
        recorder
    }

    fn play(&mut self, event: &Event, site: SiteId, type_name: Option<String>, shown: &ShownSites) {
        if !matches!(event.action, Action::Baseline { .. }) && !self.begun {
            self.end_moment();
            self.begun = true;
        }
        let change = self.ledger.play(event, site);
        self.follow(change, shown);
        self.time_ns = event.time_ns.or(self.time_ns);
        if self.begun {
            let at = At {
                moment: self.ledger.moment,
                time_ns: event.time_ns,
                site: shown.get(&site).copied().unwrap_or(0),
                live_bytes: self.ledger.live_bytes,
                reserved_bytes: self.ledger.reserved_bytes,
            };
            self.marker.take(&event.action, at, type_name);
            self.end_moment();
        }
    }

    fn follow(&mut self, change: Change, shown: &ShownSites) {
        if let Some(block) = change.died {
            let site = shown.get(&block.site).copied().unwrap_or(0);
            for sum in self.sums(site) {
                *sum = sum.saturating_sub(block.size_bytes);
            }
            self.record(&block, Some(self.ledger.moment), site);
        }
        if let Some(block) = change.born {
            let site = shown.get(&block.site).copied().unwrap_or(0);
            for sum in self.sums(site) {
                *sum = sum.saturating_add(block.size_bytes);
            }
        }
    }

    /// The sums that a site counts in.
    fn sums(&mut self, site: u32) -> [&mut u64; 2] {
        let band = self.band_of_site[site as usize];
        [&mut self.site_bytes[site as usize], &mut self.bands[band as usize]]
    }

    /// Records a block if the map shows it.
    fn record(&mut self, block: &Block, died: Option<u64>, site: u32) {
        let until = died.unwrap_or(self.summary.events + 1);
        let class = class(block.size_bytes, until - block.born);
        let shows = class > self.cut.class || (class == self.cut.class && self.cut.of_class > 0);
        if !shows {
            self.extent.largest_left_out_bytes = self.extent.largest_left_out_bytes.max(block.size_bytes);
            self.extent.left_out_bytes = self.extent.left_out_bytes.saturating_add(block.size_bytes);
            return;
        }
        if class == self.cut.class {
            self.cut.of_class -= 1;
        }
        let (born, address, size_bytes) = (block.born, block.address, block.size_bytes);
        self.recording.blocks.push(ShownBlock { born, died, address, size_bytes, site, class });
    }

    /// Takes the state after an event, or before the first, into the buckets.
    fn end_moment(&mut self) {
        let live = self.ledger.live_bytes;
        self.least = self.least.min(live);
        if live >= self.most {
            self.most = live;
            if self.summary.bucket_moments > 1 {
                self.bands_most.copy_from_slice(&self.bands);
            }
        }
        self.summary.peak_reserved_bytes = self.summary.peak_reserved_bytes.max(self.ledger.reserved_bytes);
        if self.ledger.moment == self.summary.peak.moment {
            self.summary.peak = self.now();
            for of_site in &mut self.summary.sites {
                of_site.at_peak_bytes = self.site_bytes[of_site.site as usize];
            }
        }
        if (self.ledger.moment + 1).is_multiple_of(self.summary.bucket_moments) {
            self.end_bucket();
        }
    }

    fn end_bucket(&mut self) {
        let buckets = &mut self.recording.buckets;
        // Since the first: times since 1970 have more digits than a browser counts with.
        let since =
            self.time_ns.zip(self.summary.first_time_ns).map(|(time, first)| time.saturating_sub(first));
        buckets.time_ns.push(since.unwrap_or(0));
        buckets.least.push(self.least);
        buckets.most.push(self.most);
        buckets.last.push(self.ledger.live_bytes);
        buckets.blocks.push(self.ledger.live_blocks());
        buckets.reserved.push(self.ledger.reserved_bytes);
        for (column, &value) in buckets.bands_last.iter_mut().zip(&self.bands) {
            column.push(value);
        }
        for (column, &value) in buckets.bands_most.iter_mut().zip(&self.bands_most) {
            column.push(value);
        }
        (self.least, self.most) = (u64::MAX, 0);
    }

    fn now(&self) -> Moment {
        Moment {
            moment: self.ledger.moment,
            time_ns: self.time_ns,
            live_bytes: self.ledger.live_bytes,
            live_blocks: self.ledger.live_blocks(),
            reserved_bytes: self.ledger.reserved_bytes,
        }
    }

    fn finish(mut self, shown: &ShownSites) -> (Device, DeviceRecording) {
        if !self.begun {
            self.end_moment();
        }
        if (self.recording.buckets.last.count() as u64) < self.summary.buckets {
            self.end_bucket();
        }
        let mut rest: Vec<Block> = self.ledger.live().copied().collect();
        rest.sort_by_key(|block| (block.born, block.address));
        for block in rest {
            self.record(&block, None, shown.get(&block.site).copied().unwrap_or(0));
        }
        self.summary.end = self.now();
        self.marker.finish(&mut self.summary);
        self.recording.sort();
        self.extent.shown = self.recording.blocks.len() as u64;
        self.extent.left_out = self.extent.blocks - self.extent.shown;
        self.summary.map = self.extent;
        (self.summary, self.recording)
    }
}

type ShownSites = HashMap<SiteId, u32, foldhash::fast::RandomState>;

/// The second pass.
#[derive(Debug)]
pub(super) struct Recorder {
    summary: Summary,
    devices: BTreeMap<u32, DeviceRecorder>,
    shown: ShownSites,
    sites: Sites,
}

impl Recorder {
    pub(super) fn new(survey: Survey, limits: &Limits) -> Self {
        let (summary, shown) = (survey.summary, survey.shown_sites);
        let marks = (limits.marks / survey.devices.len().max(1)).max(50);
        let sites = summary.sites.len();
        let devices = survey.devices.into_iter();
        let devices = devices
            .map(|(number, device)| (number, DeviceRecorder::new(device, sites, marks, &shown)))
            .collect();
        Recorder { summary, devices, shown, sites: Sites::new() }
    }

    pub(super) fn take(&mut self, record: &Record<'_>) {
        if self.sites.keep(record) {
            return;
        }
        match record {
            Record::Event(event) => {
                let site = self.sites.site(event.stack);
                let type_name = match event.action {
                    Action::Reclaimed { type_name, .. } => type_name.and_then(|name| self.sites.text(name)),
                    _ => None,
                };
                if let Some(device) = self.devices.get_mut(&event.device) {
                    device.play(event, site, type_name, &self.shown);
                }
            }
            // As in the first pass, which numbered these sites too.
            Record::Block(block) => drop(self.sites.site(block.stack)),
            _ => {}
        }
    }

    /// The figures, and the columns of the devices in the same order.
    pub(super) fn finish(mut self) -> (Summary, Vec<DeviceRecording>) {
        let devices = std::mem::take(&mut self.devices).into_values();
        let mut devices: Vec<_> = devices.map(|device| device.finish(&self.shown)).collect();
        devices.sort_by_key(|(summary, _)| (Reverse(summary.peak.live_bytes), summary.device));
        let (summaries, recordings) = devices.into_iter().unzip();
        self.summary.devices = summaries;
        (self.summary, recordings)
    }
}
