//! Bytes that may be a memory file of any kind: an error, or a trace that can be looked at and played.

use flexmem::TraceFile;
use flexmem::info::{Options, info};
use flexmem::replay::{CachingAllocator, FlexReplay, Layout, Operations, play};

/// Runs one input.
///
/// # Panics
/// If something panics: a figure that overflows, an index that is not there, two live blocks that overlap.
pub fn run(input: &[u8]) {
    // An error is a fine answer.
    let Ok(mut trace) = TraceFile::import_again(|| Ok(input), "input", || false) else { return };
    let options = Options { device_memory_bytes: Some(1 << 30), top: 3 };
    let info = info(&mut trace, &options).expect("a temporary file does not fail");
    assert!(info.devices.len() <= input.len() + 1);
    for (_, operations) in Operations::of(&mut trace).expect("a temporary file does not fail") {
        let layout = Layout { regions: 2 };
        let mut flex = FlexReplay::new(1 << 20, layout, Default::default()).expect("a device that can be");
        play(&operations, &mut flex);
        play(&operations, &mut CachingAllocator::with_segments(64 << 20, operations.segments()));
    }
}
