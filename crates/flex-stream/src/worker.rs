//! The thread of a stream: it drains histories and hands the events to a file and to clients, again and again.
//!
//! Nothing that allocates or frees waits for it. Lock: `Control`'s, a leaf, for a look or a change.

use std::fs::File;
use std::io::{self, BufWriter};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::SystemTime;

use flex_trace::WriteError;
use tracing::{debug, warn};

use crate::client::{Client, Outbox};
use crate::sink::Sink;
use crate::socket::Socket;
use crate::source::{Batch, Source};
use crate::stream::Control;
use crate::{StreamOptions, file};

/// Clients at a time; more are turned away.
const MOST_CLIENTS: usize = 8;

/// So many passes drain all that was recorded before the first. One ends at an event that a thread is just writing,
/// which the next finds there or lost, and one where recording began anew.
const ALL_PASSES: usize = 3;

/// The thread's own.
pub(crate) struct Worker {
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
        self.0.say_stopped();
    }
}

impl Worker {
    pub(crate) fn new(
        sources: Vec<Source>,
        options: StreamOptions,
        file: Option<Sink<BufWriter<File>>>,
        socket: Option<Socket>,
        control: Arc<Control>,
    ) -> Worker {
        Worker { sources, options, file, socket, clients: Vec::new(), control }
    }

    pub(crate) fn run(mut self) {
        let _ending = Ending(Arc::clone(&self.control));
        loop {
            let wake = self.control.wait_for_tick();
            let passes = if wake.stopping || wake.asked.is_some() { ALL_PASSES } else { 1 };
            (0..passes).for_each(|_| self.drain());
            if let Some(asked) = wake.asked {
                self.control.answer(asked);
            }
            if wake.stopping {
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
        let clients = self.clients.len() as u64;
        self.control.count(|statistics| {
            statistics.events += events;
            statistics.lost += lost;
            statistics.dropped += dropped;
            statistics.clients = clients;
        });
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
        self.control.count(|statistics| statistics.file_error = Some(error.to_string()));
    }

    /// Takes new clients. Each begins with what is live now.
    fn accept(&mut self) {
        while let Some(socket) = self.socket.as_ref().and_then(Socket::accept) {
            if self.clients.len() >= MOST_CLIENTS {
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
        let mut sink = Sink::open(Outbox::default(), &self.options.producer, stacks, &self.sources)?;
        sink.tell_live(&self.sources)?;
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

pub(crate) fn into_io(error: WriteError) -> io::Error {
    match error {
        WriteError::Io(error) => error,
        other => io::Error::other(other),
    }
}
