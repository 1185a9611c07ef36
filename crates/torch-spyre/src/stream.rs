//! The history of the process's devices as a stream: one at a time, from its start to its stop or to the exit.
//!
//! Locks: `CHANGES` is held by those who change what is recorded, start or stop, while files are opened and the
//! stream's thread is waited for, so it is taken on detached threads only. `STREAM` is a leaf, held to copy a pointer.
//! Nothing that allocates or frees looks here, and a forked child takes neither.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flex::{FlexAllocator, FlexError};
use flex_stream::directory::default_directory;
use flex_stream::{StackFrame, Stacks, Starting, Stream, StreamError, StreamOptions};

use crate::interpreter::stacks;

static CHANGES: Mutex<()> = Mutex::new(());
static STREAM: Mutex<Option<Arc<Stream>>> = Mutex::new(None);

/// Where a stream goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Targets {
    /// A file; `%p` in its path is the number of the process.
    pub(crate) file: Option<PathBuf>,
    /// The socket of the process, in the folder where `flexmem watch` looks for it.
    pub(crate) socket: bool,
}

impl Targets {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Targets::default()
    }
}

/// The lines of Python stacks. Naming them needs no interpreter.
struct PythonStacks;

impl Stacks for PythonStacks {
    fn frames(&self, site: u32) -> Vec<StackFrame> {
        let frames = stacks::frames(site).into_iter();
        frames
            .map(|frame| StackFrame { filename: frame.filename, function: frame.name, line: frame.line })
            .collect()
    }
}

/// Why recording could not be changed, or streamed.
pub(crate) enum ChangeError {
    /// The histories'.
    History(FlexError),
    /// The stream's.
    Stream(StreamError),
}

impl From<StreamError> for ChangeError {
    fn from(error: StreamError) -> Self {
        ChangeError::Stream(error)
    }
}

/// Changes what is recorded by `change`, when what was recorded until then is in the stream that runs. If `targets` are
/// given, a stream of `devices` to them begins, in place of the one that runs. Called detached.
///
/// # Errors
/// [`ChangeError`]. What the stream cannot open is found out before `change`, and then nothing has changed; nor has the
/// stream if `change` fails. A disk that is too full to tell what is live is found out after it: then `devices` that
/// were not recorded before are not either.
pub(crate) fn change_recording(
    targets: &Targets,
    devices: Vec<FlexAllocator>,
    change: impl FnOnce() -> Result<(), FlexError>,
) -> Result<(), ChangeError> {
    if flex::fork::is_forked() {
        return Err(StreamError::Forked.into());
    }
    let _changing = lock(&CHANGES);
    let idle: Vec<_> = devices.iter().filter(|device| !device.is_recording()).cloned().collect();
    let starting = if targets.is_empty() { None } else { Some(prepare(targets, devices)?) };
    if let Some(running) = current() {
        // A disk that is too slow for it loses what is forgotten, and the stream counts that.
        running.drain();
    }
    change().map_err(ChangeError::History)?;
    if let Some(starting) = starting {
        let begun = starting.begin().inspect_err(|_| {
            // In a forked child alone that fails, where nothing is recorded.
            idle.iter().for_each(|device| drop(device.record_history(None)));
        });
        let former = lock(&STREAM).replace(Arc::new(begun?));
        drop(former);
    }
    Ok(())
}

fn prepare(targets: &Targets, devices: Vec<FlexAllocator>) -> Result<Starting, StreamError> {
    let options = StreamOptions {
        stacks: Some(Arc::new(PythonStacks)),
        file: targets.file.as_deref().map(|path| flex_stream::path_of_process(path, std::process::id())),
        socket_directory: targets.socket.then(default_directory),
        producer: concat!("torch-spyre-flex ", env!("CARGO_PKG_VERSION")).to_owned(),
        ..StreamOptions::new(devices)
    };
    Stream::prepare(options, current())
}

/// Starts a stream of these devices, of which none runs yet. Called detached.
///
/// # Errors
/// [`StreamError`]; no stream runs then.
pub(crate) fn start(targets: &Targets, devices: Vec<FlexAllocator>) -> Result<(), StreamError> {
    let _changing = lock(&CHANGES);
    let stream = prepare(targets, devices)?.begin()?;
    *lock(&STREAM) = Some(Arc::new(stream));
    Ok(())
}

/// Ends the stream, if one runs, with what was recorded until now. Called detached. False if a slow disk kept it from
/// ending within five seconds.
pub(crate) fn stop() -> bool {
    if flex::fork::is_forked() {
        return true;
    }
    let _changing = lock(&CHANGES);
    current().is_none_or(|stream| stream.stop())
}

/// The latest stream, also when it has ended; none in a forked child, which has none.
pub(crate) fn current() -> Option<Arc<Stream>> {
    if flex::fork::is_forked() { None } else { lock(&STREAM).clone() }
}

/// Runs `body` with both locks held, for tests of what a forked child does then.
pub(crate) fn while_locked(body: impl FnOnce()) {
    let (_changing, _stream) = (lock(&CHANGES), lock(&STREAM));
    body();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
