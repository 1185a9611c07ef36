//! Who holds a device's memory: its live blocks by the place in the program that allocated them, and which of them keep
//! free memory apart.
//!
//! Made of a copy of the blocks, so the allocator mutex is held for as long as they are copied; nothing here needs the
//! interpreter. Places are known while history is recorded.

use std::collections::HashMap;
use std::time::Duration;

use flex::{BlockSnapshot, MemoryType, RegionSnapshot};

use crate::interpreter::stacks::{self, Frame};
use crate::libraries;
use crate::runtime::DeviceMemory;

/// Fewer blocks of a place do not show whether more are coming.
const LEAST_GROWING_BLOCKS: usize = 8;

/// A device's live blocks at one moment.
pub(crate) struct Survey {
    /// Places are recorded now.
    pub(crate) recorded: bool,
    /// The largest first.
    pub(crate) holders: Vec<Holder>,
    /// Bytes of all live blocks.
    pub(crate) live_bytes: u64,
    pub(crate) largest_block_bytes: u64,
    regions: Vec<RegionSnapshot>,
    /// Allocations that were freed so far.
    freed_allocations: u64,
}

/// The live blocks that one place allocated, from whatever stacks it was called.
pub(crate) struct Holder {
    /// `None` for those whose place is not known.
    pub(crate) place: Option<Frame>,
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
    /// When each was allocated, in nanoseconds since 1970, sorted.
    times_ns: Vec<u64>,
}

/// Blocks of one place that came one by one all the time.
pub(crate) struct Growth {
    /// From the first to the last.
    pub(crate) over: Duration,
    pub(crate) bytes_per_second: u64,
}

/// A live block that keeps free memory apart.
pub(crate) struct Blocker {
    pub(crate) site: u32,
    pub(crate) bytes: u64,
    pub(crate) free_before_bytes: u64,
    pub(crate) free_behind_bytes: u64,
}

/// Surveys a device's tensor memory; `None` in a forked child.
pub(crate) fn survey(device: &DeviceMemory) -> Option<Survey> {
    let recorded = device.allocator.is_recording();
    let mut regions = device.allocator.regions().ok()?;
    regions.retain(|region| region.memory_type == MemoryType::Tensor);
    let freed_allocations = device.allocator.statistics().ok()?.allocation.freed;
    let mut frames: HashMap<u32, Option<Frame>> = HashMap::new();
    let mut by_place: HashMap<Option<Frame>, Holder> = HashMap::new();
    for block in occupied(&regions) {
        let place = frames.entry(block.site).or_insert_with(|| own_frame(block.site));
        let empty = || Holder { place: place.clone(), bytes: 0, blocks: 0, times_ns: Vec::new() };
        let holder = by_place.entry(place.clone()).or_insert_with(empty);
        holder.bytes += block.size_bytes;
        holder.blocks += 1;
        holder.times_ns.push(block.allocated_ns);
    }
    let mut holders: Vec<Holder> = by_place.into_values().collect();
    holders.iter_mut().for_each(|holder| holder.times_ns.sort_unstable());
    // Of equal ones the older first.
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.times_ns.first().copied()));
    Some(Survey {
        recorded,
        live_bytes: holders.iter().map(|holder| holder.bytes).sum(),
        largest_block_bytes: occupied(&regions).map(|block| block.size_bytes).max().unwrap_or(0),
        holders,
        regions,
        freed_allocations,
    })
}

fn occupied(regions: &[RegionSnapshot]) -> impl Iterator<Item = &BlockSnapshot> {
    regions.iter().flat_map(|region| &region.blocks).filter(|block| block.occupied)
}

impl Survey {
    /// Whether a place's blocks look like those of a leak: they came all the time, while other blocks came and went.
    ///
    /// Either by order, among all live blocks, of which those from before recording are the oldest; or by time, since
    /// the oldest live block of another place. So neither what was loaded in the beginning counts, nor what the
    /// current step has made so far.
    pub(crate) fn growth(&self, holder: &Holder) -> Option<Growth> {
        let mut all: Vec<u64> =
            self.holders.iter().flat_map(|holder| holder.times_ns.iter().copied()).collect();
        all.sort_unstable();
        let ranks: Vec<u64> =
            holder.times_ns.iter().map(|time| all.partition_point(|other| other < time) as u64).collect();
        let first = all.iter().copied().find(|time| *time > 0)?;
        let by_time = || first < holder.times_ns[0] && is_steady(&holder.times_ns, first, all[all.len() - 1]);
        let is_steady = is_steady(&ranks, 0, all.len() as u64) || by_time();
        if holder.place.is_none() || !is_steady || self.freed_allocations < holder.blocks {
            return None;
        }
        let nanoseconds = holder.times_ns.last()? - holder.times_ns.first()?;
        let over = Duration::from_nanos(nanoseconds.max(1));
        Some(Growth { over, bytes_per_second: (holder.bytes as f64 / over.as_secs_f64()) as u64 })
    }

    /// The smallest live block whose neighbours would with it make room for a request; else the one beside the most
    /// free memory.
    pub(crate) fn blocker(&self, requested_bytes: u64) -> Option<Blocker> {
        let all = || self.regions.iter().flat_map(|region| blockers(&region.blocks));
        let whole = |each: &Blocker| each.free_before_bytes + each.bytes + each.free_behind_bytes;
        let enough = all().filter(|each| whole(each) >= requested_bytes).min_by_key(|each| each.bytes);
        let free = |each: &Blocker| each.free_before_bytes + each.free_behind_bytes;
        enough.or_else(|| all().max_by_key(|each| (free(each), std::cmp::Reverse(each.bytes))))
    }

    /// How many free blocks there are.
    pub(crate) fn free_blocks(&self) -> usize {
        self.regions.iter().flat_map(|region| &region.blocks).filter(|block| !block.occupied).count()
    }
}

/// Whether something came in each quarter of the time, up to the last of it: the newest is not older than three times
/// the mean time between them. The times are sorted.
fn is_steady(times_ns: &[u64], first: u64, last: u64) -> bool {
    let quarter = last.saturating_sub(first) / 4;
    // Times before recording are 0.
    if times_ns.len() < LEAST_GROWING_BLOCKS || times_ns.first() < Some(&first) || quarter == 0 {
        return false;
    }
    let mut came = [0; 4];
    for time in times_ns {
        came[(time.saturating_sub(first) / quarter).min(3) as usize] += 1;
    }
    let (Some(oldest), Some(newest)) = (times_ns.first(), times_ns.last()) else { return false };
    let since_newest = last.saturating_sub(*newest).saturating_mul(times_ns.len() as u64 - 1);
    since_newest <= (newest - oldest).saturating_mul(3)
        && came.iter().all(|count| count * 8 >= times_ns.len())
}

/// The live blocks of a region that lie beside free ones.
fn blockers(blocks: &[BlockSnapshot]) -> Vec<Blocker> {
    let free = |block: Option<&BlockSnapshot>| {
        block.filter(|block| !block.occupied).map_or(0, |block| block.size_bytes)
    };
    let beside = |(index, block): (usize, &BlockSnapshot)| {
        let free_before_bytes = index.checked_sub(1).map_or(0, |before| free(blocks.get(before)));
        let free_behind_bytes = free(blocks.get(index + 1));
        (block.occupied && free_before_bytes + free_behind_bytes > 0).then_some(Blocker {
            site: block.site,
            bytes: block.size_bytes,
            free_before_bytes,
            free_behind_bytes,
        })
    };
    blocks.iter().enumerate().filter_map(beside).collect()
}

/// The frame that stands for a site.
pub(crate) fn own_frame(site: u32) -> Option<Frame> {
    let frames = stacks::frames(site);
    frames.get(libraries::own_frame(frames.iter().map(|frame| &*frame.filename))).cloned()
}

/// A place in words: `train.py:12 (step)`.
pub(crate) fn words(place: &Frame) -> String {
    format!("{}:{} ({})", place.filename, place.line, place.name)
}
