//! Measures flex beside other allocators of offsets: the time of a pair of allocate and free, packing, metadata, the
//! cost of the lock, several threads, and instruction counts.
//!
//! `peers` has the allocators, `workloads` what is allocated, `measure` one file for each measurement, `suite` all of
//! them in order, `report` the targets and the summary. See docs/performance.md.

mod measure;
mod peers;
mod report;
mod suite;
mod workloads;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use measure::instructions::{self, Subject};
use suite::Seeds;
use workloads::Workload;

#[derive(Debug, Parser)]
#[command(about = "Measures flex beside other allocators")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure everything and put the ratios into the summary
    Run {
        /// All seeds: what the targets are stated for
        #[arg(long)]
        full: bool,
        #[arg(long, default_value = "target/bench/summary.json")]
        summary: PathBuf,
    },
    /// Compare instruction counts with the baselines; fail if one has grown by more than 3 %
    Check {
        #[arg(long, default_value = "benches/baselines.json")]
        baselines: PathBuf,
    },
    /// Write the baselines anew
    Baseline {
        #[arg(long, default_value = "benches/baselines.json")]
        baselines: PathBuf,
    },
    /// Measure what recording costs
    History,
    /// Count the instructions of a pair of one subject on one workload
    Count { subject: Subject, workload: Workload },
    /// Play one workload twice on one subject: what callgrind and profilers run
    Play { subject: Subject, workload: Workload },
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Run { full, summary } => {
            let report = suite::run(if full { Seeds::FULL } else { Seeds::QUICK })?;
            report.print();
            report.write(&summary)?;
            println!("\nwritten to {}", summary.display());
        }
        Command::Check { baselines } => instructions::check(&baselines)?,
        Command::Baseline { baselines } => instructions::write_baselines(&baselines)?,
        Command::History => {
            measure::history::event_ns();
        }
        Command::Count { subject, workload } => {
            let (key, count) = instructions::count(subject, workload)?;
            println!("{key}: {count:.1}");
        }
        Command::Play { subject, workload } => subject.play(workload)?,
    }
    Ok(())
}
