//! The unit of allocation and the identifiers everything else is written in.
//!
//! Pure values; no lock.

use std::fmt;

/// Sizes and offsets of blocks are multiples of this many bytes: one stick of the hardware's memory.
pub const ALIGNMENT_BYTES: u64 = 128;

/// A memory channel of the device, numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DomainId(pub u32);

impl fmt::Display for DomainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The device's name for an acquired region: its physical base address, or an index into a firmware table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u64);

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Rounds up to a multiple of [`ALIGNMENT_BYTES`]; `None` if that does not fit in 64 bits.
///
/// ```
/// assert_eq!(flex::units::align_up(129), Some(256));
/// assert_eq!(flex::units::align_up(u64::MAX), None);
/// ```
pub const fn align_up(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT_BYTES)
}

/// Rounds down to a multiple of [`ALIGNMENT_BYTES`].
///
/// ```
/// assert_eq!(flex::units::align_down(255), 128);
/// ```
pub const fn align_down(bytes: u64) -> u64 {
    bytes - bytes % ALIGNMENT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_keeps_multiples_and_checks_overflow() {
        assert_eq!(align_up(0), Some(0));
        assert_eq!(align_up(1), Some(128));
        assert_eq!(align_up(128), Some(128));
        assert_eq!(align_up(u64::MAX - 127), Some(u64::MAX - 127));
        assert_eq!(align_up(u64::MAX - 126), None);
        assert_eq!(align_down(127), 0);
        assert_eq!(align_down(128), 128);
        assert_eq!(align_down(u64::MAX), u64::MAX - 127);
    }
}
