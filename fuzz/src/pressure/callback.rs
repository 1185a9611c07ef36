//! The callback, which does what the plan says.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use flex::AllocatorGuard;
use flex::pressure::{MemoryPressureCallback, PressureRequest, SharedCallback, Verdict};
use flex::rank::assert_unlocked;

use super::plan::{Act, Call, End};
use super::world::{World, assert_same_figures};

/// A panic that is part of the plan. It is raised without the panic hook, which the fuzzer ends the process in.
pub(super) struct PlannedPanic;

/// A callback with a number, so that it can be told which one is called.
pub(super) struct Callback {
    /// Weak: the allocator of the world holds the callback.
    world: Weak<World>,
    number: u64,
}

impl Callback {
    pub(super) fn shared(world: &Arc<World>, number: u64) -> SharedCallback {
        Arc::new(Callback { world: Arc::downgrade(world), number })
    }
}

impl Drop for Callback {
    /// Foreign code: it must not run under the mutex.
    fn drop(&mut self) {
        assert_unlocked("drop a callback");
    }
}

impl MemoryPressureCallback for Callback {
    fn on_pressure(&self, guard: &mut AllocatorGuard<'_>, request: &mut PressureRequest) -> Verdict {
        let world = self.world.upgrade().unwrap();
        let Some(Call { acts, end }) = self.begin(&world, request) else {
            let insists = world.state().event.as_ref().unwrap().insists;
            return if insists { Verdict::Retry } else { Verdict::GiveUp };
        };
        for act in acts {
            self.act(&world, guard, request, act);
        }
        match end {
            End::Retry => Verdict::Retry,
            End::GiveUp => Verdict::GiveUp,
            End::Panic { unlocked: false } => resume_unwind(Box::new(PlannedPanic)),
            End::Panic { unlocked: true } => {
                guard.unlocked(|_| resume_unwind(Box::new(PlannedPanic))).unwrap()
            }
        }
    }
}

impl Callback {
    /// Checks that this call is due, and takes what it is to do.
    fn begin(&self, world: &World, request: &PressureRequest) -> Option<Call> {
        let mut state = world.state();
        let event = state.count_call();
        assert_eq!(event.callback, Some(self.number), "the callback that the event began with");
        assert_eq!(request.attempt(), event.attempts);
        event.calls.pop_front()
    }

    fn act(
        &self,
        world: &Arc<World>,
        guard: &mut AllocatorGuard<'_>,
        request: &mut PressureRequest,
        act: Act,
    ) {
        match act {
            Act::Register { with_waker } => {
                self.may_hold(world);
                let waker = with_waker.then(|| world.waker());
                guard.register(request, waker).unwrap();
            }
            Act::Search => {
                if guard.search(request).unwrap() {
                    self.may_hold(world);
                    assert!(guard.search(request).unwrap(), "once true, it stays true");
                }
            }
            Act::Look => {
                let seen = guard.statistics().unwrap();
                let state = world.state();
                if !state.event.as_ref().unwrap().may_hold {
                    assert_same_figures(&seen, &state.figures());
                }
            }
            Act::CaughtPanic => {
                let body = AssertUnwindSafe(|| guard.unlocked(|_| resume_unwind(Box::new(PlannedPanic))));
                let caught: Result<Result<(), _>, _> = catch_unwind(body);
                assert!(caught.unwrap_err().is::<PlannedPanic>());
            }
            Act::Free { pick, while_locked: true } => drop(world.forget(pick)),
            act => guard.unlocked(|_| world.act(act)).unwrap(),
        }
    }

    /// From now on the request may hold memory.
    fn may_hold(&self, world: &World) {
        world.state().event.as_mut().unwrap().may_hold = true;
    }
}

impl World {
    /// A waker that counts.
    fn waker(&self) -> Waker {
        self.wakers.fetch_add(1, Ordering::SeqCst);
        Waker::from(Arc::new(CountedWake(Arc::clone(&self.wakes))))
    }
}

struct CountedWake(Arc<AtomicU64>);

impl Wake for CountedWake {
    fn wake(self: Arc<Self>) {
        assert_unlocked("wake");
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
