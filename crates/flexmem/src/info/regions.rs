//! The state of a device at the end: its regions with their blocks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use flex_trace::record::{BlockSnapshot, BlockState, RegionState};
use flex_trace::{StackId, Tables};

use super::answers::{Holder, MemoryInfo, PinnedSegment, PoolInfo};
use super::sites::Sites;

/// A region is nearly empty if it uses less than one part in this many.
const NEARLY_EMPTY: u64 = 4;

#[derive(Debug)]
struct Region {
    state: RegionState,
    active_bytes: u64,
    largest_hole_bytes: u64,
    /// Live blocks: who allocated them, and their sizes.
    live: Vec<(Option<StackId>, u64)>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct RegionTally {
    regions: Vec<Region>,
    is_open: bool,
    allocated_bytes: u64,
    requested_bytes: u64,
    pub(super) has_owners: bool,
}

impl RegionTally {
    pub(super) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Whether the next block belongs to the last region here.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(super) fn set_open(&mut self, is_open: bool) {
        self.is_open = is_open;
    }

    pub(super) fn region(&mut self, state: &RegionState) {
        self.regions.push(Region { state: *state, active_bytes: 0, largest_hole_bytes: 0, live: Vec::new() });
    }

    pub(super) fn block(&mut self, block: &BlockSnapshot) {
        let Some(region) = self.regions.last_mut() else { return };
        self.has_owners |= block.stack.is_some();
        if block.state == BlockState::Free {
            region.largest_hole_bytes = region.largest_hole_bytes.max(block.size_bytes);
            return;
        }
        region.active_bytes = region.active_bytes.saturating_add(block.size_bytes);
        region.live.push((block.stack, block.size_bytes));
        if block.state == BlockState::Live {
            self.allocated_bytes = self.allocated_bytes.saturating_add(block.size_bytes);
            self.requested_bytes = self.requested_bytes.saturating_add(block.requested_bytes);
        }
    }

    /// Who holds what is live.
    pub(super) fn holders(&self, tables: &Tables, top: usize) -> Vec<Holder> {
        let mut sites = Sites::default();
        for (stack, bytes) in self.regions.iter().flat_map(|region| &region.live) {
            sites.add(*stack, *bytes);
        }
        sites.largest(tables, top)
    }

    pub(super) fn info(&self, tables: &Tables, top: usize) -> Option<MemoryInfo> {
        if self.regions.is_empty() {
            return None;
        }
        let sum = |of: &dyn Fn(&Region) -> u64| self.regions.iter().map(of).fold(0, u64::saturating_add);
        let stated = |of: &dyn Fn(&RegionState) -> Option<u64>| {
            self.regions
                .iter()
                .map(|region| of(&region.state))
                .try_fold(0, |all, one| Some(u64::saturating_add(all, one?)))
        };
        let reserved_bytes = sum(&|region| region.state.size_bytes);
        let active_bytes = sum(&|region| region.active_bytes);
        let cached_bytes = reserved_bytes.saturating_sub(active_bytes);
        let releasable_bytes =
            sum(&|region| if region.active_bytes == 0 { region.state.size_bytes } else { 0 });
        Some(MemoryInfo {
            reserved_bytes,
            allocated_bytes: self.allocated_bytes,
            requested_bytes: self.requested_bytes,
            active_bytes,
            cached_bytes,
            releasable_bytes,
            stuck_bytes: cached_bytes.saturating_sub(releasable_bytes),
            largest_hole_bytes: self
                .regions
                .iter()
                .map(|region| region.largest_hole_bytes)
                .max()
                .unwrap_or(0),
            segments: self.regions.len() as u64,
            expandable_segments: sum(&|region| region.state.expandable.into()),
            stated_allocated_bytes: stated(&|state| state.allocated_bytes),
            stated_active_bytes: stated(&|state| state.active_bytes),
            private_pools: self.private_pools(),
            pinned: self.pinned(tables, top),
        })
    }

    fn private_pools(&self) -> Vec<PoolInfo> {
        let mut pools: BTreeMap<(u64, u64), PoolInfo> = BTreeMap::new();
        for region in self.regions.iter().filter(|region| region.state.pool != (0, 0)) {
            let pool = region.state.pool;
            let info = pools.entry(pool).or_insert(PoolInfo { pool, reserved_bytes: 0, active_bytes: 0 });
            info.reserved_bytes = info.reserved_bytes.saturating_add(region.state.size_bytes);
            info.active_bytes = info.active_bytes.saturating_add(region.active_bytes);
        }
        let mut pools: Vec<_> = pools.into_values().collect();
        pools.sort_by_key(|pool| Reverse(pool.reserved_bytes));
        pools
    }

    fn pinned(&self, tables: &Tables, top: usize) -> Vec<PinnedSegment> {
        let is_pinned = |region: &&Region| {
            region.active_bytes > 0 && region.active_bytes < region.state.size_bytes / NEARLY_EMPTY
        };
        let free = |region: &Region| region.state.size_bytes - region.active_bytes;
        let mut pinned: Vec<_> = self.regions.iter().filter(is_pinned).collect();
        pinned.sort_by_key(|region| (Reverse(free(region)), region.state.address));
        pinned.truncate(top);
        let segment = |region: &Region| {
            let mut sites = Sites::default();
            region.live.iter().for_each(|&(stack, bytes)| sites.add(stack, bytes));
            PinnedSegment {
                address: region.state.address.0,
                size_bytes: region.state.size_bytes,
                active_bytes: region.active_bytes,
                free_bytes: free(region),
                largest_hole_bytes: region.largest_hole_bytes,
                holders: sites.largest(tables, top),
            }
        };
        pinned.into_iter().map(segment).collect()
    }
}
