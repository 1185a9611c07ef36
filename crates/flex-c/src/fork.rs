//! Marking a forked child, for programs in which nobody else does it.

use std::sync::OnceLock;

use crate::status::{Failure, FlexStatus};

/// Has `pthread_atfork` mark children of this process from now on; later calls do nothing.
///
/// # Errors
/// [`FlexStatus::FLEX_INTERNAL`] if the system refuses the handler.
pub(crate) fn watch() -> Result<(), Failure> {
    extern "C" fn in_child() {
        flex::fork::mark_forked();
    }
    static FAILED: OnceLock<i32> = OnceLock::new();
    // SAFETY: the handler only stores to an atomic.
    match FAILED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) }) {
        0 => Ok(()),
        code => {
            Err(Failure::new(FlexStatus::FLEX_INTERNAL, format!("pthread_atfork failed with code {code}")))
        }
    }
}
