//! Random numbers that stay the same for ever, whatever the libraries do.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{RngCore, SeedableRng};

/// A generator with a fixed seed.
pub(super) struct Random(Pcg64Mcg);

impl Random {
    /// `stream` keeps workloads with the same seed apart.
    pub(super) fn new(stream: u64, seed: u64) -> Random {
        Random(Pcg64Mcg::seed_from_u64(stream << 32 | seed))
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number of bytes whose logarithm is uniform.
    pub(super) fn log_uniform(&mut self, low_bytes: u64, high_bytes: u64) -> u64 {
        let (low, high) = ((low_bytes as f64).ln(), (high_bytes as f64).ln());
        (low + self.unit() * (high - low)).exp() as u64
    }

    /// Takes any one out.
    pub(super) fn take<T>(&mut self, from: &mut Vec<T>) -> T {
        let chosen = self.below(from.len() as u64) as usize;
        from.swap_remove(chosen)
    }
}
