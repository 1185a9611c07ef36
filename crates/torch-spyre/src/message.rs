//! The out-of-memory text. Worded close to CUDA's, whose words people know and search for.

use std::fmt::Write;

use flex::OutOfMemory;
use flex::pressure::{ReclaimReport, SkipReason};

/// What a user reads when an allocation on `device` failed.
pub(crate) fn out_of_memory(error: &OutOfMemory, device: usize) -> String {
    let mut text = format!(
        "spyre out of memory. Tried to allocate {}. Device {device} has a total capacity of {} of which {} is free, \
         the largest free block {}.",
        human(error.requested_bytes),
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

/// Only those that apply.
fn hints(text: &mut String, error: &OutOfMemory) {
    let reclaim = &error.reclaim;
    if error.free_bytes >= error.requested_bytes {
        text.push_str(" The memory is fragmented: enough is free, but no block fits.");
    }
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
    if let Some(dead_cycles) = &reclaim.hints.dead_cycles {
        let _ = write!(text, " {dead_cycles}");
    }
    if reclaim.hints.frozen_objects {
        text.push_str(" Objects frozen by gc.freeze() are never collected; see gc.unfreeze().");
    }
    if reclaim.hints.live_traceback {
        text.push_str(" A live traceback or exception may hold tensors.");
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
