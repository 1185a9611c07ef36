//! What was done with it may be returned.

use flex::pressure::{PressureRequest, Verdict};
use flex::{AllocatorGuard, Unlocked};

/// Stands for attaching to an interpreter: it takes the proof that the mutex is free.
fn attach<R>(_proof: &Unlocked<'_>, body: impl FnOnce() -> R) -> R {
    body()
}

pub fn on_pressure(guard: &mut AllocatorGuard<'_>, _: &mut PressureRequest) -> Verdict {
    if let Ok(answer) = guard.unlocked(|proof| attach(proof, || 7)) {
        assert_eq!(answer, 7);
    }
    Verdict::Retry
}

fn main() {}
