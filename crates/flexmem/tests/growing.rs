//! The file of a stream that still runs, of one that has ended, and of one whose process was killed.

use std::path::Path;
use std::process::Command;

use flex::history::HistoryOptions;
use flex::{AllocationDirective, AllocatorOptions, FlexAllocator, Topology};
use flex_sim::{SimulatedDevice, SimulatedOptions};
use flex_stream::{Stream, StreamOptions};
use serde_json::Value;

/// What `flexmem`, a process of its own, says of a file.
fn said(arguments: &[&str], file: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_flexmem")).args(arguments).arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str], file: &Path) -> Value {
    serde_json::from_str(&said(arguments, file)).unwrap()
}

#[test]
fn a_file_that_grows_is_not_said_to_miss_events() {
    let topology = Topology::uniform(1 << 20).unwrap();
    let device = SimulatedDevice::new(SimulatedOptions::default()).unwrap();
    let allocator = FlexAllocator::new(device, &topology, AllocatorOptions::default()).unwrap();
    let history = HistoryOptions { max_entries: 1000, ..HistoryOptions::default() };
    allocator.record_history(Some(history)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (file, copy) = (folder.path().join("run.trace"), folder.path().join("killed.trace"));
    let options = StreamOptions { file: Some(file.clone()), ..StreamOptions::new(vec![allocator.clone()]) };
    let stream = Stream::start(options).unwrap();
    let kept = allocator.allocate(1000, &AllocationDirective::default()).unwrap();
    assert!(stream.drain());
    // As far as a process has written that was killed then. This one opens its own file nowhere: closing it would give
    // up the lock.
    assert!(Command::new("cp").args([&file, &copy]).status().unwrap().success());

    let growing = json(&["info", "--json"], &file);
    assert_eq!(
        (&growing["growing"], &growing["devices"][0]["history"]["lost_unknown"]),
        (&true.into(), &false.into())
    );
    assert_eq!((&growing["devices"][0]["events"]["allocations"]), &1);
    let text = said(&["info"], &file);
    assert!(text.contains("still being written") && !text.contains("missing"), "{text}");
    let report = json(&["report", "--json"], &file);
    assert_eq!((&report["growing"], &report["devices"][0]["lost_places"]), (&true.into(), &0.into()));

    for file in [&file, &copy] {
        assert_eq!(json(&["plan", "--json"], file)["lower_bound"], true);
        let text = said(&["replay", "--device-memory", "1MiB"], file);
        assert!(text.ends_with(
            "does not have the whole history: there may have been more before it, or behind it\n"
        ));
    }

    let killed = json(&["info", "--json"], &copy);
    assert_eq!(
        (&killed["growing"], &killed["devices"][0]["history"]["lost_unknown"]),
        (&false.into(), &true.into())
    );
    let text = said(&["info"], &copy);
    assert!(text.contains("events are missing") && !text.contains("still"), "{text}");

    drop(kept);
    assert!(stream.stop());
    let ended = json(&["info", "--json"], &file);
    assert_eq!(
        (&ended["growing"], &ended["devices"][0]["history"]["lost_unknown"]),
        (&false.into(), &false.into())
    );
}
