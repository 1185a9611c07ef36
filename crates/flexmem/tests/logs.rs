//! Logs of other tools: RMM, MiniMalloc, PyTorch's profiler.

mod common;

use std::io::Read;

use common::{imported, lines};
use flex_trace::{Header, Writer};
use flexmem::import::{Kind, Sharing};

#[track_caller]
fn assert_trace(file: &str, kind: Kind, expected: &[&str]) {
    let (found, trace) = imported(file.as_bytes()).unwrap();
    assert_eq!(found, kind);
    let lines = lines(&trace);
    // Behind where it comes from and the clock, before the end.
    assert_eq!(lines[2..lines.len() - 1], *expected);
}

#[track_caller]
fn assert_refused(file: &str, expected: &str) {
    let error = imported(file.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, expected);
}

const DEVICE: &str = "Device(Device { device: 0, name: None, capacity_bytes: None })";

#[test]
fn rmm_over_midnight_with_a_failure_and_a_free_of_what_was_there_before() {
    let log = "Thread,Time,Action,Pointer,Size,Stream\n\
               7,23:59:59:999999,allocate,0x7f0000000000,1000,0x2\n\
               7,00:00:00:000001,free,0x7f0000000000,1000,0x2\n\
               7,00:00:01.5,free,0x10,8,0x0\n\
               8,00:00:02.0,allocate failure,(nil),99999,0x0\n";
    assert_trace(
        log,
        Kind::Rmm,
        &[
            DEVICE,
            "0 Allocated { address: Address(139637976727552), size_bytes: 1000, rounded_bytes: None, stream: 2 } at \
             86399999999000",
            "0 Freed { address: Address(139637976727552), size_bytes: 1000 } at 86400000001000",
            "0 OutOfMemory { requested_bytes: 99999, free_bytes: None, largest_free_bytes: None, capacity_bytes: None } \
             at 86402000000000",
            "History(History { device: 0, recorded: true, reserved_before_bytes: None, contradictions: 0, \
             baseline_freed: 1 })",
        ],
    );
    let heading = "Thread,Time,Action,Pointer,Size,Stream\n";
    assert_refused(&format!("{heading}1,2\n"), "line 2: expected 6 fields, found 2: 1,2");
    assert_refused(
        &format!("{heading}1,25:00:00,free,0x1,1,0x0\n"),
        "line 2: expected a time of day, found 25:00:00",
    );
    assert_refused(
        &format!("{heading}1,1:0:0,free,0x1,x,0x0\n"),
        "line 2: expected a size in bytes, found x",
    );
    assert_refused(
        &format!("{heading}1,1:0:0,free,here,1,0x0\n"),
        "line 2: expected a hexadecimal address, found here",
    );
    assert_refused(
        &format!("{heading}1,1:0:0,realloc,0x1,1,0x0\n"),
        "line 2: expected allocate, allocate failure or free, found realloc",
    );
}

#[test]
fn minimalloc_frees_first_and_knows_inclusive_ends() {
    let events = [
        DEVICE,
        "History(History { device: 0, recorded: true, reserved_before_bytes: None, contradictions: 0, \
         baseline_freed: 0 })",
        "0 Allocated { address: Address(0), size_bytes: 128, rounded_bytes: None, stream: 0 } at 0",
        "0 Freed { address: Address(0), size_bytes: 128 } at 5",
        "0 Allocated { address: Address(128), size_bytes: 64, rounded_bytes: None, stream: 0 } at 5",
        "0 Freed { address: Address(128), size_bytes: 64 } at 9",
    ];
    assert_trace("id,lower,upper,size\n0,0,5,128\n1,5,9,64\n", Kind::MiniMalloc, &events);
    assert_trace("buffer, size, start, end\nb0, 128, 0, 4\nb1, 64, 5, 8\n", Kind::MiniMalloc, &events);
    assert_refused("id,lower,upper,size\n0,5,5,1\n", "line 2: expected a life, found one from 5 to before 5");
    assert_refused("id,lower,upper,size\n0,5\n", "line 2: expected a number, found \"\" in: 0,5");
    let half = 1_u64 << 63;
    assert_refused(
        &format!("id,lower,upper,size\n0,0,1,{half}\n1,0,1,{half}\n"),
        "the sizes of this table of MiniMalloc are 2^64 bytes and more in all; expected less",
    );
}

#[test]
fn a_buffer_of_nothing_does_not_free_the_one_behind_it() {
    let events = [
        DEVICE,
        "History(History { device: 0, recorded: true, reserved_before_bytes: None, contradictions: 0, \
         baseline_freed: 0 })",
        "0 Allocated { address: Address(0), size_bytes: 0, rounded_bytes: None, stream: 0 } at 0",
        "0 Allocated { address: Address(1), size_bytes: 64, rounded_bytes: None, stream: 0 } at 1",
        "0 Freed { address: Address(0), size_bytes: 0 } at 5",
        "0 Freed { address: Address(1), size_bytes: 64 } at 9",
    ];
    assert_trace("id,lower,upper,size\n0,0,5,0\n1,1,9,64\n", Kind::MiniMalloc, &events);
}

/// A pipe, of which each read gives a byte.
struct Drops<'a>(&'a [u8]);

impl Read for Drops<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let length = out.len().min(self.0.len()).min(1);
        self.0.read(&mut out[..length])
    }
}

#[test]
fn a_file_in_pieces_is_told_apart_as_a_whole_one_is() {
    let import = |file: &str| {
        let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
        flexmem::import::import(Drops(file.as_bytes()), "file", &mut writer, Sharing::Refused)
    };
    assert_eq!(import("Thread,Time,Action,Pointer,Size,Stream\n").unwrap(), Kind::Rmm);
    assert_eq!(import("id,lower,upper,size\n0,0,5,128\n").unwrap(), Kind::MiniMalloc);
    let error = import("version https://git-lfs.github.com/spec/v1\n").unwrap_err().to_string();
    assert!(error.starts_with("this is a pointer of Git LFS"), "{error}");
}

#[test]
fn what_is_cut_off_or_is_no_base64_is_said() {
    let refused = |file: &str| imported(file.as_bytes()).unwrap_err().to_string();
    let error = refused("{\"traceEvents\": [{\"name\": \"x\"}, ");
    assert!(error.starts_with("the JSON ends in the middle: the file was cut off"), "{error}");
    let error = refused("{\"traceEvents\": 5}");
    assert!(error.starts_with("this is no trace of PyTorch's profiler: invalid type"), "{error}");
    let error = refused("<html>\"base64\": \"!!!!\"</html>");
    assert!(error.starts_with("the snapshot in this page is no base64: "), "{error}");
}

#[test]
fn the_profiler_in_order_of_time_without_the_memory_of_the_cpu() {
    let event = |ts: f64, device_type: u64, address: u64, bytes: i64| {
        serde_json::json!({"ph": "i", "name": "[memory]", "pid": 3, "tid": 9, "ts": ts, "args": {
            "Total Allocated": 1, "Bytes": bytes, "Device Id": 0, "Device Type": device_type, "Addr": address}})
    };
    let other =
        serde_json::json!({"ph": "X", "name": "aten::add", "ts": 1, "dur": 2, "args": {"Addr": "no number"}});
    let events = vec![event(5.5, 1, 4096, -64), event(1.25, 1, 4096, 64), event(1.0, 0, 16, 8), other];
    let expected = [
        "Remark(Remark { device: None, impossible: false, text: \"events passed over, since they are of the CPU's \
         memory, beside that of accelerators: 1\" })",
        "Device(Device { device: 0, name: Some(\"cuda:0\"), capacity_bytes: None })",
        "0 Allocated { address: Address(4096), size_bytes: 64, rounded_bytes: None, stream: 0 } at 1250",
        "0 Freed { address: Address(4096), size_bytes: 64 } at 5500",
        "History(History { device: 0, recorded: true, reserved_before_bytes: None, contradictions: 0, \
         baseline_freed: 0 })",
    ];
    let file = serde_json::json!({"schemaVersion": 1, "traceEvents": events, "traceName": "x"});
    assert_trace(&file.to_string(), Kind::Json, &expected);
    assert_trace(&serde_json::Value::from(events).to_string(), Kind::Json, &expected);
    let without = serde_json::json!({"traceEvents": [{"name": "[memory]", "ts": 1, "args": {"Bytes": 5}}]});
    assert_refused(
        &without.to_string(),
        "the profiler's `[memory]` events have no addresses: record with PyTorch 1.12 or later",
    );
}

/// Events of the profiler at times of their own: a kind of device and its number, an address, and bytes.
fn profile(changes: &[(i64, i64, u64, i64)]) -> Vec<serde_json::Value> {
    let event = |(ts, &(kind, index, address, bytes)): (usize, &(i64, i64, u64, i64))| {
        serde_json::json!({"name": "[memory]", "ts": ts, "args": {
            "Bytes": bytes, "Device Id": index, "Device Type": kind, "Addr": address}})
    };
    changes.iter().enumerate().map(event).collect()
}

#[test]
fn devices_of_two_kinds_with_one_number_are_two() {
    let events = profile(&[(1, 0, 4096, 64), (20, 0, 4096, 32), (20, 0, 4096, -32), (1, 0, 4096, -64)]);
    assert_trace(
        &serde_json::json!({"traceEvents": events}).to_string(),
        Kind::Json,
        &[
            "Device(Device { device: 0, name: Some(\"cuda:0\"), capacity_bytes: None })",
            "Device(Device { device: 1, name: Some(\"privateuseone:0\"), capacity_bytes: None })",
            "0 Allocated { address: Address(4096), size_bytes: 64, rounded_bytes: None, stream: 0 } at 0",
            "1 Allocated { address: Address(4096), size_bytes: 32, rounded_bytes: None, stream: 0 } at 1000",
            "1 Freed { address: Address(4096), size_bytes: 32 } at 2000",
            "0 Freed { address: Address(4096), size_bytes: 64 } at 3000",
            "History(History { device: 0, recorded: true, reserved_before_bytes: None, contradictions: 0, \
             baseline_freed: 0 })",
            "History(History { device: 1, recorded: true, reserved_before_bytes: None, contradictions: 0, \
             baseline_freed: 0 })",
        ],
    );
}

#[test]
fn odd_events_of_the_profiler_are_passed_over_and_counted() {
    let event = |key: &str, value: serde_json::Value| {
        let mut event = profile(&[(0, -1, 64, 8)]).remove(0);
        let fields = if event.get(key).is_some() { &mut event } else { &mut event["args"] };
        fields[key] = value;
        event
    };
    let text = || serde_json::json!("text");
    let odd = [
        serde_json::json!(5),
        serde_json::json!(null),
        serde_json::json!([[]]),
        serde_json::json!({"name": "[memory]"}),
        event("ts", text()),
        event("ts", serde_json::json!(-1.0)),
        event("args", text()),
        event("Bytes", text()),
        event("Bytes", serde_json::json!(0.5)),
        event("Addr", serde_json::json!(-1)),
        event("Device Type", text()),
        event("Device Type", serde_json::json!(-1)),
        event("Device Id", serde_json::json!(1_u64 << 40)),
    ];
    // What other events have is their own business.
    let others = [serde_json::json!({"name": 7, "ts": [], "tid": {}, "args": []}), event("tid", text())];
    let usable = profile(&[(0, -1, 64, 8)]);
    let all = [&usable[..], &odd, &others].concat();
    let remark = format!("events passed over, since they are not what the profiler writes: {}", odd.len());
    for file in [serde_json::json!({"traceEvents": all}), all.clone().into()] {
        let (_, trace) = imported(file.to_string().as_bytes()).unwrap();
        let lines = lines(&trace);
        assert!(lines[2].contains(&remark), "{lines:?}");
        assert_eq!(lines.iter().filter(|line| line.contains("Allocated")).count(), 2, "the others are sound");
    }
    assert_refused(
        &serde_json::json!({"traceEvents": odd}).to_string(),
        "nothing in this trace is usable: events that are not what the profiler writes: 13",
    );
}
