//! `make bench`: all measurements one after the other, with a table for each, and the ratios they come to.

use std::sync::Mutex;

use anyhow::Result;
use flex::FlexAllocator;
use serde_json::json;

use crate::measure::clock::Clock;
use crate::measure::latency::Probed;
use crate::measure::packing::Packed;
use crate::measure::replay::gibibytes;
use crate::measure::threads::SharedPeer;
use crate::measure::time::{PairTimes, Timed};
use crate::measure::{history, locked, mean, metadata, overlap, packing, threads};
use crate::peers::Peer;
use crate::peers::best_fit::BestFit;
use crate::peers::flex_arena::FlexArena;
use crate::peers::flex_locked::FlexLocked;
use crate::peers::flex_region::FlexRegion;
use crate::peers::floor::Floor;
use crate::peers::mimalloc::Mimalloc;
use crate::peers::offset_allocator::OffsetAllocator;
use crate::peers::pytorch::PyTorch;
use crate::peers::rlsf::Rlsf;
use crate::peers::vma::{VmaDefault, VmaMinMemory};
use crate::report::Report;
use crate::workloads::{Trace, Workload, minimalloc, snapshots};

/// How many seeds a figure of packing is the mean of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seeds {
    pub(crate) training: u64,
    pub(crate) others: u64,
}

impl Seeds {
    /// What the targets are stated for.
    pub(crate) const FULL: Seeds = Seeds { training: 12, others: 30 };
    /// Enough for a first look.
    pub(crate) const QUICK: Seeds = Seeds { training: 3, others: 4 };
}

const TIMED: [Timed; 11] = [
    Timed::of::<Floor>(),
    Timed::of::<FlexRegion>(),
    Timed::of::<FlexArena>(),
    Timed::of::<FlexLocked>(),
    Timed::of::<OffsetAllocator>(),
    Timed::of::<VmaDefault>(),
    Timed::of::<VmaMinMemory>(),
    Timed::of::<Rlsf>(),
    Timed::of::<BestFit>(),
    Timed::of::<PyTorch>(),
    Timed::of::<Mimalloc>(),
];

/// All whose time is more than the harness.
const PROBED: [Probed; 10] = [
    Probed::of::<FlexRegion>(),
    Probed::of::<FlexArena>(),
    Probed::of::<FlexLocked>(),
    Probed::of::<OffsetAllocator>(),
    Probed::of::<VmaDefault>(),
    Probed::of::<VmaMinMemory>(),
    Probed::of::<Rlsf>(),
    Probed::of::<BestFit>(),
    Probed::of::<PyTorch>(),
    Probed::of::<Mimalloc>(),
];

/// All that allocate offsets online. The first is ours.
const PACKED: [Packed; 7] = [
    Packed::of::<FlexArena>(),
    Packed::of::<VmaMinMemory>(),
    Packed::of::<VmaDefault>(),
    Packed::of::<OffsetAllocator>(),
    Packed::of::<BestFit>(),
    Packed::of::<Rlsf>(),
    Packed::of::<PyTorch>(),
];

/// Everything.
///
/// # Errors
///
/// Two blocks of some allocator overlap, or real traces are missing.
pub(crate) fn run(seeds: Seeds) -> Result<Report> {
    let mut report = Report::default();
    let traces: Vec<_> = Workload::TIMED
        .into_iter()
        .map(|workload| Ok((workload, workload.long()?)))
        .collect::<Result<_>>()?;
    check_overlap(&traces)?;
    pair_times(&traces, &mut report);
    report.set("history.event_ns", history::event_ns());
    latencies(&traces, &mut report);
    metadata_sizes(&traces, &mut report);
    thread_counts(&mut report);
    for workload in Workload::PACKED {
        pack(workload, seeds, &mut report);
    }
    pack_minimalloc(&mut report);
    pack_snapshots(&mut report)?;
    Ok(report)
}

/// No figure counts of an allocator that hands out a byte twice.
pub(crate) fn check_overlap(traces: &[(Workload, Trace)]) -> Result<()> {
    for (_, trace) in traces {
        overlap::check::<FlexRegion>(trace)?;
        overlap::check::<FlexArena>(trace)?;
        overlap::check::<FlexLocked>(trace)?;
        overlap::check::<OffsetAllocator>(trace)?;
        overlap::check::<VmaDefault>(trace)?;
        overlap::check::<VmaMinMemory>(trace)?;
        overlap::check::<Rlsf>(trace)?;
        overlap::check::<BestFit>(trace)?;
        overlap::check::<PyTorch>(trace)?;
    }
    println!("no two live blocks overlap, of any allocator that has offsets, on {} traces", traces.len());
    Ok(())
}

fn pair_times(traces: &[(Workload, Trace)], report: &mut Report) {
    let mut worst_lock = 0.0_f64;
    for (workload, trace) in traces {
        let trips_ns = locked::trips_ns();
        let times = PairTimes::measure(&TIMED, trace);
        println!(
            "\n{}: {} pairs, {} places, peak {:.2} GiB\n{:<24} {:>9} {:>9}",
            workload.name(),
            trace.pairs(),
            trace.places,
            gibibytes(trace.peak_units),
            "ns of a pair",
            "median",
            "refused"
        );
        for row in &times.rows {
            println!("{:<24} {:>9.1} {:>9}", row.name, times.median_ns(row.name), row.refused);
        }
        let over_floor = locked::over_floor(&times, &trips_ns);
        println!(
            "{:<24} {:>9.1}\n{:<24} {over_floor:>9.2}",
            "lock trip", trips_ns[0], "locked over its floor"
        );
        if Workload::GENERATED.contains(workload) {
            worst_lock = worst_lock.max(over_floor);
        }
        pair_ratios(*workload, &times, report);
    }
    report.set("locked.over_floor", worst_lock);
}

fn pair_ratios(workload: Workload, times: &PairTimes, report: &mut Report) {
    let over = |peer| times.ratio(FlexArena::NAME, peer);
    match workload {
        Workload::Train => {
            report.set("pair.train.offset_allocator", over(OffsetAllocator::NAME));
            report.set("pair.train.vma_min_memory", over(VmaMinMemory::NAME));
            report.set("pair.train.pytorch_model", over(PyTorch::NAME));
        }
        Workload::Kv => {
            report.set("pair.kv.offset_allocator", over(OffsetAllocator::NAME));
            // The limit is for the product, whose magazines are what mimalloc has too.
            report.set("pair.kv.mimalloc", times.ratio(FlexLocked::NAME, Mimalloc::NAME));
        }
        Workload::Mix => report.set("pair.mix.offset_allocator", over(OffsetAllocator::NAME)),
        Workload::Pareto => report.set("pair.pareto.offset_allocator", over(OffsetAllocator::NAME)),
        Workload::Snapshots => {
            report.set("pair.snapshots.offset_allocator", over(OffsetAllocator::NAME));
            report.set("pair.snapshots.vma_min_memory", over(VmaMinMemory::NAME));
            report.set("pair.snapshots.pytorch_model", over(PyTorch::NAME));
        }
        Workload::Phase => {}
    }
}

/// The worst generated workload counts.
fn latencies(traces: &[(Workload, Trace)], report: &mut Report) {
    let clock = Clock::calibrate();
    let mut worst = 0.0_f64;
    for (workload, trace) in traces {
        println!(
            "\n{:<24} {:>9} {:>9} {:>9} {:>9} {:>9}",
            format!("{}: allocate, ns", workload.name()),
            "p50",
            "p90",
            "p99",
            "p99.9",
            "p99/p50"
        );
        for contender in &PROBED {
            let latency = (contender.measure)(trace, &clock);
            println!(
                "{:<24} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.2}",
                contender.name,
                latency.p50_ns,
                latency.p90_ns,
                latency.p99_ns,
                latency.p99_9_ns,
                latency.ratio()
            );
            report.record("latency_ns", workload.name(), contender.name, json!(latency));
            if contender.name == FlexArena::NAME && Workload::GENERATED.contains(workload) {
                worst = worst.max(latency.ratio());
            }
        }
    }
    report.set("alloc.p99_over_p50", worst);
}

/// The worst generated workload counts; the smaller of VMA's two.
fn metadata_sizes(traces: &[(Workload, Trace)], report: &mut Report) {
    const KEY: &str = "metadata.vma";
    println!("\n{:<24} {:>9} {:>9} {:>9}", "bytes of metadata", "arena", "locked", "VMA");
    let mut worst = 0.0_f64;
    for (workload, trace) in traces {
        let (Some(arena), Some(locked), Some(default), Some(tight)) = (
            metadata::bytes_per_block::<FlexArena>(trace),
            metadata::bytes_per_block::<FlexLocked>(trace),
            metadata::bytes_per_block::<VmaDefault>(trace),
            metadata::bytes_per_block::<VmaMinMemory>(trace),
        ) else {
            return report.missing(KEY, "malloc does not say how much is in use".into());
        };
        let vma = default.min(tight);
        println!("{:<24} {arena:>9.1} {locked:>9.1} {vma:>9.1}", workload.name());
        if Workload::GENERATED.contains(workload) {
            worst = worst.max(arena / vma);
        }
    }
    report.set(KEY, worst);
}

fn thread_counts(report: &mut Report) {
    threads_with(report, "1 MiB", threads::MIXED_BYTES, ["threads2.over_one", "threads2.mimalloc_over_one"]);
    let small = ["threads2.small.over_one", "threads2.small.mimalloc_over_one"];
    threads_with(report, "64 KiB", threads::SMALL_BYTES, small);
}

/// Sets what two threads do over what one does: of ours, and of mimalloc.
fn threads_with(report: &mut Report, most: &str, most_bytes: u64, keys: [&'static str; 2]) {
    println!("\npairs a microsecond, sizes up to {most:<9} one      two     four");
    let ours = threads_of::<FlexAllocator>("FlexAllocator", most_bytes);
    threads_of::<Mutex<OffsetAllocator>>("offset-allocator behind a mutex", most_bytes);
    let limit = threads_of::<Mimalloc>(Mimalloc::NAME, most_bytes);
    let one_processor = std::thread::available_parallelism().map_or(1, usize::from) < 2;
    for (key, ratio) in keys.into_iter().zip([ours, limit]) {
        if one_processor {
            report.missing(key, "the machine has one processor".into());
        } else {
            report.set(key, ratio);
        }
    }
}

/// Prints one line; returns two threads over one.
fn threads_of<P: SharedPeer>(name: &str, most_bytes: u64) -> f64 {
    let [one, two, four] = [1, 2, 4].map(|count| threads::pairs_per_microsecond::<P>(count, most_bytes));
    println!("{name:<38} {one:>8.2} {two:>8.2} {four:>8.2}");
    two / one
}

fn pack(workload: Workload, seeds: Seeds, report: &mut Report) {
    let count = if workload == Workload::Train { seeds.training } else { seeds.others };
    let traces: Vec<_> = (1..=count).map(|seed| workload.short(seed)).collect();
    let packing = packing::measure_all(&PACKED, &traces);
    println!(
        "\n{} packing, {count} seeds {:>13} {:>9} {:>14}",
        workload.name(),
        "mean",
        "ours over",
        "worst seed"
    );
    for (contender, row) in PACKED.iter().zip(&packing) {
        let worst = packing[0].iter().zip(row).map(|(ours, peer)| ours / peer).fold(f64::INFINITY, f64::min);
        let (mean, ours) = (mean(row), mean(&packing[0]));
        println!("{:<24} {mean:>13.4} {:>9.3} {worst:>14.3}", contender.name, ours / mean);
        report.record("packing", workload.name(), contender.name, json!(mean));
    }
    let over = |name: &str| mean(&packing[0]) / mean(of(name, &packing));
    let vma = over(VmaMinMemory::NAME);
    match workload {
        Workload::Train => report.set("packing.train.vma_min_memory", vma),
        Workload::Mix => {
            report.set("packing.mix.vma_min_memory", vma);
            report.set("packing.mix.best_fit", over(BestFit::NAME));
        }
        Workload::Pareto => report.set("packing.pareto.vma_min_memory", vma),
        Workload::Phase => report.set("packing.phase.vma_min_memory", vma),
        Workload::Kv | Workload::Snapshots => {}
    }
}

fn of<'a>(name: &str, packing: &'a [Vec<f64>]) -> &'a [f64] {
    let contender = PACKED.iter().position(|contender| contender.name == name);
    &packing[contender.expect("a contender that took part")]
}

fn pack_minimalloc(report: &mut Report) {
    const KEY: &str = "packing.minimalloc.best_peer";
    let instances = match minimalloc::traces() {
        Ok(instances) => instances,
        Err(error) => {
            println!("\nMiniMalloc is left out: {error:#}");
            return report.missing(KEY, format!("{error:#}"));
        }
    };
    let packing = pack_instances("minimalloc", instances, report);
    let best_peer = packing[1..].iter().map(|row| mean(row)).fold(0.0, f64::max);
    report.set(KEY, mean(&packing[0]) / best_peer);
}

/// Real programs.
///
/// # Errors
///
/// There are no traces of them.
fn pack_snapshots(report: &mut Report) -> Result<()> {
    let packing = pack_instances("snapshots", snapshots::traces()?, report);
    for (key, peer) in [
        ("packing.snapshots.vma_min_memory", VmaMinMemory::NAME),
        ("packing.snapshots.vma_default", VmaDefault::NAME),
        ("packing.snapshots.best_fit", BestFit::NAME),
        ("packing.snapshots.offset_allocator", OffsetAllocator::NAME),
        ("packing.snapshots.pytorch_model", PyTorch::NAME),
    ] {
        report.set(key, mean(&packing[0]) / mean(of(peer, &packing)));
    }
    Ok(())
}

/// A table of traces that are there once each, a column for each.
fn pack_instances(workload: &str, instances: Vec<(String, Trace)>, report: &mut Report) -> Vec<Vec<f64>> {
    let (names, traces): (Vec<_>, Vec<_>) = instances.into_iter().unzip();
    let packing = packing::measure_all(&PACKED, &traces);
    let numbered: Vec<_> = (1..).zip(&names).map(|(number, name)| format!("{number} {name}")).collect();
    println!("\n{workload}: {}", numbered.join(", "));
    print!("{:<24} {:>6}", format!("{workload} packing"), "mean");
    (1..=names.len()).for_each(|number| print!(" {number:>6}"));
    println!();
    for (contender, row) in PACKED.iter().zip(&packing) {
        print!("{:<24} {:>6.3}", contender.name, mean(row));
        row.iter().for_each(|packing| print!(" {packing:>6.3}"));
        println!();
        report.record("packing", workload, contender.name, json!(mean(row)));
    }
    packing
}
