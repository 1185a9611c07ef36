//! The slab of block nodes, shared by all regions.
//!
//! A node is named by its index. Nodes in no region are on the spare list. Node 0 is an edge marker: it has no
//! size, is never free and stands for "none", so links can be written through it without a test.
//!
//! A node's generation changes each time its block is freed, here or (unknown to the arena until its release) in a
//! magazine, so a handle names one allocation for as long as 2^24 - 1 allocations of the same node.
//!
//! Protected by the allocator mutex, as all of the arena.

/// "No node", and the index of the edge marker.
pub(crate) const NIL: u32 = 0;

/// Generations count from 1 to this and start again at 1.
pub(crate) const MAX_GENERATION: u32 = (1 << 24) - 1;

/// The generation of the allocation after one of the same node.
#[inline(always)]
pub(crate) fn next_generation(generation: u32) -> u32 {
    let next = generation + 1;
    if next > MAX_GENERATION { 1 } else { next }
}

/// Indices are below this: [`super::bins`] needs the highest bit of a link.
pub(crate) const MAX_NODES: u32 = 1 << 31;

/// Nodes are added in steps of at least this many...
const GROWTH_STEP: usize = 256;

/// ...or this part of those that are there. Doubling would leave a third of the table unused on average.
const GROWTH_PART: usize = 8;

/// Names one allocation of one block, as a plain value that does not own it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockHandle {
    /// The node.
    pub(crate) index: u32,
    /// The generation the node had when the block was allocated; never 0, at most 24 bits.
    pub(crate) generation: u32,
}

impl BlockHandle {
    /// The handle as one number below 2^56, never 0.
    pub fn to_raw(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The handle that [`to_raw`](Self::to_raw) gave; any other number is a stale or unknown handle.
    pub fn from_raw(raw: u64) -> Self {
        BlockHandle { index: raw as u32, generation: (raw >> 32) as u32 & MAX_GENERATION }
    }
}

/// Which requests a block is meant for. Free blocks coalesce with neighbours of their own zone only; see
/// [`super::region`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zone {
    /// Small ones, which come and go: they are kept from scattering over the region.
    Small = 0,
    /// All others.
    Large = 1,
}

/// What a node is used for; for a block with its zone, in one byte. The states of the two zones are in turns, so that
/// the lowest bit is the zone, and those of gaps come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum NodeState {
    /// The edge marker.
    Edge,
    /// On the spare list, linked by `next_free`.
    Spare,
    /// An allocated block, or one that is in no bin.
    OccupiedSmall,
    /// As above.
    OccupiedLarge,
    /// A free block, in the bins of its region.
    FreeSmall,
    /// As above.
    FreeLarge,
    /// A free block taken out of the bins for a moment, while the device drops its pages.
    HeldSmall,
    /// As above.
    HeldLarge,
}

impl NodeState {
    /// A free block of a zone.
    #[inline]
    pub(crate) fn free(zone: Zone) -> NodeState {
        match zone {
            Zone::Small => NodeState::FreeSmall,
            Zone::Large => NodeState::FreeLarge,
        }
    }

    /// What a block becomes when it is freed, in its zone. A table, since a branch on the zone is as good as random.
    #[inline(always)]
    pub(crate) fn freed(self) -> NodeState {
        use NodeState::{Edge, FreeLarge, FreeSmall, Spare};
        const FREED: [NodeState; 8] =
            [Edge, Spare, FreeSmall, FreeLarge, FreeSmall, FreeLarge, FreeSmall, FreeLarge];
        FREED[self as usize]
    }

    /// A held block of a zone.
    pub(crate) fn held(zone: Zone) -> NodeState {
        match zone {
            Zone::Small => NodeState::HeldSmall,
            Zone::Large => NodeState::HeldLarge,
        }
    }

    /// An occupied block of a zone.
    #[inline]
    pub(crate) fn occupied(zone: Zone) -> NodeState {
        match zone {
            Zone::Small => NodeState::OccupiedSmall,
            Zone::Large => NodeState::OccupiedLarge,
        }
    }

    /// The zone of a block; of no meaning for other nodes.
    #[inline]
    pub(crate) fn zone(self) -> Zone {
        if self as u8 & 1 == Zone::Large as u8 { Zone::Large } else { Zone::Small }
    }

    /// Whether it is a free block, and in the bins.
    #[inline]
    pub(crate) fn is_free(self) -> bool {
        matches!(self, NodeState::FreeSmall | NodeState::FreeLarge)
    }

    /// Whether it is a held block.
    pub(crate) fn is_held(self) -> bool {
        matches!(self, NodeState::HeldSmall | NodeState::HeldLarge)
    }

    /// Whether it is a block that nobody has: free or held.
    #[inline]
    pub(crate) fn is_gap(self) -> bool {
        self as u8 >= NodeState::FreeSmall as u8
    }

    /// As [`is_gap`](Self::is_gap), as a number.
    #[inline]
    pub(crate) fn gaps(self) -> u32 {
        // The bit that the states of gaps have; without a branch, since it is as good as random.
        self as u32 / NodeState::FreeSmall as u32
    }

    /// Whether it is an allocated block.
    #[inline]
    pub(crate) fn is_occupied(self) -> bool {
        matches!(self, NodeState::OccupiedSmall | NodeState::OccupiedLarge)
    }
}

/// One block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    /// Start within the region, in units.
    pub(crate) offset_units: u32,
    /// Size in units.
    pub(crate) size_units: u32,
    /// The block that ends where this one starts.
    pub(crate) previous: u32,
    /// The block that starts where this one ends.
    pub(crate) next: u32,
    /// The previous free block of the same bin; of the first one the bin, see [`super::bins`].
    pub(crate) previous_free: u32,
    /// The next free block of the same bin, or the next spare node.
    pub(crate) next_free: u32,
    /// See the module's text.
    pub(crate) generation: u32,
    /// The region's slot.
    pub(crate) slot: u16,
    /// Rounded size less requested size, in bytes; at most 128 (a share of an interleaved request may be empty).
    pub(crate) slack_bytes: u8,
    /// What the node is used for, and the block's zone.
    pub(crate) state: NodeState,
}

const _: () = assert!(size_of::<Node>() <= 32, "two nodes per cache line");

impl Node {
    /// The edge marker.
    pub(crate) const EDGE: Node = Node {
        offset_units: 0,
        size_units: 0,
        previous: NIL,
        next: NIL,
        previous_free: NIL,
        next_free: NIL,
        generation: 1,
        slot: 0,
        slack_bytes: 0,
        state: NodeState::Edge,
    };

    /// Marks a block occupied.
    #[inline(always)]
    pub(crate) fn occupy(&mut self, state: NodeState, slack_bytes: u8) {
        (self.state, self.slack_bytes) = (state, slack_bytes);
    }
}

/// All nodes.
#[derive(Debug)]
pub(crate) struct Blocks {
    nodes: Vec<Node>,
    /// Head of the spare list.
    spare: u32,
}

impl Blocks {
    /// A slab with room for a first step of blocks.
    pub(crate) fn new() -> Blocks {
        let mut nodes = Vec::with_capacity(GROWTH_STEP);
        nodes.push(Node::EDGE);
        Blocks { nodes, spare: NIL }
    }

    /// The node of an index this module handed out.
    #[inline]
    pub(crate) fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    /// The node of an index this module handed out.
    #[inline]
    pub(crate) fn node_mut(&mut self, index: u32) -> &mut Node {
        &mut self.nodes[index as usize]
    }

    /// Nodes, the edge marker and the spare ones included.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Head of the spare list.
    pub(crate) fn spare_head(&self) -> u32 {
        self.spare
    }

    /// The occupied block a handle names.
    #[inline]
    pub(crate) fn occupied(&self, handle: BlockHandle) -> Option<&Node> {
        self.nodes
            .get(handle.index as usize)
            .filter(|node| node.state.is_occupied() && node.generation == handle.generation)
    }

    /// The occupied block of an index, whatever its generation.
    pub(crate) fn occupied_at(&mut self, index: u32) -> Option<&mut Node> {
        self.nodes.get_mut(index as usize).filter(|node| node.state.is_occupied())
    }

    /// Makes sure that the next [`take`](Table::take) finds a spare node. Apart from it, so that the table stays where
    /// it is between the two.
    #[inline]
    pub(crate) fn keep_spare(&mut self) {
        if self.spare == NIL {
            self.grow();
        }
    }

    /// All nodes there are, for a series of steps that adds none.
    #[inline(always)]
    pub(crate) fn table(&mut self) -> Table<'_> {
        Table { nodes: &mut self.nodes, spare: &mut self.spare }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        if self.nodes.len() == self.nodes.capacity() {
            self.nodes.reserve_exact(GROWTH_STEP.max(self.nodes.len() / GROWTH_PART));
        }
        // A node needs a unit of device memory, so 2^31 of them would need more than 256 GiB in single units.
        let index = u32::try_from(self.nodes.len()).ok().filter(|&index| index < MAX_NODES);
        self.spare = index.expect("fewer than 2^31 blocks");
        self.nodes.push(Node { state: NodeState::Spare, ..Node::EDGE });
    }
}

/// The nodes of [`Blocks`], whose place and number do not change meanwhile.
///
/// The steps of every request go through one of these: with the bounds at hand, a node that was looked at before is not
/// checked again.
#[derive(Debug)]
pub(crate) struct Table<'a> {
    nodes: &'a mut [Node],
    spare: &'a mut u32,
}

impl Table<'_> {
    /// As [`Blocks::node`].
    #[inline(always)]
    pub(crate) fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    /// As [`Blocks::node_mut`].
    #[inline(always)]
    pub(crate) fn node_mut(&mut self, index: u32) -> &mut Node {
        &mut self.nodes[index as usize]
    }

    /// Every node, by index.
    #[inline(always)]
    pub(crate) fn nodes(&self) -> &[Node] {
        self.nodes
    }

    /// Takes the spare node for a block and returns its index and generation. Of the block given, the generation and
    /// the links of its bin do not count; the links to the node are the caller's to write.
    #[inline(always)]
    pub(crate) fn take(&mut self, block: Node) -> (u32, u32) {
        debug_assert_ne!(*self.spare, NIL, "`keep_spare` comes first");
        let index = *self.spare;
        let node = &mut self.nodes[index as usize];
        *self.spare = node.next_free;
        let generation = node.generation;
        // One by one: what does not count is not written either.
        (node.offset_units, node.size_units) = (block.offset_units, block.size_units);
        (node.previous, node.next) = (block.previous, block.next);
        (node.slot, node.slack_bytes, node.state) = (block.slot, block.slack_bytes, block.state);
        (index, generation)
    }

    /// Puts a node that is in no region and no bin on the spare list.
    #[inline(always)]
    pub(crate) fn put(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        node.state = NodeState::Spare;
        node.next_free = std::mem::replace(self.spare, index);
    }

    /// Makes every handle to the node stale.
    #[inline(always)]
    pub(crate) fn retire(&mut self, index: u32) {
        let node = self.node_mut(index);
        node.generation = next_generation(node.generation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(blocks: &mut Blocks, slot: u16, offset_units: u32, size_units: u32) -> u32 {
        blocks.keep_spare();
        let state = NodeState::OccupiedLarge;
        blocks.table().take(Node { slot, offset_units, size_units, state, ..Node::EDGE }).0
    }

    #[test]
    fn the_state_of_a_block_tells_its_zone_and_whether_it_is_a_gap() {
        assert_eq!(NodeState::Edge.gaps() + NodeState::Spare.gaps(), 0);
        for zone in [Zone::Small, Zone::Large] {
            for state in [NodeState::free(zone), NodeState::held(zone), NodeState::occupied(zone)] {
                assert_eq!(state.zone(), zone, "{state:?}");
                assert_eq!(state.freed(), NodeState::free(zone), "{state:?}");
                assert_eq!(state.is_gap(), !state.is_occupied(), "{state:?}");
                assert_eq!(state.gaps(), u32::from(state.is_gap()), "{state:?}");
            }
        }
    }

    #[test]
    fn nodes_are_reused_last_in_first_out() {
        let mut blocks = Blocks::new();
        let first = take(&mut blocks, 0, 0, 4);
        let second = take(&mut blocks, 0, 4, 4);
        assert_ne!(first, NIL);
        assert_ne!(first, second);
        blocks.table().put(first);
        blocks.table().put(second);
        assert_eq!(take(&mut blocks, 1, 0, 1), second);
        assert_eq!(take(&mut blocks, 1, 1, 1), first);
        assert_eq!(blocks.len(), 3);
    }

    #[test]
    fn the_table_grows_in_small_steps() {
        let mut blocks = Blocks::new();
        for offset_units in 0..20_000 {
            take(&mut blocks, 0, offset_units, 1);
            let spare = blocks.nodes.capacity() - blocks.len();
            assert!(spare <= GROWTH_STEP.max(blocks.len() / GROWTH_PART), "{spare} of {}", blocks.len());
        }
    }

    #[test]
    fn generations_never_are_zero_and_survive_the_spare_list() {
        let mut blocks = Blocks::new();
        let index = take(&mut blocks, 0, 0, 1);
        assert_eq!(blocks.node(index).generation, 1);
        blocks.node_mut(index).generation = MAX_GENERATION;
        blocks.table().retire(index);
        assert_eq!(blocks.node(index).generation, 1);
        blocks.table().retire(index);
        blocks.table().put(index);
        assert_eq!(take(&mut blocks, 0, 0, 1), index);
        assert_eq!(blocks.node(index).generation, 2);
    }

    #[test]
    fn a_handle_fits_only_its_own_allocation() {
        let mut blocks = Blocks::new();
        let index = take(&mut blocks, 0, 0, 1);
        let handle = BlockHandle { index, generation: 1 };
        assert!(blocks.occupied(handle).is_some());
        assert!(blocks.occupied(BlockHandle { generation: 2, ..handle }).is_none());
        assert!(blocks.occupied(BlockHandle { index: 99, ..handle }).is_none());
        assert!(blocks.occupied(BlockHandle { index: NIL, ..handle }).is_none());
        blocks.table().retire(index);
        assert!(blocks.occupied(handle).is_none());
    }
}
