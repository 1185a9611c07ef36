//! Somebody who has connected to the socket, and reads as fast as they like.
//!
//! What they have not read yet waits here, up to a limit. Beyond that their events are left out, and counted. Nothing
//! waits for them: the socket is written only as far as it takes bytes at once. No lock.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use flex_trace::WriteError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SendFlags, send};

use crate::sink::Sink;
use crate::source::Batch;

/// How long a client has, at the end, to read what is left.
const GOODBYE: Duration = Duration::from_secs(1);

/// How long one that reads nothing is waited for, so that one that is stopped does not keep a program from ending.
const STALLED: Duration = Duration::from_millis(50);

/// What a client has not read yet.
#[derive(Default)]
pub(crate) struct Outbox(VecDeque<u8>);

impl Write for Outbox {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connected client.
pub(crate) struct Client {
    socket: UnixStream,
    sink: Sink<Outbox>,
    /// Bytes that may wait.
    room_bytes: usize,
}

impl Client {
    pub(crate) fn new(socket: UnixStream, sink: Sink<Outbox>, room_bytes: usize) -> Self {
        Client { socket, sink, room_bytes }
    }

    /// Hands a device's events over, or leaves them out if there is no room. Returns how many were left out.
    pub(crate) fn append(&mut self, device: u32, batch: &Batch) -> Result<u64, WriteError> {
        if self.waiting_bytes() > self.room_bytes {
            return Ok(self.sink.omit(device, batch));
        }
        self.sink.append(device, batch)?;
        self.sink.flush()?;
        Ok(0)
    }

    /// Tells the client that everything from before a moment is above, so that it knows how old that is. Not if that
    /// is not so, since events were left out for lack of room; nor if nothing is new and it has not read what was: the
    /// program may be idle for longer than it is away.
    pub(crate) fn mark(&mut self, time_ns: u64, is_news: bool) -> Result<(), WriteError> {
        let waiting_bytes = self.waiting_bytes();
        if waiting_bytes > self.room_bytes || (waiting_bytes > 0 && !is_news) {
            return Ok(());
        }
        self.sink.mark(time_ns)?;
        self.sink.flush()
    }

    /// Sends what the socket takes at once. An error says that the client is gone, also if there was nothing to send.
    pub(crate) fn send(&mut self) -> io::Result<()> {
        let socket = &self.socket;
        let mut gone = [PollFd::new(socket, PollFlags::empty())];
        // A signal's handler may run on this thread, and says nothing about the client.
        retry_on_intr(|| poll(&mut gone, Some(&Timespec::default())))?;
        if gone[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.sink.with_output(|outbox| send_some(socket, outbox))
    }

    /// Ends the trace, and sends what the client goes on reading.
    pub(crate) fn finish(self) -> Result<(), WriteError> {
        let deadline = Instant::now() + GOODBYE;
        let mut outbox = self.sink.finish()?;
        loop {
            send_some(&self.socket, &mut outbox)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if outbox.0.is_empty() || left.is_zero() {
                return Ok(());
            }
            let patience = Timespec::try_from(left.min(STALLED)).ok();
            match poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], patience.as_ref()) {
                Ok(0) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    fn waiting_bytes(&mut self) -> usize {
        self.sink.with_output(|outbox| outbox.0.len())
    }
}

fn send_some(socket: &UnixStream, outbox: &mut Outbox) -> io::Result<()> {
    while !outbox.0.is_empty() {
        // The program may not have turned SIGPIPE off.
        match send(socket, outbox.0.as_slices().0, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => drop(outbox.0.drain(..sent)),
            Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;

    use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

    use super::*;

    /// Enough for one to come at the wrong moment, or as many as come in so long on a machine that is busy.
    const MANY: u64 = 20_000;
    const LONG: Duration = Duration::from_secs(3);

    static INTERRUPTIONS: AtomicU64 = AtomicU64::new(0);

    extern "C" fn count(_signal: i32) {
        INTERRUPTIONS.fetch_add(1, Ordering::Relaxed);
    }

    /// Sends signals to a thread, without a pause, until `is_done`.
    fn interrupt(thread: Pthread, is_done: &AtomicBool) {
        while !is_done.load(Ordering::Acquire) {
            pthread_kill(thread, Signal::SIGUSR2).unwrap();
        }
    }

    /// Says that a thread is done, also if it panics.
    struct Done<'a>(&'a AtomicBool);

    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    fn client(socket: UnixStream, waiting_bytes: usize) -> Client {
        let mut sink = Sink::open(Outbox::default(), "test", None, &[]).unwrap();
        sink.with_output(|outbox| outbox.0.extend(vec![0; waiting_bytes]));
        Client::new(socket, sink, usize::MAX)
    }

    /// Some calls fail when a signal's handler has run, and are not begun again by the system, whatever its flags.
    #[test]
    fn signals_do_not_end_a_client() {
        let interruptible = SigAction::new(SigHandler::Handler(count), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler only counts.
        unsafe { sigaction(Signal::SIGUSR2, &interruptible) }.unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (is_done, target) = (AtomicBool::new(false), pthread_self());
        // More than a socket takes, so that sending goes on.
        let mut client = client(ours, 4 << 20);
        thread::scope(|scope| {
            scope.spawn(|| interrupt(target, &is_done));
            let done = Done(&is_done);
            let until = Instant::now() + LONG;
            while INTERRUPTIONS.load(Ordering::Relaxed) < MANY && Instant::now() < until {
                client.send().unwrap();
            }
            // Nobody reads: this waits a while, and gives up.
            client.finish().unwrap();
            drop(done);
        });
        let mut bytes = Vec::new();
        (&theirs).read_to_end(&mut bytes).unwrap();
        assert!(bytes.len() > 4096 && INTERRUPTIONS.load(Ordering::Relaxed) > 0);
    }
}
