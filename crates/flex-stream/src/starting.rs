//! A stream that is about to begin.
//!
//! Whoever changes something else together with the stream, such as what is recorded, asks first whether it can begin:
//! [`Stream::prepare`] opens, checks and writes all that can be refused, and takes the thread. What is live is told by
//! [`Starting::begin`], which a disk may have no room for; then the one that runs goes on. Only if the new stream goes
//! where that one goes, it has to end first.
//!
//! No lock. The thread waits for its work until that comes, or the [`Starting`] is dropped.

use std::fs::File;
use std::io::BufWriter;
use std::path::{self, Path};
use std::sync::{Arc, mpsc};
use std::thread;

use flex::signals::with_signals_blocked;
use nix::errno::Errno;

use crate::directory::{check, socket_path};
use crate::error::{open_error, refusal};
use crate::file;
use crate::sink::Sink;
use crate::socket::Socket;
use crate::source::Source;
use crate::stream::Control;
use crate::worker::{Worker, into_io};
use crate::{Stream, StreamError, StreamOptions};

/// A stream that is about to begin. Dropping it leaves everything as it was, but for a file that was there: it begins
/// anew already.
#[must_use = "it begins with `begin`"]
pub struct Starting {
    options: StreamOptions,
    file: Place<Sink<BufWriter<File>>>,
    socket: Place<Socket>,
    former: Option<Arc<Stream>>,
    thread: mpsc::Sender<Worker>,
}

/// Where a stream goes.
enum Place<T> {
    Nowhere,
    Open(T),
    /// Where the one before it goes, until that has ended.
    OfFormer,
}

impl<T> Place<T> {
    /// The place, which `open` opens if the one before had it.
    fn take(self, open: impl FnOnce() -> Result<T, StreamError>) -> Result<Option<T>, StreamError> {
        match self {
            Place::Nowhere => Ok(None),
            Place::Open(place) => Ok(Some(place)),
            Place::OfFormer => open().map(Some),
        }
    }
}

impl Starting {
    pub(crate) fn new(
        mut options: StreamOptions,
        former: Option<Arc<Stream>>,
    ) -> Result<Starting, StreamError> {
        if options.file.is_none() && options.socket_directory.is_none() {
            return Err(StreamError::NoSink);
        }
        if let Some(path) = &mut options.file {
            // The program may go to another folder later.
            *path = path::absolute(&*path).map_err(|error| open_error(path, error))?;
        }
        let sources = sources_of(&options)?;
        let running = former.as_deref().filter(|former| former.is_running());
        let socket = match options.socket_directory.as_deref() {
            None => Place::Nowhere,
            Some(folder) if running.is_some_and(|former| has_socket_in(former, folder)) => {
                check(folder)?;
                Place::OfFormer
            }
            Some(folder) => Place::Open(Socket::listen(folder)?),
        };
        let thread = start_thread()?;
        // At the end, since a file that was there is gone from here on.
        let file = match options.file.as_deref() {
            None => Place::Nowhere,
            Some(path) if running.is_some_and(|former| former.writes_to(path)) => Place::OfFormer,
            Some(path) => Place::Open(open_file(path, &options, &sources)?),
        };
        Ok(Starting { options, file, socket, former, thread })
    }

    /// Begins to stream, from now on. A stream that was given to [`Stream::prepare`] is ended, which takes five seconds
    /// at most.
    ///
    /// # Errors
    /// [`StreamError::Open`] if what is live does not fit onto the disk: the stream before goes on then. If it goes
    /// where that one went, and that is not to be had any more, no stream runs. [`StreamError::Forked`].
    pub fn begin(self) -> Result<Stream, StreamError> {
        let Starting { options, mut file, socket, former, thread } = self;
        let sources = sources_of(&options)?;
        let path = options.file.as_deref().unwrap_or(Path::new(""));
        if let Place::Open(sink) = &mut file {
            tell_live(path, sink, &sources)?;
        }
        let has_ended = former.is_none_or(|former| former.stop());
        let mut file = file.take(|| {
            if !has_ended {
                return Err(open_error(
                    path,
                    refusal(Errno::EBUSY, "the stream before is still writing to it"),
                ));
            }
            let mut sink = open_file(path, &options, &sources)?;
            tell_live(path, &mut sink, &sources)?;
            Ok(sink)
        })?;
        let folder = options.socket_directory.as_deref().unwrap_or(Path::new(""));
        let socket = socket.take(|| Socket::listen(folder))?;
        let control = Arc::new(Control::default());
        let identity_of =
            |sink: &mut Sink<BufWriter<File>>| sink.with_output(|output| file::identity(output.get_ref()));
        let identity = file.as_mut().and_then(identity_of);
        let path_of_socket = socket.as_ref().map(|socket| socket.path().to_owned());
        let stream = Stream::new(Arc::clone(&control), options.file.clone(), identity, path_of_socket);
        let worker = Worker::new(sources, options, file, socket, control);
        // Only the thread could have dropped the other end, and it waits for this.
        let _ = thread.send(worker);
        Ok(stream)
    }
}

fn has_socket_in(stream: &Stream, folder: &Path) -> bool {
    stream.socket() == Some(&*socket_path(folder, std::process::id()))
}

fn sources_of(options: &StreamOptions) -> Result<Vec<Source>, StreamError> {
    let numbered = (0..).zip(&options.devices);
    let sources = numbered.map(|(device, allocator)| Source::new(allocator.clone(), device));
    sources.collect::<Result<_, _>>().map_err(|_| StreamError::Forked)
}

/// Opens the file and writes the beginning of a trace, which a full disk refuses.
fn open_file(
    path: &Path,
    options: &StreamOptions,
    sources: &[Source],
) -> Result<Sink<BufWriter<File>>, StreamError> {
    let open = || {
        let output = BufWriter::new(file::create(path)?);
        Sink::open(output, &options.producer, options.stacks.clone(), sources).map_err(into_io)
    };
    open().map_err(|error| open_error(path, error))
}

fn tell_live(path: &Path, sink: &mut Sink<BufWriter<File>>, sources: &[Source]) -> Result<(), StreamError> {
    sink.tell_live(sources).map_err(|error| open_error(path, into_io(error)))
}

/// A thread that runs the worker that is sent to it.
fn start_thread() -> Result<mpsc::Sender<Worker>, StreamError> {
    let (sender, receiver) = mpsc::channel::<Worker>();
    let run = move || receiver.recv().map_or((), Worker::run);
    let thread = thread::Builder::new().name("flex-stream".to_owned());
    with_signals_blocked(|| thread.spawn(run)).map_err(StreamError::Thread)?;
    Ok(sender)
}
