//! What a trace says beside its events: where it comes from, the devices, the frames of stacks, and the memory at the
//! end. Each struct is the body of a record; its fields are in the order in which they are written.

use super::values::{Address, BlockState, FrameId, RegionUse, StackId, StringId};
use crate::wire::wire_struct;

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
    /// What an importer has to say of its file, and no figure tells.
    Remark<'a> {
        /// The device that it is about, if it is about one.
        device: Option<u32>,
        /// Whether the file contradicts itself there; else something was passed over.
        impossible: bool,
        /// The remark, a sentence without its full stop.
        text: &'a str,
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
