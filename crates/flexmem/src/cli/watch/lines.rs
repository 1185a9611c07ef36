//! A watched process as lines for a file or a pipe: one for each device and interval, and one for each thing that
//! happened.

use std::collections::HashMap;
use std::fmt::Write;

use super::super::text::{count, duration, harmless, number, size};
use super::age;
use crate::watch::answers::{DeviceMoment, Moment, OutOfMemory, Pressure};

/// What was said before, for the differences.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Allocations and frees, by device.
    before: HashMap<u32, (u64, u64)>,
    /// Events that were lost, by device, and whether more are missing.
    lost_before: HashMap<u32, (u64, bool)>,
    synchronizations_before: u64,
}

impl Lines {
    /// The lines of a moment.
    pub(super) fn of(&mut self, moment: &Moment) -> String {
        let mut text = String::new();
        if moment.synchronizations
            > std::mem::replace(&mut self.synchronizations_before, moment.synchronizations)
        {
            let _ = writeln!(text, "{:>8.1} s  began anew, since events were lost", moment.elapsed_s);
        }
        if let Some(age) = age(moment) {
            let _ = writeln!(text, "{:>8.1} s  behind: what follows is {age}", moment.elapsed_s);
        }
        for device in &moment.devices {
            for happened in happenings(device).chain(self.lost(device)) {
                // Writing to a string does not fail.
                let _ = writeln!(
                    text,
                    "{:>8.1} s  device {}  {}",
                    moment.elapsed_s,
                    device.device,
                    harmless(&happened)
                );
            }
            let before = self.before.insert(device.device, (device.allocations, device.frees));
            let (allocations, frees) = before.unwrap_or_default();
            let _ = writeln!(
                text,
                "{:>8.1} s  device {}  live {}, peak {}, reserved {}; {}, {}",
                moment.elapsed_s,
                device.device,
                size(device.live_bytes),
                size(device.peak_bytes),
                size(device.reserved_bytes),
                count(device.allocations - allocations, "allocation"),
                count(device.frees - frees, "free"),
            );
        }
        if moment.ended {
            let _ = writeln!(
                text,
                "{:>8.1} s  the stream of process {} has ended",
                moment.elapsed_s, moment.process
            );
        }
        text
    }

    /// What did not get here since the moment before, if anything.
    fn lost(&mut self, device: &DeviceMoment) -> Option<String> {
        let now = (device.lost_events, device.lost_unknown);
        let (events, unknown) = self.lost_before.insert(device.device, now).unwrap_or_default();
        let counted = device.lost_events - events;
        let is_more = device.lost_unknown && !unknown;
        (counted > 0 || is_more).then(|| format!("lost: {}", lost(counted, is_more)))
    }
}

/// What happened on a device since the moment before, but allocations and frees.
pub(super) fn happenings(device: &DeviceMoment) -> impl Iterator<Item = String> {
    let pressure = device.pressure_events.iter().map(pressure);
    let failures = device.out_of_memory_events.iter().map(out_of_memory);
    pressure.chain(failures)
}

/// Events that are missing: so many, and perhaps an unknown number more.
pub(super) fn lost(counted: u64, is_more: bool) -> String {
    match (counted, is_more) {
        (0, true) => "events that nobody counted".to_owned(),
        (_, true) => format!("{}, and more that nobody counted", count(counted, "event")),
        (_, false) => count(counted, "event"),
    }
}

fn pressure(pressure: &Pressure) -> String {
    let wanted = pressure.requested_bytes.map_or("some memory".to_owned(), size);
    let outcome = if pressure.rescued { "rescued" } else { "failed" };
    let (young, full) = (number(pressure.young_collections), number(pressure.full_collections));
    format!(
        "pressure: {wanted} wanted, {outcome}; collections: {young} young, {full} full; {} reclaimed in {}{}",
        size(pressure.reclaimed_bytes),
        duration(pressure.duration_ns),
        at(pressure.site.as_deref()),
    )
}

fn out_of_memory(failure: &OutOfMemory) -> String {
    let free = failure.free_bytes.map(|bytes| format!(", {} free", size(bytes))).unwrap_or_default();
    let largest = failure.largest_free_bytes.map(|bytes| format!(", {} in one piece", size(bytes)));
    format!(
        "out of memory: tried {}{free}{}{}",
        size(failure.requested_bytes),
        largest.unwrap_or_default(),
        at(failure.site.as_deref())
    )
}

fn at(site: Option<&str>) -> String {
    site.map(|site| format!(", at {site}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_told_with_and_without_a_number() {
        assert_eq!(lost(1, false), "1 event");
        assert_eq!(lost(0, true), "events that nobody counted");
        assert_eq!(lost(3, true), "3 events, and more that nobody counted");
    }
}
