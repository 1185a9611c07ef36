//! Connecting to the stream of a process, as a reader does. No lock.
//!
//! A folder that only the user can enter says that the socket is the user's; the system says so of who listens.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use crate::StreamError;
use crate::directory::{check, connect_at_once, directories_of, socket_path};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There is no such process.
    #[error("there is no process {process}")]
    NoSuchProcess {
        /// Its number.
        process: u32,
    },
    /// The process, or what listens in its name, is somebody else's.
    #[error(
        "process {process} belongs to the user with number {user}; expected one of this user, whose number is {own}"
    )]
    OtherUser {
        /// Its number.
        process: u32,
        /// Whose it is.
        user: u32,
        /// Who asks.
        own: u32,
    },
    /// The process does not stream its history.
    #[error("process {process} does not stream its history: there is no socket {path}")]
    NoStream {
        /// Its number.
        process: u32,
        /// Where the socket would be.
        path: PathBuf,
    },
    /// Others could have put the socket there.
    #[error(transparent)]
    Unsafe(StreamError),
    /// The system refuses.
    #[error("cannot connect to process {process}: {source}")]
    Refused {
        /// Its number.
        process: u32,
        /// Why.
        source: io::Error,
    },
}

/// Connects to the stream of a process of the same user.
///
/// # Errors
/// [`ConnectError`].
pub fn connect(process: u32) -> Result<UnixStream, ConnectError> {
    let refused = |source| ConnectError::Refused { process, source };
    let own = geteuid().as_raw();
    let owner = match fs::metadata(format!("/proc/{process}")) {
        Ok(metadata) => metadata.uid(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(ConnectError::NoSuchProcess { process });
        }
        Err(error) => return Err(refused(error)),
    };
    let expect_own = |user: u32| {
        if user == own { Ok(()) } else { Err(ConnectError::OtherUser { process, user, own }) }
    };
    expect_own(owner)?;
    let paths: Vec<_> = directories_of(process).iter().map(|folder| socket_path(folder, process)).collect();
    let no_stream = || ConnectError::NoStream { process, path: paths.first().cloned().unwrap_or_default() };
    let path = paths.iter().find(|path| path.symlink_metadata().is_ok()).ok_or_else(no_stream)?;
    path.parent().map_or(Ok(()), check).map_err(ConnectError::Unsafe)?;
    let socket = connect_at_once(path).map_err(|error| match error.kind() {
        // What a process that had this number before has left, or one that has just ended its stream.
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => no_stream(),
        io::ErrorKind::WouldBlock => refused(io::Error::new(
            error.kind(),
            "it does not answer, and others wait for that already; it is stopped",
        )),
        _ => refused(error),
    })?;
    let peer = socket_peercred(&socket).map_err(|error| refused(error.into()))?;
    expect_own(peer.uid.as_raw())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_be_watched_is_said_to_be_so() {
        // Above what the system gives to processes.
        let text = connect(1 << 30).unwrap_err().to_string();
        assert_eq!(text, "there is no process 1073741824");
        let text = connect(std::process::id()).unwrap_err().to_string();
        assert!(text.contains("does not stream its history: there is no socket /"), "{text}");
    }
}
