//! The layout of a device's memory: which regions there are, in which domain, of which type and size.
//!
//! Pure values; no lock. A topology that exists is valid: every region has between one unit and
//! [`MAX_REGION_BYTES`], at least one is for tensors, and their number fits the block metadata.

use crate::directive::MemoryType;
use crate::error::{FlexError, RegionSetupError};
use crate::units::{ALIGNMENT_BYTES, DomainId, align_down};

/// Offsets and sizes in a region are 32-bit counts of units: a region has just under 512 GiB at most.
pub const MAX_REGION_BYTES: u64 = u32::MAX as u64 * ALIGNMENT_BYTES;

/// The most regions a topology may have: a block names its region in 16 bits.
pub const MAX_REGIONS: usize = u16::MAX as usize;

/// Regions of the hardware, by default.
pub const SPYRE_REGIONS: u32 = 7;

/// The largest region the hardware can address.
pub const SPYRE_MAX_REGION_BYTES: u64 = 16 << 30;

/// The largest program region of [`Topology::uniform`].
pub const UNIFORM_MAX_PROGRAM_BYTES: u64 = 64 << 20;

/// One region to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionLayout {
    /// The domain it lies in.
    pub domain: DomainId,
    /// What it holds.
    pub memory_type: MemoryType,
    /// Its size in bytes, not necessarily a multiple of [`ALIGNMENT_BYTES`].
    pub size_bytes: u64,
}

impl RegionLayout {
    /// The part that can be allocated: the size rounded down to [`ALIGNMENT_BYTES`].
    pub fn usable_bytes(&self) -> u64 {
        align_down(self.size_bytes)
    }
}

/// The regions of a device, by slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    regions: Vec<RegionLayout>,
    domain_count: u32,
}

impl Topology {
    /// The hardware's layout with one program region: see [`Topology::spyre_with_programs`].
    ///
    /// ```
    /// use flex::{Topology, topology::SPYRE_REGIONS};
    ///
    /// let topology = Topology::spyre(118_111_600_635, SPYRE_REGIONS, 1)?;
    /// assert_eq!(topology.tensor_capacity_bytes(), 6 * 16_873_085_696);
    /// # Ok::<(), flex::FlexError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Topology::spyre_with_programs`].
    pub fn spyre(total_bytes: u64, max_regions: u32, domain_count: u32) -> Result<Topology, FlexError> {
        Topology::spyre_with_programs(total_bytes, max_regions, domain_count, 1)
    }

    /// `max_regions` equal regions of at most 16 GiB, spread evenly over the domains, the first
    /// `program_regions` of domain 0 for programs and the rest for tensors. Domains are equal by construction.
    ///
    /// # Errors
    ///
    /// [`FlexError::RegionSetup`]: no domains, no regions, regions that cannot be divided evenly, more program
    /// regions than a domain has, nothing left for tensors, or regions smaller than one unit.
    pub fn spyre_with_programs(
        total_bytes: u64,
        max_regions: u32,
        domain_count: u32,
        program_regions: u32,
    ) -> Result<Topology, FlexError> {
        check_spyre(total_bytes, max_regions, domain_count, program_regions)?;
        let regions_per_domain = max_regions / domain_count;
        let size_bytes = (total_bytes / u64::from(max_regions)).min(SPYRE_MAX_REGION_BYTES);
        let regions = (0..max_regions).map(|slot| RegionLayout {
            domain: DomainId(slot / regions_per_domain),
            memory_type: if slot < program_regions { MemoryType::Program } else { MemoryType::Tensor },
            size_bytes,
        });
        Topology::custom(regions.collect())
    }

    /// One tensor region of exactly `total_bytes`, rounded down to [`ALIGNMENT_BYTES`], and beside it a program
    /// region of a sixteenth of that (at least one unit, at most 64 MiB), which the total does not include.
    ///
    /// # Errors
    ///
    /// [`FlexError::RegionSetup`] if the total is smaller than one unit or larger than [`MAX_REGION_BYTES`].
    pub fn uniform(total_bytes: u64) -> Result<Topology, FlexError> {
        let tensor_bytes = align_down(total_bytes);
        if tensor_bytes == 0 {
            let minimum_bytes = ALIGNMENT_BYTES;
            return Err(RegionSetupError::TotalTooSmall { total_bytes, minimum_bytes }.into());
        }
        let program_bytes = align_down(tensor_bytes / 16).clamp(ALIGNMENT_BYTES, UNIFORM_MAX_PROGRAM_BYTES);
        let region = |memory_type, size_bytes| RegionLayout { domain: DomainId(0), memory_type, size_bytes };
        Topology::custom(vec![
            region(MemoryType::Tensor, tensor_bytes),
            region(MemoryType::Program, program_bytes),
        ])
    }

    /// Any list of regions. The device then has the domains from 0 to the highest one listed.
    ///
    /// # Errors
    ///
    /// [`FlexError::RegionSetup`]: no regions, too many, none for tensors, or one too small or too large.
    pub fn custom(regions: Vec<RegionLayout>) -> Result<Topology, FlexError> {
        let region_count = regions.len();
        if region_count > MAX_REGIONS {
            return Err(RegionSetupError::TooManyRegions { region_count, max_regions: MAX_REGIONS }.into());
        }
        for (slot, region) in regions.iter().enumerate() {
            check_region(slot, region)?;
        }
        let last = regions.iter().map(|region| region.domain.0).max().ok_or(RegionSetupError::NoRegions)?;
        if regions.iter().all(|region| region.memory_type != MemoryType::Tensor) {
            return Err(RegionSetupError::NoTensorRegion { region_count }.into());
        }
        Ok(Topology { regions, domain_count: last.saturating_add(1) })
    }

    /// The regions, by slot.
    pub fn regions(&self) -> &[RegionLayout] {
        &self.regions
    }

    /// How many domains the device has; they are numbered from 0.
    pub fn domain_count(&self) -> u32 {
        self.domain_count
    }

    /// Usable bytes of the tensor regions: the capacity users see.
    pub fn tensor_capacity_bytes(&self) -> u64 {
        self.usable_bytes(|region| region.memory_type == MemoryType::Tensor)
    }

    /// Usable bytes of all regions, those for programs included: what the device must provide.
    pub fn total_bytes(&self) -> u64 {
        self.usable_bytes(|_| true)
    }

    fn usable_bytes(&self, counts: impl Fn(&RegionLayout) -> bool) -> u64 {
        self.regions.iter().filter(|region| counts(region)).map(RegionLayout::usable_bytes).sum()
    }
}

fn check_spyre(
    total_bytes: u64,
    region_count: u32,
    domain_count: u32,
    program_regions: u32,
) -> Result<(), RegionSetupError> {
    if domain_count == 0 {
        return Err(RegionSetupError::NoDomains);
    }
    if region_count == 0 {
        return Err(RegionSetupError::NoRegions);
    }
    if !region_count.is_multiple_of(domain_count) {
        return Err(RegionSetupError::UnevenDomains { region_count, domain_count });
    }
    let regions_per_domain = region_count / domain_count;
    if program_regions > regions_per_domain {
        return Err(RegionSetupError::TooManyProgramRegions { program_regions, regions_per_domain });
    }
    let minimum_bytes = ALIGNMENT_BYTES * u64::from(region_count);
    if total_bytes < minimum_bytes {
        return Err(RegionSetupError::TotalTooSmall { total_bytes, minimum_bytes });
    }
    Ok(())
}

fn check_region(slot: usize, region: &RegionLayout) -> Result<(), RegionSetupError> {
    let size_bytes = region.size_bytes;
    if region.usable_bytes() == 0 {
        return Err(RegionSetupError::RegionTooSmall { slot, size_bytes, minimum_bytes: ALIGNMENT_BYTES });
    }
    if region.usable_bytes() > MAX_REGION_BYTES {
        return Err(RegionSetupError::RegionTooLarge { slot, size_bytes, maximum_bytes: MAX_REGION_BYTES });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup_error(result: Result<Topology, FlexError>) -> RegionSetupError {
        match result {
            Err(FlexError::RegionSetup(error)) => error,
            other => panic!("expected a region setup error, got {other:?}"),
        }
    }

    #[test]
    fn spyre_divides_evenly_and_caps_regions() {
        let topology = Topology::spyre(1 << 40, 8, 2).unwrap();
        assert!(topology.regions().iter().all(|region| region.size_bytes == SPYRE_MAX_REGION_BYTES));
        let domains: Vec<u32> = topology.regions().iter().map(|region| region.domain.0).collect();
        assert_eq!(domains, [0, 0, 0, 0, 1, 1, 1, 1]);
        let programs: Vec<usize> =
            (0..8).filter(|&slot| topology.regions()[slot].memory_type == MemoryType::Program).collect();
        assert_eq!(programs, [0]);
        assert_eq!(topology.domain_count(), 2);
        assert_eq!(topology.tensor_capacity_bytes(), 7 * SPYRE_MAX_REGION_BYTES);
        assert_eq!(topology.total_bytes(), 8 * SPYRE_MAX_REGION_BYTES);
    }

    #[test]
    fn each_spyre_violation_has_its_own_error() {
        use RegionSetupError as E;
        assert_eq!(setup_error(Topology::spyre(1 << 30, 7, 0)), E::NoDomains);
        assert_eq!(setup_error(Topology::spyre(1 << 30, 0, 1)), E::NoRegions);
        assert_eq!(
            setup_error(Topology::spyre(1 << 30, 7, 2)),
            E::UnevenDomains { region_count: 7, domain_count: 2 }
        );
        assert_eq!(
            setup_error(Topology::spyre_with_programs(1 << 30, 8, 4, 3)),
            E::TooManyProgramRegions { program_regions: 3, regions_per_domain: 2 }
        );
        assert_eq!(setup_error(Topology::spyre(1 << 30, 1, 1)), E::NoTensorRegion { region_count: 1 });
        assert_eq!(
            setup_error(Topology::spyre(7 * 128 - 1, 7, 1)),
            E::TotalTooSmall { total_bytes: 895, minimum_bytes: 896 }
        );
        Topology::spyre(7 * 128, 7, 1).unwrap();
    }

    #[test]
    fn uniform_is_exact_with_programs_beside_it() {
        let topology = Topology::uniform((64 << 20) + 127).unwrap();
        assert_eq!(topology.tensor_capacity_bytes(), 64 << 20);
        assert_eq!(topology.total_bytes(), (64 << 20) + (4 << 20));
        assert_eq!(Topology::uniform(128).unwrap().total_bytes(), 256);
        assert_eq!(
            Topology::uniform(100 << 30).unwrap().total_bytes(),
            (100 << 30) + UNIFORM_MAX_PROGRAM_BYTES
        );
        assert_eq!(
            setup_error(Topology::uniform(127)),
            RegionSetupError::TotalTooSmall { total_bytes: 127, minimum_bytes: 128 }
        );
    }

    #[test]
    fn custom_checks_every_region() {
        let region =
            |size_bytes| RegionLayout { domain: DomainId(0), memory_type: MemoryType::Tensor, size_bytes };
        assert_eq!(setup_error(Topology::custom(vec![])), RegionSetupError::NoRegions);
        assert_eq!(
            setup_error(Topology::custom(vec![region(128), region(127)])),
            RegionSetupError::RegionTooSmall { slot: 1, size_bytes: 127, minimum_bytes: 128 }
        );
        Topology::custom(vec![region(MAX_REGION_BYTES + 127)]).unwrap();
        assert_eq!(
            setup_error(Topology::custom(vec![region(512 << 30)])),
            RegionSetupError::RegionTooLarge {
                slot: 0,
                size_bytes: 512 << 30,
                maximum_bytes: MAX_REGION_BYTES
            }
        );
        assert_eq!(
            setup_error(Topology::custom(vec![region(128); MAX_REGIONS + 1])),
            RegionSetupError::TooManyRegions { region_count: 65536, max_regions: 65535 }
        );
    }
}
