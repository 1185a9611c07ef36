//! loom: entries are whole or missing, whoever writes and reads the ring at the same time, and missing ones are
//! counted.

use super::event::WORDS;
use super::ring::Ring;
use crate::sync::model::check;
use crate::sync::thread::spawn;
use std::sync::Arc;

/// An entry whose words all say the same.
fn entry(value: u64) -> [u64; WORDS] {
    [value; WORDS]
}

/// The entries from `from` on, none of them torn, and how many are missing.
fn read(ring: &Ring, from: u64) -> (Vec<(u64, u64)>, u64) {
    let mut seen = Vec::new();
    let missing = ring.read(from, u64::MAX, |sequence, words| {
        assert_eq!(words, entry(words[0]), "torn");
        seen.push((sequence, words[0]));
    });
    (seen, missing)
}

/// Two threads: one overwrites the only slot, the other reads. At most two preemptions.
#[test]
fn an_entry_that_is_overwritten_is_not_read_in_part() {
    check(Some(2), || {
        let ring = Arc::new(Ring::new(1).unwrap());
        ring.record(&entry(0));
        let writer = {
            let ring = Arc::clone(&ring);
            spawn(move || ring.record(&entry(1)))
        };
        let (seen, missing) = read(&ring, 0);
        assert!(seen.iter().all(|&(sequence, value)| sequence == value));
        assert!((1..=2).contains(&(seen.len() as u64 + missing)));
        assert_eq!(writer.join().unwrap(), 1);
        assert_eq!(read(&ring, 0), (vec![(1, 1)], 1));
    });
}

/// Three threads: two write into the only slot, the third reads. At most three preemptions.
#[test]
fn of_two_writers_of_a_slot_one_gives_up_or_the_newer_stays() {
    check(Some(3), || {
        let ring = Arc::new(Ring::new(1).unwrap());
        let writers = [10, 20].map(|value| {
            let ring = Arc::clone(&ring);
            spawn(move || (ring.record(&entry(value)), value))
        });
        read(&ring, 0);
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        let (seen, missing) = read(&ring, 0);
        assert_eq!(seen.len() as u64 + missing, 2, "both have a number");
        assert!(seen.iter().all(|entry| written.contains(entry)));
    });
}

/// Two threads: each records what it did before another could go on from there; one hands over to the other. All
/// executions.
#[test]
fn of_two_events_of_one_block_the_later_has_the_higher_number() {
    use crate::sync::atomic::{AtomicBool, Ordering};
    check(None, || {
        let ring = Arc::new(Ring::new(2).unwrap());
        let free = Arc::new(AtomicBool::new(false));
        let freeing = {
            let (ring, free) = (Arc::clone(&ring), Arc::clone(&free));
            spawn(move || {
                let freed = ring.record(&entry(1));
                free.store(true, Ordering::Release);
                freed
            })
        };
        let allocated = free.load(Ordering::Acquire).then(|| ring.record(&entry(2)));
        let freed = freeing.join().unwrap();
        assert!(allocated.is_none_or(|allocated| allocated > freed));
    });
}
