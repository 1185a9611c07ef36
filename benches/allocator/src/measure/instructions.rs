//! Instruction counts by callgrind: repeatable where time is not, so they are what a change is held against.
//!
//! The program starts itself under valgrind, once for a subject and a workload, and counts inside
//! [`measured_pass`] only: the second pass over the trace, on a warm allocator.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::replay::Replay;
use crate::peers::Peer;
use crate::peers::flex_arena::FlexArena;
use crate::peers::flex_locked::FlexLocked;
use crate::peers::flex_recording::FlexRecording;
use crate::peers::flex_region::FlexRegion;
use crate::peers::floor::Floor;
use crate::peers::offset_allocator::OffsetAllocator;
use crate::peers::vma::VmaMinMemory;
use crate::workloads::{Trace, Workload};

/// More instructions than in the baseline by this part are a regression.
const TOLERANCE: f64 = 0.03;

/// What instructions are counted of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Subject {
    /// The harness alone.
    Floor,
    /// flex's search alone.
    Search,
    /// flex's arena.
    Arena,
    /// `FlexAllocator`.
    Locked,
    /// `FlexAllocator` with its history on.
    Recording,
    /// A peer, to compare; not in the baselines.
    OffsetAllocator,
    /// A peer, to compare; not in the baselines.
    Vma,
}

impl Subject {
    /// What the baselines hold.
    const HELD: [Subject; 5] =
        [Subject::Floor, Subject::Search, Subject::Arena, Subject::Locked, Subject::Recording];

    /// Plays a workload twice: what callgrind counts.
    ///
    /// # Errors
    ///
    /// There is no such trace.
    pub(crate) fn play(self, workload: Workload) -> Result<()> {
        let trace = workload.long()?;
        match self {
            Subject::Floor => warm_then_measure::<Floor>(&trace),
            Subject::Search => warm_then_measure::<FlexRegion>(&trace),
            Subject::Arena => warm_then_measure::<FlexArena>(&trace),
            Subject::Locked => warm_then_measure::<FlexLocked>(&trace),
            Subject::Recording => warm_then_measure::<FlexRecording>(&trace),
            Subject::OffsetAllocator => warm_then_measure::<OffsetAllocator>(&trace),
            Subject::Vma => warm_then_measure::<VmaMinMemory>(&trace),
        }
        Ok(())
    }
}

fn warm_then_measure<P: Peer>(trace: &Trace) {
    let mut replay = Replay::<P>::new(trace, trace.ample_units());
    replay.play(trace);
    measured_pass(&mut replay, trace);
}

/// The name is what callgrind is told to count in.
#[inline(never)]
fn measured_pass<P: Peer>(replay: &mut Replay<P>, trace: &Trace) {
    std::hint::black_box(replay.play(trace));
}

/// Instructions of a pair, by `subject.workload`, and what they were counted with.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Baselines {
    /// Other processors have other counts.
    architecture: String,
    instructions_per_pair: BTreeMap<String, f64>,
}

impl Baselines {
    fn read(path: &Path) -> Result<Baselines> {
        let text = std::fs::read_to_string(path).with_context(|| {
            format!("no baselines in {}: `make bench-baseline` writes them", path.display())
        })?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a file of baselines", path.display()))
    }

    /// Counts all that the baselines hold.
    fn count() -> Result<Baselines> {
        let mut instructions_per_pair = BTreeMap::new();
        for subject in Subject::HELD {
            for workload in Workload::GENERATED {
                let (key, count) = count(subject, workload)?;
                instructions_per_pair.insert(key, count);
            }
        }
        Ok(Baselines { architecture: std::env::consts::ARCH.into(), instructions_per_pair })
    }
}

/// Counts again and writes the counts down as the new baselines.
///
/// # Errors
///
/// valgrind is missing or fails, or the file cannot be written.
pub(crate) fn write_baselines(path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(&Baselines::count()?)?;
    std::fs::write(path, text + "\n").with_context(|| path.display().to_string())
}

/// Counts again and compares with the baselines.
///
/// # Errors
///
/// A count is above its baseline by more than the tolerance; or as for [`write_baselines`].
pub(crate) fn check(path: &Path) -> Result<()> {
    let baselines = Baselines::read(path)?;
    let architecture = std::env::consts::ARCH;
    ensure!(
        baselines.architecture == architecture,
        "the baselines are of {}, this is {architecture}: the counts do not compare",
        baselines.architecture
    );
    let counted = Baselines::count()?;
    println!("{:<24} {:>10} {:>10} {:>9}", "instructions of a pair", "baseline", "now", "change");
    let mut regressions = Vec::new();
    for (key, &now) in &counted.instructions_per_pair {
        let Some(&baseline) = baselines.instructions_per_pair.get(key) else {
            bail!("no baseline for {key}: `make bench-baseline` writes one");
        };
        let change = now / baseline - 1.0;
        println!("{key:<24} {baseline:>10.1} {now:>10.1} {:>8.1}%", change * 100.0);
        if change > TOLERANCE {
            regressions.push(format!("{key} {:+.1}%", change * 100.0));
        }
    }
    ensure!(regressions.is_empty(), "more instructions than {}: {}", path.display(), regressions.join(", "));
    Ok(())
}

/// The key and the instructions of a pair.
///
/// # Errors
///
/// valgrind is missing or fails.
pub(crate) fn count(subject: Subject, workload: Workload) -> Result<(String, f64)> {
    let name = format!("{subject:?}").to_lowercase();
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*measured_pass*"])
        .arg(std::env::current_exe()?)
        .args(["play", &clap_name(subject), workload.name()])
        .output()
        .context("cannot run valgrind: install the package `valgrind` of your system")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "callgrind failed on {name}.{}:\n{text}", workload.name());
    let collected =
        text.lines().find_map(|line| line.split_once("Collected :")).map(|(_, count)| count.trim());
    let instructions: u64 = collected
        .and_then(|count| count.parse().ok())
        .with_context(|| format!("no count in callgrind's output:\n{text}"))?;
    ensure!(instructions > 0, "callgrind never saw measured_pass");
    Ok((format!("{name}.{}", workload.name()), instructions as f64 / workload.long()?.pairs() as f64))
}

fn clap_name(subject: Subject) -> String {
    use clap::ValueEnum;
    subject.to_possible_value().expect("no hidden subjects").get_name().to_owned()
}
