//! Several threads on one allocator, each pinned to a processor: what one allocates, the next one frees.
//!
//! Blocks travel in batches, as they do from a forward to a backward pass. One thread alone sends to itself.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use flex::{AllocationDirective, BlockHandle, FlexAllocator};

use super::median;
use super::time::RUNS;
use crate::peers::flex_locked::FlexLocked;
use crate::peers::mimalloc::Mimalloc;
use crate::peers::{Peer, UNIT_BYTES};
use crate::workloads::Workload;

const BATCHES: usize = 1500;
const BATCH: usize = 64;
/// Batches on their way between two threads.
const QUEUE: usize = 16;
const CAPACITY_UNITS: u64 = 1 << 30;

/// Sizes of which nearly all blocks are too large for magazines or seldom asked for again.
pub(crate) const MIXED_BYTES: u64 = 1 << 20;
/// Sizes that magazines are for.
pub(crate) const SMALL_BYTES: u64 = 64 << 10;

/// An allocator for several threads.
pub(crate) trait SharedPeer: Sync {
    /// Names a live block, for any thread.
    type Handle: Send;

    /// An empty one.
    fn new_shared() -> Self;

    /// Allocates; there is room.
    fn allocate(&self, bytes: u64) -> Self::Handle;

    /// Frees a live block, on any thread.
    fn free(&self, handle: Self::Handle);
}

impl SharedPeer for FlexAllocator {
    type Handle = BlockHandle;

    fn new_shared() -> Self {
        FlexLocked::new(CAPACITY_UNITS).allocator().clone()
    }

    fn allocate(&self, bytes: u64) -> BlockHandle {
        self.allocate_block(bytes, &AllocationDirective::default()).expect("room").0
    }

    fn free(&self, handle: BlockHandle) {
        self.free_block(handle).expect("a live block");
    }
}

/// An allocator for one thread behind a mutex: what a program does with most of the peers.
impl<P: Peer + Send> SharedPeer for Mutex<P>
where
    P::Handle: Send,
{
    type Handle = P::Handle;

    fn new_shared() -> Self {
        Mutex::new(P::new(CAPACITY_UNITS))
    }

    fn allocate(&self, bytes: u64) -> P::Handle {
        let size_units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).expect("a small size");
        self.lock().expect("no panic under the lock").allocate(size_units).expect("room")
    }

    fn free(&self, handle: P::Handle) {
        self.lock().expect("no panic under the lock").free(handle);
    }
}

impl SharedPeer for Mimalloc {
    /// The address.
    type Handle = usize;

    fn new_shared() -> Self {
        Mimalloc
    }

    fn allocate(&self, bytes: u64) -> usize {
        let size_units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).expect("a small size");
        Peer::allocate(&mut Mimalloc, size_units).expect("room") as usize
    }

    fn free(&self, address: usize) {
        Peer::free(&mut Mimalloc, address as *mut _);
    }
}

/// Pairs a microsecond, all threads together, with sizes up to `most_bytes`: the median of the runs.
pub(crate) fn pairs_per_microsecond<P: SharedPeer>(threads: usize, most_bytes: u64) -> f64 {
    let peer = P::new_shared();
    let sizes = sizes(most_bytes);
    run(&peer, &sizes, threads);
    median((0..RUNS).map(|_| run(&peer, &sizes, threads)))
}

/// Sizes from the Pareto workload.
fn sizes(most_bytes: u64) -> Vec<u64> {
    let trace = Workload::Pareto.short(1);
    let bytes = trace.ops.iter().map(|op| u64::from(op.size_units) * UNIT_BYTES);
    bytes.filter(|&bytes| (1..=most_bytes).contains(&bytes)).take(4096).collect()
}

fn run<P: SharedPeer>(peer: &P, sizes: &[u64], threads: usize) -> f64 {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let (senders, mut receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| sync_channel(QUEUE)).unzip();
    receivers.rotate_right(1); // Thread k sends to the channel that thread k + 1 receives from.
    let start = Barrier::new(threads);
    let spans: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let spawn = |(thread, (sender, receiver))| {
            let core = (!cores.is_empty()).then(|| cores[thread % cores.len()]);
            let start = &start;
            scope.spawn(move || {
                core.map(core_affinity::set_for_current);
                start.wait();
                let started = Instant::now();
                exchange(peer, sizes, &sender, &receiver);
                drop(sender);
                receiver.iter().for_each(|batch| free_all(peer, batch));
                (started, Instant::now())
            })
        };
        let running: Vec<_> = senders.into_iter().zip(receivers).enumerate().map(spawn).collect();
        running.into_iter().map(|thread| thread.join().expect("a thread that ends")).collect()
    });
    let started = spans.iter().map(|span| span.0).min();
    let ended = spans.iter().map(|span| span.1).max();
    let elapsed = ended.zip(started).map_or(Duration::ZERO, |(ended, started)| ended - started);
    (threads * BATCHES * BATCH) as f64 / elapsed.as_nanos() as f64 * 1000.0
}

type Batch<P> = Vec<<P as SharedPeer>::Handle>;

fn exchange<P: SharedPeer>(
    peer: &P,
    sizes: &[u64],
    sender: &SyncSender<Batch<P>>,
    receiver: &Receiver<Batch<P>>,
) {
    for number in 0..BATCHES {
        let chosen = (0..BATCH).map(|k| sizes[(number * BATCH + k) % sizes.len()]);
        let mut batch = chosen.map(|bytes| peer.allocate(bytes)).collect();
        while let Err(TrySendError::Full(returned)) = sender.try_send(batch) {
            batch = returned;
            free_received(peer, receiver);
        }
        free_received(peer, receiver);
    }
}

/// Frees one batch, or lets another thread work.
fn free_received<P: SharedPeer>(peer: &P, receiver: &Receiver<Batch<P>>) {
    match receiver.try_recv() {
        Ok(batch) => free_all(peer, batch),
        Err(TryRecvError::Empty) => std::thread::yield_now(),
        Err(TryRecvError::Disconnected) => {}
    }
}

fn free_all<P: SharedPeer>(peer: &P, batch: Batch<P>) {
    batch.into_iter().for_each(|handle| peer.free(handle));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_free_each_others_blocks_and_leave_nothing() {
        let allocator = FlexAllocator::new_shared();
        for threads in [1, 3] {
            assert!(run(&allocator, &sizes(MIXED_BYTES), threads) > 0.0);
            let statistics = allocator.statistics().unwrap();
            assert_eq!(statistics.allocated_bytes.current, 0);
        }
        assert_eq!(allocator.statistics().unwrap().allocation.allocated, (4 * BATCHES * BATCH) as u64);
    }
}
