//! Who allocated: sites are stacks, numbered in the order in which events first name them.
//!
//! Invariants: the same trace gives the same numbers, so both passes agree. A stack that is defined again with other
//! frames is another site. What a site is called is kept when a definition that it depends on is replaced, up to
//! [`REPLACED_BYTES`] of text.

use std::collections::HashMap;

use flex_trace::{Record, StackId, StringId, Tables};

use super::summary::Site;
use crate::site::{self, NO_STACK};

/// The most text that is kept for sites whose definitions were replaced.
const REPLACED_BYTES: usize = 64 << 20;
const MAX_FRAMES: usize = 48;
const MAX_TEXT_CHARS: usize = 240;

/// A site of the trace. 0 is what has no stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SiteId(pub(super) u32);

impl SiteId {
    pub(super) const UNKNOWN: SiteId = SiteId(0);
}

#[derive(Debug)]
struct Entry {
    stack: Option<StackId>,
    /// What it is called, if the definitions have changed since.
    kept: Option<Site>,
}

/// The names and stacks of a trace, and the sites made of them.
#[derive(Debug)]
pub(super) struct Sites {
    tables: Tables,
    by_stack: HashMap<StackId, SiteId, foldhash::fast::RandomState>,
    entries: Vec<Entry>,
    /// Entries before this one have been described, or will not be.
    described: usize,
    kept_bytes: usize,
}

impl Sites {
    pub(super) fn new() -> Self {
        Sites {
            tables: Tables::new(),
            by_stack: HashMap::default(),
            entries: vec![Entry { stack: None, kept: Some(Site::unknown()) }],
            described: 1,
            kept_bytes: 0,
        }
    }

    /// Keeps what the record defines; `false` if it defines nothing.
    pub(super) fn keep(&mut self, record: &Record<'_>) -> bool {
        if self.replaces(record) {
            self.describe_all();
            self.by_stack.clear();
        }
        self.tables.keep(record)
    }

    fn replaces(&self, record: &Record<'_>) -> bool {
        match record {
            Record::String { id, text } => self.tables.string(*id).is_some_and(|old| old != *text),
            Record::Frame(frame) => self.tables.frame(frame.id).is_some_and(|old| old != *frame),
            Record::Stack { id, frames } => {
                let old = self.tables.stack(*id);
                self.by_stack.contains_key(id) && !old.iter().map(|frame| frame.0).eq(frames.iter())
            }
            _ => false,
        }
    }

    fn describe_all(&mut self) {
        for place in self.described..self.entries.len() {
            let site = if self.kept_bytes < REPLACED_BYTES {
                self.describe(SiteId(place as u32))
            } else {
                Site { label: "a site whose name was replaced".into(), stack: Vec::new() }
            };
            self.kept_bytes += site.label.len() + site.stack.iter().map(String::len).sum::<usize>();
            self.entries[place].kept = Some(site);
        }
        self.described = self.entries.len();
    }

    /// The site of a stack.
    pub(super) fn site(&mut self, stack: Option<StackId>) -> SiteId {
        let Some(stack) = stack else { return SiteId::UNKNOWN };
        *self.by_stack.entry(stack).or_insert_with(|| {
            self.entries.push(Entry { stack: Some(stack), kept: None });
            SiteId(self.entries.len() as u32 - 1)
        })
    }

    /// A text of the trace, cut to a length that a page can show.
    pub(super) fn text(&self, id: StringId) -> Option<String> {
        self.tables.string(id).map(short)
    }

    /// What a site is called.
    pub(super) fn describe(&self, site: SiteId) -> Site {
        let entry = &self.entries[site.0 as usize];
        if let Some(kept) = &entry.kept {
            return Site { label: kept.label.clone(), stack: kept.stack.clone() };
        }
        let Some(id) = entry.stack else { return Site::unknown() };
        let place = site::place(id, &self.tables);
        let label = place.map_or("an empty stack".into(), |place| short(&site::brief(&place, &self.tables)));
        let mut lines = site::lines(id, &self.tables);
        let mut stack: Vec<String> = lines.by_ref().take(MAX_FRAMES).map(|line| short(&line)).collect();
        let more = lines.count();
        if more > 0 {
            stack.push(format!("… and {more} more"));
        }
        Site { label, stack }
    }
}

impl Site {
    fn unknown() -> Self {
        Site { label: NO_STACK.into(), stack: Vec::new() }
    }
}

pub(super) fn short(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use flex_trace::record::Frame;
    use flex_trace::{FrameId, Ids};

    use super::*;

    fn define(sites: &mut Sites, id: u32, text: &str) {
        assert!(sites.keep(&Record::String { id: StringId(id), text }));
    }

    fn sites() -> Sites {
        let mut sites = Sites::new();
        for (id, text) in
            ["empty", "/x/torch/functional.py", "step", "/home/me/job/train.py"].iter().enumerate()
        {
            define(&mut sites, id as u32, text);
        }
        for (id, line) in [(0, 7), (1, 12)] {
            let frame =
                Frame { id: FrameId(id), function: StringId(2 * id), file: StringId(2 * id + 1), line };
            assert!(sites.keep(&Record::Frame(frame)));
        }
        assert!(sites.keep(&Record::Stack { id: StackId(5), frames: Ids::from([0, 1].as_slice()) }));
        sites
    }

    #[test]
    fn a_site_is_called_after_the_innermost_frame_of_the_program() {
        let mut sites = sites();
        let site = sites.site(Some(StackId(5)));
        let described = sites.describe(site);
        assert_eq!(described.label, "step (job/train.py:12)");
        assert_eq!(described.stack, ["empty (/x/torch/functional.py:7)", "step (/home/me/job/train.py:12)"]);
        assert_eq!(sites.describe(SiteId::UNKNOWN).label, "no stack recorded");
    }

    #[test]
    fn a_definition_that_is_repeated_changes_nothing() {
        let mut sites = sites();
        let site = sites.site(Some(StackId(5)));
        define(&mut sites, 2, "step");
        sites.keep(&Record::Stack { id: StackId(5), frames: Ids::from([0, 1].as_slice()) });
        assert_eq!(sites.site(Some(StackId(5))), site);
    }

    #[test]
    fn a_definition_that_is_replaced_makes_new_sites_and_leaves_old_ones_their_names() {
        let mut sites = sites();
        let before = sites.site(Some(StackId(5)));
        define(&mut sites, 2, "evaluate");
        let after = sites.site(Some(StackId(5)));
        assert_ne!(before, after);
        assert_eq!(sites.describe(before).label, "step (job/train.py:12)");
        assert_eq!(sites.describe(after).label, "evaluate (job/train.py:12)");
    }
}
