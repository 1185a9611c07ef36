//! `torch.spyre.memory._record_memory_history` and `_snapshot`: what was recorded, in the form of PyTorch's own memory
//! snapshots.
//!
//! Addresses in a snapshot are those of the host. An event names its region; where that was is known from the regions
//! that are there, and for earlier ones from the events of their coming and going, read backwards.

use std::collections::HashMap;
use std::path::PathBuf;

use flex::gate::Generation;
use flex::history::{Event, EventBlock, EventKind, EventKinds, HistoryOptions, PressureOutcome, SiteScope};
use flex::{BlockSnapshot, FlexAllocator, RegionId, RegionSnapshot};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use super::stream::stream_error;
use super::{device, runtime_error, value_error};
use crate::interpreter::{self, stacks};
use crate::runtime;
use crate::stream::{self, ChangeError, Targets};

/// Begins or changes the recording of the events of some devices, of all of them or of none. `scope` says which events
/// get a stack: `"state"`, `"alloc"` or `"all"`; None for none at all, live blocks included.
///
/// If there is a `stream_file`, in which `%p` is the number of the process, or `stream_socket` is true, a stream of all
/// devices begins in place of the one that runs.
///
/// Raises OSError if a file, folder or socket cannot be opened or is not safe, RuntimeError in a forked child and if
/// there is no thread or no memory.
#[pyfunction]
#[pyo3(signature = (indices, max_entries, scope, clear, skip_actions, stream_file, stream_socket))]
#[expect(clippy::too_many_arguments, reason = "those of one call in Python")]
pub(crate) fn record_history(
    py: Python<'_>,
    indices: Vec<i32>,
    max_entries: usize,
    scope: Option<&str>,
    clear: bool,
    skip_actions: Vec<String>,
    stream_file: Option<PathBuf>,
    stream_socket: bool,
) -> PyResult<()> {
    let runtime = runtime::ready().map_err(PyRuntimeError::new_err)?;
    let allocators = allocators(&indices)?;
    let targets = Targets { file: stream_file, socket: stream_socket };
    let without = skip_actions.iter().try_fold(EventKinds::NONE, |kinds, action| {
        event_kinds(action).map(|more| kinds.with(more)).ok_or_else(|| {
            value_error(format!("skip_actions: unknown action {action:?}; expected one of {ACTIONS}"))
        })
    })?;
    if scope.is_some() {
        stacks::enable(py)?;
    }
    let options = HistoryOptions {
        max_entries,
        sites: scope.is_some().then(stacks::sites),
        scope: match scope {
            Some("all") => SiteScope::All,
            Some("alloc") => SiteScope::Allocations,
            Some("state") | None => SiteScope::LiveBlocks,
            Some(other) => return Err(value_error(format!("unknown scope {other:?}"))),
        },
        without,
        clear,
    };
    let record = || {
        // What can fail comes first, for all of them.
        allocators.iter().try_for_each(|allocator| allocator.reserve_history(max_entries))?;
        allocators.iter().try_for_each(|allocator| allocator.record_history(Some(options.clone())))
    };
    interpreter::detached(py, || stream::change_recording(&targets, runtime.allocators(), record))
        .map_err(change_error)
}

/// Ends the recording of the events of some devices, and forgets them. What was not in the stream yet is before.
#[pyfunction]
pub(crate) fn stop_history(py: Python<'_>, indices: Vec<i32>) -> PyResult<()> {
    let allocators = allocators(&indices)?;
    let end = || allocators.iter().try_for_each(|allocator| allocator.record_history(None));
    interpreter::detached(py, || stream::change_recording(&Targets::default(), Vec::new(), end))
        .map_err(change_error)
}

fn allocators(indices: &[i32]) -> PyResult<Vec<&'static FlexAllocator>> {
    indices.iter().map(|&index| device(index).map(|device| &device.allocator)).collect()
}

fn change_error(error: ChangeError) -> PyErr {
    match error {
        ChangeError::History(error) => runtime_error(error),
        ChangeError::Stream(error) => stream_error(error),
    }
}

/// Whether a device's events are recorded.
#[pyfunction]
pub(crate) fn is_recording_history(index: i32) -> PyResult<bool> {
    Ok(device(index)?.allocator.is_recording())
}

const ACTIONS: &str = "alloc, free_requested, free_completed, segment_alloc, segment_free, oom, snapshot, \
                       pressure_begin, pressure_end, gc_collect";

fn event_kinds(action: &str) -> Option<EventKinds> {
    Some(match action {
        "alloc" => EventKinds::ALLOCATED,
        "free_requested" => EventKinds::FREE_REQUESTED,
        "free_completed" => EventKinds::FREE_COMPLETED,
        "segment_alloc" => EventKinds::REGION_ACQUIRED,
        "segment_free" => EventKinds::REGION_RELEASED,
        "oom" => EventKinds::OUT_OF_MEMORY,
        "snapshot" => EventKinds::SNAPSHOT_TAKEN,
        "pressure_begin" => EventKinds::PRESSURE_BEGAN,
        "pressure_end" => EventKinds::PRESSURE_ENDED,
        "gc_collect" => EventKinds::COLLECTED,
        _ => return None,
    })
}

/// The segments of a device, its trace if asked for, and how many events the trace misses.
#[pyfunction]
pub(crate) fn memory_snapshot(
    py: Python<'_>,
    index: i32,
    with_trace: bool,
) -> PyResult<(Bound<'_, PyList>, Bound<'_, PyList>, u64)> {
    let allocator = &device(index)?.allocator;
    let (regions, recorded) = interpreter::detached(py, || {
        if with_trace {
            return allocator.snapshot_with_events();
        }
        Ok((allocator.snapshot()?, Default::default()))
    })
    .map_err(runtime_error)?;
    let mut writer = Writer { py, device: index, frames: HashMap::new() };
    interpreter::uncollected(|| {
        let segments = PyList::empty(py);
        for region in &regions {
            segments.append(writer.segment(host_base(allocator, region), region)?)?;
        }
        let trace = PyList::empty(py);
        let bases = bases_of(&recorded.events, &regions, allocator);
        for (event, base) in recorded.events.iter().zip(bases) {
            writer.event(&trace, event, base)?;
        }
        Ok((segments, trace, recorded.lost))
    })
}

fn host_base(allocator: &FlexAllocator, region: &RegionSnapshot) -> u64 {
    allocator.host_base(region).map_or(region.region_id.0, |base| base as u64)
}

/// For each event the host address at which its region began then; its id where that is not known.
fn bases_of(events: &[Event], regions: &[RegionSnapshot], allocator: &FlexAllocator) -> Vec<u64> {
    let mut known: HashMap<RegionId, u64> =
        regions.iter().map(|region| (region.region_id, host_base(allocator, region))).collect();
    let mut bases = vec![0; events.len()];
    for (base, event) in bases.iter_mut().zip(events).rev() {
        match event.kind {
            EventKind::RegionReleased(region) => {
                known.insert(region.region_id, region.host_base);
            }
            EventKind::RegionAcquired(region) => {
                known.remove(&region.region_id);
            }
            _ => {
                if let Some(EventBlock { address, .. }) = block_of(&event.kind) {
                    *base = known.get(&address.region_id).copied().unwrap_or(address.region_id.0);
                }
            }
        }
    }
    bases
}

fn block_of(kind: &EventKind) -> Option<EventBlock> {
    match *kind {
        EventKind::Allocated(block)
        | EventKind::Freed(block)
        | EventKind::FreeRequested(block)
        | EventKind::FreeCompleted(block) => Some(block),
        _ => None,
    }
}

/// Makes PyTorch's dictionaries. Those of one site share their list of frames; all share their keys, which a pickle
/// then has once.
struct Writer<'py> {
    py: Python<'py>,
    device: i32,
    frames: HashMap<u32, Bound<'py, PyList>>,
}

impl<'py> Writer<'py> {
    fn segment(&mut self, base: u64, region: &RegionSnapshot) -> PyResult<Bound<'py, PyDict>> {
        let sum = |of: fn(&BlockSnapshot) -> u64, which: fn(&BlockSnapshot) -> bool| -> u64 {
            region.blocks.iter().filter(|block| which(block)).map(of).sum()
        };
        let is_allocated = |block: &BlockSnapshot| block.occupied && !block.freeing;
        let dict = PyDict::new(self.py);
        dict.set_item(intern!(self.py, "device"), self.device)?;
        dict.set_item(intern!(self.py, "address"), base)?;
        dict.set_item(intern!(self.py, "total_size"), region.size_bytes)?;
        dict.set_item(intern!(self.py, "allocated_size"), sum(|block| block.size_bytes, is_allocated))?;
        dict.set_item(
            intern!(self.py, "active_size"),
            sum(|block| block.size_bytes, |block| block.occupied),
        )?;
        dict.set_item(intern!(self.py, "requested_size"), sum(|block| block.requested_bytes, is_allocated))?;
        dict.set_item(intern!(self.py, "stream"), 0)?;
        dict.set_item(intern!(self.py, "segment_type"), "large")?;
        dict.set_item(intern!(self.py, "segment_pool_id"), (0, 0))?;
        dict.set_item(intern!(self.py, "is_expandable"), false)?;
        dict.set_item(intern!(self.py, "frames"), self.frames_of(0)?)?;
        dict.set_item(intern!(self.py, "memory_type"), region.memory_type.to_string())?;
        dict.set_item(intern!(self.py, "domain"), region.domain.0)?;
        let blocks: PyResult<Vec<_>> = region.blocks.iter().map(|block| self.block(base, block)).collect();
        dict.set_item(intern!(self.py, "blocks"), blocks?)?;
        Ok(dict)
    }

    fn block(&mut self, base: u64, block: &BlockSnapshot) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(self.py);
        dict.set_item(intern!(self.py, "address"), base + block.offset_bytes)?;
        dict.set_item(intern!(self.py, "size"), block.size_bytes)?;
        dict.set_item(intern!(self.py, "requested_size"), block.requested_bytes)?;
        let state = match (block.occupied, block.freeing) {
            (true, false) => "active_allocated",
            (true, true) => "active_pending_free",
            (false, _) => "inactive",
        };
        dict.set_item(intern!(self.py, "state"), PyString::intern(self.py, state))?;
        dict.set_item(intern!(self.py, "frames"), self.frames_of(block.site)?)?;
        if block.allocated_ns != 0 {
            dict.set_item(intern!(self.py, "time_us"), block.allocated_ns / 1000)?;
        }
        Ok(dict)
    }

    /// Adds an event to a trace: one entry, or two for a free that was done at once.
    fn event(&mut self, trace: &Bound<'py, PyList>, event: &Event, base: u64) -> PyResult<()> {
        if let Some(block) = block_of(&event.kind) {
            let actions: &[&str] = match event.kind {
                EventKind::Allocated(_) => &["alloc"],
                EventKind::FreeRequested(_) => &["free_requested"],
                EventKind::FreeCompleted(_) => &["free_completed"],
                _ => &["free_requested", "free_completed"],
            };
            for action in actions {
                let entry = self.entry(event, action, block.requested_bytes)?;
                entry.set_item(intern!(entry.py(), "addr"), base + block.address.offset_bytes)?;
                entry.set_item(intern!(entry.py(), "allocated_size"), block.size_bytes)?;
                trace.append(entry)?;
            }
            return Ok(());
        }
        let entry = self.other_event(event)?;
        trace.append(entry)
    }

    /// An event that is not of a block. PyTorch's viewers expect an address of every event but out of memory.
    fn other_event(&mut self, event: &Event) -> PyResult<Bound<'py, PyDict>> {
        let (action, size, address) = match event.kind {
            EventKind::RegionAcquired(region) => ("segment_alloc", region.size_bytes, Some(region.host_base)),
            EventKind::RegionReleased(region) => ("segment_free", region.size_bytes, Some(region.host_base)),
            EventKind::OutOfMemory { requested_bytes, .. } => ("oom", requested_bytes, None),
            EventKind::PressureBegan { requested_bytes, .. } => ("pressure_begin", requested_bytes, Some(0)),
            EventKind::PressureEnded(outcome) => ("pressure_end", outcome.requested_bytes, Some(0)),
            EventKind::Collected { reclaimed_bytes, .. } => ("gc_collect", reclaimed_bytes, Some(0)),
            _ => ("snapshot", 0, Some(0)),
        };
        let entry = self.entry(event, action, size)?;
        if let Some(address) = address {
            entry.set_item(intern!(entry.py(), "addr"), address)?;
        }
        match event.kind {
            EventKind::OutOfMemory { free_bytes, largest_free_bytes, .. }
            | EventKind::PressureBegan { free_bytes, largest_free_bytes, .. } => {
                entry.set_item(intern!(entry.py(), "device_free"), free_bytes)?;
                entry.set_item(intern!(entry.py(), "largest_free"), largest_free_bytes)?;
            }
            EventKind::PressureEnded(outcome) => write_outcome(&entry, &outcome)?,
            EventKind::Collected { generation, objects, elapsed, for_device, .. } => {
                let generation = if generation == Generation::Full { "full" } else { "young" };
                entry.set_item(intern!(entry.py(), "generation"), generation)?;
                entry.set_item(intern!(entry.py(), "objects"), objects)?;
                entry.set_item(intern!(entry.py(), "duration_us"), elapsed.as_micros() as u64)?;
                entry.set_item(intern!(entry.py(), "for_device"), for_device)?;
            }
            _ => {}
        }
        Ok(entry)
    }

    fn entry(&mut self, event: &Event, action: &str, size: u64) -> PyResult<Bound<'py, PyDict>> {
        let entry = PyDict::new(self.py);
        entry.set_item(intern!(self.py, "action"), PyString::intern(self.py, action))?;
        entry.set_item(intern!(entry.py(), "size"), size)?;
        entry.set_item(intern!(entry.py(), "stream"), 0)?;
        entry.set_item(intern!(entry.py(), "time_us"), event.time_ns / 1000)?;
        entry.set_item(intern!(entry.py(), "pool_id"), (0, 0))?;
        entry.set_item(intern!(entry.py(), "thread_id"), event.thread_id)?;
        entry.set_item(intern!(entry.py(), "frames"), self.frames_of(event.site)?)?;
        Ok(entry)
    }

    /// The stack of a site, innermost frame first; empty if it is not known.
    fn frames_of(&mut self, site: u32) -> PyResult<Bound<'py, PyList>> {
        if let Some(frames) = self.frames.get(&site) {
            return Ok(frames.clone());
        }
        let frames = PyList::empty(self.py);
        for frame in stacks::frames(site) {
            let dict = PyDict::new(self.py);
            dict.set_item(intern!(self.py, "filename"), &*frame.filename)?;
            dict.set_item(intern!(self.py, "line"), frame.line)?;
            dict.set_item(intern!(self.py, "name"), &*frame.name)?;
            frames.append(dict)?;
        }
        self.frames.insert(site, frames.clone());
        Ok(frames)
    }
}

/// How a request under pressure ended.
fn write_outcome(entry: &Bound<'_, PyDict>, outcome: &PressureOutcome) -> PyResult<()> {
    entry.set_item(intern!(entry.py(), "outcome"), if outcome.rescued { "rescued" } else { "failed" })?;
    entry.set_item(intern!(entry.py(), "duration_us"), outcome.elapsed.as_micros() as u64)?;
    entry.set_item(intern!(entry.py(), "young_collections"), outcome.young_collections)?;
    entry.set_item(intern!(entry.py(), "full_collections"), outcome.full_collections)?;
    entry.set_item(intern!(entry.py(), "reclaimed_bytes"), outcome.reclaimed_bytes)?;
    entry.set_item(intern!(entry.py(), "skipped"), outcome.skipped.map(|reason| reason.name()))?;
    entry.set_item(intern!(entry.py(), "timed_out"), outcome.timed_out)
}
