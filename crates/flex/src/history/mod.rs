//! History: what happened on a device, and where its live blocks were allocated.
//!
//! Off at start, and then a flag that every allocation and free looks at. While it is on, events go into a bounded
//! `ring` that overwrites its oldest entries, and each allocated block gets a note that lives as long as it.
//! The core knows places in the program as numbers only; [`Sites`] makes them.
//!
//! When things are recorded: an allocation after its placement, on the thread that asked, with the mutex free; a free
//! when the right to free the block has been won and before anybody can use the block again. So of two events of one
//! block the later one has the higher number, and a double free leaves no event. A free that finds the allocator busy
//! is two events: its request, and its completion when whoever has the mutex takes the block in. A parked block is free
//! for its thread at once, so parking is no event.
//!
//! Locks: recording takes none, and may happen under the allocator mutex. Sites are asked for with that mutex free;
//! a thread that would have to wait for the provider, which is just being replaced, does without one. `control` is for
//! those who change the recording or read it.
//!
//! Memory: rings once made are kept for the next recording of their size, since no thread says when it is done with
//! one.

pub(crate) mod event;
mod notes;
mod options;
mod ring;
mod thread_id;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};
use std::time::{Instant, SystemTime};

pub use event::{Event, EventBlock, EventKind, EventKinds, EventRegion, PressureOutcome};
pub(crate) use notes::BlockNote;
pub use options::{HistoryOptions, MAX_ENTRIES, RecordedEvents, SiteScope, Sites};
pub(crate) use thread_id::thread_id;

use crate::arena::BlockHandle;
use crate::error::FlexError;
use crate::fork::is_forked;
use crate::sync::now;
use event::{Entry, nanoseconds};
use notes::Notes;
use ring::Ring;

/// The history of one allocator.
///
/// What recording looks at is atomic and made before it is announced, so that it needs no lock. No step of the models:
/// these fields say where to record, and a thread that sees old ones records where nobody looks any more.
pub(crate) struct History {
    /// See [`flag`].
    flags: AtomicU32,
    /// Which of `rings` is in use.
    ring: AtomicU32,
    /// By the logarithm of their slots. Kept once made: a thread may always be about to write.
    rings: [OnceLock<Ring>; RINGS],
    /// Events that are not recorded.
    without: AtomicU16,
    clock: OnceLock<Clock>,
    /// Read for as long as the provider takes. A thread that would have to wait for it does without a site.
    sites: RwLock<Option<Arc<dyn Sites>>>,
    /// Taken with no other lock held, to change what is recorded and to read it.
    control: Mutex<Control>,
    notes: Notes,
}

/// What readers and those who change the recording need to know.
#[derive(Default)]
struct Control {
    /// Events before this number are forgotten.
    first: u64,
    /// How many of the newest events are shown.
    most: u64,
    /// Rings that were in use since then, and the number at which they were left: what threads that were late have
    /// recorded in them after that is lost.
    left: Vec<(u32, u64)>,
    /// How much that was in rings that are no longer among those.
    lost: u64,
    /// How often recording has begun.
    recordings: u64,
    /// The number at which it did the last time.
    began: u64,
}

impl Control {
    /// What is told where nothing was read.
    fn nothing_from(&self, from: u64) -> RecordedEvents {
        let (recordings, began) = (self.recordings, self.began);
        RecordedEvents { next: from, recordings, began, ..RecordedEvents::default() }
    }
}

/// What the flags say.
mod flag {
    pub(super) const ON: u32 = 1;
    /// There is a provider of sites.
    pub(super) const SITES: u32 = 1 << 1;
    /// Events of allocations are given their sites.
    pub(super) const OF_ALLOCATIONS: u32 = 1 << 2;
    /// Those of frees too.
    pub(super) const OF_FREES: u32 = 1 << 3;
}

/// Rings of 1 slot to [`MAX_ENTRIES`], and the one without any.
const RINGS: usize = MAX_ENTRIES.ilog2() as usize + 2;

/// How many events are kept where so many were asked for.
fn entries(max_entries: usize) -> u32 {
    u32::try_from(max_entries).unwrap_or(u32::MAX).min(MAX_ENTRIES)
}

/// The ring for so many events.
fn ring_for(most: u32) -> usize {
    if most == 0 { RINGS - 1 } else { most.next_power_of_two().ilog2() as usize }
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

impl Default for History {
    fn default() -> Self {
        History {
            flags: AtomicU32::new(0),
            ring: AtomicU32::new(RINGS as u32 - 1),
            rings: [const { OnceLock::new() }; RINGS],
            without: AtomicU16::new(0),
            clock: OnceLock::new(),
            sites: RwLock::new(None),
            control: Mutex::new(Control::default()),
            notes: Notes::new(),
        }
    }
}

impl History {
    /// Whether anything is recorded.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.flags.load(Ordering::Relaxed) != 0
    }

    fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    /// Begins, changes or ends recording. Called with no lock held.
    pub(crate) fn set(&self, options: Option<HistoryOptions>) -> Result<(), FlexError> {
        if is_forked() {
            return Err(FlexError::Forked);
        }
        let mut control = self.lock();
        let sites = match options {
            Some(options) => self.begin(&mut control, options)?,
            None => {
                self.flags.store(0, Ordering::Relaxed);
                None
            }
        };
        let before =
            std::mem::replace(&mut *self.sites.write().unwrap_or_else(PoisonError::into_inner), sites);
        drop(control);
        drop(before); // With nothing locked: a provider of sites is foreign code.
        Ok(())
    }

    /// Begins or changes recording; returns who tells places apart from now on.
    fn begin(
        &self,
        control: &mut Control,
        options: HistoryOptions,
    ) -> Result<Option<Arc<dyn Sites>>, FlexError> {
        let most = entries(options.max_entries);
        let index = self.reserve_ring(most)?;
        self.clock.get_or_init(Clock::start);
        let is_new = !self.is_on();
        self.change_ring(control, index, options.clear || is_new);
        if is_new {
            control.recordings += 1;
            control.began = self.next_number();
        }
        control.most = most.into();
        self.without.store(options.without.bits(), Ordering::Relaxed);
        let wanted = [
            (true, flag::ON),
            (options.sites.is_some(), flag::SITES),
            (options.scope >= SiteScope::Allocations, flag::OF_ALLOCATIONS),
            (options.scope == SiteScope::All, flag::OF_FREES),
        ];
        let flags = wanted.into_iter().filter_map(|(wanted, flag)| wanted.then_some(flag)).sum();
        self.flags.store(flags, Ordering::Relaxed);
        Ok(options.sites)
    }

    /// Makes the ring for so many events, so that nothing is left that a recording of so many could fail for.
    pub(crate) fn reserve(&self, max_entries: usize) -> Result<(), FlexError> {
        if is_forked() {
            return Err(FlexError::Forked);
        }
        let _control = self.lock();
        self.reserve_ring(entries(max_entries)).map(drop)
    }

    /// The index of the ring for so many events, which is made if it is not there. The control is locked.
    fn reserve_ring(&self, most: u32) -> Result<usize, FlexError> {
        let index = ring_for(most);
        if self.rings[index].get().is_none() {
            let ring = Ring::new(most).ok_or(FlexError::HistoryTooLarge { max_entries: most })?;
            // Nobody else makes one: the control is locked.
            let _ = self.rings[index].set(ring);
        }
        Ok(index)
    }

    /// Goes over to another ring, with what the one before has recorded unless that is to be forgotten.
    fn change_ring(&self, control: &mut Control, index: usize, forget: bool) {
        let (before, ring) = (self.current(), &self.rings[index]);
        let (Some(before), Some(ring)) = (before, ring.get()) else {
            self.ring.store(index as u32, Ordering::Release);
            return;
        };
        let (from, next) = (control.first.max(before.next().saturating_sub(control.most)), before.next());
        if !std::ptr::eq(before, ring) {
            if let Some(again) = control.left.iter().position(|&(other, _)| other == index as u32) {
                let again = control.left.swap_remove(again);
                control.lost += self.late_in(again);
            }
            ring.continue_at(next);
            control.left.push((self.ring.swap(index as u32, Ordering::Release), next));
            if !forget {
                // Others record meanwhile: an entry that they wrote into the same slot is newer, and stays.
                before.read(from, next, |sequence, words| ring.restore(sequence, &words));
            }
        }
        if forget {
            let Control { recordings, began, .. } = *control;
            *control = Control { first: ring.next(), recordings, began, ..Control::default() };
        }
    }

    /// Records an event; its number, unless its kind is not wanted. May be called under the allocator mutex.
    #[cold]
    pub(crate) fn record(&self, kind: EventKind, site: u32) -> Option<u64> {
        self.record_at(&kind, site, thread_id(), self.now_ns())
    }

    /// As [`record`](Self::record), of something that happened for the sake of another thread.
    #[cold]
    pub(crate) fn record_for(&self, kind: EventKind, site: u32, thread_id: u32) -> Option<u64> {
        self.record_at(&kind, site, thread_id, self.now_ns())
    }

    /// Records an allocation, and notes where its block comes from. `site` was found before, or is found here: then the
    /// allocator mutex is free.
    #[cold]
    pub(crate) fn record_allocation(&self, handle: BlockHandle, block: EventBlock, site: Option<u32>) {
        let site = site.unwrap_or_else(|| self.allocation_site());
        let time_ns = self.now_ns();
        self.notes.write(handle, BlockNote { site, time_ns });
        self.record_at(&EventKind::Allocated(block), self.shown(site), thread_id(), time_ns);
    }

    #[inline]
    fn record_at(&self, kind: &EventKind, site: u32, thread_id: u32, time_ns: u64) -> Option<u64> {
        let without = EventKinds::from_bits(self.without.load(Ordering::Relaxed));
        let entry = Entry::new(kind).without(without)?;
        let entry = Entry { time_ns, thread_id, site, ..entry };
        Some(self.current()?.record(&entry.to_words()))
    }

    /// Where the calling thread allocates; 0 while history is off. The allocator mutex is free.
    pub(crate) fn allocation_site(&self) -> u32 {
        if self.has(flag::SITES) { self.site() } else { 0 }
    }

    /// Where the calling thread frees. The allocator mutex is free.
    pub(crate) fn free_site(&self) -> u32 {
        if self.has(flag::SITES) && self.has(flag::OF_FREES) { self.site() } else { 0 }
    }

    /// The site of an event that happens for the sake of an allocation at `site`.
    pub(crate) fn shown(&self, site: u32) -> u32 {
        if self.has(flag::OF_ALLOCATIONS) { site } else { 0 }
    }

    /// What is known of a live block.
    pub(crate) fn note(&self, handle: BlockHandle) -> BlockNote {
        self.notes.read(handle)
    }

    /// The events from one number to before another, of those that are shown. The process is no forked child.
    pub(crate) fn read(&self, from: u64, until: u64) -> RecordedEvents {
        let control = self.lock();
        let Some(ring) = self.current().filter(|_| self.is_on()) else { return control.nothing_from(from) };
        let until = until.min(ring.next());
        let from = from.max(control.first).min(until);
        // What is older than what is shown is as good as overwritten.
        let shown = from.max(ring.next().saturating_sub(control.most)).min(until);
        let mut recorded = self.read_ring(&control, ring, shown, until);
        recorded.lost += shown - from;
        if from == control.first {
            recorded.lost += recorded.late;
        }
        recorded
    }

    /// The events from one number on that are still there, shown or not. The process is no forked child.
    pub(crate) fn drain(&self, from: u64) -> RecordedEvents {
        let control = self.lock();
        let Some(ring) = self.current() else { return control.nothing_from(from) };
        let until = ring.next();
        self.read_ring(&control, ring, from.min(until), until)
    }

    fn read_ring(&self, control: &Control, ring: &Ring, from: u64, until: u64) -> RecordedEvents {
        let mut events = Vec::new();
        let lost = ring.read(from, until, |sequence, words| {
            events.extend(Entry::from_words(words).event(sequence));
        });
        let late = control.lost + control.left.iter().map(|&left| self.late_in(left)).sum::<u64>();
        RecordedEvents { events, lost, late, ..control.nothing_from(until) }
    }

    /// The number of the next event, also while nothing is recorded.
    pub(crate) fn next_number(&self) -> u64 {
        self.current().map_or(0, Ring::next)
    }

    /// How many events threads have recorded in a ring after it was left.
    fn late_in(&self, (index, left): (u32, u64)) -> u64 {
        self.rings[index as usize].get().map_or(0, |ring| ring.next().saturating_sub(left))
    }

    fn now_ns(&self) -> u64 {
        self.clock.get().map_or(0, Clock::now_ns)
    }

    /// The ring in use.
    #[inline]
    fn current(&self) -> Option<&Ring> {
        self.rings.get(self.ring.load(Ordering::Acquire) as usize)?.get()
    }

    fn site(&self) -> u32 {
        let sites = match self.sites.try_read() {
            Ok(sites) => sites,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return 0,
        };
        sites.as_ref().map_or(0, |sites| sites.current())
    }

    fn lock(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
