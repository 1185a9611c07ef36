//! Signals belong to the program: threads of ours take none of them.
//!
//! A program that blocks a signal to wait for it, as one does that is told to save its work and end, has the system
//! give it to any other thread that does not block it, and that ends the program. Threads that were there before the
//! program blocked the signal are such threads. On a thread that blocks `SIGXFSZ`, a file that grows beyond its limit
//! is an error of the write, and does not end the program either. No lock.

#[cfg(all(unix, not(all(test, any(loom, shuttle)))))]
pub use masks::{Mask, with_signals_blocked};

#[cfg(all(unix, not(all(test, any(loom, shuttle)))))]
mod masks {
    use nix::sys::signal::{SigSet, SigmaskHow, Signal};

    /// What the processor raises on the thread that it is about. These must not wait.
    const FAULTS: [Signal; 6] =
        [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS];

    /// Which signals a thread blocks.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Mask(SigSet);

    impl Mask {
        /// All but faults.
        pub fn all() -> Self {
            let mut blocked = SigSet::all();
            for fault in FAULTS {
                blocked.remove(fault);
            }
            Mask(blocked)
        }

        /// The calling thread's.
        pub fn current() -> Self {
            // It fails for an argument that is not valid, and this has none.
            Mask(SigSet::thread_get_mask().unwrap_or(SigSet::empty()))
        }

        /// Runs something on this thread with this mask. A thread or a process that it starts has it too.
        pub fn during<R>(self, run: impl FnOnce() -> R) -> R {
            struct Restore(Option<SigSet>);
            impl Drop for Restore {
                fn drop(&mut self) {
                    let _ = self.0.map(|before| before.thread_set_mask());
                }
            }
            let _restore = Restore(self.0.thread_swap_mask(SigmaskHow::SIG_SETMASK).ok());
            run()
        }
    }

    /// Runs something on this thread with all signals blocked but faults. A thread that it starts keeps them so.
    pub fn with_signals_blocked<R>(run: impl FnOnce() -> R) -> R {
        Mask::all().during(run)
    }
}

#[cfg(not(all(unix, not(all(test, any(loom, shuttle))))))]
pub use nothing::{Mask, with_signals_blocked};

/// Where there are no signals, and in the models, whose threads share one of the system's.
#[cfg(not(all(unix, not(all(test, any(loom, shuttle))))))]
mod nothing {
    /// Which signals a thread blocks.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Mask;

    impl Mask {
        /// The calling thread's.
        pub fn current() -> Self {
            Mask
        }

        /// Runs something.
        pub fn during<R>(self, run: impl FnOnce() -> R) -> R {
            run()
        }
    }

    /// Runs something.
    pub fn with_signals_blocked<R>(run: impl FnOnce() -> R) -> R {
        run()
    }
}

#[cfg(all(test, unix, not(any(loom, shuttle))))]
mod tests {
    use nix::sys::signal::{SigSet, Signal};

    use super::*;

    const PROGRAMS: [Signal; 5] =
        [Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGINT, Signal::SIGXFSZ, Signal::SIGCHLD];

    fn mask() -> SigSet {
        SigSet::thread_get_mask().unwrap()
    }

    #[test]
    fn a_thread_keeps_its_signals_blocked_and_its_parent_gets_its_own_back() {
        let before = mask();
        let inherited = with_signals_blocked(|| std::thread::spawn(mask).join().unwrap());
        assert_eq!(mask(), before);
        for signal in PROGRAMS {
            assert!(inherited.contains(signal) && !before.contains(signal), "{signal}");
        }
        for fault in [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGSYS] {
            assert!(!inherited.contains(fault), "{fault}");
        }
    }

    #[test]
    fn what_runs_for_another_thread_has_its_mask_for_that_long() {
        let asking = Mask::current();
        with_signals_blocked(|| {
            let blocked = mask();
            assert!(asking.during(|| PROGRAMS.iter().all(|&signal| !mask().contains(signal))));
            let panicked =
                std::panic::catch_unwind(|| asking.during(|| std::panic::resume_unwind(Box::new(()))));
            assert!(panicked.is_err());
            assert_eq!(mask(), blocked, "after a panic too");
        });
    }
}
