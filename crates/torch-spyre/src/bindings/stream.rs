//! The stream of the history, as `torch.spyre.memory` starts, stops and describes it.

use std::path::PathBuf;

use flex_stream::StreamError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::value_error;
use crate::interpreter;
use crate::runtime;
use crate::stream::{self, Targets};

/// Starts a stream of all devices in place of the one that runs. `%p` in `file` is the number of the process.
///
/// Raises OSError if a file, folder or socket cannot be opened or is not safe, RuntimeError in a forked child and if
/// there is no thread, ValueError if there is neither a file nor a socket.
#[pyfunction]
pub(crate) fn start_history_stream(py: Python<'_>, file: Option<PathBuf>, socket: bool) -> PyResult<()> {
    let runtime = runtime::ready().map_err(PyRuntimeError::new_err)?;
    let targets = Targets { file, socket };
    interpreter::detached(py, || stream::start(&targets, runtime.allocators())).map_err(stream_error)
}

/// Ends the stream, if one runs, with what was recorded until now. False if it could not end within five seconds.
#[pyfunction]
pub(crate) fn stop_history_stream(py: Python<'_>) -> bool {
    interpreter::detached(py, stream::stop)
}

/// The latest stream, which may have ended: `running`, where it goes, and what was counted. None if there was none, and
/// in a forked child.
#[pyfunction]
pub(crate) fn history_stream(py: Python<'_>) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(stream) = stream::current() else { return Ok(None) };
    let statistics = stream.statistics();
    let dict = PyDict::new(py);
    dict.set_item("running", stream.is_running())?;
    dict.set_item("file", stream.file().map(|path| path.as_os_str()))?;
    dict.set_item("socket", stream.socket().map(|path| path.as_os_str()))?;
    dict.set_item("clients", statistics.clients)?;
    dict.set_item("events", statistics.events)?;
    dict.set_item("lost_events", statistics.lost)?;
    dict.set_item("dropped_events", statistics.dropped)?;
    dict.set_item("file_error", statistics.file_error)?;
    Ok(Some(dict))
}

fn stream_error(error: StreamError) -> PyErr {
    match error {
        StreamError::NoSink => value_error(error.to_string()),
        StreamError::Forked => PyRuntimeError::new_err(runtime::FORKED),
        StreamError::Thread(_) => PyRuntimeError::new_err(format!("spyre: {error}")),
        other => pyo3::exceptions::PyOSError::new_err(other.to_string()),
    }
}
