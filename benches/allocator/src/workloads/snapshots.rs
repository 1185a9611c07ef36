//! Real PyTorch programs, from their memory snapshots: `flexmem import` made the traces of them.
//!
//! What was live before recording began is allocated first, in the order of addresses, since nobody knows another. In
//! the end everything is freed. Segments are left out: they are the business of PyTorch's allocator.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use flexmem::TraceFile;
use flexmem::replay::Operations;

use super::folder::{Folder, name};
use super::{Live, Trace, TraceBuilder};
use crate::peers::UNIT_BYTES;

const FOLDER: Folder =
    Folder { default: "benches/data/snapshots", variable: "SNAPSHOT_TRACES", extension: "trace" };

/// Rounds of all traces in the one that time is measured on: some ten thousand pairs.
const ROUNDS: usize = 10;

/// The traces of all devices, by file and device.
pub(crate) fn traces() -> Result<Vec<(String, Trace)>> {
    load(&FOLDER.paths()?)
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

fn load(paths: &[PathBuf]) -> Result<Vec<(String, Trace)>> {
    let mut traces = Vec::new();
    for path in paths {
        let in_file = || path.display().to_string();
        let mut file = TraceFile::open(path).with_context(in_file)?;
        let devices = Operations::of(&mut file).with_context(in_file)?;
        ensure!(!devices.is_empty(), "{}: no allocations", path.display());
        for (device, operations) in devices {
            traces.push((
                format!("{}.device-{device}", name(path)),
                played(&operations).with_context(in_file)?,
            ));
        }
    }
    Ok(traces)
}

fn played(operations: &Operations) -> Result<Trace> {
    let mut trace = TraceBuilder::default();
    let mut blocks: Vec<Option<Live>> = (0..operations.places()).map(|_| None).collect();
    for operation in operations.iter() {
        let block = &mut blocks[operation.place as usize];
        if operation.size_bytes == 0 {
            trace.free(block.take().context("a free of what is not live")?);
        } else {
            let bytes = operation.size_bytes;
            ensure!(bytes <= u64::from(u32::MAX) * UNIT_BYTES, "{bytes} bytes at once: more than 512 GiB");
            *block = Some(trace.allocate(bytes));
        }
    }
    Ok(trace.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &str) -> Result<Vec<(String, Trace)>> {
        let made = tempfile::Builder::new().suffix(".trace").tempfile().unwrap();
        std::fs::write(made.path(), format!("id,lower,upper,size\n{rows}")).unwrap();
        load(&[made.path().to_owned()])
    }

    #[test]
    fn a_trace_frees_all_in_the_end() {
        let traces = table("a,0,3,100\nb,1,9,256\nc,4,9,384\n").unwrap();
        let [(name, trace)] = traces.as_slice() else { panic!("one device") };
        assert!(name.ends_with(".device-0"), "{name}");
        let sizes: Vec<_> = trace.ops.iter().map(|op| op.size_units).collect();
        assert_eq!(sizes, [1, 2, 0, 3, 0, 0]);
        assert_eq!((trace.places, trace.peak_units, trace.pairs()), (2, 5, 3));
    }

    #[test]
    fn what_cannot_be_played_is_refused_with_its_file() {
        for (rows, fault) in [("a,0,3,549755813888\n", "512 GiB"), ("", "no allocations"), ("x\n", "line 2")]
        {
            let error = format!("{:#}", table(rows).unwrap_err());
            assert!(error.contains(".trace: ") && error.contains(fault), "{error}");
        }
    }

    /// Every committed trace is played in full, with the peak that its snapshot has.
    #[test]
    fn the_committed_traces_have_the_peaks_of_their_snapshots() {
        let traces = load(&FOLDER.committed_paths()).unwrap();
        let peaks = [
            ("complete_trace.device-0", 3_249_143_816),
            ("expandable_oom_four_devices.device-0", 8_456_473_388),
            ("expandable_oom_four_devices.device-1", 84_063_351_764),
            ("expandable_oom_four_devices.device-2", 21_564_645_800),
            ("no_time_field.device-0", 2_637_977_416),
        ];
        assert_eq!(traces.len(), peaks.len());
        for ((name, trace), (expected_name, peak_bytes)) in traces.iter().zip(peaks) {
            assert_eq!(name, expected_name);
            // Each live block is rounded up to a unit.
            let rounded = peak_bytes..peak_bytes + trace.places as u64 * UNIT_BYTES;
            assert!(rounded.contains(&(trace.peak_units * UNIT_BYTES)), "{name}: {}", trace.peak_units);
        }
        let long = repeated(&traces);
        assert_eq!(long.pairs(), ROUNDS * traces.iter().map(|(_, trace)| trace.pairs()).sum::<usize>());
        assert_eq!(long.peak_units, traces.iter().map(|(_, trace)| trace.peak_units).max().unwrap());
    }
}
