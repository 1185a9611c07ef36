//! The devices of a process as its stream describes them.
//!
//! Invariants: `live_bytes` is the sum of the sizes in `live`, and `sites` has the same blocks by stack, unless the sum
//! stands at the most that 64 bits hold. A device is known once the stream has told all that was live when it began.

use std::collections::{BTreeMap, HashMap};

use flex_trace::record::PressureEnd;
use flex_trace::{Action, Event, Record, StackId, Tables};
use foldhash::fast::RandomState;

use super::answers::{DeviceMoment, Moment, OutOfMemory, Pressure, PressureTotals};
use crate::info::{Sites, site_name};

/// So many events of a kind are told one by one between two moments; of more, the latest.
const MOST_TOLD: usize = 100;

/// Collections of young objects are of this generation; the others are full.
const YOUNG: u32 = 1;

/// What is known of a process.
#[derive(Debug)]
pub struct View {
    process: u32,
    producer: String,
    tables: Tables,
    devices: BTreeMap<u32, Device>,
    synchronizations: u64,
    /// Everything from before this moment is here.
    watermark_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct Device {
    name: Option<String>,
    capacity_bytes: Option<u64>,
    recorded: bool,
    /// All that was live when the stream began has been told.
    is_known: bool,
    /// Events were lost after that.
    is_uncertain: bool,
    live: HashMap<u64, (u64, Option<StackId>), RandomState>,
    sites: Sites,
    live_bytes: u64,
    peak_bytes: u64,
    recent_peak_bytes: u64,
    reserved_bytes: u64,
    allocations: u64,
    frees: u64,
    pressure: PressureTotals,
    /// Those under way, by number.
    under_pressure: HashMap<u64, Pressure, RandomState>,
    pressure_events: Vec<Pressure>,
    out_of_memory: u64,
    out_of_memory_events: Vec<OutOfMemory>,
    lost_events: u64,
    lost_unknown: bool,
}

impl View {
    /// Of a process nothing is known.
    pub fn new(process: u32) -> View {
        View {
            process,
            producer: String::new(),
            tables: Tables::new(),
            devices: BTreeMap::new(),
            synchronizations: 0,
            watermark_ns: None,
        }
    }

    /// Takes in what the stream says next.
    pub fn play(&mut self, record: &Record<'_>) {
        if self.tables.keep(record) {
            return;
        }
        match record {
            Record::Source(source) => self.producer = source.producer.to_owned(),
            Record::Device(description) => {
                let device = self.devices.entry(description.device).or_default();
                device.name = description.name.map(str::to_owned);
                device.capacity_bytes = description.capacity_bytes;
            }
            Record::History(history) => {
                let device = self.devices.entry(history.device).or_default();
                device.recorded = history.recorded;
                device.reserved_bytes = history.reserved_before_bytes.unwrap_or(0);
            }
            Record::Event(event) => self.devices.entry(event.device).or_default().play(event, &self.tables),
            Record::Watermark { time_ns } => self.watermark_ns = Some(*time_ns),
            _ => {}
        }
    }

    /// Whether the stream has told what was live on all devices when it began.
    pub fn is_known(&self) -> bool {
        !self.devices.is_empty() && self.devices.values().all(|device| device.is_known)
    }

    /// Whether the stream has told how old that is.
    pub fn is_dated(&self) -> bool {
        self.watermark_ns.is_some()
    }

    /// Whether events were lost since then, so that what is live is a guess.
    pub fn is_uncertain(&self) -> bool {
        self.devices.values().any(|device| device.is_uncertain)
    }

    /// Forgets what is live, since a new stream begins with that. What was counted stays.
    pub fn synchronize(&mut self) {
        self.synchronizations += 1;
        self.tables = Tables::new();
        self.watermark_ns = None;
        for device in self.devices.values_mut() {
            device.forget_live();
        }
    }

    /// What is known now, and what happened since the last look, with so many of the largest holders. `now_ns` counts
    /// from 1970, as the times of the stream do.
    pub fn look(&mut self, elapsed_s: f64, now_ns: u64, top: usize, ended: bool) -> Moment {
        let tables = &self.tables;
        let devices =
            self.devices.iter_mut().map(|(&number, device)| device.look(number, tables, top)).collect();
        Moment {
            process: self.process,
            producer: self.producer.clone(),
            elapsed_s,
            age_s: self.watermark_ns.map(|then_ns| (now_ns.saturating_sub(then_ns) / 1_000_000) as f64 / 1e3),
            devices,
            synchronizations: self.synchronizations,
            ended,
        }
    }
}

impl Device {
    fn play(&mut self, event: &Event, tables: &Tables) {
        match event.action {
            Action::Baseline { address, size_bytes, .. } => self.add(address.0, size_bytes, event.stack),
            Action::Allocated { address, size_bytes, .. } => {
                self.allocations += 1;
                self.add(address.0, size_bytes, event.stack);
            }
            Action::Freed { address, .. } => {
                self.frees += 1;
                self.remove(address.0);
            }
            Action::RegionAcquired { size_bytes, .. } => {
                self.reserved_bytes = self.reserved_bytes.saturating_add(size_bytes);
            }
            Action::RegionReleased { size_bytes, .. } => {
                self.reserved_bytes = self.reserved_bytes.saturating_sub(size_bytes);
            }
            Action::SnapshotTaken { .. } => self.is_known = true,
            Action::Lost { events } => {
                self.lost_events = self.lost_events.saturating_add(events);
                self.lost_unknown |= events == 0;
                self.is_uncertain = true;
            }
            Action::OutOfMemory { requested_bytes, free_bytes, largest_free_bytes, .. } => {
                self.out_of_memory += 1;
                let site = site_name(event.stack, tables);
                let failure = OutOfMemory { requested_bytes, free_bytes, largest_free_bytes, site };
                keep(&mut self.out_of_memory_events, failure);
            }
            _ => self.play_pressure(event, tables),
        }
    }

    fn play_pressure(&mut self, event: &Event, tables: &Tables) {
        match event.action {
            Action::PressureBegan { pressure, requested_bytes } => {
                let site = site_name(event.stack, tables);
                let began = Pressure { requested_bytes: Some(requested_bytes), site, ..Pressure::default() };
                self.under_pressure.insert(pressure, began);
            }
            Action::Collected { generation, pressure, reclaimed_bytes, .. } => {
                let (young, full) = if generation == YOUNG { (1, 0) } else { (0, 1) };
                let totals = &mut self.pressure;
                totals.young_collections += young;
                totals.full_collections += full;
                // Requests that wait for one collection each name what it freed, so theirs are not added up.
                totals.reclaimed_bytes = totals.reclaimed_bytes.saturating_add(reclaimed_bytes);
                if let Some(request) = pressure.and_then(|number| self.under_pressure.get_mut(&number)) {
                    request.young_collections += young;
                    request.full_collections += full;
                }
            }
            Action::PressureEnded { pressure, end, reclaimed_bytes, duration_ns, .. } => {
                let mut request = self.under_pressure.remove(&pressure).unwrap_or_default();
                request.rescued = end == PressureEnd::Served;
                (request.reclaimed_bytes, request.duration_ns) = (reclaimed_bytes, duration_ns);
                let totals = &mut self.pressure;
                totals.events += 1;
                totals.rescued += u64::from(request.rescued);
                totals.duration_ns = totals.duration_ns.saturating_add(duration_ns);
                keep(&mut self.pressure_events, request);
            }
            _ => {}
        }
    }

    fn add(&mut self, address: u64, size_bytes: u64, stack: Option<StackId>) {
        // Of a block that is there already the end was lost.
        self.remove(address);
        self.live.insert(address, (size_bytes, stack));
        self.sites.add(stack, size_bytes);
        self.live_bytes = self.live_bytes.saturating_add(size_bytes);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        self.recent_peak_bytes = self.recent_peak_bytes.max(self.live_bytes);
    }

    fn remove(&mut self, address: u64) {
        if let Some((size_bytes, stack)) = self.live.remove(&address) {
            self.sites.remove(stack, size_bytes);
            self.live_bytes = self.live_bytes.saturating_sub(size_bytes);
        }
    }

    fn forget_live(&mut self) {
        (self.is_known, self.is_uncertain) = (false, false);
        self.live.clear();
        self.under_pressure.clear();
        self.sites = Sites::default();
        (self.live_bytes, self.reserved_bytes) = (0, 0);
    }

    fn look(&mut self, number: u32, tables: &Tables, top: usize) -> DeviceMoment {
        let recent_peak_bytes = std::mem::replace(&mut self.recent_peak_bytes, self.live_bytes);
        DeviceMoment {
            device: number,
            name: self.name.clone(),
            capacity_bytes: self.capacity_bytes,
            recorded: self.recorded,
            live_bytes: self.live_bytes,
            live_blocks: self.live.len() as u64,
            peak_bytes: self.peak_bytes,
            recent_peak_bytes,
            reserved_bytes: self.reserved_bytes,
            allocations: self.allocations,
            frees: self.frees,
            pressure: self.pressure,
            pressure_events: std::mem::take(&mut self.pressure_events),
            out_of_memory: self.out_of_memory,
            out_of_memory_events: std::mem::take(&mut self.out_of_memory_events),
            lost_events: self.lost_events,
            lost_unknown: self.lost_unknown,
            holders: self.sites.largest(tables, top),
        }
    }
}

/// Adds to a list that keeps the latest.
fn keep<T>(list: &mut Vec<T>, item: T) {
    if list.len() == MOST_TOLD {
        list.remove(0);
    }
    list.push(item);
}

#[cfg(test)]
mod tests {
    use flex_trace::record::{Device as DeviceRecord, Frame, History, tried};
    use flex_trace::{FrameId, StringId};

    use super::*;

    fn play(view: &mut View, action: Action) {
        let stack = Some(StackId(1));
        view.play(&Record::Event(Event { stack, ..Event::new(0, action) }));
    }

    fn began() -> View {
        let mut view = View::new(7);
        begin(&mut view);
        view
    }

    fn begin(view: &mut View) {
        view.play(&Record::Device(DeviceRecord {
            device: 0,
            name: Some("spyre:0"),
            capacity_bytes: Some(100),
        }));
        for (id, text) in [(0, "step"), (1, "train.py")] {
            view.play(&Record::String { id: StringId(id), text });
        }
        view.play(&Record::Frame(Frame {
            id: FrameId(0),
            function: StringId(0),
            file: StringId(1),
            line: 3,
        }));
        view.play(&Record::Stack { id: StackId(1), frames: [0].as_slice().into() });
        view.play(&Record::History(History {
            device: 0,
            recorded: true,
            reserved_before_bytes: Some(64),
            contradictions: 0,
            baseline_freed: 0,
        }));
        play(view, Action::Baseline { address: 0.into(), size_bytes: 10, stream: 0 });
        assert!(!view.is_known());
        play(view, Action::SnapshotTaken { reserved_bytes: None });
        assert!(view.is_known());
    }

    fn allocated(address: u64, size_bytes: u64) -> Action {
        Action::Allocated { address: address.into(), size_bytes, rounded_bytes: None, stream: 0 }
    }

    fn look(view: &mut View) -> DeviceMoment {
        view.look(1.0, 0, 5, false).devices.remove(0)
    }

    #[test]
    fn live_memory_is_what_was_there_and_what_came_less_what_went() {
        let mut view = began();
        play(&mut view, allocated(16, 20));
        play(&mut view, allocated(48, 5));
        play(&mut view, Action::Freed { address: 16.into(), size_bytes: 20 });
        let moment = look(&mut view);
        assert_eq!((moment.live_bytes, moment.live_blocks, moment.reserved_bytes), (15, 2, 64));
        assert_eq!((moment.peak_bytes, moment.recent_peak_bytes), (35, 35));
        assert_eq!((moment.allocations, moment.frees), (2, 1));
        let [holder] = &moment.holders.largest[..] else { panic!("{:?}", moment.holders) };
        assert_eq!((holder.bytes, holder.blocks), (15, 2));
        assert!(holder.site.as_deref().unwrap().contains("train.py"));
        let next = look(&mut view);
        assert_eq!((next.peak_bytes, next.recent_peak_bytes), (35, 15));
    }

    #[test]
    fn how_old_it_is_follows_from_the_last_watermark() {
        let mut view = began();
        let age = |view: &mut View, now_ns| view.look(1.0, now_ns, 5, false).age_s;
        assert_eq!((view.is_dated(), age(&mut view, 9)), (false, None));
        view.play(&Record::Watermark { time_ns: 4_000_000_000 });
        assert!(view.is_dated());
        assert_eq!(age(&mut view, 7_250_999_999), Some(3.25));
        view.play(&Record::Watermark { time_ns: 7_000_000_000 });
        assert_eq!(age(&mut view, 7_250_000_000), Some(0.25));
        assert_eq!(age(&mut view, 0), Some(0.0), "clocks may be set back");
        view.synchronize();
        assert_eq!(age(&mut view, 9_000_000_000), None, "a new stream brings its own");
    }

    #[test]
    fn a_request_under_pressure_is_told_once_with_its_collections() {
        let mut view = began();
        play(&mut view, Action::PressureBegan { pressure: 4, requested_bytes: 90 });
        for generation in [1, 2] {
            let (objects, reclaimed_bytes, duration_ns) = (3, 0, 5);
            let pressure = Some(4);
            let action = Action::Collected { generation, objects, reclaimed_bytes, duration_ns, pressure };
            play(&mut view, action);
        }
        let end = PressureEnd::OutOfMemory;
        let (tried, reclaimed_bytes, duration_ns) = (tried::FULL_COLLECTION, 8, 11);
        play(&mut view, Action::PressureEnded { pressure: 4, end, tried, reclaimed_bytes, duration_ns });
        play(
            &mut view,
            Action::OutOfMemory {
                requested_bytes: 90,
                free_bytes: Some(36),
                largest_free_bytes: None,
                capacity_bytes: None,
            },
        );
        let moment = look(&mut view);
        let [request] = &moment.pressure_events[..] else { panic!("{:?}", moment.pressure_events) };
        assert_eq!((request.requested_bytes, request.rescued, request.reclaimed_bytes), (Some(90), false, 8));
        assert_eq!((request.young_collections, request.full_collections, request.duration_ns), (1, 1, 11));
        assert_eq!((moment.pressure.events, moment.pressure.rescued, moment.out_of_memory), (1, 0, 1));
        assert_eq!(moment.out_of_memory_events[0].free_bytes, Some(36));
        let next = look(&mut view);
        assert!(next.pressure_events.is_empty() && next.out_of_memory_events.is_empty());
        assert_eq!((next.pressure.events, next.out_of_memory), (1, 1));
    }

    #[test]
    fn what_a_collection_freed_for_two_requests_is_counted_once() {
        let mut view = began();
        for pressure in [1, 2] {
            play(&mut view, Action::PressureBegan { pressure, requested_bytes: 90 });
        }
        let (objects, reclaimed_bytes, duration_ns, pressure) = (3, 8, 5, Some(1));
        play(&mut view, Action::Collected { generation: 2, objects, reclaimed_bytes, duration_ns, pressure });
        for pressure in [1, 2] {
            let (end, tried) = (PressureEnd::Served, tried::FULL_COLLECTION);
            play(&mut view, Action::PressureEnded { pressure, end, tried, reclaimed_bytes, duration_ns });
        }
        let moment = look(&mut view);
        assert_eq!((moment.pressure.events, moment.pressure.full_collections), (2, 1));
        assert_eq!(moment.pressure.reclaimed_bytes, 8);
        assert_eq!(moment.pressure_events.iter().map(|request| request.reclaimed_bytes).sum::<u64>(), 16);
    }

    #[test]
    fn what_is_live_is_uncertain_after_a_loss_until_the_stream_begins_anew() {
        let mut view = began();
        play(&mut view, allocated(16, 20));
        assert!(!view.is_uncertain());
        play(&mut view, Action::Lost { events: 3 });
        assert!(view.is_uncertain());
        view.synchronize();
        assert!(!view.is_uncertain() && !view.is_known());
        begin(&mut view);
        let moment = look(&mut view);
        assert_eq!((moment.live_bytes, moment.reserved_bytes, moment.lost_events), (10, 64, 3));
        assert_eq!(moment.allocations, 1, "what was counted stays");
        // A block whose end was lost makes room for the next one at its place.
        play(&mut view, allocated(0, 7));
        assert_eq!(look(&mut view).live_bytes, 7);
    }
}
