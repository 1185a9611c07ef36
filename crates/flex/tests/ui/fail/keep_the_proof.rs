//! Nor can it be kept in a variable outside.

use flex::pressure::{PressureRequest, Verdict};
use flex::{AllocatorGuard, Unlocked};

/// Stands for attaching to an interpreter: it takes the proof that the mutex is free.
fn attach<R>(_proof: &Unlocked<'_>, body: impl FnOnce() -> R) -> R {
    body()
}

pub fn on_pressure(guard: &mut AllocatorGuard<'_>, _: &mut PressureRequest) -> Verdict {
    let mut kept = None;
    let _ = guard.unlocked(|proof| kept = Some(proof));
    attach(kept.unwrap(), || ());
    Verdict::Retry
}

fn main() {}
