//! The parts of a history: entries, the ring, notes, and changing the recorder.

use std::time::Duration;

use super::event::WORDS;
use super::*;
use crate::address::VirtualAddress;
use crate::arena::blocks::MAX_GENERATION;
use crate::gate::Generation;
use crate::pressure::SkipReason;
use crate::units::RegionId;

const BLOCK: EventBlock = EventBlock {
    address: VirtualAddress { region_id: RegionId(u64::MAX), offset_bytes: 1 << 40 },
    size_bytes: 1 << 38,
    requested_bytes: (1 << 38) - 127,
};

fn every_kind() -> Vec<EventKind> {
    let region = EventRegion { region_id: RegionId(3), host_base: 1 << 47, size_bytes: 1 << 30 };
    let outcome = PressureOutcome {
        requested_bytes: 1 << 35,
        rescued: true,
        elapsed: Duration::from_secs(3600),
        young_collections: u32::MAX,
        full_collections: 7,
        reclaimed_bytes: 1 << 36,
        skipped: None,
        timed_out: false,
    };
    let (requested_bytes, free_bytes, largest_free_bytes) = (1, 2, 3);
    let collected = |generation| EventKind::Collected {
        generation,
        objects: 12,
        reclaimed_bytes: 34,
        elapsed: Duration::from_nanos(56),
        for_device: 3,
    };
    let mut kinds = vec![
        EventKind::Allocated(BLOCK),
        EventKind::Freed(BLOCK),
        EventKind::FreeRequested(BLOCK),
        EventKind::FreeCompleted(BLOCK),
        EventKind::RegionAcquired(region),
        EventKind::RegionReleased(region),
        EventKind::PressureBegan { requested_bytes, free_bytes, largest_free_bytes },
        EventKind::PressureEnded(outcome),
        EventKind::PressureEnded(PressureOutcome { rescued: false, timed_out: true, ..outcome }),
        collected(Generation::Young),
        collected(Generation::Full),
        EventKind::OutOfMemory { requested_bytes, free_bytes, largest_free_bytes },
        EventKind::SnapshotTaken,
    ];
    kinds.extend(
        SkipReason::ALL
            .map(|reason| EventKind::PressureEnded(PressureOutcome { skipped: Some(reason), ..outcome })),
    );
    kinds
}

#[test]
fn an_entry_keeps_every_field_of_every_kind() {
    for kind in every_kind() {
        let entry = Entry { time_ns: u64::MAX, thread_id: u32::MAX, site: 9, ..Entry::new(&kind) };
        let read = Entry::from_words(entry.to_words()).event(5);
        assert_eq!(read, Some(Event { sequence: 5, time_ns: u64::MAX, thread_id: u32::MAX, site: 9, kind }));
    }
    assert_eq!(Entry::from_words([0; WORDS]).event(0), None);
}

#[test]
fn unwanted_kinds_leave_no_entry_and_half_a_free_the_other_half() {
    let left = |kind: EventKind, unwanted: EventKinds| {
        Entry::new(&kind).without(unwanted).and_then(|entry| entry.event(0)).map(|event| event.kind)
    };
    let [requested, completed] = [EventKinds::FREE_REQUESTED, EventKinds::FREE_COMPLETED];
    assert_eq!(left(EventKind::Allocated(BLOCK), EventKinds::ALLOCATED), None);
    assert_eq!(left(EventKind::Freed(BLOCK), requested), Some(EventKind::FreeCompleted(BLOCK)));
    assert_eq!(left(EventKind::Freed(BLOCK), completed), Some(EventKind::FreeRequested(BLOCK)));
    assert_eq!(left(EventKind::Freed(BLOCK), requested.with(completed)), None);
    assert_eq!(left(EventKind::FreeRequested(BLOCK), requested), None);
    for kind in every_kind() {
        assert_eq!(left(kind, EventKinds::NONE), Some(kind));
    }
}

fn words(value: u64) -> [u64; WORDS] {
    [value; WORDS]
}

fn read(ring: &Ring, from: u64) -> (Vec<u64>, u64) {
    let mut seen = Vec::new();
    let lost = ring.read(from, u64::MAX, |sequence, entry| {
        assert_eq!(entry, words(entry[0]), "torn");
        assert_eq!(entry[0], sequence * 10);
        seen.push(sequence);
    });
    (seen, lost)
}

#[test]
fn a_full_ring_forgets_the_oldest_and_says_how_many() {
    let ring = Ring::new(5).unwrap();
    assert_eq!(read(&ring, 0), (vec![], 0));
    for sequence in 0..3 {
        assert_eq!(ring.record(&words(sequence * 10)), sequence);
    }
    assert_eq!(read(&ring, 0), (vec![0, 1, 2], 0));
    for sequence in 3..20 {
        ring.record(&words(sequence * 10));
    }
    assert_eq!(read(&ring, 0), ((12..20).collect(), 12), "the next power of two");
    assert_eq!(read(&ring, 17), (vec![17, 18, 19], 0));
    assert_eq!(read(&ring, 20), (vec![], 0));
    assert_eq!(read(&ring, 99), (vec![], 0), "nothing of what is to come is lost");
    ring.continue_at(22);
    assert_eq!(read(&ring, 19), (vec![19], 2));
    ring.continue_at(3);
    assert_eq!(ring.next(), 22, "numbers only grow");
}

#[test]
fn a_ring_of_none_counts() {
    let ring = Ring::new(0).unwrap();
    ring.record(&words(0));
    assert_eq!(read(&ring, 0), (vec![], 1));
}

#[test]
fn what_many_threads_record_is_whole_and_counted() {
    const EACH: u64 = 20_000;
    let ring = Ring::new(64).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for value in 0..EACH {
                    ring.record(&words(value));
                }
            });
        }
        let mut from = 0;
        while from < 4 * EACH {
            let mut seen = 0;
            let until = ring.next();
            let lost = ring.read(from, until, |_, entry| {
                assert_eq!(entry, words(entry[0]), "torn");
                seen += 1;
            });
            assert_eq!(seen + lost, until - from);
            from = until;
        }
    });
}

fn handle(index: u32, generation: u32) -> BlockHandle {
    BlockHandle { index, generation }
}

#[test]
fn a_note_is_of_one_generation() {
    let notes = Notes::new();
    let note = BlockNote { site: u32::MAX, time_ns: 7 };
    notes.write(handle(3, MAX_GENERATION), note);
    assert_eq!(notes.read(handle(3, MAX_GENERATION)), note);
    assert_eq!(notes.read(handle(3, 1)), BlockNote::default());
    assert_eq!(notes.read(handle(2, MAX_GENERATION)), BlockNote::default());
    assert_eq!(notes.read(handle(100_000, 1)), BlockNote::default());
}

fn of(max_entries: usize) -> HistoryOptions {
    HistoryOptions { max_entries, ..HistoryOptions::default() }
}

fn sequences(history: &History) -> (Vec<u64>, u64) {
    let read = history.read(0, u64::MAX);
    (read.events.iter().map(|event| event.sequence).collect(), read.lost)
}

fn record(history: &History, count: usize) {
    for _ in 0..count {
        history.record(EventKind::SnapshotTaken, 0).unwrap();
    }
}

#[test]
fn changing_the_recorder_keeps_what_fits_and_its_numbers() {
    let history = History::default();
    assert!(!history.is_on() && history.record(EventKind::SnapshotTaken, 0).is_none());
    history.set(Some(of(4))).unwrap();
    record(&history, 6);
    assert_eq!(sequences(&history), (vec![2, 3, 4, 5], 2));
    history.set(Some(of(4))).unwrap();
    assert_eq!(sequences(&history), (vec![2, 3, 4, 5], 2), "the same ring goes on");
    history.set(Some(of(100))).unwrap();
    record(&history, 1);
    assert_eq!(sequences(&history), (vec![2, 3, 4, 5, 6], 2), "a larger one takes over");
    history.set(Some(of(2))).unwrap();
    assert_eq!(sequences(&history), (vec![5, 6], 5), "a smaller one takes the newest");
    history.set(Some(HistoryOptions { clear: true, ..of(2) })).unwrap();
    assert_eq!(sequences(&history), (vec![], 0));
    record(&history, 1);
    history.set(None).unwrap();
    assert!(!history.is_on());
    assert_eq!(sequences(&history), (vec![], 0));
    history.set(Some(of(2))).unwrap();
    assert_eq!(sequences(&history), (vec![], 0));
    record(&history, 1);
    assert_eq!(sequences(&history), (vec![8], 0), "numbers are not used again");
}

#[test]
fn what_a_late_thread_records_in_the_ring_before_counts_as_lost() {
    let history = History::default();
    history.set(Some(of(8))).unwrap();
    record(&history, 2);
    let before = history.current().unwrap();
    history.set(Some(of(16))).unwrap();
    before.record(&Entry::new(&EventKind::SnapshotTaken).to_words());
    record(&history, 1);
    assert_eq!(sequences(&history), (vec![0, 1, 2], 1));
    history.set(Some(of(8))).unwrap();
    record(&history, 1);
    assert_eq!(sequences(&history), (vec![0, 1, 2, 3], 1), "numbers go on in the ring of before");
}

#[test]
fn the_number_of_entries_is_bounded() {
    let history = History::default();
    history.set(Some(of(usize::MAX))).unwrap();
    assert_eq!(history.lock().most, u64::from(MAX_ENTRIES));
    record(&history, 3);
    assert_eq!(sequences(&history), (vec![0, 1, 2], 0));
}

#[test]
fn threads_have_numbers_of_their_own() {
    let own = thread_id();
    assert_eq!(own, thread_id());
    let other = std::thread::spawn(thread_id).join().unwrap();
    assert!(own != other && own != 0 && other != 0);
}
