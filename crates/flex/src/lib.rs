//! FlexAllocator: an out-of-band device memory allocator.
//!
//! Metadata lives on the host; device memory is never touched by the allocator.
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | domain | a memory channel of the device; an allocation is bound to one or interleaved over several |
//! | region | a contiguous span acquired from the device, of one memory type; devices have few handles for them |
//! | slot | the place of a region in the [`Topology`], known before the region is acquired and after it is gone |
//! | block | a span within a region, free or occupied; blocks tile the region, and no two free ones of one zone touch |
//! | zone | the small or the large blocks of a region; free ones coalesce within theirs, so small ones stay together |
//! | extent | what the small zone takes from the large one at a time, by a change of label |
//! | gap | the free blocks between two occupied ones, of whatever zones; a request may have all of it |
//! | unit | [`ALIGNMENT_BYTES`]; every block starts and ends on a unit |
//! | chunk | an occupied block as its owner sees it: virtual address, size, domain |
//! | slack | the bytes of a chunk beyond what was asked for |
//!
//! # The accounting identity
//!
//! For every acquired region, at any time the allocator mutex is free:
//!
//! ```text
//! sum(occupied blocks) + sum(free blocks) == usable bytes of the region
//! sum(requested) + sum(slack)             == sum(occupied blocks)
//! ```
//!
//! and summed over the acquired tensor regions:
//!
//! ```text
//! allocated_bytes + free bytes of those regions == reserved_bytes <= capacity_bytes
//! ```
//!
//! # Logging
//!
//! Rare events are logged with `tracing` at the level `debug`, never while an allocator mutex is held: the end of a
//! pressure event, regions acquired, refused and released, and collections that outlive their request. The subscriber
//! runs on the thread that allocates or calls `empty_cache`; it must not panic.

#![forbid(unsafe_code)]

pub mod address;
mod addresses_only;
mod allocator;
pub(crate) mod arena;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod chunked;
mod composite;
pub mod device;
pub mod directive;
pub mod error;
pub mod fork;
pub mod gate;
pub mod history;
mod lock;
mod magazines;
#[cfg(all(test, any(loom, shuttle)))]
mod model_world;
mod pending;
pub mod pressure;
pub mod rank;
mod regions;
mod shared;
pub mod signals;
pub mod statistics;
mod sync;
pub mod topology;
pub mod units;

pub use address::{Chunk, VirtualAddress};
pub use addresses_only::AddressesOnly;
pub use allocator::{AllocatorOptions, FlexAllocator};
pub use arena::blocks::BlockHandle;
pub use arena::region::RegionOrder;
pub use arena::snapshot::{BlockSnapshot, RegionSnapshot};
pub use composite::{AllocationRef, CompositeAddress};
pub use device::{Device, DeviceError};
pub use directive::{AllocationDirective, DirectiveBuilder, Domains, MemoryType, PlacementPolicy};
pub use error::{FlexError, OutOfMemory, PlacementError, RegionSetupError};
pub use fork::Forked;
pub use lock::{AllocatorGuard, Unlocked};
pub use statistics::{ProgramStatistics, Stat, Statistics};
pub use topology::{RegionLayout, Topology};
pub use units::{ALIGNMENT_BYTES, DomainId, RegionId};

// Test code shared with the integration tests names the crate from the outside.
#[cfg(test)]
extern crate self as flex;
