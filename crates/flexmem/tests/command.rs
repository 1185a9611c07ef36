//! The command itself: output, exit status, and what goes to which stream.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::{data, sample};
use flex_trace::record::{BlockSnapshot, BlockState, Frame, History, RegionState, Remark};
use flex_trace::{Action, Address, Event, FrameId, Header, Record, StackId, StringId, Writer};

fn flexmem(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flexmem")).args(arguments).output().unwrap()
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn sample_name(name: &str) -> String {
    sample(name).display().to_string()
}

#[test]
fn import_writes_a_trace_that_info_reads_as_the_file_itself() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("oom.trace").display().to_string();
    let file = sample_name("expandable_oom_four_devices.pickle");
    let output = flexmem(&["import", &file, "-o", &trace]);
    assert!(output.status.success(), "{output:?}");
    assert!(out(&output).ends_with(", from a PyTorch snapshot\n"), "{}", out(&output));
    let (of_file, of_trace) = (flexmem(&["info", "--json", &file]), flexmem(&["info", "--json", &trace]));
    assert!(of_file.status.success());
    assert_eq!(out(&of_file), out(&of_trace));
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "no temporary file is left");
}

#[test]
fn a_broken_file_leaves_no_output_and_fails_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (file, trace) = (folder.path().join("cut.pickle"), folder.path().join("cut.trace"));
    let whole = data("protocol_4.pickle");
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let output = flexmem(&["import", file.to_str().unwrap(), "-o", trace.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with(&format!("flexmem: {}: byte ", file.display())), "{error}");
    assert!(error.contains("the pickle ends in the middle"), "{error}");
    assert!(!Path::new(&trace).exists());
}

#[test]
fn wrong_arguments_have_a_status_of_their_own() {
    for arguments in [&["info"][..], &["no-such-command"], &["info", "x", "--device-memory", "many"]] {
        assert_eq!(flexmem(arguments).status.code(), Some(2), "{arguments:?}");
    }
    assert_eq!(flexmem(&["info", "/nowhere"]).status.code(), Some(1));
    assert_eq!(flexmem(&["--help"]).status.code(), Some(0));
}

#[test]
fn arguments_that_do_not_go_together_are_wrong_ones() {
    let file = sample_name("complete_trace.pickle");
    for (arguments, expected) in [
        (
            &["import", &file, "-o", "-", "--json"][..],
            "flexmem: --json and the trace cannot both go to the standard output\n",
        ),
        (
            &["report", &file, "-o", "-", "--json"],
            "flexmem: --json and the page cannot both go to the standard output\n",
        ),
        (
            &["replay", &file, "--device-memory", "100"],
            "flexmem: --device-memory: a device of 100 bytes in 1 region: region setup: region 0 has 100 bytes; expected \
             at least 128\n",
        ),
    ] {
        let output = flexmem(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_eq!((out(&output), String::from_utf8_lossy(&output.stderr).as_ref()), ("", expected));
    }
}

#[test]
fn an_error_that_nobody_can_read_has_its_status() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for arguments in [&["info", "/nowhere"][..], &["replay", "/nowhere", "--device-memory", "1GiB"]] {
        let status =
            Command::new(env!("CARGO_BIN_EXE_flexmem")).args(arguments).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn names_of_a_file_do_not_steer_the_terminal() {
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    writer.write(&Record::Setting { key: "\u{1b}[2J", value: "x\ny" }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("hostile.trace");
    std::fs::write(&trace, writer.finish().unwrap()).unwrap();
    let output = flexmem(&["info", trace.to_str().unwrap()]);
    assert!(out(&output).contains("settings on: \\u{1b}[2J:x\\ny\n"), "{output:?}");
    let missing = folder.path().join("no\u{1b}[2Jne");
    let output = flexmem(&["info", missing.to_str().unwrap()]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("no\\u{1b}[2Jne: "), "{error}");
}

/// A trace with twelve of each thing that lists show.
fn twelve_of_each() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    let mut write = |record: Record<'_>| writer.write(&record).unwrap();
    // Not whole, or what is live at the end would be one contradiction more.
    let (reserved_before_bytes, contradictions, baseline_freed) = (None, 1, 0);
    let recorded = true;
    write(Record::History(History {
        device: 0,
        recorded,
        reserved_before_bytes,
        contradictions,
        baseline_freed,
    }));
    write(Record::String { id: StringId(0), text: "train.py" });
    for id in 0..12_u32 {
        write(Record::String { id: StringId(id + 1), text: &format!("step{id}") });
        let (function, file) = (StringId(id + 1), StringId(0));
        write(Record::Frame(Frame { id: FrameId(id), function, file, line: 1 }));
        write(Record::Stack { id: StackId(id), frames: [id].as_slice().into() });
        let (address, size_bytes) = (Address(u64::from(id) << 20), 512);
        let allocated = Action::Allocated { address, size_bytes, rounded_bytes: None, stream: 0 };
        write(Record::Event(Event { stack: Some(StackId(id)), ..Event::new(0, allocated) }));
    }
    let (requested_bytes, free_bytes, largest_free_bytes) = (1 << 20, None, None);
    let failed =
        Action::OutOfMemory { requested_bytes, free_bytes, largest_free_bytes, capacity_bytes: None };
    for _ in 0..12 {
        write(Record::Event(Event::new(0, failed)));
    }
    for region in 0..12_u64 {
        write(Record::RegionState(RegionState {
            device: 0,
            address: (region << 20).into(),
            size_bytes: 1 << 20,
            stream: 0,
            pool: (0, region + 1),
            small: false,
            expandable: false,
            allocated_bytes: Some(7),
            active_bytes: None,
            stack: None,
        }));
        for id in 0..12 {
            let (live, free) = (BlockState::Live, BlockState::Free);
            for (size_bytes, state) in [(512, live), ((1 << 20) / 12 - 512 + u64::from(id == 11) * 4, free)] {
                let stack = Some(StackId(id));
                write(Record::Block(BlockSnapshot { size_bytes, requested_bytes: 512, state, stack }));
            }
        }
    }
    writer.finish().unwrap()
}

/// Each list of a JSON object, and of those in it, with what is said to be left out.
fn lists(value: &serde_json::Value) -> Vec<(String, usize, u64)> {
    let mut all = Vec::new();
    let serde_json::Value::Object(entries) = value else { return all };
    for (key, entry) in entries {
        if let Some(list) = entry.as_array().filter(|list| list.iter().any(serde_json::Value::is_object)) {
            let left_out = match key.as_str() {
                "holders" => &value["other_holders"]["sites"],
                key => &value[format!("{key}_left_out")],
            };
            all.push((key.clone(), list.len(), left_out.as_u64().unwrap_or(u64::MAX)));
            all.extend(list.iter().flat_map(lists));
        } else {
            all.extend(lists(entry));
        }
    }
    all
}

#[test]
fn lists_have_as_many_entries_as_asked_for_and_say_how_many_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("twelve.trace").display().to_string();
    std::fs::write(&trace, twelve_of_each()).unwrap();
    for top in [0_usize, 2, 12, 500] {
        let top_text = top.to_string();
        let output = flexmem(&["info", &trace, "--json", "--top", &top_text]);
        let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let device = &info["devices"][0];
        let (shown, left_out) = (top.min(12), 12 - top.min(12) as u64);
        let all = lists(device);
        let mut names: Vec<_> = all.iter().map(|(name, ..)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        if top > 0 {
            assert_eq!(names, ["blocks", "holders", "out_of_memory", "pinned", "private_pools"]);
        }
        for (name, length, others) in &all {
            assert_eq!((*length, *others), (shown, left_out), "{name} with --top {top}");
        }
        let impossible = device["impossible"].as_array().unwrap().len();
        assert_eq!((impossible, device["impossible_left_out"].as_u64().unwrap()), (shown, left_out));
    }
}

#[test]
fn lists_in_text_say_how_many_entries_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("twelve.trace").display().to_string();
    std::fs::write(&trace, twelve_of_each()).unwrap();
    let output = flexmem(&["info", &trace, "--top", "2"]);
    assert_eq!(out(&output).matches("tried 1.00 MiB").count(), 2, "{output:?}");
    for (line, times) in [
        ("10 other failed requests\n", 1),
        ("10 other contradictions\n", 1),
        ("10 other private pools\n", 1),
        ("10 other nearly empty segments\n", 1),
        ("10 other blocks\n", 2),
        ("    5.00 KiB     10 blocks  in 10 other places\n", 1),
    ] {
        assert_eq!(out(&output).matches(line).count(), times, "{line} in {}", out(&output));
    }
    let output = flexmem(&["info", &trace, "--top", "0"]);
    for line in ["  impossible     12 other contradictions\n", "  out of memory  12 other failed requests\n"]
    {
        assert!(out(&output).contains(line), "{line} in {}", out(&output));
    }
}

/// What `info` says, as text, of a trace with these events and a remark that device 1 contradicts itself.
fn said_of(name: &str, events: &[Event]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join(name);
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    for &event in events {
        writer.write(&Record::Event(event)).unwrap();
    }
    let remark = Remark { device: Some(1), impossible: true, text: "a segment is left out" };
    writer.write(&Record::Remark(remark)).unwrap();
    std::fs::write(&trace, writer.finish().unwrap()).unwrap();
    out(&flexmem(&["info", &trace.display().to_string()])).to_owned()
}

#[test]
fn devices_without_memory_are_described_if_there_is_anything_to_tell_of_them() {
    let (requested_bytes, free_bytes) = (8 << 30, Some(1 << 30));
    let (largest_free_bytes, capacity_bytes) = (None, None);
    let failed = Action::OutOfMemory { requested_bytes, free_bytes, largest_free_bytes, capacity_bytes };
    let freed = Action::Freed { address: Address(512), size_bytes: 512 };
    let taken = Action::SnapshotTaken { reserved_bytes: None };
    let text = said_of("odd.trace", &[Event::new(0, failed), Event::new(2, freed), Event::new(3, taken)]);
    for line in [
        "odd.trace: trace, 4 devices\n",
        "\ndevice 0\n  out of memory  tried 8.00 GiB, 1.00 GiB free, at event 1\n",
        "\ndevice 1\n  impossible     a segment is left out\n",
        "\ndevice 2\n",
        "\nnothing happened on device 3\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn every_shell_gets_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let output = flexmem(&["completions", shell]);
        assert!(output.status.success() && out(&output).contains("device-memory"), "{shell}");
    }
}

#[test]
fn the_answer_comes_before_the_rest() {
    let output = flexmem(&["info", &sample_name("expandable_oom_four_devices.pickle")]);
    let lines: Vec<&str> = out(&output).lines().collect();
    assert_eq!(lines[0], "expandable_oom_four_devices.pickle: PyTorch snapshot, 4 devices");
    assert_eq!(lines[1], "settings on: expandable_segments:True");
    assert_eq!(lines[3], "device 1");
    assert_eq!(lines[4], "  out of memory  tried 4.94 GiB, 91.25 MiB free, at event 422");
}
