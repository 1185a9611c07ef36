//! The values that records consist of: ids, addresses, and what can be one of a few.

use crate::error::Malformed;
use crate::varint;
use crate::wire::{Decoder, Encoder, Wire, wire_enum};

macro_rules! id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl Wire<'_> for $name {
            #[inline]
            fn put(&self, encoder: &mut Encoder<'_>) {
                self.0.put(encoder);
            }

            #[inline]
            fn take(decoder: &mut Decoder<'_, '_>) -> Result<Self, Malformed> {
                u32::take(decoder).map($name)
            }
        }
    };
}

id!(
    /// Names a text that a [`Record::String`](super::Record::String) gives. Whoever writes the trace picks the numbers;
    /// small ones are short.
    StringId
);
id!(
    /// Names a frame that a [`Record::Frame`](super::Record::Frame) gives.
    FrameId
);
id!(
    /// Names a stack, which is a site of allocations, that a [`Record::Stack`](super::Record::Stack) gives.
    StackId
);

/// An address of device memory, as the program saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl From<u64> for Address {
    fn from(address: u64) -> Self {
        Address(address)
    }
}

impl Wire<'_> for Address {
    #[inline]
    fn put(&self, encoder: &mut Encoder<'_>) {
        let difference = self.0.wrapping_sub(encoder.previous.address) as i64;
        encoder.previous.address = self.0;
        varint::put(encoder.out, varint::zigzag(difference));
    }

    #[inline]
    fn take(decoder: &mut Decoder<'_, '_>) -> Result<Self, Malformed> {
        let difference = varint::unzigzag(varint::take(&mut decoder.bytes)?);
        decoder.previous.address = decoder.previous.address.wrapping_add(difference as u64);
        Ok(Address(decoder.previous.address))
    }
}

wire_enum! {
    /// What times count from.
    ClockOrigin {
        /// 1970 (UTC).
        Unix = 1,
        /// Some moment of this machine; only differences mean anything.
        Monotonic = 2,
        /// They are numbers of steps, not nanoseconds.
        Steps = 3,
    }
}

wire_enum! {
    /// What a region of a device holds.
    RegionUse {
        /// Tensors.
        Tensor = 0,
        /// Programs.
        Program = 1,
    }
}

wire_enum! {
    /// What a block is at one moment.
    BlockState {
        /// Free.
        Free = 0,
        /// In use.
        Live = 1,
        /// Freed by the program, while the device may still use it.
        PendingFree = 2,
    }
}

wire_enum! {
    /// What became of a request under pressure.
    PressureEnd {
        /// It was served.
        Served = 1,
        /// It failed.
        OutOfMemory = 2,
    }
}

impl Wire<'_> for (u64, u64) {
    fn put(&self, encoder: &mut Encoder<'_>) {
        self.0.put(encoder);
        self.1.put(encoder);
    }

    fn take(decoder: &mut Decoder<'_, '_>) -> Result<Self, Malformed> {
        Ok((u64::take(decoder)?, u64::take(decoder)?))
    }
}
