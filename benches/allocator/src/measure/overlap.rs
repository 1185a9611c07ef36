//! No two live blocks ever share a byte: checked against a map of the live spans.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};

use super::replay::Replay;
use crate::peers::Peer;
use crate::workloads::Trace;

/// Plays a trace and checks every block that is handed out.
///
/// # Errors
///
/// Two live blocks overlap.
pub(crate) fn check<P: Peer>(trace: &Trace) -> Result<()> {
    let mut replay = Replay::<P>::new(trace, trace.ample_units());
    let mut spans = BTreeMap::new();
    for (step, &op) in trace.ops.iter().enumerate() {
        let freed = replay.offset_units(op.place);
        replay.step(op);
        if op.size_units == 0 {
            freed.map(|start| spans.remove(&start));
            continue;
        }
        let Some(start) = replay.offset_units(op.place) else { continue };
        let end = start + u64::from(op.size_units);
        if let Some((&lower, &lower_end)) = spans.range(..end).next_back()
            && lower_end > start
        {
            bail!("{}: step {step}: {start}..{end} overlaps {lower}..{lower_end}", P::NAME);
        }
        spans.insert(start, end);
    }
    ensure!(spans.is_empty(), "{}: the trace ends with live blocks", P::NAME);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::best_fit::BestFit;
    use crate::workloads::Workload;

    /// Gives out the same span again and again.
    struct Careless;

    impl Peer for Careless {
        const NAME: &'static str = "careless";
        type Handle = ();

        fn new(_: u64) -> Self {
            Careless
        }

        fn allocate(&mut self, _: u32) -> Option<()> {
            Some(())
        }

        fn free(&mut self, (): ()) {}

        fn offset_units(&self, (): &()) -> u64 {
            7
        }
    }

    #[test]
    fn an_overlap_is_found() {
        let trace = Workload::Mix.short(1);
        check::<BestFit>(&trace).unwrap();
        assert!(check::<Careless>(&trace).unwrap_err().to_string().contains("overlaps"));
    }
}
