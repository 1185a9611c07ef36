//! From a stack's hash to its number, without a lock.
//!
//! Open addressing in tables of growing size; a table is never changed but by filling an empty slot, and never freed
//! before all. Readers look in the newest. One writer at a time, whom `sites` admits. A slot's number is written before
//! its hash, which readers acquire. A reader that looks in a table just replaced may miss what is new, and asks
//! under the lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

const FIRST_SLOTS: usize = 1 << 12;
const GENERATIONS: usize = 10;

#[derive(Default)]
struct Slot {
    /// 0 for an empty slot.
    hash: AtomicU64,
    site: AtomicU32,
}

/// The tables.
pub(crate) struct Table {
    generations: [OnceLock<Box<[Slot]>>; GENERATIONS],
    newest: AtomicUsize,
    used: AtomicUsize,
}

impl Default for Table {
    fn default() -> Self {
        Table { generations: [const { OnceLock::new() }; GENERATIONS], newest: 0.into(), used: 0.into() }
    }
}

impl Table {
    /// The number stored for a hash.
    #[inline]
    pub(crate) fn find(&self, hash: u64) -> Option<u32> {
        let slots = self.generations[self.newest.load(Ordering::Acquire)].get()?;
        slot_of(slots, hash).ok().map(|slot| slot.site.load(Ordering::Relaxed))
    }

    /// Stores a number; false if there is no room. Called by one thread at a time, with a hash that is not stored.
    pub(crate) fn insert(&self, hash: u64, site: u32) -> bool {
        let newest = self.newest.load(Ordering::Relaxed);
        let slots = self.generations[newest].get_or_init(|| empty(FIRST_SLOTS << newest));
        let used = self.used.load(Ordering::Relaxed);
        if (used + 1) * 2 > slots.len() {
            return self.grow(newest) && self.insert(hash, site);
        }
        if let Err(slot) = slot_of(slots, hash) {
            fill(slot, hash, site);
            self.used.store(used + 1, Ordering::Relaxed);
        }
        true
    }

    fn grow(&self, newest: usize) -> bool {
        let (Some(slots), Some(next)) = (self.generations[newest].get(), self.generations.get(newest + 1))
        else {
            return false;
        };
        let larger = next.get_or_init(|| empty(FIRST_SLOTS << (newest + 1)));
        for old in slots.iter().filter(|slot| slot.hash.load(Ordering::Relaxed) != 0) {
            let hash = old.hash.load(Ordering::Relaxed);
            if let Err(slot) = slot_of(larger, hash) {
                fill(slot, hash, old.site.load(Ordering::Relaxed));
            }
        }
        self.newest.store(newest + 1, Ordering::Release);
        true
    }
}

fn empty(count: usize) -> Box<[Slot]> {
    (0..count).map(|_| Slot::default()).collect()
}

/// The slot of a hash, or the empty one where it belongs. At least half of the slots are empty.
#[inline]
fn slot_of(slots: &[Slot], hash: u64) -> Result<&Slot, &Slot> {
    let mask = slots.len() - 1;
    let mut index = hash as usize & mask;
    loop {
        let slot = &slots[index];
        match slot.hash.load(Ordering::Acquire) {
            0 => return Err(slot),
            found if found == hash => return Ok(slot),
            _ => index = (index + 1) & mask,
        }
    }
}

fn fill(slot: &Slot, hash: u64, site: u32) {
    slot.site.store(site, Ordering::Relaxed);
    slot.hash.store(hash, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes of which every fourth meets others.
    fn hash(number: u64) -> u64 {
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) << 2) | 1
    }

    #[test]
    fn what_is_stored_is_found_after_growing_and_nothing_else() {
        let table = Table::default();
        assert_eq!(table.find(1), None);
        for number in 0..5000 {
            assert!(table.insert(hash(number), number as u32 + 1));
        }
        for number in 0..5000 {
            assert_eq!(table.find(hash(number)), Some(number as u32 + 1));
        }
        assert_eq!(table.find(hash(5000)), None);
        assert!(table.newest.load(Ordering::Relaxed) > 0, "the test is about growing");
    }

    #[test]
    fn readers_find_all_that_was_stored_before_while_it_grows() {
        let table = Table::default();
        let stored = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while stored.load(Ordering::Acquire) < 20_000 {
                    let known = stored.load(Ordering::Acquire);
                    // A miss is allowed while a table is replaced, a wrong number never.
                    for number in known.saturating_sub(8)..known {
                        let found = table.find(hash(number));
                        assert!(found.is_none_or(|site| u64::from(site) == number + 1));
                    }
                }
            });
            for number in 0..20_000 {
                assert!(table.insert(hash(number), number as u32 + 1));
                stored.store(number + 1, Ordering::Release);
            }
        });
    }
}
