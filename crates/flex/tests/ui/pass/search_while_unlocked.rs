//! Search when it is locked again.

use flex::pressure::{PressureRequest, Verdict};
use flex::{AllocatorGuard, Unlocked};

/// Stands for attaching to an interpreter: it takes the proof that the mutex is free.
fn attach<R>(_proof: &Unlocked<'_>, body: impl FnOnce() -> R) -> R {
    body()
}

pub fn on_pressure(guard: &mut AllocatorGuard<'_>, request: &mut PressureRequest) -> Verdict {
    let _ = guard.unlocked(|proof| attach(proof, || ()));
    let _ = guard.search(request);
    Verdict::Retry
}

fn main() {}
