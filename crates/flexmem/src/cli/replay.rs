//! `flexmem replay`.

use std::process::ExitCode;

use flex::RegionOrder;
use serde::Serialize;

use super::output::{print, print_json};
use super::text::{Lines, count, number, percent, size};
use super::{Common, LOWER_BOUND, NOT_SERVED, is_lower_bound, open, operations, wrong_arguments};
use crate::replay::{CachingAllocator, Failure, FlexReplay, Layout, Outcome, Segments, play};

/// Play a trace on FlexAllocator with a given memory.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// How much memory the device has, such as 24GiB
    #[arg(long, value_name = "SIZE", value_parser = super::size::parse)]
    device_memory: u64,
    /// Which of the file's devices; by default the one with the highest peak
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// Into how many equal regions the memory is divided
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    regions: u32,
    /// Which region is tried first
    #[arg(long, value_enum, default_value_t = Order::MostFree)]
    region_order: Order,
    /// Play it on the model of PyTorch's caching allocator too
    #[arg(long)]
    compare: bool,
}

/// As [`RegionOrder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Order {
    /// The one with the most free bytes.
    MostFree,
    /// The one with the least.
    LeastFree,
}

impl From<Order> for RegionOrder {
    fn from(order: Order) -> Self {
        match order {
            Order::MostFree => RegionOrder::MostFree,
            Order::LeastFree => RegionOrder::LeastFree,
        }
    }
}

#[derive(Serialize)]
struct Replayed {
    device: u32,
    device_memory_bytes: u64,
    regions: u32,
    /// The file does not have the whole history: the device may have been asked for more.
    lower_bound: bool,
    flex: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    caching_allocator: Option<Outcome>,
    /// Whether the segments of that one grow in place, as they did.
    #[serde(skip_serializing_if = "Option::is_none")]
    expandable_segments: Option<bool>,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut trace = open(&arguments.common.file)?;
    let (device, operations) = operations(&mut trace, arguments.device)?;
    let (device_memory_bytes, regions) = (arguments.device_memory, arguments.regions);
    let mut flex = FlexReplay::new(device_memory_bytes, Layout { regions }, arguments.region_order.into())
        .map_err(|error| {
            wrong_arguments(format_args!(
                "--device-memory: a device of {device_memory_bytes} bytes in {}: {error}",
                count(regions.into(), "region")
            ))
        })?;
    let flex = play(&operations, &mut flex);
    let segments = operations.segments();
    let model = || CachingAllocator::with_segments(device_memory_bytes, segments);
    let caching_allocator = arguments.compare.then(|| play(&operations, &mut model()));
    let expandable_segments = arguments.compare.then_some(segments == Segments::Expandable);
    let lower_bound = is_lower_bound(&mut trace, device)?;
    let replayed = Replayed {
        device,
        device_memory_bytes,
        regions,
        lower_bound,
        flex,
        caching_allocator,
        expandable_segments,
    };
    if arguments.common.json {
        print_json(&replayed)?;
    } else {
        print(as_text(&replayed).as_bytes())?;
    }
    let is_served = replayed.flex.failure.is_none();
    Ok(if is_served { ExitCode::SUCCESS } else { ExitCode::from(NOT_SERVED) })
}

fn as_text(replayed: &Replayed) -> String {
    let mut lines = Lines::default();
    let memory = replayed.device_memory_bytes;
    let regions = count(replayed.regions.into(), "region");
    lines.plain(format_args!("device {} of the file, on {} in {regions}", replayed.device, size(memory)));
    let region_bytes = memory / u64::from(replayed.regions);
    describe("FlexAllocator", &replayed.flex, (memory, region_bytes), &mut lines);
    if let Some(outcome) = &replayed.caching_allocator {
        let with = if replayed.expandable_segments == Some(true) { "with" } else { "without" };
        let name = format!("PyTorch's caching allocator (a model, {with} expandable segments)");
        describe(&name, outcome, (memory, memory), &mut lines);
    }
    if replayed.lower_bound {
        lines.plain("");
        lines.plain(LOWER_BOUND);
    }
    lines.into_text()
}

/// `memory` is that of the device, and that of each of its regions.
fn describe(name: &str, outcome: &Outcome, memory: (u64, u64), lines: &mut Lines) {
    lines.plain("");
    lines.plain(name);
    match &outcome.failure {
        None => lines.add("served", format_args!("all {}", count(outcome.allocations, "allocation"))),
        Some(failure) => failed(failure, memory, lines),
    }
    lines.add(
        "peak",
        format_args!(
            "{} asked for, {} occupied, {} reserved",
            size(outcome.live_peak_bytes),
            size(outcome.occupied_peak_bytes),
            size(outcome.reserved_peak_bytes)
        ),
    );
}

fn failed(failure: &Failure, (memory, region_bytes): (u64, u64), lines: &mut Lines) {
    let place = if failure.at_event == 0 {
        "with what was live before recording".to_owned()
    } else {
        format!("at event {}", number(failure.at_event))
    };
    lines.add("out of memory", format_args!("{place}: tried {}", size(failure.requested_bytes)));
    let (live, free, hole) =
        (size(failure.live_bytes), size(failure.free_bytes), size(failure.largest_free_bytes));
    let share = percent(failure.live_bytes, memory);
    lines.add("", format_args!("{live} live ({share} of the device), {free} free, largest hole {hole}"));
    let missing = failure.requested_bytes.saturating_sub(failure.free_bytes);
    if missing > 0 {
        lines.add("", format_args!("{} too little, in whatever pieces", size(missing)));
    } else if failure.requested_bytes > region_bytes {
        lines.add("", format_args!("no region is that large: each has {}", size(region_bytes)));
    } else if failure.largest_free_bytes < failure.requested_bytes {
        lines.add("", "enough was free, but not in one piece: fragmentation");
    } else {
        lines
            .add("", "a hole is large enough, but of another pool or stream, or too small for a new segment");
    }
}
