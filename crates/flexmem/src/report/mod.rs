//! `flexmem report`: one page that shows a trace in a browser, without a network.
//!
//! - [`summary`]: the figures, as `--json` prints them and the page shows them. There is one struct for both.
//! - `sites`: who allocated, by stack.
//! - `ledger`: what is live and reserved at each moment of a device; the events are played on it.
//! - `survey`: the first pass over the trace. It counts, and decides what will be left out.
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
mod ledger;
mod marks;
mod page;
mod recording;
mod sites;
pub mod summary;
mod survey;

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use flex_trace::{MAGIC, Progress, Reader, Record};

use summary::Summary;

/// The arguments of `flexmem report`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// A trace, as `flexmem import` or a running process writes it
    pub input: PathBuf,
    /// Where the page is written
    #[arg(short, long, value_name = "PAGE", required_unless_present = "json")]
    pub output: Option<PathBuf>,
    /// Print the figures that the page shows as JSON
    #[arg(long)]
    pub json: bool,
    /// How many sites the chart tells apart on each device; the others are one band
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub bands: u16,
}

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
    /// Reads a trace, twice.
    ///
    /// # Errors
    ///
    /// What is wrong with the file.
    pub fn of_trace(path: &Path, limits: Limits) -> anyhow::Result<Report> {
        let trace = TraceFile::open(path)?;
        let survey = survey::Survey::of(&trace, &limits)?;
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

/// Runs `flexmem report`.
///
/// # Errors
///
/// What is wrong with the file, or why the page could not be written.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let limits = Limits { bands: usize::from(arguments.bands), ..Limits::default() };
    let mut report = Report::of_trace(&arguments.input, limits)?;
    // The page first: fitting it may leave something out, and the figures say what.
    let page = report.page()?;
    if let Some(output) = &arguments.output {
        write_whole(output, page.as_bytes()).with_context(|| format!("cannot write {}", output.display()))?;
    }
    if arguments.json {
        let mut out = std::io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, &report.summary)?;
        writeln!(out)?;
    }
    Ok(())
}

/// Writes a file that is whole or not there.
fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".flexmem-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    if let Ok(old) = path.metadata() {
        // Devices and pipes are written to, not replaced.
        if !old.is_file() {
            return Ok(std::fs::write(path, bytes)?);
        }
    }
    let mode = std::fs::Permissions::from_mode(0o644);
    file.as_file().set_permissions(mode)?;
    file.persist(path)?;
    Ok(())
}

/// A trace that is read more than once, to where it ended when it was opened: it may be growing.
#[derive(Debug)]
pub(crate) struct TraceFile {
    path: PathBuf,
    bytes: u64,
}

impl TraceFile {
    fn open(path: &Path) -> anyhow::Result<TraceFile> {
        let context = || format!("cannot read {}", path.display());
        let file = File::open(path).with_context(context)?;
        let metadata = file.metadata().with_context(context)?;
        anyhow::ensure!(metadata.is_file(), "{} is not a file that can be read twice", path.display());
        let mut start = Vec::new();
        file.take(MAGIC.len() as u64).read_to_end(&mut start).with_context(context)?;
        anyhow::ensure!(
            start == MAGIC,
            "{} is not a trace: expected the bytes {MAGIC:02x?} at the beginning, found {start:02x?}; \
             `flexmem import` makes a trace of the files of other tools",
            path.display()
        );
        Ok(TraceFile { path: path.to_owned(), bytes: metadata.len() })
    }

    /// The name without its folder.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads the trace from its beginning; whether it was finished.
    pub(crate) fn each_record(&self, mut take: impl FnMut(&Record<'_>)) -> anyhow::Result<bool> {
        let context = || self.path.display().to_string();
        let file = File::open(&self.path).with_context(context)?.take(self.bytes);
        let mut reader = Reader::new(BufReader::new(file)).with_context(context)?;
        while let Some(record) = reader.next().with_context(context)? {
            take(&record);
        }
        Ok(reader.progress() == Progress::Finished)
    }
}
