//! What recording costs: `FlexAllocator` with its history on against the same with it off.
//!
//! What it costs while it is off is in the instruction counts of `locked`, which are held against the baselines.

use super::median;
use super::time::{PairTimes, Timed};
use crate::peers::Peer;
use crate::peers::flex_locked::FlexLocked;
use crate::peers::flex_recording::FlexRecording;
use crate::workloads::{Trace, Workload};

/// A pair leaves an event of the allocation and one of the free.
const EVENTS_OF_A_PAIR: f64 = 2.0;

/// Nanoseconds of an event: the median over the runs, of the workload where it is dearest. Prints those of all.
pub(crate) fn event_ns(traces: &[(Workload, Trace)]) -> f64 {
    println!("\n{:<24} {:>9} {:>9} {:>9}", "ns of a pair", "off", "recording", "an event");
    let mut dearest = 0.0_f64;
    for (workload, trace) in traces {
        let contenders = [Timed::of::<FlexLocked>(), Timed::of::<FlexRecording>()];
        let times = PairTimes::measure(&contenders, trace);
        let (off, on) = (times.runs_ns(FlexLocked::NAME), times.runs_ns(FlexRecording::NAME));
        let event_ns = median(off.iter().zip(on).map(|(off, on)| (on - off) / EVENTS_OF_A_PAIR));
        let [off, on] = [FlexLocked::NAME, FlexRecording::NAME].map(|name| times.median_ns(name));
        println!("{:<24} {off:>9.1} {on:>9.1} {event_ns:>9.1}", workload.name());
        dearest = dearest.max(event_ns);
    }
    dearest
}
