//! The out-of-memory text. Worded close to CUDA's, whose words people know and search for.

use std::fmt::Write;

use flex::OutOfMemory;
use flex::pressure::{ReclaimReport, SkipReason};

use crate::causes;
use crate::runtime::DeviceMemory;

/// What a user reads when an allocation on `device` failed.
pub(crate) fn out_of_memory(error: &OutOfMemory, device: &DeviceMemory) -> String {
    let mut text = format!(
        "spyre out of memory. Tried to allocate {}. Device {} has a total capacity of {} of which {} is free, \
         the largest free block {}.",
        human(error.requested_bytes),
        device.index,
        human(error.capacity_bytes),
        human(error.free_bytes),
        human(error.largest_free_bytes)
    );
    if !error.possible {
        text.push_str(&above(error));
        return text;
    }
    text.push(' ');
    text.push_str(&tried(&error.reclaim));
    hints(&mut text, error);
    for cause in causes::of(error, device) {
        let _ = write!(text, " {cause}");
    }
    text
}

/// What keeps a request from ever being served.
fn above(error: &OutOfMemory) -> String {
    let (limit, what) = match error.limit_bytes {
        Some(limit) if error.requested_bytes <= error.largest_region_bytes => {
            (limit, "the memory fraction set for the device")
        }
        _ => (error.largest_region_bytes, "the largest region of the device"),
    };
    let excess = match error.requested_bytes.checked_sub(limit) {
        Some(excess) if human(error.requested_bytes) == human(limit) => format!(" {excess} bytes"),
        _ => String::new(),
    };
    format!(" The request is{excess} above {}, {what}; no collection could help.", human(limit))
}

fn tried(reclaim: &ReclaimReport) -> String {
    if reclaim.young_collections + reclaim.full_collections > 0 {
        return format!(
            "Python GC ran: {} young, {} full; {} reclaimed in {} ms.",
            reclaim.young_collections,
            reclaim.full_collections,
            human(reclaim.reclaimed_bytes),
            reclaim.collection_time.as_millis()
        );
    }
    let reason = match reclaim.skipped {
        Some(SkipReason::Policy) => {
            "the GC policy is off; see torch.spyre.memory.set_pressure_policy(gc=\"always\")"
        }
        Some(SkipReason::Disabled) => "gc is disabled and the GC policy is respect_disable",
        Some(SkipReason::Reentrant) => {
            "this thread is already inside a collection or handling memory pressure"
        }
        Some(SkipReason::Finalizing) => "the interpreter is shutting down",
        Some(SkipReason::Timeout) => "no collection could run before the deadline",
        Some(SkipReason::Interpreter) => "this thread belongs to another interpreter",
        _ => "the collector is not available",
    };
    format!("Python GC did not run: {reason}.")
}

/// What was in the way of trying more; only what applies.
fn hints(text: &mut String, error: &OutOfMemory) {
    let reclaim = &error.reclaim;
    if let Some(limit) = error.limit_bytes {
        let _ = write!(text, " The memory fraction set for the device allows {}.", human(limit));
    }
    if reclaim.hooks_timed_out {
        text.push_str(
            " The pressure hooks took until the deadline; see gc_timeout_ms in TORCH_SPYRE_ALLOC_CONF.",
        );
    }
    if reclaim.timed_out {
        text.push_str(" A collection timed out; see gc_timeout_ms in TORCH_SPYRE_ALLOC_CONF.");
    }
}

/// A size as torch prints it: two decimals from KiB on.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match UNITS.iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => format!("{:.2} {unit}", bytes as f64 / f64::from(1u32 << shift)),
        None => format!("{bytes} bytes"),
    }
}
