//! `flexmem plan`.

use std::process::ExitCode;

use flex::RegionOrder;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::output::{print, print_json};
use super::text::{Lines, size, size_with_places};
use super::{Common, LOWER_BOUND, NOT_SERVED, is_lower_bound, open, operations};
use crate::replay::{
    CachingAllocator, FlexReplay, Layout, Operations, Player, Segments, WRITABLE_PLACES, play, smallest,
};

/// Find the smallest memory that serves a trace.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Which of the file's devices; by default the one with the highest peak
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// Into how many equal regions the memory is divided; may be given several times
    #[arg(long, value_name = "N", default_values_t = [1, 2, 4, 7], value_parser = clap::value_parser!(u32).range(1..=64))]
    regions: Vec<u32>,
}

#[derive(Serialize)]
struct Planned {
    device: u32,
    peak_bytes: u64,
    /// The file does not have the whole history: the device may have needed more.
    lower_bound: bool,
    layouts: Vec<LayoutPlan>,
    caching_allocator_bytes: Option<u64>,
    /// Whether the segments of that one grow in place, as they did.
    expandable_segments: bool,
}

#[derive(Serialize)]
struct LayoutPlan {
    regions: u32,
    /// None if no reasonable memory serves.
    most_free_bytes: Option<u64>,
    least_free_bytes: Option<u64>,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut trace = open(&arguments.common.file)?;
    let (device, operations) = operations(&mut trace, arguments.device)?;
    let mut planned = plan(device, &operations, &arguments.regions)?;
    planned.lower_bound = is_lower_bound(&mut trace, device)?;
    if arguments.common.json {
        print_json(&planned)?;
    } else {
        print(as_text(&planned).as_bytes())?;
    }
    let is_served =
        planned.layouts.iter().any(|plan| plan.most_free_bytes.or(plan.least_free_bytes).is_some());
    Ok(if is_served { ExitCode::SUCCESS } else { ExitCode::from(NOT_SERVED) })
}

fn plan(device: u32, operations: &Operations, regions: &[u32]) -> anyhow::Result<Planned> {
    let peak_bytes = operations.peak_bytes();
    let style = ProgressStyle::with_template("replay {pos} of a few dozen: {msg}")?;
    let bar = ProgressBar::new_spinner().with_style(style);
    let serves = |player: Option<&mut dyn Serves>| {
        bar.inc(1);
        player.is_some_and(|player| player.serves(operations))
    };
    let flex = |regions: u32, order: RegionOrder| {
        bar.set_message(format!("{regions} region(s)"));
        smallest(peak_bytes, |memory| {
            let mut replay = FlexReplay::new(memory, Layout { regions }, order).ok();
            serves(replay.as_mut().map(|replay| replay as &mut dyn Serves))
        })
    };
    let layout = |&regions: &u32| LayoutPlan {
        regions,
        most_free_bytes: flex(regions, RegionOrder::MostFree),
        least_free_bytes: flex(regions, RegionOrder::LeastFree),
    };
    let layouts = regions.iter().map(layout).collect();
    bar.set_message("PyTorch's caching allocator");
    let segments = operations.segments();
    let caching_allocator_bytes =
        smallest(peak_bytes, |memory| serves(Some(&mut CachingAllocator::with_segments(memory, segments))));
    bar.finish_and_clear();
    let expandable_segments = segments == Segments::Expandable;
    Ok(Planned {
        device,
        peak_bytes,
        lower_bound: false,
        layouts,
        caching_allocator_bytes,
        expandable_segments,
    })
}

/// A player, whatever its blocks.
trait Serves {
    fn serves(&mut self, operations: &Operations) -> bool;
}

impl<P: Player> Serves for P {
    fn serves(&mut self, operations: &Operations) -> bool {
        play(operations, self).failure.is_none()
    }
}

fn as_text(planned: &Planned) -> String {
    let mut lines = Lines::default();
    lines.plain(format_args!(
        "device {} of the file: {} live at the peak, which no memory below can serve",
        planned.device,
        size(planned.peak_bytes)
    ));
    lines.plain("");
    lines.plain("smallest memory that serves all of it, to half a percent");
    lines.plain("");
    lines.plain(format_args!("  {:28}{:>18}{:>18}", "", "most free first", "least free first"));
    // Said exactly: with a little less it may not do.
    let figure = |bytes: Option<u64>| {
        bytes.map_or("none".to_owned(), |bytes| size_with_places(bytes, WRITABLE_PLACES))
    };
    for plan in &planned.layouts {
        let regions =
            format!("FlexAllocator, {} region{}", plan.regions, if plan.regions == 1 { "" } else { "s" });
        let (most, least) = (figure(plan.most_free_bytes), figure(plan.least_free_bytes));
        lines.plain(format_args!("  {regions:28}{most:>18}{least:>18}"));
    }
    let model = figure(planned.caching_allocator_bytes);
    let expandable = if planned.expandable_segments { ", expandable" } else { "" };
    lines.plain(format_args!("  {:28}{model:>18}", format!("PyTorch's model{expandable}")));
    if planned.lower_bound {
        lines.plain("");
        lines.plain(LOWER_BOUND);
    }
    lines.into_text()
}
