//! A memory file as a trace that can be read again and again, whatever kind of file it was.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flex_stream::is_being_written;
use flex_trace::{Header, ReadError, Reader, Record, Tables, Writer};
use tempfile::SpooledTempFile;

use crate::import::{ImportError, Imported, Kind, Sharing, import_growing};

/// Traces up to this size stay in memory.
const IN_MEMORY_BYTES: usize = 64 << 20;

/// A trace, in memory or in a temporary file.
#[derive(Debug)]
pub struct TraceFile {
    trace: SpooledTempFile,
    imported: Imported,
}

impl TraceFile {
    /// Imports what can be read once.
    ///
    /// # Errors
    ///
    /// [`ImportError`].
    pub fn import(input: impl Read, name: &str) -> Result<TraceFile, ImportError> {
        TraceFile::import_as(input, name, Sharing::Refused)
    }

    /// Imports a file that can be opened again, which a pickle needs in which something stands in several places.
    /// `is_written` says whether it is still being written.
    ///
    /// # Errors
    ///
    /// [`ImportError`].
    pub fn import_again<R: Read>(
        mut open: impl FnMut() -> io::Result<R>,
        name: &str,
        is_written: impl Fn() -> bool,
    ) -> Result<TraceFile, ImportError> {
        match TraceFile::import_growing(open()?, name, Sharing::Refused, is_written) {
            Err(error) if error.is_of_sharing() => TraceFile::import_as(open()?, name, Sharing::Kept),
            result => result,
        }
    }

    /// Imports, with or without what is shared.
    ///
    /// # Errors
    ///
    /// [`ImportError`].
    pub fn import_as(input: impl Read, name: &str, sharing: Sharing) -> Result<TraceFile, ImportError> {
        TraceFile::import_growing(input, name, sharing, || false)
    }

    fn import_growing(
        input: impl Read,
        name: &str,
        sharing: Sharing,
        is_written: impl Fn() -> bool,
    ) -> Result<TraceFile, ImportError> {
        let mut writer = Writer::new(SpooledTempFile::new(IN_MEMORY_BYTES), Header::default())?;
        let imported = import_growing(input, name, &mut writer, sharing, is_written)?;
        Ok(TraceFile { trace: writer.finish()?, imported })
    }

    /// Imports the file at a path.
    ///
    /// # Errors
    ///
    /// [`ImportError`].
    pub fn open(path: &Path) -> Result<TraceFile, ImportError> {
        let file = File::open(path)?;
        if file.metadata()?.is_file() {
            let open = || File::open(path);
            TraceFile::import_again(open, &file_name(path), || is_being_written(&file))
        } else {
            TraceFile::import(file, &file_name(path))
        }
    }

    /// What the file was.
    pub fn kind(&self) -> Kind {
        self.imported.kind
    }

    /// Whether it was still being written, and so ends where that was when it was read.
    pub fn is_growing(&self) -> bool {
        self.imported.is_growing
    }

    /// How many records it had of kinds that are not known here: a newer program wrote it.
    pub fn unknown_records(&self) -> u64 {
        self.imported.unknown_records
    }

    /// Goes through all records in order, with the names and stacks that were given until then.
    ///
    /// # Errors
    ///
    /// The temporary file's.
    pub fn each(&mut self, mut visit: impl FnMut(&Record<'_>, &Tables)) -> Result<(), ReadError> {
        let mut tables = Tables::new();
        self.each_record(|record| {
            if !tables.keep(record) {
                visit(record, &tables);
            }
        })
    }

    /// Goes through all records in order, those that define names and stacks too.
    ///
    /// # Errors
    ///
    /// The temporary file's.
    pub fn each_record(&mut self, mut visit: impl FnMut(&Record<'_>)) -> Result<(), ReadError> {
        self.trace.seek(SeekFrom::Start(0))?;
        let mut reader = Reader::new(BufReader::new(&mut self.trace))?;
        while let Some(record) = reader.next()? {
            visit(&record);
        }
        Ok(())
    }

    /// Writes the trace to a file.
    ///
    /// # Errors
    ///
    /// The file's.
    pub fn copy_to(&mut self, mut output: impl io::Write) -> io::Result<u64> {
        self.trace.seek(SeekFrom::Start(0))?;
        io::copy(&mut self.trace, &mut output)
    }
}

/// What a trace says that it comes from: the file without its folder.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
