//! What is asked for and how memory is laid out: plain values.

use flex::{DomainId, FlexError};
use pyo3::prelude::*;

use super::allocation::Allocation;
use super::errors::exception;

/// How an allocation relates to its domains.
#[pyclass(module = "torch_spyre.flex", eq, eq_int, frozen, hash, from_py_object)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PlacementPolicy {
    /// One chunk in any one of the domains.
    Bind,
    /// One chunk in each domain, in order.
    Interleave,
}

/// What a region holds.
#[pyclass(module = "torch_spyre.flex", eq, eq_int, frozen, hash, from_py_object)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum MemoryType {
    /// Data of tensors.
    Tensor,
    /// Programs of the device.
    Program,
}

/// Where an allocation goes and what it is for.
///
/// Without domains and without `near` it goes to domain 0. Raises InvalidPlacementError if it contradicts itself.
#[pyclass(module = "torch_spyre.flex", frozen)]
pub(crate) struct AllocationDirective {
    pub(super) core: flex::AllocationDirective,
}

#[pymethods]
impl AllocationDirective {
    #[new]
    #[pyo3(signature = (policy=PlacementPolicy::Bind, domains=None, *, near=None, memory_type=MemoryType::Tensor))]
    fn new(
        py: Python<'_>,
        policy: PlacementPolicy,
        domains: Option<Vec<u32>>,
        near: Option<&Allocation>,
        memory_type: MemoryType,
    ) -> PyResult<Self> {
        let mut builder = flex::AllocationDirective::builder()
            .policy(match policy {
                PlacementPolicy::Bind => flex::PlacementPolicy::Bind,
                PlacementPolicy::Interleave => flex::PlacementPolicy::Interleave,
            })
            .memory_type(match memory_type {
                MemoryType::Tensor => flex::MemoryType::Tensor,
                MemoryType::Program => flex::MemoryType::Program,
            });
        let default = if near.is_none() { vec![0] } else { Vec::new() };
        builder = builder.domains(domains.unwrap_or(default).into_iter().map(DomainId));
        if let Some(near) = near {
            builder = match near.reference() {
                Some(reference) => builder.near(reference.domains(), reference.is_live()),
                None => builder.near(&[], false),
            };
        }
        let core = builder.build().map_err(|error| exception(py, error))?;
        Ok(AllocationDirective { core })
    }

    fn __repr__(&self) -> String {
        let memory_type = self.core.memory_type();
        format!("<AllocationDirective: {:?} {:?}, {memory_type} memory>", self.core.policy(), self.domains())
    }

    /// Bound or interleaved.
    #[getter]
    fn policy(&self) -> PlacementPolicy {
        match self.core.policy() {
            flex::PlacementPolicy::Bind => PlacementPolicy::Bind,
            flex::PlacementPolicy::Interleave => PlacementPolicy::Interleave,
        }
    }

    /// The domains in effect, in order.
    #[getter]
    fn domains(&self) -> Vec<u32> {
        self.core.domains().iter().map(|domain| domain.0).collect()
    }

    /// What the memory is for.
    #[getter]
    fn memory_type(&self) -> MemoryType {
        match self.core.memory_type() {
            flex::MemoryType::Tensor => MemoryType::Tensor,
            flex::MemoryType::Program => MemoryType::Program,
        }
    }
}

/// Domains and regions of a device.
#[pyclass(module = "torch_spyre.flex", frozen)]
pub(crate) struct Topology {
    pub(super) core: flex::Topology,
}

impl Topology {
    fn of(py: Python<'_>, topology: Result<flex::Topology, FlexError>) -> PyResult<Self> {
        Ok(Topology { core: topology.map_err(|error| exception(py, error))? })
    }
}

#[pymethods]
impl Topology {
    /// One tensor region of `total_bytes`, and a small program region beside it.
    #[staticmethod]
    fn uniform(py: Python<'_>, total_bytes: u64) -> PyResult<Self> {
        Topology::of(py, flex::Topology::uniform(total_bytes))
    }

    /// The hardware's layout: equal regions of at most 16 GiB, the first for programs.
    #[staticmethod]
    #[pyo3(signature = (total_bytes, max_regions=7, domains=1))]
    fn spyre(py: Python<'_>, total_bytes: u64, max_regions: u32, domains: u32) -> PyResult<Self> {
        Topology::of(py, flex::Topology::spyre(total_bytes, max_regions, domains))
    }

    fn __repr__(&self) -> String {
        let (regions, domains) = (self.core.regions().len(), self.core.domain_count());
        format!("<Topology of {} bytes: {regions} region(s) in {domains} domain(s)>", self.core.total_bytes())
    }

    /// Number of memory domains.
    #[getter]
    fn domain_count(&self) -> u32 {
        self.core.domain_count()
    }

    /// The regions: (domain, memory type, size in bytes).
    #[getter]
    fn regions(&self) -> Vec<(u32, MemoryType, u64)> {
        let describe = |region: &flex::RegionLayout| {
            let memory_type = match region.memory_type {
                flex::MemoryType::Tensor => MemoryType::Tensor,
                flex::MemoryType::Program => MemoryType::Program,
            };
            (region.domain.0, memory_type, region.size_bytes)
        };
        self.core.regions().iter().map(describe).collect()
    }

    /// Bytes that tensors may use.
    #[getter]
    fn tensor_capacity_bytes(&self) -> u64 {
        self.core.tensor_capacity_bytes()
    }

    /// Bytes of all regions together.
    #[getter]
    fn total_bytes(&self) -> u64 {
        self.core.total_bytes()
    }
}
