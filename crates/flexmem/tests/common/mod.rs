//! Files that the tests read, and traces as text.

use std::path::{Path, PathBuf};

use flex_trace::{Header, Reader, Record, Tables, Writer};
use flexmem::import::{ImportError, Kind, Sharing, import};

/// A file beside the tests.
#[allow(dead_code, reason = "not every test program uses all of them")]
pub(crate) fn data(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A real snapshot.
#[allow(dead_code, reason = "not every test program uses all of them")]
pub(crate) fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/snapshots").join(name)
}

/// The trace that a file becomes.
#[allow(dead_code, reason = "not every test program uses all of them")]
pub(crate) fn imported(bytes: &[u8]) -> Result<(Kind, Vec<u8>), ImportError> {
    imported_as(bytes, Sharing::Refused)
}

/// The trace that a file becomes, with or without what is shared.
#[allow(dead_code, reason = "not every test program uses all of them")]
pub(crate) fn imported_as(bytes: &[u8], sharing: Sharing) -> Result<(Kind, Vec<u8>), ImportError> {
    let mut writer = Writer::new(Vec::new(), Header::default())?;
    let kind = import(bytes, "file", &mut writer, sharing)?;
    Ok((kind, writer.finish()?))
}

/// The records of a trace, one a line, with stacks spelled out; definitions are left out.
#[allow(dead_code, reason = "not every test program uses all of them")]
pub(crate) fn lines(trace: &[u8]) -> Vec<String> {
    let (mut reader, mut tables, mut lines) = (Reader::new(trace).unwrap(), Tables::new(), Vec::new());
    while let Some(record) = reader.next().unwrap() {
        if tables.keep(&record) {
            continue;
        }
        lines.push(match record {
            Record::Event(event) => {
                let stack = event.stack.map(|stack| format!(" by {}", spelled(&tables, stack)));
                let time = event.time_ns.map(|time_ns| format!(" at {time_ns}"));
                let (stack, time) = (stack.unwrap_or_default(), time.unwrap_or_default());
                format!("{} {:?}{time}{stack}", event.device, event.action)
            }
            Record::Block(block) => {
                let stack = block.stack.map(|stack| format!(" by {}", spelled(&tables, stack)));
                let (size, requested, state) = (block.size_bytes, block.requested_bytes, block.state);
                format!("block {size} {requested} {state:?}{}", stack.unwrap_or_default())
            }
            other => format!("{other:?}"),
        });
    }
    lines
}

fn spelled(tables: &Tables, stack: flex_trace::StackId) -> String {
    let frame = |&frame: &flex_trace::FrameId| {
        let frame = tables.frame(frame).expect("a frame");
        let text = |id| tables.string(id).expect("a text");
        format!("{}:{}:{}", text(frame.file), frame.line, text(frame.function))
    };
    tables.stack(stack).iter().map(frame).collect::<Vec<_>>().join(" < ")
}
