//! Memory by the place in the program that allocated it.

use std::cmp::Reverse;
use std::collections::HashMap;

use flex_trace::{FrameId, StackId, Tables};

use super::answers::Holder;

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

    /// The largest, by place: stacks that differ only in what PyTorch does inside are one.
    pub(crate) fn largest(&self, tables: &Tables, top: usize) -> Vec<Holder> {
        let mut by_site: HashMap<Option<String>, Holder> = HashMap::new();
        for (&stack, &(bytes, blocks)) in &self.0 {
            let site = site(stack, tables);
            let holder = by_site.entry(site.clone()).or_insert_with(|| Holder {
                site,
                stack: lines(stack, tables),
                bytes: 0,
                blocks: 0,
            });
            holder.bytes = holder.bytes.saturating_add(bytes);
            holder.blocks += blocks;
        }
        let mut holders: Vec<_> = by_site.into_values().collect();
        holders.sort_by_cached_key(|holder| (Reverse(holder.bytes), holder.site.clone()));
        holders.truncate(top);
        holders
    }
}

/// The place in one line: the innermost frame of the program's own Python, or of any Python, or of any
/// file that is known, or of anything.
pub(crate) fn site(stack: Option<StackId>, tables: &Tables) -> Option<String> {
    let frames = tables.stack(stack?);
    let file = |frame: &FrameId| {
        tables.frame(*frame).and_then(|frame| tables.string(frame.file)).unwrap_or_default()
    };
    let is_python = |frame: &&FrameId| file(frame).ends_with(".py");
    let is_own = |frame: &&FrameId| is_python(frame) && !is_library(file(frame));
    let is_known = |frame: &&FrameId| !matches!(file(frame), "" | "??");
    let python = frames.iter().find(is_own).or_else(|| frames.iter().find(is_python));
    let found = python.or_else(|| frames.iter().find(is_known)).or(frames.first());
    found.map(|&frame| line(frame, tables))
}

/// Whether a file is of PyTorch, or of a package beside it.
fn is_library(file: &str) -> bool {
    file.starts_with("torch/")
        || ["/torch/", "site-packages/", "/lib/python"].iter().any(|part| file.contains(part))
}

/// A stack, one frame a line.
pub(super) fn lines(stack: Option<StackId>, tables: &Tables) -> Vec<String> {
    let frames = stack.map_or(&[] as &[FrameId], |stack| tables.stack(stack));
    frames.iter().map(|&frame| line(frame, tables)).collect()
}

fn line(frame: FrameId, tables: &Tables) -> String {
    let Some(frame) = tables.frame(frame) else { return "?".to_owned() };
    let text = |id| tables.string(id).unwrap_or("?");
    format!("{}:{} {}", text(frame.file), frame.line, text(frame.function))
}
