//! An allocator, and what must be true of it.
//!
//! Lock: the state has a mutex, never held while the allocator is called. There is one thread.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flex::pressure::{MAX_ATTEMPTS, PressureStatistics, SharedCallback, SkipReason};
use flex::{
    AllocatorOptions, Chunk, CompositeAddress, DomainId, FlexAllocator, FlexError, MemoryType, RegionId,
    RegionLayout, RegionOrder, Statistics, Topology,
};
use flex_sim::{RegionIdScheme, SimulatedDevice, SimulatedOptions};

use super::callback::{Callback, PlannedPanic};
use super::plan::{Act, Call, PROGRAM_BYTES, REGION_BYTES, Step, Want};
use crate::common::model::{Model, Outcome};
use crate::common::op::Ask;

/// Everything of one run.
pub(super) struct World {
    pub(super) allocator: FlexAllocator,
    device: Arc<SimulatedDevice>,
    state: Mutex<State>,
    /// Wakers handed to the allocator, and calls of them.
    pub(super) wakers: Arc<AtomicU64>,
    pub(super) wakes: Arc<AtomicU64>,
}

/// What the run knows.
pub(super) struct State {
    model: Model,
    live: Vec<CompositeAddress>,
    /// The registered callback.
    pub(super) callback: Option<SharedCallback>,
    /// The number of the newest callback, and of the registered one.
    pub(super) newest_callback: u64,
    pub(super) registered_callback: Option<u64>,
    pub(super) event: Option<Event>,
    expected: PressureStatistics,
    out_of_memory_errors: u64,
    retries: u64,
}

/// The request under pressure whose callback is called.
pub(super) struct Event {
    ask: Ask,
    /// Which callback serves it to its end.
    pub(super) callback: Option<u64>,
    pub(super) calls: VecDeque<Call>,
    /// When the calls have run out: call again, or give up.
    pub(super) insists: bool,
    pub(super) attempts: u32,
    /// It may hold memory that the model does not know of.
    pub(super) may_hold: bool,
}

impl World {
    /// A device with all its regions acquired, and an allocator without a callback.
    pub(super) fn new(poison: bool) -> Arc<World> {
        let region = |domain, memory_type, size_bytes| RegionLayout {
            domain: DomainId(domain),
            memory_type,
            size_bytes,
        };
        let [first_bytes, second_bytes] = REGION_BYTES;
        let topology = Topology::custom(vec![
            region(0, MemoryType::Tensor, first_bytes),
            region(1, MemoryType::Tensor, second_bytes),
            region(0, MemoryType::Program, PROGRAM_BYTES),
        ]);
        let topology = topology.unwrap();
        let device = SimulatedDevice::new(SimulatedOptions {
            capacity_bytes: topology.total_bytes(),
            region_ids: RegionIdScheme::Index,
            can_release_regions: false,
            ..SimulatedOptions::default()
        });
        let device = device.unwrap();
        let options = AllocatorOptions { poison, ..AllocatorOptions::default() };
        let world = World {
            allocator: FlexAllocator::new(device.clone(), &topology, options).unwrap(),
            device,
            state: Mutex::new(State::new(Model::new(&topology, RegionOrder::MostFree))),
            wakers: Arc::default(),
            wakes: Arc::default(),
        };
        world.acquire_regions(&topology);
        Arc::new(world)
    }

    fn acquire_regions(&self, topology: &Topology) {
        for (slot, layout) in topology.regions().iter().enumerate() {
            let directive = flex::AllocationDirective::builder()
                .domains([layout.domain])
                .memory_type(layout.memory_type)
                .build();
            drop(self.allocator.allocate(1, &directive.unwrap()).unwrap());
            self.state().model.acquire(slot, RegionId(slot as u64));
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A planned panic never unwinds through a holder; another one ends the run.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One step outside any callback.
    pub(super) fn step(self: &Arc<Self>, step: Step) {
        match step {
            Step::Allocate { want, calls } => self.allocate_with(want, calls.into(), false),
            Step::AllocateInVain { want } => self.allocate_with(want, VecDeque::new(), true),
            Step::Act(act) => self.act(act),
        }
    }

    /// What needs no guard. No allocator mutex is held.
    pub(super) fn act(self: &Arc<Self>, act: Act) {
        match act {
            Act::Register { .. } | Act::Search | Act::Look | Act::CaughtPanic => {}
            Act::Free { pick, .. } => drop(self.forget(pick)),
            Act::Allocate { want } if self.state().event.is_some() => self.allocate_inside(want),
            Act::Allocate { want } => self.allocate_with(want, VecDeque::new(), false),
            Act::Limit { units } => self.limit(Some(u64::from(units % 48) * 128)),
            Act::Unlimit => self.limit(None),
            Act::Replace => self.exchange(true),
            Act::Remove => self.exchange(false),
            Act::EmptyCache => drop(self.allocator.empty_cache().unwrap()),
            Act::ResetPressure => {
                self.allocator.reset_pressure_statistics();
                self.state().expected = PressureStatistics::default();
            }
            Act::ResetAccumulated => {
                self.allocator.reset_accumulated_statistics().unwrap();
                let mut state = self.state();
                (state.out_of_memory_errors, state.retries) = (0, 0);
            }
            Act::Validate => self.allocator.validate().unwrap(),
        }
    }

    /// Takes a live allocation out of the model; the caller drops it.
    pub(super) fn forget(&self, pick: u8) -> Option<CompositeAddress> {
        let mut state = self.state();
        if state.live.is_empty() {
            return None;
        }
        let index = usize::from(pick) % state.live.len();
        let allocation = state.live.swap_remove(index);
        allocation.chunks().for_each(|chunk| state.model.free(&chunk).unwrap());
        Some(allocation)
    }

    fn limit(&self, limit_bytes: Option<u64>) {
        self.state().model.set_limit_bytes(limit_bytes);
        self.allocator.set_limit_bytes(limit_bytes).unwrap();
    }

    /// Exchanges the callback; the one before must be the one that was registered.
    fn exchange(self: &Arc<Self>, with_new: bool) {
        let (new, before) = {
            let mut state = self.state();
            state.newest_callback += 1;
            let number = state.newest_callback;
            let new = with_new.then(|| Callback::shared(self, number));
            state.registered_callback = with_new.then_some(number);
            (new.clone(), std::mem::replace(&mut state.callback, new))
        };
        let previous = self.allocator.set_memory_pressure_callback(new).unwrap();
        assert_eq!(previous.is_some(), before.is_some());
        if let (Some(previous), Some(before)) = (previous, before) {
            assert!(Arc::ptr_eq(&previous, &before), "the one that was registered comes back");
        }
    }

    /// Allocates outside any callback: exactly what the model says, and what the callback has changed.
    fn allocate_with(&self, want: Want, calls: VecDeque<Call>, insists: bool) {
        let ask = want.ask();
        let outcome = {
            let mut state = self.state();
            let callback = state.registered_callback;
            let request = ask.clone();
            state.event =
                Some(Event { ask: request, callback, calls, insists, attempts: 0, may_hold: false });
            state.model.outcome(&ask, &[])
        };
        let directive = ask.directive().unwrap();
        let allocate = || self.allocator.allocate(ask.requested_bytes, &directive);
        let result = catch_unwind(AssertUnwindSafe(allocate));
        let mut state = self.state();
        let event = state.event.take().unwrap();
        let is_event = outcome == Outcome::Exhausted;
        assert_eq!(event.attempts > 0, is_event && event.callback.is_some(), "{ask:?}: {outcome:?}");
        match result {
            Ok(Ok(allocation)) => {
                assert!(!is_event || event.attempts > 0, "{ask:?}");
                state.keep(&ask, allocation);
                state.expected.rescued += u64::from(is_event);
                state.expected.coalesced += u64::from(is_event);
            }
            Ok(Err(error)) => {
                state.failed(
                    &ask,
                    &error,
                    is_event,
                    event.callback.is_none().then_some(SkipReason::Uninitialized),
                );
                let insisted = event.insists && event.callback.is_some() && is_event;
                assert!(!insisted || event.attempts == MAX_ATTEMPTS);
            }
            Err(payload) if payload.is::<PlannedPanic>() => state.expected.failed += 1,
            Err(payload) => resume_unwind(payload),
        }
        state.expected.events += u64::from(is_event);
        state.retries += u64::from(is_event && event.attempts == 0);
    }

    /// Allocates inside a callback, with the mutex free: no callback is called for it.
    fn allocate_inside(&self, want: Want) {
        let ask = want.ask();
        let outcome = self.state().model.outcome(&ask, &[]);
        let result = self.allocator.allocate(ask.requested_bytes, &ask.directive().unwrap());
        let mut state = self.state();
        match result {
            Ok(allocation) => {
                assert_eq!(outcome, Outcome::Placed, "{ask:?}");
                state.keep(&ask, allocation);
            }
            Err(error) => {
                let is_event = outcome != Outcome::Impossible;
                // What the request under pressure holds is free for the model.
                let unknown = state.event.as_ref().is_some_and(|event| event.may_hold);
                assert!(outcome != Outcome::Placed || unknown, "{ask:?}: {error}");
                let skipped = match state.registered_callback {
                    Some(_) => SkipReason::Reentrant,
                    None => SkipReason::Uninitialized,
                };
                state.failed_in(&error, is_event, Some(skipped));
                state.expected.events += u64::from(is_event);
                state.retries += u64::from(is_event);
            }
        }
    }

    /// Everything that must be true between two steps.
    pub(super) fn check(&self) {
        self.allocator.validate().unwrap();
        assert_eq!(self.allocator.registered_requests().unwrap(), 0);
        let (wakers, wakes) = (self.wakers.load(Ordering::SeqCst), self.wakes.load(Ordering::SeqCst));
        assert_eq!(wakes, wakers, "each waker is woken once");
        let mut pressure = self.allocator.pressure_statistics();
        pressure.request_max_ns = 0; // A time.
        let statistics = self.allocator.statistics().unwrap();
        let state = self.state();
        assert_eq!(pressure, state.expected);
        assert_eq!(pressure.events, pressure.rescued + pressure.failed);
        assert_eq!(currents(&statistics), currents(&state.model.statistics()));
        assert_eq!(
            (statistics.num_ooms, statistics.num_alloc_retries),
            (state.out_of_memory_errors, state.retries)
        );
        assert!(statistics.allocated_bytes.peak >= statistics.allocated_bytes.current);
    }

    /// Frees everything: nothing may be left.
    pub(super) fn finish(self: Arc<Self>) {
        self.exchange(false);
        while let Some(allocation) = self.forget(0) {
            drop(allocation);
        }
        self.limit(None);
        self.check();
        let statistics = self.allocator.statistics().unwrap();
        assert_eq!((statistics.allocated_bytes.current, statistics.program.allocated_bytes.current), (0, 0));
        assert_eq!(statistics.free_bytes, REGION_BYTES.iter().sum::<u64>());
        let World { allocator, device, .. } = Arc::into_inner(self).expect("no callback is left");
        drop(allocator);
        assert_eq!(Arc::strong_count(&device), 1, "the allocator is gone");
    }
}

impl State {
    fn new(model: Model) -> State {
        State {
            model,
            live: Vec::new(),
            callback: None,
            newest_callback: 0,
            registered_callback: None,
            event: None,
            expected: PressureStatistics::default(),
            out_of_memory_errors: 0,
            retries: 0,
        }
    }

    /// Counts a call of the callback for the request under pressure. It holds nothing, so there is no room for it.
    pub(super) fn count_call(&mut self) -> &mut Event {
        let event = self.event.as_ref().expect("a request outside any callback");
        self.assert_no_room(&event.ask);
        let event = self.event.as_mut().expect("the same");
        event.attempts += 1;
        // The allocator has counted a retry before the first call.
        self.retries += u64::from(event.attempts == 1);
        event
    }

    /// What the figures of the moment must be, unless the request under pressure holds memory.
    pub(super) fn figures(&self) -> Statistics {
        self.model.statistics()
    }

    fn keep(&mut self, ask: &Ask, allocation: CompositeAddress) {
        let chunk_count = ask.chunk_count();
        let shares = |(position, chunk): (u64, Chunk)| {
            let more = u64::from(position < ask.requested_bytes % chunk_count);
            (chunk, ask.requested_bytes / chunk_count + more)
        };
        let chunks: Vec<_> = (0..).zip(allocation.chunks()).map(shares).collect();
        self.model.place(ask, &chunks).unwrap();
        self.live.push(allocation);
    }

    /// A request has failed and holds nothing: there must be no room for it.
    fn failed(&mut self, ask: &Ask, error: &FlexError, is_event: bool, skipped: Option<SkipReason>) {
        self.failed_in(error, is_event, skipped);
        self.assert_no_room(ask);
    }

    fn failed_in(&mut self, error: &FlexError, is_event: bool, skipped: Option<SkipReason>) {
        let FlexError::OutOfMemory(report) = error else { panic!("{error}") };
        assert_eq!(report.possible, is_event);
        self.out_of_memory_errors += 1;
        if !is_event {
            return;
        }
        assert_eq!(report.reclaim.skipped, skipped);
        if let Some(reason) = skipped {
            let index = SkipReason::ALL.iter().position(|known| *known == reason).unwrap();
            self.expected.skipped[index] += 1;
        }
        self.expected.failed += 1;
    }

    fn assert_no_room(&self, ask: &Ask) {
        let outcome = self.model.outcome(ask, &[]);
        assert!(matches!(outcome, Outcome::Exhausted | Outcome::Impossible), "{ask:?}: {outcome:?}");
    }
}

/// The figures of the moment. Sums and peaks also show memory that was granted and given back.
fn currents(statistics: &Statistics) -> [u64; 10] {
    let Statistics { allocated_bytes, requested_bytes, allocation, inactive_split, program, .. } = statistics;
    [
        allocated_bytes.current,
        requested_bytes.current,
        allocation.current,
        inactive_split.current,
        statistics.inactive_split_bytes.current,
        statistics.free_bytes,
        statistics.largest_free_bytes,
        program.allocated_bytes.current,
        program.requested_bytes.current,
        program.free_bytes,
    ]
}

/// Checks that the figures of the moment are the same.
pub(super) fn assert_same_figures(seen: &Statistics, expected: &Statistics) {
    assert_eq!(currents(seen), currents(expected));
}
