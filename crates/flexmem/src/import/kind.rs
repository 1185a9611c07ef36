//! What a file is, by its first bytes.

use super::{minimalloc, rmm};

/// How much of a file is looked at, at most.
pub(super) const LOOK_BYTES: u64 = 64 << 10;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A pickle.
    Pickle,
    /// A page of HTML, perhaps of PyTorch's viewer.
    Page,
    /// A log of RMM.
    Rmm,
    /// A table of MiniMalloc.
    MiniMalloc,
    /// JSON, perhaps of PyTorch's profiler.
    Json,
    /// A trace.
    Trace,
    /// Something else, in words.
    Other(&'static str),
}

/// What begins a file, and what it is.
const BEGINNINGS: &[(&[u8], &str)] = &[
    (
        b"version https://git-lfs",
        "this is a pointer of Git LFS, not the file itself: run `git lfs pull`, or download the file again",
    ),
    (
        b"PK\x03\x04",
        "this is a zip archive, as `torch.save` writes: it has tensors, not the history of memory",
    ),
    (b"\x1f\x8b", "this file is compressed with gzip: unpack it first (`gunzip`)"),
    (b"\x28\xb5\x2f\xfd", "this file is compressed with zstd: unpack it first (`unzstd`)"),
    (b"\xfd7zXZ", "this file is compressed with xz: unpack it first (`unxz`)"),
    (b"BZh", "this file is compressed with bzip2: unpack it first (`bunzip2`)"),
    (b"\x89PNG", "this is a picture"),
    (b"\xff\xd8\xff", "this is a picture"),
    (b"%PDF", "this is a PDF"),
    (b"\x7fELF", "this is a program or a library"),
    (b"SQLite format 3", "this is a database of SQLite, as Nsight Systems exports"),
];

impl Kind {
    /// Judges by the beginning of a file.
    pub fn of(beginning: &[u8]) -> Kind {
        if beginning.is_empty() {
            return Kind::Other("this file is empty");
        }
        if beginning.starts_with(&flex_trace::MAGIC) {
            return Kind::Trace;
        }
        if let Some((_, what)) = BEGINNINGS.iter().find(|(bytes, _)| beginning.starts_with(bytes)) {
            return Kind::Other(what);
        }
        let text = beginning.strip_prefix(b"\xef\xbb\xbf").unwrap_or(beginning).trim_ascii_start();
        match text.first() {
            _ if beginning[0] == 0x80 => Kind::Pickle,
            Some(b'<') => Kind::Page,
            Some(b'{' | b'[') => Kind::Json,
            _ if text.starts_with(rmm::HEADING) => Kind::Rmm,
            _ if minimalloc::is_heading(text) => Kind::MiniMalloc,
            // Pickles of protocol 0 and 1 begin with their first value.
            Some(b'(' | b'}' | b']') => Kind::Pickle,
            None => Kind::Other("this file has nothing but white space"),
            _ if is_text(text) => Kind::Other("this is a text of no known kind"),
            _ => Kind::Other("this file begins like nothing that is known"),
        }
    }

    /// Whether it is a snapshot of PyTorch, which has a history only if that was on.
    pub fn is_snapshot(self) -> bool {
        matches!(self, Kind::Pickle | Kind::Page)
    }

    /// What the kind is called.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Pickle => "PyTorch snapshot",
            Kind::Page => "PyTorch snapshot in a page of the viewer",
            Kind::Rmm => "RMM log",
            Kind::MiniMalloc => "MiniMalloc table",
            Kind::Json => "PyTorch profiler trace",
            Kind::Trace => "trace",
            Kind::Other(what) => what,
        }
    }
}

fn is_text(bytes: &[u8]) -> bool {
    let beginning = &bytes[..bytes.len().min(512)];
    beginning.iter().all(|&byte| byte >= 0x20 || byte.is_ascii_whitespace())
}
