//! What segments and their blocks say that cannot be: segments that overlap, blocks that do not fill theirs, sums that
//! are not those of the blocks.

use super::Impossible;
use crate::info::regions::Region;

/// All that cannot be, segment by segment.
pub(super) fn impossible(regions: &[Region], all: &mut Impossible) {
    overlaps(regions, all);
    for region in regions {
        let here = format!("the segment at {:#x}", region.state.address.0);
        all.extend(extent(region, &here));
        all.extend(sums(region, &here));
    }
}

/// Segments that share memory.
fn overlaps(regions: &[Region], all: &mut Impossible) {
    let range = |region: &Region| {
        let begin = u128::from(region.state.address.0);
        (begin, begin + u128::from(region.state.size_bytes))
    };
    let mut ranges: Vec<_> = regions.iter().map(range).filter(|(begin, end)| begin < end).collect();
    ranges.sort_unstable();
    let mut before: Option<(u128, u128)> = None;
    for (begin, end) in ranges {
        if let Some((other, other_end)) = before.filter(|&(_, other_end)| other_end > begin) {
            let (size, other_size) = (end - begin, other_end - other);
            all.add(format!(
                "the segment at {other:#x} of {other_size} bytes and that at {begin:#x} of {size} overlap"
            ));
        }
        if before.is_none_or(|(_, other_end)| end > other_end) {
            before = Some((begin, end));
        }
    }
}

/// What does not fit into the segment, or does not fill it.
fn extent(region: &Region, here: &str) -> Vec<String> {
    let state = &region.state;
    let mut all = Vec::new();
    if state.address.0.checked_add(state.size_bytes).is_none() {
        all.push(format!("{here}, of {} bytes, ends beyond the last address", state.size_bytes));
    }
    if region.blocks > 0 && region.block_bytes != u128::from(state.size_bytes) {
        all.push(format!(
            "{here} has {} bytes, and its blocks have {}",
            state.size_bytes, region.block_bytes
        ));
    }
    if let Some((size, requested)) = region.too_small {
        all.push(format!("{here} has a live block of {size} bytes for which {requested} were asked"));
    }
    all
}

/// What the segment says of itself, beside its blocks, and beside its size.
fn sums(region: &Region, here: &str) -> Vec<String> {
    let mut all = Vec::new();
    let state = &region.state;
    for (stated, found, what) in [
        (state.allocated_bytes, region.allocated_bytes, "allocated"),
        (state.active_bytes, region.active_bytes, "active"),
    ] {
        let Some(stated) = stated else { continue };
        let size = state.size_bytes;
        if region.blocks > 0 && stated != found {
            all.push(format!("{here} says that {stated} bytes are {what}, and its blocks have {found}"));
        } else if stated > size {
            all.push(format!("{here} says that {stated} bytes are {what}, and has {size}"));
        }
    }
    if let Some((allocated, active)) = state.allocated_bytes.zip(state.active_bytes)
        && allocated > active
    {
        all.push(format!("{here} says that {allocated} bytes are allocated, and {active} active"));
    }
    all
}
