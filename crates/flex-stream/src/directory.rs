//! Where the sockets of processes are: a folder that belongs to the user and that nobody else can enter.
//!
//! That is what keeps others from connecting, and from putting a socket of theirs where a reader looks for one, so it
//! is checked by both sides. No lock.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions, symlink_metadata};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::geteuid;

use crate::StreamError;
use crate::error::{open_error, refusal};

/// Younger sockets are left alone.
const NEW: Duration = Duration::from_secs(60);

/// `$XDG_RUNTIME_DIR/flexmem`, or `flexmem-UID` in `$TMPDIR` or `/tmp` where that is not set.
pub fn default_directory() -> PathBuf {
    directory_by(|name| std::env::var_os(name))
}

/// Where a process of the same user has its socket, if it has one: by our environment, or by the one that the process
/// was started with.
pub fn directories_of(process: u32) -> Vec<PathBuf> {
    let mut directories = vec![default_directory()];
    if let Ok(environment) = fs::read(format!("/proc/{process}/environ")) {
        let value = |name: &str| {
            let mut variables = environment.split(|&byte| byte == 0);
            let value = variables.find_map(|item| item.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
            value.map(|value| OsString::from_vec(value.to_vec()))
        };
        directories.push(directory_by(value));
    }
    directories.dedup();
    directories
}

fn directory_by(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let folder = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match folder("XDG_RUNTIME_DIR") {
        Some(runtime) => runtime.join("flexmem"),
        None => {
            let temporary = folder("TMPDIR").unwrap_or_else(|| PathBuf::from("/tmp"));
            temporary.join(format!("flexmem-{}", geteuid().as_raw()))
        }
    }
}

/// The socket of a process in a folder.
pub fn socket_path(directory: &Path, process: u32) -> PathBuf {
    directory.join(format!("{process}.sock"))
}

/// Connects to a socket without waiting: to a process that is stopped, and has as many callers as the system lets wait,
/// a connection would take for ever. Such a one is an error of kind `WouldBlock`.
pub(crate) fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Whether a folder is safe: the user's own, and closed to all others.
///
/// # Errors
/// [`StreamError::UnsafeDirectory`], or [`StreamError::Open`] if it cannot be looked at.
pub fn check(path: &Path) -> Result<(), StreamError> {
    // Not through a link: its target could be changed behind our back.
    let metadata = symlink_metadata(path).map_err(|source| open_error(path, source))?;
    let reason = if !metadata.is_dir() {
        "it is not a folder"
    } else if metadata.uid() != geteuid().as_raw() {
        "it belongs to another user"
    } else if metadata.mode() & 0o077 != 0 {
        "others may enter it"
    } else {
        return Ok(());
    };
    Err(StreamError::UnsafeDirectory { path: path.to_owned(), reason })
}

/// Makes a folder, unless it is there, and checks it.
pub(crate) fn prepare(path: &Path) -> Result<(), StreamError> {
    match DirBuilder::new().mode(0o700).create(path) {
        // The umask may have taken rights from us. It is ours, and nobody else can exchange it for another: at worst
        // the folder around it is the user's, or one of those where only owners rename.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o700))
            .map_err(|error| open_error(path, error))
            .and_then(|()| check(path)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check(path),
        Err(error) => {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32));
            let place = "the folder of sockets is made in XDG_RUNTIME_DIR, or else TMPDIR or /tmp";
            Err(open_error(path, refusal(errno, format!("{}; {place}", errno.desc()))))
        }
    }
}

/// Listens on a path.
pub(crate) fn listen(path: &Path) -> Result<UnixListener, StreamError> {
    UnixListener::bind(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => {
            let text = format!(
                "this path has {} bytes, and that of a socket can have 107; expected a shorter XDG_RUNTIME_DIR, or \
                 TMPDIR where that is not set",
                path.as_os_str().len()
            );
            open_error(path, refusal(Errno::ENAMETOOLONG, text))
        }
        _ => open_error(path, error),
    })
}

/// Removes the sockets of processes that ended without doing so: those that nobody listens on. One that is new may be
/// about to be listened on.
pub(crate) fn sweep(path: &Path) {
    let Ok(entries) = fs::read_dir(path) else { return };
    for entry in entries.flatten() {
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        let age = entry.metadata().and_then(|data| data.modified()).ok().and_then(|time| time.elapsed().ok());
        let is_refused = || {
            connect_at_once(&entry.path())
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        if is_socket && age.is_some_and(|age| age > NEW) && is_refused() {
            // If it cannot be removed it stays, and harms nobody.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_new_folder_is_for_the_user_alone() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("flexmem");
        prepare(&path).unwrap();
        prepare(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn the_folder_is_where_the_environment_says() {
        let user = geteuid().as_raw();
        let by = |runtime: Option<&str>, temporary: Option<&str>| {
            directory_by(|name| if name == "TMPDIR" { temporary } else { runtime }.map(OsString::from))
        };
        assert_eq!(by(Some("/run/user/7"), Some("/scratch")), Path::new("/run/user/7/flexmem"));
        assert_eq!(by(Some("relative"), Some("/scratch")), Path::new(&format!("/scratch/flexmem-{user}")));
        assert_eq!(by(None, None), Path::new(&format!("/tmp/flexmem-{user}")));
        assert_eq!(directories_of(std::process::id()).first(), Some(&default_directory()));
    }

    #[test]
    fn an_unsafe_place_is_refused_by_name() {
        let parent = tempfile::tempdir().unwrap();
        let (open, file, link) =
            (parent.path().join("open"), parent.path().join("file"), parent.path().join("link"));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
        fs::write(&file, "").unwrap();
        symlink(parent.path(), &link).unwrap();
        for (path, reason) in
            [(&open, "others may enter it"), (&file, "it is not a folder"), (&link, "it is not a folder")]
        {
            let text = prepare(path).unwrap_err().to_string();
            assert!(text.contains(reason) && text.contains(path.to_str().unwrap()), "{text}");
        }
        let missing = parent.path().join("no").join("folder");
        let text = prepare(&missing).unwrap_err().to_string();
        assert!(text.contains("No such file") && text.contains("XDG_RUNTIME_DIR"), "{text}");
        let long = parent.path().join("x".repeat(100));
        let text = listen(&long).unwrap_err().to_string();
        assert!(text.contains("of a socket can have 107") && text.contains("XDG_RUNTIME_DIR"), "{text}");
    }
}
