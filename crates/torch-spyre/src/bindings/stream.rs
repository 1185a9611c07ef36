//! The stream of the history, as `torch.spyre.memory` stops and describes it. `history` starts it.

use flex_stream::{StreamError, SystemError};
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::value_error;
use crate::interpreter;
use crate::runtime;
use crate::stream;

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

/// What a stream that cannot begin raises: OSError as `open` raises it, with `errno`, `strerror` and `filename`.
pub(super) fn stream_error(error: StreamError) -> PyErr {
    if let Some(SystemError { errno, text, path }) = error.as_system_error() {
        return PyOSError::new_err((errno, text, path.into_os_string()));
    }
    match error {
        StreamError::NoSink => value_error(error.to_string()),
        StreamError::Forked => PyRuntimeError::new_err(runtime::FORKED),
        other => PyRuntimeError::new_err(format!("spyre: {other}")),
    }
}
