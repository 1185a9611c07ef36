//! The process's devices and their gate. Made once, at initialisation, and never destroyed: tensors may be freed
//! at any time, also while the process exits.

use std::sync::{Arc, OnceLock};

use flex::gate::Gate;
use flex::{
    AllocationDirective, AllocatorOptions, BlockHandle, Chunk, DomainId, FlexAllocator, FlexError,
    RegionOrder, Topology,
};
use flex_sim::{RegionIdScheme, SimulatedDevice, SimulatedOptions};

use crate::configuration::{Configuration, DeviceKind};

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// The devices and the gate they share.
pub(crate) struct Runtime {
    pub(crate) configuration: Configuration,
    pub(crate) gate: Arc<Gate>,
    devices: Vec<DeviceMemory>,
}

/// One device's memory, as tensors use it.
pub(crate) struct DeviceMemory {
    pub(crate) index: usize,
    pub(crate) allocator: FlexAllocator,
    pub(crate) topology: Topology,
    /// A storage must be one contiguous chunk, in any domain.
    tensors: AllocationDirective,
}

/// The runtime, once initialised.
#[inline]
pub(crate) fn runtime() -> Option<&'static Runtime> {
    RUNTIME.get()
}

impl Runtime {
    /// Makes the devices and publishes the runtime; a second call changes nothing.
    ///
    /// # Errors
    /// Why the devices cannot be made.
    pub(crate) fn publish(
        configuration: Configuration,
        gate: Arc<Gate>,
    ) -> Result<&'static Runtime, FlexError> {
        let count = usize::try_from(configuration.device_count).unwrap_or(usize::MAX);
        let devices = (0..count)
            .map(|index| DeviceMemory::new(index, &configuration, &gate))
            .collect::<Result<Vec<_>, FlexError>>()?;
        Ok(RUNTIME.get_or_init(|| Runtime { configuration, gate, devices }))
    }

    /// All devices, by index.
    pub(crate) fn devices(&self) -> &[DeviceMemory] {
        &self.devices
    }

    /// A device by torch's index.
    #[inline]
    pub(crate) fn device(&self, index: i32) -> Option<&DeviceMemory> {
        self.devices.get(usize::try_from(index).ok()?)
    }
}

impl DeviceMemory {
    fn new(index: usize, configuration: &Configuration, gate: &Arc<Gate>) -> Result<Self, FlexError> {
        let total = configuration.device_memory_bytes;
        let topology = match configuration.kind {
            DeviceKind::Sim => Topology::uniform(total)?,
            DeviceKind::Pf | DeviceKind::Vf => {
                Topology::spyre(total, configuration.max_regions, configuration.domain_count)?
            }
        };
        let options =
            AllocatorOptions { region_order: configuration.region_order, poison: configuration.poison };
        let region_ids = match configuration.kind {
            DeviceKind::Vf => RegionIdScheme::Index,
            DeviceKind::Sim | DeviceKind::Pf => RegionIdScheme::BaseAddress,
        };
        let allocator = simulated(format!("spyre:{index}"), &topology, region_ids, options)?;
        allocator.set_memory_pressure_callback(Some(gate.ladder()))?;
        let domains = (0..topology.domain_count()).map(DomainId);
        let tensors = AllocationDirective::builder().domains(domains).build()?;
        Ok(DeviceMemory { index, allocator, topology, tensors })
    }

    /// Allocates a tensor's storage.
    #[inline]
    pub(crate) fn allocate(&self, bytes: u64) -> Result<(BlockHandle, Chunk), FlexError> {
        self.allocator.allocate_block(bytes, &self.tensors)
    }

    /// What the device is called.
    pub(crate) fn name(&self) -> &str {
        self.allocator.device().name()
    }
}

/// An allocator on a simulated device of its own.
pub(crate) fn simulated(
    name: String,
    topology: &Topology,
    region_ids: RegionIdScheme,
    options: AllocatorOptions,
) -> Result<FlexAllocator, FlexError> {
    let device = SimulatedDevice::new(SimulatedOptions {
        name,
        capacity_bytes: topology.total_bytes(),
        region_ids,
        can_release_regions: true,
    })?;
    FlexAllocator::new(device, topology, options)
}

/// The region order's name as in the environment.
pub(crate) fn region_order_name(order: RegionOrder) -> &'static str {
    match order {
        RegionOrder::MostFree => "most_free",
        RegionOrder::LeastFree => "least_free",
    }
}
