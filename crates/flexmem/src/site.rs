//! What a place in a program is called: one frame of a stack stands for the whole, and every command spells it alike.

use flex_trace::record::Frame;
use flex_trace::{StackId, Tables};

/// What memory is put under whose stack is not known.
pub(crate) const NO_STACK: &str = "no stack recorded";

/// The frame that a stack is named after: the innermost of the program's own Python, or of any Python, or of any file
/// that is known, or the innermost of all.
pub(crate) fn place(stack: StackId, tables: &Tables) -> Option<Frame> {
    let file = |frame: &Frame| tables.string(frame.file).unwrap_or_default();
    let is_python = |frame: &Frame| file(frame).ends_with(".py");
    let is_own = |frame: &Frame| is_python(frame) && !is_library(file(frame));
    let mut frames = tables.stack(stack).iter().filter_map(|&frame| tables.frame(frame));
    let find = |is_wanted: &dyn Fn(&Frame) -> bool| frames.clone().find(|frame| is_wanted(frame));
    find(&is_own)
        .or_else(|| find(&is_python))
        .or_else(|| find(&|frame| !is_unknown(file(frame))))
        .or_else(|| frames.next())
}

/// Whether a file is of Python, of PyTorch, or of a package beside it.
fn is_library(file: &str) -> bool {
    file.starts_with("torch/")
        || ["/torch/", "site-packages/", "/lib/python"].iter().any(|part| file.contains(part))
}

fn is_unknown(file: &str) -> bool {
    matches!(file, "" | "??")
}

/// A frame in one line, with the whole path of its file.
pub(crate) fn line(frame: &Frame, tables: &Tables) -> String {
    spelled(frame, tables, |path| path)
}

/// A frame in one line, with the file and the folder that it is in.
pub(crate) fn brief(frame: &Frame, tables: &Tables) -> String {
    spelled(frame, tables, last_components)
}

fn spelled(frame: &Frame, tables: &Tables, path: fn(&str) -> &str) -> String {
    let function = tables.string(frame.function).unwrap_or("?");
    let file = path(tables.string(frame.file).unwrap_or_default());
    match frame.line {
        _ if is_unknown(file) => function.to_owned(),
        0 => format!("{function} ({file})"),
        line => format!("{function} ({file}:{line})"),
    }
}

fn last_components(path: &str) -> &str {
    path.rmatch_indices('/').nth(1).map_or(path, |(at, _)| &path[at + 1..])
}

/// A stack, one frame a line, the innermost first.
pub(crate) fn lines(stack: StackId, tables: &Tables) -> impl Iterator<Item = String> {
    let frames = tables.stack(stack).iter().filter_map(|&frame| tables.frame(frame));
    frames.map(|frame| line(&frame, tables))
}

#[cfg(test)]
mod tests {
    use flex_trace::{FrameId, Ids, Record, StringId};

    use super::*;

    /// The names of a stack whose frames are in these files, the innermost first: each is called after its place.
    fn names(files: &[&str]) -> Option<(String, String)> {
        let mut tables = Tables::new();
        let ids: Vec<u32> = (0..files.len() as u32).collect();
        for (&id, file) in ids.iter().zip(files) {
            let function = format!("f{id}");
            for (text_id, text) in [(2 * id, function.as_str()), (2 * id + 1, file)] {
                assert!(tables.keep(&Record::String { id: StringId(text_id), text }));
            }
            let (function, file) = (StringId(2 * id), StringId(2 * id + 1));
            assert!(tables.keep(&Record::Frame(Frame { id: FrameId(id), function, file, line: id })));
        }
        assert!(tables.keep(&Record::Stack { id: StackId(9), frames: Ids::from(ids.as_slice()) }));
        let frame = place(StackId(9), &tables)?;
        Some((brief(&frame, &tables), line(&frame, &tables)))
    }

    #[track_caller]
    fn assert_name(files: &[&str], expected_brief: &str, expected_line: &str) {
        assert_eq!(names(files), Some((expected_brief.to_owned(), expected_line.to_owned())));
    }

    #[test]
    fn a_stack_is_named_after_the_innermost_frame_of_the_program() {
        let torch = "/x/torch/functional.py";
        assert_name(
            &["??", torch, "/home/me/job/train.py"],
            "f2 (job/train.py:2)",
            "f2 (/home/me/job/train.py:2)",
        );
        for library in ["torch/nn.py", "/v/site-packages/a/b.py", "/usr/lib/python3.11/runpy.py", torch] {
            assert_name(&["a.cpp", library, "train.py"], "f2 (train.py:2)", "f2 (train.py:2)");
        }
    }

    #[test]
    fn other_frames_do_where_the_program_has_none() {
        assert_name(
            &["??", "/x/torch/functional.py"],
            "f1 (torch/functional.py:1)",
            "f1 (/x/torch/functional.py:1)",
        );
        assert_name(&["??", "/a/b/c.cpp"], "f1 (b/c.cpp:1)", "f1 (/a/b/c.cpp:1)");
        assert_name(&["??", ""], "f0", "f0");
        assert_name(&["main.py"], "f0 (main.py)", "f0 (main.py)");
        assert_eq!(names(&[]), None);
    }
}
