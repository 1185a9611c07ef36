//! What a trace can tell.
//!
//! Sizes are in bytes, times in nanoseconds, devices numbered from 0. Records about one device are in the order in
//! which things happened; those of several devices need not be.
//!
//! Invariant: a kind, once given a meaning, keeps it. `docs/trace_format.md` lists the kinds.

use crate::error::Malformed;
use crate::varint;
use crate::wire::{Decoder, Encoder, Ids, Wire, wire_enum, wire_struct};

macro_rules! id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl Wire<'_> for $name {
            #[inline]
            fn put(&self, encoder: &mut Encoder<'_>) {
                self.0.put(encoder);
            }

            #[inline]
            fn take(decoder: &mut Decoder<'_, '_>) -> Result<Self, Malformed> {
                u32::take(decoder).map($name)
            }
        }
    };
}

id!(
    /// Names a text that a [`Record::String`] gives. Whoever writes the trace picks the numbers; small ones are short.
    StringId
);
id!(
    /// Names a frame that a [`Record::Frame`] gives.
    FrameId
);
id!(
    /// Names a stack, which is a site of allocations, that a [`Record::Stack`] gives.
    StackId
);

/// An address of device memory, as the program saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl From<u64> for Address {
    fn from(address: u64) -> Self {
        Address(address)
    }
}

impl Wire<'_> for Address {
    #[inline]
    fn put(&self, encoder: &mut Encoder<'_>) {
        let difference = self.0.wrapping_sub(encoder.previous.address) as i64;
        encoder.previous.address = self.0;
        varint::put(encoder.out, varint::zigzag(difference));
    }

    #[inline]
    fn take(decoder: &mut Decoder<'_, '_>) -> Result<Self, Malformed> {
        let difference = varint::unzigzag(varint::take(&mut decoder.bytes)?);
        decoder.previous.address = decoder.previous.address.wrapping_add(difference as u64);
        Ok(Address(decoder.previous.address))
    }
}

wire_enum! {
    /// What times count from.
    ClockOrigin {
        /// 1970 (UTC).
        Unix = 1,
        /// Some moment of this machine; only differences mean anything.
        Monotonic = 2,
        /// They are numbers of steps, not nanoseconds.
        Steps = 3,
    }
}

wire_enum! {
    /// What a region of a device holds.
    RegionUse {
        /// Tensors.
        Tensor = 0,
        /// Programs.
        Program = 1,
    }
}

wire_enum! {
    /// What a block is at one moment.
    BlockState {
        /// Free.
        Free = 0,
        /// In use.
        Live = 1,
        /// Freed by the program, while the device may still use it.
        PendingFree = 2,
    }
}

wire_enum! {
    /// What became of a request under pressure.
    PressureEnd {
        /// It was served.
        Served = 1,
        /// It failed.
        OutOfMemory = 2,
    }
}

wire_struct! {
    /// Who wrote the trace, and from what.
    Source<'a> {
        /// The program that recorded or imported.
        producer: &'a str,
        /// What was recorded: a live process, a snapshot of PyTorch, a log, …
        kind: &'a str,
        /// Its name: a file, without its folder, or a process.
        name: &'a str,
    }
}

wire_struct! {
    /// A device, before its other records.
    Device<'a> {
        /// Its number.
        device: u32,
        /// What it is called, if known.
        name: Option<&'a str>,
        /// How much memory it has, if known.
        capacity_bytes: Option<u64>,
    }
}

wire_struct! {
    /// One region of the layout of a device, acquired or not.
    LayoutRegion {
        /// The device.
        device: u32,
        /// Its place in the layout.
        slot: u32,
        /// The memory channel it lies in.
        domain: u32,
        /// What it holds.
        holds: RegionUse,
        /// Its size.
        size_bytes: u64,
    }
}

wire_struct! {
    /// A line of a stack.
    Frame {
        /// How others refer to it.
        id: FrameId,
        /// The function.
        function: StringId,
        /// The file.
        file: StringId,
        /// The line in the file; 0 if not known.
        line: u32,
    }
}

wire_struct! {
    /// How complete the events of a device are.
    History {
        /// The device.
        device: u32,
        /// Whether events were recorded at all.
        recorded: bool,
        /// Reserved when recording began, if known.
        reserved_before_bytes: Option<u64>,
        /// Events that do not fit the others.
        contradictions: u64,
        /// Blocks that were freed by the program before recording began, and completed in it, and the like: those
        /// of the baseline that an event frees.
        baseline_freed: u64,
    }
}

wire_struct! {
    /// A region as it was when the snapshot was taken. Its blocks follow, in the order of addresses.
    RegionState {
        /// The device.
        device: u32,
        /// Where it begins.
        address: Address,
        /// Its size.
        size_bytes: u64,
        /// The stream that it belongs to.
        stream: u64,
        /// The private pool, two numbers; both 0 for the common one.
        pool: (u64, u64),
        /// Whether it holds small blocks only.
        small: bool,
        /// Whether it grows in place.
        expandable: bool,
        /// What the writer says is allocated in it, rounded sizes.
        allocated_bytes: Option<u64>,
        /// What the writer says is allocated or waits for the device.
        active_bytes: Option<u64>,
        /// Who acquired it.
        stack: Option<StackId>,
    }
}

wire_struct! {
    /// A block of the region before it, behind the block before it.
    BlockSnapshot {
        /// Its size, rounded.
        size_bytes: u64,
        /// What was asked for.
        requested_bytes: u64,
        /// What it is.
        state: BlockState,
        /// Who allocated it, or did last.
        stack: Option<StackId>,
    }
}

impl Wire<'_> for (u64, u64) {
    fn put(&self, encoder: &mut Encoder<'_>) {
        self.0.put(encoder);
        self.1.put(encoder);
    }

    fn take(decoder: &mut Decoder<'_, '_>) -> Result<Self, Malformed> {
        Ok((u64::take(decoder)?, u64::take(decoder)?))
    }
}

/// Something that happened on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The device.
    pub device: u32,
    /// When, on the clock of [`Record::Clock`].
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

    #[inline]
    fn take(kind: u64, decoder: &mut Decoder<'_, '_>) -> Result<Option<Event>, Malformed> {
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
            fn kind(&self) -> u64 {
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
            Record::Event(event) => event.action.kind(),
            Record::Unknown { kind } => *kind,
        }
    }

    #[inline]
    pub(crate) fn put(&self, encoder: &mut Encoder<'_>) {
        match self {
            Record::Event(event) => {
                event.put_circumstances(encoder);
                event.action.put(encoder);
            }
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
            kind => match Event::take(kind, decoder)? {
                Some(event) => Record::Event(event),
                None => Record::Unknown { kind },
            },
        })
    }
}
