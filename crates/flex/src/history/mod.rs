//! History: what happened on a device, and where its live blocks were allocated.
//!
//! Off at start, and then a flag that every allocation and free looks at. While it is on, events go into a bounded
//! [`ring`] that overwrites its oldest entries, and each allocated block gets a [note](notes) that lives as long as it.
//! The core knows places in the program as numbers only; [`Sites`] makes them.
//!
//! When things are recorded: an allocation after its placement, on the thread that asked, with the mutex free; a free
//! when the right to free the block has been won and before anybody can use the block again. So of two events of one
//! block the later one has the higher number, and a double free leaves no event. A free that finds the allocator busy
//! is two events: its request, and its completion when whoever has the mutex takes the block in. A parked block is free
//! for its thread at once, so parking is no event.
//!
//! Locks: recording takes none that it would wait for, and may happen under the allocator mutex. `recorder` is locked for
//! writing for as long as it takes to replace it; a thread that meets that gives its event up, and the event counts as
//! lost. Sites are asked for with the mutex free.

pub(crate) mod event;
mod notes;
mod ring;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Instant, SystemTime};

pub use event::{Event, EventBlock, EventKind, EventKinds, EventRegion, PressureOutcome};
pub(crate) use notes::BlockNote;

use crate::arena::BlockHandle;
use crate::error::FlexError;
use crate::fork::is_forked;
use crate::sync::{RwLock, RwLockWriteGuard, now};
use event::{Entry, nanoseconds};
use notes::Notes;
use ring::Ring;

/// The most events that a history keeps: 64 bytes each, 256 MiB in all, taken from the system as they are needed.
pub const MAX_ENTRIES: u32 = 1 << 22;

/// Tells places in the program apart.
///
/// Called by threads that allocate and free, inside collections too, with no allocator mutex held. It must neither wait
/// nor panic, and use no allocator of a device.
pub trait Sites: Send + Sync {
    /// A number for where the calling thread is now; 0 if that is not known. Equal places have equal numbers.
    fn current(&self) -> u32;
}

/// Which events are given a site. Live blocks have theirs in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SiteScope {
    /// None.
    LiveBlocks,
    /// Allocations, and what happens for the sake of one: regions acquired, pressure, out of memory.
    Allocations,
    /// Frees too.
    #[default]
    All,
}

/// What a history keeps.
#[derive(Clone, Default)]
pub struct HistoryOptions {
    /// How many of the newest events; at most [`MAX_ENTRIES`], and 0 for notes on live blocks alone.
    pub max_entries: usize,
    /// Who tells places apart; without one all sites are 0.
    pub sites: Option<Arc<dyn Sites>>,
    /// Which events are given a site.
    pub scope: SiteScope,
    /// Events that are not recorded.
    pub without: EventKinds,
    /// Forget what was recorded before.
    pub clear: bool,
}

impl fmt::Debug for HistoryOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HistoryOptions")
            .field("max_entries", &self.max_entries)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

/// Events that were read.
#[derive(Debug, Clone, Default)]
pub struct RecordedEvents {
    /// Those that were still there, oldest first.
    pub events: Vec<Event>,
    /// How many were not: overwritten by newer ones, or given up because a slot or the recorder was busy.
    pub lost: u64,
    /// The number of the first event that was not looked at.
    pub next: u64,
}

/// The history of one allocator.
pub(crate) struct History {
    /// Whether there is a recorder. No step of the models: nothing is decided by it that must be right.
    on: AtomicBool,
    recorder: RwLock<Option<Recorder>>,
    /// Held by who replaces the recorder, from beginning to end. Taken with no other lock held.
    replacing: Mutex<()>,
    /// Events given up while the recorder was replaced, not yet counted in the ring.
    missed: AtomicU64,
    /// The number of the next event while history is off.
    next: AtomicU64,
    notes: Notes,
}

/// What records while history is on.
struct Recorder {
    ring: Arc<Ring>,
    /// Events before this number are forgotten.
    first: u64,
    options: HistoryOptions,
    clock: Clock,
}

/// The time since 1970, that never goes back.
#[derive(Debug, Clone, Copy)]
struct Clock {
    started: Instant,
    started_ns: u64,
}

impl Clock {
    fn start() -> Self {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Clock { started: now(), started_ns: nanoseconds(since_1970) }
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.started_ns + nanoseconds(now().saturating_duration_since(self.started))
    }
}

impl Recorder {
    /// The site of the calling thread, if events of that scope are given one.
    fn site(&self, scope: SiteScope) -> u32 {
        let sites = self.options.sites.as_ref().filter(|_| scope <= self.options.scope);
        sites.map_or(0, |sites| sites.current())
    }

    /// Records an event; its number, unless it is of an unwanted kind.
    fn record(&self, kind: &EventKind, site: u32, time_ns: u64) -> Option<u64> {
        let entry = Entry::new(kind).without(self.options.without)?;
        let entry = Entry { time_ns, thread_id: thread_id(), site, ..entry };
        Some(self.ring.record(&entry.to_words()))
    }
}

impl Default for History {
    fn default() -> Self {
        History {
            on: AtomicBool::new(false),
            recorder: RwLock::new(None),
            replacing: Mutex::new(()),
            missed: AtomicU64::new(0),
            next: AtomicU64::new(0),
            notes: Notes::new(),
        }
    }
}

impl History {
    /// Whether anything is recorded.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Begins, changes or ends recording. Called with no lock held.
    pub(crate) fn set(&self, options: Option<HistoryOptions>) -> Result<(), FlexError> {
        if is_forked() {
            return Err(FlexError::Forked);
        }
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let replaced = match options {
            Some(options) => self.install(options)?,
            None => self.remove(),
        };
        drop(replaced); // With the recorder unlocked: a provider of sites is foreign code.
        Ok(())
    }

    fn remove(&self) -> Option<Recorder> {
        self.on.store(false, Ordering::Relaxed);
        let ended = self.write().take();
        if let Some(ended) = &ended {
            self.next.store(ended.ring.next(), Ordering::Relaxed);
        }
        ended
    }

    /// Puts a recorder in place; returns the one before. What that has recorded goes on unless it is to be forgotten.
    fn install(&self, options: HistoryOptions) -> Result<Option<Recorder>, FlexError> {
        let most = u32::try_from(options.max_entries).unwrap_or(u32::MAX).min(MAX_ENTRIES);
        let fits = |ring: &Arc<Ring>| !options.clear && ring.most() == most;
        let kept = self.ring().filter(|(ring, _)| fits(ring)).map(|(ring, _)| ring);
        let ring = match kept {
            Some(ring) => ring,
            None => Arc::new(Ring::new(most).ok_or(FlexError::HistoryTooLarge { max_entries: most })?),
        };
        let clear = options.clear;
        let (before, copied) = {
            let mut place = self.write();
            let before = place.take();
            let next = before.as_ref().map_or(self.next.load(Ordering::Relaxed), |before| before.ring.next());
            let first = before.as_ref().filter(|_| !clear).map_or(next, |before| before.first);
            let clock = before.as_ref().map_or_else(Clock::start, |before| before.clock);
            if before.is_none() {
                self.missed.store(0, Ordering::Relaxed);
            }
            let is_fresh = before.as_ref().is_none_or(|before| !Arc::ptr_eq(&before.ring, &ring));
            if is_fresh {
                ring.continue_at(next);
            }
            *place = Some(Recorder { ring: Arc::clone(&ring), first, options, clock });
            (before, (is_fresh && !clear).then_some(first..next))
        };
        self.on.store(true, Ordering::Relaxed);
        if let (Some(before), Some(copied)) = (&before, copied) {
            // Others record meanwhile: an entry that they wrote in the same slot is newer, and stays.
            before.ring.read(copied.start, copied.end, |sequence, words| ring.restore(sequence, &words));
        }
        Ok(before)
    }

    /// Records an event. May be called under the allocator mutex.
    #[cold]
    pub(crate) fn record(&self, kind: EventKind, site: u32) -> Option<u64> {
        self.with_recorder(|recorder| recorder.record(&kind, site, recorder.clock.now_ns()))?
    }

    /// Records an allocation, and notes where its block comes from. `site` was found before, or is found here: then the
    /// allocator mutex is free.
    #[cold]
    pub(crate) fn record_allocation(&self, handle: BlockHandle, block: EventBlock, site: Option<u32>) {
        self.with_recorder(|recorder| {
            let site = site.unwrap_or_else(|| recorder.site(SiteScope::LiveBlocks));
            let time_ns = recorder.clock.now_ns();
            self.notes.write(handle, BlockNote { site, time_ns });
            let shown = if recorder.options.scope >= SiteScope::Allocations { site } else { 0 };
            recorder.record(&EventKind::Allocated(block), shown, time_ns)
        });
    }

    /// Where the calling thread allocates; 0 while history is off. The allocator mutex is free.
    pub(crate) fn allocation_site(&self) -> u32 {
        if self.is_on() { self.site(SiteScope::LiveBlocks) } else { 0 }
    }

    /// Where the calling thread frees. The allocator mutex is free.
    #[cold]
    pub(crate) fn free_site(&self) -> u32 {
        self.site(SiteScope::All)
    }

    /// The site of an event that happens for the sake of an allocation at `site`.
    pub(crate) fn shown(&self, site: u32) -> u32 {
        let shows = |recorder: &Recorder| recorder.options.scope >= SiteScope::Allocations;
        if site != 0 && self.look(shows).unwrap_or(false) { site } else { 0 }
    }

    /// What is known of a live block.
    pub(crate) fn note(&self, handle: BlockHandle) -> BlockNote {
        self.notes.read(handle)
    }

    /// The events from one number to before another. Takes no lock for long; they are copied one by one.
    pub(crate) fn read(&self, from: u64, until: u64) -> RecordedEvents {
        let Some((ring, first)) = self.ring() else {
            return RecordedEvents { next: from, ..Default::default() };
        };
        ring.skip(self.missed.swap(0, Ordering::Relaxed));
        let (from, until) = (from.max(first), until.min(ring.next()));
        let mut events = Vec::new();
        let lost = ring.read(from, until, |sequence, words| {
            events.extend(Entry::from_words(words).event(sequence));
        });
        RecordedEvents { events, lost, next: until.max(from) }
    }

    fn site(&self, scope: SiteScope) -> u32 {
        self.look(|recorder| recorder.site(scope)).unwrap_or(0)
    }

    /// The ring, and the number of its first event.
    fn ring(&self) -> Option<(Arc<Ring>, u64)> {
        let recorder = self.recorder.read().unwrap_or_else(PoisonError::into_inner);
        recorder.as_ref().map(|recorder| (Arc::clone(&recorder.ring), recorder.first))
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<Recorder>> {
        self.recorder.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records something, or counts it as missed if the recorder is just being replaced.
    fn with_recorder<R>(&self, record: impl FnOnce(&Recorder) -> R) -> Option<R> {
        let recorded = self.look(|recorder| {
            if self.missed.load(Ordering::Relaxed) != 0 {
                recorder.ring.skip(self.missed.swap(0, Ordering::Relaxed));
            }
            record(recorder)
        });
        if recorded.is_none() && self.is_on() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
        recorded
    }

    /// Looks at the recorder, without waiting.
    fn look<R>(&self, look: impl FnOnce(&Recorder) -> R) -> Option<R> {
        match self.recorder.try_read() {
            Ok(recorder) => recorder.as_ref().map(look),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().as_ref().map(look),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// The system's number of the calling thread.
fn thread_id() -> u32 {
    thread_local! {
        static ID: Cell<u32> = const { Cell::new(0) };
    }
    ID.with(|id| {
        if id.get() == 0 {
            id.set(new_thread_id());
        }
        id.get()
    })
}

#[cfg(target_os = "linux")]
fn new_thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Where the system has no such number: one that no other thread of the process has.
#[cfg(not(target_os = "linux"))]
fn new_thread_id() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
