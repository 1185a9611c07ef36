//! `flexmem info` on the real snapshots: its figures are those that a script in Python found by another way
//! (tests/data/figures.py), and what it says of their past is what their README says.

mod common;

use std::path::Path;

use common::{data, sample};
use flex_trace::record::{
    BlockSnapshot, BlockState, Device, Frame, History, PressureEnd, RegionState, Source, tried,
};
use flex_trace::{Action, Address, Event, FrameId, Header, Record, StackId, StringId, Writer};
use flexmem::TraceFile;
use flexmem::info::answers::{HistoryState, Info, PinningBlock};
use flexmem::info::{Options, info};
use serde_json::Value;

fn info_of(name: &str) -> Info {
    let options = Options { device_memory_bytes: None, top: 5 };
    info(&mut TraceFile::open(&sample(name)).unwrap(), &options).unwrap()
}

fn as_json(info: &Info) -> Value {
    serde_json::to_value(info).unwrap()
}

#[track_caller]
fn assert_same(found: &Value, expected: &Value, keys: &[&str], place: &str) {
    for &key in keys {
        assert_eq!(found[key], expected[key], "{key} of {place}");
    }
}

#[test]
fn the_figures_of_every_sample_are_those_found_by_another_way() {
    let expected: Value = serde_json::from_slice(&data("figures.json")).unwrap();
    let mut devices = 0;
    for (name, all) in expected.as_object().unwrap() {
        let info = as_json(&info_of(name));
        assert_eq!(info["devices"].as_array().unwrap().len(), all.as_array().unwrap().len(), "{name}");
        for found in info["devices"].as_array().unwrap() {
            let expected = &all[found["device"].as_u64().unwrap() as usize];
            compare(found, expected, &format!("{name}, device {}", found["device"]));
            devices += 1;
        }
    }
    assert_eq!(devices, 9);
}

fn compare(found: &Value, expected: &Value, place: &str) {
    let memory = [
        "reserved_bytes",
        "allocated_bytes",
        "active_bytes",
        "requested_bytes",
        "largest_hole_bytes",
        "releasable_bytes",
        "segments",
        "expandable_segments",
    ];
    assert_same(&found["memory"], &expected["memory"], &memory, place);
    assert_same(&found["events"], expected, &["allocations", "frees"], place);
    let history = ["baseline_blocks", "baseline_bytes", "reserved_before_bytes"];
    assert_same(&found["history"], expected, &history, place);
    assert_eq!(found["history"]["contradictions"], 0, "{place}");
    assert_eq!(found["impossible"].as_array().unwrap().len(), 0, "{place}");
    if expected["recorded"] == true {
        assert_eq!(found["peak"]["live_bytes"], expected["peak_bytes"], "{place}");
        assert_eq!(found["peak"]["reserved_peak_bytes"], expected["reserved_peak_bytes"], "{place}");
    } else {
        assert!(found["peak"].is_null(), "{place}");
    }
    let failures = expected["out_of_memory"].as_array().unwrap();
    assert_eq!(found["out_of_memory"].as_array().unwrap().len(), failures.len(), "{place}");
    for (found, expected) in found["out_of_memory"].as_array().unwrap().iter().zip(failures) {
        assert_same(found, expected, &["requested_bytes", "device_free_bytes", "live_bytes"], place);
    }
}

#[test]
fn whether_history_was_on_and_whole() {
    let state = |name: &str| {
        let info = as_json(&info_of(name));
        let state =
            |device: &Value| format!("{} {}", device["device"], device["history"]["state"].as_str().unwrap());
        let mut states: Vec<_> = info["devices"].as_array().unwrap().iter().map(state).collect();
        states.sort();
        states.join(", ")
    };
    assert_eq!(state("complete_trace.pickle"), "0 whole");
    assert_eq!(state("no_time_field.pickle"), "0 truncated");
    assert_eq!(state("history_never_enabled.pickle"), "0 never_on, 1 never_on");
    // Its stacks were left out when it was made small.
    assert_eq!(state("old_style_history.pickle"), "0 never_on");
    let with_stacks = TraceFile::import(data("bare_list.pickle").as_slice(), "bare_list").unwrap();
    let with_stacks = info(&mut { with_stacks }, &Options { device_memory_bytes: None, top: 5 }).unwrap();
    assert_eq!(with_stacks.devices[0].history.state, HistoryState::OwnersOnly);
    assert_eq!(with_stacks.devices[0].holders.largest[0].site.as_deref(), Some("step (train.py:3)"));
    assert_eq!(state("expandable_oom_four_devices.pickle"), "0 truncated, 1 whole, 2 whole, 3 never_on");
}

#[test]
fn the_busiest_device_comes_first_with_its_failure() {
    let info = info_of("expandable_oom_four_devices.pickle");
    let devices: Vec<u32> = info.devices.iter().map(|device| device.device).collect();
    assert_eq!(devices, [1, 2, 0, 3]);
    let [failure] = info.devices[0].out_of_memory.as_slice() else { panic!("one failure") };
    assert_eq!((failure.requested_bytes, failure.device_free_bytes), (5_308_694_528, Some(95_682_560)));
    // Nothing of what was free and cached would have been enough.
    let missing = 5_308_694_528 - 95_682_560 - failure.cached_bytes.unwrap();
    assert_eq!(failure.missing_bytes, Some(missing));
}

#[test]
fn what_is_set_is_said_and_never_advised() {
    let info = info_of("expandable_oom_four_devices.pickle");
    assert_eq!(info.settings_on(), ["expandable_segments:True"]);
    assert!(
        info.advice.iter().all(|advice| !advice.contains("expandable_segments:True")),
        "{:?}",
        info.advice
    );
    // The same memory without the setting gets the advice.
    let info = info_of("complete_trace.pickle");
    assert!(
        info.advice.iter().any(|advice| advice.contains("expandable_segments:True")),
        "{:?}",
        info.advice
    );
    let info = info_of("history_never_enabled.pickle");
    assert!(info.advice[0].contains("_record_memory_history"), "{:?}", info.advice);
}

#[test]
fn figures_above_the_memory_of_the_device_are_impossible() {
    let mut trace = TraceFile::open(&sample("complete_trace.pickle")).unwrap();
    let with = |bytes| Options { device_memory_bytes: Some(bytes), top: 5 };
    let fine = info(&mut trace, &with(4 << 30)).unwrap();
    assert!(fine.devices[0].impossible.is_empty());
    let impossible = info(&mut trace, &with(1 << 30)).unwrap();
    let texts = impossible.devices[0].impossible.join("\n");
    assert!(texts.contains("are reserved, and the device has 1073741824"), "{texts}");
    assert!(texts.contains("were live at the peak"), "{texts}");
}

#[test]
fn pressure_on_spyre_is_summed_up_without_advice_for_cuda() {
    let mut trace = TraceFile::import(data("pressure.pickle").as_slice(), "pressure").unwrap();
    let info = info(&mut trace, &Options { device_memory_bytes: None, top: 5 }).unwrap();
    let device = &info.devices[0];
    assert_eq!(device.capacity_bytes, Some(4096));
    assert_eq!(
        (device.pressure.events, device.pressure.rescued, device.pressure.reclaimed_bytes),
        (2, 1, 512)
    );
    assert_eq!((device.history.state, device.history.lost_events), (HistoryState::Truncated, 9));
    assert_eq!((device.events.collections, device.events.out_of_memory), (1, 1));
    assert!(info.advice.iter().all(|advice| !advice.contains("expandable_segments")), "{:?}", info.advice);
}

#[test]
fn a_missing_file_and_a_folder_are_errors() {
    assert!(TraceFile::open(Path::new("/nowhere/at/all")).is_err());
}

#[test]
fn what_one_collection_freed_for_two_requests_is_counted_once() {
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    let (end, objects, reclaimed_bytes, duration_ns) = (PressureEnd::Served, 3, 500, 7);
    let collected =
        Action::Collected { generation: 2, objects, reclaimed_bytes, duration_ns, pressure: Some(1) };
    let began = [1, 2].map(|pressure| Action::PressureBegan { pressure, requested_bytes: 90 });
    let ended = [1, 2].map(|pressure| Action::PressureEnded {
        pressure,
        end,
        tried: tried::FULL_COLLECTION,
        reclaimed_bytes,
        duration_ns,
    });
    for action in began.into_iter().chain([collected]).chain(ended) {
        writer.write(&Record::Event(Event::new(0, action))).unwrap();
    }
    let bytes = writer.finish().unwrap();
    let mut trace = TraceFile::import(bytes.as_slice(), "generated").unwrap();
    let found = info(&mut trace, &Options { device_memory_bytes: None, top: 5 }).unwrap();
    let pressure = found.devices[0].pressure;
    assert_eq!((pressure.events, pressure.rescued, pressure.reclaimed_bytes), (2, 2, 500));
}

#[test]
fn a_block_whose_end_was_lost_makes_room_for_the_next_one_at_its_place() {
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    let device = Device { device: 0, name: None, capacity_bytes: Some(1000) };
    writer.write(&Record::Device(device)).unwrap();
    let allocated = |address, size_bytes| Action::Allocated {
        address: Address(address),
        size_bytes,
        rounded_bytes: None,
        stream: 0,
    };
    let lost = Action::Lost { events: 1 };
    // The third is where the second was too, but that is not known to have been freed.
    for action in [allocated(64, 700), lost, allocated(64, 800), lost, allocated(128, 600)] {
        writer.write(&Record::Event(Event::new(0, action))).unwrap();
    }
    let bytes = writer.finish().unwrap();
    let mut trace = TraceFile::import(bytes.as_slice(), "generated").unwrap();
    let found = info(&mut trace, &Options { device_memory_bytes: None, top: 5 }).unwrap();
    let device = &found.devices[0];
    assert_eq!(device.peak.as_ref().unwrap().live_bytes, 1400);
    assert!(device.impossible.is_empty(), "more than the device has, since events were lost");
}

/// What a trace with one failed request of 8 MiB says of it: with 4 MiB free, and 64 MiB reserved of which 60 are live.
fn failed_request(largest_free_bytes: Option<u64>) -> (Option<u64>, Option<u64>) {
    const MIB: u64 = 1 << 20;
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    let (free_bytes, reserved_before_bytes) = (Some(4 * MIB), Some(0));
    let history =
        History { device: 0, recorded: true, reserved_before_bytes, contradictions: 0, baseline_freed: 0 };
    writer.write(&Record::History(history)).unwrap();
    let address = Address(1 << 40);
    for action in [
        Action::RegionAcquired { address, size_bytes: 64 * MIB, stream: 0, mapped: false },
        Action::Allocated { address, size_bytes: 60 * MIB, rounded_bytes: None, stream: 0 },
        Action::OutOfMemory {
            requested_bytes: 8 * MIB,
            free_bytes,
            largest_free_bytes,
            capacity_bytes: None,
        },
    ] {
        writer.write(&Record::Event(Event::new(0, action))).unwrap();
    }
    let bytes = writer.finish().unwrap();
    let mut trace = TraceFile::import(bytes.as_slice(), "generated").unwrap();
    let found = info(&mut trace, &Options { device_memory_bytes: None, top: 5 }).unwrap();
    let failure = &found.devices[0].out_of_memory[0];
    (failure.cached_bytes.map(|bytes| bytes / MIB), failure.missing_bytes.map(|bytes| bytes / MIB))
}

#[test]
fn what_is_cached_does_not_count_twice() {
    assert_eq!(failed_request(None), (Some(4), Some(0)), "PyTorch's free memory is what it has not reserved");
    assert_eq!(failed_request(Some(4 << 20)), (None, Some(4)), "FlexAllocator's is all that is free");
}

#[test]
fn steps_are_no_times_and_equal_devices_come_in_their_order() {
    let table: &[u8] = b"id,lower,upper,size\n0,0,50000,128\n";
    let options = Options { device_memory_bytes: None, top: 5 };
    let found = info(&mut TraceFile::import(table, "table").unwrap(), &options).unwrap();
    assert_eq!(found.devices[0].history.state, HistoryState::Whole);
    assert_eq!(found.devices[0].history.duration_ns, None);
    assert_eq!(found.devices[0].peak.as_ref().unwrap().reserved_bytes, None, "a table does not say");

    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    for device in [2, 0, 1] {
        let allocated =
            Action::Allocated { address: Address(16), size_bytes: 512, rounded_bytes: None, stream: 0 };
        writer.write(&Record::Event(Event::new(device, allocated))).unwrap();
    }
    let bytes = writer.finish().unwrap();
    let found = info(&mut TraceFile::import(bytes.as_slice(), "trace").unwrap(), &options).unwrap();
    assert_eq!(found.devices.iter().map(|device| device.device).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn events_that_contradict_each_other_are_not_taken_for_a_late_beginning() {
    let advice = |contradictions, baseline_freed| {
        let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
        let history = History {
            device: 0,
            recorded: true,
            reserved_before_bytes: Some(0),
            contradictions,
            baseline_freed,
        };
        let allocated =
            Action::Allocated { address: Address(16), size_bytes: 512, rounded_bytes: None, stream: 0 };
        let source = Source { producer: "test", kind: "PyTorch snapshot", name: "test" };
        for record in
            [Record::Source(source), Record::History(history), Record::Event(Event::new(0, allocated))]
        {
            writer.write(&record).unwrap();
        }
        let bytes = writer.finish().unwrap();
        let options = Options { device_memory_bytes: None, top: 5 };
        info(&mut TraceFile::import(bytes.as_slice(), "trace").unwrap(), &options).unwrap().advice.join("\n")
    };
    assert_eq!(advice(0, 0), "");
    assert!(advice(1, 0).starts_with("Some events do not fit the others"), "{}", advice(1, 0));
    assert!(advice(1, 1).starts_with("History does not reach back"), "{}", advice(1, 1));
}

/// A segment of 4096 bytes with blocks of sizes and states, whose stacks are their numbers.
fn with_blocks(blocks: &[(u64, BlockState)], top: usize) -> Info {
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    let mut write = |record: Record<'_>| writer.write(&record).unwrap();
    write(Record::String { id: StringId(0), text: "train.py" });
    write(Record::String { id: StringId(1), text: "step" });
    write(Record::RegionState(RegionState {
        device: 0,
        address: Address(0x1000),
        size_bytes: 4096,
        stream: 0,
        pool: (0, 0),
        small: false,
        expandable: false,
        allocated_bytes: None,
        active_bytes: None,
        stack: None,
    }));
    for (number, &(size_bytes, state)) in blocks.iter().enumerate() {
        let id = number as u32;
        let (function, file) = (StringId(1), StringId(0));
        write(Record::Frame(Frame { id: FrameId(id), function, file, line: id }));
        write(Record::Stack { id: StackId(id), frames: [id].as_slice().into() });
        let stack = Some(StackId(id));
        write(Record::Block(BlockSnapshot { size_bytes, requested_bytes: size_bytes, state, stack }));
    }
    let bytes = writer.finish().unwrap();
    let mut trace = TraceFile::import(bytes.as_slice(), "generated").unwrap();
    info(&mut trace, &Options { device_memory_bytes: None, top }).unwrap()
}

#[test]
fn the_blocks_that_keep_a_nearly_empty_segment_are_named_those_between_large_holes_first() {
    let (live, pending, free) = (BlockState::Live, BlockState::PendingFree, BlockState::Free);
    let blocks = [(64, live), (100, free), (32, pending), (1000, free), (16, live), (2868, free), (16, live)];
    let named = |top| {
        let found = with_blocks(&blocks, top);
        let [segment] = found.devices[0].memory.as_ref().unwrap().pinned.as_slice() else { panic!("one") };
        assert_eq!((segment.address, segment.free_bytes), (0x1000, 100 + 1000 + 2868));
        let block = |block: &PinningBlock| {
            let line = block.stack[0].clone();
            (block.address - 0x1000, block.size_bytes, block.free_before_bytes, block.free_after_bytes, line)
        };
        (segment.blocks.iter().map(block).collect::<Vec<_>>(), segment.blocks_left_out)
    };
    let line = |number: u32| format!("step (train.py:{number})");
    let expected = [
        (1196, 16, 1000, 2868, line(4)),
        (4080, 16, 2868, 0, line(6)),
        (164, 32, 100, 1000, line(2)),
        // The line of the first frame is not known.
        (0, 64, 0, 100, "step (train.py)".to_owned()),
    ];
    assert_eq!(named(5), (expected.to_vec(), 0));
    assert_eq!(named(1), (expected[..1].to_vec(), 3));
    // A quarter in use is not nearly empty.
    let quarter = with_blocks(&[(1024, live), (3072, free)], 5);
    assert!(quarter.devices[0].memory.as_ref().unwrap().pinned.is_empty());
}

#[test]
fn what_a_newer_version_has_added_is_counted_and_left_out() {
    let allocated =
        Action::Allocated { address: Address(16), size_bytes: 512, rounded_bytes: None, stream: 0 };
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    for record in [Record::Unknown { kind: 900 }, Record::Event(Event::new(0, allocated))] {
        writer.write(&record).unwrap();
    }
    let bytes = writer.finish().unwrap();
    let mut trace = TraceFile::import(bytes.as_slice(), "trace").unwrap();
    let found = info(&mut trace, &Options { device_memory_bytes: None, top: 5 }).unwrap();
    assert_eq!((found.unknown_records, found.devices[0].events.allocations), (1, 1));
    let mut kinds = 0;
    trace.each_record(|record| kinds += u64::from(matches!(record, Record::Unknown { .. }))).unwrap();
    assert_eq!(kinds, 0, "without its body it would be broken for those who know it");
}

#[test]
fn a_trace_that_was_cut_off_misses_events_on_the_devices_that_it_tells_of() {
    let allocated =
        Action::Allocated { address: Address(16), size_bytes: 512, rounded_bytes: None, stream: 0 };
    for (events, expected) in [(1, 3), (0, 0)] {
        let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
        for _ in 0..events {
            writer.write(&Record::Event(Event::new(3, allocated))).unwrap();
        }
        let bytes = writer.into_output().unwrap();
        let mut trace = TraceFile::import(bytes.as_slice(), "trace").unwrap();
        let found = info(&mut trace, &Options { device_memory_bytes: None, top: 5 }).unwrap();
        let missing = found.devices.iter().map(|device| (device.device, device.history.lost_unknown));
        assert_eq!(missing.collect::<Vec<_>>(), [(expected, true)]);
    }
}
