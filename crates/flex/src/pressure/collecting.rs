//! What this thread is doing for reclamation: collecting, or inside the ladder.
//!
//! Thread-locals without destructors, so that a free during thread exit may still ask. The reclaimer marks
//! collections; the allocator marks the ladder.

use std::cell::Cell;

/// Whose collection runs on this thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectionKind {
    /// The gate asked for it.
    Gate,
    /// The program or its automatic collector did.
    Foreign,
}

/// How often the reclaimer has found its observer removed. Collections may have begun and ended unseen before each
/// time, so a mark of a foreign one that was made before the last of them proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gaps(pub u64);

crate::sync::thread_local! {
    static KIND: Cell<Option<CollectionKind>> = const { Cell::new(None) };
    static GAPS: Cell<Gaps> = const { Cell::new(Gaps(0)) };
    static IN_PRESSURE: Cell<bool> = const { Cell::new(false) };
}

/// The collection that runs on this thread, as far as is known. A foreign mark is a hint: it goes stale when the
/// program removes the reclaimer's observer in the middle of a collection.
#[inline]
pub fn kind() -> Option<CollectionKind> {
    KIND.with(Cell::get)
}

/// If this thread is marked as being inside a foreign collection: the gaps that were known when the mark was made.
pub fn foreign() -> Option<Gaps> {
    (kind() == Some(CollectionKind::Foreign)).then(|| GAPS.with(Cell::get))
}

/// Marks the beginning of a foreign collection. Inside a collection of the gate it changes nothing.
pub fn begin_foreign(gaps: Gaps) {
    if kind() != Some(CollectionKind::Gate) {
        KIND.with(|kind| kind.set(Some(CollectionKind::Foreign)));
        GAPS.with(|known| known.set(gaps));
    }
}

/// Marks the end of a foreign collection. Inside a collection of the gate it changes nothing.
pub fn end_foreign() {
    if kind() != Some(CollectionKind::Gate) {
        KIND.with(|kind| kind.set(None));
    }
}

/// Whether this thread is inside the ladder of some request, its callback and hooks included.
#[inline]
pub fn in_pressure() -> bool {
    IN_PRESSURE.with(Cell::get)
}

/// Marks this thread as running a collection of the gate until dropped.
pub struct GateCollection {
    before: Option<CollectionKind>,
}

impl GateCollection {
    /// Begins the mark.
    #[must_use]
    pub fn begin() -> Self {
        GateCollection { before: KIND.with(|kind| kind.replace(Some(CollectionKind::Gate))) }
    }
}

impl Drop for GateCollection {
    fn drop(&mut self) {
        KIND.with(|kind| kind.set(self.before));
    }
}

/// Marks this thread as being in the ladder until dropped.
pub(crate) struct InPressure(());

impl InPressure {
    /// Begins the mark; `None` if this thread is in the ladder already.
    pub(crate) fn begin() -> Option<Self> {
        // Made only when wanted: dropping one ends the mark.
        (!IN_PRESSURE.with(|inside| inside.replace(true))).then(|| InPressure(()))
    }
}

impl Drop for InPressure {
    fn drop(&mut self) {
        IN_PRESSURE.with(|inside| inside.set(false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_nest_and_end() {
        assert_eq!(kind(), None);
        begin_foreign(Gaps(3));
        assert_eq!((kind(), foreign()), (Some(CollectionKind::Foreign), Some(Gaps(3))));
        {
            let _own = GateCollection::begin();
            begin_foreign(Gaps(4));
            end_foreign();
            assert_eq!(kind(), Some(CollectionKind::Gate), "the observer also sees our own collection");
            assert_eq!(foreign(), None);
        }
        assert_eq!(foreign(), Some(Gaps(3)));
        end_foreign();
        assert_eq!((kind(), foreign()), (None, None));
        let first = InPressure::begin();
        assert!(first.is_some() && in_pressure());
        assert!(InPressure::begin().is_none());
        assert!(in_pressure(), "a second beginning does not end the first");
        drop(first);
        assert!(!in_pressure());
    }
}
