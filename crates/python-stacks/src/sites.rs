//! Every distinct stack once: a tree whose nodes are frames, so that stacks share their outer parts. A site is a node:
//! the innermost frame, with the path to the root.
//!
//! About 60 bytes a node and as much again for each distinct hash; names are stored once each.
//!
//! Lock: the tree's, a leaf. What is copied out of the interpreter's memory is copied before it is taken.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Frame;
use crate::table::Table;

/// Something that stands for a frame, and what tells it from others.
pub(crate) trait Keyed {
    /// Equal for the same place in the same code.
    fn key(&self) -> u64;
}

/// The stacks seen so far.
pub(crate) struct Sites {
    /// The most nodes, and the most places.
    limit: u32,
    by_hash: Table,
    tree: Mutex<Tree>,
    nodes: AtomicU32,
    /// Something did not fit: what is not known by now will not be.
    full: AtomicBool,
}

#[derive(Default)]
struct Tree {
    /// Node `n` is site `n + 1`.
    nodes: Vec<Node>,
    children: HashMap<Node, u32>,
    places: Vec<Frame>,
    by_frame: HashMap<Frame, u32>,
    by_key: HashMap<u64, u32>,
    texts: HashSet<Arc<str>>,
}

/// A frame within the frames around it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Node {
    /// The site of the caller, 0 for the outermost frame.
    parent: u32,
    place: u32,
}

impl Sites {
    /// Room for so many nodes.
    pub(crate) fn new(limit: u32) -> Self {
        Sites {
            limit,
            by_hash: Table::default(),
            tree: Mutex::default(),
            nodes: AtomicU32::new(0),
            full: AtomicBool::new(false),
        }
    }

    /// The site of a stack that has been seen; site 0 does not occur.
    #[inline]
    pub(crate) fn find(&self, hash: u64) -> Option<u32> {
        self.by_hash.find(hash)
    }

    /// The site of a stack that may not have been seen, `frames` innermost first; `None` if it does not fit.
    pub(crate) fn learn<F: Keyed>(
        &self,
        hash: u64,
        frames: &[F],
        symbolize: impl Fn(&F) -> Frame,
    ) -> Option<u32> {
        if self.full.load(Ordering::Relaxed) {
            return None;
        }
        let unknown: Vec<&F> = {
            let tree = self.lock();
            frames.iter().filter(|frame| !tree.by_key.contains_key(&frame.key())).collect()
        };
        let named: Vec<(u64, Frame)> =
            unknown.into_iter().map(|frame| (frame.key(), symbolize(frame))).collect();
        let mut tree = self.lock();
        // Another thread may have been first.
        let site = self.by_hash.find(hash).or_else(|| {
            let site = tree.add(self.limit, named, frames.iter().rev().map(Keyed::key))?;
            self.by_hash.insert(hash, site).then_some(site)
        });
        self.nodes.store(tree.len(), Ordering::Relaxed);
        if site.is_none() {
            self.full.store(true, Ordering::Relaxed);
        }
        site
    }

    /// The frames of a site, innermost first.
    pub(crate) fn frames(&self, site: u32) -> Vec<Frame> {
        let tree = self.lock();
        let mut frames = Vec::new();
        let mut next = site;
        while let Some(node) = next.checked_sub(1).and_then(|index| tree.nodes.get(index as usize)) {
            frames.push(tree.places[node.place as usize].clone());
            next = node.parent;
        }
        frames
    }

    /// How many nodes there are.
    pub(crate) fn len(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tree {
    fn len(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Adds a stack, outermost frame first; `None` if there is no room.
    fn add(&mut self, limit: u32, named: Vec<(u64, Frame)>, keys: impl Iterator<Item = u64>) -> Option<u32> {
        for (key, frame) in named {
            let place = self.place(limit, frame)?;
            self.by_key.insert(key, place);
        }
        let mut parent = 0;
        for key in keys {
            let node = Node { parent, place: *self.by_key.get(&key)? };
            parent = match self.children.get(&node) {
                Some(site) => *site,
                None => self.add_node(limit, node)?,
            };
        }
        Some(parent)
    }

    fn add_node(&mut self, limit: u32, node: Node) -> Option<u32> {
        if self.len() >= limit {
            return None;
        }
        self.nodes.push(node);
        self.children.insert(node, self.len());
        Some(self.len())
    }

    /// The number of a place; equal ones, of code that was compiled again, share one.
    fn place(&mut self, limit: u32, frame: Frame) -> Option<u32> {
        if let Some(place) = self.by_frame.get(&frame) {
            return Some(*place);
        }
        if self.by_key.len() >= limit as usize {
            return None;
        }
        let Frame { filename, name, line } = frame;
        let frame = Frame { filename: self.text(filename), name: self.text(name), line };
        let place = self.places.len() as u32;
        self.places.push(frame.clone());
        self.by_frame.insert(frame, place);
        Some(place)
    }

    fn text(&mut self, text: Arc<str>) -> Arc<str> {
        if let Some(known) = self.texts.get(&text) {
            return Arc::clone(known);
        }
        self.texts.insert(Arc::clone(&text));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(line: u32) -> Frame {
        Frame { filename: "file.py".into(), name: "function".into(), line }
    }

    /// The innermost frame first.
    fn stack(lines: &[u32]) -> Vec<Frame> {
        lines.iter().copied().map(frame).collect()
    }

    fn learn(sites: &Sites, hash: u64, lines: &[u32]) -> Option<u32> {
        sites.learn(hash, &stack(lines), Frame::clone)
    }

    #[test]
    fn stacks_share_their_outer_frames() {
        let sites = Sites::new(100);
        let one = learn(&sites, 1, &[3, 2, 1]).unwrap();
        let other = learn(&sites, 3, &[4, 2, 1]).unwrap();
        assert_ne!(one, other);
        assert_eq!(sites.len(), 4, "line 1, 2, 3 and 4");
        assert_eq!(sites.frames(one), stack(&[3, 2, 1]));
        assert_eq!(sites.frames(other), stack(&[4, 2, 1]));
        assert_eq!((sites.find(1), sites.find(3), sites.find(5)), (Some(one), Some(other), None));
    }

    #[test]
    fn the_same_stack_of_code_compiled_again_is_the_same_site() {
        let sites = Sites::new(100);
        let site = learn(&sites, 1, &[2, 1]).unwrap();
        assert_eq!(learn(&sites, 3, &[2, 1]), Some(site));
        assert_eq!(sites.len(), 2);
    }

    #[test]
    fn no_site_has_no_frames() {
        let sites = Sites::new(100);
        assert_eq!(sites.frames(0), []);
        assert_eq!(sites.frames(1), []);
        learn(&sites, 1, &[1]).unwrap();
        assert_eq!(sites.frames(2), []);
        assert_eq!(sites.frames(u32::MAX), []);
    }

    #[test]
    fn what_does_not_fit_is_no_site_and_what_was_known_stays() {
        let sites = Sites::new(100);
        let known = learn(&sites, 1, &[1]).unwrap();
        for line in 2..=100 {
            assert!(learn(&sites, u64::from(line) << 20 | 1, &[line]).is_some());
        }
        assert_eq!(sites.len(), 100);
        assert_eq!(learn(&sites, 7, &[0]), None);
        assert_eq!(learn(&sites, 9, &[1]), None, "nothing is learnt any more");
        assert_eq!((sites.find(1), sites.len()), (Some(known), 100));
    }
}
