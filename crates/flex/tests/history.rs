//! What a history records of an allocator's work, in which order, and what it does not record.

#[path = "common/support.rs"]
mod support;

#[path = "common/gate_world.rs"]
mod gate_world;
#[path = "common/interpreter.rs"]
mod interpreter;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use flex::gate::Generation;
use flex::history::{
    Event, EventBlock, EventKind, EventKinds, HistoryOptions, RecordedEvents, SiteScope, Sites,
};
use flex::pressure::SkipReason;
use flex::{
    AllocationDirective, AllocatorOptions, BlockSnapshot, FlexAllocator, FlexError, Topology, VirtualAddress,
};
use flex_sim::SimulatedDevice;
use gate_world::{BLOCK, BLOCKS, World};
use support::*;

thread_local! {
    static HERE: Cell<u32> = const { Cell::new(0) };
}

/// Says where a thread is as it was told, and counts how often it was asked.
#[derive(Default)]
struct Told {
    asked: AtomicU32,
}

impl Sites for Told {
    fn current(&self) -> u32 {
        flex::rank::assert_unlocked("look where a thread is");
        self.asked.fetch_add(1, Ordering::SeqCst);
        HERE.get()
    }
}

fn at<R>(site: u32, body: impl FnOnce() -> R) -> R {
    let before = HERE.replace(site);
    let result = body();
    HERE.set(before);
    result
}

fn options() -> HistoryOptions {
    HistoryOptions { max_entries: 1000, sites: Some(Arc::new(Told::default())), ..HistoryOptions::default() }
}

fn recording(bytes: u64) -> FlexAllocator {
    let allocator = allocator(bytes);
    allocator.record_history(Some(options())).unwrap();
    allocator
}

fn events(allocator: &FlexAllocator) -> Vec<Event> {
    let RecordedEvents { events, lost, .. } = allocator.events(0).unwrap();
    assert_eq!(lost, 0);
    assert!(events.is_sorted_by_key(|event| event.sequence));
    events
}

/// What happened, but for regions, by a letter each: `a` allocated, `f` freed, `r` and `c` a free in two.
fn letters(allocator: &FlexAllocator) -> String {
    events(allocator).iter().filter_map(|event| Some(block_of(event)?.0)).collect()
}

fn block_of(event: &Event) -> Option<(char, EventBlock)> {
    Some(match event.kind {
        EventKind::Allocated(block) => ('a', block),
        EventKind::Freed(block) => ('f', block),
        EventKind::FreeRequested(block) => ('r', block),
        EventKind::FreeCompleted(block) => ('c', block),
        _ => return None,
    })
}

fn occupied(allocator: &FlexAllocator) -> Vec<BlockSnapshot> {
    let regions = allocator.snapshot().unwrap();
    regions.into_iter().flat_map(|region| region.blocks).filter(|block| block.occupied).collect()
}

#[test]
fn a_pair_is_two_events_that_say_what_where_and_who() {
    let allocator = recording(64 * KIB);
    let block = at(7, || allocate(&allocator, 1000)).unwrap();
    let chunk = block.chunks().next().unwrap();
    at(8, || drop(block));
    let [region, allocated, freed] = events(&allocator)[..] else { panic!("{:?}", events(&allocator)) };
    let EventKind::RegionAcquired(acquired) = region.kind else { panic!("{region:?}") };
    assert_eq!((acquired.region_id, acquired.size_bytes), (chunk.address.region_id, 64 * KIB));
    let first = VirtualAddress { region_id: acquired.region_id, offset_bytes: 0 };
    assert_eq!(allocator.device().host_address(first), Some(acquired.host_base as usize));
    let block = EventBlock { address: chunk.address, size_bytes: 1024, requested_bytes: 1000 };
    assert_eq!((allocated.kind, allocated.site), (EventKind::Allocated(block), 7));
    assert_eq!((freed.kind, freed.site), (EventKind::Freed(block), 8));
    assert_eq!(region.site, 7, "the region is for the allocation");
    assert_eq!([region.sequence, allocated.sequence, freed.sequence], [0, 1, 2]);
    assert!(region.time_ns <= allocated.time_ns && allocated.time_ns <= freed.time_ns);
    assert!(allocated.thread_id == freed.thread_id && freed.thread_id != 0);
}

#[test]
fn a_double_free_and_a_failed_one_leave_no_event() {
    let allocator = recording(64 * KIB);
    let (handle, _) = allocator.allocate_block(128, &AllocationDirective::default()).unwrap();
    allocator.free_block(handle).unwrap();
    for _ in 0..3 {
        assert!(matches!(allocator.free_block(handle), Err(FlexError::UnknownAllocation { .. })));
    }
    assert_eq!(letters(&allocator), "af");
    let (next, _) = allocator.allocate_block(128, &AllocationDirective::default()).unwrap();
    assert!(allocator.free_block(handle).is_err(), "the handle of the block before");
    allocator.free_block(next).unwrap();
    assert_eq!(letters(&allocator), "afaf");
}

#[test]
fn parking_is_no_event_and_parked_blocks_keep_their_sites_apart() {
    let allocator = recording(64 * KIB);
    for site in 1..=50 {
        at(site, || drop(allocate(&allocator, 128).unwrap()));
    }
    assert_eq!(letters(&allocator), "af".repeat(50));
    let block = at(99, || allocate(&allocator, 128)).unwrap();
    let sites = |allocator: &FlexAllocator| -> Vec<_> {
        occupied(allocator).iter().map(|block| (block.site, block.freeing)).collect()
    };
    assert_eq!(sites(&allocator), [(99, false)]);
    drop(block);
    assert_eq!(sites(&allocator), []);
}

#[test]
fn a_free_that_finds_the_mutex_taken_is_two_events() {
    let allocator = recording(64 * KIB);
    // Larger than what is parked.
    let block = allocate(&allocator, 32 * KIB).unwrap();
    allocator
        .while_locked(|| {
            thread::scope(|scope| scope.spawn(|| at(5, || drop(block))).join().unwrap());
            assert!(allocator.has_pending_frees());
        })
        .unwrap();
    assert_eq!(letters(&allocator), "arc");
    let [.., requested, completed] = events(&allocator)[..] else { panic!() };
    assert_eq!((requested.site, completed.site), (5, 0));
    assert_eq!(block_of(&requested).unwrap().1, block_of(&completed).unwrap().1);
    assert_ne!(requested.thread_id, completed.thread_id, "whoever has the mutex completes it");
}

#[test]
fn a_block_that_another_thread_frees_is_freed_on_that_thread() {
    let allocator = recording(64 * KIB);
    let block = allocate(&allocator, 128).unwrap();
    thread::scope(|scope| drop(scope.spawn(move || drop(block)).join()));
    let [.., allocated, freed] = events(&allocator)[..] else { panic!() };
    assert_eq!(letters(&allocator), "af");
    assert_ne!(allocated.thread_id, freed.thread_id);
}

/// However threads hand blocks around, the events of each address take turns: allocated, freed, allocated…
#[test]
fn events_of_one_block_are_in_order_under_stress() {
    let _watchdog = watchdog();
    const THREADS: usize = 4;
    const EACH: usize = 3_000;
    let allocator = allocator(64 * KIB);
    allocator
        .record_history(Some(HistoryOptions { max_entries: 1 << 18, ..HistoryOptions::default() }))
        .unwrap();
    thread::scope(|scope| {
        let (send, receive): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
        for (number, receive) in receive.into_iter().enumerate() {
            let (allocator, to) = (&allocator, send[(number + 1) % THREADS].clone());
            scope.spawn(move || {
                for round in 0..EACH {
                    let bytes = 128 << (round % 4);
                    if let Ok(block) = allocate(allocator, bytes) {
                        if round % 3 == 0 { drop(to.send(block)) } else { drop(block) }
                    }
                    receive.try_iter().for_each(drop);
                }
            });
        }
        drop(send);
    });
    let mut live: HashMap<VirtualAddress, char> = HashMap::new();
    for event in allocator.events(0).unwrap().events {
        let Some((letter, block)) = block_of(&event) else { continue };
        let before = live.insert(block.address, letter).unwrap_or('f');
        let is_in_order = match letter {
            'a' => "fc".contains(before),
            'c' => before == 'r',
            _ => before == 'a',
        };
        assert!(is_in_order, "{letter} after {before}: {event:?}");
    }
    assert!(live.len() > 4 && live.values().all(|letter| "fc".contains(*letter)));
    check(&allocator, 0);
}

#[test]
fn live_blocks_keep_their_sites_when_the_ring_has_forgotten() {
    let allocator = allocator(64 * KIB);
    allocator.record_history(Some(HistoryOptions { max_entries: 2, ..options() })).unwrap();
    let kept = at(3, || allocate(&allocator, 256)).unwrap();
    for _ in 0..10 {
        drop(allocate(&allocator, 128).unwrap());
    }
    let read = allocator.events(0).unwrap();
    assert_eq!((read.events.len() as u64 + read.lost, read.events.len()), (read.next, 2));
    let block = occupied(&allocator)[0];
    assert_eq!((block.site, block.requested_bytes), (3, 256));
    assert!(block.allocated_ns > 0);
    allocator.record_history(None).unwrap();
    assert_eq!(occupied(&allocator)[0].site, 3);
    drop(kept);
}

#[test]
fn blocks_from_before_have_no_site_and_their_free_is_an_event() {
    let allocator = allocator(64 * KIB);
    let block = at(3, || allocate(&allocator, 128)).unwrap();
    allocator.record_history(Some(options())).unwrap();
    assert_eq!(occupied(&allocator)[0].site, 0);
    drop(block);
    assert_eq!(letters(&allocator), "f");
}

#[test]
fn the_scope_says_which_events_have_a_site() {
    let expected = [
        (SiteScope::LiveBlocks, [0, 0], 1),
        (SiteScope::Allocations, [7, 0], 1),
        (SiteScope::All, [7, 8], 2),
    ];
    for (scope, sites, asked) in expected {
        let allocator = allocator(64 * KIB);
        drop(allocate(&allocator, 128));
        let provider = Arc::new(Told::default());
        let sites_of = Some(provider.clone() as Arc<dyn Sites>);
        allocator.record_history(Some(HistoryOptions { scope, sites: sites_of, ..options() })).unwrap();
        let block = at(7, || allocate(&allocator, 128)).unwrap();
        assert_eq!(occupied(&allocator)[0].site, 7, "{scope:?}");
        at(8, || drop(block));
        let seen: Vec<_> = events(&allocator)
            .iter()
            .filter(|event| block_of(event).is_some())
            .map(|event| event.site)
            .collect();
        assert_eq!(seen, sites, "{scope:?}");
        assert_eq!(provider.asked.load(Ordering::SeqCst), asked, "{scope:?}");
    }
}

#[test]
fn an_interleaved_allocation_has_an_event_for_each_chunk() {
    let (allocator, _) = on_device(&tensor_regions(&[(0, 4 * KIB), (1, 4 * KIB)]));
    allocator.record_history(Some(options())).unwrap();
    drop(allocator.allocate(301, &interleaved(&[0, 1])).unwrap());
    assert_eq!(letters(&allocator), "aaff");
    let requested: u64 = events(&allocator)
        .iter()
        .filter_map(block_of)
        .filter(|(letter, _)| *letter == 'a')
        .map(|(_, block)| block.requested_bytes)
        .sum();
    assert_eq!(requested, 301);
}

#[test]
fn pressure_collections_and_regions_are_events() {
    let world = World::new();
    world.fill_with_garbage();
    world.allocator.record_history(Some(options())).unwrap();
    let rescued = at(4, || world.interpreter.python_thread(|| world.allocate())).unwrap();
    let all = events(&world.allocator);
    let EventKind::PressureBegan { requested_bytes: BLOCK, free_bytes: 0, .. } = all[0].kind else {
        panic!("{:?}", all[0])
    };
    assert_eq!(all[0].site, 4);
    let collected = all.iter().find_map(|event| match event.kind {
        EventKind::Collected { generation, reclaimed_bytes, .. } => Some((generation, reclaimed_bytes)),
        _ => None,
    });
    assert_eq!(collected, Some((Generation::Full, BLOCKS as u64 * BLOCK)));
    assert_eq!(letters(&world.allocator), format!("{}a", "f".repeat(BLOCKS)));
    let outcome = all.iter().find_map(|event| match event.kind {
        EventKind::PressureEnded(outcome) => Some(outcome),
        _ => None,
    });
    let outcome = outcome.unwrap();
    assert!(outcome.rescued && outcome.skipped.is_none() && !outcome.timed_out);
    assert_eq!((outcome.young_collections, outcome.full_collections), (0, 1));
    assert_eq!((outcome.requested_bytes, outcome.reclaimed_bytes), (BLOCK, BLOCKS as u64 * BLOCK));
    drop(rescued);
    assert!(world.allocator.empty_cache().is_ok());
}

/// The collections of a history: of which thread, where, what they reclaimed, and for which device.
fn collections(allocator: &FlexAllocator) -> Vec<(u32, u32, u64, u32)> {
    let collected = |event: &Event| match event.kind {
        EventKind::Collected { reclaimed_bytes, for_device, .. } => {
            Some((event.thread_id, event.site, reclaimed_bytes, for_device))
        }
        _ => None,
    };
    events(allocator).iter().filter_map(collected).collect()
}

/// The threads of the requests that found no room.
fn requesters(allocator: &FlexAllocator) -> Vec<u32> {
    let began =
        |event: &Event| matches!(event.kind, EventKind::PressureBegan { .. }).then_some(event.thread_id);
    events(allocator).iter().filter_map(began).collect()
}

#[test]
fn what_the_collector_thread_collects_is_an_event_of_the_thread_that_asked() {
    let world = World::new();
    // The first collection frees one block, which is too little for the second request.
    let mut blocks = world.fill();
    let last = vec![blocks.pop().unwrap()];
    let rest_bytes = blocks.len() as u64 * BLOCK;
    world.interpreter.add_garbage(last);
    world.interpreter.add_garbage(blocks);
    world.allocator.record_history(Some(options())).unwrap();
    let collection = world.interpreter.pause_in_finalizer();
    thread::scope(|scope| {
        let first = scope.spawn(|| at(4, || world.allocate()).unwrap());
        wait(&collection.entered);
        let second = scope.spawn(|| at(5, || allocate(&world.allocator, 2 * BLOCK)).unwrap());
        world.wait_for_events(2);
        collection.go_on.send(()).unwrap();
        drop((first.join().unwrap(), second.join().unwrap()));
    });
    // The second request was registered, so it got its memory while the collection went on that freed it.
    let end = Instant::now() + patience();
    while collections(&world.allocator).len() < 2 {
        assert!(Instant::now() < end, "{:?}", collections(&world.allocator));
        thread::yield_now();
    }
    let [first, second] = requesters(&world.allocator)[..] else { panic!() };
    assert_eq!(collections(&world.allocator), [(first, 4, BLOCK, 0), (second, 5, rest_bytes, 0)]);
    assert_eq!(world.collector_threads(), 1, "it ran both");
}

#[test]
fn what_a_collection_frees_of_another_device_is_an_event_there() {
    let world = World::new();
    let options_of_other = AllocatorOptions { ordinal: 1, ..AllocatorOptions::default() };
    let topology = Topology::uniform(4 * BLOCK).unwrap();
    let device = SimulatedDevice::for_topology(&topology).unwrap();
    let other = FlexAllocator::new(device, &topology, options_of_other).unwrap();
    world.gate.adopt(&world.allocator).unwrap();
    world.gate.adopt(&other).unwrap();
    world.allocator.record_history(Some(options())).unwrap();
    let collect_for = |allocator: &FlexAllocator| drop(at(4, || allocate(allocator, BLOCK)).unwrap());

    // Before its history is recorded, it has none.
    world
        .interpreter
        .add_garbage([world.fill(), allocate_many(&other, 1, BLOCK)].into_iter().flatten().collect());
    collect_for(&world.allocator);
    other.record_history(Some(options())).unwrap();
    // With memory of both, and of one alone.
    world
        .interpreter
        .add_garbage([world.fill(), allocate_many(&other, 3, BLOCK)].into_iter().flatten().collect());
    collect_for(&world.allocator);
    world.interpreter.add_garbage(world.fill());
    collect_for(&world.allocator);
    world.interpreter.add_garbage(
        [allocate_many(&other, 4, BLOCK), allocate_many(&world.allocator, 2, BLOCK)]
            .into_iter()
            .flatten()
            .collect(),
    );
    collect_for(&other);

    let (all, me) = (BLOCKS as u64 * BLOCK, requesters(&world.allocator)[0]);
    let own = (me, 4, all, 0);
    assert_eq!(collections(&world.allocator), [own, own, own, (me, 0, 2 * BLOCK, 1)]);
    assert_eq!(collections(&other), [(me, 0, 3 * BLOCK, 0), (me, 4, 4 * BLOCK, 1)]);
    check(&other, 0);
}

#[test]
fn a_request_that_fails_leaves_why() {
    let allocator = recording(4 * KIB);
    let _held = allocate(&allocator, 4 * KIB).unwrap();
    expect_out_of_memory(at(6, || allocate(&allocator, 128)));
    let [.., began, failed, ended] = events(&allocator)[..] else { panic!() };
    assert!(matches!(began.kind, EventKind::PressureBegan { requested_bytes: 128, free_bytes: 0, .. }));
    let figures = EventKind::OutOfMemory { requested_bytes: 128, free_bytes: 0, largest_free_bytes: 0 };
    assert_eq!((failed.kind, failed.site), (figures, 6));
    let EventKind::PressureEnded(outcome) = ended.kind else { panic!("{ended:?}") };
    assert_eq!((outcome.rescued, outcome.skipped), (false, Some(SkipReason::Uninitialized)));
    // No state of the device could serve it: no pressure, but out of memory.
    expect_out_of_memory(allocate(&allocator, 8 * KIB));
    assert_eq!(events(&allocator).len(), 3 + 2 + 1);
}

#[test]
fn a_region_that_goes_back_is_an_event_after_the_frees_in_it() {
    let allocator = recording(64 * KIB);
    drop(allocate(&allocator, 128).unwrap());
    allocator.empty_cache().unwrap();
    let all = events(&allocator);
    let (EventKind::RegionAcquired(acquired), EventKind::RegionReleased(released)) =
        (all[0].kind, all.last().unwrap().kind)
    else {
        panic!("{all:?}")
    };
    assert_eq!(acquired, released);
    assert_eq!(letters(&allocator), "af");
}

#[test]
fn a_snapshot_shows_the_events_before_it_and_is_one() {
    let allocator = recording(64 * KIB);
    let _block = allocate(&allocator, 128).unwrap();
    let (_, first) = allocator.snapshot_with_events().unwrap();
    assert_eq!(first.events.len(), 2);
    let (regions, second) = allocator.snapshot_with_events().unwrap();
    assert_eq!(second.events[2].kind, EventKind::SnapshotTaken);
    assert_eq!((second.events.len(), second.lost), (3, 0));
    assert_eq!(allocator.regions().unwrap(), regions, "a look that leaves no event");
    assert_eq!(allocator.snapshot_with_events().unwrap().1.events.len(), 4);
    assert_eq!(regions[0].blocks.iter().filter(|block| block.occupied).count(), 1);
}

#[test]
fn kinds_may_be_left_out() {
    let allocator = allocator(64 * KIB);
    let without = EventKinds::FREE_REQUESTED.with(EventKinds::REGION_ACQUIRED);
    allocator.record_history(Some(HistoryOptions { without, ..options() })).unwrap();
    drop(allocate(&allocator, 128).unwrap());
    assert_eq!(letters(&allocator), "ac");
    assert_eq!(events(&allocator).len(), 2);
}

#[test]
fn the_recorder_may_be_changed_while_threads_allocate() {
    let _watchdog = watchdog();
    let allocator = FlexAllocator::clone(&on_device(&Topology::uniform(64 * KIB).unwrap()).0);
    thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        let user = scope.spawn(|| {
            let is_done = is_done;
            while is_done.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                drop(allocate(&allocator, 128).unwrap());
            }
        });
        for round in 0..200 {
            let change = (round % 5 != 4).then(|| HistoryOptions {
                max_entries: 16 << (round % 3),
                clear: round % 7 == 0,
                ..options()
            });
            allocator.record_history(change).unwrap();
            let read = allocator.events(0).unwrap();
            assert!(read.events.is_sorted_by_key(|event| event.sequence));
        }
        drop(done);
        user.join().unwrap();
    });
    allocator.record_history(None).unwrap();
    check(&allocator, 0);
}

#[test]
fn a_reader_can_tell_one_recording_from_the_next() {
    let allocator = allocator(64 * KIB);
    assert_eq!((allocator.next_event(), allocator.events(0).unwrap().recordings), (0, 0));
    for recordings in 1..3 {
        allocator.record_history(Some(options())).unwrap();
        drop(allocate(&allocator, 1000).unwrap());
        let next = allocator.next_event();
        assert_eq!(allocator.events(next).unwrap().recordings, recordings);
        allocator.record_history(Some(HistoryOptions { clear: true, ..options() })).unwrap();
        assert_eq!(allocator.events(0).unwrap().recordings, recordings, "changed, and not begun");
        allocator.record_history(None).unwrap();
        assert_eq!(allocator.events(0).unwrap().recordings, recordings, "ended, and not begun");
        assert_eq!(allocator.next_event(), next, "numbers go on");
    }
}

#[test]
fn a_snapshot_says_where_events_go_on() {
    let allocator = recording(64 * KIB);
    let kept = allocate(&allocator, 1000).unwrap();
    let (regions, next) = allocator.snapshot_with_position().unwrap();
    assert_eq!(regions[0].blocks.iter().filter(|block| block.occupied).count(), 1);
    drop(kept);
    let after = allocator.events(next).unwrap().events;
    assert!(matches!(after[..], [Event { kind: EventKind::Freed(_), .. }]), "{after:?}");
    let without = EventKinds::SNAPSHOT_TAKEN;
    allocator.record_history(Some(HistoryOptions { without, ..options() })).unwrap();
    assert_eq!(allocator.snapshot_with_position().unwrap().1, allocator.next_event());
}

#[test]
fn who_drains_gets_what_was_forgotten_or_is_of_a_recording_that_ended() {
    let allocator = recording(64 * KIB);
    drop(allocate(&allocator, 1000).unwrap());
    let from = allocator.next_event();
    drop(allocate(&allocator, 1000).unwrap());
    allocator.record_history(Some(HistoryOptions { clear: true, ..options() })).unwrap();
    drop(allocate(&allocator, 1000).unwrap());
    allocator.record_history(None).unwrap();
    assert!(allocator.events(from).unwrap().events.is_empty(), "it is not shown");
    let drained = allocator.drain_events(from).unwrap();
    assert_eq!((drained.events.len(), drained.lost, drained.next), (4, 0, from + 4));
    // What the next recording has begun with comes from there on.
    allocator.record_history(Some(options())).unwrap();
    drop(allocate(&allocator, 1000).unwrap());
    let drained = allocator.drain_events(from).unwrap();
    assert_eq!((drained.events.len(), drained.began), (6, from + 4));
    assert_eq!(allocator.drain_events(drained.next).unwrap().events, []);
}

#[test]
fn memory_for_a_history_can_be_taken_before() {
    let allocator = recording(64 * KIB);
    drop(allocate(&allocator, 1000).unwrap());
    let before = allocator.events(0).unwrap();
    allocator.reserve_history(1 << 12).unwrap();
    let after = allocator.events(0).unwrap();
    assert_eq!((after.events, after.recordings), (before.events, before.recordings));
    allocator.record_history(Some(HistoryOptions { max_entries: 1 << 12, ..options() })).unwrap();
}
