//! Free blocks held while the device drops their pages.
//!
//! Dropping pages is a slow call, made with the allocator mutex free. A span that could be allocated meanwhile would
//! lose what its new owner writes, so it is held: out of the bins, in no one's hands, still counted as free. A
//! request that finds nothing while blocks are held gets [`super::Unplaced::RegionBusy`], not a false exhaustion.
//!
//! The thread that holds blocks returns every one of them. Protected by the allocator mutex.

use super::blocks::NodeState;
use super::{Arena, RegionSlot, bytes_of};
use crate::units::RegionId;

/// A held block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldSpan {
    /// The block; no one else can free or move it.
    index: u32,
    pub(crate) region_id: RegionId,
    pub(crate) offset_bytes: u64,
    pub(crate) size_bytes: u64,
}

/// How far a sequence of holds has come; starts at the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TrimCursor {
    slot: u16,
    offset_bytes: u64,
}

impl Arena {
    /// Holds free blocks of at least `minimum_bytes` from the cursor on, in the order of slots and offsets, until the
    /// list is as long as its capacity; it allocates nothing. No block past the cursor leaves the list empty.
    ///
    /// Few at a time keep other requests from finding all of the free memory held.
    pub(crate) fn hold_free_spans(
        &mut self,
        cursor: &mut TrimCursor,
        minimum_bytes: u64,
        out: &mut Vec<HeldSpan>,
    ) {
        self.list_free_spans(cursor, minimum_bytes, out);
        for span in out.iter() {
            let region = &mut self.regions[usize::from(self.blocks.node(span.index).slot)];
            region.bins.unlink(&mut self.blocks, span.index);
            region.held_blocks += 1;
            let node = self.blocks.node_mut(span.index);
            node.state = NodeState::held(node.state.zone());
        }
    }

    /// Makes a held block allocatable again.
    pub(crate) fn return_held_span(&mut self, span: HeldSpan) {
        let node = self.blocks.node(span.index);
        assert!(node.state.is_held(), "{span:?}");
        let region = &mut self.regions[usize::from(node.slot)];
        region.held_blocks -= 1;
        region.settle(&mut self.blocks, span.index);
    }

    fn list_free_spans(&self, cursor: &mut TrimCursor, minimum_bytes: u64, out: &mut Vec<HeldSpan>) {
        debug_assert!(out.is_empty());
        for (RegionSlot(slot), region) in self.slots().skip(usize::from(cursor.slot)) {
            let Some(region_id) = region.present_id() else { continue };
            let start_bytes = if slot == cursor.slot { cursor.offset_bytes } else { 0 };
            for (index, node) in self.blocks_of(region).filter(|(_, node)| node.state.is_free()) {
                let (offset_bytes, size_bytes) = (bytes_of(node.offset_units), bytes_of(node.size_units));
                if offset_bytes < start_bytes || size_bytes < minimum_bytes {
                    continue;
                }
                if out.len() == out.capacity() {
                    return;
                }
                out.push(HeldSpan { index, region_id, offset_bytes, size_bytes });
                *cursor = TrimCursor { slot, offset_bytes: offset_bytes + size_bytes };
            }
        }
    }
}
