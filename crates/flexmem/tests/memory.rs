//! How much memory an import takes, counted by an allocator: of snapshots a fraction of the file, of hostile files a
//! multiple that is stated.
//!
//! One test after the other in this program: the count is of the process.

#[path = "common/large.rs"]
mod large;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flexmem::TraceFile;
use flexmem::import::Sharing;
use large::Snapshot;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Counting;

// SAFETY: every call goes to the system's allocator as it is; the counters change nothing of that.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Held by a test for all it does: what it makes beside what it measures counts too.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes that were allocated at most while `body` ran, beyond those before.
fn peak_bytes<T>(body: impl FnOnce() -> T) -> (usize, T) {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = body();
    (PEAK.load(Ordering::Relaxed) - before, result)
}

fn file_bytes(events: u64) -> usize {
    std::io::copy(&mut Snapshot::new(events), &mut std::io::sink()).unwrap() as usize
}

#[test]
fn a_snapshot_takes_a_fraction_of_its_size() {
    let _guard = one_at_a_time();
    const EVENTS: u64 = 20_000;
    let size = file_bytes(EVENTS);
    assert!(size > 16 << 20, "{size}");
    let (peak, trace) = peak_bytes(|| TraceFile::import(Snapshot::new(EVENTS), "made"));
    let mut events = 0;
    trace
        .unwrap()
        .each(|record, _| events += u64::from(matches!(record, flex_trace::Record::Event(_))))
        .unwrap();
    assert_eq!(events, EVENTS);
    assert!(peak < size / 8 + (4 << 20), "{peak} bytes of memory for a file of {size}");
}

/// 64 bytes for each byte of the file, and 16 MiB.
#[track_caller]
fn assert_bounded(what: &str, file: &[u8]) {
    for sharing in [Sharing::Refused, Sharing::Kept] {
        let (peak, result) = peak_bytes(|| TraceFile::import_as(file, "hostile", sharing).map(drop));
        let (bound, size) = (64 * file.len() + (16 << 20), file.len());
        assert!(peak < bound, "{what}: {peak} bytes of memory for a file of {size}; bound {bound}");
        assert!(result.is_err(), "{what}");
    }
}

#[test]
fn hostile_pickles_take_no_more_than_the_stated_multiple() {
    let _guard = one_at_a_time();
    let repeated =
        |unit: &[u8]| [b"\x80\x04", unit.repeat((512 << 10) / unit.len()).as_slice(), b"."].concat();
    for (what, unit) in [
        ("empty lists", b"]".as_slice()),
        ("empty dicts", b"}"),
        ("lists that are remembered", b"]\x94"),
        ("marks", b"("),
        ("nothing at all", b"N"),
        ("copies", b"N2222222"),
        ("nested tuples", b")\x85\x85\x85\x85\x85\x85\x85"),
        ("dicts of one entry", b"}K\x01Ns"),
        ("distant places of the memo", b"]r\xff\xff\x1f\x00"),
        ("a value in many places of the memo", b"K\x01q\x01"),
    ] {
        assert_bounded(what, &repeated(unit));
    }
    let mut texts = b"\x80\x04".to_vec();
    for number in 0..60_000_u32 {
        texts.extend([0x8c, 4]);
        texts.extend(format!("{number:04x}").as_bytes().iter().rev().take(4));
    }
    texts.push(b'.');
    assert_bounded("different texts", &texts);
    let mut list = b"\x80\x04]".to_vec();
    for _ in 0..500 {
        list.push(b'(');
        list.extend([b'N'; 1000]);
        list.push(b'e');
    }
    list.push(b'.');
    assert_bounded("a list of nothing", &list);
}

/// A dict of protocol 4, of texts and what is written behind each.
fn dict(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = b"}(".to_vec();
    for (key, value) in entries {
        bytes.extend([0x8c, key.len() as u8]);
        bytes.extend(key.as_bytes());
        bytes.extend(*value);
    }
    bytes.push(b'u');
    bytes
}

#[test]
fn what_is_shared_is_not_multiplied_without_end() {
    let _guard = one_at_a_time();
    let many = |first: Vec<u8>, number: u8, times: usize| {
        let others = [b'h', number].repeat(times);
        [b"](".to_vec(), first, vec![b'q', number], others, b"e".to_vec()].concat()
    };
    let one = b"K\x01".as_slice();
    let block = dict(&[("size", one), ("state", b"\x8c\x08inactive")]);
    let blocks = [many(block, 0, 50_000), b"q\x01".to_vec()].concat();
    let size = [b"M".as_slice(), &50_001_u16.to_le_bytes()].concat();
    let segment = |blocks: &[u8]| {
        dict(&[("device", b"K\0"), ("address", one), ("total_size", &size), ("blocks", blocks)])
    };
    let event = dict(&[("action", b"\x8c\x05alloc"), ("addr", one), ("size", one)]);
    let events = [many(event, 0, 50_000), b"q\x01".to_vec()].concat();
    let segments = [segment(&blocks), segment(b"h\x01").repeat(5_000)].concat();
    let same_segment = many(segment(&blocks), 2, 50_000);
    for (what, root) in [
        (
            "segments with the same blocks",
            dict(&[("segments", &[b"](".as_slice(), &segments, b"e"].concat())]),
        ),
        ("the same segment", dict(&[("segments", &same_segment)])),
        ("the same events", dict(&[("device_traces", &many(events, 3, 4_000)), ("segments", b"]")])),
    ] {
        assert_bounded(what, &[b"\x80\x04", root.as_slice(), b"."].concat());
    }
}

#[test]
fn lengths_that_are_claimed_reserve_nothing() {
    let _guard = one_at_a_time();
    for opcode in [b'T', b'X', b'B', 0x8d, 0x8e, 0x96] {
        let file = [b"\x80\x05", [opcode].as_slice(), &[0xff; 8], b"abc"].concat();
        let (peak, result) = peak_bytes(|| TraceFile::import(file.as_slice(), "claims").map(drop));
        assert!(result.is_err() && peak < 16 << 20, "{opcode:#x}: {peak}");
    }
}
