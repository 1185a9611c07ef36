//! Signals belong to the program: the stream's thread takes none of them.
//!
//! A program that blocks a signal to wait for it, as one does that is told to save its work and end, has the system
//! give it to any other thread that does not block it, and that ends the program. Threads that were there before the
//! program blocked the signal are such threads. On a thread that blocks `SIGXFSZ`, a file that grows beyond its limit
//! is an error of the write, and does not end the program either. No lock.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// What the processor raises on the thread that it is about. These must not wait.
const FAULTS: [Signal; 6] =
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS];

/// Runs something on this thread with all signals blocked but faults. A thread that it starts keeps them so.
pub(crate) fn with_signals_blocked<R>(run: impl FnOnce() -> R) -> R {
    let mut blocked = SigSet::all();
    for fault in FAULTS {
        blocked.remove(fault);
    }
    // It fails for an argument that is not valid, and none of these is.
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok();
    let result = run();
    if let Some(before) = before {
        let _ = before.thread_set_mask();
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_signals_blocked_and_its_parent_gets_its_own_back() {
        let mask = || SigSet::thread_get_mask().unwrap();
        let before = mask();
        let inherited = with_signals_blocked(|| std::thread::spawn(mask).join().unwrap());
        assert_eq!(mask(), before);
        for signal in [Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGINT, Signal::SIGXFSZ] {
            assert!(inherited.contains(signal) && !before.contains(signal), "{signal}");
        }
        assert!(FAULTS.iter().all(|&fault| !inherited.contains(fault)));
    }
}
