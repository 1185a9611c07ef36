//! What events say that cannot be: live blocks that overlap, frees that fit no block, more that is live than reserved,
//! more that is free than the device has.
//!
//! Invariant: `live` has the live blocks, by address, as long as no event was lost.

use std::collections::BTreeMap;

use flex_trace::Action;

/// How often something was seen that cannot be, and the first time in words.
#[derive(Debug, Default)]
struct Seen {
    times: u64,
    first: String,
}

impl Seen {
    fn add(&mut self, text: impl FnOnce() -> String) {
        if self.times == 0 {
            self.first = text();
        }
        self.times += 1;
    }

    fn text(&self) -> Option<String> {
        match self.times {
            0 => None,
            1 => Some(self.first.clone()),
            times => Some(format!("{}; so in {times} events", self.first)),
        }
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(in crate::info) struct EventCheck {
    /// Where the block that begins at an address ends.
    live: BTreeMap<u64, u64>,
    lost: bool,
    /// What failed requests say that the device has.
    pub(in crate::info) capacity_bytes: Option<u64>,
    capacities: Seen,
    overlaps: Seen,
    ends: Seen,
    unknown_frees: Seen,
    other_sizes: Seen,
    released: Seen,
    unreserved: Seen,
    holes: Seen,
    /// The most that was free or in use at once when a request failed, and how that is said.
    in_all: Option<(u128, String)>,
}

impl EventCheck {
    /// Looks at an event, by its number, with what is live and reserved after it.
    pub(in crate::info) fn see(&mut self, at: u64, action: &Action, live_bytes: u64, reserved: Option<i128>) {
        match *action {
            Action::Allocated { address, size_bytes, .. } => {
                self.allocate(at, address.0, size_bytes);
                self.compare(at, live_bytes, reserved);
            }
            Action::Baseline { address, size_bytes, .. } => self.allocate(at, address.0, size_bytes),
            Action::Freed { address, size_bytes } => self.free(at, address.0, size_bytes),
            Action::RegionReleased { .. } => self.compare(at, live_bytes, reserved),
            Action::Lost { .. } => {
                self.lost = true;
                self.live.clear();
            }
            Action::OutOfMemory { free_bytes, largest_free_bytes, capacity_bytes, .. } => {
                self.hole(at, free_bytes, largest_free_bytes);
                // Who knows the largest free block counts what is free within what is reserved.
                let reserved = reserved.and_then(|bytes| u64::try_from(bytes).ok());
                let beside = if largest_free_bytes.is_some() { Some(live_bytes) } else { reserved };
                self.all_of(at, free_bytes, beside);
                self.capacity(at, capacity_bytes);
            }
            _ => {}
        }
    }

    fn allocate(&mut self, at: u64, address: u64, size_bytes: u64) {
        if self.lost || size_bytes == 0 {
            return;
        }
        let end = address.checked_add(size_bytes).unwrap_or_else(|| {
            let block = || format!("{}, the block at {address:#x} of {size_bytes} bytes", when(at));
            self.ends.add(|| format!("{} ends beyond the last address", block()));
            u64::MAX
        });
        let below = self.live.range(..end).next_back().filter(|&(_, &below_end)| below_end > address);
        if let Some((&other, &other_end)) = below {
            self.overlaps.add(|| {
                let (here, there) = (spelled(address, size_bytes), spelled(other, other_end - other));
                format!("{}, the live {here} overlaps the live {there}", when(at))
            });
        }
        self.live.insert(address, end);
    }

    fn free(&mut self, at: u64, address: u64, size_bytes: u64) {
        if self.lost {
            return;
        }
        match self.live.remove(&address) {
            None if size_bytes > 0 => self.unknown_frees.add(|| {
                format!("{}, the {} is freed, and was not live", when(at), spelled(address, size_bytes))
            }),
            Some(end) if end - address != size_bytes => self.other_sizes.add(|| {
                let live = spelled(address, end - address);
                format!("{}, the live {live} is freed as one of {size_bytes} bytes", when(at))
            }),
            _ => {}
        }
    }

    fn compare(&mut self, at: u64, live_bytes: u64, reserved: Option<i128>) {
        let Some(reserved) = reserved.filter(|_| !self.lost) else { return };
        if reserved < 0 {
            self.released
                .add(|| format!("{}, {} bytes more were released than reserved", when(at), -reserved));
        } else if i128::from(live_bytes) > reserved {
            self.unreserved
                .add(|| format!("{}, {live_bytes} bytes are live, and {reserved} are reserved", when(at)));
        }
    }

    fn hole(&mut self, at: u64, free_bytes: Option<u64>, largest_free_bytes: Option<u64>) {
        if let Some((free, largest)) =
            free_bytes.zip(largest_free_bytes).filter(|(free, largest)| largest > free)
        {
            self.holes.add(|| {
                format!("{}, the largest free block has {largest} bytes, and {free} are free", when(at))
            });
        }
    }

    /// What is free when a request fails, and what is in use beside it.
    fn all_of(&mut self, at: u64, free_bytes: Option<u64>, beside: Option<u64>) {
        let Some(free) = free_bytes else { return };
        let beside = beside.filter(|_| !self.lost).unwrap_or(0);
        let all = u128::from(free) + u128::from(beside);
        if self.in_all.as_ref().is_none_or(|&(most, _)| all > most) {
            self.in_all = Some((all, format!("{}, {free} bytes are free beside {beside} in use", when(at))));
        }
    }

    fn capacity(&mut self, at: u64, capacity_bytes: Option<u64>) {
        let Some(capacity) = capacity_bytes else { return };
        let first = *self.capacity_bytes.get_or_insert(capacity);
        if first != capacity {
            self.capacities
                .add(|| format!("{}, the device has {capacity} bytes, and had {first} before", when(at)));
        }
    }

    /// What is more than the device has.
    pub(super) fn above(&self, capacity: u64) -> Option<String> {
        let (all, text) = self.in_all.as_ref()?;
        (*all > u128::from(capacity)).then(|| format!("{text}, and the device has {capacity}"))
    }

    /// What cannot be, whatever the device has.
    pub(super) fn impossible(&self) -> impl Iterator<Item = String> {
        let all = [
            &self.overlaps,
            &self.ends,
            &self.unknown_frees,
            &self.other_sizes,
            &self.released,
            &self.unreserved,
            &self.holes,
            &self.capacities,
        ];
        all.into_iter().filter_map(Seen::text)
    }
}

fn when(at: u64) -> String {
    if at == 0 { "before recording began".to_owned() } else { format!("at event {at}") }
}

fn spelled(address: u64, size_bytes: u64) -> String {
    format!("block of {size_bytes} bytes at {address:#x}")
}
