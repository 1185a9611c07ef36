//! The file of a stream: for the user alone, and nobody's but this process's while it writes. No lock but the system's.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::io::retry_on_intr;
use rustix::process::{Flock, FlockType, fcntl_getlk, geteuid};

use crate::error::refusal;

/// Which file it is, whatever it is called: its device and its number there.
pub(crate) type Identity = (u64, u64);

/// Which file it is that is open; `None` if the system does not say.
pub(crate) fn identity(file: &File) -> Option<Identity> {
    file.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Which file it is at a path, or which link; `None` if there is none.
pub(crate) fn identity_at(path: &Path) -> Option<Identity> {
    path.symlink_metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// A path in which `%p` stands for the number of a process.
pub fn path_of_process(path: &Path, process: u32) -> PathBuf {
    const NUMBER: &[u8] = b"%p";
    let mut rest = path.as_os_str().as_bytes();
    let mut expanded = Vec::with_capacity(rest.len());
    while let Some(at) = rest.windows(NUMBER.len()).position(|part| part == NUMBER) {
        expanded.extend_from_slice(&rest[..at]);
        expanded.extend_from_slice(process.to_string().as_bytes());
        rest = &rest[at + NUMBER.len()..];
    }
    expanded.extend_from_slice(rest);
    OsString::from_vec(expanded).into()
}

/// Opens a file to write from its beginning, makes it if it is not there, and closes it to others.
///
/// It is looked at after it was opened, so that nobody can exchange it in between, and before anything of it changes.
/// A device of characters, such as `/dev/null`, is taken as it is. A lock that goes with the process, and not with its
/// forked children, keeps the streams of two processes out of one file.
///
/// # Errors
/// The system's, and one that says what is not as expected: a link, something that is no file, a file of another user,
/// one that another process streams to.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    // Not through a link, and without waiting for the reader of a pipe.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened =
        OpenOptions::new().write(true).create(true).mode(0o600).custom_flags(flags.bits() as i32).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(code) if code == Errno::ELOOP as i32 => refusal(Errno::ELOOP, "it is a symbolic link"),
        _ => error,
    })?;
    let metadata = file.metadata()?;
    if metadata.file_type().is_char_device() {
        return Ok(file);
    }
    if !metadata.is_file() {
        return Err(refusal(Errno::EINVAL, "it is not a file"));
    }
    if metadata.uid() != geteuid().as_raw() {
        return Err(refusal(Errno::EPERM, "it belongs to another user"));
    }
    if metadata.nlink() != 1 {
        return Err(refusal(Errno::EPERM, "it has other names (hard links)"));
    }
    // A file system that has no locks offers none.
    let locked = retry_on_intr(|| fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive));
    if let Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) = locked {
        let text = "another process streams to it; expected one file for each (%p is the process)";
        return Err(refusal(Errno::EBUSY, text));
    }
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.set_len(0)?;
    Ok(file)
}

/// Whether another process streams to a file that is open, and goes on with it. A process does not see its own streams
/// so, and nobody does on a file system without locks.
pub fn is_being_written(file: &File) -> bool {
    // What a reader would have to wait for.
    let read = Flock::from(FlockType::ReadLock);
    fcntl_getlk(file, &read).is_ok_and(|held| held.is_some())
}

/// Whether nobody can find what is written: the file has no name any more.
pub(crate) fn is_removed(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn each_process_has_its_own_path() {
        assert_eq!(path_of_process(Path::new("/tmp/%p/run-%p.trace"), 7), Path::new("/tmp/7/run-7.trace"));
        assert_eq!(path_of_process(Path::new("100%"), 7), Path::new("100%"));
    }

    #[test]
    fn an_existing_file_is_overwritten_and_closed_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.trace");
        fs::write(&path, "what was there").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let metadata = create(&path).unwrap().metadata().unwrap();
        assert_eq!((metadata.len(), metadata.mode() & 0o777), (0, 0o600));
    }

    #[test]
    fn what_is_not_a_file_of_ones_own_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, hard, pipe] = ["file", "link", "hard", "pipe"].map(|name| folder.path().join(name));
        fs::write(&file, "precious").unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!(create(&link).unwrap_err().to_string(), "it is a symbolic link");
        fs::hard_link(&file, &hard).unwrap();
        assert!(create(&file).unwrap_err().to_string().contains("hard links"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(create(&pipe).is_err(), "and at once");
        assert!(create(folder.path()).is_err());
        create(Path::new("/dev/null")).unwrap();
    }
}
