//! The bytes of a file, one after the other, with their position for errors.
//!
//! Invariant: memory grows with the bytes that are there, never with a length that the file claims.

use std::io::{self, Read};

use super::pickle::{Fault, PickleError};

const BUFFER_BYTES: usize = 256 << 10;

/// A buffered reader that knows where it is.
pub(super) struct Bytes<R> {
    input: R,
    buffer: Vec<u8>,
    position: usize,
    /// Where in the file the buffer begins.
    offset: u64,
}

impl<R: Read> Bytes<R> {
    pub(super) fn new(input: R) -> Self {
        Bytes { input, buffer: Vec::new(), position: 0, offset: 0 }
    }

    /// How many bytes were taken.
    pub(super) fn taken(&self) -> u64 {
        self.offset + self.position as u64
    }

    /// An error at this place.
    pub(super) fn fault(&self, fault: Fault) -> PickleError {
        PickleError::At { offset: self.taken(), fault }
    }

    /// The next byte.
    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, PickleError> {
        if self.position == self.buffer.len() {
            self.fill(1)?;
        }
        let byte = self.buffer[self.position];
        self.position += 1;
        Ok(byte)
    }

    /// The next `N` bytes.
    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        if self.buffer.len() - self.position < N {
            self.fill(N)?;
        }
        let bytes = std::array::from_fn(|index| self.buffer[self.position + index]);
        self.position += N;
        Ok(bytes)
    }

    /// The next bytes, as many as the file claims.
    pub(super) fn slice(&mut self, length: u64) -> Result<&[u8], PickleError> {
        let length = usize::try_from(length).map_err(|_| self.fault(Fault::Truncated))?;
        if self.buffer.len() - self.position < length {
            self.fill(length)?;
        }
        let start = self.position;
        self.position += length;
        Ok(&self.buffer[start..self.position])
    }

    /// Passes over bytes, without keeping them.
    pub(super) fn skip(&mut self, mut length: u64) -> Result<(), PickleError> {
        while length > 0 {
            let step = length.min(BUFFER_BYTES as u64);
            self.slice(step)?;
            length -= step;
        }
        Ok(())
    }

    /// The bytes up to the end of a line, without it.
    pub(super) fn line(&mut self) -> Result<&[u8], PickleError> {
        let mut searched = 0;
        loop {
            let unread = &self.buffer[self.position..];
            if let Some(length) = unread[searched..].iter().position(|&byte| byte == b'\n') {
                let start = self.position;
                self.position += searched + length + 1;
                return Ok(&self.buffer[start..self.position - 1]);
            }
            searched = unread.len();
            self.fill(searched + 1)?;
        }
    }

    /// Reads on until this many bytes lie ahead.
    #[cold]
    fn fill(&mut self, length: usize) -> Result<(), PickleError> {
        self.buffer.drain(..self.position);
        self.offset += self.position as u64;
        self.position = 0;
        while self.buffer.len() < length {
            let old = self.buffer.len();
            self.buffer.resize(old + BUFFER_BYTES, 0);
            let read = self.input.read(&mut self.buffer[old..]);
            self.buffer.truncate(old + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => {
                    let offset = self.offset + self.buffer.len() as u64;
                    return Err(PickleError::At { offset, fault: Fault::Truncated });
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
