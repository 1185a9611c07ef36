//! Why a stream cannot begin, in words and as the system's own calls tell it. Plain values; no lock.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// Why a stream cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// Neither a file nor a socket was asked for.
    #[error("a stream needs a file or a socket; neither was given")]
    NoSink,
    /// Somebody else could read what is in the folder, or put something there.
    #[error("{path} is not safe for a socket: {reason}; expected a folder of this user with mode 0700")]
    UnsafeDirectory {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Another stream of this process is open.
    #[error("{path} is in use by another stream")]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// This process is a forked child: the devices are its parent's.
    #[error("a forked child cannot stream: the devices are its parent's")]
    Forked,
    /// A path that the system refuses.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The file, folder or socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The system has no thread for it.
    #[error("cannot start the thread of the stream: {0}")]
    Thread(io::Error),
}

/// An error as the system's own calls tell it: what languages make their own errors of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemError {
    /// The number, such as `ENOENT`.
    pub errno: i32,
    /// What is wrong, without the path.
    pub text: String,
    /// What it is about.
    pub path: PathBuf,
}

impl StreamError {
    /// The error about a path as the system's own calls tell it; `None` for one that is about none.
    pub fn as_system_error(&self) -> Option<SystemError> {
        let error = |errno: Errno, text: String, path: &Path| {
            Some(SystemError { errno: errno as i32, text, path: path.to_owned() })
        };
        match self {
            StreamError::UnsafeDirectory { path, reason } => {
                let text =
                    format!("not safe for a socket: {reason}; expected a folder of this user with mode 0700");
                error(Errno::EACCES, text, path)
            }
            StreamError::InUse { path } => {
                error(Errno::EADDRINUSE, "in use by another stream".to_owned(), path)
            }
            StreamError::Open { path, source } => {
                let (errno, text) = number_and_text(source);
                error(errno, text, path)
            }
            StreamError::NoSink | StreamError::Forked | StreamError::Thread(_) => None,
        }
    }
}

fn number_and_text(source: &io::Error) -> (Errno, String) {
    if let Some(number) = source.raw_os_error() {
        let errno = Errno::from_raw(number);
        return (errno, errno.desc().to_owned());
    }
    let refusal = source.get_ref().and_then(|inner| inner.downcast_ref::<Refusal>());
    (refusal.map_or(Errno::EIO, |refusal| refusal.errno), source.to_string())
}

/// What the system would allow and a stream does not, or what the system refuses with more to say about it.
#[derive(Debug)]
struct Refusal {
    errno: Errno,
    text: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {}

/// An error of this number, with words of our own.
pub(crate) fn refusal(errno: Errno, text: impl Into<String>) -> io::Error {
    let kind = io::Error::from_raw_os_error(errno as i32).kind();
    io::Error::new(kind, Refusal { errno, text: text.into() })
}

pub(crate) fn open_error(path: &Path, source: io::Error) -> StreamError {
    StreamError::Open { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_a_path_have_its_number_and_text() {
        let of = |source| {
            let SystemError { errno, text, path } =
                open_error(Path::new("/a"), source).as_system_error().unwrap();
            assert_eq!(path, Path::new("/a"));
            (errno, text)
        };
        let missing = io::Error::from_raw_os_error(Errno::ENOENT as i32);
        assert_eq!(of(missing), (2, "No such file or directory".to_owned()));
        assert_eq!(of(refusal(Errno::ELOOP, "it is a link")), (40, "it is a link".to_owned()));
        assert_eq!(of(io::Error::other("broken")), (Errno::EIO as i32, "broken".to_owned()));
        assert_eq!(StreamError::Forked.as_system_error(), None);
    }
}
