//! What happens besides allocating: pressure, collections, failures, and who makes the cycles that collections free.
//!
//! Bounded: of each list the entries that reclaimed most are kept. Everything is counted.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use flex_trace::Action;
use flex_trace::record::{PressureEnd, tried};

use super::summary::{Collection, Cycle, Device, Marks, OutOfMemory, Part, Pressure};

const MAX_OPEN: usize = 10_000;
const MAX_PARTS: usize = 8;
const MAX_CYCLES: usize = 50_000;

/// Keeps the entries with the highest keys, in order.
#[derive(Debug)]
struct Top<T> {
    limit: usize,
    /// By key and number.
    kept: Vec<(u64, u64, T)>,
    count: u64,
    reclaimed_bytes: u64,
}

impl<T> Top<T> {
    fn new(limit: usize) -> Self {
        Top { limit, kept: Vec::new(), count: 0, reclaimed_bytes: 0 }
    }

    fn push(&mut self, key: u64, reclaimed_bytes: u64, item: T) {
        self.kept.push((key, self.count, item));
        self.count += 1;
        self.reclaimed_bytes = self.reclaimed_bytes.saturating_add(reclaimed_bytes);
        if self.kept.len() > 2 * self.limit {
            self.cut();
        }
    }

    fn cut(&mut self) {
        self.kept.sort_by_key(|&(key, number, _)| (Reverse(key), number));
        self.kept.truncate(self.limit);
    }

    fn finish(mut self) -> Marks<T> {
        self.cut();
        self.kept.sort_by_key(|&(_, number, _)| number);
        let shown = self.kept.into_iter().map(|(_, _, item)| item).collect();
        Marks { shown, count: self.count, reclaimed_bytes: self.reclaimed_bytes }
    }
}

/// Where a device stands when something happens.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub(super) moment: u64,
    pub(super) time_ns: Option<u64>,
    pub(super) site: u32,
    pub(super) live_bytes: u64,
    pub(super) reserved_bytes: u64,
}

/// The marks of one device.
#[derive(Debug)]
pub(super) struct Marker {
    limit: usize,
    out_of_memory: Top<OutOfMemory>,
    pressure: Top<Pressure>,
    collections: Top<Collection>,
    begun: BTreeMap<u64, Pressure>,
    /// The latest collection, whose parts may follow.
    collection: Option<Collection>,
    cycles: HashMap<(Option<String>, u32), Cycle>,
    cycles_dropped: u64,
    cycle_bytes: u64,
}

impl Marker {
    pub(super) fn new(limit: usize) -> Self {
        Marker {
            limit,
            out_of_memory: Top::new(limit),
            pressure: Top::new(limit),
            collections: Top::new(limit),
            begun: BTreeMap::new(),
            collection: None,
            cycles: HashMap::new(),
            cycles_dropped: 0,
            cycle_bytes: 0,
        }
    }

    /// Takes an action, if it is of these. `type_name` is that of [`Action::Reclaimed`].
    pub(super) fn take(&mut self, action: &Action, at: At, type_name: Option<String>) {
        match *action {
            Action::PressureBegan { pressure, requested_bytes } => self.begin(pressure, requested_bytes, at),
            Action::PressureEnded { pressure, end, tried, reclaimed_bytes, duration_ns } => {
                let begun = self.begun.remove(&pressure);
                let ended = Pressure {
                    moment: at.moment,
                    began_moment: begun.as_ref().map(|begun| begun.moment),
                    time_ns: at.time_ns,
                    pressure,
                    site: begun.as_ref().map_or(at.site, |begun| begun.site),
                    requested_bytes: begun.and_then(|begun| begun.requested_bytes),
                    end: match end {
                        PressureEnd::Served => "served",
                        PressureEnd::OutOfMemory => "out of memory",
                    },
                    tried: names(tried),
                    reclaimed_bytes,
                    duration_ns,
                };
                self.pressure.push(
                    rank(end == PressureEnd::OutOfMemory, reclaimed_bytes),
                    reclaimed_bytes,
                    ended,
                );
            }
            Action::Collected { generation, objects, reclaimed_bytes, duration_ns, pressure } => {
                self.keep_collection();
                let (moment, time_ns, parts) = (at.moment, at.time_ns, Vec::new());
                self.collection = Some(Collection {
                    moment,
                    time_ns,
                    generation,
                    objects,
                    reclaimed_bytes,
                    duration_ns,
                    pressure,
                    parts,
                });
            }
            Action::Reclaimed { bytes, blocks, .. } => self.part(type_name, at.site, bytes, blocks),
            Action::OutOfMemory { requested_bytes, free_bytes, largest_free_bytes, capacity_bytes } => {
                let failure = OutOfMemory {
                    moment: at.moment,
                    time_ns: at.time_ns,
                    site: at.site,
                    requested_bytes,
                    free_bytes,
                    largest_free_bytes,
                    capacity_bytes,
                    live_bytes: at.live_bytes,
                    reserved_bytes: at.reserved_bytes,
                };
                self.out_of_memory.push(0, 0, failure);
            }
            _ => {}
        }
    }

    fn begin(&mut self, pressure: u64, requested_bytes: u64, at: At) {
        let begun = Pressure {
            moment: at.moment,
            began_moment: Some(at.moment),
            time_ns: at.time_ns,
            pressure,
            site: at.site,
            requested_bytes: Some(requested_bytes),
            end: "unfinished",
            tried: Vec::new(),
            reclaimed_bytes: 0,
            duration_ns: 0,
        };
        let mut dropped = self.begun.insert(pressure, begun);
        if self.begun.len() > MAX_OPEN {
            dropped = self.begun.pop_first().map(|(_, begun)| begun);
        }
        if let Some(unfinished) = dropped {
            self.pressure.push(0, 0, unfinished);
        }
    }

    fn part(&mut self, type_name: Option<String>, site: u32, bytes: u64, blocks: u64) {
        if let Some(collection) = &mut self.collection {
            collection.parts.push(Part { type_name: type_name.clone(), site, bytes });
            if collection.parts.len() > 2 * MAX_PARTS {
                cut_parts(collection);
            }
        }
        self.cycle_bytes = self.cycle_bytes.saturating_add(bytes);
        let new = Cycle { type_name: type_name.clone(), site, bytes: 0, blocks: 0, times: 0 };
        let cycle = self.cycles.entry((type_name, site)).or_insert(new);
        cycle.bytes = cycle.bytes.saturating_add(bytes);
        cycle.blocks = cycle.blocks.saturating_add(blocks);
        cycle.times += 1;
        if self.cycles.len() > MAX_CYCLES {
            let mut all: Vec<u64> = self.cycles.values().map(|cycle| cycle.bytes).collect();
            let (_, &mut median, _) = all.select_nth_unstable(MAX_CYCLES / 2);
            self.cycles.retain(|_, cycle| cycle.bytes > median);
            self.cycles_dropped += (MAX_CYCLES + 1 - self.cycles.len()) as u64;
        }
    }

    fn keep_collection(&mut self) {
        if let Some(mut collection) = self.collection.take() {
            cut_parts(&mut collection);
            self.collections.push(collection.reclaimed_bytes, collection.reclaimed_bytes, collection);
        }
    }

    pub(super) fn finish(mut self, device: &mut Device) {
        self.keep_collection();
        for unfinished in std::mem::take(&mut self.begun).into_values() {
            self.pressure.push(rank(true, 0), 0, unfinished);
        }
        device.out_of_memory = self.out_of_memory.finish();
        device.collections = self.collections.finish();
        // Requests that wait for one collection each name what it freed, so theirs are not added up.
        let reclaimed_bytes = device.collections.reclaimed_bytes;
        device.pressure = Marks { reclaimed_bytes, ..self.pressure.finish() };
        let count = self.cycles.len() as u64 + self.cycles_dropped;
        let mut shown: Vec<Cycle> = self.cycles.into_values().collect();
        shown.sort_by(|one, other| {
            let key = |cycle: &Cycle| (Reverse(cycle.bytes), cycle.type_name.clone(), cycle.site);
            key(one).cmp(&key(other))
        });
        shown.truncate(self.limit);
        device.cycles = Marks { shown, count, reclaimed_bytes: self.cycle_bytes };
    }
}

/// Failures before everything else.
fn rank(failed: bool, reclaimed_bytes: u64) -> u64 {
    if failed { u64::MAX } else { reclaimed_bytes }
}

fn cut_parts(collection: &mut Collection) {
    collection.parts.sort_by_key(|part| Reverse(part.bytes));
    collection.parts.truncate(MAX_PARTS);
}

fn names(sum: u64) -> Vec<&'static str> {
    let names = [
        (tried::PENDING_FREES, "pending frees"),
        (tried::YOUNG_COLLECTION, "young collection"),
        (tried::FULL_COLLECTION, "full collection"),
        (tried::OTHERS_COLLECTION, "another thread's collection"),
        (tried::HOOKS, "hooks"),
        (tried::RELEASED_CACHE, "cache released"),
    ];
    names.iter().filter(|(bit, _)| sum & bit != 0).map(|&(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_are_kept_in_their_order_and_all_are_counted() {
        let mut top = Top::new(3);
        for key in [1, 9, 2, 8, 3, 7, 4, 6, 5] {
            top.push(key, key, key);
        }
        let marks = top.finish();
        assert_eq!((marks.shown, marks.count, marks.reclaimed_bytes), (vec![9, 8, 7], 9, 45));
    }

    #[test]
    fn many_cycle_makers_are_cut_to_the_largest_and_counted() {
        let mut marker = Marker::new(2);
        for site in 0..(MAX_CYCLES as u32 + 10) {
            marker.part(None, site, u64::from(site), 1);
        }
        let mut device = Device::default();
        marker.finish(&mut device);
        assert_eq!(device.cycles.count, MAX_CYCLES as u64 + 10);
        assert_eq!(device.cycles.shown[0].bytes, MAX_CYCLES as u64 + 9);
        assert_eq!(device.cycles.shown.len(), 2);
    }
}
