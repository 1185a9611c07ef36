//! Zones: where in a region small and large requests go.
//!
//! Small blocks come and go between large ones and would scatter over the region. So every block is labelled small or
//! large, and free blocks coalesce within their zone only. The small zone takes *extents* from the large one and gives
//! back what has become free again; both are changes of a label, there are no slabs. Large requests are cut from the
//! low end of a free block and middling ones from the high end, so that they do not alternate.
//!
//! Zones never make a request fail: before a region gives up, all its small free blocks become large ones and coalesce.
//! All sizes scale with the region, so that a small one is little more than one zone.
//!
//! Pure values; no lock.

use super::blocks::Zone;

/// The largest extent: 16 MiB.
const MAX_EXTENT_UNITS: u32 = 1 << 17;

/// An extent is this part of the region, as a power of two.
const EXTENT_SHIFT: u32 = 10;

/// Small requests are up to this part of an extent.
const SMALL_SHIFT: u32 = 3;

/// So many extents of free small memory in a row go back to the large zone.
const RELEASE_EXTENTS: u32 = 2;

/// Requests up to this part of the region are cut from the high end.
const HIGH_END_SHIFT: u32 = 7;

/// Which end of a free block a request is cut from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Low,
    High,
}

/// The sizes that decide, in units.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Zones {
    /// What the small zone takes at a time.
    pub(crate) extent_units: u32,
    /// The largest small request.
    pub(crate) small_units: u32,
    /// By zone: a free block that is larger becomes a large one. Of a table, since a branch on the zone is as good as
    /// random.
    pub(crate) keep_units: [u32; 2],
    /// The largest request that is cut from the high end.
    pub(crate) high_end_units: u32,
}

impl Zones {
    /// The sizes for a region.
    pub(crate) fn of(usable_units: u32) -> Zones {
        let part = (usable_units >> EXTENT_SHIFT).clamp(1, MAX_EXTENT_UNITS);
        let extent_units = 1 << part.ilog2();
        Zones {
            extent_units,
            small_units: extent_units >> SMALL_SHIFT,
            keep_units: Zones::keep_units(extent_units * RELEASE_EXTENTS),
            high_end_units: usable_units >> HIGH_END_SHIFT,
        }
    }

    /// The field of that name, for a size from which on small free blocks become large ones.
    pub(crate) fn keep_units(release_units: u32) -> [u32; 2] {
        [release_units - 1, u32::MAX]
    }

    /// Whether a free block of that size and zone is to become a large one.
    #[inline(always)]
    pub(crate) fn releases(&self, size_units: u32, zone: Zone) -> bool {
        size_units > self.keep_units[zone as usize]
    }

    /// The zone of a request.
    #[inline]
    pub(crate) fn zone_of(&self, size_units: u32) -> Zone {
        if size_units <= self.small_units { Zone::Small } else { Zone::Large }
    }

    /// The end that a request is cut from. What the large zone gives to the small one comes from the low end too.
    #[inline]
    pub(crate) fn end_of(&self, size_units: u32) -> End {
        if size_units > self.high_end_units { End::Low } else { End::High }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_scale_with_the_region() {
        let tiny = Zones::of(100);
        assert_eq!((tiny.extent_units, tiny.zone_of(1)), (1, Zone::Large), "one zone");
        let zones = Zones::of(1 << 19); // 64 MiB
        assert_eq!(zones.extent_units, 512);
        assert!(!zones.releases(1023, Zone::Small) && zones.releases(1024, Zone::Small));
        assert!(!zones.releases(u32::MAX, Zone::Large));
        assert_eq!((zones.zone_of(64), zones.zone_of(65)), (Zone::Small, Zone::Large));
        assert_eq!((zones.end_of(4096), zones.end_of(4097)), (End::High, End::Low));
        assert_eq!(Zones::of(u32::MAX).extent_units, MAX_EXTENT_UNITS);
    }
}
