//! The first questions that people have about a memory file, answered: was history on, is it whole, which device is
//! busy, where is the memory, what ran out and why.
//!
//! - [`answers`]: the answers as plain values, which `--json` shows.
//! - `events`, `regions`: what the events, and the state at the end, say of one device.
//! - `impossible`: figures that contradict each other.
//! - `course`: how memory grew: a leak, a growing cache, or one big step.
//! - `advice`: what to do, never what is done already.
//!
//! The trace is read twice: for the peak, then for who held memory at it.

mod advice;
pub mod answers;
mod course;
mod events;
mod impossible;
mod regions;
mod sites;

use std::collections::BTreeMap;

use flex_trace::record::ClockOrigin;
use flex_trace::{Action, ReadError, Record, Tables};

use self::answers::{DeviceInfo, Info, SettingInfo, SourceInfo};
use self::events::EventTally;
use self::impossible::Impossible;
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
    /// What the importer found to be impossible.
    impossible: Vec<String>,
}

/// Answers the questions.
///
/// # Errors
///
/// The temporary file's.
pub fn info(trace: &mut TraceFile, options: &Options) -> Result<Info, ReadError> {
    let mut devices: BTreeMap<u32, Tally> = BTreeMap::new();
    let mut found = Info::default();
    trace.each(|record, _| first_look(record, &mut devices, &mut found, options.top))?;
    trace.each(|record, _| second_look(record, &mut devices))?;
    let stated = found.settings.iter().find(|setting| setting.key == SPYRE_MEMORY);
    let stated_bytes = stated.and_then(|setting| setting.value.parse().ok());
    for tally in devices.values_mut() {
        let known = [tally.capacity_bytes, stated_bytes, tally.events.check.capacity_bytes];
        tally.impossible.extend(impossible::capacities(known));
        tally.capacity_bytes = known.into_iter().flatten().next();
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
    found.devices = infos;
    (found.growing, found.unknown_records) = (trace.is_growing(), trace.unknown_records());
    found.advice = advice::advice(&found);
    Ok(found)
}

fn first_look(record: &Record<'_>, devices: &mut BTreeMap<u32, Tally>, info: &mut Info, top: usize) {
    match record {
        Record::Source(source) => {
            info.source = SourceInfo { kind: source.kind.to_owned(), name: source.name.to_owned() };
        }
        Record::Remark(remark) => match remark.device {
            Some(device) if remark.impossible => {
                devices.entry(device).or_default().impossible.push(remark.text.to_owned());
            }
            _ => info.remarks.push(remark.text.to_owned()),
        },
        Record::Setting { key, value } => {
            info.settings.push(SettingInfo { key: (*key).to_owned(), value: (*value).to_owned() });
        }
        Record::Device(device) => {
            let tally = devices.entry(device.device).or_default();
            tally.capacity_bytes = device.capacity_bytes;
            tally.name = device.name.map(str::to_owned);
        }
        Record::History(history) => {
            devices.entry(history.device).or_default().events.history = Some(*history);
        }
        Record::Event(event) => devices.entry(event.device).or_default().events.first_look(event, top),
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
        course: course::judge(&tally.events, tables, options.top),
        peak: tally.events.peak_info(tables, options.top),
        out_of_memory: tally.events.out_of_memory_info(tables),
        out_of_memory_left_out: tally.events.counts.out_of_memory.saturating_sub(options.top as u64),
        holders: tally.holders(tables, options.top),
        pressure: tally.events.pressure,
        history,
        memory: regions,
        impossible: Vec::new(),
        impossible_left_out: 0,
    };
    let mut found = Impossible::with_room_for(options.top);
    found.extend(tally.impossible.iter().cloned());
    found.look_at(&info, &tally.events.check, &tally.regions);
    (info.impossible, info.impossible_left_out) = (found.texts, found.left_out);
    info
}

impl Tally {
    /// Who holds memory at the end: by the blocks, or by the events if there are no blocks.
    fn holders(&self, tables: &Tables, top: usize) -> answers::Holders {
        if self.regions.is_empty() {
            self.events.holders(tables, top)
        } else {
            self.regions.holders(tables, top)
        }
    }
}
