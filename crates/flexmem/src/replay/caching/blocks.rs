//! Blocks and the pools they are cached in: cutting and joining, and the sizes that PyTorch fixed.
//!
//! Invariants: blocks tile their segment in the order of their links. A block is in the set of its state, and in no
//! other. No two neighbours are both cached, or both unmapped.

use std::collections::{BTreeMap, BTreeSet};

pub(super) const MIB: u64 = 1 << 20;
/// To a multiple of this, sizes are rounded up.
pub(super) const ROUND: u64 = 512;
const SMALL_LARGEST: u64 = MIB;
pub(super) const SMALL_SEGMENT: u64 = 2 * MIB;
pub(super) const LARGE_SEGMENT: u64 = 20 * MIB;

/// The pools, by size class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pool {
    Small,
    Large,
}

impl Pool {
    pub(super) fn of(size: u64) -> Pool {
        if size <= SMALL_LARGEST { Pool::Small } else { Pool::Large }
    }

    /// Whether a block of a fixed segment is split when this much would be left.
    pub(super) fn splits(self, rest: u64) -> bool {
        match self {
            Pool::Small => rest >= ROUND,
            Pool::Large => rest > SMALL_LARGEST,
        }
    }

    /// What a segment of this pool takes from the device at a time.
    pub(super) fn segment_bytes(self) -> u64 {
        match self {
            Pool::Small => SMALL_SEGMENT,
            Pool::Large => LARGE_SEGMENT,
        }
    }
}

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// In use.
    Live,
    /// Free, and kept.
    Cached,
    /// Addresses of a segment that grows, without memory.
    Unmapped,
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) offset: u64,
    pub(super) size: u64,
    /// Neighbours within the segment.
    pub(super) previous: Option<u32>,
    pub(super) next: Option<u32>,
    pub(super) pool: Pool,
    pub(super) stream: u64,
    pub(super) state: State,
    /// Where the segment begins, if it is one that grows.
    pub(super) growing_from: Option<u64>,
}

impl Block {
    pub(super) fn is_whole_segment(&self) -> bool {
        self.previous.is_none() && self.next.is_none()
    }

    fn class(&self) -> Class {
        (self.stream, self.pool)
    }
}

/// Blocks serve the stream and the size class that their segment was made for.
pub(super) type Class = (u64, Pool);

/// Free blocks by size, then offset.
pub(super) type Cached = BTreeSet<(u64, u64, u32)>;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    all: Vec<Block>,
    spare: Vec<u32>,
    pub(super) cached: BTreeMap<Class, Cached>,
    /// By offset.
    pub(super) unmapped: BTreeMap<Class, BTreeSet<(u64, u32)>>,
}

impl Blocks {
    pub(super) fn get(&self, index: u32) -> &Block {
        &self.all[index as usize]
    }

    fn get_mut(&mut self, index: u32) -> &mut Block {
        &mut self.all[index as usize]
    }

    /// Adds a block that is in no set: a live one, or one to be [`put`](Self::put).
    pub(super) fn add(&mut self, block: Block) -> u32 {
        if let Some(index) = self.spare.pop() {
            *self.get_mut(index) = block;
            return index;
        }
        self.all.push(block);
        (self.all.len() - 1) as u32
    }

    /// Forgets a block that is in no set.
    pub(super) fn forget(&mut self, index: u32) {
        self.spare.push(index);
    }

    /// Puts a live block into the set of a state, joined with neighbours of the same state.
    pub(super) fn put(&mut self, index: u32, state: State) -> u32 {
        let mut index = index;
        let (previous, next) = (self.get(index).previous, self.get(index).next);
        if let Some(next) = next.filter(|&next| self.get(next).state == state) {
            self.take(next);
            self.join(index, next);
        }
        if let Some(previous) = previous.filter(|&previous| self.get(previous).state == state) {
            self.take(previous);
            self.join(previous, index);
            index = previous;
        }
        self.get_mut(index).state = state;
        let (block, class) = (self.get(index), self.get(index).class());
        let (offset, size) = (block.offset, block.size);
        match state {
            State::Live => {}
            State::Cached => {
                self.cached.entry(class).or_default().insert((size, offset, index));
            }
            State::Unmapped => {
                self.unmapped.entry(class).or_default().insert((offset, index));
            }
        }
        index
    }

    /// Takes a block out of its set: it is live.
    pub(super) fn take(&mut self, index: u32) {
        let (block, class) = (self.get(index), self.get(index).class());
        let (offset, size) = (block.offset, block.size);
        match block.state {
            State::Live => {}
            State::Cached => {
                self.cached.entry(class).or_default().remove(&(size, offset, index));
            }
            State::Unmapped => {
                self.unmapped.entry(class).or_default().remove(&(offset, index));
            }
        }
        self.get_mut(index).state = State::Live;
    }

    /// Cuts a live block down to `size` and puts the rest into the set of a state. Returns the rest.
    pub(super) fn split(&mut self, index: u32, size: u64, state: State) -> u32 {
        let &Block { offset, size: whole, next, pool, stream, growing_from, .. } = self.get(index);
        let (offset, size_left, previous) = (offset + size, whole - size, Some(index));
        let rest =
            Block { offset, size: size_left, previous, next, pool, stream, state: State::Live, growing_from };
        let rest = self.add(rest);
        if let Some(next) = next {
            self.get_mut(next).previous = Some(rest);
        }
        let lower = self.get_mut(index);
        (lower.size, lower.next) = (size, Some(rest));
        self.put(rest, state)
    }

    /// Makes two neighbours in no set one, the lower.
    fn join(&mut self, lower: u32, upper: u32) {
        let &Block { size, next, .. } = self.get(upper);
        let block = self.get_mut(lower);
        block.size += size;
        block.next = next;
        if let Some(next) = next {
            self.get_mut(next).previous = Some(lower);
        }
        self.forget(upper);
    }
}
