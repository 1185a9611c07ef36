//! Playing a trace on an allocator: would a device with so much memory have done, and how well was it used?
//!
//! - [`Operations`]: what one device was asked for, in order.
//! - [`FlexReplay`]: FlexAllocator, on a device that has addresses only; [`CachingAllocator`]: a model of PyTorch's.
//! - [`play`]: runs one on the other; [`smallest`]: how little memory would have done.
//!
//! Invariant, checked at every step: no two live blocks overlap.

mod caching;
mod flex;
mod operations;
mod search;

use std::collections::BTreeMap;

use serde::Serialize;

pub use self::caching::{BlockId, CachingAllocator, Segments};
pub use self::flex::{FlexReplay, Layout};
pub use self::operations::{Operation, Operations};
pub use self::search::{WRITABLE_PLACES, smallest};

/// A request that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// What is free, in all.
    pub free_bytes: u64,
    /// The largest free block.
    pub largest_free_bytes: u64,
}

/// Where a block lies: which address space, from where, up to where.
pub type Span = (u64, u64, u64);

/// An allocator that a trace can be played on.
pub trait Player {
    /// Names a live block.
    type Block: Copy;

    /// Allocates.
    ///
    /// # Errors
    ///
    /// [`Refusal`] for want of room.
    fn allocate(&mut self, bytes: u64, stream: u64) -> Result<(Self::Block, Span), Refusal>;

    /// Frees a live block.
    fn free(&mut self, block: Self::Block);

    /// What is taken from the device.
    fn reserved_bytes(&self) -> u64;
}

/// How a replay went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The first request that was refused; None if all were served.
    pub failure: Option<Failure>,
    /// The most requested bytes that were live.
    pub live_peak_bytes: u64,
    /// The most bytes that live blocks occupied, sizes as the allocator rounds them.
    pub occupied_peak_bytes: u64,
    /// The most that was taken from the device.
    pub reserved_peak_bytes: u64,
    /// Allocations that were served.
    pub allocations: u64,
}

/// Why a replay ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Which of the device's events it is, from 1; 0 for a block that was live before recording.
    pub at_event: u64,
    /// What was asked for.
    pub requested_bytes: u64,
    /// Requested bytes that were live.
    pub live_bytes: u64,
    /// What was free, in all.
    pub free_bytes: u64,
    /// The largest free block.
    pub largest_free_bytes: u64,
}

/// Plays a trace up to its end or the first refusal, which is where the program would have ended.
///
/// # Panics
///
/// If the allocator hands out memory that is in use: a bug of it.
pub fn play<P: Player>(operations: &Operations, player: &mut P) -> Outcome {
    let mut live: Vec<Option<(P::Block, Span, u64)>> = vec![None; operations.places()];
    let mut ledger = Ledger::default();
    let (mut live_bytes, mut outcome) = (0_u64, Outcome::nothing());
    for operation in operations.iter() {
        let place = &mut live[operation.place as usize];
        if operation.size_bytes == 0 {
            if let Some((block, span, bytes)) = place.take() {
                ledger.remove(span);
                player.free(block);
                live_bytes -= bytes;
            }
            continue;
        }
        match player.allocate(operation.size_bytes, operation.stream) {
            Ok((block, span)) => {
                ledger.insert(span);
                *place = Some((block, span, operation.size_bytes));
                live_bytes = live_bytes.saturating_add(operation.size_bytes);
                outcome.served(live_bytes, ledger.occupied_bytes, player.reserved_bytes());
            }
            Err(Refusal { free_bytes, largest_free_bytes }) => {
                let (at_event, requested_bytes) = (operation.event, operation.size_bytes);
                outcome.failure =
                    Some(Failure { at_event, requested_bytes, live_bytes, free_bytes, largest_free_bytes });
                break;
            }
        }
    }
    outcome
}

impl Outcome {
    fn nothing() -> Self {
        let (live_peak_bytes, occupied_peak_bytes, reserved_peak_bytes, allocations) = (0, 0, 0, 0);
        Outcome { failure: None, live_peak_bytes, occupied_peak_bytes, reserved_peak_bytes, allocations }
    }

    fn served(&mut self, live_bytes: u64, occupied_bytes: u64, reserved_bytes: u64) {
        self.allocations += 1;
        self.live_peak_bytes = self.live_peak_bytes.max(live_bytes);
        self.occupied_peak_bytes = self.occupied_peak_bytes.max(occupied_bytes);
        self.reserved_peak_bytes = self.reserved_peak_bytes.max(reserved_bytes);
    }
}

/// Where live blocks lie.
#[derive(Default)]
struct Ledger {
    /// The end of each by its space and beginning.
    spans: BTreeMap<(u64, u64), u64>,
    occupied_bytes: u64,
}

impl Ledger {
    fn insert(&mut self, (space, start, end): Span) {
        let before = self.spans.range(..(space, end)).next_back();
        if let Some((&(other, other_start), &other_end)) = before {
            let overlap = other == space && other_end > start;
            assert!(!overlap, "{start:#x}..{end:#x} overlaps {other_start:#x}..{other_end:#x}");
        }
        self.spans.insert((space, start), end);
        self.occupied_bytes += end - start;
    }

    fn remove(&mut self, (space, start, end): Span) {
        self.spans.remove(&(space, start));
        self.occupied_bytes -= end - start;
    }
}

impl Player for CachingAllocator {
    type Block = BlockId;

    fn allocate(&mut self, bytes: u64, stream: u64) -> Result<(BlockId, Span), Refusal> {
        match CachingAllocator::allocate(self, bytes, stream) {
            Some(block) => {
                let start = self.offset_bytes(block);
                Ok((block, (0, start, start + self.size_bytes(block))))
            }
            None => {
                let (free_bytes, largest_free_bytes) = (self.free_bytes(), self.largest_free_bytes());
                Err(Refusal { free_bytes, largest_free_bytes })
            }
        }
    }

    fn free(&mut self, block: BlockId) {
        CachingAllocator::free(self, block);
    }

    fn reserved_bytes(&self) -> u64 {
        CachingAllocator::reserved_bytes(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_notices_an_overlap_on_either_side() {
        for (second, fine) in [((0, 100, 200), false), ((0, 150, 160), false), ((0, 50, 101), false)]
            .into_iter()
            .chain([((1, 100, 200), true), ((0, 200, 300), true), ((0, 50, 100), true)])
        {
            let mut ledger = Ledger::default();
            ledger.insert((0, 100, 200));
            let inserted = std::panic::catch_unwind(move || ledger.insert(second));
            assert_eq!(inserted.is_ok(), fine, "{second:?}");
        }
    }
}
