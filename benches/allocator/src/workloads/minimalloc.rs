//! MiniMalloc's eleven challenging instances (Google, Apache-2.0, ASPLOS 2023), played as online traces: a buffer is
//! allocated at its lower time and freed at its upper one, frees first. Each fits in 1 MiB for who knows it in advance.

use anyhow::{Context, Result, ensure};

use super::folder::Folder;
use super::{Trace, TraceBuilder};

const FOLDER: Folder =
    Folder { default: "benches/data/minimalloc/challenging", variable: "MINIMALLOC_DATA", extension: "csv" };

/// All instances, by name.
pub(crate) fn traces() -> Result<Vec<(String, Trace)>> {
    FOLDER.load(parse)
}

/// Lines of `id,lower,upper,size` behind a heading.
fn parse(text: &str) -> Result<Trace> {
    let mut buffers = Vec::new();
    for line in text.lines().skip(1) {
        let fields: Vec<u64> = line
            .split(',')
            .map(|field| field.trim().parse())
            .collect::<Result<_, _>>()
            .context(line.to_owned())?;
        let &[_, lower, upper, size_bytes] = fields.as_slice() else { anyhow::bail!("four fields: {line}") };
        ensure!(lower < upper, "a life: {line}");
        buffers.push((lower, upper, size_bytes));
    }
    let frees = buffers.iter().enumerate().map(|(buffer, &(_, upper, _))| (upper, false, buffer));
    let allocations = buffers.iter().enumerate().map(|(buffer, &(lower, _, _))| (lower, true, buffer));
    let mut events: Vec<_> = frees.chain(allocations).collect();
    events.sort_unstable();
    let mut trace = TraceBuilder::default();
    let mut live = vec![None; buffers.len()];
    for (_, is_allocation, buffer) in events {
        if is_allocation {
            live[buffer] = Some(trace.allocate(buffers[buffer].2));
        } else {
            trace.free(live[buffer].take().expect("a life"));
        }
    }
    Ok(trace.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frees_come_before_allocations_of_the_same_time() {
        let trace = parse("id,lower,upper,size\n0,0,5,256\n1,5,6,256\n2,0,6,128\n").unwrap();
        assert_eq!((trace.peak_units, trace.places, trace.pairs()), (3, 2, 3));
        assert!(parse("id,lower,upper,size\n0,5,5,256\n").is_err());
        assert!(parse("id,lower,upper,size\n0,5,256\n").is_err());
    }

    #[test]
    fn all_eleven_are_there() {
        let traces = FOLDER.load_committed(parse);
        let names: Vec<_> = traces.iter().map(|(name, _)| name.split_once('.').unwrap().0).collect();
        assert_eq!(names.concat(), "ABCDEFGHIJK");
        for (name, trace) in traces {
            assert!(trace.peak_units * crate::peers::UNIT_BYTES <= 1 << 20, "{name}");
        }
    }
}
