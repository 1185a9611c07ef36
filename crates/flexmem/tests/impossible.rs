//! What a file states and cannot be: each contradiction is said by `flexmem info`, and nothing else is.

use flex_trace::record::{BlockSnapshot, BlockState, Device, History, RegionState};
use flex_trace::{Action, Event, Header, Record, Writer};
use flexmem::TraceFile;
use flexmem::info::{Options, info};

/// Where all begins.
const BASE: u64 = 0x1000;

fn history(reserved_before_bytes: Option<u64>) -> Record<'static> {
    Record::History(History {
        device: 0,
        recorded: true,
        reserved_before_bytes,
        contradictions: 0,
        baseline_freed: 0,
    })
}

fn event(action: Action) -> Record<'static> {
    Record::Event(Event::new(0, action))
}

fn allocated(offset: u64, size_bytes: u64) -> Record<'static> {
    let address = BASE.wrapping_add(offset).into();
    event(Action::Allocated { address, size_bytes, rounded_bytes: None, stream: 0 })
}

fn freed(offset: u64, size_bytes: u64) -> Record<'static> {
    event(Action::Freed { address: (BASE + offset).into(), size_bytes })
}

fn acquired(size_bytes: u64) -> Record<'static> {
    event(Action::RegionAcquired { address: BASE.into(), size_bytes, stream: 0, mapped: false })
}

fn released(size_bytes: u64) -> Record<'static> {
    event(Action::RegionReleased { address: BASE.into(), size_bytes, mapped: false })
}

fn failed(free: u64, largest_free_bytes: Option<u64>, capacity_bytes: Option<u64>) -> Record<'static> {
    event(Action::OutOfMemory {
        requested_bytes: 4096,
        free_bytes: Some(free),
        largest_free_bytes,
        capacity_bytes,
    })
}

fn capacity(bytes: u64) -> Record<'static> {
    Record::Device(Device { device: 0, name: None, capacity_bytes: Some(bytes) })
}

fn segment(offset: u64, size_bytes: u64, stated: Option<(u64, u64)>) -> Record<'static> {
    Record::RegionState(RegionState {
        device: 0,
        address: BASE.wrapping_add(offset).into(),
        size_bytes,
        stream: 0,
        pool: (0, 0),
        small: false,
        expandable: false,
        allocated_bytes: stated.map(|(allocated, _)| allocated),
        active_bytes: stated.map(|(_, active)| active),
        stack: None,
    })
}

fn block(size_bytes: u64, requested_bytes: u64, state: BlockState) -> Record<'static> {
    Record::Block(BlockSnapshot { size_bytes, requested_bytes, state, stack: None })
}

fn live(size_bytes: u64) -> Record<'static> {
    block(size_bytes, size_bytes, BlockState::Live)
}

fn free(size_bytes: u64) -> Record<'static> {
    block(size_bytes, size_bytes, BlockState::Free)
}

#[track_caller]
fn assert_impossible(records: &[Record<'_>], expected: &[&str]) {
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    records.iter().for_each(|record| writer.write(record).unwrap());
    let bytes = writer.finish().unwrap();
    let mut trace = TraceFile::import(bytes.as_slice(), "made").unwrap();
    let found = info(&mut trace, &Options { device_memory_bytes: None, top: 9 }).unwrap();
    assert_eq!(found.devices[0].impossible, expected);
}

#[test]
fn nothing_is_said_of_a_sound_trace() {
    assert_impossible(
        &[
            capacity(9000),
            history(Some(0)),
            acquired(4096),
            allocated(0, 1000),
            allocated(1000, 24),
            freed(0, 1000),
            allocated(0, 1000),
            allocated(0, 0),
            failed(9000 - 4096, None, Some(9000)),
            failed(9000 - 1024, Some(9000 - 1024), Some(9000)),
            segment(0, 4096, Some((1024, 1536))),
            block(1024, 1000, BlockState::Live),
            block(512, 24, BlockState::PendingFree),
            free(2560),
        ],
        &[],
    );
}

#[test]
fn live_blocks_that_overlap() {
    for (address, size, text) in
        [(999, 24, "0x13e7"), (0, 1000, "0x1000"), (0, 1, "0x1000"), (100, 100, "0x1064")]
    {
        let expected = format!(
            "at event 2, the live block of {size} bytes at {text} overlaps the live block of 1000 bytes at 0x1000"
        );
        assert_impossible(&[allocated(0, 1000), allocated(address, size)], &[&expected]);
    }
    // Which of them is told again and again is not.
    assert_impossible(
        &[allocated(100, 10), allocated(0, 1000), allocated(50, 10)],
        &[
            "at event 2, the live block of 1000 bytes at 0x1000 overlaps the live block of 10 bytes at 0x1064; so in 2 \
           events",
        ],
    );
    let baseline = |offset: u64, size_bytes| {
        event(Action::Baseline { address: (BASE + offset).into(), size_bytes, stream: 0 })
    };
    assert_impossible(
        &[baseline(0, 100), baseline(50, 100)],
        &[
            "before recording began, the live block of 100 bytes at 0x1032 overlaps the live block of 100 bytes at \
             0x1000",
        ],
    );
    assert_impossible(&[allocated(0, 1000), event(Action::Lost { events: 1 }), allocated(0, 1000)], &[]);
}

#[test]
fn blocks_that_end_nowhere_and_frees_that_fit_no_block() {
    assert_impossible(
        &[allocated(u64::MAX - BASE - 9, 100)],
        &["at event 1, the block at 0xfffffffffffffff6 of 100 bytes ends beyond the last address"],
    );
    assert_impossible(
        &[allocated(0, 100), freed(64, 100)],
        &["at event 2, the block of 100 bytes at 0x1040 is freed, and was not live"],
    );
    assert_impossible(
        &[allocated(0, 100), freed(0, 99)],
        &["at event 2, the live block of 100 bytes at 0x1000 is freed as one of 99 bytes"],
    );
}

#[test]
fn more_that_is_live_or_released_than_reserved() {
    assert_impossible(
        &[history(Some(0)), acquired(1000), allocated(0, 1001)],
        &["at event 2, 1001 bytes are live, and 1000 are reserved"],
    );
    assert_impossible(
        &[history(Some(500)), acquired(1000), released(1501)],
        &["at event 2, 1 bytes more were released than reserved"],
    );
}

#[test]
fn more_than_the_device_has() {
    assert_impossible(
        &[capacity(1000), segment(0, 1024, None)],
        &["1024 bytes are reserved, and the device has 1000"],
    );
    assert_impossible(
        &[capacity(1000), history(Some(0)), acquired(1024), released(1024), allocated(0, 0)],
        &["1024 bytes were reserved at most, and the device has 1000"],
    );
    assert_impossible(
        &[capacity(1000), allocated(0, 1001)],
        &["1001 bytes were live at the peak, and the device has 1000"],
    );
    // What PyTorch says is free is not reserved; what FlexAllocator says may be, and is not live.
    assert_impossible(
        &[capacity(1000), history(Some(0)), acquired(600), failed(401, None, None)],
        &["at event 2, 401 bytes are free beside 600 in use, and the device has 1000"],
    );
    assert_impossible(
        &[capacity(1000), history(Some(0)), acquired(1000), allocated(0, 600), failed(401, Some(9), None)],
        &["at event 3, 401 bytes are free beside 600 in use, and the device has 1000"],
    );
    assert_impossible(
        &[failed(10, Some(11), None)],
        &["at event 1, the largest free block has 11 bytes, and 10 are free"],
    );
}

#[test]
fn several_sizes_of_one_device() {
    assert_impossible(
        &[capacity(1000), failed(1, None, Some(2000))],
        &["the device has 1000 bytes in one place of the file, and 2000 in another"],
    );
    assert_impossible(
        &[failed(1, None, Some(2000)), failed(1, None, Some(1000))],
        &["at event 2, the device has 1000 bytes, and had 2000 before"],
    );
    let setting = Record::Setting { key: "spyre.device_memory", value: "4096" };
    assert_impossible(
        &[setting, capacity(1000)],
        &["the device has 1000 bytes in one place of the file, and 4096 in another"],
    );
}

#[test]
fn segments_that_overlap_or_end_nowhere() {
    assert_impossible(
        &[segment(0, 1000, None), segment(5000, 10, None), segment(999, 10, None), segment(500, 1, None)],
        &[
            "the segment at 0x1000 of 1000 bytes and that at 0x11f4 of 1 overlap",
            "the segment at 0x1000 of 1000 bytes and that at 0x13e7 of 10 overlap",
        ],
    );
    assert_impossible(
        &[segment(u64::MAX - BASE, 2, None)],
        &["the segment at 0xffffffffffffffff, of 2 bytes, ends beyond the last address"],
    );
}

#[test]
fn blocks_that_do_not_fill_their_segment_or_are_too_small() {
    for blocks in [[live(600), free(401)], [live(600), free(399)]] {
        let all = if blocks[1] == free(401) { 1001 } else { 999 };
        assert_impossible(
            &[segment(0, 1000, None), blocks[0], blocks[1]],
            &[&format!("the segment at 0x1000 has 1000 bytes, and its blocks have {all}")],
        );
    }
    assert_impossible(
        &[segment(0, 1000, None), block(1000, 1001, BlockState::Live)],
        &["the segment at 0x1000 has a live block of 1000 bytes for which 1001 were asked"],
    );
}

#[test]
fn sums_that_are_not_those_of_the_blocks() {
    let blocks = [live(600), block(100, 100, BlockState::PendingFree), free(300)];
    let with = |stated| [&[segment(0, 1000, Some(stated))], blocks.as_slice()].concat();
    assert_impossible(&with((600, 700)), &[]);
    assert_impossible(
        &with((601, 700)),
        &["the segment at 0x1000 says that 601 bytes are allocated, and its blocks have 600"],
    );
    assert_impossible(
        &with((600, 701)),
        &["the segment at 0x1000 says that 701 bytes are active, and its blocks have 700"],
    );
    // Two that are wrong make no right.
    let two = [
        segment(0, 100, Some((99, 100))),
        live(100),
        segment(100, 100, Some((1, 1))),
        block(100, 9, BlockState::Free),
    ];
    assert_impossible(
        &two,
        &[
            "the segment at 0x1000 says that 99 bytes are allocated, and its blocks have 100",
            "the segment at 0x1064 says that 1 bytes are allocated, and its blocks have 0",
            "the segment at 0x1064 says that 1 bytes are active, and its blocks have 0",
        ],
    );
    assert_impossible(
        &[segment(0, 1000, Some((1001, 999)))],
        &[
            "the segment at 0x1000 says that 1001 bytes are allocated, and has 1000",
            "the segment at 0x1000 says that 1001 bytes are allocated, and 999 active",
        ],
    );
}

#[test]
fn more_at_the_end_than_there_ever_was() {
    assert_impossible(
        &[history(Some(0)), acquired(1000), allocated(0, 500), segment(0, 1500, None), live(1500)],
        &[
            "1500 bytes are live at the end, and 500 were at the peak",
            "1500 bytes are reserved at the end, and 1000 were at most",
        ],
    );
}
