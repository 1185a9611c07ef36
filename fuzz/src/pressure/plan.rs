//! What an input says: steps, and what callbacks do in them.

use arbitrary::Arbitrary;
use flex::{DomainId, MemoryType, PlacementPolicy};

use crate::common::op::Ask;

/// A whole run.
#[derive(Debug, Arbitrary)]
pub(super) struct Plan {
    pub(super) poison: bool,
    pub(super) steps: Vec<Step>,
}

/// One step outside any callback.
#[derive(Debug, Arbitrary)]
pub(super) enum Step {
    /// Allocate; each call of the callback does the next of these, and when they run out gives up.
    Allocate { want: Want, calls: Vec<Call> },
    /// Allocate with a callback that always wants to be called again, and does nothing.
    AllocateInVain { want: Want },
    /// What a callback may do as well.
    Act(Act),
}

/// One call of a callback.
#[derive(Debug, Arbitrary)]
pub(super) struct Call {
    pub(super) acts: Vec<Act>,
    pub(super) end: End,
}

/// How a call of a callback ends.
#[derive(Debug, Arbitrary, Clone, Copy)]
pub(super) enum End {
    Retry,
    GiveUp,
    /// A panic that reaches the caller of `allocate`, with the mutex held or free.
    Panic {
        unlocked: bool,
    },
}

/// One thing to do, in a callback or outside. Those before `Free` need a guard, so outside they are nothing.
#[derive(Debug, Arbitrary)]
pub(super) enum Act {
    /// Register the request, with a waker or without.
    Register {
        with_waker: bool,
    },
    /// Search for the request.
    Search,
    /// Look at the statistics with the mutex held.
    Look,
    /// Panic inside `unlocked`, catch it in the callback, and go on.
    CaughtPanic,
    /// Free a live allocation. In a callback the mutex may be held, so that the free is pending.
    Free {
        pick: u8,
        while_locked: bool,
    },
    /// Allocate; in a callback this fails at once if there is no room.
    Allocate {
        want: Want,
    },
    /// Cap the tensor bytes.
    Limit {
        units: u8,
    },
    /// Lift the cap.
    Unlimit,
    /// Put another callback in place of the present one, or the first one.
    Replace,
    /// Leave none.
    Remove,
    EmptyCache,
    ResetPressure,
    ResetAccumulated,
    Validate,
}

/// What to allocate, on the device of `world.rs`.
#[derive(Debug, Arbitrary, Clone, Copy)]
pub(super) struct Want {
    place: Place,
    eighths: u8,
    off_by: u8,
}

#[derive(Debug, Arbitrary, Clone, Copy)]
enum Place {
    First,
    Second,
    Both,
    Program,
}

/// Bytes of the tensor region of either domain.
pub(super) const REGION_BYTES: [u64; 2] = [4096, 1024];
/// Bytes of the program region, in the first domain.
pub(super) const PROGRAM_BYTES: u64 = 512;

impl Want {
    /// The request: so many eighths of the region, or nearly so; a little more than all of it at most.
    pub(super) fn ask(self) -> Ask {
        let both = || (0..2).map(DomainId).collect();
        let (domains, bytes, memory_type) = match self.place {
            Place::First => (vec![DomainId(0)], REGION_BYTES[0], MemoryType::Tensor),
            Place::Second => (vec![DomainId(1)], REGION_BYTES[1], MemoryType::Tensor),
            Place::Both => (both(), 2 * REGION_BYTES[1], MemoryType::Tensor),
            Place::Program => (vec![DomainId(0)], PROGRAM_BYTES, MemoryType::Program),
        };
        let policy = if domains.len() > 1 { PlacementPolicy::Interleave } else { PlacementPolicy::Bind };
        let requested_bytes = bytes * (1 + u64::from(self.eighths % 8)) / 8 + u64::from(self.off_by % 3) - 1;
        Ask { requested_bytes, policy, domains, memory_type }
    }
}
