//! Why there was no memory, in sentences for the out-of-memory error: only those that apply.
//!
//! Found on the failing thread when the failure is decided, with no lock held and without the interpreter. What the
//! interpreter had to say is in the error already.

use std::panic::{AssertUnwindSafe, catch_unwind};

use flex::OutOfMemory;
use flex::pressure::Hints;

use crate::holders::{self, Holder, Survey, own_frame, words};
use crate::interpreter::stacks;
use crate::message::human;
use crate::runtime::DeviceMemory;

/// How many holders are named.
const NAMED_HOLDERS: usize = 3;

/// A leak is named if it holds at least this part of what is live.
const LEAK_PART: u64 = 4;

/// A holder is named if it holds at least this part of what is live.
const HOLDER_PART: u64 = 20;

/// How much larger than every live block a request is that is said to be the cause.
const GIANT_FACTOR: u64 = 8;

/// What to do to learn more.
const RECORD: &str = "torch.spyre.memory._record_memory_history()";

/// The causes of a failure on a device. Never fails: an error must come in any case.
pub(crate) fn of(error: &OutOfMemory, device: &DeviceMemory) -> Vec<String> {
    let found = catch_unwind(AssertUnwindSafe(|| {
        let survey = holders::survey(device);
        let mut causes = Vec::new();
        causes.extend(held(&error.reclaim.hints));
        if let Some(survey) = &survey {
            causes.extend(of_blocks(error, survey));
        }
        causes
    }));
    found.unwrap_or_default()
}

/// What the interpreter said.
fn held(hints: &Hints) -> Vec<String> {
    let mut causes: Vec<String> = [&hints.dead_cycles, &hints.frozen, &hints.traceback]
        .into_iter()
        .flatten()
        .map(|text| text.to_string())
        .collect();
    if hints.frozen_objects {
        causes.push("Objects frozen by gc.freeze() are never collected; see gc.unfreeze().".into());
    }
    if hints.live_traceback {
        causes.push("A live traceback or exception may hold tensors.".into());
    }
    causes
}

/// What the live blocks show.
fn of_blocks(error: &OutOfMemory, survey: &Survey) -> Vec<String> {
    let fragmented = error.free_bytes >= error.requested_bytes;
    let mut causes = Vec::new();
    if fragmented {
        causes.push(fragmentation(error, survey));
    } else if is_giant(error, survey) {
        causes.push(giant(error, survey));
    }
    let leak = survey.holders.first().filter(|holder| holder.bytes * LEAK_PART >= survey.live_bytes);
    if !fragmented && let Some(text) = leak.and_then(|holder| growth(survey, holder)) {
        causes.push(text);
    }
    causes.extend(largest_holders(survey));
    if !survey.recorded && causes.is_empty() && error.reclaim.hints == Hints::default() {
        causes.push(format!("To see where the memory went, record history: {RECORD}."));
    }
    causes
}

fn fragmentation(error: &OutOfMemory, survey: &Survey) -> String {
    let pieces = survey.free_blocks();
    let mut text = "The memory is fragmented: enough is free, but no block fits.".to_owned();
    if pieces > 1 {
        text += &format!(" It is in {pieces} pieces.");
    }
    let Some(blocker) = survey.blocker(error.requested_bytes) else { return text };
    let whose = match own_frame(blocker.site) {
        Some(place) => format!(", allocated at {},", words(&place)),
        None => String::new(),
    };
    let (before, behind) = (blocker.free_before_bytes, blocker.free_behind_bytes);
    let bytes = human(blocker.bytes);
    text += &if before > 0 && behind > 0 {
        format!(
            " A block of {bytes}{whose} lies between free ones of {} and {}.",
            human(before),
            human(behind)
        )
    } else {
        format!(" A block of {bytes}{whose} lies beside a free one of {}.", human(before + behind))
    };
    if whose.is_empty() && !survey.recorded {
        text += &format!(" To see whose it is, record history: {RECORD}.");
    }
    text
}

/// Whether the request is out of proportion to the device, or to what lives on it.
fn is_giant(error: &OutOfMemory, survey: &Survey) -> bool {
    let requested = error.requested_bytes;
    requested >= error.capacity_bytes / 2
        || requested >= error.capacity_bytes / 4 && requested >= survey.largest_block_bytes * GIANT_FACTOR
}

fn giant(error: &OutOfMemory, survey: &Survey) -> String {
    let percent = error.requested_bytes * 100 / error.capacity_bytes.max(1);
    let largest = survey.largest_block_bytes;
    let times = match error.requested_bytes.checked_div(largest) {
        Some(times) if times >= 2 => format!(", {times} times the largest live block of {}", human(largest)),
        _ => String::new(),
    };
    let from =
        own_frame(stacks::capture()).map(|place| format!(", at {}", words(&place))).unwrap_or_default();
    format!("The request alone is {percent} % of the device{times}{from}: a smaller batch needs less.")
}

fn growth(survey: &Survey, holder: &Holder) -> Option<String> {
    let growth = survey.growth(holder)?;
    Some(format!(
        "{} in {} blocks allocated at {} came steadily within {:.1} s, {} per second, and is still alive: something may \
         keep a result of each step.",
        human(holder.bytes),
        holder.blocks,
        words(holder.place.as_ref()?),
        growth.over.as_secs_f64(),
        human(growth.bytes_per_second),
    ))
}

fn largest_holders(survey: &Survey) -> Option<String> {
    let known = survey.holders.iter().filter(|holder| holder.bytes * HOLDER_PART >= survey.live_bytes);
    let named: Vec<String> = known
        .filter_map(|holder| {
            let blocks = if holder.blocks == 1 { "block" } else { "blocks" };
            let place = words(holder.place.as_ref()?);
            Some(format!("{} in {} {blocks} at {place}", human(holder.bytes), holder.blocks))
        })
        .take(NAMED_HOLDERS)
        .collect();
    (!named.is_empty()).then(|| format!("Largest holders: {}.", named.join("; ")))
}
