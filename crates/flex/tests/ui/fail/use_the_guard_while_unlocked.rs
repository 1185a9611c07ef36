//! What the mutex protects is out of reach while it is free.

use flex::pressure::{PressureRequest, Verdict};
use flex::{AllocatorGuard, Unlocked};

/// Stands for attaching to an interpreter: it takes the proof that the mutex is free.
fn attach<R>(_proof: &Unlocked<'_>, body: impl FnOnce() -> R) -> R {
    body()
}

pub fn on_pressure(guard: &mut AllocatorGuard<'_>, _: &mut PressureRequest) -> Verdict {
    let _ = guard.unlocked(|proof| attach(proof, || guard.statistics().is_ok()));
    Verdict::Retry
}

fn main() {}
