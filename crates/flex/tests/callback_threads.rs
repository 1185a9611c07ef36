//! Callbacks and other threads: replaced and removed while they run, and frees that meet a taken mutex. Every
//! interleaving is forced with channels.

#[path = "common/support.rs"]
mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Wake, Waker};
use std::thread;

use flex::FlexAllocator;
use flex::pressure::{SharedCallback, Verdict};
use support::*;

/// Sends an event when dropped, after using the allocator, which would hang under its mutex.
struct Dropped {
    allocator: FlexAllocator,
    event: mpsc::Sender<()>,
}

impl Drop for Dropped {
    fn drop(&mut self) {
        self.allocator.statistics().unwrap();
        let _ = self.event.send(());
    }
}

fn full() -> (FlexAllocator, Hoard) {
    let allocator = allocator(64 * KIB);
    let hoard = Hoard::of(allocate_many(&allocator, 16, 4 * KIB));
    (allocator, hoard)
}

/// A callback that says when it is running and waits, unlocked, to be told to go on.
struct Paused {
    callback: SharedCallback,
    running: mpsc::Receiver<()>,
    go_on: mpsc::Sender<()>,
    dropped: mpsc::Receiver<()>,
}

fn paused(allocator: &FlexAllocator, hoard: &Hoard) -> Paused {
    let (tell_running, running) = mpsc::channel();
    let (go_on, wait_to_go_on) = mpsc::channel::<()>();
    let (tell_dropped, dropped) = mpsc::channel();
    let wait_to_go_on = Mutex::new(wait_to_go_on);
    let blocks = hoard.clone();
    let dropping = Dropped { allocator: allocator.clone(), event: tell_dropped };
    let callback = callback(move |guard, _| {
        let _ = &dropping;
        guard
            .unlocked(|_| {
                tell_running.send(()).unwrap();
                wait(&wait_to_go_on.lock().unwrap());
                blocks.free_one();
            })
            .unwrap();
        Verdict::GiveUp
    });
    Paused { callback, running, go_on, dropped }
}

#[test]
fn a_callback_removed_while_it_runs_finishes_and_is_dropped_outside_the_mutex() {
    let _watchdog = watchdog();
    let (allocator, hoard) = full();
    let Paused { callback, running, go_on, dropped } = paused(&allocator, &hoard);
    allocator.set_memory_pressure_callback(Some(callback)).unwrap();
    thread::scope(|scope| {
        let rescued = scope.spawn(|| allocate(&allocator, 4 * KIB).unwrap());
        wait(&running);
        let previous = allocator.set_memory_pressure_callback(None).unwrap().unwrap();
        expect_out_of_memory(allocate(&allocator, 4 * KIB));
        drop(previous);
        assert!(dropped.try_recv().is_err(), "it is still running");
        go_on.send(()).unwrap();
        drop(rescued.join().unwrap());
        wait(&dropped);
    });
    check(&allocator, 15 * 4 * KIB);
}

#[test]
fn a_callback_replaced_while_it_runs_serves_its_own_event_only() {
    let _watchdog = watchdog();
    let (allocator, hoard) = full();
    let first = paused(&allocator, &hoard);
    let (second_called, second_calls) = mpsc::channel();
    let blocks = hoard.clone();
    let second = callback(move |guard, _| {
        second_called.send(thread::current().id()).unwrap();
        guard.unlocked(|_| blocks.free_one()).unwrap();
        Verdict::GiveUp
    });
    allocator.set_memory_pressure_callback(Some(first.callback)).unwrap();
    thread::scope(|scope| {
        let rescued = scope.spawn(|| allocate(&allocator, 4 * KIB).unwrap());
        wait(&first.running);
        drop(allocator.set_memory_pressure_callback(Some(second)).unwrap());
        let here = allocate(&allocator, 4 * KIB).unwrap();
        assert_eq!(wait(&second_calls), thread::current().id());
        first.go_on.send(()).unwrap();
        wait(&first.dropped);
        drop((rescued.join().unwrap(), here));
    });
    assert!(second_calls.try_recv().is_err());
    assert_eq!(allocator.pressure_statistics().rescued, 2);
    check(&allocator, 14 * 4 * KIB);
}

#[test]
fn frees_of_other_threads_reach_a_request_that_unlocked() {
    let _watchdog = watchdog();
    let (allocator, hoard) = full();
    let (unlocked, wait_unlocked) = mpsc::channel();
    let (freed, wait_freed) = mpsc::channel();
    let wait_freed = Mutex::new(wait_freed);
    set_callback(&allocator, move |guard, _| {
        guard
            .unlocked(|_| {
                unlocked.send(()).unwrap();
                wait(&wait_freed.lock().unwrap());
            })
            .unwrap();
        Verdict::GiveUp
    });
    thread::scope(|scope| {
        let request = scope.spawn(|| allocate(&allocator, 4 * KIB).unwrap());
        wait(&wait_unlocked);
        hoard.free_one();
        freed.send(()).unwrap();
        drop(request.join().unwrap());
    });
    check(&allocator, 15 * 4 * KIB);
}

#[test]
fn statistics_fall_when_the_memory_is_free_not_when_its_free_is_pending() {
    let _watchdog = watchdog();
    let (allocator, hoard) = full();
    let freed = Arc::new(Mutex::new(Vec::new()));
    let (blocks, seen) = (hoard.clone(), Arc::clone(&freed));
    set_callback(&allocator, move |guard, _| {
        let blocks = blocks.clone();
        thread::spawn(move || blocks.free_one()).join().unwrap();
        // Pending, for this thread has the mutex; whoever reads drains first.
        let statistics = guard.statistics().unwrap();
        seen.lock().unwrap().push((statistics.allocated_bytes.current, statistics.free_bytes));
        Verdict::GiveUp
    });
    drop(allocate(&allocator, 4 * KIB).unwrap());
    assert_eq!(*freed.lock().unwrap(), [(15 * 4 * KIB, 4 * KIB)]);
    check(&allocator, 15 * 4 * KIB);
}

#[test]
fn frees_of_other_threads_never_wait_for_the_mutex() {
    let _watchdog = watchdog();
    let (allocator, hoard) = full();
    let (locked, wait_locked) = mpsc::channel();
    let (freed, wait_freed) = mpsc::channel();
    let wait_freed = Mutex::new(wait_freed);
    set_callback(&allocator, move |guard, request| {
        // Held all the time, and yet the other thread gets through.
        locked.send(()).unwrap();
        wait(&wait_freed.lock().unwrap());
        assert!(!guard.frees_in_flight());
        assert!(guard.search(request).unwrap());
        Verdict::GiveUp
    });
    thread::scope(|scope| {
        let request = scope.spawn(|| allocate(&allocator, 4 * KIB).unwrap());
        wait(&wait_locked);
        hoard.free_one();
        freed.send(()).unwrap();
        drop(request.join().unwrap());
    });
    check(&allocator, 15 * 4 * KIB);
}

#[test]
fn what_is_freed_under_the_mutex_is_back_after_the_unlock() {
    let _watchdog = watchdog();
    let allocator = allocator(1 << 20);
    // More than one batch of the pending list.
    let blocks = allocate_many(&allocator, 1000, 1024);
    let handles: Vec<_> = blocks.into_iter().map(|block| block.into_block().unwrap()).collect();
    let (remote, freed) = (allocator.clone(), handles.clone());
    let results = allocator.while_locked(|| {
        let free_twice = move |handle| (remote.free_block(handle), remote.free_block(handle));
        thread::spawn(move || handles.into_iter().map(free_twice).collect::<Vec<_>>()).join().unwrap()
    });
    assert!(!allocator.has_pending_frees(), "the unlock has drained");
    assert!(freed.iter().all(|handle| allocator.block(*handle).unwrap().is_none()));
    for (first, second) in results.unwrap() {
        assert_eq!(first, Ok(()));
        assert!(second.is_err(), "a double free is found out while the block is pending");
    }
    drop(allocate(&allocator, 1).unwrap());
    check(&allocator, 0);
}

#[test]
fn a_free_serves_the_oldest_registered_request() {
    let _watchdog = watchdog();
    let (allocator, hoard) = full();
    let (registered, wait_registered) = mpsc::channel();
    let (go_on, wait_to_go_on) = mpsc::channel::<()>();
    let wait_to_go_on = Mutex::new(wait_to_go_on);
    set_callback(&allocator, move |guard, request| {
        guard.register(request, None).unwrap();
        guard
            .unlocked(|_| {
                registered.send(()).unwrap();
                wait(&wait_to_go_on.lock().unwrap());
            })
            .unwrap();
        Verdict::GiveUp
    });
    thread::scope(|scope| {
        let (order, finished) = mpsc::channel();
        let request = |bytes: u64| {
            let (allocator, order) = (&allocator, order.clone());
            scope.spawn(move || order.send((bytes, allocate(allocator, bytes).ok())).unwrap())
        };
        request(8 * KIB);
        wait(&wait_registered);
        request(4 * KIB);
        wait(&wait_registered);
        // The first free is too small for the oldest, so the younger one gets it; the next two are the oldest's.
        hoard.free_one();
        hoard.free_one();
        hoard.free_one();
        assert_eq!(allocator.statistics().unwrap().free_bytes, 0, "all of it is granted");
        go_on.send(()).unwrap();
        go_on.send(()).unwrap();
        let results = [wait(&finished), wait(&finished)];
        assert!(results.iter().all(|(_, result)| result.is_some()), "{results:?}");
    });
    check(&allocator, 13 * 4 * KIB);
}

#[test]
fn lifting_the_limit_serves_registered_requests() {
    let _watchdog = watchdog();
    let allocator = allocator(64 * KIB);
    allocator.set_limit_bytes(Some(4 * KIB)).unwrap();
    let kept = allocate(&allocator, 4 * KIB).unwrap();
    let handle = allocator.clone();
    set_callback(&allocator, move |guard, request| {
        guard.register(request, None).unwrap();
        let granted = guard.unlocked(|_| {
            handle.set_limit_bytes(None).unwrap();
            handle.statistics().unwrap().allocated_bytes.current
        });
        assert_eq!(granted.unwrap(), 8 * KIB);
        Verdict::GiveUp
    });
    drop((allocate(&allocator, 4 * KIB).unwrap(), kept));
    check(&allocator, 0);
}

#[test]
fn callbacks_may_be_exchanged_all_the_time() {
    let _watchdog = watchdog();
    let (allocator, hoard) = full();
    let allocator = Arc::new(allocator);
    let helpful = |hoard: &Hoard| {
        let blocks = hoard.clone();
        callback(move |guard, _| {
            guard.unlocked(|_| blocks.free_one()).unwrap();
            Verdict::GiveUp
        })
    };
    thread::scope(|scope| {
        let requests = scope.spawn(|| {
            for _ in 0..16 {
                drop(allocate(&allocator, 60 * KIB));
            }
        });
        while !requests.is_finished() {
            allocator.set_memory_pressure_callback(Some(helpful(&hoard))).unwrap();
            drop(allocator.set_memory_pressure_callback(None).unwrap());
        }
    });
    drop(hoard.take());
    check(&allocator, 0);
}

#[test]
fn a_registered_request_never_holds_two_blocks() {
    let _watchdog = watchdog();
    let allocator = allocator(600 * 128);
    let mut blocks: Vec<_> = allocate_many(&allocator, 600, 128).into_iter().map(Some).collect();
    // Two places for a request of two units are queued before a whole batch of blocks that have live neighbours: the
    // first batch drained does not serve it, and the second comes while it searches.
    let order = (0..4).chain((10..10 + 2 * 256).step_by(2));
    let freed: Vec<_> = order.filter_map(|index| blocks[index].take()).collect();
    let left = (600 - freed.len() as u64) * 128;
    let freed = Mutex::new(freed);
    let held = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&held);
    set_callback(&allocator, move |guard, request| {
        guard.register(request, None).unwrap();
        let freed = std::mem::take(&mut *freed.lock().unwrap());
        // The mutex is held: all of them are queued.
        thread::spawn(move || drop(freed)).join().unwrap();
        assert!(guard.search(request).unwrap());
        *seen.lock().unwrap() = Some(guard.statistics().unwrap().allocated_bytes.current);
        Verdict::GiveUp
    });
    let served = allocate(&allocator, 256).unwrap();
    assert_eq!(*held.lock().unwrap(), Some(left + 256));
    drop(served);
    check(&allocator, left);
}

struct CountWakes(AtomicU64);

impl Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        flex::rank::assert_unlocked("wake");
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_waker_is_woken_once_when_memory_is_granted_or_the_request_ends() {
    let _watchdog = watchdog();
    for granted in [true, false] {
        let (allocator, hoard) = full();
        let wakes = Arc::new(CountWakes(AtomicU64::new(0)));
        let (waker, kept) = (Arc::clone(&wakes), hoard.clone());
        set_callback(&allocator, move |guard, request| {
            guard.register(request, Some(Waker::from(Arc::clone(&waker)))).unwrap();
            guard.unlocked(|_| granted.then(|| kept.free_one())).unwrap();
            assert_eq!(waker.0.load(Ordering::SeqCst), u64::from(granted));
            Verdict::GiveUp
        });
        assert_eq!(allocate(&allocator, 4 * KIB).is_ok(), granted);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        drop(allocator.set_memory_pressure_callback(None).unwrap());
        assert_eq!(Arc::strong_count(&wakes), 1, "nothing keeps the waker");
        drop(hoard.take());
        check(&allocator, 0);
    }
}

#[test]
fn a_second_waker_takes_the_place_of_the_first() {
    let _watchdog = watchdog();
    let (allocator, hoard) = full();
    let wakes = [(); 2].map(|()| Arc::new(CountWakes(AtomicU64::new(0))));
    let (first, second) = (Arc::clone(&wakes[0]), Arc::clone(&wakes[1]));
    let kept = hoard.clone();
    set_callback(&allocator, move |guard, request| {
        let count = || (first.0.load(Ordering::SeqCst), second.0.load(Ordering::SeqCst));
        guard.register(request, Some(Waker::from(Arc::clone(&first)))).unwrap();
        guard.register(request, Some(Waker::from(Arc::clone(&second)))).unwrap();
        guard.register(request, None).unwrap();
        guard.unlocked(|_| assert_eq!(count(), (1, 0), "the replaced one is woken")).unwrap();
        guard.unlocked(|_| kept.free_one()).unwrap();
        assert_eq!(count(), (1, 1), "memory was granted");
        Verdict::GiveUp
    });
    drop(allocate(&allocator, 4 * KIB).unwrap());
    drop(hoard.take());
    check(&allocator, 0);
}
