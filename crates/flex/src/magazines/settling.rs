//! How the arena's counters follow what went through magazines.
//!
//! Lock: the allocator mutex. A thread settles its own magazine before the counters move, so that a peak is seen; who
//! takes blocks back, or finds the counters behind, settles all.

use super::Magazine;
use super::tally::{Amounts, Settlement, Tally};
use super::thread;
use crate::shared::{Shared, State};
use crate::sync::Arc;

/// How often the sums are read again because some thread went on meanwhile.
const READINGS: usize = 16;

impl Shared {
    /// Settles what went through this thread's magazine, so that a peak is seen before the arena's counters rise.
    #[inline]
    pub(crate) fn settle_own(&self, state: &mut State) {
        self.settle_own_unless(state, Tally::is_settled);
    }

    /// As [`settle_own`](Self::settle_own), before they fall: if only frees are unsettled, there is no peak to be seen.
    #[inline]
    pub(crate) fn settle_placements(&self, state: &mut State) {
        self.settle_own_unless(state, Tally::has_settled_placements);
    }

    #[inline]
    fn settle_own_unless(&self, state: &mut State, may_wait: impl FnOnce(&Tally) -> bool) {
        thread::with_unsettled(self.id, |magazine| {
            if !may_wait(&magazine.tally) {
                settle(state, &magazine.tally);
            }
            magazine.tally.is_settled()
        });
    }

    /// Settles what went through all magazines, and forgets those of ended threads.
    #[cold]
    pub(crate) fn settle_all(&self, state: &mut State) {
        // Whose thread had ended before the sums were read is settled for good.
        let ended: Vec<bool> = state.magazines.iter().map(|magazine| magazine.is_orphaned()).collect();
        let total = read_all(&state.magazines);
        state.arena.settle(&total);
        let mut ended = ended.into_iter();
        state.magazines.retain(|_| ended.next() == Some(false));
    }
}

/// What is to be settled of all magazines, which counts as settled.
fn read_all(magazines: &[Arc<Magazine>]) -> Settlement {
    let mut readings = Vec::with_capacity(magazines.len());
    for _ in 0..READINGS {
        // All frees are read first: the placement of each of those blocks is seen then. Frees that come in between
        // make the sums too high, so they are read again.
        let freed: Vec<Amounts> = magazines.iter().map(|magazine| magazine.tally.freed()).collect();
        readings.clear();
        readings
            .extend(magazines.iter().zip(&freed).map(|(magazine, &freed)| magazine.tally.settlement(freed)));
        if magazines.iter().zip(&freed).all(|(magazine, &freed)| magazine.tally.freed() == freed) {
            break;
        }
    }
    let mut total = Settlement::default();
    for (magazine, (settlement, settled)) in magazines.iter().zip(readings) {
        total.placed = total.placed.zip(settlement.placed, u64::wrapping_add);
        total.freed = total.freed.zip(settlement.freed, u64::wrapping_add);
        total.highest = total.highest.zip(settlement.highest, u64::max);
        magazine.tally.settle(settled);
    }
    total
}

/// Settles what went through one magazine, for its owner, who has the mutex.
#[inline(never)]
fn settle(state: &mut State, tally: &Tally) {
    let (settlement, settled) = tally.settlement(tally.freed());
    // Else this thread has freed what another one placed and has not settled.
    if state.arena.covers_settlement(&settlement) {
        state.arena.settle(&settlement);
        tally.settle(settled);
    }
}
