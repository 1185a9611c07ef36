//! The records of a process's stream, as far as they have come. No lock.

use std::cell::Cell;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use flex_stream::ConnectError;
use flex_trace::{Progress, ReadError, Reader, Record, Version};

/// From this version on a stream tells how old it is.
const DATED: Version = Version { major: 1, minor: 1 };

/// How long a process has to say something at all.
const GREETING: Duration = Duration::from_secs(10);

/// Where a stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// More may come.
    Open,
    /// The process has ended it: nothing is missing.
    Ended,
    /// The process is gone, or it let go of us.
    Broken,
}

/// A connection to a process.
#[derive(Debug)]
pub struct Connection {
    process: u32,
    reader: Reader<Inlet>,
    inlet: Rc<Limits>,
}

/// Until when to wait for bytes, and whether there will be more.
#[derive(Debug)]
struct Limits {
    deadline: Cell<Instant>,
    closed: Cell<bool>,
}

/// The socket as a file that grows: nothing more until the deadline looks like its end.
#[derive(Debug)]
struct Inlet {
    socket: UnixStream,
    limits: Rc<Limits>,
}

impl Read for Inlet {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.limits.deadline.get().saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(0);
        }
        self.socket.set_read_timeout(Some(left))?;
        match self.socket.read(buffer) {
            Ok(0) => self.limits.closed.set(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => self.limits.closed.set(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            other => return other,
        }
        Ok(0)
    }
}

impl Connection {
    /// Connects to a process of the same user, and waits up to ten seconds for the beginning of its stream.
    ///
    /// # Errors
    /// [`ConnectError`]: no such process, another user's, one without a stream; [`ReadError`] in
    /// [`ConnectError::Refused`] if what it sends is no stream.
    pub fn open(process: u32) -> Result<Connection, ConnectError> {
        Connection::over(flex_stream::connect(process)?, process).map_err(|error| {
            let source = match error {
                ReadError::NotATrace { found } if found.is_empty() => io::Error::new(
                    io::ErrorKind::TimedOut,
                    "it does not answer; it is stopped, or too many watch it already",
                ),
                other => io::Error::other(other),
            };
            ConnectError::Refused { process, source }
        })
    }

    fn over(socket: UnixStream, process: u32) -> Result<Connection, ReadError> {
        let deadline = Cell::new(Instant::now() + GREETING);
        let inlet = Rc::new(Limits { deadline, closed: Cell::new(false) });
        let reader = Reader::new(Inlet { socket, limits: Rc::clone(&inlet) })?;
        Ok(Connection { process, reader, inlet })
    }

    /// Whether the stream tells how old it is, by [`Record::Watermark`].
    pub fn is_dated(&self) -> bool {
        self.reader.header().version >= DATED
    }

    /// Shows all records that come before the deadline, in order, unless `visit` breaks off.
    ///
    /// # Errors
    /// What is wrong with what was received. The connection cannot go on then.
    pub fn records_until(
        &mut self,
        deadline: Instant,
        mut visit: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<State, ReadError> {
        self.inlet.deadline.set(deadline);
        while let Some(record) = self.reader.next()? {
            if visit(&record).is_break() || Instant::now() >= deadline {
                return Ok(State::Open);
            }
        }
        Ok(match self.reader.progress() {
            Progress::Finished => State::Ended,
            // A forked child of a process that is gone may have kept its end of the socket.
            _ if self.inlet.closed.get() || !self.process_exists() => State::Broken,
            _ => State::Open,
        })
    }

    /// Whether the process runs, or is stopped. One that has ended, and that nobody has waited for, does not.
    fn process_exists(&self) -> bool {
        // The state follows the name, which is in parentheses and may have some.
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.process));
        status.is_ok_and(|status| !status.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flex_trace::{Header, Writer};

    use super::*;

    /// For what is there, or comes, however busy the machine is.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// For what does not come.
    const SHORT: Duration = Duration::from_millis(10);

    const ALL: u64 = u64::MAX;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    /// How many records come, `most` at most, and what stands then. Waits for them.
    fn records(connection: &mut Connection, most: u64) -> (u64, State) {
        let patience = if most == 0 { SHORT } else { PATIENCE };
        let mut count = 0;
        let state = connection.records_until(Instant::now() + patience, |_| {
            count += 1;
            if count == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (count, state.unwrap())
    }

    fn setting(value: &str) -> Record<'_> {
        Record::Setting { key: "key", value }
    }

    #[test]
    fn records_come_as_they_were_sent_until_the_end() {
        let (here, there) = pair();
        let mut writer = Writer::new(there, Header::default()).unwrap();
        let mut connection = Connection::over(here, std::process::id()).unwrap();
        assert_eq!(records(&mut connection, 0), (0, State::Open));
        writer.write(&setting("one")).unwrap();
        writer.flush().unwrap();
        assert_eq!(records(&mut connection, 1), (1, State::Open));
        writer.write(&setting("two")).unwrap();
        let there = writer.finish().unwrap();
        assert_eq!(records(&mut connection, ALL), (2, State::Ended), "the end is a record too");
        drop(there);
    }

    #[test]
    fn a_frame_in_pieces_waits_for_its_rest_and_one_without_breaks_off() {
        let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
        writer.write(&setting("one")).unwrap();
        writer.flush().unwrap();
        let bytes = writer.finish().unwrap();
        let (here, mut there) = pair();
        there.write_all(&bytes[..20]).unwrap();
        let mut connection = Connection::over(here, std::process::id()).unwrap();
        assert_eq!(records(&mut connection, 0), (0, State::Open));
        there.write_all(&bytes[20..bytes.len() - 1]).unwrap();
        assert_eq!(records(&mut connection, 1), (1, State::Open));
        drop(there);
        assert_eq!(records(&mut connection, ALL), (0, State::Broken));
    }

    #[test]
    fn what_is_no_stream_is_said_to_be_none() {
        let (here, mut there) = pair();
        there.write_all(b"HTTP/1.1 400 Bad Request").unwrap();
        assert!(matches!(Connection::over(here, 1), Err(ReadError::NotATrace { .. })));
    }

    #[test]
    fn a_process_that_has_ended_is_gone_also_before_it_is_waited_for() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        // Whoever holds the other end, as a forked child of the process may.
        let (here, there) = pair();
        let mut writer = Writer::new(there, Header::default()).unwrap();
        writer.flush().unwrap();
        let mut connection = Connection::over(here, child.id()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while records(&mut connection, 0).1 != State::Broken {
            assert!(Instant::now() < deadline, "it counts as one that runs");
        }
        child.wait().unwrap();
        assert_eq!(records(&mut connection, 0), (0, State::Broken));
    }
}
