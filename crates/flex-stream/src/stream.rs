//! A stream that runs, as its owner sees it.
//!
//! Nobody waits for its thread but [`Stream::stop`] and [`Stream::drain`], and those with a deadline.
//!
//! Lock: `Control::state`, a leaf: held for a look or a change, never while anything runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flex::fork::is_forked;

use crate::file::{Identity, identity_at};
use crate::{Starting, StreamError, StreamOptions, StreamStatistics};

/// How often events are drained: what a watcher sees is at most so old.
const TICK: Duration = Duration::from_millis(50);

/// How long its owner waits for what was recorded until now to be written.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A stream that runs until it is stopped.
pub struct Stream {
    control: Arc<Control>,
    file: Option<PathBuf>,
    file_identity: Option<Identity>,
    socket: Option<PathBuf>,
}

/// What the thread and the stream's owner share.
#[derive(Default)]
pub(crate) struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Its owner wants it to end, and waits until then.
    stop_by: Option<Instant>,
    stopped: bool,
    /// How often its owner has asked for what was recorded, and how often that was answered.
    asked: u64,
    answered: u64,
    statistics: StreamStatistics,
}

/// Why the thread is to look.
pub(crate) struct Wake {
    /// For the last time.
    pub(crate) stopping: bool,
    /// Its owner waits, for so many answers in all.
    pub(crate) asked: Option<u64>,
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the statistics.
    pub(crate) fn count(&self, change: impl FnOnce(&mut StreamStatistics)) {
        change(&mut self.lock().statistics);
    }

    /// Waits for the next tick, or until there is a reason to look before.
    pub(crate) fn wait_for_tick(&self) -> Wake {
        let is_idle = |state: &mut State| state.stop_by.is_none() && state.asked == state.answered;
        let waited = self.changed.wait_timeout_while(self.lock(), TICK, is_idle);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let is_asked = state.asked != state.answered;
        Wake { stopping: state.stop_by.is_some(), asked: is_asked.then_some(state.asked) }
    }

    /// Says that what was recorded before so many questions is written.
    pub(crate) fn answer(&self, asked: u64) {
        self.lock().answered = asked;
        self.changed.notify_all();
    }

    /// Says that the thread has ended.
    pub(crate) fn say_stopped(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Waits for an answer, or the end; false if neither came before the deadline.
    fn wait_for_answer(&self) -> bool {
        let mut state = self.lock();
        state.asked += 1;
        let asked = state.asked;
        let deadline = state.stop_by.unwrap_or_else(|| Instant::now() + TIMEOUT);
        self.wait_until(state, deadline, |state| state.stopped || state.answered >= asked)
    }

    /// Waits for the thread to end; false if it has not before the deadline, which is that of the first call.
    fn wait_for_end(&self) -> bool {
        let mut state = self.lock();
        let deadline = *state.stop_by.get_or_insert_with(|| Instant::now() + TIMEOUT);
        self.wait_until(state, deadline, |state| state.stopped)
    }

    fn wait_until(
        &self,
        state: MutexGuard<'_, State>,
        deadline: Instant,
        is_so: impl Fn(&State) -> bool,
    ) -> bool {
        self.changed.notify_all();
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(state, left, |state| !is_so(state));
        is_so(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

impl Stream {
    /// Begins to stream. The histories have to be recording, or to begin later; events from now on are streamed.
    ///
    /// # Errors
    /// [`StreamError`]: no sink, a folder or file that is not safe, a path that cannot be opened, no thread, a forked
    /// child.
    pub fn start(options: StreamOptions) -> Result<Stream, StreamError> {
        Stream::prepare(options, None)?.begin()
    }

    /// Sees to it that a stream can begin, in place of `former` if that runs. Until [`Starting::begin`] that goes on.
    ///
    /// # Errors
    /// As [`start`](Self::start). Nothing has changed then.
    pub fn prepare(options: StreamOptions, former: Option<Arc<Stream>>) -> Result<Starting, StreamError> {
        Starting::new(options, former)
    }

    pub(crate) fn new(
        control: Arc<Control>,
        file: Option<PathBuf>,
        file_identity: Option<Identity>,
        socket: Option<PathBuf>,
    ) -> Stream {
        Stream { control, file, file_identity, socket }
    }

    /// Whether the file at a path is the one that is written.
    pub(crate) fn writes_to(&self, path: &Path) -> bool {
        self.file_identity.is_some() && self.file_identity == identity_at(path)
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

    /// Writes what was recorded until now, before that is forgotten. Waits at most five seconds, for a disk that is
    /// slow; false if that was not enough. In a forked child there is nothing to write.
    pub fn drain(&self) -> bool {
        is_forked() || self.control.wait_for_answer()
    }

    /// Writes what was recorded until now and ends the traces, the first time. Waits at most five seconds from then on,
    /// for a disk that is slow; false if that was not enough: the thread ends when it can. In a forked child there is
    /// nothing to stop.
    pub fn stop(&self) -> bool {
        is_forked() || self.control.wait_for_end()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_had_its_time_to_end_is_not_waited_for_again() {
        // Its thread never looks, as with a disk that does not answer.
        let control = Control::default();
        control.lock().stop_by = Some(Instant::now());
        let began = Instant::now();
        assert!(!control.wait_for_end());
        assert!(!control.wait_for_answer());
        assert!(began.elapsed() < TIMEOUT);
    }
}
