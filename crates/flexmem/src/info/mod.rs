//! The first questions that people have about a memory file, answered: was history on, is it whole, which device is
//! busy, where is the memory, what ran out and why.
//!
//! - [`answers`]: the answers as plain values, which `--json` shows.
//! - `events`, `regions`: what the events, and the state at the end, say of one device.
//! - `course`: how memory grew: a leak, a growing cache, or one big step.
//! - `advice`: what to do, never what is done already.
//!
//! The trace is read twice: for the peak, then for who held memory at it.

mod advice;
pub mod answers;
mod course;
mod events;
mod regions;
mod sites;

use std::collections::BTreeMap;

use flex_trace::record::ClockOrigin;
use flex_trace::{Action, ReadError, Record, Tables};

use self::answers::{DeviceInfo, Info, SettingInfo, SourceInfo};
use self::events::EventTally;
use self::regions::RegionTally;
pub(crate) use self::sites::{Sites, name as site_name};
use crate::TraceFile;

/// The setting that says how much memory each device of `spyre` has, in bytes.
const SPYRE_MEMORY: &str = "spyre.device_memory";

/// What the user adds to the file.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// How much memory a device has, in bytes, if the user says so.
    pub device_memory_bytes: Option<u64>,
    /// How many entries lists of the largest have.
    pub top: usize,
}

/// What is gathered about one device.
#[derive(Debug, Default)]
struct Tally {
    events: EventTally,
    regions: RegionTally,
    capacity_bytes: Option<u64>,
    name: Option<String>,
}

/// Answers the questions.
///
/// # Errors
///
/// The temporary file's.
pub fn info(trace: &mut TraceFile, options: &Options) -> Result<Info, ReadError> {
    let mut devices: BTreeMap<u32, Tally> = BTreeMap::new();
    let (mut source, mut settings) = (SourceInfo::default(), Vec::new());
    trace.each(|record, _| first_look(record, &mut devices, &mut source, &mut settings))?;
    trace.each(|record, _| second_look(record, &mut devices))?;
    let stated = settings.iter().find(|setting: &&SettingInfo| setting.key == SPYRE_MEMORY);
    let stated_bytes = stated.and_then(|setting| setting.value.parse().ok());
    for tally in devices.values_mut() {
        tally.capacity_bytes = tally.capacity_bytes.or(stated_bytes);
    }
    // Names and stacks are all there at the end.
    let mut infos = Vec::new();
    let mut counts_steps = false;
    trace.each(|record, tables| {
        counts_steps |= matches!(record, Record::Clock(ClockOrigin::Steps));
        if matches!(record, Record::End { .. }) {
            infos =
                devices.iter().map(|(&device, tally)| device_info(device, tally, tables, options)).collect();
        }
    })?;
    if counts_steps {
        infos.iter_mut().for_each(|info| info.history.duration_ns = None);
    }
    infos.sort_by_key(|info: &DeviceInfo| (std::cmp::Reverse(info.busy_bytes()), info.device));
    let (growing, unknown_records) = (trace.is_growing(), trace.unknown_records());
    let mut info = Info { source, growing, unknown_records, settings, devices: infos, advice: Vec::new() };
    info.advice = advice::advice(&info);
    Ok(info)
}

fn first_look(
    record: &Record<'_>,
    devices: &mut BTreeMap<u32, Tally>,
    source: &mut SourceInfo,
    settings: &mut Vec<SettingInfo>,
) {
    match record {
        Record::Source(found) => {
            (source.kind, source.name) = (found.kind.to_owned(), found.name.to_owned());
        }
        Record::Setting { key, value } => {
            settings.push(SettingInfo { key: (*key).to_owned(), value: (*value).to_owned() });
        }
        Record::Device(device) => {
            let tally = devices.entry(device.device).or_default();
            tally.capacity_bytes = device.capacity_bytes;
            tally.name = device.name.map(str::to_owned);
        }
        Record::History(history) => {
            devices.entry(history.device).or_default().events.history = Some(*history);
        }
        Record::Event(event) => devices.entry(event.device).or_default().events.first_look(event),
        Record::RegionState(region) => devices.entry(region.device).or_default().regions.region(region),
        // A block belongs to the region before it, of whatever device.
        Record::Block(block) => {
            if let Some(tally) = devices.values_mut().find(|tally| tally.regions.is_open()) {
                tally.regions.block(block);
            }
        }
        _ => {}
    }
    if let Record::RegionState(region) = record {
        devices.iter_mut().for_each(|(&device, tally)| tally.regions.set_open(device == region.device));
    }
}

fn second_look(record: &Record<'_>, devices: &mut BTreeMap<u32, Tally>) {
    if let Record::Event(event) = record
        && !matches!(event.action, Action::Annotation { .. })
        && let Some(tally) = devices.get_mut(&event.device)
    {
        tally.events.second_look(event);
    }
}

fn device_info(device: u32, tally: &Tally, tables: &Tables, options: &Options) -> DeviceInfo {
    let capacity_bytes = options.device_memory_bytes.or(tally.capacity_bytes);
    let regions = tally.regions.info(tables, options.top);
    let history = tally.events.history_info(&tally.regions);
    let mut info = DeviceInfo {
        device,
        name: tally.name.clone(),
        capacity_bytes,
        events: tally.events.counts,
        course: course::judge(&tally.events, tables),
        peak: tally.events.peak_info(tables, options.top),
        out_of_memory: tally.events.out_of_memory_info(tables),
        holders: tally.holders(tables, options.top),
        pressure: tally.events.pressure,
        history,
        memory: regions,
        impossible: Vec::new(),
    };
    info.impossible = impossible(&info);
    info
}

impl Tally {
    /// Who holds memory at the end: by the blocks, or by the events if there are no blocks.
    fn holders(&self, tables: &Tables, top: usize) -> Vec<answers::Holder> {
        if self.regions.is_empty() {
            self.events.holders(tables, top)
        } else {
            self.regions.holders(tables, top)
        }
    }
}

/// Figures that cannot be.
fn impossible(info: &DeviceInfo) -> Vec<String> {
    let mut all = Vec::new();
    let mut check = |is_wrong: bool, text: String| {
        if is_wrong {
            all.push(text);
        }
    };
    let memory = info.memory.as_ref();
    if let Some(capacity) = info.capacity_bytes {
        let reserved = memory.map_or(0, |memory| memory.reserved_bytes);
        check(reserved > capacity, format!("{reserved} bytes are reserved, and the device has {capacity}"));
        let peak = info.peak.as_ref().map_or(0, |peak| peak.live_bytes);
        // Where events were lost, blocks whose end was may count as live.
        let is_known = info.history.lost_events == 0 && !info.history.lost_unknown;
        check(
            is_known && peak > capacity,
            format!("{peak} bytes were live at the peak, and the device has {capacity}"),
        );
    }
    if let Some(memory) = memory {
        check(
            memory.stated_allocated_bytes.is_some_and(|stated| stated != memory.allocated_bytes),
            format!(
                "the segments say that {} bytes are allocated, and their blocks have {}",
                memory.stated_allocated_bytes.unwrap_or(0),
                memory.allocated_bytes
            ),
        );
        check(
            memory.stated_active_bytes.is_some_and(|stated| stated != memory.active_bytes),
            format!(
                "the segments say that {} bytes are active, and their blocks have {}",
                memory.stated_active_bytes.unwrap_or(0),
                memory.active_bytes
            ),
        );
    }
    all
}
