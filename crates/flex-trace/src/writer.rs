//! Appends records to a trace.

use std::io::{self, Read, Write};

use crate::error::WriteError;
use crate::record::Record;
use crate::wire::{Encoder, Previous};
use crate::{Header, MAGIC, MAX_FRAME_BYTES, varint};

/// Bytes of a frame before its payload: the payload's length and the checksum.
pub(crate) const FRAME_HEADER_BYTES: usize = 8;

/// A frame that is longer than this is written.
const FULL_BYTES: usize = 64 << 10;

/// Writes a trace. Records are gathered into frames; [`flush`](Self::flush) writes one that is not full, so that
/// readers see it. A writer that is dropped without [`finish`](Self::finish) loses the records of the last frame, and
/// the trace has no end.
///
/// Once it has written a few frames it allocates nothing. It does not remember which ids it was given.
#[derive(Debug)]
pub struct Writer<W: Write> {
    output: W,
    /// The frame that grows: its header, still empty, and its payload.
    frame: Vec<u8>,
    previous: Previous,
    records: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    ///
    /// # Errors
    ///
    /// If the output fails.
    pub fn new(mut output: W, header: Header) -> Result<Self, WriteError> {
        output.write_all(&MAGIC)?;
        output.write_all(&header.version.major.to_le_bytes())?;
        output.write_all(&header.version.minor.to_le_bytes())?;
        Ok(Writer::frames_only(output))
    }

    /// Writes frames without the beginning of a trace, for [`append_frames`](Self::append_frames) or for joining a
    /// trace that exists.
    pub fn frames_only(output: W) -> Self {
        let frame = vec![0; FRAME_HEADER_BYTES];
        Writer { output, frame, previous: Previous::default(), records: 0 }
    }

    /// Appends a record. It may reach the output later.
    ///
    /// # Errors
    ///
    /// [`WriteError::RecordTooLong`], which changes nothing, or the output's error.
    #[inline]
    pub fn write(&mut self, record: &Record<'_>) -> Result<(), WriteError> {
        let (start, previous) = (self.frame.len(), self.previous);
        varint::put(&mut self.frame, record.kind());
        let body = self.frame.len() + 1;
        self.frame.push(0);
        record.put(&mut Encoder { out: &mut self.frame, previous: &mut self.previous });
        self.set_length(body);
        let record_bytes = self.frame.len() - start;
        if self.frame.len() > FRAME_HEADER_BYTES + FULL_BYTES {
            self.split(start, record_bytes, previous, record)?;
        }
        self.records += 1;
        Ok(())
    }

    /// Writes the length of the record whose body begins at `body`, where one byte was left for it.
    #[inline]
    fn set_length(&mut self, body: usize) {
        let length = self.frame.len() - body;
        if length < 0x80 {
            self.frame[body - 1] = length as u8;
            return;
        }
        let mut number = Vec::with_capacity(4);
        varint::put(&mut number, length as u64);
        self.frame.splice(body - 1..body, number);
    }

    /// Ends the frame before the record that made it too long, and writes that again: its differences change.
    #[cold]
    fn split(
        &mut self,
        start: usize,
        record_bytes: usize,
        previous: Previous,
        record: &Record<'_>,
    ) -> Result<(), WriteError> {
        if start == FRAME_HEADER_BYTES && record_bytes <= MAX_FRAME_BYTES {
            return Ok(self.flush_frame()?);
        }
        self.frame.truncate(start);
        self.previous = previous;
        // A difference is at most ten bytes, so a record that begins a frame is little longer than it was.
        if record_bytes > MAX_FRAME_BYTES - 64 {
            return Err(WriteError::RecordTooLong { record_bytes });
        }
        self.flush_frame()?;
        self.write(record)?;
        self.records -= 1;
        Ok(())
    }

    fn flush_frame(&mut self) -> io::Result<()> {
        if self.frame.len() > FRAME_HEADER_BYTES {
            let length = ((self.frame.len() - FRAME_HEADER_BYTES) as u32).to_le_bytes();
            let checksum = checksum(length, &self.frame[FRAME_HEADER_BYTES..]);
            self.frame[..4].copy_from_slice(&length);
            self.frame[4..FRAME_HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
            let written = self.output.write_all(&self.frame);
            self.frame.truncate(FRAME_HEADER_BYTES);
            self.previous = Previous::default();
            written?;
        }
        Ok(())
    }

    /// Writes what was appended, so that a reader sees it.
    ///
    /// # Errors
    ///
    /// The output's error.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.flush_frame()?;
        Ok(self.output.flush()?)
    }

    /// Appends frames that another writer made with [`frames_only`](Self::frames_only); `records` is how many records
    /// are in them. They are copied unread.
    ///
    /// # Errors
    ///
    /// The output's error, or the source's.
    pub fn append_frames(&mut self, mut frames: impl Read, records: u64) -> Result<(), WriteError> {
        self.flush_frame()?;
        io::copy(&mut frames, &mut self.output)?;
        self.records += records;
        Ok(())
    }

    /// What it writes to. Bytes that are written there by others break the trace.
    pub fn output_mut(&mut self) -> &mut W {
        &mut self.output
    }

    /// How many records were appended.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Ends the trace, and gives back the output.
    ///
    /// # Errors
    ///
    /// The output's error.
    pub fn finish(mut self) -> Result<W, WriteError> {
        self.write(&Record::End { records: self.records })?;
        self.into_output()
    }

    /// Gives back the output without an end of the trace; the last frame is written.
    ///
    /// # Errors
    ///
    /// The output's error.
    pub fn into_output(mut self) -> Result<W, WriteError> {
        self.flush()?;
        Ok(self.output)
    }
}

/// The checksum of a frame: CRC-32 (as in zip and PNG) of its length and its payload.
pub(crate) fn checksum(length: [u8; 4], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length);
    hasher.update(payload);
    hasher.finalize()
}
