//! What collections freed, by device: totals, the last collections, and by type where that was recorded.
//!
//! Locks: `LEDGERS` and `CURRENT`, leaves, held to copy figures; no Python object is made or dropped under them. The
//! tallies are atomics, since a free may come from any thread that a stale mark says to be collecting. A forked child,
//! whose collector goes on calling here, takes neither lock: a thread that it does not have may hold them for ever.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flex::fork::is_forked;
use flex::pressure::collecting::CollectionKind;

use crate::configuration::MAX_DEVICES;

/// How many collections are remembered one by one.
const RECENT: usize = 64;

/// How many types are told apart; the rest are counted as one.
const MOST_TYPES: usize = 1000;

/// How many places are told apart.
const MOST_SITES: usize = 10_000;

/// The name that the rest go under.
const OTHER_TYPES: &str = "(other types)";

/// Who holds memory, as people read it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The class, or the function.
    pub(crate) name: String,
    /// A way around the cycle that holds it, such as `Trainer.callbacks[0] → Logger.trainer → Trainer`.
    pub(crate) path: String,
    /// Where the holder is defined, if that is known.
    pub(crate) filename: String,
    pub(crate) line: u32,
}

/// Memory of one device that one kind of holder held.
#[derive(Debug, Clone, Default)]
pub(crate) struct Holding {
    pub(crate) device: usize,
    pub(crate) holder: Holder,
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
    /// Of `bytes`, what only C++ objects referred to, such as the graph of autograd.
    pub(crate) native_bytes: u64,
    /// The cycles that held it.
    pub(crate) cycles: u64,
    /// Bytes by the place where they were allocated, as far as that is known.
    pub(crate) sites: BTreeMap<u32, u64>,
}

impl Holding {
    /// Where most of it was allocated, as far as that is known.
    pub(crate) fn main_site(&self) -> Option<u32> {
        self.sites.iter().max_by_key(|(_, bytes)| **bytes).map(|(site, _)| *site)
    }
}

/// Memory that was allocated at one place.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SiteSum {
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

impl SiteSum {
    fn add(&mut self, other: SiteSum) {
        self.bytes += other.bytes;
        self.blocks += other.blocks;
    }
}

/// By place, as history names it.
pub(crate) type Sites = BTreeMap<u32, SiteSum>;

/// A free inside a collection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Freed {
    pub(super) address: usize,
    pub(super) bytes: u64,
    /// Where the block was allocated; 0 if that is not known.
    pub(super) site: u32,
}

/// Sums over collections.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sum {
    pub(crate) collections: u64,
    pub(crate) freed_bytes: u64,
    pub(crate) freed_blocks: u64,
}

/// One collection, as far as it concerns one device.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// The allocator asked for it; otherwise the program did, or its automatic collector.
    pub(crate) under_pressure: bool,
    pub(crate) generation: usize,
    /// Dead objects found.
    pub(crate) objects: usize,
    pub(crate) freed_bytes: u64,
    pub(crate) freed_blocks: u64,
    pub(crate) elapsed: Duration,
    /// Where what was freed had been allocated, as far as that is known.
    pub(crate) sites: Sites,
    /// Who held what was freed; `None` if that was not recorded.
    pub(crate) holdings: Option<Vec<Holding>>,
}

/// What is known about one device.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    pub(crate) pressure: Sum,
    pub(crate) program: Sum,
    /// Of what they freed, the part in collections whose holders were recorded.
    pub(crate) recorded_bytes: u64,
    pub(crate) holdings: BTreeMap<String, Holding>,
    pub(crate) sites: Sites,
    /// The newest last.
    pub(crate) recent: VecDeque<Record>,
}

static LEDGERS: Mutex<Vec<Ledger>> = Mutex::new(Vec::new());

/// The collection that runs now. There is one at a time.
#[derive(Default)]
struct Current {
    began: Option<Instant>,
    holdings: Option<Vec<Holding>>,
    /// By device.
    sites: BTreeMap<usize, Sites>,
}

static CURRENT: Mutex<Current> = Mutex::new(Current { began: None, holdings: None, sites: BTreeMap::new() });

struct Tally {
    bytes: AtomicU64,
    blocks: AtomicU64,
}

static TALLIES: [Tally; MAX_DEVICES as usize] =
    [const { Tally { bytes: AtomicU64::new(0), blocks: AtomicU64::new(0) } }; MAX_DEVICES as usize];

thread_local! {
    /// The frees of this thread, while somebody listens.
    static LISTENING: RefCell<Option<Vec<Freed>>> = const { RefCell::new(None) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A collection begins: forgets what an unseen end left behind.
pub(super) fn begin() {
    if is_forked() {
        return;
    }
    for tally in &TALLIES {
        tally.bytes.store(0, Ordering::Relaxed);
        tally.blocks.store(0, Ordering::Relaxed);
    }
    *lock(&CURRENT) = Current { began: Some(Instant::now()), ..Current::default() };
}

/// Counts a free inside a collection, of a block that was allocated at `site`, 0 if that is not known. Waits for no
/// lock, and needs memory only while somebody listens, or with history on.
pub(super) fn count_free(device: usize, bytes: u64, site: u32, address: impl FnOnce() -> Option<usize>) {
    if let Some(tally) = TALLIES.get(device) {
        tally.bytes.fetch_add(bytes, Ordering::Relaxed);
        tally.blocks.fetch_add(1, Ordering::Relaxed);
    }
    if site != 0
        && let Ok(mut current) = CURRENT.try_lock()
    {
        current.sites.entry(device).or_default().entry(site).or_default().add(SiteSum { bytes, blocks: 1 });
    }
    let _ = LISTENING.try_with(|listening| {
        if let Ok(mut listening) = listening.try_borrow_mut()
            && let Some(freed) = &mut *listening
            && let Some(address) = address()
        {
            freed.push(Freed { address, bytes, site });
        }
    });
}

/// Runs `body` and returns what this thread freed meanwhile.
pub(super) fn listen(body: impl FnOnce()) -> Vec<Freed> {
    LISTENING.set(Some(Vec::new()));
    body();
    LISTENING.take().unwrap_or_default()
}

/// Keeps who held what the current collection has freed.
pub(super) fn note_holdings(holdings: Vec<Holding>) {
    if !is_forked() {
        lock(&CURRENT).holdings = Some(holdings);
    }
}

/// A collection ended: writes it down for the devices that it concerned.
pub(super) fn end(kind: Option<CollectionKind>, generation: usize, objects: usize, devices: usize) {
    if is_forked() {
        return;
    }
    let Current { began, holdings, mut sites } = std::mem::take(&mut *lock(&CURRENT));
    let Some(began) = began else { return };
    let under_pressure = kind == Some(CollectionKind::Gate);
    let elapsed = began.elapsed();
    for (device, tally) in TALLIES.iter().enumerate().take(devices) {
        let freed_bytes = tally.bytes.swap(0, Ordering::Relaxed);
        let freed_blocks = tally.blocks.swap(0, Ordering::Relaxed);
        if !under_pressure && freed_blocks == 0 {
            continue;
        }
        let own = |holdings: &Vec<Holding>| {
            holdings.iter().filter(|holding| holding.device == device).cloned().collect()
        };
        let record = Record {
            under_pressure,
            generation,
            objects,
            freed_bytes,
            freed_blocks,
            elapsed,
            sites: sites.remove(&device).unwrap_or_default(),
            holdings: holdings.as_ref().map(own),
        };
        with_ledger(device, |ledger| ledger.add(record));
    }
}

impl Ledger {
    fn add(&mut self, record: Record) {
        let sum = if record.under_pressure { &mut self.pressure } else { &mut self.program };
        sum.collections += 1;
        sum.freed_bytes += record.freed_bytes;
        sum.freed_blocks += record.freed_blocks;
        if let Some(holdings) = &record.holdings {
            self.recorded_bytes += record.freed_bytes;
            holdings.iter().for_each(|holding| self.add_holding(holding));
        }
        for (site, sum) in &record.sites {
            // The rest goes under 0, as what is not known.
            let known = self.sites.contains_key(site) || self.sites.len() < MOST_SITES;
            self.sites.entry(if known { *site } else { 0 }).or_default().add(*sum);
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(record);
    }

    fn add_holding(&mut self, holding: &Holding) {
        let known = self.holdings.contains_key(&holding.holder.name) || self.holdings.len() < MOST_TYPES;
        let name = if known { &holding.holder.name } else { OTHER_TYPES };
        let sum = self.holdings.entry(name.to_owned()).or_insert_with(|| Holding {
            holder: if known { holding.holder.clone() } else { Holder::default() },
            device: holding.device,
            ..Holding::default()
        });
        sum.bytes += holding.bytes;
        sum.blocks += holding.blocks;
        sum.native_bytes += holding.native_bytes;
        sum.cycles += holding.cycles;
        for (site, bytes) in &holding.sites {
            if sum.sites.contains_key(site) || sum.sites.len() < MOST_SITES {
                *sum.sites.entry(*site).or_default() += bytes;
            }
        }
    }
}

/// Runs `body` with both locks held, for tests of what a forked child does then.
pub(crate) fn while_locked(body: impl FnOnce()) {
    let (_ledgers, _current) = (lock(&LEDGERS), lock(&CURRENT));
    body();
}

fn with_ledger<R>(device: usize, use_it: impl FnOnce(&mut Ledger) -> R) -> R {
    let mut ledgers = lock(&LEDGERS);
    if ledgers.len() <= device {
        ledgers.resize_with(device + 1, Ledger::default);
    }
    use_it(&mut ledgers[device])
}

/// What is known about a device. The process is no forked child.
pub(crate) fn ledger(device: usize) -> Ledger {
    with_ledger(device, |ledger| ledger.clone())
}

/// Forgets what is known about a device. The process is no forked child.
pub(crate) fn reset(device: usize) {
    drop(with_ledger(device, std::mem::take));
}
