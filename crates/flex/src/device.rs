//! What the allocator needs of a device.
//!
//! No method is called while the allocator mutex is held: they may be slow, and may take locks of their own.
//!
//! Frees are immediate as seen from here. A device with queues can defer them without a change to this trait:
//! the block is kept from its owner's free until an event of the queue has passed, then released to the
//! allocator as any other. Statistics keep `active` apart from `allocated` for that purpose.

use std::fmt::Debug;

use crate::address::VirtualAddress;
use crate::directive::MemoryType;
use crate::units::{DomainId, RegionId};

/// A device whose memory is managed region by region.
///
/// Implementations take calls from any thread at once.
pub trait Device: Send + Sync + Debug {
    /// A short name for messages, such as `sim:0`.
    fn name(&self) -> &str;

    /// Bytes the device can hand out in regions, all memory types together.
    fn capacity_bytes(&self) -> u64;

    /// Acquires a contiguous region of `size_bytes`, a multiple of [`crate::ALIGNMENT_BYTES`].
    ///
    /// # Errors
    ///
    /// Whatever keeps the device from it; nothing is then acquired.
    fn acquire_region(
        &self,
        size_bytes: u64,
        domain: DomainId,
        memory_type: MemoryType,
    ) -> Result<RegionId, DeviceError>;

    /// Gives a region back. Its id may be used again by a later region.
    ///
    /// # Errors
    ///
    /// The region is unknown, or the device keeps it; it then stays acquired.
    fn release_region(&self, region_id: RegionId) -> Result<(), DeviceError>;

    /// Whether regions can be given back one by one. If not, `empty_cache` keeps them.
    fn can_release_regions(&self) -> bool;

    /// Tells the device that a span holds nothing of value, so that it may give the pages behind it to others.
    ///
    /// The content of the span is undefined afterwards. The default does nothing.
    fn trim(&self, region_id: RegionId, offset_bytes: u64, len_bytes: u64) {
        let _ = (region_id, offset_bytes, len_bytes);
    }

    /// The host's address of device memory, where the host can reach it directly.
    fn host_address(&self, address: VirtualAddress) -> Option<usize> {
        let _ = address;
        None
    }

    /// Copies from the host to the device.
    ///
    /// # Errors
    ///
    /// The span does not lie within a region, or the transfer failed.
    fn copy_in(&self, to: VirtualAddress, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies from the device to the host.
    ///
    /// # Errors
    ///
    /// The span does not lie within a region, or the transfer failed.
    fn copy_out(&self, from: VirtualAddress, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Sets `len_bytes` bytes of device memory to `byte`.
    ///
    /// # Errors
    ///
    /// The span does not lie within a region, or the transfer failed.
    fn fill(&self, at: VirtualAddress, len_bytes: u64, byte: u8) -> Result<(), DeviceError>;
}

/// What a device could not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The operating system or the driver refused.
    #[error("{operation} of {size_bytes} bytes failed with errno {errno}: {message}")]
    Os {
        /// The call that failed.
        operation: &'static str,
        /// Its size, in bytes.
        size_bytes: u64,
        /// The system's error number.
        errno: i32,
        /// The system's text for it.
        message: Box<str>,
    },
    /// The regions acquired so far and this one exceed the device.
    #[error(
        "a region of {requested_bytes} bytes does not fit: {acquired_bytes} of {capacity_bytes} bytes are acquired"
    )]
    CapacityExceeded {
        /// Size of the region asked for, in bytes.
        requested_bytes: u64,
        /// Bytes in regions already acquired.
        acquired_bytes: u64,
        /// Bytes the device has.
        capacity_bytes: u64,
    },
    /// A size the device cannot take.
    #[error("{size_bytes} bytes is not a size {device} accepts; expected {expected}")]
    InvalidSize {
        /// The device's name.
        device: Box<str>,
        /// The size given, in bytes.
        size_bytes: u64,
        /// What would have been accepted.
        expected: &'static str,
    },
    /// No region of that id is acquired.
    #[error("region {region_id} is not acquired")]
    UnknownRegion {
        /// The id given.
        region_id: RegionId,
    },
    /// A span reaches beyond its region.
    #[error(
        "{len_bytes} bytes at offset {offset_bytes} reach beyond region {region_id}, which has {region_bytes} bytes"
    )]
    OutOfBounds {
        /// The region.
        region_id: RegionId,
        /// Where the span starts, in bytes.
        offset_bytes: u64,
        /// Its length, in bytes.
        len_bytes: u64,
        /// The region's size, in bytes.
        region_bytes: u64,
    },
    /// A failure asked for by a test.
    #[error("{operation} call {nth} was made to fail")]
    Injected {
        /// The call that failed.
        operation: &'static str,
        /// Which call it was, counted from 1.
        nth: u64,
    },
    /// Any other failure, in the device's own words.
    #[error("{operation} failed with code {code}: {message}")]
    Failed {
        /// The call that failed.
        operation: &'static str,
        /// The device's code.
        code: i64,
        /// The device's text.
        message: Box<str>,
    },
}
