//! The figures of a report. `flexmem report --json` prints them, and the page shows these and no others.
//!
//! Sizes are in bytes, as the program requested them; times in nanoseconds on the trace's clock. Moments: 0 is before
//! the first event of a device, *n* is after its *n*th. `site` is a place in [`Summary::sites`]. Sums stop at 2^64-1.

use serde::Serialize;

/// A whole report.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The name of the file, without its folder.
    pub file: String,
    /// What kind of file it is.
    pub kind: &'static str,
    /// It was still being written: it goes on behind what is shown.
    pub growing: bool,
    /// What the trace was made by and from.
    pub sources: Vec<Source>,
    /// What times count from: `unix`, `monotonic` or `steps`.
    pub clock: Option<&'static str>,
    /// The allocator's settings.
    pub settings: Vec<(String, String)>,
    /// The sites that are shown by name, by their peak. The first stands for all others.
    pub sites: Vec<Site>,
    /// By their peak, the busiest first.
    pub devices: Vec<Device>,
    /// Devices that are left out.
    pub devices_left_out: u64,
    /// Sites that are in the first of `sites`.
    pub sites_left_out: u64,
}

/// Who wrote the trace.
#[derive(Debug, Serialize)]
pub struct Source {
    /// The program.
    pub producer: String,
    /// What it recorded.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// A place of the program that allocates.
#[derive(Debug, Serialize)]
pub struct Site {
    /// One line.
    pub label: String,
    /// The frames, the innermost first.
    pub stack: Vec<String>,
}

/// One device.
#[derive(Debug, Default, Serialize)]
pub struct Device {
    /// Its number.
    pub device: u32,
    /// What it is called.
    pub name: Option<String>,
    /// How much it has.
    pub capacity_bytes: Option<u64>,
    /// Events, without the baseline; the last moment.
    pub events: u64,
    /// Blocks allocated.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Blocks that were live before the first event.
    pub baseline_blocks: u64,
    /// What they took.
    pub baseline_bytes: u64,
    /// Whether blocks come from the state at the end alone, because no event tells of one.
    pub from_state: bool,
    /// Events that contradict others.
    pub contradictions: u64,
    /// Events that the trace says are missing, where it says how many.
    pub lost_events: u64,
    /// Places where the trace says that events are missing.
    pub lost_places: u64,
    /// The time of the first event that has one.
    pub first_time_ns: Option<u64>,
    /// The time of the last.
    pub last_time_ns: Option<u64>,
    /// When most was in use; the first such moment.
    pub peak: Moment,
    /// The last moment.
    pub end: Moment,
    /// The most that was reserved.
    pub peak_reserved_bytes: u64,
    /// Sites, by their own peak; only those of [`Summary::sites`].
    pub sites: Vec<SiteUse>,
    /// How many of the first `sites` have a band of the chart. The last band has the others.
    pub bands: usize,
    /// Moments per point of the chart.
    pub bucket_moments: u64,
    /// Points of the chart.
    pub buckets: u64,
    /// Requests that failed.
    pub out_of_memory: Marks<OutOfMemory>,
    /// Requests that found no memory at first.
    pub pressure: Marks<Pressure>,
    /// Collections of the interpreter.
    pub collections: Marks<Collection>,
    /// What collections made free, by type and site: who makes cycles.
    pub cycles: Marks<Cycle>,
    /// The map.
    pub map: MapExtent,
}

/// A device at one moment.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct Moment {
    /// Which.
    pub moment: u64,
    /// When, if known.
    pub time_ns: Option<u64>,
    /// In use.
    pub live_bytes: u64,
    /// In how many blocks.
    pub live_blocks: u64,
    /// Taken from the device.
    pub reserved_bytes: u64,
}

/// What a site has to do with a device.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct SiteUse {
    /// Which site.
    pub site: u32,
    /// The most that it held at once.
    pub peak_bytes: u64,
    /// What it held when the device's use was at its peak.
    pub at_peak_bytes: u64,
    /// What it held at the end.
    pub at_end_bytes: u64,
    /// All that it allocated, with the baseline.
    pub allocated_bytes: u64,
    /// In how many blocks.
    pub allocations: u64,
}

/// A list that shows the most important of what there is.
#[derive(Debug, Serialize)]
pub struct Marks<T> {
    /// In the order of the trace; cycles by their bytes.
    pub shown: Vec<T>,
    /// How many there are in all.
    pub count: u64,
    /// What they reclaimed in all, each collection counted once.
    pub reclaimed_bytes: u64,
}

impl<T> Default for Marks<T> {
    fn default() -> Self {
        Marks { shown: Vec::new(), count: 0, reclaimed_bytes: 0 }
    }
}

/// A request that failed.
#[derive(Debug, Clone, Serialize)]
pub struct OutOfMemory {
    /// When.
    pub moment: u64,
    /// When, if known.
    pub time_ns: Option<u64>,
    /// Who.
    pub site: u32,
    /// What was asked for.
    pub requested_bytes: u64,
    /// What the device had free.
    pub free_bytes: Option<u64>,
    /// The largest free block.
    pub largest_free_bytes: Option<u64>,
    /// What the device has.
    pub capacity_bytes: Option<u64>,
    /// What was in use.
    pub live_bytes: u64,
    /// What was reserved.
    pub reserved_bytes: u64,
}

/// A request that found no memory at first.
#[derive(Debug, Clone, Serialize)]
pub struct Pressure {
    /// When it ended; or began, if the trace has no end of it.
    pub moment: u64,
    /// When it began, if the trace has that.
    pub began_moment: Option<u64>,
    /// When, if known.
    pub time_ns: Option<u64>,
    /// Its number.
    pub pressure: u64,
    /// Who.
    pub site: u32,
    /// What was asked for.
    pub requested_bytes: Option<u64>,
    /// `served`, `out of memory`, or `unfinished`.
    pub end: &'static str,
    /// What was tried.
    pub tried: Vec<&'static str>,
    /// What became free.
    pub reclaimed_bytes: u64,
    /// How long it took.
    pub duration_ns: u64,
}

/// A collection of the interpreter.
#[derive(Debug, Clone, Serialize)]
pub struct Collection {
    /// When.
    pub moment: u64,
    /// When, if known.
    pub time_ns: Option<u64>,
    /// The oldest generation that it looked at.
    pub generation: u32,
    /// Objects that it found unreachable.
    pub objects: u64,
    /// What became free.
    pub reclaimed_bytes: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// The pressure that it was for.
    pub pressure: Option<u64>,
    /// The largest parts of what became free, if the trace has them.
    pub parts: Vec<Part>,
}

/// Part of what a collection made free.
#[derive(Debug, Clone, Serialize)]
pub struct Part {
    /// The type of the objects that held it.
    pub type_name: Option<String>,
    /// Where it was allocated.
    pub site: u32,
    /// What became free.
    pub bytes: u64,
}

/// What all collections made free of one type and site.
#[derive(Debug, Clone, Serialize)]
pub struct Cycle {
    /// The type of the objects that held it.
    pub type_name: Option<String>,
    /// Where it was allocated.
    pub site: u32,
    /// What became free.
    pub bytes: u64,
    /// In how many blocks.
    pub blocks: u64,
    /// In how many parts of collections.
    pub times: u64,
}

/// What the map shows, and what it leaves out.
#[derive(Debug, Default, Clone, Serialize)]
pub struct MapExtent {
    /// Blocks over the whole trace.
    pub blocks: u64,
    /// Blocks that the map knows.
    pub shown: u64,
    /// Blocks that it leaves out: those with the smallest product of size and time.
    pub left_out: u64,
    /// The largest of those.
    pub largest_left_out_bytes: u64,
    /// Their sizes, added up.
    pub left_out_bytes: u64,
    /// Regions over the whole trace.
    pub regions: u64,
    /// Regions that the map leaves out, the smallest.
    pub regions_left_out: u64,
}
