//! `flexmem info`: the answers as text, the most wanted first.

use std::process::ExitCode;

use super::output::{print, print_json};
use super::text::{Lines, count, duration, number, percent, size};
use super::{Common, open};
use crate::info::answers::{
    Course, DeviceInfo, HistoryState, Info, MemoryInfo, OutOfMemoryInfo, PinnedSegment, SourceInfo,
};
use crate::info::{Options, info};
use crate::trace_file::file_name;

/// Answer the first questions about a memory file.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// How much memory a device has, such as 24GiB: figures above it are flagged
    #[arg(long, value_name = "SIZE", value_parser = super::size::parse)]
    device_memory: Option<u64>,
    /// How many holders, blocks, segments, failures and the like are listed; how many are left out is said
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut trace = open(&arguments.common.file)?;
    let options = Options { device_memory_bytes: arguments.device_memory, top: arguments.top };
    let mut info = info(&mut trace, &options)?;
    // A trace need not say where it comes from.
    let SourceInfo { kind, name } = &mut info.source;
    if kind.is_empty() && name.is_empty() {
        (*kind, *name) = (trace.kind().name().to_owned(), file_name(&arguments.common.file));
    }
    if arguments.common.json {
        print_json(&info)?;
    } else {
        print(as_text(&info).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_text(info: &Info) -> String {
    let mut lines = Lines::default();
    let devices = count(info.devices.len() as u64, "device");
    lines.plain(format_args!("{}: {}, {devices}", info.source.name, info.source.kind));
    if info.growing {
        lines.plain("still being written: this is how far it was when it was read");
    }
    if info.unknown_records > 0 {
        let records = count(info.unknown_records, "record");
        lines.plain(format_args!(
            "{records} of kinds that this flexmem does not know: a newer program wrote the file"
        ));
    }
    let on = info.settings_on();
    if !on.is_empty() {
        lines.plain(format_args!("settings on: {}", on.join(", ")));
    }
    for remark in &info.remarks {
        lines.plain(format_args!("note: {remark}"));
    }
    let (idle, busy): (Vec<_>, Vec<_>) = info.devices.iter().partition(|device| device.is_idle());
    for device in busy {
        lines.plain("");
        describe(device, &mut lines);
    }
    if !idle.is_empty() {
        let numbers: Vec<_> = idle.iter().map(|device| device.device.to_string()).collect();
        lines.plain("");
        lines.plain(format_args!("nothing happened on device {}", numbers.join(", ")));
    }
    if !info.advice.is_empty() {
        lines.plain("");
    }
    for advice in &info.advice {
        lines.plain(format_args!("→ {advice}"));
    }
    lines.into_text()
}

fn describe(device: &DeviceInfo, lines: &mut Lines) {
    let name = device.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    let capacity = device.capacity_bytes.map(|bytes| format!(", {}", size(bytes))).unwrap_or_default();
    lines.plain(format_args!("device {}{name}{capacity}", device.device));
    for impossible in &device.impossible {
        lines.add("impossible", impossible);
    }
    let label = if device.impossible.is_empty() { "impossible" } else { "" };
    lines.left_out(label, device.impossible_left_out, "contradiction");
    for failure in &device.out_of_memory {
        out_of_memory(failure, device, lines);
    }
    let label = if device.out_of_memory.is_empty() { "out of memory" } else { "" };
    lines.left_out(label, device.out_of_memory_left_out, "failed request");
    history(device, lines);
    if let Some(peak) = &device.peak {
        let at_least = if peak.is_lower_bound { "at least " } else { "" };
        let reserved = peak.reserved_bytes.map(|bytes| format!(", {} reserved then", size(bytes)));
        let when = if peak.at_event == 0 {
            "before recording began".to_owned()
        } else {
            format!("at event {}", number(peak.at_event))
        };
        lines.add(
            "peak",
            format_args!("{at_least}{} live, {when}{}", size(peak.live_bytes), reserved.unwrap_or_default()),
        );
        lines.holders("  held by", &peak.holders);
    }
    course(&device.course, lines);
    if device.pressure.events > 0 {
        let pressure = device.pressure;
        lines.add(
            "pressure",
            format_args!(
                "{}, {} rescued, {} reclaimed in {}",
                count(pressure.events, "event"),
                number(pressure.rescued),
                size(pressure.reclaimed_bytes),
                duration(pressure.duration_ns)
            ),
        );
    }
    if let Some(memory) = &device.memory {
        state(memory, lines);
    }
    lines.holders("held by", &device.holders);
}

fn out_of_memory(failure: &OutOfMemoryInfo, device: &DeviceInfo, lines: &mut Lines) {
    let free = failure.device_free_bytes.map(|bytes| format!(", {} free", size(bytes))).unwrap_or_default();
    let largest = failure.largest_free_bytes.map(|bytes| format!(", {} in one piece", size(bytes)));
    let largest = largest.unwrap_or_default();
    let (requested, event) = (size(failure.requested_bytes), number(failure.at_event));
    lines.add("out of memory", format_args!("tried {requested}{free}{largest}, at event {event}"));
    let at_least = if device.history.state == HistoryState::Whole { "" } else { "at least " };
    let live = format!("{at_least}{} live", size(failure.live_bytes));
    let cached = failure.cached_bytes.map(|bytes| format!(", {} cached", size(bytes))).unwrap_or_default();
    lines.add("", format_args!("{live}{cached}"));
    let (free, emptied) = match failure.cached_bytes {
        Some(_) => ("free and cached", ", with an empty cache too"),
        None => ("free", ""),
    };
    match failure.missing_bytes {
        Some(0) => {
            let text = format_args!("what was {free} would have been enough, in one piece: fragmentation");
            lines.add("", text);
        }
        Some(missing) => lines.add("", format_args!("{} more were needed{emptied}", size(missing))),
        None => {}
    }
    if let Some(site) = &failure.site {
        lines.add("", format_args!("asked for by {site}"));
    }
}

fn history(device: &DeviceInfo, lines: &mut Lines) {
    let history = &device.history;
    let counts = &device.events;
    let span = history
        .duration_ns
        .filter(|&ns| ns > 0)
        .map(|ns| format!(" over {}", duration(ns)))
        .unwrap_or_default();
    let events =
        format!("{}, {}{span}", count(counts.allocations, "allocation"), count(counts.frees, "free"));
    match history.state {
        HistoryState::NeverOn => lines.add("history", "never on: only the state at the end is known"),
        HistoryState::OwnersOnly => lines.add("history", "of each block alone: who has it, and no events"),
        HistoryState::Whole => lines.add("history", format_args!("whole: {events}")),
        HistoryState::Truncated => {
            lines.add("history", format_args!("truncated: {events}"));
            let (blocks, bytes) = (count(history.baseline_blocks, "block"), size(history.baseline_bytes));
            lines.add(
                "",
                format_args!(
                    "live before: {blocks} of {bytes}, {} of them freed",
                    number(history.baseline_freed)
                ),
            );
        }
    }
    if history.contradictions > 0 {
        lines.add("", format_args!("not fitting the others: {}", count(history.contradictions, "event")));
    }
    if history.lost_events > 0 {
        lines.add("", format_args!("lost: {}", count(history.lost_events, "event")));
    }
    if history.lost_unknown {
        lines.add("", "events are missing, nobody knows how many");
    }
}

fn course(course: &Course, lines: &mut Lines) {
    let by = |site: &Option<String>| site.as_ref().map(|site| format!(", by {site}")).unwrap_or_default();
    match course {
        Course::Unknown => {}
        Course::Steady => lines.add("course", "steady: up and down around the same level"),
        Course::OneBigStep { size_bytes, is_failed, rise_bytes, site } => {
            let (step, rise, by) = (size(*size_bytes), size(*rise_bytes), by(site));
            if *is_failed {
                lines.add("course", format_args!("one big step: {step}{by}, refused after a rise of {rise}"));
            } else {
                lines
                    .add("course", format_args!("one big step: {step}{by}, of a rise of {rise} to the peak"));
            }
        }
        Course::Growing { from_bytes, to_bytes, holders } => {
            lines.add(
                "course",
                format_args!(
                    "growing: what stays live went from {} to {}",
                    size(*from_bytes),
                    size(*to_bytes)
                ),
            );
            lines.holders("  kept by", holders);
        }
        Course::GrowingCache { from_bytes, to_bytes } => lines.add(
            "course",
            format_args!(
                "growing cache: what is reserved and not live went from {} to {}",
                size(*from_bytes),
                size(*to_bytes)
            ),
        ),
    }
}

fn state(memory: &MemoryInfo, lines: &mut Lines) {
    let (reserved, active, cached) = (memory.reserved_bytes, memory.active_bytes, memory.cached_bytes);
    let segments = count(memory.segments, "segment");
    lines.add(
        "at the end",
        format_args!("{} reserved in {segments}, {} of it active", size(reserved), percent(active, reserved)),
    );
    lines.add("", format_args!("= {} active + {} cached", size(active), size(cached)));
    if memory.active_bytes > memory.allocated_bytes {
        let pending = memory.active_bytes - memory.allocated_bytes;
        lines.add("", format_args!("active: {} of it are freed, and wait for a stream", size(pending)));
    }
    let waste = memory.allocated_bytes.saturating_sub(memory.requested_bytes);
    if waste > active / 100 {
        lines.add("", format_args!("active: {} of it are rounding", size(waste)));
    }
    if cached > 0 {
        lines.add(
            "",
            format_args!(
                "cached: {} in empty segments, {} between live blocks, largest hole {}",
                size(memory.releasable_bytes),
                size(memory.stuck_bytes),
                size(memory.largest_hole_bytes)
            ),
        );
    }
    for pool in &memory.private_pools {
        let (first, second) = pool.pool;
        lines.add(
            "",
            format_args!(
                "private pool {first}, {second}: {} of {} active",
                size(pool.active_bytes),
                size(pool.reserved_bytes)
            ),
        );
    }
    lines.left_out("", memory.private_pools_left_out, "private pool");
    for (index, segment) in memory.pinned.iter().enumerate() {
        pinned(segment, if index == 0 { "pinned" } else { "" }, lines);
    }
    let label = if memory.pinned.is_empty() { "pinned" } else { "" };
    lines.left_out(label, memory.pinned_left_out, "nearly empty segment");
}

/// A segment that is nearly empty, and the blocks that keep it.
fn pinned(segment: &PinnedSegment, label: &str, lines: &mut Lines) {
    let blocks = segment.blocks.len() as u64 + segment.blocks_left_out;
    let (free, active) = (size(segment.free_bytes), size(segment.active_bytes));
    lines.add(
        label,
        format_args!(
            "{free:>11} free at {:#x}, kept by {active} in {}",
            segment.address,
            count(blocks, "block")
        ),
    );
    for block in &segment.blocks {
        let site = block.site.as_ref().map(|site| format!(", {site}")).unwrap_or_default();
        let (before, after) = (size(block.free_before_bytes), size(block.free_after_bytes));
        lines.add(
            "",
            format_args!(
                "  {:>11} at {:#x}, {before} free before it, {after} behind{site}",
                size(block.size_bytes),
                block.address
            ),
        );
    }
    lines.left_out("", segment.blocks_left_out, "block");
}
