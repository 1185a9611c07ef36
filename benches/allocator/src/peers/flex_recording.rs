//! `FlexAllocator` with its history on: every pair leaves two events, without stacks.

use flex::history::HistoryOptions;

use super::Peer;
use super::flex_locked::FlexLocked;

/// Events kept: far fewer than a trace has, so that the ring overwrites as it does in a long program.
const MAX_ENTRIES: usize = 1 << 16;

/// The allocator of [`FlexLocked`], recording.
pub(crate) struct FlexRecording(FlexLocked);

impl Peer for FlexRecording {
    const NAME: &'static str = "FlexAllocator (recording)";
    type Handle = <FlexLocked as Peer>::Handle;

    fn new(capacity_units: u64) -> Self {
        let recording = FlexLocked::new(capacity_units);
        let options = HistoryOptions { max_entries: MAX_ENTRIES, ..HistoryOptions::default() };
        recording.allocator().record_history(Some(options)).expect("memory for a small history");
        FlexRecording(recording)
    }

    #[inline]
    fn allocate(&mut self, size_units: u32) -> Option<Self::Handle> {
        self.0.allocate(size_units)
    }

    #[inline]
    fn free(&mut self, handle: Self::Handle) {
        self.0.free(handle);
    }

    fn offset_units(&self, handle: &Self::Handle) -> u64 {
        self.0.offset_units(handle)
    }
}
