//! The calling thread's magazines: one for each allocator it has freed small blocks of.
//!
//! A thread that ends gives back what its magazines hold. Whatever it frees after that, in destructors of other
//! thread-locals, goes to the allocator directly. No lock; nothing here waits.

use std::cell::{Cell, RefCell};
use std::sync::Weak;

use super::Magazine;
use crate::fork::is_forked;
use crate::shared::Shared;
use crate::sync::Arc;

/// A magazine and the allocator it belongs to.
struct OwnMagazine {
    allocator_id: u64,
    allocator: Weak<Shared>,
    magazine: Arc<Magazine>,
}

impl Drop for OwnMagazine {
    fn drop(&mut self) {
        if !is_forked()
            && let Some(allocator) = self.allocator.upgrade()
        {
            allocator.give_back_all(&self.magazine);
        }
        self.magazine.orphan(); // The last touch: whoever sees it may forget the magazine.
    }
}

crate::sync::thread_local! {
    static OWN: RefCell<Vec<OwnMagazine>> = const { RefCell::new(Vec::new()) };
}

crate::sync::thread_local! {
    // Whether something that went through one of them may be unsettled: a look that costs next to nothing, before each
    // request and free that goes to the arena.
    static UNSETTLED: Cell<bool> = const { Cell::new(false) };
}

/// What the end of a thread does.
#[cfg(all(test, any(loom, shuttle)))]
pub(crate) fn end() {
    let own = OWN.with(|own| std::mem::take(&mut *own.borrow_mut()));
    drop(own);
}

/// What came of looking for this thread's magazine.
pub(crate) enum Own<R> {
    /// What was done with it.
    Used(R),
    /// It has none.
    Missing,
    /// It is ending, or busy with its magazines.
    Ending,
}

/// Calls `act` with this thread's magazine of an allocator.
#[inline]
pub(crate) fn with_own<R>(allocator_id: u64, act: impl FnOnce(&Magazine) -> R) -> Own<R> {
    let found = OWN.try_with(|own| {
        let Ok(own) = own.try_borrow() else { return Own::Ending };
        match own.iter().find(|own| own.allocator_id == allocator_id) {
            Some(own) => Own::Used(act(&own.magazine)),
            None => Own::Missing,
        }
    });
    found.unwrap_or(Own::Ending)
}

/// Something has gone through one of this thread's magazines.
#[inline]
pub(crate) fn note_unsettled() {
    UNSETTLED.with(|unsettled| unsettled.set(true));
}

/// Calls `settle` with this thread's magazine of an allocator if there may be something to be settled. It says whether
/// nothing is left.
#[inline]
pub(crate) fn with_unsettled(allocator_id: u64, settle: impl FnOnce(&Magazine) -> bool) {
    if !UNSETTLED.with(Cell::get) {
        return;
    }
    let all_settled = OWN.try_with(|own| {
        let Ok(own) = own.try_borrow() else { return false };
        let found = own.iter().find(|own| own.allocator_id == allocator_id);
        found.is_some_and(|found| settle(&found.magazine)) && own.len() == 1
    });
    if all_settled.unwrap_or(false) {
        UNSETTLED.with(|unsettled| unsettled.set(false));
    }
}

/// Makes a magazine of an allocator this thread's own; `false` if the thread is ending or has one.
pub(crate) fn adopt(allocator: Weak<Shared>, allocator_id: u64, magazine: &Arc<Magazine>) -> bool {
    let fresh = OwnMagazine { allocator_id, allocator, magazine: Arc::clone(magazine) };
    let adopted = OWN.try_with(|own| {
        let Ok(mut own) = own.try_borrow_mut() else { return false };
        // Magazines of allocators that are gone hold nothing of value.
        own.retain(|own| own.allocator.strong_count() > 0);
        // Whoever was woken when the mutex was released may have freed, and got one, meanwhile.
        if own.iter().any(|own| own.allocator_id == allocator_id) {
            return false;
        }
        own.push(fresh);
        true
    });
    adopted.unwrap_or(false)
}
