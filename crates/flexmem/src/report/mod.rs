//! `flexmem report`: one page that shows a trace in a browser, without a network.
//!
//! - [`summary`]: the figures, as `--json` prints them and the page shows them. There is one struct for both.
//! - `sites`: who allocated, by stack.
//! - `ledger`: what is live and reserved at each moment of a device; the events are played on it.
//! - `survey`: the first pass over the trace. It counts, and decides what will be left out; `device_survey`: of one
//!   device.
//! - `recording`: the second pass. It makes the columns that the page draws from.
//! - `marks`: pressure, collections and failures; a bounded number of each.
//! - `columns`: how numbers become few bytes.
//! - `page`: puts the HTML together.
//!
//! Two passes, because what is worth showing is known at the end, and memory must not grow with the trace: it is
//! bounded by what is live at one moment, by the names and stacks of the trace, and by the limits in [`Limits`].
//!
//! Moments: 0 is before the first event of a device, *n* is after its *n*th. Baseline blocks are born at 0.

mod columns;
mod device_survey;
mod ledger;
mod marks;
mod page;
mod recording;
mod sites;
pub mod summary;
mod survey;

use flex_trace::ReadError;

use crate::TraceFile;
use summary::Summary;

/// What bounds the size of the page, and the memory that it takes to make it and to show it.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Devices; those with higher numbers are left out.
    pub devices: usize,
    /// Sites that the page knows by name, over all devices.
    pub sites: usize,
    /// Sites that the chart of a device tells apart.
    pub bands: usize,
    /// Moments in the charts of all devices.
    pub buckets: usize,
    /// Blocks in the region maps of all devices.
    pub blocks: usize,
    /// Regions in the maps of all devices.
    pub regions: usize,
    /// Events of each kind that the lists of all devices show.
    pub marks: usize,
    /// The page. Blocks are left out until it fits.
    pub page_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            devices: 64,
            sites: 2000,
            bands: 20,
            buckets: 1 << 16,
            blocks: 600_000,
            regions: 20_000,
            marks: 5000,
            page_bytes: 20 << 20,
        }
    }
}

/// A report: the figures and what the page draws.
#[derive(Debug)]
pub struct Report {
    /// The figures.
    pub summary: Summary,
    recording: Vec<recording::DeviceRecording>,
    limits: Limits,
}

impl Report {
    /// Reads a trace, twice. `file` is what the page calls it.
    ///
    /// # Errors
    ///
    /// The trace's.
    pub fn of(trace: &mut TraceFile, file: &str, limits: Limits) -> Result<Report, ReadError> {
        let survey = survey::Survey::of(trace, file, &limits)?;
        let mut recorder = recording::Recorder::new(survey, &limits);
        trace.each_record(|record| recorder.take(record))?;
        let (summary, recording) = recorder.finish();
        Ok(Report { summary, recording, limits })
    }

    /// The page, at most [`Limits::page_bytes`] long. Blocks are left out until it is, and the summary then says so.
    ///
    /// # Errors
    ///
    /// If even a page without blocks is longer.
    pub fn page(&mut self) -> anyhow::Result<String> {
        loop {
            let page = page::render(&self.summary, &self.recording)?;
            if page.len() <= self.limits.page_bytes {
                return Ok(page);
            }
            let devices = self.recording.iter_mut().zip(&mut self.summary.devices);
            let left: usize = devices.map(|(recording, device)| recording.leave_out_half(device)).sum();
            anyhow::ensure!(
                left > 0,
                "the page would have {} bytes without a single block; expected at most {}",
                page.len(),
                self.limits.page_bytes
            );
        }
    }
}
