//! loom: the guard under pressure. A callback that is replaced while it runs, and registered requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};

use crate::model_world::{BLOCK, Count, allocate, allocator};
use crate::pressure::{PressureRequest, SharedCallback, Verdict};
use crate::sync::model::check;
use crate::sync::{Mutex, thread};
use crate::{AllocatorGuard, CompositeAddress, FlexAllocator};

fn callback(
    act: impl Fn(&mut AllocatorGuard<'_>, &mut PressureRequest) -> Verdict + Send + Sync + 'static,
) -> SharedCallback {
    Arc::new(act)
}

fn assert_balanced(allocator: &FlexAllocator, blocks: u64) {
    let pressure = allocator.pressure_statistics();
    assert_eq!(pressure.events, pressure.rescued + pressure.failed);
    allocator.validate().unwrap();
    assert_eq!(allocator.statistics().unwrap().allocated_bytes.current, blocks * BLOCK);
}

/// Tells when it is dropped while its callback runs.
struct Captured(Arc<AtomicU64>);

impl Drop for Captured {
    fn drop(&mut self) {
        assert_eq!(self.0.load(Ordering::SeqCst), 0, "dropped while it runs");
        crate::rank::assert_unlocked("drop a callback");
    }
}

/// Three threads, at most four preemptions: the callback, unlocked, frees a block; meanwhile another thread replaces
/// and drops the callback, and a third frees a block and so serves whoever looks.
#[test]
fn a_callback_may_be_replaced_while_it_is_unlocked() {
    check(Some(4), || {
        let allocator = allocator(2);
        let hoard = Arc::new(Mutex::new(Some(allocate(&allocator).unwrap())));
        let other = allocate(&allocator).unwrap();
        let running = Arc::new(AtomicU64::new(0));
        let captured = Captured(Arc::clone(&running));
        allocator
            .set_memory_pressure_callback(Some(callback(move |guard, _| {
                running.fetch_add(1, Ordering::SeqCst);
                let _ = &captured;
                let freed = guard.unlocked(|_| drop(hoard.lock().unwrap().take()));
                running.fetch_sub(1, Ordering::SeqCst);
                assert!(freed.is_ok());
                Verdict::GiveUp
            })))
            .unwrap();
        let replace = {
            let allocator = allocator.clone();
            thread::spawn(move || {
                let give_up = callback(|_, _| Verdict::GiveUp);
                drop(allocator.set_memory_pressure_callback(Some(give_up)).unwrap());
            })
        };
        let free = thread::spawn(move || drop(other));
        let result = allocate(&allocator);
        replace.join().unwrap();
        free.join().unwrap();
        let pressure = allocator.pressure_statistics();
        assert_eq!(u64::from(result.is_err()), pressure.failed);
        drop((result, allocator.set_memory_pressure_callback(None)));
        assert_balanced(&allocator, 0);
    });
}

/// A full device whose callback registers its request and then waits until `freed` is 1. Returns its one block. The
/// callback notes the size of each request, in order of registration: requests differ in size only.
fn waiting_world(freed: &Arc<Count>, registered: &Arc<Count>) -> (FlexAllocator, CompositeAddress) {
    let allocator = allocator(1);
    let block = allocate(&allocator).unwrap();
    let (freed, registered) = (Arc::clone(freed), Arc::clone(registered));
    allocator
        .set_memory_pressure_callback(Some(callback(move |guard, request| {
            guard.register(request, None).unwrap();
            let wait = || {
                registered.add_one();
                freed.wait_for(1);
            };
            guard.unlocked(|_| wait()).unwrap();
            Verdict::GiveUp
        })))
        .unwrap();
    (allocator, block)
}

/// Three threads, at most four preemptions: two requests register at any time around one free. Exactly one is served,
/// and the block is neither lost nor served twice.
#[test]
fn one_free_serves_exactly_one_of_two_requests() {
    check(Some(4), || {
        let (freed, registered) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let (allocator, block) = waiting_world(&freed, &registered);
        let request = || {
            let allocator = allocator.clone();
            thread::spawn(move || allocate(&allocator).ok())
        };
        let requests = [request(), request()];
        drop(block);
        freed.add_one();
        let served: Vec<_> = requests.into_iter().filter_map(|request| request.join().unwrap()).collect();
        assert_eq!(served.len(), 1);
        drop(served);
        drop(allocator.set_memory_pressure_callback(None));
        assert_balanced(&allocator, 0);
    });
}

/// Four threads, at most three preemptions: when both have registered, one free, which may meet a taken mutex, serves
/// the older.
#[test]
fn the_oldest_registered_request_is_served_first() {
    check(Some(3), || {
        let (freed, registered) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let (allocator, block) = waiting_world(&freed, &registered);
        let request = || {
            let allocator = allocator.clone();
            thread::spawn(move || allocate(&allocator).ok())
        };
        let older = request();
        registered.wait_for(1);
        let younger = request();
        registered.wait_for(2);
        let look = {
            let allocator = allocator.clone();
            thread::spawn(move || allocator.while_locked(|| ()).unwrap())
        };
        drop(block);
        freed.add_one();
        look.join().unwrap();
        let (older, younger) = (older.join().unwrap(), younger.join().unwrap());
        assert!(older.is_some() && younger.is_none(), "the younger request overtook the older one");
        drop(older);
        drop(allocator.set_memory_pressure_callback(None));
        assert_balanced(&allocator, 0);
    });
}

struct Alarm(Count);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        crate::rank::assert_unlocked("wake");
        self.0.add_one();
    }
}

/// Three threads, at most four preemptions: a registered request sleeps, without a deadline, until it is woken. The
/// free that serves it comes at any time, and may meet a mutex that a third thread has taken.
#[test]
fn a_granted_request_is_woken() {
    check(Some(4), || {
        let allocator = allocator(1);
        let block = allocate(&allocator).unwrap();
        allocator
            .set_memory_pressure_callback(Some(callback(move |guard, request| {
                if !guard.search(request).unwrap() {
                    let alarm = Arc::new(Alarm(Count::default()));
                    guard.register(request, Some(Waker::from(Arc::clone(&alarm)))).unwrap();
                    guard.unlocked(|_| alarm.0.wait_for(1)).unwrap();
                    assert!(guard.search(request).unwrap(), "woken without memory");
                }
                Verdict::GiveUp
            })))
            .unwrap();
        let look = {
            let allocator = allocator.clone();
            thread::spawn(move || allocator.while_locked(|| ()).unwrap())
        };
        let free = thread::spawn(move || drop(block));
        drop(allocate(&allocator).unwrap());
        look.join().unwrap();
        free.join().unwrap();
        drop(allocator.set_memory_pressure_callback(None));
        assert_balanced(&allocator, 0);
    });
}
