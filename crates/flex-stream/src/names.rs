//! What a trace has defined: texts, frames and stacks, each before its first use. No lock.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;

use flex_trace::record::Frame;
use flex_trace::{FrameId, Record, StackId, StringId, WriteError, Writer};

use crate::{StackFrame, Stacks};

/// The definitions that are in one trace.
#[derive(Default)]
pub(crate) struct Names {
    texts: HashMap<Arc<str>, StringId>,
    frames: HashMap<(StringId, StringId, u32), FrameId>,
    stacks: HashSet<u32>,
    unknown: HashSet<u32>,
}

impl Names {
    /// The stack of a site, which is defined if it was not; `None` for site 0 and one that is not known.
    pub(crate) fn stack<W: Write>(
        &mut self,
        writer: &mut Writer<W>,
        site: u32,
        stacks: Option<&dyn Stacks>,
    ) -> Result<Option<StackId>, WriteError> {
        if site == 0 || self.unknown.contains(&site) {
            return Ok(None);
        }
        if !self.stacks.contains(&site) {
            let frames = stacks.map(|stacks| stacks.frames(site)).unwrap_or_default();
            if frames.is_empty() {
                self.unknown.insert(site);
                return Ok(None);
            }
            let mut ids = Vec::with_capacity(frames.len());
            for frame in &frames {
                ids.push(self.frame(writer, frame)?.0);
            }
            writer.write(&Record::Stack { id: StackId(site), frames: ids.as_slice().into() })?;
            self.stacks.insert(site);
        }
        Ok(Some(StackId(site)))
    }

    fn frame<W: Write>(&mut self, writer: &mut Writer<W>, frame: &StackFrame) -> Result<FrameId, WriteError> {
        let (function, file) = (self.text(writer, &frame.function)?, self.text(writer, &frame.filename)?);
        let key = (function, file, frame.line);
        if let Some(id) = self.frames.get(&key) {
            return Ok(*id);
        }
        let id = FrameId(self.frames.len() as u32);
        writer.write(&Record::Frame(Frame { id, function, file, line: frame.line }))?;
        self.frames.insert(key, id);
        Ok(id)
    }

    fn text<W: Write>(&mut self, writer: &mut Writer<W>, text: &Arc<str>) -> Result<StringId, WriteError> {
        if let Some(id) = self.texts.get(text) {
            return Ok(*id);
        }
        let id = StringId(self.texts.len() as u32);
        writer.write(&Record::String { id, text })?;
        self.texts.insert(Arc::clone(text), id);
        Ok(id)
    }
}
