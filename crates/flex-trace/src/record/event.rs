//! Something that happened: its circumstances, which all events begin with, and the action.
//!
//! Times and addresses are differences from the ones before in the frame.

use super::values::{Address, PressureEnd, StackId, StringId};
use crate::error::Malformed;
use crate::varint;
use crate::wire::{Decoder, Encoder, Wire};

/// Something that happened on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The device.
    pub device: u32,
    /// When, on the clock of [`Record::Clock`](super::Record::Clock).
    pub time_ns: Option<u64>,
    /// The thread that did it, as the operating system numbers them.
    pub thread: Option<u64>,
    /// Where in the program.
    pub stack: Option<StackId>,
    /// What.
    pub action: Action,
}

impl Event {
    /// An event of which nothing but the action is known.
    pub const fn new(device: u32, action: Action) -> Event {
        Event { device, time_ns: None, thread: None, stack: None, action }
    }
}

const HAS_TIME: u64 = 1;
const HAS_THREAD: u64 = 2;
const HAS_STACK: u64 = 4;

impl Event {
    #[inline]
    pub(super) fn put(&self, encoder: &mut Encoder<'_>) {
        self.put_circumstances(encoder);
        self.action.put(encoder);
    }

    #[inline]
    fn put_circumstances(&self, encoder: &mut Encoder<'_>) {
        let flag = |is_there, flag| if is_there { flag } else { 0 };
        let flags = flag(self.time_ns.is_some(), HAS_TIME)
            | flag(self.thread.is_some(), HAS_THREAD)
            | flag(self.stack.is_some(), HAS_STACK);
        flags.put(encoder);
        self.device.put(encoder);
        if let Some(time_ns) = self.time_ns {
            let difference = time_ns.wrapping_sub(encoder.previous.time_ns) as i64;
            encoder.previous.time_ns = time_ns;
            varint::put(encoder.out, varint::zigzag(difference));
        }
        if let Some(thread) = self.thread {
            thread.put(encoder);
        }
        if let Some(stack) = self.stack {
            stack.put(encoder);
        }
    }

    /// None if the kind is not that of an event.
    #[inline]
    pub(super) fn take(kind: u64, decoder: &mut Decoder<'_, '_>) -> Result<Option<Event>, Malformed> {
        if !Action::is_known(kind) {
            return Ok(None);
        }
        let flags = u64::take(decoder)?;
        let device = u32::take(decoder)?;
        let mut event = Event::new(device, Action::SnapshotTaken { reserved_bytes: None });
        if flags & HAS_TIME != 0 {
            let difference = varint::unzigzag(u64::take(decoder)?);
            decoder.previous.time_ns = decoder.previous.time_ns.wrapping_add(difference as u64);
            event.time_ns = Some(decoder.previous.time_ns);
        }
        if flags & HAS_THREAD != 0 {
            event.thread = Some(u64::take(decoder)?);
        }
        if flags & HAS_STACK != 0 {
            event.stack = Some(StackId::take(decoder)?);
        }
        event.action = Action::take(kind, decoder)?;
        Ok(Some(event))
    }
}

macro_rules! actions {
    ($($(#[$meta:meta])* $name:ident = $kind:literal {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    },)*) => {
        /// What happened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Action {
            $($(#[$meta])* $name { $($(#[$field_meta])* $field: $type,)* },)*
        }

        impl Action {
            pub(super) fn kind(&self) -> u64 {
                match self { $(Action::$name { .. } => $kind,)* }
            }

            fn is_known(kind: u64) -> bool {
                match kind {
                    $($kind => true,)*
                    _ => false,
                }
            }

            #[inline]
            fn put(&self, encoder: &mut Encoder<'_>) {
                match self { $(Action::$name { $($field,)* } => { $($field.put(encoder);)* })* }
            }

            #[inline]
            fn take(kind: u64, decoder: &mut Decoder<'_, '_>) -> Result<Action, Malformed> {
                match kind {
                    $($kind => Ok(Action::$name { $($field: Wire::take(decoder)?,)* }),)*
                    other => Err(Malformed::UnknownVariant(other)),
                }
            }
        }
    };
}

actions! {
    /// A block was allocated.
    Allocated = 32 {
        /// Where.
        address: Address,
        /// What was asked for.
        size_bytes: u64,
        /// What it occupies, if known.
        rounded_bytes: Option<u64>,
        /// The stream that asked; 0 where there are none.
        stream: u64,
    },
    /// The program gave a block back; the device may still use it.
    FreeRequested = 33 {
        /// Where.
        address: Address,
        /// What was asked for when it was allocated.
        size_bytes: u64,
    },
    /// A block is free.
    Freed = 34 {
        /// Where.
        address: Address,
        /// What was asked for when it was allocated.
        size_bytes: u64,
    },
    /// A region, or more of one, was acquired from the device.
    RegionAcquired = 35 {
        /// Where.
        address: Address,
        /// How much.
        size_bytes: u64,
        /// The stream that it is for.
        stream: u64,
        /// Whether it may join the region before it: mapped into one that grows.
        mapped: bool,
    },
    /// A region, or a part of one, went back to the device.
    RegionReleased = 36 {
        /// Where.
        address: Address,
        /// How much.
        size_bytes: u64,
        /// Whether it was unmapped from a region that may go on.
        mapped: bool,
    },
    /// A request found no memory, and something is done about it.
    PressureBegan = 37 {
        /// Numbers the events of pressure of a process.
        pressure: u64,
        /// What was asked for.
        requested_bytes: u64,
    },
    /// What was done about it came to an end.
    PressureEnded = 38 {
        /// As in its beginning.
        pressure: u64,
        /// How.
        end: PressureEnd,
        /// What was tried: a sum of the constants of [`tried`].
        tried: u64,
        /// Bytes that became free on the thread while it tried.
        reclaimed_bytes: u64,
        /// How long it took.
        duration_ns: u64,
    },
    /// A collection of the interpreter ended.
    Collected = 39 {
        /// The oldest generation that it looked at.
        generation: u32,
        /// Objects that it found unreachable.
        objects: u64,
        /// Bytes of the device that became free in it.
        reclaimed_bytes: u64,
        /// How long it took.
        duration_ns: u64,
        /// The pressure that it was for, if any.
        pressure: Option<u64>,
    },
    /// Part of what the collection before it made free. The event's stack is where the blocks were allocated.
    Reclaimed = 40 {
        /// The type of the objects that held it, if known.
        type_name: Option<StringId>,
        /// Bytes.
        bytes: u64,
        /// Blocks.
        blocks: u64,
    },
    /// A request failed.
    OutOfMemory = 41 {
        /// What was asked for.
        requested_bytes: u64,
        /// What the device had free.
        free_bytes: Option<u64>,
        /// The largest free block.
        largest_free_bytes: Option<u64>,
        /// What the device has in all.
        capacity_bytes: Option<u64>,
    },
    /// A snapshot was taken here.
    SnapshotTaken = 42 {
        /// Reserved then.
        reserved_bytes: Option<u64>,
    },
    /// Events are missing here.
    Lost = 43 {
        /// How many; 0 if that is not known.
        events: u64,
    },
    /// A block that was live before recording began; before all events of the device.
    Baseline = 44 {
        /// Where.
        address: Address,
        /// What was asked for.
        size_bytes: u64,
        /// The stream it belongs to.
        stream: u64,
    },
    /// Something that no other action stands for.
    Other = 45 {
        /// What its source calls it.
        name: StringId,
        /// Where, or 0.
        address: Address,
        /// How much, or 0.
        size_bytes: u64,
    },
    /// Something that the program said about itself: a phase that begins or ends.
    Annotation = 46 {
        /// What it is called.
        name: StringId,
        /// Whether it begins; else it ends.
        begins: bool,
    },
}

/// What can be tried under pressure, as bits of [`Action::PressureEnded`].
pub mod tried {
    /// Frees that were under way.
    pub const PENDING_FREES: u64 = 1;
    /// A collection of the young generations.
    pub const YOUNG_COLLECTION: u64 = 2;
    /// A full collection.
    pub const FULL_COLLECTION: u64 = 4;
    /// A collection that another thread ran.
    pub const OTHERS_COLLECTION: u64 = 8;
    /// The program's hooks.
    pub const HOOKS: u64 = 16;
    /// Cached memory was given back to the device.
    pub const RELEASED_CACHE: u64 = 32;
}
