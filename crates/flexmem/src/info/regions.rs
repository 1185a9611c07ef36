//! The state of a device at the end: its regions with their blocks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use flex_trace::record::{BlockSnapshot, BlockState, RegionState};
use flex_trace::{StackId, Tables};

use super::answers::{Holders, MemoryInfo, PinnedSegment, PinningBlock, PoolInfo};
use super::sites::{Sites, lines, name};

/// A region is nearly empty if it uses less than one part in this many.
const NEARLY_EMPTY: u64 = 4;

/// A block that is not free.
#[derive(Debug, Clone, Copy)]
struct Used {
    stack: Option<StackId>,
    offset_bytes: u64,
    size_bytes: u64,
}

/// A region, and what its blocks come to.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) state: RegionState,
    pub(super) allocated_bytes: u64,
    pub(super) active_bytes: u64,
    /// All blocks, free ones too.
    pub(super) blocks: u64,
    pub(super) block_bytes: u128,
    /// A block that is smaller than what was asked for: its size, and that.
    pub(super) too_small: Option<(u64, u64)>,
    largest_hole_bytes: u64,
    used: Vec<Used>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct RegionTally {
    pub(super) regions: Vec<Region>,
    is_open: bool,
    requested_bytes: u64,
    pub(super) has_owners: bool,
}

impl Region {
    fn new(state: &RegionState) -> Region {
        Region {
            state: *state,
            allocated_bytes: 0,
            active_bytes: 0,
            blocks: 0,
            block_bytes: 0,
            too_small: None,
            largest_hole_bytes: 0,
            used: Vec::new(),
        }
    }

    fn block(&mut self, block: &BlockSnapshot) {
        let offset_bytes = u64::try_from(self.block_bytes).unwrap_or(u64::MAX);
        self.blocks += 1;
        self.block_bytes += u128::from(block.size_bytes);
        if block.state == BlockState::Free {
            self.largest_hole_bytes = self.largest_hole_bytes.max(block.size_bytes);
            return;
        }
        if block.requested_bytes > block.size_bytes {
            self.too_small = self.too_small.or(Some((block.size_bytes, block.requested_bytes)));
        }
        self.active_bytes = self.active_bytes.saturating_add(block.size_bytes);
        self.used.push(Used { stack: block.stack, offset_bytes, size_bytes: block.size_bytes });
        if block.state == BlockState::Live {
            self.allocated_bytes = self.allocated_bytes.saturating_add(block.size_bytes);
        }
    }

    fn is_pinned(&self) -> bool {
        self.active_bytes > 0 && self.active_bytes < self.state.size_bytes / NEARLY_EMPTY
    }

    fn free_bytes(&self) -> u64 {
        self.state.size_bytes.saturating_sub(self.active_bytes)
    }

    fn pinned(&self, tables: &Tables, top: usize) -> PinnedSegment {
        let mut sites = Sites::default();
        self.used.iter().for_each(|block| sites.add(block.stack, block.size_bytes));
        PinnedSegment {
            address: self.state.address.0,
            size_bytes: self.state.size_bytes,
            active_bytes: self.active_bytes,
            free_bytes: self.free_bytes(),
            largest_hole_bytes: self.largest_hole_bytes,
            holders: sites.largest(tables, top),
            blocks: self.pinning(tables, top),
            blocks_left_out: self.used.len().saturating_sub(top) as u64,
        }
    }

    /// The blocks that keep it. Those between the largest free blocks come first: without them most would be free in
    /// one piece.
    fn pinning(&self, tables: &Tables, top: usize) -> Vec<PinningBlock> {
        let end = |block: &Used| block.offset_bytes.saturating_add(block.size_bytes);
        let around = |index: usize| {
            let block = &self.used[index];
            let before = index.checked_sub(1).map_or(0, |before| end(&self.used[before]));
            let after = self.used.get(index + 1).map_or(self.state.size_bytes, |after| after.offset_bytes);
            (block.offset_bytes.saturating_sub(before), after.saturating_sub(end(block)))
        };
        let mut order: Vec<_> = (0..self.used.len()).map(|index| (around(index), index)).collect();
        order.sort_by_key(|&((before, after), index)| {
            (Reverse(u128::from(before) + u128::from(after)), index)
        });
        let blocks = order.into_iter().take(top).map(|((free_before_bytes, free_after_bytes), index)| {
            let Used { stack, offset_bytes, size_bytes } = self.used[index];
            let address = self.state.address.0.wrapping_add(offset_bytes);
            let (site, stack) = (name(stack, tables), lines(stack, tables));
            PinningBlock { address, size_bytes, free_before_bytes, free_after_bytes, site, stack }
        });
        blocks.collect()
    }
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
        self.regions.push(Region::new(state));
    }

    pub(super) fn block(&mut self, block: &BlockSnapshot) {
        let Some(region) = self.regions.last_mut() else { return };
        self.has_owners |= block.stack.is_some();
        if block.state == BlockState::Live {
            self.requested_bytes = self.requested_bytes.saturating_add(block.requested_bytes);
        }
        region.block(block);
    }

    /// Who holds what is live.
    pub(super) fn holders(&self, tables: &Tables, top: usize) -> Holders {
        let mut sites = Sites::default();
        for block in self.regions.iter().flat_map(|region| &region.used) {
            sites.add(block.stack, block.size_bytes);
        }
        sites.largest(tables, top)
    }

    fn sum(&self, of: impl Fn(&Region) -> u64) -> u64 {
        self.regions.iter().map(of).fold(0, u64::saturating_add)
    }

    /// The sum of what the regions say of themselves, if all of them do.
    fn stated(&self, of: impl Fn(&RegionState) -> Option<u64>) -> Option<u64> {
        let mut stated = self.regions.iter().map(|region| of(&region.state));
        stated.try_fold(0, |all, one| Some(u64::saturating_add(all, one?)))
    }

    pub(super) fn info(&self, tables: &Tables, top: usize) -> Option<MemoryInfo> {
        if self.regions.is_empty() {
            return None;
        }
        let reserved_bytes = self.sum(|region| region.state.size_bytes);
        let active_bytes = self.sum(|region| region.active_bytes);
        let cached_bytes = reserved_bytes.saturating_sub(active_bytes);
        let releasable_bytes =
            self.sum(|region| if region.active_bytes == 0 { region.state.size_bytes } else { 0 });
        let (private_pools, private_pools_left_out) = self.private_pools(top);
        let (pinned, pinned_left_out) = self.pinned(tables, top);
        Some(MemoryInfo {
            reserved_bytes,
            allocated_bytes: self.sum(|region| region.allocated_bytes),
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
            expandable_segments: self.sum(|region| region.state.expandable.into()),
            stated_allocated_bytes: self.stated(|state| state.allocated_bytes),
            stated_active_bytes: self.stated(|state| state.active_bytes),
            private_pools,
            private_pools_left_out,
            pinned,
            pinned_left_out,
        })
    }

    /// The largest, and how many others there are.
    fn private_pools(&self, top: usize) -> (Vec<PoolInfo>, u64) {
        let mut pools: BTreeMap<(u64, u64), PoolInfo> = BTreeMap::new();
        for region in self.regions.iter().filter(|region| region.state.pool != (0, 0)) {
            let pool = region.state.pool;
            let info = pools.entry(pool).or_insert(PoolInfo { pool, reserved_bytes: 0, active_bytes: 0 });
            info.reserved_bytes = info.reserved_bytes.saturating_add(region.state.size_bytes);
            info.active_bytes = info.active_bytes.saturating_add(region.active_bytes);
        }
        let mut pools: Vec<_> = pools.into_values().collect();
        pools.sort_by_key(|pool| Reverse(pool.reserved_bytes));
        let left_out = pools.len().saturating_sub(top) as u64;
        pools.truncate(top);
        (pools, left_out)
    }

    /// Those with the most free bytes, and how many others there are.
    fn pinned(&self, tables: &Tables, top: usize) -> (Vec<PinnedSegment>, u64) {
        let mut pinned: Vec<_> = self.regions.iter().filter(|region| region.is_pinned()).collect();
        pinned.sort_by_key(|region| (Reverse(region.free_bytes()), region.state.address));
        let left_out = pinned.len().saturating_sub(top) as u64;
        (pinned.into_iter().take(top).map(|region| region.pinned(tables, top)).collect(), left_out)
    }
}
