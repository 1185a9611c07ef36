//! Records of all kinds, and a file that grows while it is read.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::rc::Rc;

use flex_trace::record::{
    BlockSnapshot, BlockState, ClockOrigin, Device, Frame, History, LayoutRegion, PressureEnd, RegionState,
    RegionUse, Remark, Source,
};
use flex_trace::{Action, Event, FrameId, Record, StackId, StringId};
use proptest::prelude::*;

/// A record that owns its texts.
#[derive(Debug, Clone)]
pub(crate) struct Owned {
    number: u8,
    texts: [String; 3],
    ids: Vec<u32>,
    values: [u64; 6],
    small: u32,
    optional: Option<u64>,
    stack: Option<u32>,
    flag: bool,
}

impl Owned {
    pub(crate) fn with<T>(&self, body: impl FnOnce(&Record<'_>) -> T) -> T {
        body(&self.record())
    }

    fn record(&self) -> Record<'_> {
        let [a, b, c] = &self.texts;
        let (small, optional, flag) = (self.small, self.optional, self.flag);
        let stack = self.stack.map(StackId);
        let [v0, v1, v2, v3, ..] = self.values;
        match self.number {
            0 => Record::Source(Source { producer: a, kind: b, name: c }),
            1 => Record::Clock(if flag { ClockOrigin::Unix } else { ClockOrigin::Steps }),
            2 => Record::Device(Device {
                device: small,
                name: flag.then_some(a.as_str()),
                capacity_bytes: optional,
            }),
            3 => {
                let holds = if flag { RegionUse::Tensor } else { RegionUse::Program };
                Record::LayoutRegion(LayoutRegion {
                    device: small,
                    slot: small / 2,
                    domain: small / 3,
                    holds,
                    size_bytes: v0,
                })
            }
            4 => Record::Setting { key: a, value: b },
            5 => Record::String { id: StringId(small), text: a },
            6 => Record::Frame(Frame {
                id: FrameId(small),
                function: StringId(small / 2),
                file: StringId(small / 3),
                line: small,
            }),
            7 => Record::Stack { id: StackId(small), frames: self.ids.as_slice().into() },
            8 => Record::History(History {
                device: small,
                recorded: flag,
                reserved_before_bytes: optional,
                contradictions: v0,
                baseline_freed: v1,
            }),
            9 => Record::RegionState(RegionState {
                device: small,
                address: v0.into(),
                size_bytes: v1,
                stream: v2,
                pool: (v3, v0),
                small: flag,
                expandable: !flag,
                allocated_bytes: optional,
                active_bytes: None,
                stack,
            }),
            10 => {
                let state = [BlockState::Free, BlockState::Live, BlockState::PendingFree][small as usize % 3];
                Record::Block(BlockSnapshot { size_bytes: v0, requested_bytes: v1, state, stack })
            }
            26 => Record::Remark(Remark { device: self.stack, impossible: flag, text: a }),
            11 => Record::Watermark { time_ns: v0 },
            number => Record::Event(Event {
                device: small,
                time_ns: optional,
                thread: flag.then_some(v3),
                stack,
                action: self.action(number),
            }),
        }
    }

    fn action(&self, number: u8) -> Action {
        let (optional, mapped, begins) = (self.optional, self.flag, self.flag);
        let [v0, v1, v2, v3, v4, v5] = self.values;
        let (address, size_bytes, requested_bytes) = (v0.into(), v1, v1);
        match number {
            12 => Action::Allocated { address, size_bytes, rounded_bytes: optional, stream: v2 },
            13 => Action::FreeRequested { address, size_bytes },
            14 => Action::Freed { address, size_bytes },
            15 => Action::RegionAcquired { address, size_bytes, stream: v2, mapped },
            16 => Action::RegionReleased { address, size_bytes, mapped },
            17 => Action::PressureBegan { pressure: v0, requested_bytes },
            18 => {
                let end = if begins { PressureEnd::Served } else { PressureEnd::OutOfMemory };
                Action::PressureEnded { pressure: v0, end, tried: v3, reclaimed_bytes: v4, duration_ns: v5 }
            }
            19 => Action::Collected {
                generation: self.small,
                objects: v0,
                reclaimed_bytes: v1,
                duration_ns: v2,
                pressure: optional,
            },
            20 => Action::Reclaimed { type_name: self.stack.map(StringId), bytes: v0, blocks: v1 },
            21 => Action::OutOfMemory {
                requested_bytes,
                free_bytes: optional,
                largest_free_bytes: None,
                capacity_bytes: optional,
            },
            22 => Action::SnapshotTaken { reserved_bytes: optional },
            23 => Action::Lost { events: v0 },
            24 => Action::Baseline { address, size_bytes, stream: v2 },
            25 => Action::Other { name: StringId(self.small), address, size_bytes },
            _ => Action::Annotation { name: StringId(self.small), begins },
        }
    }
}

fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0_u64..1000, Just(u64::MAX)]
}

fn any_record() -> impl Strategy<Value = Owned> {
    let values = prop::array::uniform6(any_number());
    let texts = prop::array::uniform3(".{0,20}");
    let ids = prop::collection::vec(any::<u32>(), 0..80);
    let rest = (any::<u32>(), prop::option::of(any_number()), prop::option::of(any::<u32>()), any::<bool>());
    (0_u8..27, texts, ids, values, rest).prop_map(|(number, texts, ids, values, rest)| {
        let (small, optional, stack, flag) = rest;
        Owned { number, texts, ids, values, small, optional, stack, flag }
    })
}

pub(crate) fn any_records() -> impl Strategy<Value = Vec<Owned>> {
    prop::collection::vec(any_record(), 0..40)
}

/// A file in memory: what one handle appends, another one reads later.
#[derive(Debug, Clone, Default)]
pub(crate) struct Growing {
    bytes: Rc<RefCell<Vec<u8>>>,
    position: usize,
}

impl Growing {
    pub(crate) fn append(&self, bytes: &[u8]) {
        self.bytes.borrow_mut().extend_from_slice(bytes);
    }
}

impl Write for Growing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Growing {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let bytes = self.bytes.borrow();
        let read = (&bytes[self.position..]).read(out)?;
        self.position += read;
        Ok(read)
    }
}
