//! A device whose history is recorded, and what is in a trace of it.

#![allow(dead_code, reason = "each file of tests uses a part")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use flex::history::{HistoryOptions, Sites};
use flex::{AllocationDirective, AllocatorOptions, FlexAllocator, Topology};
use flex_sim::{SimulatedDevice, SimulatedOptions};
use flex_stream::{StackFrame, Stacks, Stream, StreamOptions, StreamStatistics};
use flex_trace::{Action, Reader, Record};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Every thread is at site 7.
pub(crate) struct OneSite;

impl Sites for OneSite {
    fn current(&self) -> u32 {
        7
    }
}

impl Stacks for OneSite {
    fn frames(&self, site: u32) -> Vec<StackFrame> {
        assert_eq!(site, 7);
        let frame = |function: &str, line| StackFrame {
            filename: "train.py".into(),
            function: function.into(),
            line,
        };
        vec![frame("step", 3), frame("main", 9)]
    }
}

pub(crate) fn history(max_entries: usize) -> HistoryOptions {
    HistoryOptions { max_entries, sites: Some(Arc::new(OneSite)), ..HistoryOptions::default() }
}

pub(crate) fn record(allocator: &FlexAllocator, max_entries: usize) {
    allocator.record_history(Some(history(max_entries))).unwrap();
}

pub(crate) fn recording(max_entries: usize) -> FlexAllocator {
    let topology = Topology::uniform(1 << 20).unwrap();
    let device = SimulatedDevice::new(SimulatedOptions::default()).unwrap();
    let allocator = FlexAllocator::new(device, &topology, AllocatorOptions::default()).unwrap();
    record(&allocator, max_entries);
    allocator
}

/// Allocates and frees so many times.
pub(crate) fn pairs(allocator: &FlexAllocator, count: u64) {
    for _ in 0..count {
        drop(allocator.allocate(1000, &AllocationDirective::default()).unwrap());
    }
}

pub(crate) fn options(allocator: &FlexAllocator) -> StreamOptions {
    StreamOptions { stacks: Some(Arc::new(OneSite)), ..StreamOptions::new(vec![allocator.clone()]) }
}

pub(crate) fn wait_until(stream: &Stream, reached: impl Fn(StreamStatistics) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !reached(stream.statistics()) {
        assert!(Instant::now() < deadline, "{:?}", stream.statistics());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a trace says.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Contents {
    pub(crate) baseline: u64,
    pub(crate) allocated: u64,
    pub(crate) allocated_on: BTreeMap<u32, u64>,
    pub(crate) freed: u64,
    pub(crate) lost: u64,
    /// Places where nobody knows how much is missing: how many events were above each.
    pub(crate) interruptions: Vec<u64>,
    pub(crate) with_stack: u64,
    pub(crate) texts: Vec<String>,
    pub(crate) frames: Vec<u32>,
    /// Watermarks, and how many events were above each, or said to be missing.
    pub(crate) marks: Vec<(u64, u64)>,
    pub(crate) ended: bool,
}

impl Contents {
    pub(crate) fn events(&self) -> u64 {
        self.allocated + self.freed + self.lost
    }
}

pub(crate) fn unix_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64
}

pub(crate) fn contents(trace: impl Read) -> Contents {
    contents_while(trace, |_| ())
}

/// As [`contents`], and `look` sees what was found so far after each record.
pub(crate) fn contents_while(trace: impl Read, mut look: impl FnMut(&Contents)) -> Contents {
    let mut reader = Reader::new(trace).unwrap();
    let mut found = Contents::default();
    while let Some(record) = reader.next().unwrap() {
        match record {
            Record::Event(event) => {
                found.with_stack += u64::from(event.stack.is_some());
                match event.action {
                    Action::Baseline { .. } => found.baseline += 1,
                    Action::Allocated { size_bytes: 1000, rounded_bytes: Some(1024), .. } => {
                        found.allocated += 1;
                        *found.allocated_on.entry(event.device).or_default() += 1;
                    }
                    Action::Freed { size_bytes: 1000, .. } => found.freed += 1,
                    Action::Lost { events: 0 } => found.interruptions.push(found.events()),
                    Action::Lost { events } => found.lost += events,
                    Action::RegionAcquired { .. } | Action::SnapshotTaken { .. } => {}
                    other => panic!("unexpected {other:?}"),
                }
            }
            Record::String { text, .. } => found.texts.push(text.to_owned()),
            Record::Frame(frame) => found.frames.push(frame.line),
            Record::Watermark { time_ns } => found.marks.push((time_ns, found.events())),
            Record::End { .. } => found.ended = true,
            _ => {}
        }
        look(&found);
    }
    found
}

pub(crate) fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// A stream to a file, in a folder of its own.
pub(crate) fn to_file(allocator: &FlexAllocator) -> (tempfile::TempDir, PathBuf, Stream) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    let stream = Stream::start(StreamOptions { file: Some(path.clone()), ..options(allocator) }).unwrap();
    (folder, path, stream)
}
