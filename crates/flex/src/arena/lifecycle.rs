//! Regions on their way from the device and back.
//!
//! ```text
//! Absent --place--> Acquiring --region_acquired--> Present --start_release--> Releasing --region_released--> Absent
//!                   Acquiring --region_failed----> Absent                     Releasing --region_kept------> Present
//! ```
//!
//! The thread that moved a region to `Acquiring` or `Releasing` owns it until it reports the outcome, and calls the
//! device meanwhile with the allocator mutex free. Calls in any other phase are errors of the caller and panic.

use smallvec::SmallVec;

use super::region::Phase;
use super::{Arena, Region, RegionSlot};
use crate::directive::MemoryType;
use crate::units::{DomainId, RegionId};

impl Arena {
    /// Size in bytes, domain and type of the region to ask the device for.
    pub(crate) fn region_to_acquire(&self, slot: RegionSlot) -> (u64, DomainId, MemoryType) {
        let region = self.region(slot);
        (region.usable_bytes(), region.domain, region.memory_type)
    }

    /// The device gave the region.
    pub(crate) fn region_acquired(&mut self, slot: RegionSlot, region_id: RegionId) {
        let region = &mut self.regions[usize::from(slot.0)];
        assert_eq!(region.phase, Phase::Acquiring, "{slot:?}");
        region.open(&mut self.blocks, slot, region_id);
        self.counters.acquired(region.memory_type, region.usable_bytes());
        self.find_sole_regions();
    }

    /// The device refused the region. The caller adds the slot to the `refused` of its request before it asks
    /// again, or gives up with the device's error.
    pub(crate) fn region_failed(&mut self, slot: RegionSlot) {
        let region = self.region_mut(slot);
        assert_eq!(region.phase, Phase::Acquiring, "{slot:?}");
        region.phase = Phase::Absent;
    }

    /// Takes all wholly free regions out of use, for the caller to give back to the device.
    pub(crate) fn start_release_of_free_regions(&mut self) -> SmallVec<[(RegionSlot, RegionId); 8]> {
        let mut leaving = SmallVec::new();
        for (region, slot) in self.regions.iter_mut().zip((0_u16..).map(RegionSlot)) {
            let Some(region_id) = region.present_id() else { continue };
            if region.is_wholly_free() && region.held_blocks == 0 {
                region.close(&mut self.blocks, region_id);
                leaving.push((slot, region_id));
            }
        }
        self.find_sole_regions();
        leaving
    }

    /// The device took the region back.
    pub(crate) fn region_released(&mut self, slot: RegionSlot) {
        let region = &mut self.regions[usize::from(slot.0)];
        assert!(matches!(region.phase, Phase::Releasing(_)), "{slot:?} is {:?}", region.phase);
        region.phase = Phase::Absent;
        self.counters.returned(region.memory_type, region.usable_bytes());
    }

    /// The device did not take the region back: it is in use again.
    pub(crate) fn region_kept(&mut self, slot: RegionSlot) {
        let region = &mut self.regions[usize::from(slot.0)];
        let Phase::Releasing(region_id) = region.phase else {
            panic!("{slot:?} is {:?}, not being released", region.phase)
        };
        region.open(&mut self.blocks, slot, region_id);
        self.find_sole_regions();
    }

    /// The ids of the acquired regions, those on their way back included: what teardown gives back.
    pub(crate) fn region_ids(&self) -> impl Iterator<Item = RegionId> + '_ {
        self.regions.iter().filter_map(|region| match region.phase {
            Phase::Present(region_id) | Phase::Releasing(region_id) => Some(region_id),
            Phase::Absent | Phase::Acquiring => None,
        })
    }

    /// The acquired regions and their usable sizes in bytes.
    pub(crate) fn present_regions(&self) -> SmallVec<[(RegionId, u64); 8]> {
        let present =
            self.regions.iter().filter_map(|region| Some((region.present_id()?, region.usable_bytes())));
        present.collect()
    }

    pub(super) fn region(&self, slot: RegionSlot) -> &Region {
        &self.regions[usize::from(slot.0)]
    }
}
