//! The smallest memory that serves a trace.
//!
//! Whether a capacity serves is not monotone: an allocator may fail with a little more memory than it succeeded with.
//! So the capacity is lowered step by step from one that is ample, and the last one before the first failure counts:
//! every capacity tried above it serves as well. First in steps of 2 %, then of 0.5 % from the last that served.
//!
//! Only capacities that people can write down are tried, so that the one that is printed is one that served.

/// Where the descent starts, as a multiple of the peak, and by how much that is raised until it serves.
const START: f64 = 1.5;
const RAISE: f64 = 1.25;
/// An allocator that needs more than this multiple of the peak is given up, and more than this, in bytes: whatever it
/// takes at least, for its rounding and its regions, can be any multiple of a small peak.
const HIGHEST: f64 = 16.0;
const HIGHEST_BYTES: f64 = (1_u64 << 30) as f64;
/// With so many places behind the point, the sizes that [`smallest`] returns are written down exactly.
pub const WRITABLE_PLACES: usize = 3;
/// One step down, coarse and fine.
const STEPS: [f64; 2] = [0.98, 0.995];

/// The smallest memory that serves, in bytes, to half a percent; none below the peak can. `None` if no reasonable one
/// does.
pub fn smallest(peak_bytes: u64, mut serves: impl FnMut(u64) -> bool) -> Option<u64> {
    let peak = peak_bytes as f64;
    let mut start = peak * START;
    while !serves(writable(start as u64)) {
        start *= RAISE;
        if start > (peak * HIGHEST).max(HIGHEST_BYTES) {
            return None;
        }
    }
    let mut capacity = writable(start as u64);
    for step in STEPS {
        loop {
            let lower = writable(((capacity as f64 * step) as u64).max(peak_bytes));
            if lower >= capacity || !serves(lower) {
                break;
            }
            capacity = lower;
        }
    }
    Some(capacity)
}

/// The next size, from this one on, that three places behind the point say: those of [`WRITABLE_PLACES`].
fn writable(bytes: u64) -> u64 {
    let (mut unit, bytes) = (1_u128, u128::from(bytes));
    while bytes / unit >= 1024 {
        unit *= 1024;
    }
    let thousandths = (bytes * 1000).div_ceil(unit);
    u64::try_from(thousandths * unit / 1000).unwrap_or(u64::MAX)
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
        assert_eq!(smallest(1000, |bytes| bytes > 2 << 30), None);
        assert_eq!(smallest(1 << 30, |bytes| bytes > 17 << 30), None);
        assert_eq!(smallest(1000, |_| true), Some(1000), "the peak itself");
    }

    #[test]
    fn what_an_allocator_takes_at_least_may_be_any_multiple_of_a_small_peak() {
        let capacity = smallest(8, |bytes| bytes >= 2 << 20).unwrap();
        assert!((2 << 20..(2 << 20) * 201 / 200).contains(&capacity), "{capacity}");
    }

    #[test]
    fn sizes_are_writable_and_not_below_what_was_asked_for() {
        for bytes in [0, 1, 1023, 1024, 1025, 999_999, 2_709_573_504, 84_063_351_764, (1 << 40) - 1] {
            let size = writable(bytes);
            assert!(size >= bytes && size - bytes <= bytes / 1000, "{bytes}: {size}");
            assert_eq!(writable(size), size);
        }
        assert_eq!(writable(u64::MAX), u64::MAX);
    }
}
