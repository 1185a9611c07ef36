//! This thread attaches; the other one does something else.

use flex::pressure::{PressureRequest, Verdict};
use flex::{AllocatorGuard, Unlocked};

/// Stands for attaching to an interpreter: it takes the proof that the mutex is free.
fn attach<R>(_proof: &Unlocked<'_>, body: impl FnOnce() -> R) -> R {
    body()
}

fn on_another_thread(body: impl FnOnce() + Send) {
    body();
}

pub fn on_pressure(guard: &mut AllocatorGuard<'_>, _: &mut PressureRequest) -> Verdict {
    let _ = guard.unlocked(|proof| {
        attach(proof, || ());
        on_another_thread(move || ());
    });
    Verdict::Retry
}

fn main() {}
