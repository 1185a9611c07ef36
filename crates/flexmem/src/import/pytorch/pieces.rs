//! What a snapshot consists of, as plain values: frames, events, blocks, segments.

use flex_trace::record::BlockState;

use super::keys::{self, Entries, Odd};
use crate::import::pickle::{Fault, Text, Value};

/// A line of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Frame {
    pub(super) function: Text,
    pub(super) file: Text,
    pub(super) line: u32,
}

/// An entry of a device's trace.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawEvent {
    pub(super) action: Text,
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) stream: u64,
    pub(super) time_ns: Option<u64>,
    pub(super) thread: Option<u64>,
    pub(super) rounded_bytes: Option<u64>,
    pub(super) device_free_bytes: Option<u64>,
    pub(super) largest_free_bytes: Option<u64>,
    pub(super) pressure: PressureKeys,
    pub(super) stack: Option<u32>,
    pub(super) odd: Option<Odd>,
}

/// What snapshots of `spyre` tell of memory pressure and of collections.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PressureKeys {
    pub(super) duration_ns: u64,
    pub(super) reclaimed_bytes: u64,
    pub(super) objects: u64,
    pub(super) full: bool,
    pub(super) rescued: bool,
    pub(super) tried_young: bool,
    pub(super) tried_full: bool,
    /// The device whose request a collection ran for; snapshots of version 0.1 do not tell.
    pub(super) for_device: Option<u64>,
}

impl PressureKeys {
    pub(super) fn of(entries: Entries<'_>) -> Result<PressureKeys, Fault> {
        let number = |key| entries.optional(key).map(|number| number.unwrap_or(0));
        Ok(PressureKeys {
            duration_ns: number(keys::DURATION_US)?.saturating_mul(1000),
            reclaimed_bytes: number(keys::RECLAIMED_BYTES)?,
            objects: number(keys::OBJECTS)?,
            full: entries.find(keys::GENERATION) == Some(Value::Text(keys::FULL)),
            rescued: entries.find(keys::OUTCOME) == Some(Value::Text(keys::RESCUED)),
            tried_young: number(keys::YOUNG_COLLECTIONS)? > 0,
            tried_full: number(keys::FULL_COLLECTIONS)? > 0,
            for_device: entries.optional(keys::FOR_DEVICE)?,
        })
    }
}

/// A span of a segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) address: Option<u64>,
    pub(super) size_bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) state: BlockState,
    pub(super) stack: Option<u32>,
    pub(super) odd: Option<Odd>,
}

/// Memory taken from the device.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) device: u32,
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) stream: u64,
    pub(super) pool: (u64, u64),
    pub(super) small: bool,
    pub(super) expandable: bool,
    pub(super) allocated_bytes: Option<u64>,
    pub(super) active_bytes: Option<u64>,
    /// What was asked for, of what is active.
    pub(super) requested_bytes: Option<u64>,
    pub(super) stack: Option<u32>,
    pub(super) blocks: Vec<Block>,
    /// There is no such place.
    pub(super) is_nowhere: bool,
}

/// Who had a block, in snapshots of 2022: the newest entry of its history.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) requested_bytes: u64,
    pub(super) stack: Option<u32>,
}

/// Something that the program said about itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Annotation {
    pub(super) device: u32,
    pub(super) name: Text,
    pub(super) begins: bool,
    pub(super) time_ns: Option<u64>,
}

/// What is impossible about a device.
#[derive(Debug)]
pub(super) struct Contradiction {
    pub(super) device: u32,
    pub(super) text: String,
}

impl Segment {
    /// Sees that the blocks lie one behind the other and fill the segment, and leaves out what does not. What is
    /// impossible about it, if anything is. Old snapshots give blocks no address.
    pub(super) fn settle(&mut self, odd: Option<Odd>) -> Option<String> {
        let here = format!("the segment at {:#x}", self.address);
        let end = self.address.checked_add(self.size_bytes);
        let text = match (odd, end) {
            (Some(odd), _) => {
                self.is_nowhere = true;
                format!("{here} is left out: {odd}")
            }
            (None, None) => {
                self.is_nowhere = true;
                format!("{here} is left out: of {} bytes, it ends beyond the last address", self.size_bytes)
            }
            (None, Some(end)) => {
                format!("the blocks of {here} are left out: {}", self.blocks_fault(end)?)
            }
        };
        self.blocks = Vec::new();
        Some(text)
    }

    /// What it says that was asked for, if that is not what its blocks say.
    pub(super) fn requested_fault(&self) -> Option<String> {
        let active = self.blocks.iter().filter(|block| block.state != BlockState::Free);
        let asked: u128 = active.map(|block| u128::from(block.requested_bytes)).sum();
        let stated =
            self.requested_bytes.filter(|&stated| !self.blocks.is_empty() && u128::from(stated) != asked)?;
        let here = format!("the segment at {:#x}", self.address);
        Some(format!("{here} says that {stated} bytes were asked for, and of its blocks {asked}"))
    }

    fn blocks_fault(&self, end: u64) -> Option<String> {
        let mut next = Some(self.address);
        for block in &self.blocks {
            if let Some(odd) = block.odd {
                return Some(format!("of one {odd}"));
            }
            let address = block.address.or(next)?;
            if next != Some(address) {
                return Some(format!("the one at {address:#x} does not lie behind the one before it"));
            }
            next = address.checked_add(block.size_bytes);
            if next.is_none_or(|next| next > end) {
                return Some(format!(
                    "the one at {address:#x} of {} bytes lies beyond its end",
                    block.size_bytes
                ));
            }
        }
        (next != Some(end)).then(|| "they do not fill it".to_owned())
    }
}
