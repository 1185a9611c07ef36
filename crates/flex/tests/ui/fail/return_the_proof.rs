//! The proof is worth nothing once the mutex is locked again.

use flex::pressure::{PressureRequest, Verdict};
use flex::{AllocatorGuard, Unlocked};

/// Stands for attaching to an interpreter: it takes the proof that the mutex is free.
fn attach<R>(_proof: &Unlocked<'_>, body: impl FnOnce() -> R) -> R {
    body()
}

pub fn on_pressure(guard: &mut AllocatorGuard<'_>, _: &mut PressureRequest) -> Verdict {
    if let Ok(proof) = guard.unlocked(|proof| proof) {
        attach(proof, || ());
    }
    Verdict::Retry
}

fn main() {}
