//! Which files are not the program's own, and so which frame of a stack people are shown. `torch_spyre/_libraries.py`
//! says it at import.

use std::sync::OnceLock;

/// What the names of files begin with.
#[derive(Default)]
struct Libraries {
    /// Those of Python and of all installed packages.
    installed: Vec<String>,
    /// Of those, PyTorch's and ours.
    pytorch: Vec<String>,
}

static LIBRARIES: OnceLock<Libraries> = OnceLock::new();

/// Tells which files are libraries'. Only the first call counts.
pub(crate) fn set(installed: Vec<String>, pytorch: Vec<String>) {
    let _ = LIBRARIES.set(Libraries { installed, pytorch });
}

/// The number of the frame that stands for a stack, given by the files of its frames, innermost first: the innermost
/// one of the program itself, or else the innermost one that is not PyTorch's, or else the innermost one.
pub(crate) fn own_frame<'a>(filenames: impl Iterator<Item = &'a str> + Clone) -> usize {
    let nothing = Libraries::default();
    let Libraries { installed, pytorch } = LIBRARIES.get().unwrap_or(&nothing);
    let outside = |prefixes: &[String]| {
        filenames.clone().position(|filename| !prefixes.iter().any(|prefix| filename.starts_with(prefix)))
    };
    outside(installed).or_else(|| outside(pytorch)).unwrap_or(0)
}
