//! The keys of PyTorch's snapshots, and the entries of a dict by key.
//!
//! The heap knows these texts first, in this order, so that a key is compared as a number.

use std::cell::Cell;

use crate::import::pickle::{Fault, Heap, Sharing, Text, Value};

macro_rules! keys {
    ($($name:ident = $text:literal,)*) => {
        /// The texts, by number.
        const ALL: &[&str] = &[$($text,)*];

        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Number { $($name,)* }

        $(#[doc = $text] pub(super) const $name: Text = Text(Number::$name as u32);)*
    };
}

keys! {
    ACTION = "action",
    ACTIVE_SIZE = "active_size",
    ADDR = "addr",
    ADDRESS = "address",
    ALLOCATED_SIZE = "allocated_size",
    ALLOCATOR_SETTINGS = "allocator_settings",
    BLOCKS = "blocks",
    DEVICE = "device",
    DEVICE_FREE = "device_free",
    DEVICE_TRACES = "device_traces",
    EXTERNAL_ANNOTATIONS = "external_annotations",
    FILENAME = "filename",
    FRAMES = "frames",
    HISTORY = "history",
    IS_EXPANDABLE = "is_expandable",
    LINE = "line",
    NAME = "name",
    REAL_SIZE = "real_size",
    REQUESTED_SIZE = "requested_size",
    SEGMENTS = "segments",
    SEGMENT_POOL_ID = "segment_pool_id",
    SEGMENT_TYPE = "segment_type",
    SIZE = "size",
    STAGE = "stage",
    STATE = "state",
    STREAM = "stream",
    TIME_US = "time_us",
    TOTAL_SIZE = "total_size",
    ALLOC = "alloc",
    FREE_REQUESTED = "free_requested",
    FREE_COMPLETED = "free_completed",
    SEGMENT_ALLOC = "segment_alloc",
    SEGMENT_FREE = "segment_free",
    SEGMENT_MAP = "segment_map",
    SEGMENT_UNMAP = "segment_unmap",
    OOM = "oom",
    SNAPSHOT = "snapshot",
    INACTIVE = "inactive",
    ACTIVE_ALLOCATED = "active_allocated",
    ACTIVE_PENDING_FREE = "active_pending_free",
    ACTIVE_AWAITING_FREE = "active_awaiting_free",
    SMALL = "small",
    START = "START",
    THREAD_ID = "thread_id",
    LARGEST_FREE = "largest_free",
    PRESSURE_BEGIN = "pressure_begin",
    PRESSURE_END = "pressure_end",
    GC_COLLECT = "gc_collect",
    GENERATION = "generation",
    FULL = "full",
    OBJECTS = "objects",
    DURATION_US = "duration_us",
    OUTCOME = "outcome",
    RESCUED = "rescued",
    RECLAIMED_BYTES = "reclaimed_bytes",
    YOUNG_COLLECTIONS = "young_collections",
    FULL_COLLECTIONS = "full_collections",
    FOR_DEVICE = "for_device",
    LOST_EVENTS = "lost_events",
}

/// A heap that knows the keys.
pub(super) fn heap(sharing: Sharing) -> Heap {
    let mut heap = Heap::with_sharing(sharing);
    for (number, text) in ALL.iter().enumerate() {
        debug_assert_eq!(heap.intern(text), Text(number as u32));
        heap.intern(text);
    }
    heap
}

const INTEGER: &str = "an integer from 0 to 2^64 - 1";

/// The entries of a dict, and what it is for errors.
#[derive(Clone, Copy)]
pub(super) struct Entries<'a> {
    pub(super) what: &'static str,
    pub(super) entries: &'a [(Value, Value)],
    /// The key of a figure that cannot be, if one was found.
    pub(super) odd: &'a Cell<Option<Odd>>,
}

/// The key of a figure that cannot be: it is negative, or has more than 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Odd(Text);

impl std::fmt::Display for Odd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "its {:?} is not from 0 to 2^64 - 1", ALL[self.0.0 as usize])
    }
}

impl Entries<'_> {
    /// The value of a key; None stands for a missing one too.
    pub(super) fn find(&self, key: Text) -> Option<Value> {
        let found = self.entries.iter().rev().find(|&&(found, _)| found == Value::Text(key));
        found.map(|&(_, value)| value).filter(|&value| value != Value::None)
    }

    /// A size or an address that must be there; 0 for an odd one.
    pub(super) fn number(&self, key: Text) -> Result<u64, Fault> {
        match self.optional(key)? {
            Some(number) => Ok(number),
            None if self.find(key).is_some() => Ok(0),
            None => Err(self.wrong(key, INTEGER, "nothing")),
        }
    }

    /// A size or an address that may be missing, as an odd one is.
    pub(super) fn optional(&self, key: Text) -> Result<Option<u64>, Fault> {
        match self.find(key) {
            None => Ok(None),
            Some(Value::Int { negative: true, .. } | Value::Huge) => {
                self.odd.set(Some(Odd(key)));
                Ok(None)
            }
            Some(value) => value.as_u64().map(Some).ok_or_else(|| self.wrong(key, INTEGER, value.kind())),
        }
    }

    /// A number that tells things apart and may be missing.
    pub(super) fn identity(&self, key: Text) -> Option<u64> {
        self.find(key).and_then(Value::as_u64)
    }

    /// A text that must be there.
    pub(super) fn text(&self, key: Text) -> Result<Text, Fault> {
        match self.find(key) {
            Some(Value::Text(text)) => Ok(text),
            other => Err(self.wrong(key, "a text", other.map_or("nothing", Value::kind))),
        }
    }

    /// A flag; false if it is missing.
    pub(super) fn flag(&self, key: Text) -> bool {
        self.find(key) == Some(Value::Bool(true))
    }

    /// An error about a value.
    pub(super) fn wrong(&self, key: Text, expected: &str, found: &str) -> Fault {
        let (what, key) = (self.what, ALL[key.0 as usize]);
        Fault::Contents(format!("the {key:?} of {what}: expected {expected}, found {found}"))
    }
}
