//! How much device memory only dead cycles hold now: found without collecting anything.
//!
//! The collector's own arithmetic (trial deletion) over what it would look at, `gc.get_objects()`. No finalizer runs,
//! nothing is freed. It needs that no other thread changes objects meanwhile, which without a GIL is seen to by
//! [`stopped_world`]. No lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::super::ffi::{self, Ended, Object, Owned};
use super::super::frozen;
use super::super::stopped_world;
use super::graph::References;
use super::ledger::Holding;
use super::{COLLECTOR, Collector, EXPLAINER, Explained, Explainer};
use crate::message;
use crate::runtime::{self, DeviceMemory};

/// More objects are not looked at.
const MOST_OBJECTS: usize = 20_000_000;

/// What only dead cycles hold.
pub(crate) struct Dead {
    pub(crate) bytes: u64,
    /// By holder, the largest first.
    pub(crate) holdings: Vec<Holding>,
}

/// What only dead cycles hold of a device: at least so much, since memory that C++ objects also hold is left out.
/// `None` on a free-threaded build other than of CPython 3.13, and if the answer takes longer than `timeout`. The
/// calling thread is attached and has no pending exception.
pub(crate) fn find(py: Python<'_>, device: &DeviceMemory, timeout: Duration) -> Option<Dead> {
    let (collector, explainer) = (COLLECTOR.get()?, EXPLAINER.get()?);
    let deadline = Instant::now() + timeout;
    let all = collector.all_objects(py)?;
    // SAFETY: attached; the list keeps its items alive.
    let objects = unsafe { ffi::list_items(all.as_ptr()) };
    let references = references(py, collector.free_threaded, &objects, deadline)?;
    let reachable = references.reachable();
    let dead: Vec<u32> = (0..objects.len() as u32).filter(|number| !reachable[*number as usize]).collect();
    let found = explain(explainer, all, &objects, &dead, &references, false)?;
    Some(weigh(found, device))
}

/// As [`find`], what only garbage holds of which the collector does not look at all objects, since `count` are frozen.
/// Where no frozen object is a tensor there is seldom anything to find: if that takes longer than `unlikely_timeout`,
/// it counts as nothing.
pub(in crate::interpreter) fn find_frozen(
    py: Python<'_>,
    device: &DeviceMemory,
    count: usize,
    timeout: Duration,
    unlikely_timeout: Option<Duration>,
) -> Option<Dead> {
    let (collector, explainer) = (COLLECTOR.get()?, EXPLAINER.get()?);
    if collector.free_threaded {
        return None;
    }
    let began = Instant::now();
    // What was made since may be part of it, such as the dictionary of a frozen object, and hold it together.
    let others = collector.all_objects(py)?;
    // SAFETY: attached; the list keeps its items alive.
    let mut objects = unsafe { ffi::list_items(others.as_ptr()) };
    let first_frozen = objects.len() as u32;
    objects.extend(frozen::objects(py, count)?);
    // SAFETY: attached. They are alive: no Python code has run since they were listed, and to make a list runs none.
    let all = unsafe { Owned::list(&objects) }?;
    drop(others);
    let is_likely = || objects[first_frozen as usize..].iter().any(|object| explainer.is_tensor(*object));
    let unlikely_timeout = unlikely_timeout.filter(|_| !is_likely());
    let deadline = began + unlikely_timeout.map_or(timeout, |unlikely| timeout.min(unlikely));
    let Some(references) = references(py, false, &objects, deadline) else {
        return unlikely_timeout.map(|_| Dead { bytes: 0, holdings: Vec::new() });
    };
    let kept = references.kept_by_frozen(first_frozen);
    let found = explain(explainer, all, &objects, &kept, &references, true)?;
    Some(weigh(found, device))
}

/// What refers to what among the objects of a list, at one moment.
fn references(
    py: Python<'_>,
    free_threaded: bool,
    objects: &[Object],
    deadline: Instant,
) -> Option<References> {
    if objects.len() > MOST_OBJECTS {
        return None;
    }
    // SAFETY: attached; the list keeps the objects alive. Nobody changes them: the calling thread has the GIL and runs
    // no Python code, or all others stand still.
    let look = || unsafe { References::among(objects, 1, Some(deadline)) };
    if free_threaded { stopped_world::run(py, look).flatten() } else { look() }
}

/// Who holds which device memory among the objects with these numbers, of a list that is given up. `frozen` as in
/// [`Explainer::explain_graph`].
fn explain(
    explainer: &Explainer,
    list: Owned,
    objects: &[Object],
    numbers: &[u32],
    references: &References,
    frozen: bool,
) -> Option<Explained> {
    let graph = references.graph(numbers);
    let chosen: Vec<Object> = numbers.iter().map(|number| objects[*number as usize]).collect();
    // SAFETY: attached; the first list keeps the objects alive until they are in the second.
    let chosen = unsafe { Owned::list(&chosen) }?;
    drop(list);
    explainer.explain_graph(chosen.as_ptr(), graph, frozen)
}

/// How long an out-of-memory error is kept waiting for [`hint`], at most.
const HINT_TIMEOUT: Duration = Duration::from_secs(1);

/// How many holders a hint names.
const NAMED: usize = 3;

/// What only dead cycles hold of a device, as a sentence; `None` if that is nothing, or not known in time. As
/// [`find`].
pub(in crate::interpreter) fn hint(py: Python<'_>, device: u32, deadline: Instant) -> Option<Arc<str>> {
    let device = runtime::device(i32::try_from(device).ok()?).ok()?;
    let timeout = HINT_TIMEOUT.min(deadline.saturating_duration_since(Instant::now()));
    let Dead { bytes, holdings } = find(py, device, timeout).filter(|dead| dead.bytes > 0)?;
    let mut names: Vec<&str> = Vec::new();
    for holding in &holdings {
        if !names.contains(&&*holding.holder.name) && names.len() < NAMED {
            names.push(&holding.holder.name);
        }
    }
    let held = message::human(bytes);
    let others = if holdings.len() > NAMED { " and others" } else { "" };
    Some(format!("{held} is held only by dead reference cycles, by {}{others}.", names.join(", ")).into())
}

impl Collector {
    /// What the collector looks at, in a new list. The calling thread is attached and has no pending exception.
    fn all_objects(&self, py: Python<'_>) -> Option<Owned> {
        // SAFETY: attached; the function is alive, and its result a new reference.
        unsafe {
            match ffi::call_for_object(self.get_objects.as_ptr(), PyTuple::empty(py).as_ptr()) {
                Ended::Returned(list) => Owned::new(list),
                _ => None,
            }
        }
    }
}

/// Memory of the device that no tensor outside refers to.
fn weigh(mut explained: Explained, device: &DeviceMemory) -> Dead {
    let sizes = block_sizes(device);
    let mut bytes = 0;
    for (address, (holding, outside)) in std::mem::take(&mut explained.storages) {
        if let Some(size_bytes) = sizes.get(&address).filter(|_| outside <= 0) {
            bytes += size_bytes;
            explained.count(holding, device.index as i32, *size_bytes);
        }
    }
    let mut holdings = explained.holdings;
    holdings.retain(|holding| holding.blocks > 0);
    holdings.sort_by_key(|holding| std::cmp::Reverse(holding.bytes));
    Dead { bytes, holdings }
}

/// The sizes of a device's blocks by address, in bytes.
fn block_sizes(device: &DeviceMemory) -> BTreeMap<usize, u64> {
    let Ok(regions) = device.allocator.regions() else { return BTreeMap::new() };
    let occupied = |region: &flex::RegionSnapshot| {
        let base = device.allocator.host_base(region).unwrap_or_default();
        let blocks = region.blocks.iter().filter(|block| block.occupied);
        blocks.map(move |block| (base + block.offset_bytes as usize, block.size_bytes)).collect::<Vec<_>>()
    };
    regions.iter().flat_map(occupied).collect()
}
