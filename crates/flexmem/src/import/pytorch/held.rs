//! Things that a pickle refers to until a list or a dict takes them.

use crate::import::pickle::{Fault, Object, Value};

pub(super) const TWICE: Fault = Fault::Shared("the same event, block or segment stands in two places");

/// Things that the pickle still refers to, by number; numbers are used again.
#[derive(Debug)]
pub(super) struct Held<T>(Vec<Option<T>>, Vec<u32>);

impl<T: Clone> Held<T> {
    /// One of them, which stays.
    pub(super) fn get(&self, object: Object) -> Option<&T> {
        self.0.get(object.index as usize)?.as_ref()
    }

    pub(super) fn put(&mut self, kind: u8, item: T) -> Value {
        let index = self.1.pop().unwrap_or_else(|| {
            self.0.push(None);
            (self.0.len() - 1) as u32
        });
        self.0[index as usize] = Some(item);
        Value::Object(Object { kind, index })
    }

    /// One of them, which is then gone unless it may be shared.
    pub(super) fn take(&mut self, object: Object, keeps_shared: bool) -> Result<T, Fault> {
        let slot = self.0.get_mut(object.index as usize).ok_or(TWICE)?;
        if keeps_shared {
            return slot.clone().ok_or(TWICE);
        }
        let item = slot.take().ok_or(TWICE)?;
        self.1.push(object.index);
        Ok(item)
    }
}

impl<T> Default for Held<T> {
    fn default() -> Self {
        Held(Vec::new(), Vec::new())
    }
}
