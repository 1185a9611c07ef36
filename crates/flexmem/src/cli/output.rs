//! Where results go: the standard output, or a file.
//!
//! A file is written beside its place and takes that when it is whole, so that there is the old one, or none, until
//! then. Links are followed and stay. What cannot be replaced without a loss is written in place: what is no file, such
//! as a pipe, an open file of `/dev/fd`, a file with other names, and one whose owner cannot be kept.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use tempfile::NamedTempFile;

/// Links that are followed; the kernel follows as many.
const MAX_LINKS: usize = 40;

/// Prints to the standard output, all of it: what is not flushed would be lost unnoticed at the end of the process.
pub(super) fn print(bytes: &[u8]) -> anyhow::Result<()> {
    to_standard_output(|output| output.write_all(bytes))
}

/// Prints a value as JSON.
pub(super) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    print(&text)
}

fn to_standard_output<T>(fill: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> anyhow::Result<T> {
    let mut output = io::stdout().lock();
    let filled = fill(&mut output).and_then(|filled| output.flush().map(|()| filled));
    filled.context("the standard output")
}

/// Where `--output` says that a result goes. Found before the work, so that what cannot be written is said at once.
#[derive(Debug)]
pub(super) struct Destination<'p> {
    path: &'p Path,
    place: Place,
}

#[derive(Debug)]
enum Place {
    StandardOutput,
    /// Not a file, or an open one: written to at its end.
    Opened(PathBuf),
    /// A file, or the name of one to be.
    File(PathBuf),
}

impl<'p> Destination<'p> {
    /// Finds what a path stands for; `-` is the standard output.
    ///
    /// # Errors
    ///
    /// With the path: it cannot be written to.
    pub(super) fn find(path: &'p Path) -> anyhow::Result<Self> {
        let place = Place::find(path).with_context(|| path.display().to_string())?;
        Ok(Destination { path, place })
    }

    pub(super) fn is_standard_output(&self) -> bool {
        matches!(self.place, Place::StandardOutput)
    }

    /// What to call it.
    pub(super) fn name(&self) -> impl std::fmt::Display {
        self.path.display()
    }

    /// Writes the whole result, or leaves a file as it was. Returns what `fill` does.
    ///
    /// # Errors
    ///
    /// With the path: what writing fails with.
    pub(super) fn write<T>(&self, fill: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> anyhow::Result<T> {
        let written = match &self.place {
            Place::StandardOutput => return to_standard_output(fill),
            Place::Opened(target) => OpenOptions::new()
                .append(true)
                .open(target)
                .and_then(|mut file| fill(&mut file))
                .map_err(Into::into),
            Place::File(target) => replace(target, fill),
        };
        written.with_context(|| self.path.display().to_string())
    }
}

impl Place {
    fn find(path: &Path) -> anyhow::Result<Place> {
        if path == Path::new("-") {
            return Ok(Place::StandardOutput);
        }
        let target = follow(path)?;
        if let Some(process) = process_of(&target) {
            let is_own = process == std::process::id().to_string();
            let is_standard = is_own && target.file_name().is_some_and(|number| number == "1");
            return Ok(if is_standard { Place::StandardOutput } else { Place::Opened(target) });
        }
        ensure!(folder_of(&target).exists(), "there is no folder {}", folder_of(&target).display());
        ensure!(folder_of(&target).is_dir(), "{} is not a folder", folder_of(&target).display());
        let Some(old) = metadata(&target)? else {
            let is_folder = target.as_os_str().as_bytes().ends_with(b"/");
            ensure!(!is_folder, "this names a folder; expected the name of a file");
            new_file(&target)?;
            return Ok(Place::File(target));
        };
        let kind = old.file_type();
        ensure!(!kind.is_dir(), "this is a folder; expected the name of a file");
        ensure!(!kind.is_block_device(), "this is a disk; expected the name of a file");
        if !kind.is_file() {
            return Ok(Place::Opened(target));
        }
        // Whom no permission keeps off, as root, does not mean to overwrite what is protected either.
        if old.permissions().readonly() {
            bail!("this file is read-only; remove it, or allow writing to it");
        }
        OpenOptions::new().write(true).open(&target)?;
        new_file(&target)?;
        Ok(Place::File(target))
    }
}

/// The path that a path stands for, which need not be there. The links that stand for the open files of a process are
/// not followed: what they are called says nothing.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..MAX_LINKS {
        if process_of(&target).is_some() {
            return Ok(target);
        }
        match fs::read_link(&target) {
            Ok(link) => target = folder_of(&target).join(link),
            // Not a link, or not there; else whoever opens it finds out why.
            Err(_) => return Ok(target),
        }
    }
    Err(io::Error::other(format!("more than {MAX_LINKS} links")))
}

/// The process whose open file a path is: `/proc/PROCESS/fd/NUMBER`, whatever links lead there.
fn process_of(path: &Path) -> Option<String> {
    let folder = folder_of(path).canonicalize().ok()?;
    let process = folder.strip_prefix("/proc").ok()?.iter().next()?.to_str()?.to_owned();
    folder.ends_with("fd").then_some(process)
}

/// The folder that a path lies in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn metadata(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A file beside a path, which is gone when it is dropped. It is as readable as any new file, and not private, as
/// temporary ones are.
fn new_file(target: &Path) -> anyhow::Result<NamedTempFile> {
    let folder = folder_of(target);
    let file = tempfile::Builder::new()
        .prefix(".flexmem-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder);
    // By its kind alone: the name of the temporary file means nothing to anybody.
    file.map_err(|error| {
        anyhow!("no file can be made in the folder {}: {}", folder.display(), io::Error::from(error.kind()))
    })
}

/// Writes a file that takes the place of another, or of none, when it is whole.
fn replace<T>(target: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> anyhow::Result<T> {
    let mut file = new_file(target)?;
    if let Some(old) = metadata(target)?
        && !resemble(file.as_file(), &old)
    {
        return Ok(fill(&mut File::create(target)?)?);
    }
    let filled = fill(&mut file)?;
    // A name that is on the disk before what is in the file would be an empty file after a crash.
    file.as_file().sync_all()?;
    // The error of `persist` names its cause twice.
    file.persist(target).map_err(|error| error.error)?;
    Ok(filled)
}

/// Makes a new file like the one that it replaces; false if that is impossible.
fn resemble(new: &File, old: &Metadata) -> bool {
    let owned = new.metadata().is_ok_and(|new| (new.uid(), new.gid()) == (old.uid(), old.gid()))
        || fchown(new, Some(old.uid()), Some(old.gid())).is_ok();
    owned && old.nlink() == 1 && new.set_permissions(old.permissions()).is_ok()
}
