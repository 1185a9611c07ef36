//! What the machine works on: small values that can be copied; what is larger lies in the heap.

use super::heap::Text;

/// A value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::import) enum Value {
    /// None.
    None,
    /// True or false.
    Bool(bool),
    /// An integer from -2^63 to 2^64 - 1; in two's complement if it is negative.
    Int {
        /// Whether it is below 0.
        negative: bool,
        /// Its bits.
        bits: u64,
    },
    /// An integer of more: what it is does not matter, for no size or address has so many bits.
    Huge,
    /// A floating-point number.
    Float(f64),
    /// A text.
    Text(Text),
    /// Bytes, which are not kept.
    Bytes,
    /// A list, a tuple or a set.
    List(Slot),
    /// A dict.
    Dict(Slot),
    /// `collections.OrderedDict`, to be called.
    OrderedDict,
    /// Something that the visitor made of a dict or a list.
    Object(Object),
}

impl Value {
    /// An integer.
    pub(in crate::import) fn signed(value: i64) -> Value {
        Value::Int { negative: value < 0, bits: value as u64 }
    }

    /// An integer that is not negative.
    pub(in crate::import) fn unsigned(value: u64) -> Value {
        Value::Int { negative: false, bits: value }
    }

    /// The integer that little-endian bytes in two's complement are.
    pub(super) fn from_little_endian(bytes: &[u8]) -> Value {
        let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
        let fill = if negative { 0xff } else { 0 };
        let mut low = [fill; 8];
        let kept = bytes.len().min(low.len());
        low[..kept].copy_from_slice(&bytes[..kept]);
        let bits = u64::from_le_bytes(low);
        let is_wide = bytes[kept..].iter().any(|&byte| byte != fill) || (negative && bits < 1 << 63);
        if is_wide { Value::Huge } else { Value::Int { negative, bits } }
    }

    /// The integer, if it is one that is not negative.
    pub(in crate::import) fn as_u64(self) -> Option<u64> {
        match self {
            Value::Int { negative: false, bits } => Some(bits),
            _ => None,
        }
    }

    /// What kind of value it is, for errors.
    pub(in crate::import) fn kind(self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Bool(_) => "a bool",
            Value::Int { negative: true, .. } => "a negative integer",
            Value::Int { .. } => "an integer",
            Value::Huge => "an integer of more than 64 bits",
            Value::Float(_) => "a float",
            Value::Text(_) => "a text",
            Value::Bytes => "bytes",
            Value::List(_) => "a list",
            Value::Dict(_) => "a dict",
            Value::OrderedDict => "a class",
            Value::Object(_) => "a dict that was taken apart",
        }
    }
}

/// Names a list or dict of the heap. The generation tells whether it is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::import) struct Slot {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// Something of the visitor's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::import) struct Object {
    /// What it is, by the visitor's numbers.
    pub(in crate::import) kind: u8,
    /// Which one.
    pub(in crate::import) index: u32,
}
