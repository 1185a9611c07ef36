//! Replays: exact on what PyTorch really did, and on MiniMalloc's instances; failures with their cause.

mod common;

use std::path::Path;
use std::process::Command;

use common::sample;
use flex::RegionOrder;
use flex_trace::{Action, Record};
use flexmem::TraceFile;
use flexmem::replay::{CachingAllocator, FlexReplay, Layout, Operations, play};

const ONE: Layout = Layout { regions: 1 };

fn only(name: &str) -> Operations {
    let mut all = Operations::of(&mut TraceFile::open(&sample(name)).unwrap()).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0).1
}

/// The model takes the same segments at the same moments and hands out the same addresses as PyTorch did, given the
/// addresses that the device gave the segments.
#[test]
fn the_model_follows_a_real_trace_block_by_block() {
    let mut trace = TraceFile::open(&sample("complete_trace.pickle")).unwrap();
    let mut model = CachingAllocator::new(1 << 40);
    let (mut reserved, mut segments, mut allocations) = (0, 0, 0);
    let mut live = std::collections::HashMap::new();
    trace
        .each(|record, _| {
            let Record::Event(event) = record else { return };
            match event.action {
                Action::RegionAcquired { address, size_bytes, .. } => {
                    model.place_next_segment(address.0);
                    reserved += size_bytes;
                    segments += 1;
                }
                Action::Allocated { address, size_bytes, stream, .. } => {
                    let block = model.allocate(size_bytes, stream).unwrap();
                    assert_eq!(model.offset_bytes(block), address.0);
                    assert_eq!(model.reserved_bytes(), reserved);
                    live.insert(address.0, block);
                    allocations += 1;
                }
                Action::Freed { address, .. } => model.free(live.remove(&address.0).unwrap()),
                _ => {}
            }
        })
        .unwrap();
    assert_eq!((segments, allocations, live.len()), (9, 36, 10), "the whole trace");
    assert_eq!(model.reserved_bytes(), 3_781_165_056);
}

#[test]
fn the_model_reserves_what_pytorch_reserved() {
    let outcome = play(&only("complete_trace.pickle"), &mut CachingAllocator::new(1 << 40));
    assert_eq!(outcome.failure, None);
    assert_eq!((outcome.live_peak_bytes, outcome.reserved_peak_bytes), (3_249_143_816, 3_781_165_056));
}

#[test]
fn flex_serves_a_trace_in_less_than_the_caching_allocator_takes() {
    let mut all =
        Operations::of(&mut TraceFile::open(&sample("expandable_oom_four_devices.pickle")).unwrap()).unwrap();
    let numbers: Vec<u32> = all.iter().map(|(device, _)| *device).collect();
    assert_eq!(numbers, [0, 1, 2]);
    let operations = all.swap_remove(0).1;
    let memory = operations.peak_bytes() * 1005 / 1000;
    let outcome = play(&operations, &mut FlexReplay::new(memory, ONE, RegionOrder::MostFree).unwrap());
    // 117 allocations, and what was live before.
    assert_eq!((outcome.failure, outcome.allocations), (None, 117 + 484));
    assert_eq!(outcome.live_peak_bytes, 8_456_473_388);
    assert!(outcome.occupied_peak_bytes - outcome.live_peak_bytes < (117 + 484) * 128);
    assert!(play(&operations, &mut CachingAllocator::new(memory)).failure.is_some());
}

#[test]
fn a_refusal_has_the_figures_of_its_moment() {
    let operations = only("complete_trace.pickle");
    let memory = operations.peak_bytes() - 1;
    for failure in [
        play(&operations, &mut FlexReplay::new(memory, ONE, RegionOrder::MostFree).unwrap()).failure.unwrap(),
        play(&operations, &mut CachingAllocator::new(memory)).failure.unwrap(),
    ] {
        assert!(failure.largest_free_bytes < failure.requested_bytes, "{failure:?}");
        assert!(failure.live_bytes + failure.free_bytes <= memory, "{failure:?}");
        assert!(failure.at_event > 0);
    }
}

/// Each instance is known to fit in 1 MiB for who knows it in advance; online it takes a little more.
#[test]
fn minimalloc_instances_are_played_in_full() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/data/minimalloc/challenging");
    let mut names = String::new();
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for path in files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "csv")) {
        let buffers = std::fs::read_to_string(path).unwrap().lines().count() as u64 - 1;
        let all = Operations::of(&mut TraceFile::open(path).unwrap()).unwrap();
        let operations = &all[0].1;
        assert!(operations.peak_bytes() <= 1 << 20, "{}", path.display());
        let outcome = play(operations, &mut FlexReplay::new(2 << 20, ONE, RegionOrder::MostFree).unwrap());
        assert_eq!((outcome.failure, outcome.allocations), (None, buffers), "{}", path.display());
        assert_eq!(outcome.live_peak_bytes, operations.peak_bytes());
        names.push_str(&path.file_name().unwrap().to_str().unwrap()[..1]);
    }
    assert_eq!(names, "ABCDEFGHIJK");
}

fn flexmem(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_flexmem")).args(arguments).output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn the_command_says_whether_the_memory_does() {
    let file = sample("expandable_oom_four_devices.pickle").display().to_string();
    let (status, text) =
        flexmem(&["replay", &file, "--device", "0", "--device-memory", "7.95GiB", "--compare"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("FlexAllocator\n  served         all 601 allocations"), "{text}");
    assert!(text.contains("without expandable segments)\n  out of memory"), "{text}");
    let file = sample("complete_trace.pickle").display().to_string();
    let (status, text) = flexmem(&["replay", &file, "--device-memory", "1GiB"]);
    assert_eq!(status, Some(3), "{text}");
    assert!(text.contains("too little, in whatever pieces"), "{text}");
    let (status, text) = flexmem(&["replay", &file, "--device-memory", "4GiB", "--device", "7"]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("device 7 allocated nothing; expected one of 0"), "{text}");
    let never = sample("history_never_enabled.pickle").display().to_string();
    let (status, text) = flexmem(&["replay", &never, "--device-memory", "4GiB"]);
    assert!(status == Some(1) && text.contains("history was never on"), "{text}");
}

#[test]
fn a_plan_is_a_memory_that_serves() {
    let file = sample("complete_trace.pickle").display().to_string();
    let (status, text) = flexmem(&["plan", &file, "--json", "--regions", "1", "--regions", "2"]);
    assert_eq!(status, Some(0), "{text}");
    let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(plan["peak_bytes"], 3_249_143_816_u64);
    for layout in plan["layouts"].as_array().unwrap() {
        let memory = layout["most_free_bytes"].as_u64().unwrap();
        assert!(memory >= 3_249_143_816);
        let (memory, regions) = (memory.to_string(), layout["regions"].to_string());
        let (status, text) = flexmem(&["replay", &file, "--device-memory", &memory, "--regions", &regions]);
        assert_eq!(status, Some(0), "{text}");
    }
    assert!(plan["caching_allocator_bytes"].as_u64().unwrap() > 3_249_143_816);
}
