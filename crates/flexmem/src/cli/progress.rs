//! The bar on long work: how much of a file was read. It goes to the terminal's error stream, and only there.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};

/// Files below this are read before one could look at a bar.
const WITHOUT_BAR_BYTES: u64 = 16 << 20;

/// Opens a file.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "this is a folder; expected a file"));
    }
    Ok(file)
}

/// What is in a file; a large one shows how far it was read.
pub(super) fn read(file: File) -> io::Result<Box<dyn Read>> {
    let metadata = file.metadata()?;
    if metadata.len() < WITHOUT_BAR_BYTES {
        return Ok(Box::new(file));
    }
    let style = "{msg} [{bar:30}] {bytes} of {total_bytes}, {eta} left";
    let style = ProgressStyle::with_template(style).map_err(io::Error::other)?.progress_chars("=> ");
    let bar = ProgressBar::new(metadata.len()).with_style(style).with_message("reading");
    Ok(Box::new(bar.wrap_read(file)))
}
