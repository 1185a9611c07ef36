//! The allocator mutex, its guard, and the proof that it is free.
//!
//! The mutex is a leaf: while a thread holds it, it waits for nothing and runs no foreign code. The guard is
//! handed to the memory-pressure callback by `&mut`; the only way to release it is [`AllocatorGuard::unlocked`],
//! which locks again on return and on unwind. There is no public way to lock an allocator, hence none to lock two.

use std::marker::PhantomData;
use std::sync::{Arc, PoisonError, TryLockError};
use std::task::Waker;
use std::time::Duration;

use crate::fork::{Forked, is_forked};
use crate::gate::HookEvent;
use crate::history::History;
use crate::pressure::{PressureCause, PressureCounters, PressureRequest};
use crate::rank;
use crate::regions::{PARKED_BATCHES, Unserved};
use crate::shared::{Shared, State};
use crate::statistics::Statistics;
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;

/// The locked allocator, as a memory-pressure callback gets it.
///
/// It may be looked at; whatever takes time, waits, or runs foreign code belongs into [`unlocked`](Self::unlocked).
pub struct AllocatorGuard<'a> {
    shared: &'a Shared,
    /// `None` only while unlocked, and for good in a forked child.
    state: Option<MutexGuard<'a, State>>,
    /// Invariant in `'a`, so that a callback cannot swap guards of different allocators.
    invariant: PhantomData<fn(&'a ()) -> &'a ()>,
}

/// Proof that the mutex of the allocator under pressure is free: what attaches to an interpreter takes one.
///
/// It lives only as long as the body of [`AllocatorGuard::unlocked`] and cannot be sent to another thread. It
/// says nothing about other allocators; for those there is the debug check [`rank::assert_unlocked`].
pub struct Unlocked<'a> {
    scope: PhantomData<&'a mut ()>,
    not_send: PhantomData<*const ()>,
}

impl Unlocked<'_> {
    /// For a thread of the gate's own, which has never locked anything.
    pub(crate) fn on_collector_thread() -> Self {
        Unlocked { scope: PhantomData, not_send: PhantomData }
    }
}

impl<'a> AllocatorGuard<'a> {
    /// Releases the mutex, runs `body`, and locks again, also when `body` unwinds.
    ///
    /// # Errors
    /// [`Forked`] if this process is a forked child, before or after `body`: the mutex stays untouched then and
    /// the guard is empty.
    pub fn unlocked<R>(&mut self, body: impl FnOnce(&Unlocked<'_>) -> R) -> Result<R, Forked> {
        struct Relock<'g, 'a>(&'g mut AllocatorGuard<'a>);
        impl Drop for Relock<'_, '_> {
            fn drop(&mut self) {
                self.0.state = self.0.shared.lock_state();
            }
        }
        if is_forked() || self.state.is_none() {
            self.abandon();
            return Err(Forked);
        }
        self.release();
        let relock = Relock(self);
        let result = body(&Unlocked { scope: PhantomData, not_send: PhantomData });
        drop(relock);
        if self.state.is_some() { Ok(result) } else { Err(Forked) }
    }

    /// Tries to serve the request now, draining pending frees first. Once true, it stays true.
    ///
    /// # Errors
    /// [`Forked`] in a forked child.
    pub fn search(&mut self, request: &mut PressureRequest) -> Result<bool, Forked> {
        if request.granted.is_none() {
            match self.place(&mut request.placement, request.ticket, &mut request.refusal) {
                Ok(chunks) => request.granted = Some(chunks),
                Err(Unserved::Forked) => return Err(Forked),
                Err(Unserved::Exhausted | Unserved::Impossible) => {}
            }
        }
        Ok(request.granted.is_some())
    }

    /// From now on whoever frees memory serves the request before younger registered ones, until it ends.
    ///
    /// `waker`, if any, is woken once: when the request has been granted memory, which the next
    /// [`search`](Self::search) returns, when another waker replaces it, or when the request ends. It is called with
    /// the mutex of this allocator free, on the thread that freed the memory: it must neither wait nor panic.
    ///
    /// # Errors
    /// [`Forked`] in a forked child.
    pub fn register(&mut self, request: &mut PressureRequest, waker: Option<Waker>) -> Result<(), Forked> {
        self.state()?.waiters.register(request, waker);
        Ok(())
    }

    /// A consistent snapshot of the statistics, after draining.
    ///
    /// # Errors
    /// [`Forked`] in a forked child.
    pub fn statistics(&mut self) -> Result<Statistics, Forked> {
        Ok(self.drained()?.arena.statistics())
    }

    /// The pressure counters of this allocator.
    pub fn counters(&self) -> &'a Arc<PressureCounters> {
        &self.shared.counters
    }

    /// The history of this allocator.
    pub(crate) fn history(&self) -> &'a Arc<History> {
        &self.shared.history
    }

    /// What a user hook is told about the request now.
    pub(crate) fn hook_event(
        &mut self,
        request: &PressureRequest,
        attempt: u32,
    ) -> Result<HookEvent, Forked> {
        let device = self.shared.ordinal;
        let figures = self.state()?.arena.figures(&request.placement);
        let requested_bytes = request.placement.requested_bytes;
        Ok(HookEvent {
            device,
            requested_bytes,
            free_bytes: figures.free_bytes,
            largest_free_bytes: figures.largest_free_bytes,
            attempt,
            cause: PressureCause::of(requested_bytes, &figures),
        })
    }

    /// Whether frees of other threads have begun and not finished.
    pub fn frees_in_flight(&self) -> bool {
        self.shared.frees_in_flight.load(Ordering::SeqCst) != 0
    }

    pub(crate) fn state(&mut self) -> Result<&mut State, Forked> {
        if is_forked() {
            self.abandon();
        }
        self.state.as_deref_mut().ok_or(Forked)
    }

    /// The state after everything pending or parked was freed, at most one batch of pending frees in each hold of the
    /// mutex.
    pub(crate) fn drained(&mut self) -> Result<&mut State, Forked> {
        let shared = self.shared;
        let mut parked_batches = PARKED_BATCHES;
        loop {
            let state = self.state()?;
            shared.drain(state);
            let more = parked_batches > 0 && shared.take_back_parked(state);
            parked_batches -= u32::from(more);
            if !more && shared.pending.is_empty() {
                return self.state();
            }
            self.unlocked(|_| ())?;
        }
    }

    pub(crate) fn shared(&self) -> &'a Shared {
        self.shared
    }

    /// Waits, with the mutex released, until another thread has finished acquiring or releasing a region, or
    /// `timeout` has passed. What is freed meanwhile may be pending: the caller searches again.
    pub(crate) fn wait_for_region(&mut self, timeout: Duration) -> Result<(), Forked> {
        if self.state()?.waiters.has_woken() {
            // They must hear of their memory before this thread sleeps.
            return self.unlocked(|_| ());
        }
        let Some(state) = self.state.take() else { return Err(Forked) };
        rank::released();
        let (state, _) =
            self.shared.region_changed.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner);
        rank::acquired();
        self.state = Some(state);
        self.state().map(|_| ())
    }

    #[inline]
    fn release(&mut self) {
        if let Some(state) = self.state.take() {
            unlock(state);
            self.shared.after_unlock();
        }
    }

    /// In a forked child the inherited mutex must not be touched, not even to unlock it.
    #[cold]
    fn abandon(&mut self) {
        if let Some(state) = self.state.take() {
            std::mem::forget(state);
            rank::released();
        }
    }
}

/// Releases the mutex, then wakes those who were granted memory.
#[inline]
fn unlock(state: MutexGuard<'_, State>) {
    if state.waiters.has_woken() {
        return unlock_and_wake(state);
    }
    drop(state);
    rank::released();
}

#[cold]
fn unlock_and_wake(mut state: MutexGuard<'_, State>) {
    let woken = state.waiters.take_woken();
    drop(state);
    rank::released();
    woken.into_iter().for_each(Waker::wake);
}

#[cfg(all(test, loom))]
mod models;

impl Drop for AllocatorGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if is_forked() { self.abandon() } else { self.release() }
    }
}

impl Shared {
    /// Locks the allocator.
    pub(crate) fn lock(&self) -> Result<AllocatorGuard<'_>, Forked> {
        let state = self.lock_state().ok_or(Forked)?;
        Ok(AllocatorGuard { shared: self, state: Some(state), invariant: PhantomData })
    }

    /// Locks the allocator if nobody holds it.
    pub(crate) fn try_lock(&self) -> Option<AllocatorGuard<'_>> {
        if is_forked() {
            return None;
        }
        let state = match self.mutex.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        rank::acquired();
        Some(AllocatorGuard { shared: self, state: Some(state), invariant: PhantomData })
    }

    fn lock_state(&self) -> Option<MutexGuard<'_, State>> {
        if is_forked() {
            return None;
        }
        rank::assert_unlocked("lock an allocator");
        // A callback may panic while it only looks; the state is consistent between our own statements.
        let state = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        rank::acquired();
        Some(state)
    }

    /// After every unlock: drain what was pushed while the mutex was held, or it would be stranded.
    #[inline]
    pub(crate) fn after_unlock(&self) {
        // A push comes here too: either it sees the mutex free, or its holder sees what was pushed.
        if !self.pending.is_empty_after_unlock() {
            self.drain_after_unlock();
        }
    }

    #[cold]
    fn drain_after_unlock(&self) {
        while !is_forked() {
            let Ok(mut state) = self.mutex.try_lock().or_else(|error| match error {
                TryLockError::Poisoned(poisoned) => Ok(poisoned.into_inner()),
                TryLockError::WouldBlock => Err(()),
            }) else {
                return; // The holder looks again after its own unlock.
            };
            rank::acquired();
            self.drain(&mut state);
            unlock(state);
            if self.pending.is_empty_after_unlock() {
                return;
            }
        }
    }
}
