//! The cycle recorder: which objects held the device memory that a collection frees.
//!
//! The collector frees what it finds without telling anybody. In a *recorded* collection it saves what it found, by
//! `gc.DEBUG_SAVEALL`: at that point weak references are cleared, finalizers have run, and nothing but the objects
//! themselves refers to them. Our entry in `gc.callbacks` is called next, before any other code runs and before CPython
//! takes the collection for ended. It takes the objects out of `gc.garbage`, looks who holds which device memory
//! ([`graph`], and `torch_spyre/_cycles.py` for the names), and then does what the collector would have done: it has
//! each object drop its references. So memory comes free in the same collection as without recording, on the same
//! thread, and what counts frees and collections need not know.
//!
//! An object that somebody has got hold of meanwhile, through `gc.garbage` or `gc.get_objects()`, and what that refers
//! to, is left to later collections.
//!
//! Off unless the program asks for it: looking takes time. Without it [`ledger`] counts what collections free, and
//! not who held it.
//!
//! No lock of its own. What calls Python here runs in the middle of a collection: the calling thread is attached, has
//! no pending exception, and holds no allocator mutex.

pub(crate) mod dead;
mod graph;
mod ledger;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flex::BlockHandle;
use flex::fork::is_forked;
use flex::pressure::collecting::{self, CollectionKind};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use rustc_hash::FxHashMap;

pub(crate) use graph::ObjectGraph;
pub(crate) use ledger::{Holder, Holding, Ledger, Record, Sites, Sum, ledger, reset, while_locked};

use super::ffi::{self, Ended, Object};
use super::interrupts;
use super::stacks;
use crate::runtime::{self, DeviceMemory};
use graph::References;
use ledger::Freed;

/// As in `gc`.
const DEBUG_SAVEALL: i64 = 32;

/// How long looking at the objects of one collection may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// How many tensors are looked at; more are counted, and not named.
const MOST_TENSORS: usize = 50_000;

/// No warnings.
const NEVER: u64 = u64::MAX;

static RECORDING: AtomicBool = AtomicBool::new(false);

/// Holders of more than so many bytes are warned about.
static WARN_BYTES: AtomicU64 = AtomicU64::new(NEVER);

/// The collection that runs saves what it finds, because of us.
static SAVING: AtomicBool = AtomicBool::new(false);

/// How many objects of others were in `gc.garbage` then.
static KEPT: AtomicIsize = AtomicIsize::new(0);

static COLLECTOR: OnceLock<Collector> = OnceLock::new();
static EXPLAINER: OnceLock<Explainer> = OnceLock::new();

/// Python's collector, as it was at import.
struct Collector {
    get_debug: Py<PyAny>,
    set_debug: Py<PyAny>,
    get_objects: Py<PyAny>,
    garbage: Py<PyAny>,
    /// Other threads change objects while one looks at them.
    free_threaded: bool,
}

/// What names things: functions and types of `torch_spyre/_cycles.py`.
struct Explainer {
    explain: Py<PyAny>,
    warn: Py<PyAny>,
    tensor: Py<PyAny>,
    containers: Vec<Py<PyAny>>,
}

/// What the explainer said about some objects.
#[derive(Default)]
struct Explained {
    /// Device memory by address, with the number of its holding and how many tensors outside refer to it.
    storages: FxHashMap<usize, (usize, i64)>,
    holdings: Vec<Holding>,
    /// An object on each cycle that holds device memory, with the number of the holding.
    on_cycle: Vec<(u32, usize)>,
}

/// What `explain` returns: the address of each storage, its holder, and its references from tensors outside; each
/// holder's name, path, file, line, and an object on each of its cycles; and objects that were made on the way and
/// refer to what was explained.
type Answer<'py> =
    (Vec<(usize, usize, i64)>, Vec<(String, String, String, u32, Vec<u32>)>, Bound<'py, PyList>);

/// Keeps the collector's functions. Once, at import.
pub(super) fn install(py: Python<'_>, free_threaded: bool) -> PyResult<()> {
    let gc = py.import("gc")?;
    let _ = COLLECTOR.set(Collector {
        get_debug: gc.getattr("get_debug")?.unbind(),
        set_debug: gc.getattr("set_debug")?.unbind(),
        get_objects: gc.getattr("get_objects")?.unbind(),
        garbage: gc.getattr("garbage")?.unbind(),
        free_threaded,
    });
    Ok(())
}

/// Tells who names things. Only the first call counts.
pub(crate) fn set_explainer(
    explain: Py<PyAny>,
    warn: Py<PyAny>,
    tensor: Py<PyAny>,
    containers: Vec<Py<PyAny>>,
) {
    let _ = EXPLAINER.set(Explainer { explain, warn, tensor, containers });
}

/// Turns recording on or off, from the next collection on: of the allocator's collections, and if holders of more than
/// `warn_bytes` are to be warned about, of all.
pub(crate) fn record(enabled: bool, warn_bytes: Option<u64>) {
    WARN_BYTES.store(if enabled { warn_bytes.unwrap_or(NEVER) } else { NEVER }, Ordering::SeqCst);
    RECORDING.store(enabled, Ordering::SeqCst);
}

/// Whether collections are recorded, and from how many bytes on holders are warned about.
pub(crate) fn recording() -> (bool, Option<u64>) {
    let warn_bytes = WARN_BYTES.load(Ordering::SeqCst);
    (RECORDING.load(Ordering::SeqCst), (warn_bytes != NEVER).then_some(warn_bytes))
}

/// Counts the free of a block of a device if this thread is collecting.
#[inline]
pub(crate) fn count_free(device: &DeviceMemory, handle: BlockHandle, bytes: u64) {
    if collecting::kind().is_some() {
        let site = if device.allocator.is_recording() { device.allocator.block_site(handle) } else { 0 };
        ledger::count_free(device.index, bytes, site, || {
            let chunk = device.allocator.block(handle).ok()??;
            device.allocator.device().host_address(chunk.address)
        });
    }
}

/// The stack of a place where memory was allocated, innermost frame first: file, line, function.
pub(crate) fn frames(site: u32) -> Vec<(String, u32, String)> {
    let frames = stacks::frames(site).into_iter();
    frames.map(|frame| (frame.filename.to_string(), frame.line, frame.name.to_string())).collect()
}

/// A collection begins on this thread: called before the callbacks of others.
pub(super) fn collection_begins() {
    ledger::begin();
}

/// A collection is about to look for garbage: called after the callbacks of others.
pub(super) fn before_collecting() {
    let (recording, warn_bytes) = recording();
    let wanted = recording && (warn_bytes.is_some() || collecting::kind() == Some(CollectionKind::Gate));
    if !wanted {
        return;
    }
    repair();
    let (Some(collector), Some(_)) = (COLLECTOR.get(), EXPLAINER.get()) else { return };
    // A program that saves garbage itself wants to keep it.
    if let Some(flags) = collector.debug_flags().filter(|flags| flags & DEBUG_SAVEALL == 0) {
        // SAFETY: attached, and a live list.
        KEPT.store(unsafe { ffi::list_length(collector.garbage.as_ptr()) }, Ordering::SeqCst);
        SAVING.store(true, Ordering::SeqCst);
        collector.set_debug_flags(flags | DEBUG_SAVEALL);
    }
}

/// A collection has found `objects` objects: called before the callbacks of others, and again after them in case
/// that our first entry was removed meanwhile.
pub(super) fn after_collecting(objects: usize) {
    if SAVING.swap(false, Ordering::SeqCst)
        && let Some(saved) = COLLECTOR.get().and_then(|collector| collector.take_saved(Some(objects)))
    {
        finish(saved);
    }
}

/// Frees what a collection saved whose end was not seen, since somebody removed our entries in its middle.
pub(super) fn repair() {
    if SAVING.swap(false, Ordering::SeqCst)
        && let Some(saved) = COLLECTOR.get().and_then(|collector| collector.take_saved(None))
    {
        // SAFETY: attached, and the reference is ours.
        unsafe { clear_unreachable(saved, &mut Explained::default()) };
    }
}

/// A collection ends on this thread: called after the callbacks of others.
pub(super) fn collection_ends(generation: usize, objects: usize) {
    let devices = runtime::runtime().map_or(0, |runtime| runtime.devices().len());
    let kind = collecting::kind();
    ledger::end(kind, generation, objects, devices);
    // The allocator's are raised when the request has ended.
    if kind != Some(CollectionKind::Gate) {
        interrupts::raise_noted();
    }
}

impl Collector {
    fn debug_flags(&self) -> Option<i64> {
        // SAFETY: attached; the objects are alive.
        let ended = unsafe {
            let py = Python::assume_attached();
            ffi::call_for_integer(self.get_debug.as_ptr(), PyTuple::empty(py).as_ptr())
        };
        if let Ended::Returned(flags) = ended { flags } else { None }
    }

    fn set_debug_flags(&self, flags: i64) {
        // SAFETY: attached.
        let py = unsafe { Python::assume_attached() };
        if let Ok(arguments) = PyTuple::new(py, [flags]) {
            // SAFETY: attached; the objects are alive.
            unsafe { ffi::call(self.set_debug.as_ptr(), arguments.as_ptr()) };
        }
    }

    /// Takes what the collector has saved, the last `objects` of `gc.garbage`, and has it save no more. `None` where
    /// it has not saved anything. Without a number: whatever was added.
    fn take_saved(&self, objects: Option<usize>) -> Option<Object> {
        let flags = self.debug_flags().filter(|flags| flags & DEBUG_SAVEALL != 0)?;
        self.set_debug_flags(flags & !DEBUG_SAVEALL);
        // SAFETY: attached, and a live list.
        unsafe {
            let length = ffi::list_length(self.garbage.as_ptr());
            let kept = match objects {
                Some(objects) => (length - objects as isize).max(0),
                None => KEPT.load(Ordering::SeqCst).min(length),
            };
            let saved = ffi::split_list(self.garbage.as_ptr(), kept);
            (!saved.is_null()).then_some(saved)
        }
    }
}

/// Looks who holds device memory among `saved`, frees it, and keeps what that was.
fn finish(saved: Object) {
    let explained = if is_forked() { None } else { EXPLAINER.get().and_then(|it| it.explain(saved)) };
    let is_known = explained.is_some();
    let mut explained = explained.unwrap_or_default();
    // SAFETY: attached, and the reference is ours.
    unsafe { clear_unreachable(saved, &mut explained) };
    if !is_known {
        return;
    }
    let holdings = explained.into_freed();
    if let Some(explainer) = EXPLAINER.get()
        && !is_forked()
    {
        explainer.warn_about(&holdings);
    }
    ledger::note_holdings(holdings);
}

/// Has those objects of a list drop their references that nobody else can reach, gives up the list, and counts what
/// comes free.
///
/// One cycle after the other, those first that lead to others: so it is known which cycle held memory that only C++
/// objects refer to. What is on no cycle goes with the cycles that lead to it.
///
/// # Safety
/// The calling thread is attached, has no pending exception, and owns the reference to the list.
unsafe fn clear_unreachable(saved: Object, explained: &mut Explained) {
    // SAFETY: the caller's contract. From here on each object is kept alive by a reference of ours, given up once.
    unsafe {
        let objects = ffi::list_items(saved);
        objects.iter().for_each(|object| pyo3::ffi::Py_INCREF(*object));
        ffi::release(saved);
        // No Python code runs between this look and the first object that is cleared.
        let Some(references) = References::among(&objects, 1, None) else {
            return objects.iter().for_each(|object| ffi::release(*object));
        };
        let reachable = references.reachable();
        let graph = references.into_graph();
        let holding_of: FxHashMap<u32, usize> =
            explained.on_cycle.iter().map(|(node, holding)| (graph.component(*node), *holding)).collect();
        let (cycles, others) = graph.cycles();
        others.iter().for_each(|node| ffi::release(objects[*node as usize]));
        for cycle in cycles {
            let freed = ledger::listen(|| {
                let members = || cycle.iter().map(|node| (*node as usize, objects[*node as usize]));
                members().filter(|(place, _)| !reachable[*place]).for_each(|(_, object)| ffi::clear(object));
                members().for_each(|(_, object)| ffi::release(object));
            });
            explained.count_freed(&freed, holding_of.get(&graph.component(cycle[0])).copied());
        }
    }
}

impl Explainer {
    /// Who holds which device memory among the objects of a list; what was made on the way is added to the list.
    /// `None` if it takes too long.
    fn explain(&self, list: Object) -> Option<Explained> {
        // SAFETY: attached; the list is alive and keeps the objects alive.
        let objects = unsafe { ffi::list_items(list) };
        if !objects.iter().any(|object| self.is_tensor(*object)) {
            return Some(Explained::default());
        }
        // SAFETY: attached; nothing but the list refers to the objects from outside.
        let references = unsafe { References::among(&objects, 1, Some(Instant::now() + LOOK_TIMEOUT)) }?;
        self.explain_graph(list, references.into_graph(), false)
    }

    /// As [`explain`](Self::explain), for objects whose graph is known. `frozen`: garbage that stays what it is only if
    /// no dictionary is made of its objects, as the way around a cycle would: that is not told then.
    fn explain_graph(&self, list: Object, graph: ObjectGraph, frozen: bool) -> Option<Explained> {
        // SAFETY: attached; the list is alive and keeps the objects alive.
        let (py, objects) = unsafe { (Python::assume_attached(), ffi::list_items(list)) };
        let tensors = (0..).zip(&objects).filter(|(_, object)| self.is_tensor(**object));
        let tensors: Vec<u32> = tensors.map(|(number, _)| number).take(MOST_TENSORS).collect();
        let owners = objects.iter().map(|object| !self.is_container(*object)).collect();
        let arguments = ffi::uncollected(|| {
            // SAFETY: attached; the list is alive.
            let list = unsafe { Bound::from_borrowed_ptr(py, list) };
            (list, Garbage { graph, owners }, tensors, frozen).into_pyobject(py)
        });
        let arguments = arguments.ok()?;
        // SAFETY: attached; the objects are alive.
        let ended = unsafe { ffi::call_own(self.explain.as_ptr(), arguments.as_ptr()) };
        let answer = match ended {
            Ended::Returned(answer) => answer,
            Ended::Interrupted => {
                interrupts::note();
                return None;
            }
            Ended::Raised | Ended::Forked => return None,
        };
        // SAFETY: attached, and the result is a new reference.
        let answer = unsafe { Bound::from_owned_ptr(py, answer) };
        let answer: PyResult<Answer<'_>> = ffi::uncollected(|| answer.extract());
        let report = |error: PyErr| error.write_unraisable(py, None);
        let (storages, holders, made) = answer.map_err(report).ok()?;
        // SAFETY: attached; both lists are alive.
        unsafe { ffi::extend_list(list, made.as_ptr()) };
        let mut explained = Explained::default();
        explained
            .storages
            .extend(storages.into_iter().map(|(address, holding, outside)| (address, (holding, outside))));
        for (number, (name, path, filename, line, on_cycle)) in holders.into_iter().enumerate() {
            explained.holdings.push(Holding {
                holder: Holder { name, path, filename, line },
                cycles: on_cycle.len() as u64,
                ..Holding::default()
            });
            explained.on_cycle.extend(on_cycle.into_iter().map(|node| (node, number)));
        }
        Some(explained)
    }

    fn is_tensor(&self, object: Object) -> bool {
        // SAFETY: attached; the object is alive, and `tensor` a type.
        unsafe { ffi::is_instance(object, self.tensor.as_ptr()) }
    }

    /// Whether an object only keeps others for some owner, as a dictionary, a frame or an exception does.
    fn is_container(&self, object: Object) -> bool {
        // SAFETY: attached; the object is alive, and the class lives as long as the interpreter.
        let (kind, is_exception) =
            unsafe { (pyo3::ffi::Py_TYPE(object), ffi::is_instance(object, pyo3::ffi::PyExc_BaseException)) };
        is_exception || self.containers.iter().any(|container| container.as_ptr() == kind.cast())
    }

    fn warn_about(&self, holdings: &[Holding]) {
        let (_, Some(warn_bytes)) = recording() else { return };
        // SAFETY: attached.
        let py = unsafe { Python::assume_attached() };
        for holding in holdings.iter().filter(|holding| holding.bytes >= warn_bytes.max(1)) {
            let Holding { device, holder, bytes, cycles, .. } = holding;
            let frames = holding.main_site().map_or_else(Vec::new, frames);
            let facts =
                (device, bytes, cycles, &holder.name, &holder.path, &holder.filename, holder.line, frames);
            let Ok(arguments) = ffi::uncollected(|| facts.into_pyobject(py)) else { continue };
            // SAFETY: attached; the objects are alive. A warning that is turned into an exception is reported as that.
            let ended = unsafe { ffi::call(self.warn.as_ptr(), arguments.as_ptr()) };
            if ended == Ended::Interrupted {
                interrupts::note();
            }
        }
    }
}

impl Explained {
    /// Counts what came free with a cycle: for the holder of the tensor, or else, if only C++ objects referred to it,
    /// for the holder that the cycle has.
    fn count_freed(&mut self, freed: &[Freed], of_cycle: Option<usize>) {
        for Freed { address, bytes, site } in freed {
            let device = runtime::device_of(*address);
            // Once: its address may have been handed out and freed again.
            let of_tensor = self.storages.remove(address).map(|(holding, _)| holding);
            let Some(holding) = of_tensor.or(of_cycle) else { continue };
            self.count(holding, device, *bytes);
            if of_tensor.is_none() {
                self.holdings[holding].native_bytes += bytes;
            }
            if *site != 0 {
                *self.holdings[holding].sites.entry(*site).or_default() += bytes;
            }
        }
    }

    /// The holdings of which memory came free.
    fn into_freed(mut self) -> Vec<Holding> {
        self.holdings.retain(|holding| holding.blocks > 0);
        self.holdings
    }

    fn count(&mut self, holding: usize, device: i32, bytes: u64) {
        if let (Some(holding), Ok(device)) = (self.holdings.get_mut(holding), usize::try_from(device)) {
            holding.device = device;
            holding.bytes += bytes;
            holding.blocks += 1;
        }
    }
}

/// Dead objects, for who explains them: their graph, and which of them could be called an owner.
#[pyclass(module = "torch_spyre._C", frozen)]
pub(crate) struct Garbage {
    graph: ObjectGraph,
    owners: Vec<bool>,
}

#[pymethods]
impl Garbage {
    /// Who holds an object: the nearest owner, and the nearest object on a cycle, an owner if possible; or None.
    fn holder(&self, object: u32) -> PyResult<(Option<u32>, Option<u32>)> {
        self.check(object)?;
        Ok(self.graph.holder(object, |other| self.owners[other as usize]))
    }

    /// A shortest cycle through an object, by number; empty if there is none.
    fn cycle(&self, object: u32) -> PyResult<Vec<u32>> {
        self.check(object)?;
        Ok(self.graph.cycle(object))
    }

    /// Whether it is more than a container.
    fn is_owner(&self, object: u32) -> PyResult<bool> {
        self.check(object)?;
        Ok(self.owners[object as usize])
    }

    /// A number that the objects on one cycle have in common.
    fn component(&self, object: u32) -> PyResult<u32> {
        self.check(object)?;
        Ok(self.graph.component(object))
    }
}

impl Garbage {
    fn check(&self, object: u32) -> PyResult<()> {
        if (object as usize) < self.owners.len() {
            return Ok(());
        }
        let count = self.owners.len();
        Err(PyIndexError::new_err(format!("object {object} of {count}; expected a smaller number")))
    }
}
