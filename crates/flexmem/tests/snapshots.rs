//! Snapshots of PyTorch as traces: every protocol, every generation, and what is not a snapshot.

mod common;

use common::{data, imported, imported_as, lines};
use flexmem::TraceFile;
use flexmem::import::{Kind, Sharing};
use flexmem::info::{Options, info};

/// What each of the files with the small snapshot becomes.
const SMALL: &[&str] = &[
    r#"Source(Source { producer: "flexmem", kind: "PyTorch snapshot", name: "file" })"#,
    "Clock(Unix)",
    r#"Setting { key: "PYTORCH_CUDA_ALLOC_CONF", value: "max_split_size_mb:64" }"#,
    r#"Setting { key: "max_split_size", value: "67108864" }"#,
    r#"Setting { key: "expandable_segments", value: "False" }"#,
    r#"Setting { key: "roundup_power2_divisions.1", value: "0" }"#,
    r#"Setting { key: "roundup_power2_divisions.2", value: "4" }"#,
    "Device(Device { device: 0, name: None, capacity_bytes: None })",
    // Of the segment's 4096 bytes the events acquired none. Nothing contradicts.
    "History(History { device: 0, recorded: true, reserved_before_bytes: Some(4096), contradictions: 0, \
     baseline_freed: 1 })",
    "0 Baseline { address: Address(18446744072635810304), size_bytes: 7, stream: 0 }",
    "0 Baseline { address: Address(18446744072635811840), size_bytes: 2048, stream: 0 } by train.py:7:main",
    "Device(Device { device: 1, name: None, capacity_bytes: None })",
    "History(History { device: 1, recorded: false, reserved_before_bytes: None, contradictions: 0, \
     baseline_freed: 0 })",
    "Device(Device { device: 2, name: None, capacity_bytes: None })",
    // Its block is in no segment.
    "History(History { device: 2, recorded: true, reserved_before_bytes: Some(0), contradictions: 1, \
     baseline_freed: 0 })",
    "0 Freed { address: Address(18446744072635810304), size_bytes: 7 } at 1700000000000512000 by \
     train.py:3:step < train.py:7:main",
    "0 Allocated { address: Address(18446744072635809792), size_bytes: 1000, rounded_bytes: None, stream: 0 } at \
     1700000000000000000 by train.py:3:step < train.py:7:main",
    "0 Allocated { address: Address(18446744072635810816), size_bytes: 500, rounded_bytes: None, stream: 0 } at \
     1700000000001024000 by train.py:3:step < train.py:3:step < train.py:3:step < train.py:7:main",
    "0 Allocated { address: Address(18446744072635811328), size_bytes: 300, rounded_bytes: None, stream: 0 } at \
     1700000000001536000",
    "0 FreeRequested { address: Address(18446744072635810816), size_bytes: 500 } at 1700000000001024000 by \
     train.py:3:step < train.py:7:main",
    "0 FreeRequested { address: Address(18446744072635811328), size_bytes: 300 } at 1700000000001536000 by \
     train.py:3:step < train.py:7:main",
    "0 Freed { address: Address(18446744072635811328), size_bytes: 300 } at 1700000000001536000 by \
     train.py:3:step < train.py:7:main",
    "0 OutOfMemory { requested_bytes: 1099511627776, free_bytes: Some(12345), largest_free_bytes: None, \
     capacity_bytes: None } by train.py:3:step < train.py:3:step < train.py:3:step < train.py:7:main",
    "0 Other { name: StringId(NAME), address: Address(18446744072635809792), size_bytes: 0 } at \
     1700000000000000000 by train.py:3:step < train.py:7:main",
    "2 Allocated { address: Address(18446744072641052672), size_bytes: 64, rounded_bytes: None, stream: 0 } at \
     1700000005242880000 by train.py:3:step < train.py:7:main",
    "0 Annotation { name: StringId(NAME), begins: true } at 5000",
    "RegionState(RegionState { device: 0, address: Address(18446744072635809792), size_bytes: 4096, stream: 0, \
     pool: (0, 3), small: true, expandable: false, allocated_bytes: Some(3072), active_bytes: Some(3584), \
     stack: None })",
    "block 1024 1000 Live by train.py:7:main",
    "block 512 500 PendingFree",
    "block 512 300 Free",
    "block 2048 2048 Live by train.py:7:main",
];

/// Texts have other numbers in each protocol.
fn without_names(line: &str) -> String {
    let Some((before, rest)) = line.split_once("StringId(") else { return line.to_owned() };
    let (_, after) = rest.split_once(')').expect("a number");
    format!("{before}StringId(NAME){after}")
}

#[track_caller]
fn assert_small(bytes: &[u8], kind: Kind) {
    let (found, trace) = imported(bytes).unwrap();
    assert_eq!(found, kind);
    let mut lines: Vec<String> = lines(&trace).iter().map(|line| without_names(line)).collect();
    assert!(lines.pop().unwrap().starts_with("End"));
    for (line, expected) in lines.iter().zip(SMALL) {
        assert_eq!(line, expected);
    }
    assert_eq!(lines.len(), SMALL.len());
}

#[test]
fn every_protocol_gives_the_same_trace() {
    for protocol in 0..=5 {
        assert_small(&data(&format!("protocol_{protocol}.pickle")), Kind::Pickle);
    }
    assert_small(&data("ordered_dict.pickle"), Kind::Pickle);
}

#[test]
fn the_pickle_in_a_page_of_the_viewer_is_found() {
    assert_small(&data("page.html"), Kind::Page);
    let broken =
        String::from_utf8(data("page.html")).unwrap().replace("\"base64\": \"gAS", "\"base64\": \"????");
    assert!(imported(broken.as_bytes()).is_err());
}

#[test]
fn a_list_of_segments_with_a_history_of_each_block() {
    let (_, trace) = imported(&data("bare_list.pickle")).unwrap();
    let lines = lines(&trace);
    let blocks: Vec<_> = lines.iter().filter(|line| line.starts_with("block")).collect();
    assert_eq!(blocks, ["block 1024 900 Live by train.py:3:step < train.py:7:main", "block 1024 1024 Free"]);
    assert!(
        lines.iter().any(|line| line.starts_with("History(History { device: 1, recorded: false")),
        "{lines:?}"
    );
}

/// The trace is not taken in part when a file is cut off, wherever that is.
#[test]
fn a_file_cut_off_anywhere_is_an_error() {
    for name in ["protocol_0.pickle", "protocol_2.pickle", "protocol_4.pickle"] {
        let bytes = data(name);
        for length in (1..bytes.len()).rev().step_by(17) {
            let error = imported(&bytes[..length]).unwrap_err().to_string();
            let last_byte_is_missing = length == bytes.len() - 1;
            assert!(
                error.contains("the pickle ends in the middle") || !last_byte_is_missing,
                "{length}: {error}"
            );
        }
    }
}

#[track_caller]
fn assert_refused(bytes: &[u8], expected: &str) {
    let error = imported(bytes).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn more_than_plain_data_is_refused_by_name() {
    for (pickle, refused) in [
        (b"cos\nsystem\n(S'true'\ntR.".as_slice(), "the global os.system"),
        (b"(S'true'\nios\nsystem\n.", "the global os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "the global os.system"),
        (b"\x80\x04K\x01K\x02\x93.", "a global without a name"),
        (b"\x80\x02ccollections\nOrderedDict\n]K\x01a\x85R.", "the result of a call"),
        (b"\x80\x02ccollections\nCounter\n)R.", "the global collections.Counter"),
        (b"\x80\x02Psomething\n.", "a persistent id"),
        (b"\x80\x02K\x01Q.", "a persistent id"),
        (b"\x80\x02\x82\x01.", "an extension"),
        (b"\x80\x02(K\x01o.", "an object (OBJ)"),
        (b"\x80\x02K\x01)R.", "the result of a call"),
        (b"\x80\x02K\x01)\x81.", "an object (NEWOBJ)"),
        (b"\x80\x02]}b.", "a state of its own"),
        (b"\x80\x05\x97.", "a buffer outside of the file"),
    ] {
        // A pickle that begins with a call looks like nothing, so it is put behind its protocol.
        let pickle = if pickle[0] == 0x80 { pickle.to_vec() } else { [b"\x80\x02", pickle].concat() };
        let error = imported(&pickle).unwrap_err().to_string();
        assert!(error.contains("refused to load") && error.contains(refused), "{error}");
    }
}

#[test]
fn unsound_pickles_say_where_and_what() {
    for (pickle, fault) in [
        (b"\x80\x02.".as_slice(), "byte 3: not a sound pickle: an opcode finds too little on the stack"),
        (b"\x80\x02K\x01a.", "too little on the stack"),
        (b"\x80\x02K\x01K\x02a.", "appended to what is not a list"),
        (b"\x80\x02]K\x01K\x02s.", "set in what is not a dict"),
        (b"\x80\x02}(K\x01u.", "a key without a value"),
        (b"\x80\x02h\x07.", "did not remember"),
        (b"\x80\x02t.", "finds no mark"),
        (b"\x80\x02I12x\n.", "a number that is none"),
        (b"\x80\x09.", "protocol 9; expected one from 0 to 5"),
        (b"\x80\x02\xff.", "0xff is no opcode"),
        (b"\x80\x02](0e.", "finds no mark"),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "far too high"),
        (b"\x80\x05\x8e\0\0\0\0\0\x20\0\0abc", "the pickle ends in the middle"),
        (b"\x80\x04\x8d\0\0\0\0\0\x20\0\0abc", "the pickle ends in the middle"),
    ] {
        assert_refused(pickle, fault);
    }
}

#[test]
fn sound_pickles_that_are_no_snapshots_say_what_is_missing() {
    for (pickle, fault) in [
        (b"\x80\x02N.".as_slice(), "not a memory snapshot of PyTorch: expected its segments, found None"),
        (b"\x80\x02}.", "a dict without a list of segments"),
        (b"\x80\x02]K\x01a.", "expected a segment with its blocks, found an integer"),
        (b"\x80\x04}(\x8c\x06actionK\x01\x8c\x04sizeK\x01u.", "the \"action\" of an event: expected a text"),
        (
            b"\x80\x04}(\x8c\x05state\x8c\x04lost\x8c\x04sizeK\x01u.",
            "expected one of inactive, active_allocated",
        ),
    ] {
        assert_refused(pickle, fault);
    }
}

#[test]
fn figures_that_cannot_be_are_left_out_and_said() {
    let mut trace = TraceFile::import(data("odd.pickle").as_slice(), "odd").unwrap();
    let info = info(&mut trace, &Options { device_memory_bytes: None, top: 20 }).unwrap();
    let device = &info.devices[0];
    assert_eq!(
        device.impossible,
        [
            "3 events are left out: of the first, its \"size\" is not from 0 to 2^64 - 1",
            "the segment at 0x2000 is left out: its \"total_size\" is not from 0 to 2^64 - 1",
            "the segment at 0x3000 is left out: its \"allocated_size\" is not from 0 to 2^64 - 1",
            "the segment at 0xffffffffffffff00 is left out: of 1024 bytes, it ends beyond the last address",
            "the blocks of the segment at 0x4000 are left out: the one at 0x4200 of 513 bytes lies beyond its end",
            "the blocks of the segment at 0x5000 are left out: the one at 0x51ff does not lie behind the one before it",
            "the blocks of the segment at 0x6000 are left out: they do not fill it",
            "the blocks of the segment at 0x7000 are left out: of one its \"requested_size\" is not from 0 to 2^64 - 1",
            "the segment at 0x1200 says that 255 bytes were asked for, and of its blocks 256",
            "the segment at 0x1000 of 1024 bytes and that at 0x1200 of 512 overlap",
        ]
    );
    // What is sound is there.
    assert_eq!((device.events.allocations, device.history.contradictions), (1, 3));
    assert_eq!(device.memory.as_ref().unwrap().allocated_bytes, 512 + 256);
}

#[test]
fn what_stands_in_several_places_is_read_in_all_of_them() {
    let (_, separate) = imported(&data("separate.pickle")).unwrap();
    let separate: Vec<String> = lines(&separate).iter().map(|line| without_names(line)).collect();
    assert_eq!(separate.iter().filter(|line| line.contains("Allocated")).count(), 5);
    assert_eq!(separate.iter().filter(|line| line.starts_with("block 1024")).count(), 10);
    for protocol in [0, 2, 4] {
        let bytes = data(&format!("shared_{protocol}.pickle"));
        let error = imported(&bytes).unwrap_err();
        assert!(
            error.is_of_sharing() && error.to_string().contains("must be a file and not a pipe"),
            "{error}"
        );
        let (_, shared) = imported_as(&bytes, Sharing::Kept).unwrap();
        let shared: Vec<String> = lines(&shared).iter().map(|line| without_names(line)).collect();
        assert_eq!(shared, separate, "protocol {protocol}");
        // Whoever can open the file again need not know.
        assert!(TraceFile::import_again(|| Ok(bytes.as_slice()), "shared", || false).is_ok());
    }
}

#[test]
fn keeping_what_is_shared_changes_nothing_else() {
    for protocol in 0..=5 {
        let bytes = data(&format!("protocol_{protocol}.pickle"));
        let (_, expected) = imported(&bytes).unwrap();
        let (_, found) = imported_as(&bytes, Sharing::Kept).unwrap();
        assert_eq!(lines(&found), lines(&expected), "protocol {protocol}");
    }
}

#[test]
fn files_of_other_kinds_are_told_what_they_are() {
    for (bytes, what) in [
        (b"".as_slice(), "this file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"PK\x03\x04\x00\x00", "zip archive, as `torch.save` writes"),
        (b"\x1f\x8b\x08\x00", "gunzip"),
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "no snapshot in it"),
        (b"{\"a\": 1}", "this is JSON, but no trace of PyTorch's profiler"),
        (b"{\"a\": ", "EOF"),
        (b"{\"traceEvents\": []}", "no `[memory]` events"),
        (b"hello, world", "a text of no known kind"),
        (b"\x00\x01\x02", "begins like nothing that is known"),
        (b"  \n ", "nothing but white space"),
        (b"\x89FTRC\r\n\x1a\x02\x00\x00\x00", "version 2.0"),
    ] {
        assert_refused(bytes, what);
    }
}

#[test]
fn a_trace_is_imported_as_it_is() {
    let (_, trace) = imported(&data("protocol_4.pickle")).unwrap();
    let (kind, again) = imported(&trace).unwrap();
    assert_eq!(kind, Kind::Trace);
    assert_eq!(lines(&trace), lines(&again));
    // All is in one frame here, so nothing of it is left; that something is missing is said.
    assert_eq!(common::lines(&imported(&trace[..trace.len() / 2]).unwrap().1)[0], "0 Lost { events: 0 }");
}

#[test]
fn pressure_and_collections_of_spyre_are_understood() {
    let (_, trace) = imported(&data("pressure.pickle")).unwrap();
    let lines = lines(&trace);
    let actions: Vec<&str> =
        lines.iter().filter_map(|line| line.strip_prefix("0 ")?.split(" at ").next()).collect();
    assert_eq!(
        actions,
        [
            "Lost { events: 9 }",
            "Allocated { address: Address(18446744072635809792), size_bytes: 500, rounded_bytes: Some(512), stream: 0 }",
            "PressureBegan { pressure: 1, requested_bytes: 600 }",
            "Collected { generation: 2, objects: 12, reclaimed_bytes: 512, duration_ns: 900000, pressure: Some(1) }",
            "Freed { address: Address(18446744072635809792), size_bytes: 500 }",
            "PressureEnded { pressure: 1, end: Served, tried: 6, reclaimed_bytes: 512, duration_ns: 1000000 }",
            "PressureBegan { pressure: 2, requested_bytes: 700 }",
            "PressureEnded { pressure: 2, end: OutOfMemory, tried: 0, reclaimed_bytes: 0, duration_ns: 5000 }",
            "OutOfMemory { requested_bytes: 700, free_bytes: Some(100), largest_free_bytes: Some(50), capacity_bytes: \
             None } by train.py:3:step < train.py:7:main",
        ]
    );
}
