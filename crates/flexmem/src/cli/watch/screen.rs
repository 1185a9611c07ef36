//! A watched process as a picture that a terminal shows again and again.
//!
//! Each picture is written over the one before, line by line, so that nothing flickers and what was on the terminal
//! before stays in its history.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use console::{Term, truncate_str};

use super::super::text::{Lines, count, duration, number, percent, size};
use super::age;
use super::lines::{happenings, lost};
use crate::watch::answers::{DeviceMoment, Moment};

/// Intervals that a sparkline shows at most.
const SAMPLES: usize = 60;

/// So many of the latest events are shown.
const HAPPENINGS: usize = 4;

/// From nothing to everything.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A terminal with a picture.
#[derive(Debug)]
pub(super) struct Screen {
    terminal: Term,
    interval: Duration,
    /// Lines of the picture that is there.
    lines: usize,
    courses: HashMap<u32, Course>,
}

/// How a device got to where it is.
#[derive(Debug, Default)]
struct Course {
    /// The most that was live in each interval, the latest last.
    live_bytes: VecDeque<u64>,
    happened: VecDeque<String>,
}

impl Course {
    fn take_in(&mut self, device: &DeviceMoment) {
        push(&mut self.live_bytes, device.recent_peak_bytes, SAMPLES);
        for happened in happenings(device) {
            push(&mut self.happened, happened, HAPPENINGS);
        }
    }
}

fn push<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(item);
}

impl Screen {
    pub(super) fn new(interval: Duration) -> Screen {
        Screen { terminal: Term::buffered_stdout(), interval, lines: 0, courses: HashMap::new() }
    }

    /// Shows a moment in place of the one before.
    pub(super) fn show(&mut self, moment: &Moment) -> io::Result<()> {
        for device in &moment.devices {
            self.courses.entry(device.device).or_default().take_in(device);
        }
        let text = picture(moment, |device| self.courses.get(&device), self.interval);
        let (height, width) = self.terminal.size();
        self.terminal.move_cursor_up(self.lines)?;
        self.lines = 0;
        // A picture that is higher than the terminal could not be written over.
        for line in text.lines().take(usize::from(height).saturating_sub(1)) {
            self.terminal.clear_line()?;
            self.terminal.write_line(&truncate_str(line, usize::from(width), "…"))?;
            self.lines += 1;
        }
        self.terminal.clear_to_end_of_screen()?;
        self.terminal.flush()
    }
}

/// A moment without a past.
pub(super) fn page(moment: &Moment) -> String {
    picture(moment, |_| None, Duration::ZERO)
}

fn picture<'a>(moment: &Moment, course: impl Fn(u32) -> Option<&'a Course>, interval: Duration) -> String {
    let mut lines = Lines::default();
    let state = if moment.ended { "ended" } else { "running" };
    let age = age(moment).map(|age| format!(", {age}")).unwrap_or_default();
    lines.plain(format_args!("process {}, {state}{age}: {}", moment.process, moment.producer));
    for device in &moment.devices {
        lines.plain("");
        describe(device, course(device.device), interval, &mut lines);
    }
    if moment.synchronizations > 0 {
        let times = count(moment.synchronizations, "time");
        lines.plain("");
        lines.plain(format_args!(
            "began anew {times}, since events were lost: raise history:N if that goes on"
        ));
    }
    lines.into_text()
}

fn describe(device: &DeviceMoment, course: Option<&Course>, interval: Duration, lines: &mut Lines) {
    let name = device.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    let capacity = device.capacity_bytes.map(|bytes| format!(", {}", size(bytes))).unwrap_or_default();
    lines.plain(format_args!("device {}{name}{capacity}", device.device));
    if !device.recorded {
        lines.add("history", "not recorded when the watch began: figures begin there");
    }
    let share = device.capacity_bytes.map(|bytes| format!(", {}", percent(device.live_bytes, bytes)));
    let (live, blocks) = (size(device.live_bytes), count(device.live_blocks, "block"));
    lines.add("live", format_args!("{live} in {blocks}{}", share.unwrap_or_default()));
    if let Some(course) = course {
        let top_bytes = device.capacity_bytes.unwrap_or(device.peak_bytes);
        let (bars, step) = (sparkline(&course.live_bytes, top_bytes), duration_of(interval));
        lines.add("", format_args!("{bars}  {step} each, up to {}", size(top_bytes)));
    }
    lines.add("peak", format_args!("{} since the watch began", size(device.peak_bytes)));
    lines.add("reserved", size(device.reserved_bytes));
    let (allocations, frees) = (count(device.allocations, "allocation"), count(device.frees, "free"));
    lines.add("events", format_args!("{allocations}, {frees}"));
    pressure(device, lines);
    for (index, happened) in course.iter().flat_map(|course| &course.happened).enumerate() {
        lines.add(if index == 0 { "latest" } else { "" }, happened);
    }
    if device.lost_events > 0 || device.lost_unknown {
        lines.add("lost", lost(device.lost_events, device.lost_unknown));
    }
    lines.holders("held by", &device.holders);
}

fn pressure(device: &DeviceMoment, lines: &mut Lines) {
    let pressure = device.pressure;
    if pressure.events > 0 {
        let (events, rescued) = (count(pressure.events, "request"), number(pressure.rescued));
        let (young, full) = (number(pressure.young_collections), number(pressure.full_collections));
        let (reclaimed, took) = (size(pressure.reclaimed_bytes), duration(pressure.duration_ns));
        lines.add("pressure", format_args!("{events}, {rescued} rescued: {reclaimed} reclaimed in {took}"));
        lines.add("", format_args!("collections: {young} young, {full} full"));
    }
    if device.out_of_memory > 0 {
        lines.add("out of memory", count(device.out_of_memory, "time"));
    }
}

fn duration_of(interval: Duration) -> String {
    duration(u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX))
}

/// A bar for each value, from 0 to `top`.
fn sparkline(values: &VecDeque<u64>, top: u64) -> String {
    let highest = u128::from(top.max(1));
    let bar = |&value: &u64| {
        let level = u128::from(value) * (BARS.len() as u128 - 1) / highest;
        BARS[usize::try_from(level).unwrap_or(usize::MAX).min(BARS.len() - 1)]
    };
    values.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_goes_from_nothing_to_everything() {
        assert_eq!(sparkline(&[0, 50, 100, 999].into(), 100), "▁▄██");
        assert_eq!(sparkline(&[0, u64::MAX].into(), u64::MAX), "▁█");
        assert_eq!(sparkline(&[0].into(), 0), "▁");
    }

    #[test]
    fn a_course_forgets_its_beginning() {
        let mut queue = VecDeque::new();
        (0..5).for_each(|item| push(&mut queue, item, 3));
        assert_eq!(queue, [2, 3, 4]);
    }
}
