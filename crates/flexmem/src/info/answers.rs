//! The answers, as plain values. Sizes are in bytes, times in nanoseconds; `--json` shows them as they are.

use serde::Serialize;

/// Everything about a file.
#[derive(Debug, Default, Serialize)]
pub struct Info {
    /// Where it comes from.
    pub source: SourceInfo,
    /// What was passed over when the file was read.
    pub remarks: Vec<String>,
    /// It was still being written: it goes on behind what is told here.
    pub growing: bool,
    /// Records of kinds that are not known here. They are in no answer.
    pub unknown_records: u64,
    /// Settings of the allocator, as the file has them.
    pub settings: Vec<SettingInfo>,
    /// The devices, the busiest first.
    pub devices: Vec<DeviceInfo>,
    /// What to do next.
    pub advice: Vec<String>,
}

/// Where a file comes from.
#[derive(Debug, Default, Serialize)]
pub struct SourceInfo {
    /// What it is.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// A setting.
#[derive(Debug, Serialize)]
pub struct SettingInfo {
    /// Its name.
    pub key: String,
    /// Its value, as text.
    pub value: String,
}

/// Everything about a device.
#[derive(Debug, Serialize)]
pub struct DeviceInfo {
    /// Its number.
    pub device: u32,
    /// What it is called, if the file says so.
    pub name: Option<String>,
    /// How much it has, if that is known.
    pub capacity_bytes: Option<u64>,
    /// What is known of its past.
    pub history: HistoryInfo,
    /// How many events there are.
    pub events: EventCounts,
    /// The most that was live at once.
    pub peak: Option<PeakInfo>,
    /// The state at the end.
    pub memory: Option<MemoryInfo>,
    /// Requests that failed, the first ones.
    pub out_of_memory: Vec<OutOfMemoryInfo>,
    /// How many others failed.
    pub out_of_memory_left_out: u64,
    /// How memory grew.
    pub course: Course,
    /// Who holds memory at the end.
    #[serde(flatten)]
    pub holders: Holders,
    /// What memory pressure did.
    pub pressure: PressureInfo,
    /// Figures that cannot be: the file is wrong, or was put together from several.
    pub impossible: Vec<String>,
    /// How many others there are.
    pub impossible_left_out: u64,
}

impl DeviceInfo {
    /// By which devices are sorted: what was in use at most.
    pub fn busy_bytes(&self) -> u64 {
        let active = self.memory.as_ref().map_or(0, |memory| memory.active_bytes);
        self.peak.as_ref().map_or(0, |peak| peak.live_bytes).max(active)
    }

    /// Whether there is nothing to tell of it. A request may fail on a device on which nothing ever was live.
    pub fn is_idle(&self) -> bool {
        let EventCounts { frees, region_changes, out_of_memory, .. } = self.events;
        let happened = [frees, region_changes, out_of_memory, self.pressure.events, self.history.lost_events];
        self.busy_bytes() == 0
            && self.memory.is_none()
            && happened == [0; 5]
            && self.impossible.is_empty()
            && self.impossible_left_out == 0
    }
}

/// Whether history was on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryState {
    /// Nothing was recorded: only the state at the end is known.
    NeverOn,
    /// Nothing was recorded but who allocated each block.
    OwnersOnly,
    /// From an empty device on: the peak is exact.
    Whole,
    /// From some moment on: there may have been a higher peak before.
    Truncated,
}

/// What is known of a device's past.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct HistoryInfo {
    /// Whether history was on.
    pub state: HistoryState,
    /// Blocks that were live when recording began.
    pub baseline_blocks: u64,
    /// Their bytes.
    pub baseline_bytes: u64,
    /// How many of them an event freed.
    pub baseline_freed: u64,
    /// Reserved when recording began, if known.
    pub reserved_before_bytes: Option<u64>,
    /// Events that do not fit the others.
    pub contradictions: u64,
    /// Events that the trace says are missing.
    pub lost_events: u64,
    /// Whether events are missing, and nobody knows how many.
    pub lost_unknown: bool,
    /// From the first to the last event, if they have times, and not just an order.
    pub duration_ns: Option<u64>,
}

impl HistoryInfo {
    /// Whether nothing but contradictions keeps it from being whole.
    pub fn is_contradictory_alone(&self) -> bool {
        let began_empty = self.baseline_blocks == 0
            && self.baseline_freed == 0
            && self.reserved_before_bytes.unwrap_or(0) == 0;
        began_empty && self.contradictions > 0 && self.lost_events == 0 && !self.lost_unknown
    }
}

/// How many events there are, by kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct EventCounts {
    /// Allocations.
    pub allocations: u64,
    /// Completed frees.
    pub frees: u64,
    /// Regions, or parts of them, that were acquired or released.
    pub region_changes: u64,
    /// Requests that failed.
    pub out_of_memory: u64,
    /// Collections of the interpreter.
    pub collections: u64,
    /// Everything else.
    pub others: u64,
}

/// The most that was live at once.
#[derive(Debug, Serialize)]
pub struct PeakInfo {
    /// Requested bytes that were live.
    pub live_bytes: u64,
    /// Whether there may have been a higher peak, before recording.
    pub is_lower_bound: bool,
    /// Which of the device's events brought it about, from 1; 0 if nothing was higher than the beginning.
    pub at_event: u64,
    /// When.
    pub time_ns: Option<u64>,
    /// Reserved at that moment, if known.
    pub reserved_bytes: Option<u64>,
    /// The most that was ever reserved, if known.
    pub reserved_peak_bytes: Option<u64>,
    /// Who held it.
    #[serde(flatten)]
    pub holders: Holders,
}

/// Who holds memory.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Holders {
    /// As many as were asked for, the largest first.
    #[serde(rename = "holders")]
    pub largest: Vec<Holder>,
    /// The others together.
    #[serde(rename = "other_holders")]
    pub others: OtherHolders,
}

/// Those of who holds memory that are in no list.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct OtherHolders {
    /// Places in the program.
    pub sites: u64,
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

/// Memory that was allocated at one place of the program.
#[derive(Debug, Clone, Serialize)]
pub struct Holder {
    /// The place, in one line; None if the file does not tell.
    pub site: Option<String>,
    /// The stack, the innermost frame first. Of several that end in this place, the one that holds most.
    pub stack: Vec<String>,
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

/// The state at the end. `reserved = active + cached`, `active = allocated + pending free`.
#[derive(Debug, Serialize)]
pub struct MemoryInfo {
    /// Taken from the device.
    pub reserved_bytes: u64,
    /// In blocks that the program holds, rounded sizes.
    pub allocated_bytes: u64,
    /// What the program asked for, of that.
    pub requested_bytes: u64,
    /// In blocks that the program holds or a stream still uses.
    pub active_bytes: u64,
    /// Free, and kept by the allocator.
    pub cached_bytes: u64,
    /// The part of it that could go back to the device: whole segments.
    pub releasable_bytes: u64,
    /// The part of it between live blocks.
    pub stuck_bytes: u64,
    /// The largest free block.
    pub largest_hole_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Those that grow in place.
    pub expandable_segments: u64,
    /// What the segments say that is allocated.
    pub stated_allocated_bytes: Option<u64>,
    /// What the segments say that is active.
    pub stated_active_bytes: Option<u64>,
    /// Private pools, such as those of CUDA graphs, which nobody else can use; the largest first.
    pub private_pools: Vec<PoolInfo>,
    /// How many others there are.
    pub private_pools_left_out: u64,
    /// Segments that few live bytes keep from going back, those with the most free bytes first.
    pub pinned: Vec<PinnedSegment>,
    /// How many others there are.
    pub pinned_left_out: u64,
}

/// A private pool.
#[derive(Debug, Serialize)]
pub struct PoolInfo {
    /// Its two numbers.
    pub pool: (u64, u64),
    /// Taken from the device for it.
    pub reserved_bytes: u64,
    /// In use.
    pub active_bytes: u64,
}

/// A segment that is nearly empty and cannot go back.
#[derive(Debug, Serialize)]
pub struct PinnedSegment {
    /// Where it is.
    pub address: u64,
    /// Its size.
    pub size_bytes: u64,
    /// What is in use.
    pub active_bytes: u64,
    /// What is free.
    pub free_bytes: u64,
    /// Its largest free block.
    pub largest_hole_bytes: u64,
    /// Who keeps it.
    #[serde(flatten)]
    pub holders: Holders,
    /// The blocks that keep it, those between the largest free blocks first.
    pub blocks: Vec<PinningBlock>,
    /// How many others there are.
    pub blocks_left_out: u64,
}

/// A block that keeps a segment.
#[derive(Debug, Serialize)]
pub struct PinningBlock {
    /// Where it is.
    pub address: u64,
    /// Its size.
    pub size_bytes: u64,
    /// What is free right before it.
    pub free_before_bytes: u64,
    /// What is free right behind it.
    pub free_after_bytes: u64,
    /// Who allocated it.
    pub site: Option<String>,
    /// The stack, the innermost frame first.
    pub stack: Vec<String>,
}

/// A request that failed.
#[derive(Debug, Serialize)]
pub struct OutOfMemoryInfo {
    /// Which of the device's events it is, from 1.
    pub at_event: u64,
    /// When.
    pub time_ns: Option<u64>,
    /// What was asked for.
    pub requested_bytes: u64,
    /// What the device had free.
    pub device_free_bytes: Option<u64>,
    /// The largest free block, if that was said.
    pub largest_free_bytes: Option<u64>,
    /// Live at that moment.
    pub live_bytes: u64,
    /// Reserved at that moment, if known.
    pub reserved_bytes: Option<u64>,
    /// Reserved and not live, if known and not part of what was free.
    pub cached_bytes: Option<u64>,
    /// What was missing even if all that was cached could have been used; 0 if that would have done.
    pub missing_bytes: Option<u64>,
    /// Who asked.
    pub site: Option<String>,
    /// The stack, the innermost frame first.
    pub stack: Vec<String>,
}

/// How memory grew.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Course {
    /// Nothing can be said: no events, or few.
    Unknown,
    /// It went up and down around the same level.
    Steady,
    /// One block was more than half of the rise to the peak, or a request that failed was more than half of it.
    OneBigStep {
        /// Its size.
        size_bytes: u64,
        /// Whether it failed; then the rise is without it.
        is_failed: bool,
        /// The rise to the peak, from what was live when recording began.
        rise_bytes: u64,
        /// Who asked for it.
        site: Option<String>,
    },
    /// What stays live grows from one part of the history to the next.
    Growing {
        /// The least that was live in the second eighth of the events.
        from_bytes: u64,
        /// And in the last.
        to_bytes: u64,
        /// Who allocated what stays live.
        #[serde(flatten)]
        holders: Holders,
    },
    /// What is live stays, and what is reserved grows.
    GrowingCache {
        /// The least that was reserved and not live in the second eighth of the events.
        from_bytes: u64,
        /// And in the last.
        to_bytes: u64,
    },
}

/// What memory pressure did.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct PressureInfo {
    /// Requests that found no memory at first.
    pub events: u64,
    /// How many of them were served in the end.
    pub rescued: u64,
    /// Bytes that collections freed for them, each collection counted once.
    pub reclaimed_bytes: u64,
    /// The time it took.
    pub duration_ns: u64,
}
