//! Reads a trace, also while it is written.
//!
//! Invariant: at most one frame, and what was read ahead of it, is in memory: under 2 MiB, whatever the file says.

use std::io::{self, Read};

use crate::error::{Malformed, ReadError};
use crate::record::Record;
use crate::wire::{Decoder, Previous};
use crate::writer::{FRAME_HEADER_BYTES, checksum};
use crate::{Header, MAGIC, MAX_FRAME_BYTES, VERSION, Version, varint};

const READ_BYTES: usize = 64 << 10;
const FILE_HEADER_BYTES: usize = 12;

/// How far a reader has come, once it has nothing more to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// At the end of a trace that was finished.
    Finished,
    /// Between two frames of one that was not: it is still being written, or its writer was killed.
    Unfinished,
    /// In the middle of a frame: as `Unfinished`, or the file was cut off.
    InsideFrame {
        /// Bytes of the incomplete frame.
        bytes: usize,
    },
}

/// Reads a trace record by record.
#[derive(Debug)]
pub struct Reader<R: Read> {
    input: R,
    header: Header,
    /// Read and not yet given: `buffer[position..]`, of which `frame_end - position` bytes are of the checked frame.
    buffer: Vec<u8>,
    position: usize,
    frame_end: usize,
    /// Where in the file `buffer` begins.
    buffer_offset: u64,
    frame_offset: u64,
    previous: Previous,
    finished: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the beginning of a trace.
    ///
    /// # Errors
    ///
    /// [`ReadError::NotATrace`], [`ReadError::Version`], or the input's error.
    pub fn new(input: R) -> Result<Self, ReadError> {
        let mut reader = Reader {
            input,
            header: Header::default(),
            buffer: Vec::new(),
            position: 0,
            frame_end: 0,
            buffer_offset: 0,
            frame_offset: 0,
            previous: Previous::default(),
            finished: false,
        };
        reader.read_header()?;
        Ok(reader)
    }

    fn read_header(&mut self) -> Result<(), ReadError> {
        let enough = self.have(FILE_HEADER_BYTES)?;
        if !enough || self.buffer[..MAGIC.len()] != MAGIC {
            let found = self.buffer[..self.buffer.len().min(MAGIC.len())].to_vec();
            return Err(ReadError::NotATrace { found });
        }
        let number = |at: usize| u16::from_le_bytes([self.buffer[at], self.buffer[at + 1]]);
        let (major, minor) = (number(MAGIC.len()), number(MAGIC.len() + 2));
        if major != VERSION.major {
            return Err(ReadError::Version { major, minor });
        }
        self.header = Header { version: Version { major, minor } };
        self.position = FILE_HEADER_BYTES;
        self.frame_end = FILE_HEADER_BYTES;
        Ok(())
    }

    /// What the file begins with.
    pub fn header(&self) -> Header {
        self.header
    }

    /// The next record, or `None` if there is none yet: [`progress`](Self::progress) says why. May be called again
    /// when the file has grown.
    ///
    /// # Errors
    ///
    /// What is wrong with the file, and where. The reader cannot go on then.
    #[expect(clippy::should_implement_trait, reason = "a record borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        if self.position == self.frame_end && (self.finished || !self.next_frame()?) {
            return Ok(None);
        }
        let frame_offset = self.frame_offset;
        let mut frame = &self.buffer[self.position..self.frame_end];
        let record = take_record(&mut frame, &mut self.previous);
        let record = record.map_err(|fault| ReadError::Malformed { offset: frame_offset, fault })?;
        self.position = self.frame_end - frame.len();
        self.finished |= matches!(record, Record::End { .. });
        Ok(Some(record))
    }

    /// Where the reader stands after [`next`](Self::next) gave `None`.
    pub fn progress(&self) -> Progress {
        match self.buffer.len() - self.position {
            _ if self.finished => Progress::Finished,
            0 => Progress::Unfinished,
            bytes => Progress::InsideFrame { bytes },
        }
    }

    /// How many bytes of the file were given as records, or are next.
    pub fn position_bytes(&self) -> u64 {
        self.buffer_offset + self.position as u64
    }

    /// Goes to the next frame that has records; `false` if it is not all there.
    fn next_frame(&mut self) -> Result<bool, ReadError> {
        while self.check_frame()? {
            if self.position < self.frame_end {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads and checks the next frame; `false` if it is not all there.
    fn check_frame(&mut self) -> Result<bool, ReadError> {
        if !self.have(FRAME_HEADER_BYTES)? {
            return Ok(false);
        }
        let word =
            |at: usize| -> [u8; 4] { std::array::from_fn(|byte| self.buffer[self.position + at + byte]) };
        let (length, found) = (word(0), u32::from_le_bytes(word(4)));
        let claimed_bytes = u32::from_le_bytes(length);
        let offset = self.position_bytes();
        if claimed_bytes as usize > MAX_FRAME_BYTES {
            return Err(ReadError::FrameTooLong { offset, claimed_bytes });
        }
        if !self.have(FRAME_HEADER_BYTES + claimed_bytes as usize)? {
            return Ok(false);
        }
        let start = self.position + FRAME_HEADER_BYTES;
        let end = start + claimed_bytes as usize;
        let expected = checksum(length, &self.buffer[start..end]);
        if expected != found {
            return Err(ReadError::Checksum { offset, expected, found });
        }
        (self.position, self.frame_end, self.frame_offset) = (start, end, offset);
        self.previous = Previous::default();
        Ok(true)
    }

    /// Reads until this many bytes lie behind the position; `false` at the end of the input.
    fn have(&mut self, bytes: usize) -> io::Result<bool> {
        if self.buffer.len() - self.position >= bytes {
            return Ok(true);
        }
        self.buffer.drain(..self.position);
        self.buffer_offset += self.position as u64;
        (self.position, self.frame_end) = (0, 0);
        while self.buffer.len() < bytes {
            let old = self.buffer.len();
            self.buffer.resize(old + READ_BYTES, 0);
            let read = self.input.read(&mut self.buffer[old..]);
            self.buffer.truncate(old + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

fn take_record<'a>(frame: &mut &'a [u8], previous: &mut Previous) -> Result<Record<'a>, Malformed> {
    let kind = varint::take(frame)?;
    let length = usize::try_from(varint::take(frame)?).map_err(|_| Malformed::Short)?;
    let (body, rest) = frame.split_at_checked(length).ok_or(Malformed::Short)?;
    *frame = rest;
    Record::take(kind, &mut Decoder { bytes: body, previous })
}
