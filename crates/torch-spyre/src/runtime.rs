//! The process's devices and their gate. Made once, at initialisation, and never destroyed: tensors may be freed
//! at any time, also while the process exits.
//!
//! Lock: `FAILURE`, a leaf, held to copy a text.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use flex::fork::is_forked;
use flex::gate::Gate;
use flex::history::HistoryOptions;
use flex::{
    AllocationDirective, AllocatorOptions, BlockHandle, Chunk, DomainId, FlexAllocator, FlexError,
    RegionOrder, Topology,
};
use flex_sim::{RegionIdScheme, SimulatedDevice, SimulatedOptions};

use crate::configuration::{Configuration, DeviceKind};
use crate::interpreter::stacks;

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// Why initialisation failed, for those who use the device all the same.
static FAILURE: Mutex<Option<String>> = Mutex::new(None);

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

/// What use in a forked child raises, as CUDA says it.
pub(crate) const FORKED: &str = "Cannot re-initialize spyre in forked subprocess. To use spyre with multiprocessing, \
                                 you must use the 'spawn' start method";

/// The runtime, if the devices can be used.
///
/// # Errors
/// Why they cannot: a forked child, or what went wrong at initialisation.
pub(crate) fn ready() -> Result<&'static Runtime, String> {
    if is_forked() {
        return Err(FORKED.into());
    }
    runtime().ok_or_else(|| {
        let failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
        failure
            .clone()
            .unwrap_or_else(|| "spyre is not initialized; expected torch_spyre to be imported".into())
    })
}

/// Keeps why initialisation failed.
pub(crate) fn set_failure(text: String) {
    *FAILURE.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
}

/// A device by index.
///
/// # Errors
/// As [`ready`], and the shim's words, which are CUDA's, for an index without a device.
pub(crate) fn device(index: i32) -> Result<&'static DeviceMemory, String> {
    let runtime = ready()?;
    runtime.device(index).ok_or_else(|| {
        let count = runtime.devices().len();
        format!(
            "spyre error: invalid device ordinal: got device index {index}, but the number of spyre devices is {count}"
        )
    })
}

/// The device whose memory holds an address, or -1.
pub(crate) fn device_of(address: usize) -> i32 {
    let devices = ready().map_or(&[][..], Runtime::devices);
    let holder = devices.iter().find(|device| device.allocator.holds_host_address(address));
    holder.map_or(-1, |device| device.index as i32)
}

impl Runtime {
    /// Makes the devices.
    ///
    /// # Errors
    /// Why they cannot be made.
    pub(crate) fn new(configuration: Configuration, gate: Arc<Gate>) -> Result<Runtime, FlexError> {
        let count = usize::try_from(configuration.device_count).unwrap_or(usize::MAX);
        let devices = (0..count)
            .map(|index| DeviceMemory::new(index, &configuration, &gate))
            .collect::<Result<Vec<_>, FlexError>>()?;
        Ok(Runtime { configuration, gate, devices })
    }

    /// Makes this the runtime of the process, unless there is one.
    pub(crate) fn publish(self) -> &'static Runtime {
        RUNTIME.get_or_init(|| self)
    }

    /// The allocators of all devices, by index.
    pub(crate) fn allocators(&self) -> Vec<FlexAllocator> {
        self.devices.iter().map(|device| device.allocator.clone()).collect()
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
        let options = AllocatorOptions {
            region_order: configuration.region_order,
            poison: configuration.poison,
            ordinal: index as u32,
            ..AllocatorOptions::default()
        };
        let region_ids = match configuration.kind {
            DeviceKind::Vf => RegionIdScheme::Index,
            DeviceKind::Sim | DeviceKind::Pf => RegionIdScheme::BaseAddress,
        };
        let allocator = simulated(format!("spyre:{index}"), &topology, region_ids, options)?;
        gate.adopt(&allocator)?;
        if configuration.history_entries > 0 {
            let max_entries = usize::try_from(configuration.history_entries).unwrap_or(usize::MAX);
            let sites = Some(stacks::sites());
            allocator.record_history(Some(HistoryOptions {
                max_entries,
                sites,
                ..HistoryOptions::default()
            }))?;
        }
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
