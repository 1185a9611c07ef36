//! What a trace can tell.
//!
//! Sizes are in bytes, times in nanoseconds, devices numbered from 0. Records about one device are in the order in
//! which things happened; those of several devices need not be.
//!
//! - `values`: ids, addresses, and what can be one of a few.
//! - `state`: the records about devices, stacks, and the memory at the end.
//! - `event`: what happened.
//!
//! Invariant: a kind, once given a meaning, keeps it. `docs/trace_format.md` lists the kinds.

mod event;
mod state;
mod values;

pub use self::event::{Action, Event, tried};
pub use self::state::{BlockSnapshot, Device, Frame, History, LayoutRegion, RegionState, Remark, Source};
pub use self::values::{
    Address, BlockState, ClockOrigin, FrameId, PressureEnd, RegionUse, StackId, StringId,
};
use crate::error::Malformed;
use crate::wire::{Decoder, Encoder, Ids, Wire};

/// One entry of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record<'a> {
    /// Where the trace comes from.
    Source(Source<'a>),
    /// What the times of events count from.
    Clock(ClockOrigin),
    /// A device.
    Device(Device<'a>),
    /// A region of a device's layout.
    LayoutRegion(LayoutRegion),
    /// A setting of the allocator.
    Setting {
        /// Its name.
        key: &'a str,
        /// Its value.
        value: &'a str,
    },
    /// A text, before the first record that names it. A later one with the same id replaces it.
    String {
        /// How others refer to it.
        id: StringId,
        /// The text.
        text: &'a str,
    },
    /// A frame, before the first record that names it.
    Frame(Frame),
    /// A stack, before the first record that names it.
    Stack {
        /// How others refer to it.
        id: StackId,
        /// The numbers of its [`FrameId`]s, the innermost first.
        frames: Ids<'a>,
    },
    /// How complete the events of a device are.
    History(History),
    /// Something that happened.
    Event(Event),
    /// A region when the snapshot was taken.
    RegionState(RegionState),
    /// A block of the region before it.
    Block(BlockSnapshot),
    /// The end of a trace that was finished properly.
    End {
        /// Records before it.
        records: u64,
    },
    /// Something that an importer says of its file.
    Remark(Remark<'a>),
    /// Everything that happened before this moment, on all devices, is above. A reader of a trace that grows knows by
    /// it how old what it has read is. An event that a thread was just writing then may still follow.
    Watermark {
        /// The moment, on the clock of [`Record::Clock`]: no difference, so that who passes over it reads the times
        /// after it right.
        time_ns: u64,
    },
    /// A record of a kind that this reader does not know. Its body is passed over; written, it has none.
    Unknown {
        /// Its kind.
        kind: u64,
    },
}

mod kind {
    pub(super) const SOURCE: u64 = 1;
    pub(super) const CLOCK: u64 = 2;
    pub(super) const DEVICE: u64 = 3;
    pub(super) const LAYOUT_REGION: u64 = 4;
    pub(super) const SETTING: u64 = 5;
    pub(super) const STRING: u64 = 6;
    pub(super) const FRAME: u64 = 7;
    pub(super) const STACK: u64 = 8;
    pub(super) const HISTORY: u64 = 9;
    pub(super) const REGION_STATE: u64 = 10;
    pub(super) const BLOCK: u64 = 11;
    pub(super) const END: u64 = 12;
    pub(super) const REMARK: u64 = 13;
    pub(super) const WATERMARK: u64 = 14;
}

impl<'a> Record<'a> {
    pub(crate) fn kind(&self) -> u64 {
        match self {
            Record::Source(_) => kind::SOURCE,
            Record::Clock(_) => kind::CLOCK,
            Record::Device(_) => kind::DEVICE,
            Record::LayoutRegion(_) => kind::LAYOUT_REGION,
            Record::Setting { .. } => kind::SETTING,
            Record::String { .. } => kind::STRING,
            Record::Frame(_) => kind::FRAME,
            Record::Stack { .. } => kind::STACK,
            Record::History(_) => kind::HISTORY,
            Record::RegionState(_) => kind::REGION_STATE,
            Record::Block(_) => kind::BLOCK,
            Record::End { .. } => kind::END,
            Record::Remark(_) => kind::REMARK,
            Record::Watermark { .. } => kind::WATERMARK,
            Record::Event(event) => event.action.kind(),
            Record::Unknown { kind } => *kind,
        }
    }

    #[inline]
    pub(crate) fn put(&self, encoder: &mut Encoder<'_>) {
        match self {
            Record::Event(event) => event.put(encoder),
            Record::Source(source) => source.put(encoder),
            Record::Clock(origin) => origin.put(encoder),
            Record::Device(device) => device.put(encoder),
            Record::LayoutRegion(region) => region.put(encoder),
            Record::Setting { key, value } => {
                key.put(encoder);
                value.put(encoder);
            }
            Record::String { id, text } => {
                id.put(encoder);
                text.put(encoder);
            }
            Record::Frame(frame) => frame.put(encoder),
            Record::Stack { id, frames } => {
                id.put(encoder);
                frames.put(encoder);
            }
            Record::History(history) => history.put(encoder),
            Record::RegionState(region) => region.put(encoder),
            Record::Block(block) => block.put(encoder),
            Record::End { records } => records.put(encoder),
            Record::Remark(remark) => remark.put(encoder),
            Record::Watermark { time_ns } => time_ns.put(encoder),
            Record::Unknown { .. } => {}
        }
    }

    #[inline]
    pub(crate) fn take(kind: u64, decoder: &mut Decoder<'a, '_>) -> Result<Record<'a>, Malformed> {
        Ok(match kind {
            kind::SOURCE => Record::Source(Source::take(decoder)?),
            kind::CLOCK => Record::Clock(ClockOrigin::take(decoder)?),
            kind::DEVICE => Record::Device(Device::take(decoder)?),
            kind::LAYOUT_REGION => Record::LayoutRegion(LayoutRegion::take(decoder)?),
            kind::SETTING => Record::Setting { key: Wire::take(decoder)?, value: Wire::take(decoder)? },
            kind::STRING => Record::String { id: Wire::take(decoder)?, text: Wire::take(decoder)? },
            kind::FRAME => Record::Frame(Frame::take(decoder)?),
            kind::STACK => Record::Stack { id: Wire::take(decoder)?, frames: Wire::take(decoder)? },
            kind::HISTORY => Record::History(History::take(decoder)?),
            kind::REGION_STATE => Record::RegionState(RegionState::take(decoder)?),
            kind::BLOCK => Record::Block(BlockSnapshot::take(decoder)?),
            kind::END => Record::End { records: u64::take(decoder)? },
            kind::REMARK => Record::Remark(Remark::take(decoder)?),
            kind::WATERMARK => Record::Watermark { time_ns: u64::take(decoder)? },
            kind => match Event::take(kind, decoder)? {
                Some(event) => Record::Event(event),
                None => Record::Unknown { kind },
            },
        })
    }
}
