//! The command itself: output, exit status, and what goes to which stream.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::{data, sample};
use flex_trace::{Action, Event, Header, Record, Writer};

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

#[test]
fn lists_have_as_many_entries_as_asked_for() {
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    let action = Action::OutOfMemory {
        requested_bytes: 1 << 20,
        free_bytes: None,
        largest_free_bytes: None,
        capacity_bytes: None,
    };
    let allocated =
        Action::Allocated { address: 4096.into(), size_bytes: 512, rounded_bytes: None, stream: 0 };
    for action in std::iter::once(allocated).chain(std::iter::repeat_n(action, 12)) {
        writer.write(&Record::Event(Event::new(0, action))).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("failures.trace").display().to_string();
    std::fs::write(&trace, writer.finish().unwrap()).unwrap();
    let output = flexmem(&["info", &trace, "--top", "2"]);
    assert_eq!(out(&output).matches("tried 1.00 MiB").count(), 2, "{output:?}");
    assert!(out(&output).contains("                 10 requests failed besides\n"), "{output:?}");
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
