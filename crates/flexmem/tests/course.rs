//! What `flexmem info` says of how memory grew, on small traces: each verdict, and both sides of each border.
//!
//! The events are divided into eight parts of equal number, of which the first does not count. "Noticeable" is more
//! than a tenth of the peak.

use flex_trace::record::{Frame, History};
use flex_trace::{Action, Event, FrameId, Header, Ids, Record, StackId, StringId, Writer};
use flexmem::TraceFile;
use flexmem::info::answers::{Course, Info};
use flexmem::info::{Options, info};

/// Device 0, event by event.
struct Trace {
    writer: Writer<Vec<u8>>,
    next_address: u64,
}

/// A live block.
#[derive(Clone, Copy)]
struct Block {
    address: u64,
    size_bytes: u64,
}

impl Trace {
    /// Recording begins on an empty device.
    fn new() -> Trace {
        Trace::beginning_with(Some(0))
    }

    fn beginning_with(reserved_before_bytes: Option<u64>) -> Trace {
        let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
        for (id, text) in [(0, "train.py"), (1, "step")] {
            writer.write(&Record::String { id: StringId(id), text }).unwrap();
        }
        let frame = Frame { id: FrameId(0), function: StringId(1), file: StringId(0), line: 7 };
        writer.write(&Record::Frame(frame)).unwrap();
        writer.write(&Record::Stack { id: StackId(0), frames: Ids::from([0].as_slice()) }).unwrap();
        let (contradictions, baseline_freed) = (0, 0);
        let history =
            History { device: 0, recorded: true, reserved_before_bytes, contradictions, baseline_freed };
        writer.write(&Record::History(history)).unwrap();
        Trace { writer, next_address: 0 }
    }

    fn event(&mut self, action: Action) {
        let event = Event { stack: Some(StackId(0)), ..Event::new(0, action) };
        self.writer.write(&Record::Event(event)).unwrap();
    }

    fn block(&mut self, size_bytes: u64) -> Block {
        let address = self.next_address;
        self.next_address += size_bytes;
        Block { address, size_bytes }
    }

    fn live_before(&mut self, size_bytes: u64) -> Block {
        let block = self.block(size_bytes);
        self.event(Action::Baseline { address: block.address.into(), size_bytes, stream: 0 });
        block
    }

    fn allocate(&mut self, size_bytes: u64) -> Block {
        let block = self.block(size_bytes);
        let address = block.address.into();
        self.event(Action::Allocated { address, size_bytes, rounded_bytes: None, stream: 0 });
        block
    }

    fn allocate_each(&mut self, sizes_bytes: &[u64]) -> Vec<Block> {
        sizes_bytes.iter().map(|&size_bytes| self.allocate(size_bytes)).collect()
    }

    fn free(&mut self, block: Block) {
        self.event(Action::Freed { address: block.address.into(), size_bytes: block.size_bytes });
    }

    /// Allocated and freed at once, `times` times: two events each.
    fn churn(&mut self, size_bytes: u64, times: usize) {
        for _ in 0..times {
            let block = self.allocate(size_bytes);
            self.free(block);
        }
    }

    /// An event that changes nothing.
    fn pause(&mut self) {
        self.event(Action::SnapshotTaken { reserved_bytes: None });
    }

    fn reserve(&mut self, size_bytes: u64) {
        let address = (1_u64 << 40).into();
        self.event(Action::RegionAcquired { address, size_bytes, stream: 0, mapped: false });
    }

    fn fail(&mut self, requested_bytes: u64) {
        let (free_bytes, largest_free_bytes, capacity_bytes) = (None, None, None);
        self.event(Action::OutOfMemory { requested_bytes, free_bytes, largest_free_bytes, capacity_bytes });
    }

    fn info(self) -> Info {
        let bytes = self.writer.finish().unwrap();
        let mut trace = TraceFile::import(bytes.as_slice(), "generated").unwrap();
        info(&mut trace, &Options { device_memory_bytes: None, top: 5 }).unwrap()
    }

    /// The verdict, in one line.
    fn course(self) -> String {
        match &self.info().devices[0].course {
            Course::Unknown => "unknown".into(),
            Course::Steady => "steady".into(),
            Course::OneBigStep { size_bytes, is_failed, rise_bytes, site } => {
                assert_eq!(site.as_deref(), Some("step (train.py:7)"));
                format!("{size_bytes} {} of {rise_bytes}", if *is_failed { "refused" } else { "made" })
            }
            Course::Growing { from_bytes, to_bytes, .. } => format!("growing {from_bytes} to {to_bytes}"),
            Course::GrowingCache { from_bytes, to_bytes } => format!("cache {from_bytes} to {to_bytes}"),
        }
    }
}

/// Two blocks of `base` bytes together, which stay, then a step up or down in each part but the first. Each part has
/// eight events and begins with its step, so its least is what the step leads to; the peak has one byte more.
fn stairs(base: u64, steps: [i64; 7]) -> Trace {
    let mut trace = Trace::new();
    // Neither is more than half of the rise.
    let mut blocks = trace.allocate_each(&[base / 2, base - base / 2]);
    trace.churn(1, 3);
    for step in steps {
        match u64::try_from(step) {
            Ok(0) => trace.pause(),
            Ok(size_bytes) => blocks.push(trace.allocate(size_bytes)),
            Err(_) => {
                let last = blocks.pop().unwrap();
                assert_eq!(last.size_bytes, step.unsigned_abs(), "a step down takes the last one up back");
                trace.free(last);
            }
        }
        trace.churn(1, 3);
        trace.pause();
    }
    trace
}

/// The same 1000 bytes live all the time, and the steps in what is reserved beyond that and the byte that comes and
/// goes.
fn growing_cache(mut trace: Trace, steps: [u64; 7]) -> Trace {
    trace.reserve(1001);
    trace.allocate_each(&[500, 500]);
    trace.churn(1, 2);
    trace.pause();
    for step in steps {
        trace.reserve(step);
        trace.churn(1, 3);
        trace.pause();
    }
    trace
}

/// So many events in which nothing grows.
fn flat(events: usize) -> Trace {
    let mut trace = Trace::new();
    trace.allocate_each(&[10, 10]);
    trace.churn(1, (events - 2) / 2);
    if events % 2 == 1 {
        trace.pause();
    }
    trace
}

#[test]
fn what_stays_and_grows_is_a_leak_and_its_owner_is_named() {
    let mut trace = Trace::new();
    for _ in 0..64 {
        trace.allocate(10);
        trace.churn(100, 2);
    }
    let info = trace.info();
    let Course::Growing { from_bytes, to_bytes, holders } = &info.devices[0].course else {
        panic!("{:?}", info.devices[0].course)
    };
    // Of 320 events in parts of 40; the least is at the first of each part.
    assert_eq!((*from_bytes, *to_bytes), (90, 570));
    assert_eq!(holders.largest[0].site.as_deref(), Some("step (train.py:7)"));
    // What was kept since the first part, and the temporary block that made the peak.
    assert_eq!((holders.largest[0].bytes, holders.largest[0].blocks), (56 * 10 + 100, 57));
}

#[test]
fn growth_counts_above_a_tenth_of_the_peak() {
    assert_eq!(stairs(899, [0, 20, 20, 20, 20, 20, 0]).course(), "steady", "100 of 1000 are not more");
    assert_eq!(stairs(898, [0, 20, 20, 20, 20, 21, 0]).course(), "growing 898 to 999");
    // What came in the first part does not count: nothing was loaded yet.
    assert_eq!(stairs(800, [200, 0, 0, 0, 0, 0, 0]).course(), "steady");
}

#[test]
fn growth_may_stop_and_fall_once_but_not_twice() {
    assert_eq!(stairs(500, [0, 0, 200, 0, 0, 0, 0]).course(), "growing 500 to 700");
    assert_eq!(stairs(500, [0, 50, 50, -50, 50, 50, 50]).course(), "growing 500 to 700");
    assert_eq!(stairs(500, [0, 50, 50, -50, 50, -50, 200]).course(), "steady");
}

#[test]
fn what_is_reserved_and_not_live_counts_when_what_is_live_stays() {
    assert_eq!(growing_cache(Trace::new(), [0, 20, 20, 20, 20, 20, 0]).course(), "steady");
    assert_eq!(growing_cache(Trace::new(), [0, 20, 20, 20, 20, 21, 0]).course(), "cache 0 to 101");
    // Nobody knows what was reserved.
    let unknown = growing_cache(Trace::beginning_with(None), [0, 20, 20, 20, 20, 21, 0]);
    assert_eq!(unknown.course(), "steady");
    let mut both = stairs(500, [0, 50, 50, 50, 50, 0, 0]);
    both.reserve(5000);
    assert_eq!(both.course(), "growing 500 to 700", "the cause comes before what it brings about");
}

#[test]
fn a_block_is_one_big_step_above_half_of_the_rise() {
    let two = |sizes: [u64; 2]| {
        let mut trace = Trace::new();
        trace.allocate_each(&sizes);
        trace.course()
    };
    assert_eq!(two([50, 50]), "unknown");
    assert_eq!(two([49, 51]), "51 made of 100");
    // It comes before the growth that it is.
    assert_eq!(stairs(500, [0, 0, 0, 600, 0, 0, 0]).course(), "600 made of 1101");
    assert_eq!(stairs(500, [0, 0, 0, 500, 0, 0, 0]).course(), "growing 500 to 1000");
}

#[test]
fn a_rise_of_a_tenth_of_the_peak_is_none() {
    let above = |before: u64, size_bytes: u64| {
        let mut trace = Trace::new();
        trace.live_before(before);
        trace.allocate(size_bytes);
        trace.course()
    };
    assert_eq!(above(900, 100), "unknown");
    assert_eq!(above(899, 101), "101 made of 101");
    // Nor is what takes the place of what was live before.
    let mut trace = Trace::new();
    let before = trace.live_before(1000);
    trace.free(before);
    trace.allocate(1001);
    assert_eq!(trace.course(), "unknown");
}

#[test]
fn a_block_that_was_not_live_at_the_peak_is_no_step_to_it() {
    let mut before = Trace::new();
    before.churn(150, 1);
    before.allocate_each(&[10; 20]);
    assert_eq!(before.course(), "unknown");
    let mut after = Trace::new();
    let blocks = after.allocate_each(&[10; 20]);
    blocks.into_iter().for_each(|block| after.free(block));
    after.allocate(150);
    assert_eq!(after.course(), "unknown");
}

#[test]
fn a_request_that_failed_is_one_big_step_by_the_same_measure() {
    let failing = |requests: &[u64]| {
        let mut trace = Trace::new();
        trace.allocate_each(&[50, 50]);
        requests.iter().for_each(|&size_bytes| trace.fail(size_bytes));
        trace.course()
    };
    assert_eq!(failing(&[50]), "unknown");
    assert_eq!(failing(&[51]), "51 refused of 100");
    assert_eq!(failing(&[10, 60, 20]), "60 refused of 100", "the largest");
    // Nothing has to rise for it: it would have.
    let on_full = |size_bytes: u64| {
        let mut trace = Trace::new();
        trace.live_before(1000);
        trace.fail(size_bytes);
        trace.course()
    };
    assert_eq!(on_full(100), "unknown");
    assert_eq!(on_full(101), "101 refused of 0");
}

#[test]
fn what_happens_after_a_failure_does_not_count() {
    let mut cleaned_up = stairs(898, [0, 20, 20, 20, 20, 21, 0]);
    cleaned_up.fail(1);
    (0..500).for_each(|_| cleaned_up.pause());
    assert_eq!(cleaned_up.course(), "growing 898 to 999");
    let mut grown_later = flat(64);
    grown_later.fail(1);
    grown_later.allocate_each(&[10; 500]);
    assert_eq!(grown_later.course(), "steady");
}

#[test]
fn few_events_say_nothing() {
    assert_eq!(flat(63).course(), "unknown");
    assert_eq!(flat(64).course(), "steady");
    let mut failed_early = flat(63);
    failed_early.fail(1);
    (0..500).for_each(|_| failed_early.pause());
    assert_eq!(failed_early.course(), "unknown", "before the failure there were too few");
}
