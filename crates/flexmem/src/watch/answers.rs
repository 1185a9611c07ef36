//! What is known of a process at a moment, as plain values. Sizes in bytes.

use serde::Serialize;

use crate::info::answers::Holders;

/// A process at a moment.
#[derive(Debug, Clone, Serialize)]
pub struct Moment {
    /// The process.
    pub process: u32,
    /// What records in it.
    pub producer: String,
    /// Since the watch began, in seconds.
    pub elapsed_s: f64,
    /// How old this is, in seconds: what happened since then may not be in it. None if the process does not say.
    pub age_s: Option<f64>,
    /// Its devices, by number.
    pub devices: Vec<DeviceMoment>,
    /// How often the watch has begun anew, since events were lost. What happened just then is not counted.
    pub synchronizations: u64,
    /// The stream is over: nothing comes after this.
    pub ended: bool,
}

/// A device at a moment.
#[derive(Debug, Clone, Serialize)]
pub struct DeviceMoment {
    /// Its number.
    pub device: u32,
    /// What it is called.
    pub name: Option<String>,
    /// How much memory it has.
    pub capacity_bytes: Option<u64>,
    /// Whether its history was recorded when the watch began.
    pub recorded: bool,
    /// What live blocks were asked for with.
    pub live_bytes: u64,
    /// How many there are.
    pub live_blocks: u64,
    /// The most that was live since the watch began.
    pub peak_bytes: u64,
    /// The most that was live since the moment before.
    pub recent_peak_bytes: u64,
    /// Regions taken from the device.
    pub reserved_bytes: u64,
    /// Allocations since the watch began.
    pub allocations: u64,
    /// Frees since the watch began.
    pub frees: u64,
    /// Requests that found no room, since the watch began.
    pub pressure: PressureTotals,
    /// Those that ended since the moment before; the latest, if there were many.
    pub pressure_events: Vec<Pressure>,
    /// Requests that failed, since the watch began.
    pub out_of_memory: u64,
    /// Those since the moment before; the latest, if there were many.
    pub out_of_memory_events: Vec<OutOfMemory>,
    /// Events that did not get here, since the watch began.
    pub lost_events: u64,
    /// Others are missing too, and nobody knows how many.
    pub lost_unknown: bool,
    /// Who holds the most.
    #[serde(flatten)]
    pub holders: Holders,
}

/// Requests that found no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PressureTotals {
    /// How many have ended.
    pub events: u64,
    /// How many of them got their memory.
    pub rescued: u64,
    /// Collections of young objects.
    pub young_collections: u64,
    /// Full collections.
    pub full_collections: u64,
    /// What they freed.
    pub reclaimed_bytes: u64,
    /// How long the requests took.
    pub duration_ns: u64,
}

/// A request that found no room, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Pressure {
    /// What was wanted; None if it began before the watch.
    pub requested_bytes: Option<u64>,
    /// It got its memory.
    pub rescued: bool,
    /// Collections of young objects for it.
    pub young_collections: u64,
    /// Full ones.
    pub full_collections: u64,
    /// What they freed.
    pub reclaimed_bytes: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// Where in the program.
    pub site: Option<String>,
}

/// A request that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutOfMemory {
    /// What was wanted.
    pub requested_bytes: u64,
    /// What was free.
    pub free_bytes: Option<u64>,
    /// The largest free block.
    pub largest_free_bytes: Option<u64>,
    /// Where in the program.
    pub site: Option<String>,
}
