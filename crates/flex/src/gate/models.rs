//! loom: the gate by itself, without an allocator. One collection at a time, every flight lands once, whoever waits
//! for it is woken, deadlines may pass between any two steps, and collector threads end with the gate.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::flight::{Missed, Outcome, Turn};
use super::*;
use crate::lock::Unlocked;
use crate::model_world::{Count, ModelInterpreter};
use crate::pressure::SkipReason;
use crate::sync::model::{check, let_time_pass};
use crate::sync::thread;

struct World {
    gate: Arc<Gate>,
    interpreter: Arc<ModelInterpreter>,
}

impl World {
    fn new(alone: bool) -> Arc<World> {
        let interpreter = Arc::new(ModelInterpreter::default());
        interpreter.alone.store(alone, Ordering::SeqCst);
        let gate = Gate::new(interpreter.clone(), PolicySettings::default());
        Arc::new(World { gate, interpreter })
    }

    /// One request at the gate: the collection it got, and whether it was its own.
    fn request(&self) -> (Outcome, bool) {
        self.request_with(self.gate.grant())
    }

    fn request_with(&self, grant: Arc<Grant>) -> (Outcome, bool) {
        let proof = Unlocked::on_collector_thread();
        let entry = self.interpreter.entry();
        let before_failing = self.interpreter.step();
        let since = self.gate.epoch();
        let petition = Petition {
            entry,
            requester: Requester::default(),
            deadline: now() + Duration::from_secs(10),
            respect_disable: false,
            counters: Arc::default(),
            history: Arc::default(),
            grant,
            interrupted: Arc::default(),
        };
        match self.gate.collect(&proof, &petition, Generation::Full) {
            Turn::Own(outcome) => (outcome, true),
            Turn::Shared(None) => (Err(SkipReason::Timeout.into()), false),
            Turn::Shared(Some(landing)) => {
                let counts = landing.epoch > since && landing.outcome.is_ok();
                let began = self.interpreter.began.load(Ordering::SeqCst);
                assert!(!counts || began > before_failing, "a collection counts that began too early");
                (landing.outcome, false)
            }
        }
    }

    fn spawn<R: Send + 'static>(
        self: &Arc<Self>,
        body: impl FnOnce(&World) -> R + Send + 'static,
    ) -> thread::JoinHandle<R> {
        let world = Arc::clone(self);
        thread::spawn(move || body(&world))
    }

    fn attached_request(&self) -> (Outcome, bool) {
        self.interpreter.python_thread(|| self.request())
    }

    /// Lets every deadline pass, as a step that may come at any time.
    fn expire(&self) {
        let_time_pass();
        let _state = self.gate.lock().unwrap();
        self.gate.changed.notify_all();
    }

    /// Ends the gate. Nothing is left: no flight, no job, no collector thread.
    fn end(&self) {
        self.gate.close();
        thread::join_spawned();
        let state = self.gate.lock().unwrap();
        assert!(state.flight.is_none(), "a flight is left in the air");
        assert!(state.jobs.is_empty(), "a job is left");
        let collectors = [
            state.starting_collectors,
            state.idle_collectors,
            state.attaching_collectors,
            state.returning_collectors,
        ];
        assert_eq!(collectors, [0; 4], "collectors that start, idle, attach, return");
        let epochs: Vec<_> = state.landings.iter().map(|landing| landing.epoch).collect();
        assert_eq!(epochs, (1..=state.epoch).collect::<Vec<_>>(), "every flight landed once, in order");
        assert_eq!(self.interpreter.refused.load(Ordering::SeqCst), 0, "one collection at a time");
    }
}

fn is_timeout(outcome: &Outcome) -> bool {
    *outcome == Err(SkipReason::Timeout.into())
}

/// Two threads, at most six preemptions.
#[test]
fn attached_requests_share_or_take_turns() {
    check(Some(6), || {
        let world = World::new(false);
        let other = world.spawn(World::attached_request);
        let first = world.attached_request();
        let second = other.join().unwrap();
        assert!(first.0.is_ok() && second.0.is_ok());
        let own = u64::from(first.1) + u64::from(second.1);
        assert_eq!(world.interpreter.runs.load(Ordering::SeqCst), own);
        assert!(own >= 1);
        world.end();
    });
}

/// Three threads, at most three preemptions: the sharer's deadline passes at any time; the flight itself succeeds.
#[test]
fn a_deadline_ends_the_wait_for_an_attached_flight() {
    check(Some(3), || {
        let world = World::new(false);
        let other = world.spawn(World::attached_request);
        let time = world.spawn(World::expire);
        let requests = [world.attached_request(), other.join().unwrap()];
        time.join().unwrap();
        assert!(requests.iter().any(|(outcome, own)| *own && outcome.is_ok()));
        assert!(requests.iter().all(|(outcome, _)| outcome.is_ok() || is_timeout(outcome)), "{requests:?}");
        world.end();
    });
}

/// Two threads, the collector being one, at most six preemptions.
#[test]
fn a_detached_request_is_answered() {
    for alone in [false, true] {
        check(Some(6), move || {
            let world = World::new(alone);
            let (outcome, own) = world.request();
            assert!(own && outcome.is_ok());
            assert_eq!(world.interpreter.runs.load(Ordering::SeqCst), 1);
            world.end();
        });
    }
}

/// Three threads, the collector and the clock among them, at most four preemptions: the deadline passes at any point of
/// queueing, attaching, collecting and answering, or of collecting "alone".
#[test]
fn a_deadline_may_pass_at_any_point_of_a_delegated_flight() {
    for alone in [false, true] {
        check(Some(4), move || {
            let world = World::new(alone);
            let time = world.spawn(World::expire);
            let (outcome, own) = world.request();
            assert!(own && (outcome.is_ok() || is_timeout(&outcome)), "{outcome:?}");
            time.join().unwrap();
            world.end();
        });
    }
}

/// Three threads, the collector being one, at most three preemptions: one request flies through the collector, the
/// other one shares or follows.
#[test]
fn detached_requests_share_one_collector() {
    check(Some(3), || {
        let world = World::new(false);
        let other = world.spawn(World::request);
        let requests = [world.request(), other.join().unwrap()];
        assert!(requests.iter().all(|(outcome, _)| outcome.is_ok()), "{requests:?}");
        world.end();
    });
}

/// Four threads, the collector and the clock among them, at most two preemptions.
#[test]
fn deadlines_may_pass_while_an_attached_request_shares_a_delegated_flight() {
    check(Some(2), || {
        let world = World::new(false);
        let other = world.spawn(World::attached_request);
        let time = world.spawn(World::expire);
        let requests = [world.request(), other.join().unwrap()];
        assert!(requests.iter().all(|(outcome, _)| outcome.is_ok() || is_timeout(outcome)), "{requests:?}");
        time.join().unwrap();
        world.end();
    });
}

/// Three threads, the collector being one, at most four preemptions: the gate closes at any point of a request.
#[test]
fn closing_ends_a_delegated_flight() {
    check(Some(4), || {
        let world = World::new(false);
        let close = world.spawn(|world| world.gate.close());
        let (outcome, own) = world.request();
        assert!(own && (outcome.is_ok() || outcome == Err(SkipReason::Finalizing.into())), "{outcome:?}");
        close.join().unwrap();
        world.end();
    });
}

/// Makes the next collection stand still: it adds to the first count, then waits for the second.
fn stuck_finalizer(world: &World) -> (Arc<Count>, Arc<Count>) {
    let (entered, answered) = (Arc::new(Count::default()), Arc::new(Count::default()));
    let (tell, wait) = (Arc::clone(&entered), Arc::clone(&answered));
    let stick = move || {
        tell.add_one();
        wait.wait_for(1);
    };
    world.interpreter.finalizers.lock().unwrap().push(Box::new(stick));
    (entered, answered)
}

/// Three threads, at most four preemptions: the flight is stuck in a finalizer until the sharer has its answer.
#[test]
fn closing_ends_the_wait_for_a_flight_that_is_stuck() {
    check(Some(4), || {
        let world = World::new(false);
        let (entered, answered) = stuck_finalizer(&world);
        let flight = world.spawn(World::attached_request);
        entered.wait_for(1);
        let close = world.spawn(|world| world.gate.close());
        let (outcome, _) = world.attached_request();
        assert!(outcome.is_err(), "{outcome:?}");
        answered.add_one();
        assert!(flight.join().unwrap().0.is_ok());
        close.join().unwrap();
        world.end();
    });
}

/// Three threads, at most four preemptions: the flight is stuck until the sharer has been granted memory and has left.
#[test]
fn a_grant_ends_the_wait_for_a_flight_that_is_stuck() {
    check(Some(4), || {
        let world = World::new(false);
        let (entered, left) = stuck_finalizer(&world);
        let flight = world.spawn(World::attached_request);
        entered.wait_for(1);
        let grant = world.gate.grant();
        let free = world.spawn({
            let grant = Arc::clone(&grant);
            move |_| grant.wake()
        });
        let request = || world.request_with(grant);
        assert!(!world.interpreter.python_thread(request).1, "it shares the flight");
        left.add_one();
        assert!(flight.join().unwrap().0.is_ok());
        free.join().unwrap();
        world.end();
    });
}

/// Three threads, the collector being one, at most three preemptions: a detached request is granted memory at any point
/// of its own flight, which goes on without it.
#[test]
fn a_grant_ends_the_wait_for_ones_own_delegated_flight() {
    for alone in [false, true] {
        check(Some(3), move || {
            let world = World::new(alone);
            let grant = world.gate.grant();
            let free = world.spawn({
                let grant = Arc::clone(&grant);
                move |_| grant.wake()
            });
            let (outcome, own) = world.request_with(grant);
            assert!(own && (outcome.is_ok() || outcome == Err(Missed::Granted)), "{outcome:?}");
            free.join().unwrap();
            world.end();
        });
    }
}

/// Three threads, the clock being one, at most four preemptions: the program collects by itself; ours is refused,
/// waits, and tries again, or gives up at its deadline.
#[test]
fn a_foreign_collection_is_waited_for_or_given_up() {
    check(Some(4), || {
        let world = World::new(false);
        let foreign =
            world.spawn(|world| world.interpreter.python_thread(|| world.interpreter.user_collect()));
        let time = world.spawn(World::expire);
        let (outcome, own) = world.attached_request();
        assert!(own && (outcome.is_ok() || is_timeout(&outcome)), "{outcome:?}");
        foreign.join().unwrap();
        time.join().unwrap();
        world.interpreter.refused.store(0, Ordering::SeqCst);
        world.end();
    });
}
