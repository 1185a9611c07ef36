//! Traces of PyTorch's profiler (`export_chrome_trace`), recorded with `profile_memory=True`: JSON whose `traceEvents`
//! has an event `[memory]` for each allocation and free. Only those are kept, and they are sorted by time.
//!
//! Those of accelerators are taken; those of the CPU only if there are no others. Events that are not what the profiler
//! writes are passed over and counted, and a remark says so.
//!
//! - `json`: the events, one by one, out of the file.

mod json;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Write};

use flex_trace::record::{ClockOrigin, Device, Remark};
use flex_trace::{Action, Event, Record, Writer};

use self::json::ChromeEvent;
use super::ImportError;
use super::lives::{self, Lives};

/// PyTorch's number of the CPU among the kinds of devices.
const CPU: i64 = 0;

/// The kinds of devices that PyTorch numbers (`c10::DeviceType`) and that have memory of their own. Whatever a program
/// adds to PyTorch, as `spyre`, is of the last one.
const KINDS: &[(i64, &str)] = &[
    (CPU, "cpu"),
    (1, "cuda"),
    (6, "hip"),
    (9, "xla"),
    (10, "vulkan"),
    (12, "xpu"),
    (13, "mps"),
    (15, "hpu"),
    (16, "ve"),
    (18, "ipu"),
    (19, "mtia"),
    (20, "privateuseone"),
];

/// Reads a trace of the profiler and writes it as ours.
pub(super) fn import<R: BufRead, W: Write>(
    input: R,
    name: &str,
    writer: &mut Writer<W>,
) -> Result<(), ImportError> {
    let mut found = Found::default();
    found.is_trace = json::events(input, |event| found.take(event))?;
    found.check()?;
    let of_the_cpu = found.without_the_cpu();
    found.changes.sort_by_key(|change| change.time_ns);
    lives::begin(writer, "PyTorch profiler trace", name, ClockOrigin::Monotonic)?;
    for (events, why) in [
        (found.odd, "not what the profiler writes"),
        (found.without_address, "of memory, and have no address"),
        (of_the_cpu, "of the CPU's memory, beside that of accelerators"),
    ] {
        if events > 0 {
            let text = format!("events passed over, since they are {why}: {events}");
            writer.write(&Record::Remark(Remark { device: None, impossible: false, text: &text }))?;
        }
    }
    write(&found.changes, writer)
}

fn write<W: Write>(changes: &[Change], writer: &mut Writer<W>) -> Result<(), ImportError> {
    let mut devices: BTreeMap<Place, (u32, Lives)> = BTreeMap::new();
    for (place, device) in numbers(changes.iter().map(|change| change.place).collect()) {
        let name = place.name();
        writer.write(&Record::Device(Device { device, name: Some(&name), capacity_bytes: None }))?;
        devices.insert(place, (device, Lives::default()));
    }
    for change in changes {
        let Some((device, lives)) = devices.get_mut(&change.place) else { continue };
        let (address, size_bytes) = (change.address.into(), change.bytes.unsigned_abs());
        let event = |action| {
            let (time_ns, thread) = (Some(change.time_ns), Some(change.thread));
            Event { time_ns, thread, ..Event::new(*device, action) }
        };
        if change.bytes >= 0 {
            let action = Action::Allocated { address, size_bytes, rounded_bytes: None, stream: 0 };
            lives.allocate(writer, event(action), change.address, size_bytes)?;
        } else {
            lives.free(writer, event(Action::Freed { address, size_bytes }), change.address)?;
        }
    }
    let mut all: Vec<_> = devices.into_values().collect();
    all.sort_by_key(|&(device, _)| device);
    for (device, lives) in &all {
        writer.write(&lives.history(*device))?;
    }
    Ok(())
}

/// A device: of a kind, with a number among those.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    kind: i64,
    index: u32,
}

impl Place {
    /// The CPU has no number: the profiler writes -1.
    fn of(kind: i64, index: i64) -> Option<Place> {
        let index = if kind == CPU { index.max(0) } else { index };
        (kind >= 0).then_some(Place { kind, index: u32::try_from(index).ok()? })
    }

    /// As PyTorch calls it.
    fn name(self) -> String {
        match KINDS.iter().find(|&&(kind, _)| kind == self.kind) {
            Some((CPU, name)) if self.index == 0 => (*name).to_owned(),
            Some((_, name)) => format!("{name}:{}", self.index),
            None => format!("device of kind {}:{}", self.kind, self.index),
        }
    }
}

/// The devices of a trace have one number each: their own, or the lowest that is free if another kind has that.
fn numbers(places: BTreeSet<Place>) -> Vec<(Place, u32)> {
    let mut taken = BTreeSet::new();
    let mut lowest = 0;
    let mut number = |place: Place| {
        if taken.insert(place.index) {
            return place.index;
        }
        // There are more numbers than devices, and none becomes free again.
        while !taken.insert(lowest) {
            lowest += 1;
        }
        lowest
    };
    places.into_iter().map(|place| (place, number(place))).collect()
}

/// An allocation, or a free, whose bytes are negative.
#[derive(Debug)]
struct Change {
    time_ns: u64,
    thread: u64,
    place: Place,
    address: u64,
    bytes: i64,
}

#[derive(Debug, Default)]
struct Found {
    changes: Vec<Change>,
    odd: u64,
    without_address: u64,
    is_trace: bool,
}

impl Found {
    fn check(&self) -> Result<(), ImportError> {
        let fault = if !self.is_trace {
            "this is JSON, but no trace of PyTorch's profiler: expected `traceEvents`".to_owned()
        } else if !self.changes.is_empty() {
            return Ok(());
        } else if self.without_address > 0 {
            "the profiler's `[memory]` events have no addresses: record with PyTorch 1.12 or later".to_owned()
        } else if self.odd > 0 {
            format!(
                "nothing in this trace is usable: events that are not what the profiler writes: {}",
                self.odd
            )
        } else {
            "the profiler's trace has no `[memory]` events: record with `profile(profile_memory=True)`"
                .to_owned()
        };
        Err(ImportError::Json(fault))
    }

    /// Leaves out the memory of the CPU if there is any of accelerators; how many events that were.
    fn without_the_cpu(&mut self) -> u64 {
        if self.changes.iter().all(|change| change.place.kind == CPU) {
            return 0;
        }
        let before = self.changes.len();
        self.changes.retain(|change| change.place.kind != CPU);
        (before - self.changes.len()) as u64
    }

    fn take(&mut self, event: Option<ChromeEvent>) {
        let Some(event) = event else {
            self.odd += 1;
            return;
        };
        if event.name.as_deref() != Some("[memory]") {
            return;
        }
        match Change::of(&event) {
            Ok(change) => self.changes.push(change),
            Err(Unusable::WithoutAddress) => self.without_address += 1,
            Err(Unusable::Odd) => self.odd += 1,
        }
    }
}

/// Why an event of memory is passed over.
enum Unusable {
    /// As before PyTorch 1.12.
    WithoutAddress,
    Odd,
}

impl Change {
    fn of(event: &ChromeEvent) -> Result<Change, Unusable> {
        let args = event.args.as_ref().ok_or(Unusable::Odd)?;
        let bytes = args.bytes.known()?.ok_or(Unusable::Odd)?;
        let address = args.address.known()?.ok_or(Unusable::WithoutAddress)?;
        let time_us = event.time_us.filter(|time_us| *time_us >= 0.0).ok_or(Unusable::Odd)?;
        let (kind, index) = (args.kind.known()?.unwrap_or(CPU), args.index.known()?.unwrap_or(0));
        Ok(Change {
            // Microseconds with three places behind the point: enough bits for a few weeks.
            time_ns: (time_us * 1000.0) as u64,
            thread: event.thread.unwrap_or(0),
            place: Place::of(kind, index).ok_or(Unusable::Odd)?,
            address,
            bytes,
        })
    }
}

impl<T: Copy> json::Field<T> {
    /// The value, if there is one.
    fn known(self) -> Result<Option<T>, Unusable> {
        match self {
            json::Field::Missing => Ok(None),
            json::Field::Known(value) => Ok(Some(value)),
            json::Field::Odd => Err(Unusable::Odd),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_keep_their_numbers_unless_two_kinds_have_one() {
        let place = |kind, index| Place::of(kind, index).unwrap();
        let numbered = |places: &[Place]| {
            numbers(places.iter().copied().collect())
                .into_iter()
                .map(|(place, number)| (place.name(), number))
                .collect::<Vec<_>>()
        };
        let named = |all: &[(&str, u32)]| {
            all.iter().map(|&(name, number)| (name.to_owned(), number)).collect::<Vec<_>>()
        };
        assert_eq!(numbered(&[place(1, 3), place(1, 1)]), named(&[("cuda:1", 1), ("cuda:3", 3)]));
        let several = [place(CPU, -1), place(1, 0), place(20, 0), place(20, 5), place(99, 5)];
        let expected = [
            ("cpu", 0),
            ("cuda:0", 1),
            ("privateuseone:0", 2),
            ("privateuseone:5", 5),
            ("device of kind 99:5", 3),
        ];
        assert_eq!(numbered(&several), named(&expected));
        assert!(Place::of(1, -1).is_none() && Place::of(-1, 0).is_none() && Place::of(1, 1 << 32).is_none());
    }

    #[test]
    fn many_devices_with_one_number_are_numbered_at_once() {
        let places = (0..200_000).map(|kind| Place { kind, index: 0 }).collect();
        let numbers = numbers(places);
        assert!(numbers.iter().enumerate().all(|(place, &(_, number))| number as usize == place));
    }
}
