//! The thread that drains histories and hands events to a file and to clients.
//!
//! It looks every [`TICK`]. Nobody waits for it but [`Stream::stop`], and that with a deadline.
//!
//! Lock: `Control::state`, a leaf: held for a look or a change, never while anything runs.

use std::fs::{self, File, Permissions};
use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use std::{io, thread};

use flex::fork::is_forked;
use flex_trace::WriteError;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use tracing::{debug, warn};

use crate::client::{Client, Outbox};
use crate::directory::{connect_at_once, listen, open_error, prepare, socket_path, sweep};
use crate::file;
use crate::signals::with_signals_blocked;
use crate::sink::Sink;
use crate::source::{Batch, Source};
use crate::{StreamError, StreamOptions, StreamStatistics};

/// How often events are drained: what a watcher sees is at most so old.
const TICK: Duration = Duration::from_millis(50);

/// How long stopping waits for the last events to be written.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Clients at a time; more are turned away.
const MOST_CLIENTS: usize = 8;

/// A stream that runs until it is stopped.
pub struct Stream {
    control: Arc<Control>,
    file: Option<PathBuf>,
    socket: Option<PathBuf>,
}

/// What the thread and the stream's owner share.
struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stopping: bool,
    stopped: bool,
    statistics: StreamStatistics,
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next tick; true if the stream is to stop.
    fn wait_for_tick(&self) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), TICK, |state| !state.stopping);
        waited.unwrap_or_else(PoisonError::into_inner).0.stopping
    }

    /// Waits for the thread to end; false if it has not before the deadline.
    fn wait_for_end(&self) -> bool {
        let mut state = self.lock();
        state.stopping = true;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(state, STOP_TIMEOUT, |state| !state.stopped);
        waited.unwrap_or_else(PoisonError::into_inner).0.stopped
    }
}

impl Stream {
    /// Begins to stream. The histories have to be recording, or to begin later; events from now on are streamed.
    ///
    /// # Errors
    /// [`StreamError`]: no sink, a folder or file that is not safe, a path that cannot be opened, no thread, a forked
    /// child.
    pub fn start(options: StreamOptions) -> Result<Stream, StreamError> {
        if options.file.is_none() && options.socket_directory.is_none() {
            return Err(StreamError::NoSink);
        }
        let numbered = (0..).zip(&options.devices);
        let sources = numbered.map(|(device, allocator)| Source::new(allocator.clone(), device));
        let sources = sources.collect::<Result<_, _>>().map_err(|_| StreamError::Forked)?;
        let control = Arc::new(Control { state: Mutex::default(), changed: Condvar::new() });
        let mut worker = Worker { sources, options, file: None, socket: None, clients: Vec::new(), control };
        worker.file = worker.open_file()?;
        worker.socket = worker.options.socket_directory.as_deref().map(Socket::listen).transpose()?;
        let stream = Stream {
            control: Arc::clone(&worker.control),
            file: worker.options.file.clone(),
            socket: worker.socket.as_ref().map(|socket| socket.path.clone()),
        };
        let thread = thread::Builder::new().name("flex-stream".to_owned());
        match with_signals_blocked(|| thread.spawn(move || worker.run())) {
            Ok(_) => Ok(stream),
            Err(error) => {
                stream.control.lock().stopped = true;
                Err(StreamError::Thread(error))
            }
        }
    }

    /// What is written.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Where clients connect.
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Whether it has not ended yet.
    pub fn is_running(&self) -> bool {
        !self.control.lock().stopped
    }

    /// What it has done so far.
    pub fn statistics(&self) -> StreamStatistics {
        self.control.lock().statistics.clone()
    }

    /// Writes what was recorded until now and ends the traces, the first time. Waits at most five seconds, for a disk
    /// that is slow; false if that was not enough: the thread ends when it can. In a forked child there is nothing to
    /// stop.
    pub fn stop(&self) -> bool {
        is_forked() || self.control.wait_for_end()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Where clients connect. Its path is gone when it is.
struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    fn listen(directory: &Path) -> Result<Socket, StreamError> {
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
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !is_forked() {
            // Nobody can do anything about a path that stays; the next process of this number removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The thread's own.
struct Worker {
    sources: Vec<Source>,
    options: StreamOptions,
    file: Option<Sink<BufWriter<File>>>,
    socket: Option<Socket>,
    clients: Vec<Client>,
    control: Arc<Control>,
}

/// Says that the thread has ended, also if it panicked.
struct Ending(Arc<Control>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().stopped = true;
        self.0.changed.notify_all();
    }
}

impl Worker {
    fn open_file(&self) -> Result<Option<Sink<BufWriter<File>>>, StreamError> {
        let Some(path) = &self.options.file else { return Ok(None) };
        let open = || {
            let output = BufWriter::new(file::create(path)?);
            let stacks = self.options.stacks.clone();
            Sink::begin(output, &self.options.producer, stacks, &self.sources).map_err(into_io)
        };
        open().map(Some).map_err(|error| open_error(path, error))
    }

    fn run(mut self) {
        let _ending = Ending(Arc::clone(&self.control));
        loop {
            let stopping = self.control.wait_for_tick();
            self.drain();
            if stopping {
                // An event that was being written is there now, or lost.
                self.drain();
                return self.finish();
            }
            self.accept();
        }
    }

    /// Hands on what was recorded since the last time.
    fn drain(&mut self) {
        let (mut events, mut lost, mut dropped, mut is_news) = (0, 0, 0, false);
        let now_ns = unix_ns();
        for index in 0..self.sources.len() {
            let batch = self.sources[index].drain();
            if !batch.is_empty() {
                is_news = true;
                events += batch.events.len() as u64;
                lost += batch.lost;
                dropped += self.hand_on(self.sources[index].device, &batch);
            }
        }
        if let Err(error) = self.file.as_mut().map_or(Ok(()), flush_to_its_name) {
            self.give_up(&error);
        }
        self.clients.retain_mut(|client| {
            let sent = client.mark(now_ns, is_news).map_err(into_io).and_then(|()| client.send());
            sent.inspect_err(|error| debug!(%error, "a client of the stream has gone")).is_ok()
        });
        let statistics = &mut self.control.lock().statistics;
        statistics.events += events;
        statistics.lost += lost;
        statistics.dropped += dropped;
        statistics.clients = self.clients.len() as u64;
    }

    /// Hands a device's events to all; how many were left out, by the file and by clients.
    fn hand_on(&mut self, device: u32, batch: &Batch) -> u64 {
        if let Err(error) = self.file.as_mut().map_or(Ok(()), |file| file.append(device, batch)) {
            self.give_up(&error);
        }
        let without_file = self.file.is_none() && self.options.file.is_some();
        let mut dropped = if without_file { batch.events.len() as u64 } else { 0 };
        self.clients.retain_mut(|client| match client.append(device, batch) {
            Ok(omitted) => {
                dropped += omitted;
                true
            }
            Err(_) => false,
        });
        dropped
    }

    /// Writes the file no more: what came after would not fit to what is there.
    fn give_up(&mut self, error: &WriteError) {
        warn!(%error, "the file of the stream is written no more");
        self.file = None;
        self.control.lock().statistics.file_error = Some(error.to_string());
    }

    /// Takes new clients. Each begins with what is live now.
    fn accept(&mut self) {
        while let Some(Ok((socket, _))) = self.socket.as_ref().map(|socket| socket.listener.accept()) {
            if self.clients.len() >= MOST_CLIENTS || !is_same_user(&socket) {
                continue; // Closed.
            }
            match self.welcome(socket) {
                Ok(client) => self.clients.push(client),
                Err(error) => warn!(%error, "a client of the stream was turned away"),
            }
        }
    }

    fn welcome(&self, socket: UnixStream) -> Result<Client, WriteError> {
        let (stacks, now_ns) = (self.options.stacks.clone(), unix_ns());
        let mut sink = Sink::begin(Outbox::default(), &self.options.producer, stacks, &self.sources)?;
        sink.mark(now_ns)?;
        sink.flush()?;
        Ok(Client::new(socket, sink, self.options.client_room_bytes))
    }

    fn finish(mut self) {
        let finished = self.file.take().map_or(Ok(()), |file| file.finish().map(drop));
        if let Err(error) = finished {
            self.give_up(&error);
        }
        for client in self.clients.drain(..) {
            // One that has gone, or does not read, gets no end.
            let _ = client.finish();
        }
    }
}

/// Writes what was appended, to a file that is still there.
fn flush_to_its_name(sink: &mut Sink<BufWriter<File>>) -> Result<(), WriteError> {
    sink.flush()?;
    if sink.with_output(|output| file::is_removed(output.get_ref())) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the file was removed").into());
    }
    Ok(())
}

/// Now, as nanoseconds since 1970.
fn unix_ns() -> u64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}

fn is_same_user(socket: &UnixStream) -> bool {
    let user = socket_peercred(socket).map(|peer| peer.uid);
    user.is_ok_and(|user| user == geteuid() || user.is_root())
}

fn into_io(error: WriteError) -> io::Error {
    match error {
        WriteError::Io(error) => error,
        other => io::Error::other(other),
    }
}
