//! Numbers of variable length: seven bits a byte, low ones first, the high bit set on all but the last (LEB128). Signed
//! ones are zigzag: 0, -1, 1, -2, … become 0, 1, 2, 3, …

use crate::error::Malformed;

/// The longest number, in bytes.
const LONGEST_BYTES: usize = 10;

/// Appends a number.
#[inline]
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number from the beginning of the bytes.
#[inline]
pub(crate) fn take(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0_u64;
    for (index, &byte) in bytes.iter().take(LONGEST_BYTES).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if index == LONGEST_BYTES - 1 && byte > 1 {
            return Err(Malformed::NumberTooLarge);
        }
        value |= bits << (7 * index);
        if byte < 0x80 {
            *bytes = &bytes[index + 1..];
            return Ok(value);
        }
    }
    Err(Malformed::Short)
}

/// A difference as a number that is small if the difference is.
#[inline]
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
#[inline]
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_long_ones_are_refused() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::MAX >> 1, u64::MAX] {
            let mut out = Vec::new();
            put(&mut out, value);
            out.push(7);
            let mut rest = out.as_slice();
            assert_eq!(take(&mut rest), Ok(value));
            assert_eq!(rest, [7]);
            assert_eq!(unzigzag(zigzag(value as i64)), value as i64);
        }
        assert_eq!(take(&mut [0x80; 9].as_slice()), Err(Malformed::Short));
        let mut too_large = [0xff; 10];
        too_large[9] = 2;
        assert_eq!(take(&mut too_large.as_slice()), Err(Malformed::NumberTooLarge));
        assert_eq!((zigzag(0), zigzag(-1), zigzag(1)), (0, 1, 2));
    }
}
