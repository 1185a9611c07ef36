//! The simulated device.
//!
//! # Locks
//!
//! The table of regions has one lock, each region's memory another; a thread takes the first only to look a region
//! up, and never holds both. Reserving and unmapping happen with the table free. The lock of a region orders the
//! copies and fills made through [`flex::Device`]; who writes through a host address orders its own accesses, as on
//! any device.
//!
//! Acquired bytes never exceed the capacity: they are claimed before a region is reserved.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use flex::{ALIGNMENT_BYTES, Device, DeviceError, DomainId, MemoryType, RegionId, Topology, VirtualAddress};

use crate::injection::Injection;
use crate::mapping::Mapping;

/// How regions are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RegionIdScheme {
    /// By their base address, as the hardware does in PF mode.
    #[default]
    BaseAddress,
    /// By the lowest free index of a table, as its firmware does in VF mode.
    Index,
}

/// What a simulated device is like.
///
/// ```
/// use flex::Device;
/// use flex_sim::{RegionIdScheme, SimulatedDevice, SimulatedOptions};
///
/// let device = SimulatedDevice::new(SimulatedOptions {
///     name: "sim:1".into(),
///     capacity_bytes: 1 << 40,
///     region_ids: RegionIdScheme::Index,
///     ..SimulatedOptions::default()
/// })?;
/// assert_eq!(device.capacity_bytes(), 1 << 40);
/// # Ok::<(), flex::DeviceError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedOptions {
    /// A short name for messages; `sim:0` by default.
    pub name: String,
    /// Bytes of all regions together, those for programs included; 1 GiB by default.
    pub capacity_bytes: u64,
    /// How regions are named.
    pub region_ids: RegionIdScheme,
    /// Whether regions can be given back before the device ends; they can by default.
    pub can_release_regions: bool,
}

impl Default for SimulatedOptions {
    fn default() -> Self {
        SimulatedOptions {
            name: "sim:0".into(),
            capacity_bytes: 1 << 30,
            region_ids: RegionIdScheme::default(),
            can_release_regions: true,
        }
    }
}

/// A device in host memory. Regions still acquired are unmapped when it is dropped.
#[derive(Debug)]
pub struct SimulatedDevice {
    options: SimulatedOptions,
    table: RwLock<Table>,
    injection: Injection,
}

/// The acquired regions.
#[derive(Debug, Default)]
struct Table {
    regions: BTreeMap<RegionId, Arc<SimulatedRegion>>,
    /// Bytes claimed: acquired, and being acquired.
    claimed_bytes: u64,
}

#[derive(Debug)]
struct SimulatedRegion {
    size_bytes: u64,
    base_address: usize,
    memory: RwLock<Mapping>,
}

impl SimulatedDevice {
    /// A device with no region acquired.
    ///
    /// # Errors
    ///
    /// [`DeviceError::InvalidSize`] for a capacity below one unit of [`ALIGNMENT_BYTES`].
    pub fn new(options: SimulatedOptions) -> Result<Arc<SimulatedDevice>, DeviceError> {
        if options.capacity_bytes < ALIGNMENT_BYTES {
            let expected = "a capacity of at least 128 bytes";
            return Err(invalid_size(&options.name, options.capacity_bytes, expected));
        }
        let (table, injection) = (RwLock::default(), Injection::default());
        Ok(Arc::new(SimulatedDevice { options, table, injection }))
    }

    /// A device with just the capacity for all regions of a topology.
    ///
    /// # Errors
    ///
    /// None today: a topology is never empty.
    pub fn for_topology(topology: &Topology) -> Result<Arc<SimulatedDevice>, DeviceError> {
        let capacity_bytes = topology.total_bytes();
        SimulatedDevice::new(SimulatedOptions { capacity_bytes, ..SimulatedOptions::default() })
    }

    /// Failures and delays to inject, and the count of calls.
    pub fn injection(&self) -> &Injection {
        &self.injection
    }

    /// Bytes in acquired regions, those being acquired included.
    pub fn acquired_bytes(&self) -> u64 {
        self.read_table().claimed_bytes
    }

    /// Bytes the host has committed to pages that were touched.
    ///
    /// ```
    /// # use flex::{Device, DomainId, MemoryType, Topology, VirtualAddress};
    /// # let device = flex_sim::SimulatedDevice::for_topology(&Topology::uniform(1 << 30)?)?;
    /// device.acquire_region(1 << 30, DomainId(0), MemoryType::Tensor)?;
    /// assert_eq!(device.committed_bytes(), 0);
    /// # Ok::<(), flex::FlexError>(())
    /// ```
    pub fn committed_bytes(&self) -> u64 {
        let regions: Vec<_> = self.read_table().regions.values().cloned().collect();
        regions.iter().map(|region| region.read().committed_bytes()).sum()
    }

    fn claim(&self, requested_bytes: u64) -> Result<(), DeviceError> {
        let mut table = self.write_table();
        let (acquired_bytes, capacity_bytes) = (table.claimed_bytes, self.options.capacity_bytes);
        if requested_bytes > capacity_bytes - acquired_bytes {
            return Err(DeviceError::CapacityExceeded { requested_bytes, acquired_bytes, capacity_bytes });
        }
        table.claimed_bytes += requested_bytes;
        Ok(())
    }

    fn reserve(&self, size_bytes: u64) -> Result<RegionId, DeviceError> {
        let mapping = Mapping::reserve(size_bytes)?;
        let base_address = mapping.base_address();
        let region = Arc::new(SimulatedRegion { size_bytes, base_address, memory: RwLock::new(mapping) });
        let mut table = self.write_table();
        let region_id = match self.options.region_ids {
            RegionIdScheme::BaseAddress => RegionId(base_address as u64),
            RegionIdScheme::Index => table.lowest_free_index(),
        };
        table.regions.insert(region_id, region);
        Ok(region_id)
    }

    fn try_acquire(&self, size_bytes: u64) -> Result<RegionId, DeviceError> {
        self.injection.before_acquire()?;
        if size_bytes == 0 || !size_bytes.is_multiple_of(ALIGNMENT_BYTES) {
            return Err(invalid_size(&self.options.name, size_bytes, "a positive multiple of 128"));
        }
        self.claim(size_bytes)?;
        self.reserve(size_bytes).inspect_err(|_| self.write_table().claimed_bytes -= size_bytes)
    }

    fn try_release(&self, region_id: RegionId) -> Result<(), DeviceError> {
        self.injection.before_release()?;
        if !self.options.can_release_regions {
            let message = format!("{} keeps its regions until it ends", self.options.name).into();
            return Err(DeviceError::Failed { operation: "release_region", code: 0, message });
        }
        let region = {
            let mut table = self.write_table();
            let region = table.regions.remove(&region_id).ok_or(DeviceError::UnknownRegion { region_id })?;
            table.claimed_bytes -= region.size_bytes;
            region
        };
        // Unmapped here, with the table free, or by a copy that is still in it.
        drop(region);
        Ok(())
    }

    /// The region of a span and the span's start and length, all checked.
    fn span(&self, at: VirtualAddress, len_bytes: u64) -> Result<Span, DeviceError> {
        let VirtualAddress { region_id, offset_bytes } = at;
        let region = self.region(region_id).ok_or(DeviceError::UnknownRegion { region_id })?;
        let region_bytes = region.size_bytes;
        let inside = offset_bytes.checked_add(len_bytes).is_some_and(|end| end <= region_bytes);
        if !inside {
            return Err(DeviceError::OutOfBounds { region_id, offset_bytes, len_bytes, region_bytes });
        }
        // A region that is mapped has a size, hence offsets, that fit the host's address space.
        Ok(Span { region, offset: offset_bytes as usize, len: len_bytes as usize })
    }

    fn region(&self, region_id: RegionId) -> Option<Arc<SimulatedRegion>> {
        self.read_table().regions.get(&region_id).cloned()
    }

    // The table and the memory are whole at every point where a thread could panic, so poison means nothing.

    fn read_table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_table(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Span {
    region: Arc<SimulatedRegion>,
    offset: usize,
    len: usize,
}

impl SimulatedRegion {
    fn read(&self) -> RwLockReadGuard<'_, Mapping> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Mapping> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn lowest_free_index(&self) -> RegionId {
        // Ids are in ascending order: the first that differs from its position leaves a gap there.
        let free = self.regions.keys().zip(0_u64..).find(|(region_id, index)| region_id.0 != *index);
        RegionId(free.map_or(self.regions.len() as u64, |(_, index)| index))
    }
}

fn invalid_size(device: &str, size_bytes: u64, expected: &'static str) -> DeviceError {
    DeviceError::InvalidSize { device: device.into(), size_bytes, expected }
}

impl Device for SimulatedDevice {
    fn name(&self) -> &str {
        &self.options.name
    }

    fn capacity_bytes(&self) -> u64 {
        self.options.capacity_bytes
    }

    fn acquire_region(
        &self,
        size_bytes: u64,
        _domain: DomainId,
        _memory_type: MemoryType,
    ) -> Result<RegionId, DeviceError> {
        self.try_acquire(size_bytes).inspect_err(|_| self.injection.count_failed_acquire())
    }

    fn release_region(&self, region_id: RegionId) -> Result<(), DeviceError> {
        self.try_release(region_id).inspect_err(|_| self.injection.count_failed_release())
    }

    fn can_release_regions(&self) -> bool {
        self.options.can_release_regions
    }

    fn trim(&self, region_id: RegionId, offset_bytes: u64, len_bytes: u64) {
        self.injection.count_trim();
        // Advice: a span that is not there needs no trimming.
        if let Ok(span) = self.span(VirtualAddress { region_id, offset_bytes }, len_bytes) {
            span.region.write().discard(span.offset, span.len);
        }
    }

    fn host_address(&self, address: VirtualAddress) -> Option<usize> {
        let span = self.span(address, 1).ok()?;
        Some(span.region.base_address + span.offset)
    }

    fn copy_in(&self, to: VirtualAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        let span = self.span(to, bytes.len() as u64)?;
        span.region.write().write(span.offset, bytes);
        Ok(())
    }

    fn copy_out(&self, from: VirtualAddress, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let span = self.span(from, bytes.len() as u64)?;
        span.region.read().read(span.offset, bytes);
        Ok(())
    }

    fn fill(&self, at: VirtualAddress, len_bytes: u64, byte: u8) -> Result<(), DeviceError> {
        let span = self.span(at, len_bytes)?;
        span.region.write().fill(span.offset, span.len, byte);
        Ok(())
    }
}
