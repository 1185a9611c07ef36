//! Traces of PyTorch's profiler (`export_chrome_trace`), recorded with `profile_memory=True`: JSON whose `traceEvents`
//! has an event `[memory]` for each allocation and free. Only those are kept, and they are sorted by time.
//!
//! Those of accelerators are taken; those of the CPU only if there are no others.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, Write};

use flex_trace::record::{ClockOrigin, Device};
use flex_trace::{Action, Event, Record, Writer};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::ImportError;
use super::lives::{self, Lives};

/// PyTorch's number of the CPU among the kinds of devices.
const CPU: i64 = 0;

/// Reads a trace of the profiler and writes it as ours.
pub(super) fn import<R: BufRead, W: Write>(
    input: R,
    name: &str,
    writer: &mut Writer<W>,
) -> Result<(), ImportError> {
    let mut found = Found::default();
    let mut json = serde_json::Deserializer::from_reader(input);
    Root(&mut found).deserialize(&mut json).map_err(broken)?;
    found.check()?;
    if found.changes.iter().any(|change| change.device_type != CPU) {
        found.changes.retain(|change| change.device_type != CPU);
    }
    found.changes.sort_by_key(|change| change.time_ns);
    lives::begin(writer, "PyTorch profiler trace", name, ClockOrigin::Monotonic)?;
    write(&found.changes, writer)
}

/// What is wrong with the JSON.
fn broken(error: serde_json::Error) -> ImportError {
    if error.is_io() {
        return ImportError::Io(error.into());
    }
    let what = if error.is_eof() {
        "the JSON ends in the middle: the file was cut off, or is still being written"
    } else {
        "this is no trace of PyTorch's profiler"
    };
    ImportError::Json(format!("{what}: {error}"))
}

fn write<W: Write>(changes: &[Change], writer: &mut Writer<W>) -> Result<(), ImportError> {
    let mut devices: BTreeMap<u32, Lives> = BTreeMap::new();
    for change in changes {
        let device = u32::try_from(change.device_id).unwrap_or(0);
        if !devices.contains_key(&device) {
            let name = (change.device_type == CPU).then_some("CPU");
            writer.write(&Record::Device(Device { device, name, capacity_bytes: None }))?;
        }
        let lives = devices.entry(device).or_default();
        let (address, size_bytes) = (change.address.into(), change.bytes.unsigned_abs());
        let event = |action| {
            let (time_ns, thread) = (Some(change.time_ns), Some(change.thread));
            Event { time_ns, thread, ..Event::new(device, action) }
        };
        if change.bytes >= 0 {
            let action = Action::Allocated { address, size_bytes, rounded_bytes: None, stream: 0 };
            lives.allocate(writer, event(action), change.address, size_bytes)?;
        } else {
            lives.free(writer, event(Action::Freed { address, size_bytes }), change.address)?;
        }
    }
    for (&device, lives) in &devices {
        writer.write(&lives.history(device))?;
    }
    Ok(())
}

/// An allocation, or a free, whose bytes are negative.
#[derive(Debug)]
struct Change {
    time_ns: u64,
    thread: u64,
    device_type: i64,
    device_id: i64,
    address: u64,
    bytes: i64,
}

#[derive(Debug, Default)]
struct Found {
    changes: Vec<Change>,
    events: u64,
    without_address: u64,
    is_trace: bool,
}

impl Found {
    fn check(&self) -> Result<(), ImportError> {
        let fault = if !self.is_trace {
            "this is JSON, but no trace of PyTorch's profiler: expected `traceEvents`"
        } else if !self.changes.is_empty() {
            return Ok(());
        } else if self.without_address > 0 {
            "the profiler's `[memory]` events have no addresses: record with PyTorch 1.12 or later"
        } else {
            "the profiler's trace has no `[memory]` events: record with `profile(profile_memory=True)`"
        };
        Err(ImportError::Json(fault.to_owned()))
    }

    fn take(&mut self, event: &ChromeEvent) {
        self.events += 1;
        if event.name.as_deref() != Some("[memory]") {
            return;
        }
        let Some(args) = &event.args else { return };
        let (Some(address), Some(bytes)) = (args.address, args.bytes) else {
            self.without_address += 1;
            return;
        };
        let thread = event.thread.as_ref().and_then(serde_json::Value::as_u64).unwrap_or(0);
        // Microseconds with three places behind the point: enough bits for a few weeks.
        let time_ns = (event.time_us.unwrap_or(0.0) * 1000.0) as u64;
        let (device_type, device_id) = (args.device_type.unwrap_or(CPU), args.device_id.unwrap_or(0));
        self.changes.push(Change { time_ns, thread, device_type, device_id, address, bytes });
    }
}

/// An event, as far as it matters.
#[derive(Deserialize)]
struct ChromeEvent {
    #[serde(default)]
    name: Option<String>,
    #[serde(rename = "ts", default)]
    time_us: Option<f64>,
    #[serde(rename = "tid", default)]
    thread: Option<serde_json::Value>,
    #[serde(default)]
    args: Option<Args>,
}

#[derive(Deserialize, Default)]
struct Args {
    #[serde(rename = "Addr", default, deserialize_with = "lenient")]
    address: Option<u64>,
    #[serde(rename = "Bytes", default, deserialize_with = "lenient")]
    bytes: Option<i64>,
    #[serde(rename = "Device Type", default, deserialize_with = "lenient")]
    device_type: Option<i64>,
    #[serde(rename = "Device Id", default, deserialize_with = "lenient")]
    device_id: Option<i64>,
}

/// What is of another type than expected belongs to an event of another kind.
fn lenient<'de, D: Deserializer<'de>, T: serde::de::DeserializeOwned>(
    input: D,
) -> Result<Option<T>, D::Error> {
    let value = serde_json::Value::deserialize(input)?;
    Ok(serde_json::from_value(value).ok())
}

/// The whole file: a map with `traceEvents`, or the list alone.
struct Root<'f>(&'f mut Found);

impl<'de> DeserializeSeed<'de> for Root<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Root<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a trace of PyTorch's profiler")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "traceEvents" {
                self.0.is_trace = true;
                map.next_value_seed(Events(self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        Events(self.0).visit_seq(seq)?;
        self.0.is_trace = self.0.events > 0;
        Ok(())
    }
}

struct Events<'f>(&'f mut Found);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(event) = seq.next_element::<ChromeEvent>()? {
            self.0.take(&event);
        }
        Ok(())
    }
}
