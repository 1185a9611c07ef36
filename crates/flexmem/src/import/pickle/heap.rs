//! What values refer to: texts, lists, dicts, and the memo.
//!
//! Invariants: each text is there once. A list or dict that the visitor has replaced is gone, and its slot serves again
//! with another generation; the memo then has what it was replaced with. Who still holds the old value gets an error,
//! unless the heap keeps what is shared: then no slot serves again, and the old value leads to the new one.

use foldhash::fast::RandomState;
use indexmap::IndexSet;

use super::Fault;
use super::memo::{Entry, Memo};
use super::value::{Slot, Value};

/// Names a text of the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::import) struct Text(pub(in crate::import) u32);

const NOT_REMEMBERED: u32 = u32::MAX;

/// A key and its value, or an item and None.
type Entries = Vec<(Value, Value)>;

#[derive(Debug)]
struct Container {
    generation: u32,
    /// Where the memo has it.
    remembered: u32,
    items: Items,
}

#[derive(Debug)]
enum Items {
    Free,
    List(Vec<Value>),
    Dict(Entries),
    /// Replaced, and reachable in more ways than the memo.
    Became(Value),
}

/// See the module's text.
#[derive(Debug, Default)]
pub(in crate::import) struct Heap {
    texts: IndexSet<Box<str>, RandomState>,
    containers: Vec<Container>,
    vacant: Vec<u32>,
    memo: Memo,
    sharing: Sharing,
    /// How many bytes of the file were read.
    taken: u64,
}

/// Whether what a pickle refers to in several places is kept for all of them. That takes memory for everything that
/// could be shared, so it is not done until a pickle turns out to need it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// It is an error.
    #[default]
    Refused,
    /// It is kept.
    Kept,
}

const STALE: Fault = Fault::Shared("it goes back to a value that was already taken apart");

impl Heap {
    pub(in crate::import) fn with_sharing(sharing: Sharing) -> Heap {
        Heap { sharing, ..Heap::default() }
    }

    pub(in crate::import) fn keeps_shared(&self) -> bool {
        self.sharing == Sharing::Kept
    }

    /// How many bytes of the file were read.
    pub(in crate::import) fn taken(&self) -> u64 {
        self.taken
    }

    pub(super) fn set_taken(&mut self, taken: u64) {
        self.taken = taken;
    }

    /// The one copy of a text.
    pub(in crate::import) fn intern(&mut self, text: &str) -> Text {
        let index = match self.texts.get_index_of(text) {
            Some(index) => index,
            None => self.texts.insert_full(text.into()).0,
        };
        Text(index as u32)
    }

    /// A text.
    pub(in crate::import) fn text(&self, text: Text) -> &str {
        &self.texts[text.0 as usize]
    }

    /// How many containers and memo entries there are now.
    pub(super) fn size(&self) -> usize {
        self.containers.len() - self.vacant.len() + self.memo.room() / 8
    }

    pub(super) fn new_list(&mut self, items: Vec<Value>) -> Value {
        Value::List(self.add(Items::List(items)))
    }

    pub(super) fn new_dict(&mut self) -> Value {
        Value::Dict(self.add(Items::Dict(Vec::new())))
    }

    fn add(&mut self, items: Items) -> Slot {
        if let Some(index) = self.vacant.pop() {
            let container = &mut self.containers[index as usize];
            (container.items, container.remembered) = (items, NOT_REMEMBERED);
            return Slot { index, generation: container.generation };
        }
        let index = self.containers.len() as u32;
        self.containers.push(Container { generation: 0, remembered: NOT_REMEMBERED, items });
        Slot { index, generation: 0 }
    }

    fn container(&mut self, slot: Slot) -> Result<&mut Container, Fault> {
        let container = &mut self.containers[slot.index as usize];
        if container.generation == slot.generation { Ok(container) } else { Err(STALE) }
    }

    /// The items of a list.
    pub(in crate::import) fn list(&self, slot: Slot) -> Result<&[Value], Fault> {
        let container = &self.containers[slot.index as usize];
        match &container.items {
            Items::List(items) if container.generation == slot.generation => Ok(items),
            _ => Err(STALE),
        }
    }

    /// The entries of a dict.
    pub(in crate::import) fn dict(&self, slot: Slot) -> Result<&[(Value, Value)], Fault> {
        let container = &self.containers[slot.index as usize];
        match &container.items {
            Items::Dict(entries) if container.generation == slot.generation => Ok(entries),
            _ => Err(STALE),
        }
    }

    pub(super) fn list_mut(&mut self, slot: Slot) -> Result<&mut Vec<Value>, Fault> {
        match &mut self.container(slot)?.items {
            Items::List(items) => Ok(items),
            _ => Err(STALE),
        }
    }

    pub(super) fn dict_mut(&mut self, slot: Slot) -> Result<&mut Entries, Fault> {
        match &mut self.container(slot)?.items {
            Items::Dict(entries) => Ok(entries),
            _ => Err(STALE),
        }
    }

    /// What a value is now: what it was replaced with, if it was.
    pub(in crate::import) fn current(&self, value: Value) -> Value {
        match value {
            Value::List(slot) | Value::Dict(slot) => match self.containers[slot.index as usize] {
                Container { generation, items: Items::Became(value), .. }
                    if generation == slot.generation =>
                {
                    value
                }
                _ => value,
            },
            value => value,
        }
    }

    /// Replaces a list or dict, also in the memo; its items are gone. `only` says that nothing but the memo refers to
    /// it.
    pub(in crate::import) fn replace(&mut self, slot: Slot, with: Value, only: bool) {
        let container = &mut self.containers[slot.index as usize];
        if container.generation != slot.generation {
            return;
        }
        // The memo may have another value there by now.
        let remembered = container.remembered as usize;
        if matches!(self.memo.get(remembered), Some(Entry::List(index) | Entry::Dict(index)) if index == slot.index)
        {
            self.memo.set(remembered, with);
        }
        if only && self.sharing == Sharing::Refused {
            container.items = Items::Free;
            container.generation = container.generation.wrapping_add(1);
            self.vacant.push(slot.index);
        } else {
            container.items = Items::Became(with);
        }
    }

    /// Puts a value into the memo, whose numbers go up to `limit`.
    pub(super) fn remember(&mut self, position: usize, value: Value, limit: usize) -> Result<(), Fault> {
        if position > limit {
            return Err(Fault::Unsound("it remembers a value under a number that is far too high"));
        }
        if let Value::List(slot) | Value::Dict(slot) = value {
            let keeps_shared = self.keeps_shared();
            let remembered = &mut self.container(slot)?.remembered;
            if *remembered != NOT_REMEMBERED && !keeps_shared {
                return Err(Fault::Shared("it remembers a value twice"));
            }
            *remembered = position as u32;
        }
        self.memo.set(position, value);
        Ok(())
    }

    /// How many values were remembered.
    pub(super) fn remembered(&self) -> usize {
        self.memo.len()
    }

    /// A value of the memo.
    pub(super) fn recall(&self, position: usize) -> Result<Value, Fault> {
        let here = |index: u32| Slot { index, generation: self.containers[index as usize].generation };
        match self.memo.get(position) {
            Some(Entry::Value(value)) => Ok(value),
            Some(Entry::List(index)) => Ok(self.current(Value::List(here(index)))),
            Some(Entry::Dict(index)) => Ok(self.current(Value::Dict(here(index)))),
            None => Err(Fault::Unsound("it goes back to a value that it did not remember")),
        }
    }
}
