//! What recording costs: `FlexAllocator` with its history on against the same with it off.
//!
//! The shortest of many short rounds counts, so that a busy machine does not. What history costs while it is off is in
//! the instruction counts of `locked`, which are held against the baselines.

use std::hint::black_box;
use std::time::Instant;

use crate::peers::flex_locked::FlexLocked;
use crate::peers::flex_recording::FlexRecording;
use crate::peers::{Peer, UNIT_BYTES};

const ROUNDS: u32 = 500;
const PAIRS: u32 = 1_000;

/// A pair leaves an event of the allocation and one of the free.
const EVENTS_OF_A_PAIR: f64 = 2.0;

/// Sizes of which pairs take no lock, and such that do.
const SIZES: [(&str, u64); 2] = [("1 KiB, from a magazine", 1 << 10), ("4 MiB, with the lock", 4 << 20)];

/// Nanoseconds of an event, of the dearer size. Prints those of both.
pub(crate) fn event_ns() -> f64 {
    println!("\n{:<24} {:>9} {:>9} {:>9}", "ns of a pair", "off", "recording", "an event");
    let mut dearest = 0.0_f64;
    for (name, bytes) in SIZES {
        let units = (bytes / UNIT_BYTES) as u32;
        let (off, on) = (pair_ns::<FlexLocked>(units), pair_ns::<FlexRecording>(units));
        let event_ns = (on - off) / EVENTS_OF_A_PAIR;
        println!("{name:<24} {off:>9.1} {on:>9.1} {event_ns:>9.1}");
        dearest = dearest.max(event_ns);
    }
    dearest
}

/// Nanoseconds of a pair of one size, in the shortest of the rounds.
fn pair_ns<P: Peer>(size_units: u32) -> f64 {
    let mut peer = P::new(u64::from(size_units) * 16);
    let round = || {
        let started = Instant::now();
        for _ in 0..PAIRS {
            let block = peer.allocate(black_box(size_units)).expect("room for one block");
            peer.free(block);
        }
        started.elapsed().as_nanos() as f64 / f64::from(PAIRS)
    };
    std::iter::repeat_with(round).take(ROUNDS as usize).fold(f64::INFINITY, f64::min)
}
