//! What the events say of one device.

use std::cmp::Reverse;
use std::collections::HashMap;

use flex_trace::record::{History, PressureEnd};
use flex_trace::{Action, Event, StackId, Tables};
use foldhash::fast::RandomState;

use super::answers::{
    EventCounts, HistoryInfo, HistoryState, Holders, OutOfMemoryInfo, PeakInfo, PressureInfo,
};
use super::course::Samples;
use super::impossible::EventCheck;
use super::regions::RegionTally;
use super::sites::{Sites, lines, name};

/// A live block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Live {
    pub(super) size_bytes: u64,
    pub(super) stack: Option<StackId>,
    /// The event that allocated it; 0 for the baseline.
    pub(super) since: u64,
}

/// A moment of a device.
#[derive(Debug, Clone, Copy, Default)]
struct Moment {
    event: u64,
    time_ns: Option<u64>,
    live_bytes: u64,
    reserved_bytes: Option<u64>,
}

/// A request that failed.
#[derive(Debug, Clone, Copy)]
struct Failure {
    moment: Moment,
    requested_bytes: u64,
    free_bytes: Option<u64>,
    largest_free_bytes: Option<u64>,
    stack: Option<StackId>,
}

impl Failure {
    /// What was reserved and not live. Whoever knows the largest free block counts that as free already.
    fn cached_bytes(&self) -> Option<u64> {
        let reserved = self.moment.reserved_bytes.filter(|_| self.largest_free_bytes.is_none())?;
        Some(reserved.saturating_sub(self.moment.live_bytes))
    }

    /// What was missing, however the free memory lay.
    fn missing_bytes(&self) -> Option<u64> {
        let free = self.free_bytes?;
        let usable =
            if self.largest_free_bytes.is_some() { free } else { free.saturating_add(self.cached_bytes()?) };
        Some(self.requested_bytes.saturating_sub(usable))
    }
}

/// The largest of some requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Largest {
    pub(super) size_bytes: u64,
    pub(super) stack: Option<StackId>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct EventTally {
    pub(super) history: Option<History>,
    pub(super) counts: EventCounts,
    pub(super) pressure: PressureInfo,
    pub(super) live: HashMap<u64, Live, RandomState>,
    pub(super) samples: Samples,
    now: Moment,
    peak: Moment,
    reserved_peak_bytes: Option<u64>,
    baseline_blocks: u64,
    pub(super) baseline_bytes: u64,
    /// Reserved when recording began, as far as events need it: it may go below.
    reserved: Option<i128>,
    first_time_ns: Option<u64>,
    lost_events: u64,
    lost_unknown: bool,
    /// The first requests that failed, as many as are asked for.
    failures: Vec<Failure>,
    largest_failure: Option<Largest>,
    pub(super) check: EventCheck,
    /// What is live as the second look goes on, up to the peak.
    again: HashMap<u64, Live, RandomState>,
    again_events: u64,
}

impl EventTally {
    /// The first time through the events. Of the requests that failed the first `top` are kept.
    pub(super) fn first_look(&mut self, event: &Event, top: usize) {
        if let Action::Baseline { address, size_bytes, .. } = event.action {
            self.baseline_blocks += 1;
            self.baseline_bytes = self.baseline_bytes.saturating_add(size_bytes);
            self.live.insert(address.0, Live { size_bytes, stack: event.stack, since: 0 });
            self.now.live_bytes = self.now.live_bytes.saturating_add(size_bytes);
            self.peak = self.now;
            self.check.see(0, &event.action, self.now.live_bytes, None);
            return;
        }
        if matches!(event.action, Action::Annotation { .. }) {
            return;
        }
        self.begin(event);
        self.change(event, top);
        self.check.see(self.now.event, &event.action, self.now.live_bytes, self.reserved);
        self.now.reserved_bytes = self.reserved.and_then(|bytes| u64::try_from(bytes).ok());
        if self.now.reserved_bytes > self.reserved_peak_bytes {
            self.reserved_peak_bytes = self.now.reserved_bytes;
        }
        if self.now.live_bytes > self.peak.live_bytes {
            self.peak = self.now;
        }
        if self.counts.out_of_memory == 0 {
            self.samples.add(self.now.live_bytes, self.now.reserved_bytes);
        }
    }

    fn begin(&mut self, event: &Event) {
        if self.now.event == 0 {
            self.reserved = self.history.and_then(|history| history.reserved_before_bytes).map(i128::from);
        }
        self.now.event += 1;
        self.now.time_ns = event.time_ns.or(self.now.time_ns);
        self.first_time_ns = self.first_time_ns.or(event.time_ns);
    }

    fn change(&mut self, event: &Event, top: usize) {
        match event.action {
            Action::Allocated { address, size_bytes, .. } => {
                self.counts.allocations += 1;
                let live = Live { size_bytes, stack: event.stack, since: self.now.event };
                // Of a block that is there already the end was lost.
                let before = self.live.insert(address.0, live).map_or(0, |live| live.size_bytes);
                self.now.live_bytes = self.now.live_bytes.saturating_sub(before).saturating_add(size_bytes);
            }
            Action::Freed { address, .. } => {
                self.counts.frees += 1;
                let freed = self.live.remove(&address.0).map_or(0, |live| live.size_bytes);
                self.now.live_bytes = self.now.live_bytes.saturating_sub(freed);
            }
            Action::RegionAcquired { size_bytes, .. } => self.reserve(i128::from(size_bytes)),
            Action::RegionReleased { size_bytes, .. } => self.reserve(-i128::from(size_bytes)),
            Action::OutOfMemory { requested_bytes, free_bytes, largest_free_bytes, .. } => {
                self.counts.out_of_memory += 1;
                let (moment, stack) = (self.now, event.stack);
                if self.failures.len() < top {
                    self.failures.push(Failure {
                        moment,
                        requested_bytes,
                        free_bytes,
                        largest_free_bytes,
                        stack,
                    });
                }
                if self.largest_failure.is_none_or(|largest| largest.size_bytes <= requested_bytes) {
                    self.largest_failure = Some(Largest { size_bytes: requested_bytes, stack });
                }
            }
            Action::Lost { events: 0 } => self.lost_unknown = true,
            Action::Lost { events } => self.lost_events = self.lost_events.saturating_add(events),
            Action::Collected { reclaimed_bytes, .. } => {
                self.counts.collections += 1;
                self.pressure.reclaimed_bytes = self.pressure.reclaimed_bytes.saturating_add(reclaimed_bytes);
            }
            Action::PressureBegan { .. } => self.pressure.events += 1,
            // Requests that wait for one collection each name what it freed, so theirs are not added up.
            Action::PressureEnded { end, duration_ns, .. } => {
                self.pressure.rescued += u64::from(end == PressureEnd::Served);
                self.pressure.duration_ns = self.pressure.duration_ns.saturating_add(duration_ns);
            }
            _ => self.counts.others += 1,
        }
    }

    fn reserve(&mut self, bytes: i128) {
        self.counts.region_changes += 1;
        if let Some(reserved) = &mut self.reserved {
            *reserved += bytes;
        }
    }

    /// The second time: finds who held memory at the peak.
    pub(super) fn second_look(&mut self, event: &Event) {
        if let Action::Baseline { address, size_bytes, .. } = event.action {
            self.again.insert(address.0, Live { size_bytes, stack: event.stack, since: 0 });
        } else if self.again_events < self.peak.event {
            self.again_events += 1;
            match event.action {
                Action::Allocated { address, size_bytes, .. } => {
                    let live = Live { size_bytes, stack: event.stack, since: self.again_events };
                    self.again.insert(address.0, live);
                }
                Action::Freed { address, .. } => drop(self.again.remove(&address.0)),
                _ => {}
            }
        }
    }

    /// Who held, at the peak, what this event or a later one allocated. Known after the second look.
    pub(super) fn peak_holders_since(&self, event: u64, tables: &Tables, top: usize) -> Holders {
        sites(self.again.values().filter(|live| live.since >= event)).largest(tables, top)
    }

    pub(super) fn history_info(&self, regions: &RegionTally) -> HistoryInfo {
        let recorded = self.history.map_or(self.now.event > 0, |history| history.recorded);
        let reserved_before_bytes = self.history.and_then(|history| history.reserved_before_bytes);
        let contradictions = self.history.map_or(0, |history| history.contradictions);
        let baseline_freed = self.history.map_or(0, |history| history.baseline_freed);
        let began_empty =
            self.baseline_blocks == 0 && baseline_freed == 0 && reserved_before_bytes.unwrap_or(0) == 0;
        let is_whole = self.counts.allocations > 0
            && began_empty
            && contradictions == 0
            && self.lost_events == 0
            && !self.lost_unknown;
        HistoryInfo {
            state: match () {
                () if !recorded && regions.has_owners => HistoryState::OwnersOnly,
                () if !recorded => HistoryState::NeverOn,
                () if is_whole => HistoryState::Whole,
                () => HistoryState::Truncated,
            },
            baseline_blocks: self.baseline_blocks,
            baseline_bytes: self.baseline_bytes,
            baseline_freed,
            reserved_before_bytes,
            contradictions,
            lost_events: self.lost_events,
            lost_unknown: self.lost_unknown,
            duration_ns: self
                .now
                .time_ns
                .zip(self.first_time_ns)
                .map(|(last, first)| last.saturating_sub(first)),
        }
    }

    pub(super) fn peak_info(&self, tables: &Tables, top: usize) -> Option<PeakInfo> {
        if self.counts.allocations + self.baseline_blocks == 0 {
            return None;
        }
        let is_whole = self.history_info(&RegionTally::default()).state == HistoryState::Whole;
        Some(PeakInfo {
            live_bytes: self.peak.live_bytes,
            is_lower_bound: !is_whole,
            at_event: self.peak.event,
            time_ns: self.peak.time_ns,
            reserved_bytes: self.peak.reserved_bytes,
            reserved_peak_bytes: self.reserved_peak_bytes,
            holders: self.peak_holders_since(0, tables, top),
        })
    }

    pub(super) fn out_of_memory_info(&self, tables: &Tables) -> Vec<OutOfMemoryInfo> {
        let info = |failure: &Failure| {
            let moment = failure.moment;
            OutOfMemoryInfo {
                at_event: moment.event,
                time_ns: moment.time_ns,
                requested_bytes: failure.requested_bytes,
                device_free_bytes: failure.free_bytes,
                largest_free_bytes: failure.largest_free_bytes,
                live_bytes: moment.live_bytes,
                reserved_bytes: moment.reserved_bytes,
                cached_bytes: failure.cached_bytes(),
                missing_bytes: failure.missing_bytes(),
                site: name(failure.stack, tables),
                stack: lines(failure.stack, tables),
            }
        };
        self.failures.iter().map(info).collect()
    }

    /// Who holds what is live at the end.
    pub(super) fn holders(&self, tables: &Tables, top: usize) -> Holders {
        sites(self.live.values()).largest(tables, top)
    }

    /// The largest request that failed, and who made it.
    pub(super) fn largest_failure(&self) -> Option<Largest> {
        self.largest_failure
    }

    /// The largest block that was live at the peak and not before recording began. Known after the second look.
    pub(super) fn largest_at_peak(&self) -> Option<Largest> {
        let made = self.again.values().filter(|live| live.since > 0);
        let largest = made.max_by_key(|live| (live.size_bytes, Reverse(live.since)))?;
        Some(Largest { size_bytes: largest.size_bytes, stack: largest.stack })
    }

    /// The rise from the baseline to the peak.
    pub(super) fn rise_bytes(&self) -> u64 {
        self.peak.live_bytes.saturating_sub(self.baseline_bytes)
    }

    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak.live_bytes
    }
}

fn sites<'l>(live: impl Iterator<Item = &'l Live>) -> Sites {
    let mut sites = Sites::default();
    live.for_each(|live| sites.add(live.stack, live.size_bytes));
    sites
}
