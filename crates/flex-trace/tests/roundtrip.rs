//! Whatever is written comes back, frame by frame, and whatever is not a trace is refused without harm.

mod common;

use std::sync::OnceLock;

use common::{Owned, any_records};
use flex_trace::{Action, Event, Header, MAX_FRAME_BYTES, Progress, ReadError, Reader, Record, StackId};
use flex_trace::{StringId, Tables, WriteError, Writer};
use proptest::prelude::*;

fn written(records: &[Owned], flush_after: &[bool]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    for (index, record) in records.iter().enumerate() {
        record.with(|record| writer.write(record).unwrap());
        if flush_after.get(index).copied().unwrap_or(false) {
            writer.flush().unwrap();
        }
    }
    writer.finish().unwrap()
}

fn events(count: u64) -> impl Iterator<Item = Event> {
    (0..count).map(|index| {
        let address = (0x7f00_0000_0000 + index % 500 * 512).into();
        let action = Action::Allocated { address, size_bytes: 512, rounded_bytes: None, stream: 0 };
        Event { time_ns: Some(1_700_000_000_000_000_000 + index * 1000), ..Event::new(0, action) }
    })
}

fn trace_of(count: u64) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    events(count).for_each(|event| writer.write(&Record::Event(event)).unwrap());
    writer.finish().unwrap()
}

fn read_all(bytes: &[u8]) -> Result<(usize, Progress), ReadError> {
    let mut reader = Reader::new(bytes)?;
    let mut count = 0;
    while reader.next()?.is_some() {
        count += 1;
    }
    Ok((count, reader.progress()))
}

proptest! {
    #[test]
    fn records_come_back(records in any_records(), flush_after in prop::collection::vec(any::<bool>(), 0..40)) {
        let bytes = written(&records, &flush_after);
        let mut reader = Reader::new(bytes.as_slice()).unwrap();
        for record in &records {
            let found = reader.next().unwrap().expect("as many as were written");
            record.with(|record| assert_eq!(&found, record));
        }
        prop_assert_eq!(reader.next().unwrap(), Some(Record::End { records: records.len() as u64 }));
        prop_assert_eq!(reader.next().unwrap(), None);
        prop_assert_eq!(reader.progress(), Progress::Finished);
        prop_assert_eq!(reader.position_bytes(), bytes.len() as u64);
    }

    #[test]
    fn a_changed_byte_is_noticed(at in any::<prop::sample::Index>(), change in 1_u8..) {
        let mut bytes = trace_of(50);
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        let outcome = read_all(&bytes);
        // A higher minor version is fine, and a longer frame is one that has not been written yet.
        let is_harmless = (10..12).contains(&at) || matches!(outcome, Ok((0, Progress::InsideFrame { .. })));
        prop_assert!(outcome.is_err() || is_harmless, "byte {}: {:?}", at, outcome);
    }

    #[test]
    fn a_trace_cut_off_gives_its_whole_frames(length in any::<prop::sample::Index>()) {
        static LONG: OnceLock<Vec<u8>> = OnceLock::new();
        let bytes = LONG.get_or_init(|| trace_of(6_000));
        let length = length.index(bytes.len() - 12) + 12;
        let (count, progress) = read_all(&bytes[..length]).unwrap();
        prop_assert!(count < 6_001);
        prop_assert_ne!(progress, Progress::Finished);
    }

    #[test]
    fn any_bytes_in_a_sound_frame_give_records_or_an_error(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = written(&[], &[])[..12].to_vec();
        let length = (payload.len() as u32).to_le_bytes();
        let checksum = crc32fast::hash(&[&length, payload.as_slice()].concat());
        bytes.extend_from_slice(&length);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(&payload);
        if let Ok((count, _)) = read_all(&bytes) {
            prop_assert!(count <= payload.len() / 2);
        }
    }
}

#[test]
fn a_trace_is_read_while_it_is_written() {
    let file = common::Growing::default();
    let mut writer = Writer::new(file.clone(), Header::default()).unwrap();
    let mut reader = Reader::new(file.clone()).unwrap();
    assert_eq!(reader.next().unwrap(), None);
    assert_eq!(reader.progress(), Progress::Unfinished);
    for event in events(10) {
        writer.write(&Record::Event(event)).unwrap();
        assert_eq!(reader.next().unwrap(), None, "it is in the writer's frame");
        writer.flush().unwrap();
        assert_eq!(reader.next().unwrap(), Some(Record::Event(event)));
        assert_eq!(reader.next().unwrap(), None);
    }
    writer.finish().unwrap();
    assert_eq!(reader.next().unwrap(), Some(Record::End { records: 10 }));
    assert_eq!(reader.next().unwrap(), None);
    assert_eq!(reader.progress(), Progress::Finished);
}

#[test]
fn half_a_frame_is_waited_for() {
    let bytes = trace_of(10);
    let file = common::Growing::default();
    file.append(&bytes[..30]);
    let mut reader = Reader::new(file.clone()).unwrap();
    assert_eq!(reader.next().unwrap(), None);
    assert_eq!(reader.progress(), Progress::InsideFrame { bytes: 18 });
    file.append(&bytes[30..]);
    assert_eq!(reader.next().unwrap(), Some(Record::Event(events(1).next().unwrap())));
}

#[test]
fn frames_of_another_writer_can_be_appended() {
    let mut later = Writer::frames_only(Vec::new());
    events(30_000).for_each(|event| later.write(&Record::Event(event)).unwrap());
    let (records, frames) = (later.records(), later.into_output().unwrap());
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    writer.write(&Record::String { id: StringId(1), text: "first" }).unwrap();
    writer.append_frames(frames.as_slice(), records).unwrap();
    let bytes = writer.finish().unwrap();
    assert_eq!(read_all(&bytes).unwrap(), (30_002, Progress::Finished));
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    reader.next().unwrap();
    for event in events(30_000) {
        assert_eq!(reader.next().unwrap(), Some(Record::Event(event)));
    }
    assert_eq!(reader.next().unwrap(), Some(Record::End { records: 30_001 }));
}

#[test]
fn an_event_takes_few_bytes() {
    let bytes = trace_of(100_000);
    assert!(bytes.len() < 100_000 * 17, "{} bytes", bytes.len());
}

#[test]
fn long_records_are_written_up_to_the_limit_and_refused_above() {
    let text = "x".repeat(MAX_FRAME_BYTES);
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    let string = |bytes: usize| Record::String { id: StringId(1), text: &text[..bytes] };
    writer.write(&string(10)).unwrap();
    let refused = writer.write(&string(MAX_FRAME_BYTES)).unwrap_err();
    assert!(matches!(refused, WriteError::RecordTooLong { .. }), "{refused}");
    writer.write(&string(MAX_FRAME_BYTES - 100)).unwrap();
    writer.write(&string(11)).unwrap();
    let bytes = writer.finish().unwrap();
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    for length in [10, MAX_FRAME_BYTES - 100, 11] {
        assert_eq!(reader.next().unwrap(), Some(string(length)));
    }
    assert_eq!(reader.next().unwrap(), Some(Record::End { records: 3 }));
}

#[test]
fn frames_without_records_are_passed_over_however_many() {
    let empty = [0_u32.to_le_bytes(), crc32fast::hash(&0_u32.to_le_bytes()).to_le_bytes()].concat();
    let mut bytes = trace_of(1);
    let rest = bytes.split_off(12);
    bytes.extend(empty.repeat(200_000));
    bytes.extend(rest);
    assert_eq!(read_all(&bytes).unwrap(), (2, Progress::Finished));
}

#[test]
fn what_is_not_a_trace_is_named() {
    let text = |bytes: &[u8]| read_all(bytes).unwrap_err().to_string();
    assert!(text(b"").contains("found []"));
    assert!(text(b"PK\x03\x04 and so on, and so on").contains("not a trace"));
    let mut newer = trace_of(1);
    newer[8] = 2;
    newer[10] = 3;
    assert_eq!(
        text(&newer),
        "the trace has version 2.3; expected a version 1.x: a newer program wrote it, and a newer one has to read it"
    );
    newer[8] = 0;
    assert_eq!(text(&newer), "the trace has version 0.3; expected a version 1.x");
    let mut long = trace_of(1);
    long[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(text(&long), "byte 12: the frame claims 4294967295 bytes; expected at most 1048576");
    let mut damaged = trace_of(1);
    damaged[25] ^= 1;
    assert!(text(&damaged).contains("so the file is damaged"), "{}", text(&damaged));
}

#[test]
fn a_newer_minor_version_is_read_and_what_is_new_in_it_passed_over() {
    let mut header = Header::default();
    header.version.minor = 7;
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    writer.write(&Record::Unknown { kind: 900 }).unwrap();
    writer.write(&Record::Event(events(1).next().unwrap())).unwrap();
    let bytes = writer.finish().unwrap();
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    assert_eq!(reader.header(), header);
    assert_eq!(reader.next().unwrap(), Some(Record::Unknown { kind: 900 }));
    assert_eq!(reader.next().unwrap(), Some(Record::Event(events(1).next().unwrap())));
}

#[test]
fn who_passes_over_a_watermark_reads_the_times_after_it_right() {
    let event = |time_ns| Record::Event(Event { time_ns: Some(time_ns), ..events(1).next().unwrap() });
    let written = |records: &[Record<'_>]| {
        let mut writer = Writer::frames_only(Vec::new());
        records.iter().for_each(|record| writer.write(record).unwrap());
        writer.into_output().unwrap()
    };
    let first = written(&[event(1_000)]);
    let both = written(&[event(1_000), event(1_009)]);
    let marked = written(&[event(1_000), Record::Watermark { time_ns: u64::MAX }, event(1_009)]);
    assert!(marked.len() > both.len());
    assert!(marked.ends_with(&both[first.len()..]), "what follows is written as without it");
}

#[test]
fn tables_keep_the_latest_definition() {
    let mut tables = Tables::new();
    let frame = flex_trace::record::Frame {
        id: flex_trace::FrameId(4),
        function: StringId(1),
        file: StringId(2),
        line: 3,
    };
    assert!(tables.keep(&Record::String { id: StringId(1), text: "old" }));
    assert!(tables.keep(&Record::String { id: StringId(1), text: "forward" }));
    assert!(tables.keep(&Record::Frame(frame)));
    assert!(tables.keep(&Record::Stack { id: StackId(9), frames: [4, 4].as_slice().into() }));
    assert!(!tables.keep(&Record::End { records: 0 }));
    assert_eq!(tables.string(StringId(1)), Some("forward"));
    assert_eq!(tables.stack(StackId(9)), [frame.id, frame.id]);
    assert_eq!(tables.frame(frame.id), Some(frame));
    assert_eq!((tables.string(StringId(8)), tables.stack(StackId(8)).len()), (None, 0));
}
