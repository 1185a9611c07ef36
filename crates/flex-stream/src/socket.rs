//! The socket of a stream: where clients connect. No lock.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use flex::fork::is_forked;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use crate::StreamError;
use crate::directory::{connect_at_once, listen, prepare, socket_path, sweep};
use crate::error::open_error;

/// Where clients connect. Its path is gone when it is.
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Listens for this process in a folder, which is made if it is not there.
    pub(crate) fn listen(directory: &Path) -> Result<Socket, StreamError> {
        prepare(directory)?;
        sweep(directory);
        let path = socket_path(directory, std::process::id());
        let answer = connect_at_once(&path);
        if answer.is_ok() || answer.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            return Err(StreamError::InUse { path });
        }
        // What is left of an earlier process of this number.
        let _ = fs::remove_file(&path);
        let listener = listen(&path)?;
        let socket = Socket { listener, path };
        let private = fs::set_permissions(&socket.path, Permissions::from_mode(0o600));
        let ready = private.and_then(|()| socket.listener.set_nonblocking(true));
        ready.map_err(|error| open_error(&socket.path, error)).map(|()| socket)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The next one who has connected, if there is one. Nobody else's process is let in: that is closed.
    pub(crate) fn accept(&self) -> Option<UnixStream> {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) if is_same_user(&socket) => return Some(socket),
                // Of another user; or who was about to connect has gone again.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !is_forked() {
            // Nobody can do anything about a path that stays; the next process of this number removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn is_same_user(socket: &UnixStream) -> bool {
    let user = socket_peercred(socket).map(|peer| peer.uid);
    user.is_ok_and(|user| user == geteuid() || user.is_root())
}
