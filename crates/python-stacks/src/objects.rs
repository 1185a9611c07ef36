//! Strings and line numbers out of CPython's objects, read from memory.

use crate::layout::Layout;

/// Reads a field.
///
/// # Safety
/// A `T` lies `offset` bytes into the live object at `base`.
#[inline]
pub(crate) unsafe fn field<T: Copy>(base: *const u8, offset: usize) -> T {
    // SAFETY: the caller's contract. Volatile, because another thread may compute a string's hash meanwhile.
    unsafe { base.add(offset).cast::<T>().read_volatile() }
}

// The bits of a string's state.
const KIND_SHIFT: u32 = 2;
const KIND_MASK: u32 = 7;
const COMPACT: u32 = 1 << 5;
const ASCII: u32 = 1 << 6;

/// Where the characters of a `str` lie, and how many bytes they have. None of a string that is not compact, as only
/// ancient C code makes them.
///
/// # Safety
/// `object` is a live `str` of the interpreter that `layout` describes.
#[inline]
pub(crate) unsafe fn text_data(layout: &Layout, object: *const u8) -> (*const u8, usize) {
    // SAFETY: the caller's contract; the state says which form follows.
    unsafe {
        let length: usize = field(object, layout.text_length);
        let state: u32 = field(object, layout.text_state);
        let start = if state & ASCII != 0 { layout.text_ascii_data } else { layout.text_compact_data };
        let size = if state & COMPACT == 0 { 0 } else { length << (kind(state) / 2) };
        (object.wrapping_add(start), size)
    }
}

/// The bytes of each character: 1, 2 or 4.
#[inline]
fn kind(state: u32) -> u32 {
    (state >> KIND_SHIFT) & KIND_MASK
}

/// The content of a `str`.
///
/// # Safety
/// As for [`text_data`].
pub(crate) unsafe fn text(layout: &Layout, object: *const u8) -> String {
    // SAFETY: the caller's contract; the data are aligned to their characters.
    unsafe {
        let (data, size) = text_data(layout, object);
        match kind(field(object, layout.text_state)) {
            1 => characters(std::slice::from_raw_parts(data, size)),
            2 => characters(std::slice::from_raw_parts(data.cast::<u16>(), size / 2)),
            _ => characters(std::slice::from_raw_parts(data.cast::<u32>(), size / 4)),
        }
    }
}

/// Code points as text; half a surrogate pair, which file names that are not UTF-8 have, as Python escapes it.
fn characters<T: Copy + Into<u32>>(points: &[T]) -> String {
    let mut text = String::with_capacity(points.len());
    for point in points {
        let point: u32 = (*point).into();
        match char::from_u32(point) {
            Some(character) => text.push(character),
            None => text.push_str(&format!("\\u{point:04x}")),
        }
    }
    text
}

/// The content of a `bytes`.
///
/// # Safety
/// `object` is a live `bytes` of the interpreter that `layout` describes, and lives as long as the result is used.
pub(crate) unsafe fn bytes<'a>(layout: &Layout, object: *const u8) -> &'a [u8] {
    // SAFETY: the caller's contract.
    unsafe {
        let size: usize = field(object, layout.bytes_size);
        std::slice::from_raw_parts(object.add(layout.bytes_data), size)
    }
}

// The forms of an entry of the line table, by PEP 626's successor in CPython's Objects/locations.md.
const ONE_LINE: std::ops::RangeInclusive<u8> = 10..=12;
const NO_COLUMNS: u8 = 13;
const LONG: u8 = 14;
const NO_LINE: u8 = 15;

/// The line of the instruction at `offset` (in code units of two bytes) by `co_linetable`, which begins at
/// `first_line`; 0 if it has none. An offset below 0 is that of code which has not begun.
///
/// An entry's first byte has its top bit set, four bits for its form and three for the units it covers, less one. What
/// follows up to the next such byte holds numbers, six bits in each byte.
pub(crate) fn line(table: &[u8], first_line: i32, offset: isize) -> u32 {
    let mut line = first_line;
    let mut end = 0;
    let mut rest = table;
    while offset >= end {
        let Some((&head, tail)) = rest.split_first() else { return 0 };
        let form = (head >> 3) & 15;
        end += isize::from(head & 7) + 1;
        let length = tail.iter().take_while(|byte| **byte & 0x80 == 0).count();
        let (numbers, next) = tail.split_at(length);
        rest = next;
        line = line.wrapping_add(match form {
            NO_COLUMNS | LONG => signed(numbers),
            form if ONE_LINE.contains(&form) => i32::from(form - ONE_LINE.start()),
            _ => 0,
        });
        if offset < end && form == NO_LINE {
            return 0;
        }
    }
    u32::try_from(line).unwrap_or(0)
}

/// The first number of an entry: the low bits come first, bit 6 of a byte says that another follows, and the lowest bit
/// of the number is its sign.
fn signed(bytes: &[u8]) -> i32 {
    let mut number = 0_u32;
    for (index, byte) in bytes.iter().enumerate().take(6) {
        number |= u32::from(byte & 63) << (6 * index);
        if byte & 64 == 0 {
            break;
        }
    }
    let magnitude = (number >> 1) as i32;
    if number & 1 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry's first byte.
    fn head(form: u8, units: u8) -> u8 {
        0x80 | form << 3 | (units - 1)
    }

    #[test]
    fn lines_follow_the_table() {
        // Two units on the first line, one on the next, three without a line, one far down, one 40 lines up.
        let table = [
            head(0, 2),
            5,
            head(11, 1),
            1,
            2,
            head(15, 3),
            head(14, 1),
            64 | 40,
            3,
            0,
            1,
            1,
            head(13, 1),
            64 | 17,
            1,
        ];
        let lines: Vec<u32> = (-1..9).map(|offset| line(&table, 10, offset)).collect();
        let far = 11 + (40 + 3 * 64) / 2;
        assert_eq!(lines, [10, 10, 10, 11, 0, 0, 0, far, far - 40, 0]);
    }

    #[test]
    fn a_broken_table_ends_the_search() {
        assert_eq!(line(&[], 7, 0), 0);
        assert_eq!(line(&[head(14, 1)], 7, 0), 7);
        assert_eq!(line(&[0, 0, 0], i32::MAX, 1), 0);
    }

    #[test]
    fn text_keeps_what_utf8_cannot_say() {
        assert_eq!(characters(&[0x61_u32, 0x1f600, 0xdc80]), "a\u{1f600}\\udc80");
    }
}
