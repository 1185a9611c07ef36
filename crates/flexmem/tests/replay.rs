//! Replays: exact on what PyTorch really did, and on MiniMalloc's instances; failures with their cause.

mod common;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use common::sample;
use flex::RegionOrder;
use flex_trace::{Action, Event, Header, Record, Writer};
use flexmem::TraceFile;
use flexmem::replay::{CachingAllocator, FlexReplay, Layout, Operations, Segments, play};

const ONE: Layout = Layout { regions: 1 };

fn only(name: &str) -> Operations {
    let mut all = Operations::of(&mut TraceFile::open(&sample(name)).unwrap()).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0).1
}

/// What following a trace came across.
#[derive(Debug, Default, PartialEq)]
struct Followed {
    segments: usize,
    returned: usize,
    allocations: usize,
    live: usize,
    refused: usize,
    reserved_bytes: u64,
}

/// What happened on one device of a file.
fn actions(path: &Path, device: u32) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut keep = |record: &Record<'_>, _: &_| match record {
        Record::Event(event) if event.device == device => actions.push(event.action),
        _ => {}
    };
    TraceFile::open(path).unwrap().each(&mut keep).unwrap();
    actions
}

/// The model takes and returns the same segments at the same moments and hands out the same addresses as PyTorch did,
/// given the addresses that the device gave the segments; it refuses what was refused.
fn follow(actions: &[Action], mut model: CachingAllocator) -> Followed {
    let (mut found, mut live) = (Followed::default(), HashMap::new());
    for action in actions {
        match *action {
            Action::RegionAcquired { address, size_bytes, .. } => {
                model.place_next_segment(address.0);
                found.reserved_bytes += size_bytes;
                found.segments += 1;
            }
            Action::RegionReleased { size_bytes, .. } => {
                found.reserved_bytes -= size_bytes;
                found.returned += 1;
            }
            Action::Allocated { address, size_bytes, stream, .. } => {
                let block = model.allocate(size_bytes, stream).unwrap();
                assert_eq!(model.offset_bytes(block), address.0, "{found:?}");
                assert_eq!(model.reserved_bytes(), found.reserved_bytes, "{found:?}");
                live.insert(address.0, block);
                found.allocations += 1;
            }
            Action::OutOfMemory { requested_bytes, .. } => {
                assert_eq!(model.allocate(requested_bytes, 0), None);
                assert_eq!(model.reserved_bytes(), found.reserved_bytes, "{found:?}");
                found.refused += 1;
            }
            Action::Freed { address, .. } => model.free(live.remove(&address.0).unwrap()),
            _ => {}
        }
    }
    Followed { live: live.len(), ..found }
}

#[test]
fn the_model_follows_a_real_trace_block_by_block() {
    let found = follow(&actions(&sample("complete_trace.pickle"), 0), CachingAllocator::new(1 << 40));
    let (segments, allocations, live) = (9, 36, 10);
    let reserved_bytes = 3_781_165_056;
    assert_eq!(found, Followed { segments, allocations, live, reserved_bytes, ..Followed::default() });
}

/// Device 1 ran full: memory moved from holes to the end of the segment, and then a request was refused.
#[test]
fn the_model_follows_segments_that_grow_block_by_block() {
    let file = sample("expandable_oom_four_devices.pickle");
    let model = |memory_bytes| CachingAllocator::with_segments(memory_bytes, Segments::Expandable);
    let found = follow(&actions(&file, 2), model(80 << 30));
    let (segments, allocations, live, reserved_bytes) = (78, 392, 186, 21_883_781_120);
    assert_eq!(found, Followed { segments, allocations, live, reserved_bytes, ..Followed::default() });

    // The same sample before the history of device 0 was cut, to make it small.
    let whole = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../benches/data/snapshots/expandable_oom_four_devices.trace");
    let found = follow(&actions(&whole, 0), model(80 << 30));
    let (segments, allocations, live, reserved_bytes) = (175, 2434, 2434 - 1918, 8_541_700_096);
    assert_eq!(found, Followed { segments, allocations, live, reserved_bytes, ..Followed::default() });

    let reserved_bytes = 84_202_749_952;
    // What was reserved when the request was refused, and what the device had free then.
    let found = follow(&actions(&file, 1), model(reserved_bytes + 95_682_560));
    let (segments, returned, allocations, live, refused) = (40, 6, 199, 24, 1);
    assert_eq!(found, Followed { segments, returned, allocations, live, refused, reserved_bytes });
}

#[test]
fn segments_are_those_that_the_trace_shows_or_the_settings_name() {
    let segments = |name: &str| -> Vec<Segments> {
        let all = Operations::of(&mut TraceFile::open(&sample(name)).unwrap()).unwrap();
        all.iter().map(|(_, operations)| operations.segments()).collect()
    };
    assert_eq!(segments("expandable_oom_four_devices.pickle"), [Segments::Expandable; 3]);
    assert_eq!(segments("complete_trace.pickle"), [Segments::Fixed]);
    assert_eq!(segments("no_time_field.pickle"), [Segments::Fixed]);
    let generated = |setting: &str, region: Option<bool>| {
        let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
        writer.write(&Record::Setting { key: "expandable_segments", value: setting }).unwrap();
        let address = 4096.into();
        let region =
            region.map(|mapped| Action::RegionAcquired { address, size_bytes: 1 << 21, stream: 0, mapped });
        let allocated = Action::Allocated { address, size_bytes: 512, rounded_bytes: None, stream: 0 };
        for action in region.into_iter().chain([allocated]) {
            writer.write(&Record::Event(Event::new(0, action))).unwrap();
        }
        let bytes = writer.finish().unwrap();
        Operations::of(&mut TraceFile::import(bytes.as_slice(), "generated").unwrap()).unwrap()[0]
            .1
            .segments()
    };
    assert_eq!(generated("True", None), Segments::Expandable);
    assert_eq!(generated("False", None), Segments::Fixed);
    assert_eq!(generated("True", Some(false)), Segments::Fixed, "the platform has none");
    assert_eq!(generated("False", Some(true)), Segments::Expandable);
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
    assert!(text.contains("(a model, with expandable segments)\n  "), "{text}");
    let file = sample("complete_trace.pickle").display().to_string();
    let (status, text) = flexmem(&["replay", &file, "--device-memory", "1GiB"]);
    assert_eq!(status, Some(3), "{text}");
    assert!(text.contains("too little, in whatever pieces"), "{text}");
    let (status, text) = flexmem(&["replay", &file, "--device-memory", "4GiB", "--regions", "64"]);
    assert_eq!(status, Some(3), "{text}");
    assert!(text.contains("tried 512.00 MiB\n"), "{text}");
    assert!(text.contains("no region is that large: each has 64.00 MiB\n"), "{text}");
    let (status, text) = flexmem(&["replay", &file, "--device-memory", "4GiB", "--device", "7"]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("device 7 allocated nothing; expected one of 0"), "{text}");
    let never = sample("history_never_enabled.pickle").display().to_string();
    let (status, text) = flexmem(&["replay", &never, "--device-memory", "4GiB"]);
    assert!(status == Some(1) && text.contains("history was never on"), "{text}");
    // All that is asked for is free in one piece; the model takes 2 MiB for any small request.
    let tiny = "id,lower,upper,size\n0,0,5,4\n1,1,9,4\n";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tiny.csv").display().to_string();
    std::fs::write(&file, tiny).unwrap();
    let (status, text) = flexmem(&["replay", &file, "--device-memory", "1MiB", "--compare"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("or too small for a new segment"), "{text}");
    assert!(!text.contains("fragmentation"), "{text}");
    let (status, text) = flexmem(&["plan", &file]);
    assert_eq!(status, Some(0), "{text}");
    assert!(!text.contains("none"), "{text}");
    std::fs::write(&file, "id,lower,upper,size\n").unwrap();
    let (status, text) = flexmem(&["plan", &file]);
    assert!(status == Some(1) && text.ends_with("no allocations to play\n"), "{text}");
}

/// The sizes that are printed serve, when they are typed in: rounded to the nearest, some would not.
#[test]
fn a_plan_says_sizes_that_serve() {
    let file = sample("no_time_field.pickle").display().to_string();
    let (status, text) = flexmem(&["plan", &file, "--regions", "7"]);
    assert_eq!(status, Some(0), "{text}");
    let row = text.lines().find(|line| line.contains("7 regions")).unwrap();
    let words: Vec<&str> = row.split_whitespace().collect();
    let &[.., most, "GiB", least, "GiB"] = words.as_slice() else { panic!("{row}") };
    for (order, size) in [("most-free", most), ("least-free", least)] {
        let size = format!("{size}GiB");
        let arguments =
            ["replay", &file, "--regions", "7", "--region-order", order, "--device-memory", &size];
        let (status, text) = flexmem(&arguments);
        assert_eq!(status, Some(0), "{order} {size}: {text}");
    }
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
