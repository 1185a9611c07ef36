//! The other thread may hold a mutex of its own.

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
    let _ = guard.unlocked(|proof| on_another_thread(move || attach(proof, || ())));
    Verdict::Retry
}

fn main() {}
