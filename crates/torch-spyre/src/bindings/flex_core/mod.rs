//! `torch_spyre.flex`: the allocator core from Python.

mod allocation;
mod allocator;
mod callback;
mod directive;
mod errors;

pub(crate) use allocation::Allocation;
pub(crate) use allocator::FlexAllocator;
pub(crate) use callback::PressureRequest;
pub(crate) use directive::{AllocationDirective, MemoryType, PlacementPolicy, Topology};
pub(crate) use errors::add_exceptions;
