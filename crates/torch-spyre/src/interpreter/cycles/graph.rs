//! What Python objects refer to: the graph that the collector walks, of a given set of objects.
//!
//! Built with each type's `tp_traverse`, as the collector does it, which runs no Python code. With a GIL the graph is
//! therefore that of one moment, and stays true until the caller runs Python code. No lock.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::time::Instant;

use rustc_hash::{FxHashMap, FxHashSet};

use super::super::ffi::{self, Object};

/// How often building looks at the clock.
const OBJECTS_PER_LOOK: usize = 4096;

/// How many objects a search visits at most: what it finds further away says nothing to people.
const SEARCH_LIMIT: usize = 20_000;

/// A set of objects and the references among them. Objects are named by their place in the set.
pub(crate) struct ObjectGraph {
    references: Edges,
    referrers: Edges,
    /// The strongly connected component of each object: two objects are on one cycle if theirs is the same.
    components: Vec<u32>,
    on_cycle: Vec<bool>,
}

/// For each node those that its edges lead to.
struct Edges {
    /// Where the edges of each node begin in `targets`, and where those of the last one end.
    starts: Vec<u32>,
    targets: Vec<u32>,
}

impl Edges {
    fn of(&self, node: u32) -> &[u32] {
        &self.targets[self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize]
    }

    fn node_count(&self) -> usize {
        self.starts.len() - 1
    }

    /// The nodes that edges lead to from `roots`, these included, but not what was met before.
    fn followed(&self, roots: Vec<u32>, met: &mut [bool]) -> Vec<u32> {
        let mut nodes: Vec<u32> =
            roots.into_iter().filter(|node| !std::mem::replace(&mut met[*node as usize], true)).collect();
        let mut looked_at = 0;
        while let Some(&node) = nodes.get(looked_at) {
            looked_at += 1;
            let targets = self.of(node).iter().copied();
            nodes.extend(targets.filter(|target| !std::mem::replace(&mut met[*target as usize], true)));
        }
        nodes
    }

    fn reversed(&self) -> Edges {
        let count = self.node_count();
        let mut starts = vec![0_u32; count + 1];
        for target in &self.targets {
            starts[*target as usize + 1] += 1;
        }
        for node in 0..count {
            starts[node + 1] += starts[node];
        }
        let mut next = starts.clone();
        let mut targets = vec![0; self.targets.len()];
        for node in 0..count as u32 {
            for target in self.of(node) {
                let place = &mut next[*target as usize];
                targets[*place as usize] = node;
                *place += 1;
            }
        }
        Edges { starts, targets }
    }

    /// The edges among the nodes that are kept, renumbered.
    fn restricted(&self, kept: &[u32]) -> Edges {
        let numbers: FxHashMap<u32, u32> = kept.iter().zip(0..).map(|(old, new)| (*old, new)).collect();
        let mut edges = Edges { starts: vec![0], targets: Vec::new() };
        for old in kept {
            edges.targets.extend(self.of(*old).iter().filter_map(|target| numbers.get(target)));
            edges.starts.push(edges.targets.len() as u32);
        }
        edges
    }
}

/// References among objects, with what their counts leave unexplained.
pub(super) struct References {
    edges: Edges,
    /// For each object its references that come from outside of the set.
    outside: Vec<isize>,
}

impl References {
    /// Looks at the objects. `held` is how many references to each the caller has. `None` if the deadline passes first;
    /// without one it takes about as long as the collector does.
    ///
    /// # Safety
    /// The calling thread is attached, and the objects are alive and not about to be changed by others.
    pub(super) unsafe fn among(objects: &[Object], held: isize, deadline: Option<Instant>) -> Option<Self> {
        let numbers: FxHashMap<usize, u32> =
            objects.iter().zip(0..).map(|(object, number)| (*object as usize, number)).collect();
        let mut visit = Visit { numbers, targets: Vec::with_capacity(objects.len() * 2) };
        let mut starts = Vec::with_capacity(objects.len() + 1);
        starts.push(0);
        for (number, object) in objects.iter().enumerate() {
            if number % OBJECTS_PER_LOOK == 0 && deadline.is_some_and(|deadline| Instant::now() > deadline) {
                return None;
            }
            // SAFETY: the caller's contract; `visit` outlives the call.
            unsafe { ffi::traverse(*object, record, (&raw mut visit).cast()) };
            starts.push(visit.targets.len() as u32);
        }
        // SAFETY: the objects are alive.
        let mut outside: Vec<isize> =
            objects.iter().map(|object| unsafe { ffi::reference_count(*object) } - held).collect();
        for target in &visit.targets {
            outside[*target as usize] -= 1;
        }
        Some(References { edges: Edges { starts, targets: visit.targets }, outside })
    }

    /// Which objects can be reached from outside of the set: all others only refer to one another. This is how the
    /// collector finds garbage (trial deletion).
    pub(super) fn reachable(&self) -> Vec<bool> {
        let mut reached = vec![false; self.outside.len()];
        let roots = (0..reached.len() as u32).filter(|node| self.outside[*node as usize] > 0).collect();
        self.edges.followed(roots, &mut reached);
        reached
    }

    /// The objects that frozen garbage keeps, where the last of the objects, from this number on, are frozen: dead ones
    /// that the collector does not free, since it does not look at those, and whose counts do not drop to zero either
    /// when it has freed the others.
    pub(super) fn kept_by_frozen(&self, first_frozen: u32) -> Vec<u32> {
        let mut met = self.reachable();
        let frozen = (first_frozen..met.len() as u32).filter(|node| !met[*node as usize]).collect();
        let mut kept = self.edges.followed(frozen, &mut met);
        kept.sort_unstable();
        let graph = self.graph(&kept);
        let cyclic = (0..kept.len() as u32).filter(|node| graph.on_cycle[*node as usize]).collect();
        let staying = graph.references.followed(cyclic, &mut vec![false; kept.len()]);
        staying.into_iter().map(|node| kept[node as usize]).collect()
    }

    /// The graph of all objects.
    pub(super) fn into_graph(self) -> ObjectGraph {
        ObjectGraph::new(self.edges)
    }

    /// The graph of the objects with these numbers, renumbered in this order.
    pub(super) fn graph(&self, kept: &[u32]) -> ObjectGraph {
        ObjectGraph::new(self.edges.restricted(kept))
    }
}

/// What [`record`] works with.
struct Visit {
    numbers: FxHashMap<usize, u32>,
    targets: Vec<u32>,
}

extern "C" fn record(object: Object, visit: *mut c_void) -> c_int {
    // SAFETY: `traverse` passes the pointer that it was given, to a `Visit` that nobody else uses meanwhile.
    let visit = unsafe { &mut *visit.cast::<Visit>() };
    if let Some(number) = visit.numbers.get(&(object as usize)) {
        visit.targets.push(*number);
    }
    0
}

impl ObjectGraph {
    fn new(references: Edges) -> Self {
        let referrers = references.reversed();
        let components = components(&references);
        let mut sizes = vec![0_u32; references.node_count()];
        components.iter().for_each(|component| sizes[*component as usize] += 1);
        let on_cycle = (0..references.node_count() as u32)
            .map(|node| sizes[components[node as usize] as usize] > 1 || references.of(node).contains(&node))
            .collect();
        ObjectGraph { references, referrers, components, on_cycle }
    }

    /// The strongly connected component of an object.
    pub(crate) fn component(&self, node: u32) -> u32 {
        self.components[node as usize]
    }

    /// The cycles, as the sets of objects that can reach one another, in an order in which each comes before those that
    /// it leads to; and the objects that are on none.
    pub(super) fn cycles(&self) -> (Vec<Vec<u32>>, Vec<u32>) {
        let mut members: Vec<Vec<u32>> = Vec::new();
        let mut others = Vec::new();
        for (node, component) in (0..).zip(&self.components) {
            if !self.on_cycle[node as usize] {
                others.push(node);
                continue;
            }
            let component = *component as usize;
            if members.len() <= component {
                members.resize_with(component + 1, Vec::new);
            }
            members[component].push(node);
        }
        // Components are numbered as they are completed, those first that lead nowhere.
        members.reverse();
        members.retain(|component| !component.is_empty());
        (members, others)
    }

    /// Who holds an object: its nearest referrer, direct or not, that `is_owner` accepts, and the nearest one that is
    /// on a cycle, an owner if there is one.
    pub(crate) fn holder(&self, node: u32, is_owner: impl Fn(u32) -> bool) -> (Option<u32>, Option<u32>) {
        let (mut owner, mut cyclic, mut cyclic_owner) = (None, None, None);
        let mut seen = FxHashSet::from_iter([node]);
        let mut queue = VecDeque::from([node]);
        while let Some(next) = queue.pop_front() {
            let owns = next != node && is_owner(next);
            if owns {
                owner.get_or_insert(next);
            }
            if self.on_cycle[next as usize] {
                cyclic.get_or_insert(next);
                if owns {
                    cyclic_owner = Some(next);
                }
            }
            if cyclic_owner.is_some() || seen.len() > SEARCH_LIMIT {
                break;
            }
            queue.extend(self.referrers.of(next).iter().filter(|referrer| seen.insert(**referrer)));
        }
        (owner, cyclic_owner.or(cyclic))
    }

    /// A shortest cycle through an object, which is on one: that object first, each referring to the next, and the
    /// last to the first. Empty if the search for it takes too long.
    pub(crate) fn cycle(&self, start: u32) -> Vec<u32> {
        let mut came_from = FxHashMap::default();
        let mut queue = VecDeque::from([start]);
        while let Some(node) = queue.pop_front() {
            for target in self.references.of(node) {
                if *target == start {
                    return path(start, node, &came_from);
                }
                if self.component(*target) == self.component(start)
                    && came_from.len() < SEARCH_LIMIT
                    && !came_from.contains_key(target)
                {
                    came_from.insert(*target, node);
                    queue.push_back(*target);
                }
            }
        }
        Vec::new()
    }
}

fn path(start: u32, end: u32, came_from: &FxHashMap<u32, u32>) -> Vec<u32> {
    let mut nodes = vec![end];
    let mut node = end;
    while node != start {
        node = came_from[&node];
        nodes.push(node);
    }
    nodes.reverse();
    nodes
}

/// Tarjan's algorithm for strongly connected components ("Depth-first search and linear graph algorithms", 1972),
/// without recursion: garbage may be a chain of any length.
fn components(edges: &Edges) -> Vec<u32> {
    const NONE: u32 = u32::MAX;
    let count = edges.node_count();
    let (mut order, mut low) = (vec![NONE; count], vec![NONE; count]);
    let mut component = vec![NONE; count];
    let (mut visited, mut found) = (0, 0);
    let mut open = Vec::new();
    // Nodes being visited, and how many of their edges have been followed.
    let mut visits: Vec<(u32, usize)> = Vec::new();
    for root in 0..count as u32 {
        if order[root as usize] == NONE {
            visits.push((root, 0));
        }
        while let Some((node, followed)) = visits.last_mut() {
            let place = *node as usize;
            if *followed == 0 && order[place] == NONE {
                (order[place], low[place]) = (visited, visited);
                visited += 1;
                open.push(*node);
            }
            if let Some(target) = edges.of(*node).get(*followed).map(|target| *target as usize) {
                *followed += 1;
                if order[target] == NONE {
                    visits.push((target as u32, 0));
                } else if component[target] == NONE {
                    low[place] = low[place].min(order[target]);
                }
                continue;
            }
            visits.pop();
            if low[place] == order[place] {
                while let Some(member) = open.pop() {
                    component[member as usize] = found;
                    if member as usize == place {
                        break;
                    }
                }
                found += 1;
            }
            if let Some((parent, _)) = visits.last() {
                low[*parent as usize] = low[*parent as usize].min(low[place]);
            }
        }
    }
    component
}
