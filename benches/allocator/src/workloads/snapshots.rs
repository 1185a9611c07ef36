//! Real PyTorch programs, from their memory snapshots: `python -m torch_spyre.memory_snapshots` writes the traces.
//!
//! What was live before recording began is allocated first, in the order of addresses, since nobody knows another. In
//! the end everything is freed. Segments are left out: they are the business of PyTorch's allocator.

use anyhow::{Context, Result, bail, ensure};

use super::folder::Folder;
use super::{Live, Trace, TraceBuilder};
use crate::peers::UNIT_BYTES;

const FOLDER: Folder =
    Folder { default: "benches/data/snapshots", variable: "SNAPSHOT_TRACES", extension: "txt" };

/// Rounds of all traces in the one that time is measured on: some ten thousand pairs.
const ROUNDS: usize = 10;

/// All traces, by name.
pub(crate) fn traces() -> Result<Vec<(String, Trace)>> {
    FOLDER.load(parse)
}

/// All traces one after the other, again and again, to measure time on.
pub(super) fn together() -> Result<Trace> {
    Ok(repeated(&traces()?))
}

fn repeated(traces: &[(String, Trace)]) -> Trace {
    let once = || traces.iter().flat_map(|(_, trace)| &trace.ops).copied();
    Trace {
        ops: (0..ROUNDS).flat_map(|_| once()).collect(),
        places: traces.iter().map(|(_, trace)| trace.places).max().unwrap_or(0),
        peak_units: traces.iter().map(|(_, trace)| trace.peak_units).max().unwrap_or(0),
    }
}

fn parse(text: &str) -> Result<Trace> {
    let mut trace = TraceBuilder::default();
    let mut blocks: Vec<Option<Live>> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        step(line, &mut trace, &mut blocks).with_context(|| format!("in the line: {line}"))?;
    }
    ensure!(!blocks.is_empty(), "no allocations");
    Ok(trace.finish())
}

/// One line, as python/torch_spyre/memory_snapshots/text.py says.
fn step(line: &str, trace: &mut TraceBuilder, blocks: &mut Vec<Option<Live>>) -> Result<()> {
    match line.split(' ').collect::<Vec<_>>().as_slice() {
        ["baseline" | "allocate", block, bytes, "at", _address] => {
            let (block, bytes): (usize, u64) = (block.parse()?, bytes.parse()?);
            ensure!(block == blocks.len(), "blocks are numbered in order");
            ensure!(bytes <= u64::from(u32::MAX) * UNIT_BYTES, "more than 512 GiB");
            blocks.push(Some(trace.allocate(bytes)));
        }
        ["free", block] => {
            let live = blocks.get_mut(block.parse::<usize>()?).and_then(Option::take);
            trace.free(live.context("no live block")?);
        }
        ["segment" | "segment-free" | "map" | "unmap", _bytes, "at", _address] => {}
        ["oom", _bytes, "with", _free, "free"] => {}
        _ => bail!("not an operation"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_begins_with_the_baseline_and_frees_all_in_the_end() {
        let text = "# a heading\nbaseline 0 100 at 0\nsegment 4096 at 0\nallocate 1 256 at 512\noom 9 with 8 free\n\
                    free 0\nallocate 2 384 at 1024\n";
        let trace = parse(text).unwrap();
        let sizes: Vec<_> = trace.ops.iter().map(|op| op.size_units).collect();
        assert_eq!(sizes, [1, 2, 0, 3, 0, 0]);
        assert_eq!((trace.places, trace.peak_units, trace.pairs()), (2, 5, 3));
    }

    #[test]
    fn what_cannot_be_played_is_refused_with_its_line() {
        for (line, fault) in [
            ("free 0", "no live block"),
            ("allocate 1 8 at 0", "numbered in order"),
            ("allocate 0 549755813888 at 0", "512 GiB"),
            ("allocate 0 x at 0", "invalid digit"),
            ("allocate 0 8", "not an operation"),
            ("oom 1", "not an operation"),
        ] {
            let error = format!("{:#}", parse(&format!("# heading\n{line}\n")).unwrap_err());
            assert!(error.contains(line) && error.contains(fault), "{error}");
        }
        let twice = parse("allocate 0 8 at 0\nfree 0\nfree 0\n").unwrap_err();
        assert!(format!("{twice:#}").contains("no live block"), "{twice:#}");
        assert!(parse("# nothing\n").is_err());
    }

    /// Every committed trace is played in full, and its peak is what the importer says.
    #[test]
    fn the_committed_traces_have_the_peaks_of_their_headings() {
        let traces = FOLDER.load_committed(parse);
        let names: Vec<_> = traces.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "complete_trace.device-0",
                "expandable_oom_four_devices.device-0",
                "expandable_oom_four_devices.device-1",
                "expandable_oom_four_devices.device-2",
                "no_time_field.device-0",
            ]
        );
        for (name, trace) in &traces {
            let path = format!("{}/../data/snapshots/{name}.txt", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            let stated = text.lines().find_map(|line| line.strip_prefix("# peak_bytes: ")).unwrap();
            let stated: u64 = stated.parse().unwrap();
            let rounded = trace.peak_units * UNIT_BYTES;
            let live_at_most = trace.places as u64;
            assert!((stated..stated + live_at_most * UNIT_BYTES).contains(&rounded), "{name}: {rounded}");
        }
        let long = repeated(&traces);
        assert_eq!(long.pairs(), ROUNDS * traces.iter().map(|(_, trace)| trace.pairs()).sum::<usize>());
        assert_eq!(long.peak_units, traces.iter().map(|(_, trace)| trace.peak_units).max().unwrap());
    }
}
