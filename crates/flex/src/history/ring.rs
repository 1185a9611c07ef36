//! The ring: a bounded number of entries, of which new ones overwrite the oldest.
//!
//! Any thread records, without waiting. Every entry has a number of its own, counted without a gap, so a reader knows
//! how many it missed. Each slot is a seqlock: its stamp says which entry is in it, and whether that is whole.
//!
//! Invariants:
//! - a slot belongs to one writer at a time: the one that turned its stamp from whole to half-written;
//! - stamps only grow; who finds a slot half-written, or with a newer entry, gives its own entry up, and its number is
//!   missing: a thread that is stopped in the middle of a write costs one slot, never a wait;
//! - a reader takes an entry only if the stamp says before and after reading it that the entry is whole.
//!
//! Memory: 64 bytes a slot, committed by the system when first written.

use super::event::WORDS;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::zeroed;

/// A stamp, then the words of the entry.
type Slot = [AtomicU64; WORDS + 1];

/// Nothing was ever written.
const EMPTY: u64 = 0;

/// The stamp of a slot while entry `sequence` is written into it.
fn half_written(sequence: u64) -> u64 {
    2 * sequence + 1
}

/// The stamp of a slot that has entry `sequence`.
fn whole(sequence: u64) -> u64 {
    2 * sequence + 2
}

/// The entries, in slots by their number modulo the number of slots.
pub(super) struct Ring {
    slots: Box<[Slot]>,
    /// The number of the next entry.
    next: AtomicU64,
}

impl Ring {
    /// A ring for at least `most` entries: the next power of two; `None` if there is no memory for it.
    pub(super) fn new(most: u32) -> Option<Ring> {
        let slots = if most == 0 { 0 } else { most.next_power_of_two() as usize };
        Some(Ring { slots: zeroed(slots)?, next: AtomicU64::new(0) })
    }

    /// Has the next entry have this number at least.
    pub(super) fn continue_at(&self, next: u64) {
        self.next.fetch_max(next, Ordering::Relaxed);
    }

    /// The number of the next entry.
    pub(super) fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// Records an entry; returns its number.
    #[inline]
    pub(super) fn record(&self, words: &[u64; WORDS]) -> u64 {
        let sequence = self.next.fetch_add(1, Ordering::Relaxed);
        if let Some(slot) = self.slot(sequence) {
            write(slot, sequence, words);
        }
        sequence
    }

    /// Puts an entry with its number into a ring that nobody else uses yet.
    pub(super) fn restore(&self, sequence: u64, words: &[u64; WORDS]) {
        if let Some(slot) = self.slot(sequence) {
            write(slot, sequence, words);
        }
    }

    /// Calls `take` with the entries from `from` to before `until`, oldest first, that are still there and whole.
    /// Returns how many of those numbers are missing.
    pub(super) fn read(&self, from: u64, until: u64, mut take: impl FnMut(u64, [u64; WORDS])) -> u64 {
        let until = until.min(self.next());
        let first = from.max(self.next().saturating_sub(self.slots.len() as u64)).min(until);
        let mut missing = first.saturating_sub(from);
        for sequence in first..until {
            match self.find(sequence) {
                Some(words) => take(sequence, words),
                None => missing += 1,
            }
        }
        missing
    }

    /// The entry with this number, if it is whole: not overwritten, and not being written.
    fn find(&self, sequence: u64) -> Option<[u64; WORDS]> {
        let slot = self.slot(sequence)?;
        if slot[0].load(Ordering::Acquire) != whole(sequence) {
            return None;
        }
        let words = std::array::from_fn(|word| slot[word + 1].load(Ordering::Relaxed));
        // Whoever overwrote a word that was read has marked the slot before that.
        fence(Ordering::Acquire);
        (slot[0].load(Ordering::Relaxed) == whole(sequence)).then_some(words)
    }

    #[inline]
    fn slot(&self, sequence: u64) -> Option<&Slot> {
        let mask = self.slots.len().wrapping_sub(1);
        self.slots.get(sequence as usize & mask)
    }
}

/// Writes an entry, unless the slot is another writer's or has a newer one.
#[inline]
fn write(slot: &Slot, sequence: u64, words: &[u64; WORDS]) {
    let stamp = slot[0].load(Ordering::Relaxed);
    let is_half_written = stamp != EMPTY && stamp % 2 == 1;
    if is_half_written || stamp > whole(sequence) {
        return;
    }
    // Acquire: the words of the entry before come before these.
    if slot[0].compare_exchange(stamp, half_written(sequence), Ordering::Acquire, Ordering::Relaxed).is_err()
    {
        return;
    }
    fence(Ordering::Release);
    for (kept, &word) in slot[1..].iter().zip(words) {
        kept.store(word, Ordering::Relaxed);
    }
    slot[0].store(whole(sequence), Ordering::Release);
}
