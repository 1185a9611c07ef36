//! The memo: values that a pickle may go back to, by number.
//!
//! A pickler remembers every text, list and dict, so the memo is what grows with the file: four bytes for each entry,
//! in pages that are never moved. A value that does not fit in four bytes is kept aside.

use std::collections::HashMap;

use super::heap::Text;
use super::value::{Object, Value};

const PAGE_ENTRIES: usize = 64 << 10;

/// Bits for the number of what an entry stands for; those above say what it is.
const NUMBER_BITS: u32 = 27;
const LARGEST_NUMBER: u32 = (1 << NUMBER_BITS) - 1;

/// Entries that are not written, and those that are kept aside, have no number.
const VACANT: u32 = 0;
const ASIDE: u32 = 1;
const TEXT: u32 = 1;
const LIST: u32 = 2;
const DICT: u32 = 3;
/// And above: objects, by kind.
const OBJECT: u32 = 4;
const LARGEST_KIND: u8 = (u32::MAX >> NUMBER_BITS) as u8 - OBJECT as u8;

/// What an entry stands for. Of lists and dicts it has the place in the heap alone: one that is gone is not in the
/// memo.
pub(super) enum Entry {
    Value(Value),
    List(u32),
    Dict(u32),
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Memo {
    pages: Vec<Option<Box<[u32]>>>,
    aside: HashMap<usize, Value>,
    /// The highest position that was written, and one.
    length: usize,
    /// Pages that are there.
    page_count: usize,
}

impl Memo {
    /// The highest position that was written, and one.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// What it takes, in entries.
    pub(super) fn room(&self) -> usize {
        self.page_count * PAGE_ENTRIES
    }

    /// Writes an entry.
    pub(super) fn set(&mut self, position: usize, value: Value) {
        let packed = pack(value).unwrap_or_else(|| {
            self.aside.insert(position, value);
            ASIDE
        });
        let page = position / PAGE_ENTRIES;
        if self.pages.len() <= page {
            self.pages.resize(page + 1, None);
        }
        let entries = self.pages[page].get_or_insert_with(|| {
            self.page_count += 1;
            vec![VACANT; PAGE_ENTRIES].into()
        });
        entries[position % PAGE_ENTRIES] = packed;
        self.length = self.length.max(position + 1);
    }

    /// An entry, if it was written.
    pub(super) fn get(&self, position: usize) -> Option<Entry> {
        let page = self.pages.get(position / PAGE_ENTRIES)?.as_ref()?;
        let packed = page[position % PAGE_ENTRIES];
        let number = packed & LARGEST_NUMBER;
        Some(match packed >> NUMBER_BITS {
            0 if packed == VACANT => return None,
            0 => Entry::Value(*self.aside.get(&position)?),
            TEXT => Entry::Value(Value::Text(Text(number))),
            LIST => Entry::List(number),
            DICT => Entry::Dict(number),
            kind => Entry::Value(Value::Object(Object { kind: (kind - OBJECT) as u8, index: number })),
        })
    }
}

fn pack(value: Value) -> Option<u32> {
    let (tag, number) = match value {
        Value::Text(text) => (TEXT, text.0),
        Value::List(slot) => (LIST, slot.index),
        Value::Dict(slot) => (DICT, slot.index),
        Value::Object(Object { kind, index }) if kind <= LARGEST_KIND => (OBJECT + u32::from(kind), index),
        _ => return None,
    };
    (number <= LARGEST_NUMBER).then_some(tag << NUMBER_BITS | number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(memo: &Memo, position: usize) -> Option<Value> {
        match memo.get(position)? {
            Entry::Value(value) => Some(value),
            Entry::List(_) | Entry::Dict(_) => panic!("neither was put there"),
        }
    }

    #[test]
    fn entries_come_back_packed_or_aside() {
        let mut memo = Memo::default();
        let values = [
            Value::Text(Text(LARGEST_NUMBER)),
            Value::Text(Text(LARGEST_NUMBER + 1)),
            Value::Object(Object { kind: LARGEST_KIND, index: 3 }),
            Value::Object(Object { kind: LARGEST_KIND + 1, index: 3 }),
            Value::Bytes,
            Value::None,
        ];
        for (index, &item) in values.iter().enumerate() {
            memo.set(index * 40_000, item);
        }
        for (index, &item) in values.iter().enumerate() {
            assert_eq!(value(&memo, index * 40_000), Some(item));
            assert_eq!(value(&memo, index * 40_000 + 1), None);
        }
        assert_eq!(memo.len(), 200_001);
        assert!(memo.get(10_000_000).is_none());
        memo.set(0, Value::Bytes);
        memo.set(0, Value::Text(Text(0)));
        assert_eq!(value(&memo, 0), Some(Value::Text(Text(0))));
    }
}
