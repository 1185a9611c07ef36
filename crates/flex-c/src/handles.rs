//! Tables of what handles name.
//!
//! A handle is one number: a generation above, the table's kind and an index below. The generation of a place changes
//! when its value is taken out, and a place whose generations are used up is not used again, so a handle that was
//! valid once and is no more never names anything else. 0 is no handle.
//!
//! Lock: each table has its own, which is innermost: whoever holds it only moves values and numbers. Values are
//! dropped by the caller, after unlocking.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::status::{Failure, FlexStatus};

const INDEX_BITS: u32 = 28;
const MAX_PLACES: usize = 1 << INDEX_BITS;

/// Values by handle.
pub(crate) struct Table<T> {
    /// Told apart in handles, so that a handle of another table names nothing; below 16.
    kind: u32,
    places: Mutex<Places<T>>,
}

struct Places<T> {
    places: Vec<Place<T>>,
    /// Indices of empty places that may be used.
    spare: Vec<u32>,
}

struct Place<T> {
    /// Of the value that is there, or of the next one. From 1.
    generation: u32,
    value: Option<T>,
}

const FULL: Failure = Failure::fixed(FlexStatus::FLEX_INTERNAL, c"too many handles are in use");

/// An empty place of a table; given back unless it is filled.
pub(crate) struct Reserved<'t, T> {
    table: &'t Table<T>,
    index: u32,
}

impl<T> Reserved<'_, T> {
    /// Keeps a value and returns its handle.
    pub(crate) fn fill(self, value: T) -> u64 {
        let handle = self.table.lock().fill(self.table.kind, self.index, value);
        std::mem::forget(self);
        handle
    }
}

impl<T> Drop for Reserved<'_, T> {
    fn drop(&mut self) {
        self.table.lock().spare.push(self.index);
    }
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: u32) -> Self {
        Table { kind, places: Mutex::new(Places { places: Vec::new(), spare: Vec::new() }) }
    }

    /// Keeps a value and returns its handle.
    ///
    /// # Errors
    /// [`FlexStatus::FLEX_INTERNAL`] if the table is full; the value is dropped.
    pub(crate) fn insert(&self, value: T) -> Result<u64, Failure> {
        let mut table = self.lock();
        let Some(index) = table.claim() else {
            drop(table);
            return Err(FULL);
        };
        Ok(table.fill(self.kind, index, value))
    }

    /// Sets a place aside, for a value that will have to be kept where nothing may fail.
    ///
    /// # Errors
    /// [`FlexStatus::FLEX_INTERNAL`] if the table is full.
    pub(crate) fn reserve(&self) -> Result<Reserved<'_, T>, Failure> {
        Ok(Reserved { table: self, index: self.lock().claim().ok_or(FULL)? })
    }

    /// Lets `look` at the value of a handle, under the table's lock: it must only copy and count.
    pub(crate) fn with<R>(&self, handle: u64, look: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.lock().place(self.kind, handle)?.value.as_mut().map(look)
    }

    /// Takes a value out if `wanted` says so; its handle is stale from then on.
    pub(crate) fn take_if(&self, handle: u64, wanted: impl FnOnce(&mut T) -> bool) -> Option<Option<T>> {
        let mut table = self.lock();
        let place = table.place(self.kind, handle)?;
        if !place.value.as_mut().is_some_and(wanted) {
            return Some(None);
        }
        let value = place.value.take();
        if let Some(next) = place.generation.checked_add(1) {
            place.generation = next;
            table.spare.push(handle as u32 & (MAX_PLACES as u32 - 1));
        }
        Some(value)
    }

    /// Takes a value out; its handle is stale from then on.
    pub(crate) fn take(&self, handle: u64) -> Option<T> {
        self.take_if(handle, |_| true)?
    }

    fn lock(&self) -> MutexGuard<'_, Places<T>> {
        // Nothing panics between two statements that belong together.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Places<T> {
    /// An empty place that nobody else gets; `None` if the table is full.
    fn claim(&mut self) -> Option<u32> {
        if let Some(index) = self.spare.pop() {
            return Some(index);
        }
        if self.places.len() == MAX_PLACES {
            return None;
        }
        self.places.push(Place { generation: 1, value: None });
        Some((self.places.len() - 1) as u32)
    }

    /// Puts a value into a place that was claimed, and returns its handle.
    fn fill(&mut self, kind: u32, index: u32, value: T) -> u64 {
        let place = &mut self.places[index as usize];
        place.value = Some(value);
        u64::from(place.generation) << 32 | u64::from(kind << INDEX_BITS | index)
    }

    /// The place that a handle names, if it is occupied by what the handle was made for.
    fn place(&mut self, kind: u32, handle: u64) -> Option<&mut Place<T>> {
        let word = handle as u32;
        if word >> INDEX_BITS != kind {
            return None;
        }
        let place = self.places.get_mut((word & (MAX_PLACES as u32 - 1)) as usize)?;
        (place.generation == (handle >> 32) as u32 && place.value.is_some()).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(table: &Table<&'static str>, value: &'static str) -> u64 {
        table.insert(value).unwrap_or_else(|_| panic!("the table is not full"))
    }

    #[test]
    fn a_taken_handle_names_nothing_even_when_its_place_is_used_again() {
        let table = Table::new(1);
        let first = insert(&table, "first");
        assert_eq!(table.take(first), Some("first"));
        assert_eq!(table.take(first), None);
        let second = insert(&table, "second");
        assert_eq!(second as u32, first as u32, "the same place");
        assert_eq!(table.with(first, |value| *value), None);
        assert_eq!(table.with(second, |value| *value), Some("second"));
    }

    #[test]
    fn a_number_that_was_never_a_handle_names_nothing() {
        let (table, other) = (Table::new(1), Table::new(2));
        let handle = insert(&table, "value");
        insert(&other, "other");
        for garbage in [0, 1, u64::MAX, handle + 1, handle ^ (1 << 63), handle & 0xffff_ffff] {
            assert_eq!(table.take(garbage), None, "{garbage:#x}");
        }
        assert_eq!(other.take(handle), None);
        assert_eq!(table.take(handle), Some("value"));
    }

    #[test]
    fn a_reserved_place_is_nobody_elses_until_it_is_filled_or_given_back() {
        let table = Table::new(1);
        let reserved = table.reserve().unwrap();
        let other = insert(&table, "other");
        assert_eq!(other as u32 & 1, 1, "the place beside it");
        let handle = reserved.fill("value");
        assert_eq!(table.take(handle), Some("value"));
        drop(table.reserve().unwrap());
        assert_eq!(insert(&table, "again") as u32, handle as u32, "the same place");
    }

    #[test]
    fn a_value_stays_unless_it_is_wanted() {
        let table = Table::new(1);
        let handle = insert(&table, "value");
        assert_eq!(table.take_if(handle, |_| false), Some(None));
        assert_eq!(table.take_if(handle, |_| true), Some(Some("value")));
        assert_eq!(table.take_if(handle, |_| true), None);
    }

    #[test]
    fn a_place_whose_generations_are_used_up_is_not_used_again() {
        let table = Table::new(1);
        let first = insert(&table, "first");
        table.lock().places[0].generation = u32::MAX;
        let last = u64::from(u32::MAX) << 32 | u64::from(first as u32);
        assert_eq!(table.take(last), Some("first"));
        assert_eq!(table.take(last), None);
        assert_ne!(insert(&table, "second") as u32, first as u32);
    }
}
