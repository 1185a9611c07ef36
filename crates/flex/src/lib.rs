//! FlexAllocator: an out-of-band device memory allocator.

pub mod pressure;
