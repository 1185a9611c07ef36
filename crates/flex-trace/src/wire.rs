//! How the fields of records become bytes and come back.
//!
//! A record is its kind, the length of its body, and the body: its fields, one behind the other. Two rules let the
//! format grow: a reader ignores what is left of a body, and an `Option` that the body is too short for is `None`. So
//! fields may be added at the end, as options.
//!
//! Addresses and times are written as differences from the one before, within a frame: a frame can be understood alone.

use crate::error::Malformed;
use crate::varint;

/// What the differences are from; zero at the beginning of a frame.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Previous {
    pub(crate) address: u64,
    pub(crate) time_ns: u64,
}

/// Where fields are written.
pub(crate) struct Encoder<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) previous: &'a mut Previous,
}

/// Where fields are read.
pub(crate) struct Decoder<'a, 'p> {
    pub(crate) bytes: &'a [u8],
    pub(crate) previous: &'p mut Previous,
}

/// A value that can be a field.
pub(crate) trait Wire<'a>: Sized {
    fn put(&self, encoder: &mut Encoder<'_>);
    fn take(decoder: &mut Decoder<'a, '_>) -> Result<Self, Malformed>;
}

impl Wire<'_> for u64 {
    #[inline]
    fn put(&self, encoder: &mut Encoder<'_>) {
        varint::put(encoder.out, *self);
    }

    #[inline]
    fn take(decoder: &mut Decoder<'_, '_>) -> Result<Self, Malformed> {
        varint::take(&mut decoder.bytes)
    }
}

impl Wire<'_> for u32 {
    #[inline]
    fn put(&self, encoder: &mut Encoder<'_>) {
        u64::from(*self).put(encoder);
    }

    #[inline]
    fn take(decoder: &mut Decoder<'_, '_>) -> Result<Self, Malformed> {
        u32::try_from(u64::take(decoder)?).map_err(|_| Malformed::NumberTooLarge)
    }
}

impl Wire<'_> for bool {
    fn put(&self, encoder: &mut Encoder<'_>) {
        encoder.out.push(u8::from(*self));
    }

    fn take(decoder: &mut Decoder<'_, '_>) -> Result<Self, Malformed> {
        match u64::take(decoder)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Malformed::UnknownVariant(other)),
        }
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Option<T> {
    #[inline]
    fn put(&self, encoder: &mut Encoder<'_>) {
        self.is_some().put(encoder);
        if let Some(value) = self {
            value.put(encoder);
        }
    }

    #[inline]
    fn take(decoder: &mut Decoder<'a, '_>) -> Result<Self, Malformed> {
        if decoder.bytes.is_empty() || !bool::take(decoder)? {
            return Ok(None);
        }
        T::take(decoder).map(Some)
    }
}

impl<'a> Wire<'a> for &'a str {
    fn put(&self, encoder: &mut Encoder<'_>) {
        varint::put(encoder.out, self.len() as u64);
        encoder.out.extend_from_slice(self.as_bytes());
    }

    fn take(decoder: &mut Decoder<'a, '_>) -> Result<Self, Malformed> {
        let length = usize::try_from(u64::take(decoder)?).map_err(|_| Malformed::Short)?;
        let (text, rest) = decoder.bytes.split_at_checked(length).ok_or(Malformed::Short)?;
        decoder.bytes = rest;
        std::str::from_utf8(text).map_err(|_| Malformed::NotUtf8)
    }
}

/// A list of ids within a record: given as a slice to write it, read without a copy.
#[derive(Debug, Clone, Copy)]
pub struct Ids<'a>(List<'a>);

#[derive(Debug, Clone, Copy)]
enum List<'a> {
    Given(&'a [u32]),
    /// The encoded ids, checked.
    Read(&'a [u8]),
}

impl<'a> From<&'a [u32]> for Ids<'a> {
    fn from(ids: &'a [u32]) -> Self {
        Ids(List::Given(ids))
    }
}

impl Ids<'_> {
    /// The ids, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let (given, mut read) = match self.0 {
            List::Given(ids) => (ids, [].as_slice()),
            List::Read(bytes) => ([].as_slice(), bytes),
        };
        given.iter().copied().chain(std::iter::from_fn(move || {
            varint::take(&mut read).ok().and_then(|id| u32::try_from(id).ok())
        }))
    }
}

impl PartialEq for Ids<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Ids<'_> {}

impl<'a> Wire<'a> for Ids<'a> {
    fn put(&self, encoder: &mut Encoder<'_>) {
        varint::put(encoder.out, self.iter().count() as u64);
        for id in self.iter() {
            id.put(encoder);
        }
    }

    fn take(decoder: &mut Decoder<'a, '_>) -> Result<Self, Malformed> {
        let count = u64::take(decoder)?;
        let all = decoder.bytes;
        for _ in 0..count {
            u32::take(decoder)?;
        }
        Ok(Ids(List::Read(&all[..all.len() - decoder.bytes.len()])))
    }
}

/// Declares a struct whose fields are written in their order.
macro_rules! wire_struct {
    ($(#[$meta:meta])* $name:ident$(<$life:lifetime>)? {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name$(<$life>)? {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl<'a> $crate::wire::Wire<'a> for $crate::wire::apply_lifetime!($name $($life)?) {
            #[inline]
            fn put(&self, encoder: &mut $crate::wire::Encoder<'_>) {
                $($crate::wire::Wire::put(&self.$field, encoder);)*
            }

            #[inline]
            fn take(decoder: &mut $crate::wire::Decoder<'a, '_>) -> Result<Self, $crate::error::Malformed> {
                Ok($name { $($field: $crate::wire::Wire::take(decoder)?,)* })
            }
        }
    };
}

/// `Name` or `Name<'a>`.
macro_rules! apply_lifetime {
    ($name:ident) => { $name };
    ($name:ident $life:lifetime) => { $name<'a> };
}

/// Declares an enum without fields, with the number of each variant.
macro_rules! wire_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_meta])* $variant,)* }

        impl $crate::wire::Wire<'_> for $name {
            fn put(&self, encoder: &mut $crate::wire::Encoder<'_>) {
                let number: u64 = match self { $($name::$variant => $number,)* };
                $crate::wire::Wire::put(&number, encoder);
            }

            fn take(decoder: &mut $crate::wire::Decoder<'_, '_>) -> Result<Self, $crate::error::Malformed> {
                match u64::take(decoder)? {
                    $($number => Ok($name::$variant),)*
                    other => Err($crate::error::Malformed::UnknownVariant(other)),
                }
            }
        }
    };
}

pub(crate) use {apply_lifetime, wire_enum, wire_struct};
