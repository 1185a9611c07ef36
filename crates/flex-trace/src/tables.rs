//! The names and stacks of a trace, as far as it has been read.

use std::collections::HashMap;

use crate::record::{Frame, FrameId, Record, StackId, StringId};

/// Keeps what records refer to. In memory it has a few times the bytes of those records.
#[derive(Debug, Default)]
pub struct Tables {
    strings: HashMap<StringId, Box<str>>,
    frames: HashMap<FrameId, Frame>,
    stacks: HashMap<StackId, Box<[FrameId]>>,
}

impl Tables {
    /// Empty tables.
    pub fn new() -> Self {
        Tables::default()
    }

    /// Keeps what the record defines; `false` if it defines nothing.
    pub fn keep(&mut self, record: &Record<'_>) -> bool {
        match record {
            Record::String { id, text } => drop(self.strings.insert(*id, (*text).into())),
            Record::Frame(frame) => drop(self.frames.insert(frame.id, *frame)),
            Record::Stack { id, frames } => {
                self.stacks.insert(*id, frames.iter().map(FrameId).collect());
            }
            _ => return false,
        }
        true
    }

    /// A text; `None` if the trace has not given it.
    pub fn string(&self, id: StringId) -> Option<&str> {
        self.strings.get(&id).map(AsRef::as_ref)
    }

    /// A frame; `None` if the trace has not given it.
    pub fn frame(&self, id: FrameId) -> Option<Frame> {
        self.frames.get(&id).copied()
    }

    /// The frames of a stack, the innermost first; none if the trace has not given it.
    pub fn stack(&self, id: StackId) -> &[FrameId] {
        self.stacks.get(&id).map_or(&[], AsRef::as_ref)
    }
}
