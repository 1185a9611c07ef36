//! Memory by the place in the program that allocated it.

use std::cmp::Reverse;
use std::collections::HashMap;

use flex_trace::{StackId, Tables};

use super::answers::{Holder, Holders, OtherHolders};
use crate::site;

/// Bytes and blocks by stack.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sites(HashMap<Option<StackId>, (u64, u64)>);

impl Sites {
    pub(crate) fn add(&mut self, stack: Option<StackId>, bytes: u64) {
        let entry = self.0.entry(stack).or_default();
        entry.0 = entry.0.saturating_add(bytes);
        entry.1 += 1;
    }

    /// Takes away what was added.
    pub(crate) fn remove(&mut self, stack: Option<StackId>, bytes: u64) {
        if let Some(entry) = self.0.get_mut(&stack) {
            entry.0 = entry.0.saturating_sub(bytes);
            entry.1 -= 1;
            if entry.1 == 0 {
                self.0.remove(&stack);
            }
        }
    }

    /// The largest, by place: stacks that differ only in what PyTorch does inside are one, of which the stack with the
    /// most bytes is shown.
    pub(crate) fn largest(&self, tables: &Tables, top: usize) -> Holders {
        let mut by_place: HashMap<Option<String>, Holder> = HashMap::new();
        let mut stacks: Vec<_> = self.0.iter().map(|(&stack, &held)| (stack, held)).collect();
        stacks.sort_unstable_by_key(|&(stack, (bytes, _))| (Reverse(bytes), stack));
        for (stack, (bytes, blocks)) in stacks {
            let place = stack.and_then(|stack| site::place(stack, tables));
            let holder =
                by_place.entry(place.map(|place| site::line(&place, tables))).or_insert_with(|| Holder {
                    site: place.map(|place| site::brief(&place, tables)),
                    stack: lines(stack, tables),
                    bytes: 0,
                    blocks: 0,
                });
            holder.bytes = holder.bytes.saturating_add(bytes);
            holder.blocks += blocks;
        }
        let mut holders: Vec<_> = by_place.into_iter().collect();
        holders.sort_by_cached_key(|(place, holder)| (Reverse(holder.bytes), place.clone()));
        let mut others = OtherHolders::default();
        for (_, holder) in holders.iter().skip(top) {
            others.sites += 1;
            others.bytes = others.bytes.saturating_add(holder.bytes);
            others.blocks += holder.blocks;
        }
        Holders { largest: holders.into_iter().take(top).map(|(_, holder)| holder).collect(), others }
    }
}

/// What the place of a stack is called.
pub(crate) fn name(stack: Option<StackId>, tables: &Tables) -> Option<String> {
    site::place(stack?, tables).map(|place| site::brief(&place, tables))
}

/// A stack, one frame a line.
pub(super) fn lines(stack: Option<StackId>, tables: &Tables) -> Vec<String> {
    stack.map_or_else(Vec::new, |stack| site::lines(stack, tables).collect())
}

#[cfg(test)]
mod tests {
    use flex_trace::record::Frame;
    use flex_trace::{FrameId, Ids, Record, StringId};

    use super::*;

    /// Two hundred stacks that end in one place, each deeper than the one before.
    fn one_place() -> Tables {
        let mut tables = Tables::new();
        let (function, file) = (StringId(0), StringId(1));
        tables.keep(&Record::String { id: function, text: "train" });
        tables.keep(&Record::String { id: file, text: "train.py" });
        tables.keep(&Record::Frame(Frame { id: FrameId(0), function, file, line: 7 }));
        for depth in 1..=200 {
            let frames = vec![0; depth as usize];
            tables.keep(&Record::Stack { id: StackId(depth), frames: Ids::from(frames.as_slice()) });
        }
        tables
    }

    #[test]
    fn of_the_stacks_of_a_place_the_one_with_the_most_bytes_is_shown() {
        let mut sites = Sites::default();
        (1..=200).for_each(|depth| sites.add(Some(StackId(depth)), if depth == 123 { 1001 } else { 1000 }));
        let holders = sites.largest(&one_place(), 5);
        let [holder] = holders.largest.as_slice() else { panic!("{holders:?}") };
        assert_eq!((holder.bytes, holder.blocks, holder.stack.len()), (200_001, 200, 123));
    }

    #[test]
    fn of_equal_stacks_always_the_same_is_shown() {
        let mut sites = Sites::default();
        (1..=200).for_each(|depth| sites.add(Some(StackId(depth)), 1000));
        assert_eq!(sites.largest(&one_place(), 5).largest[0].stack.len(), 1);
    }
}
