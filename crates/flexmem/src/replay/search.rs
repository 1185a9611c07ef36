//! The smallest memory that serves a trace.
//!
//! Whether a capacity serves is not monotone: an allocator may fail with a little more memory than it succeeded with.
//! So the capacity is lowered step by step from one that is ample, and the last one before the first failure counts:
//! every capacity tried above it serves as well. First in steps of 2 %, then of 0.5 % from the last that served.

/// Where the descent starts, as a multiple of the peak, and by how much that is raised until it serves.
const START: f64 = 1.5;
const RAISE: f64 = 1.25;
/// An allocator that needs more than this is given up.
const HIGHEST: f64 = 16.0;
/// One step down, coarse and fine.
const STEPS: [f64; 2] = [0.98, 0.995];

/// The smallest memory that serves, in bytes, to half a percent; none below the peak can. `None` if no reasonable one
/// does.
pub fn smallest(peak_bytes: u64, mut serves: impl FnMut(u64) -> bool) -> Option<u64> {
    let peak = peak_bytes as f64;
    let mut capacity = peak * START;
    while !serves(capacity as u64) {
        capacity *= RAISE;
        if capacity > peak * HIGHEST {
            return None;
        }
    }
    for step in STEPS {
        loop {
            let lower = (capacity * step).max(peak);
            if lower >= capacity || !serves(lower as u64) {
                break;
            }
            capacity = lower;
        }
    }
    Some(capacity as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_that_serves_below_one_that_fails_does_not_count() {
        let capacity = smallest(1000, |bytes| bytes >= 1200 || (1050..1100).contains(&bytes));
        assert!((1200..1207).contains(&capacity.unwrap()), "{capacity:?}");
    }

    #[test]
    fn the_start_rises_until_it_serves_or_is_given_up() {
        let capacity = smallest(1000, |bytes| bytes >= 4000);
        assert!((4000..4021).contains(&capacity.unwrap()), "{capacity:?}");
        assert_eq!(smallest(1000, |bytes| bytes >= 100_000), None);
        assert_eq!(smallest(1000, |_| true), Some(1000), "the peak itself");
    }
}
