//! The page that PyTorch's viewer saves (`torch.cuda._memory_viz`): HTML with the pickle of the snapshot in it, in
//! base64, as a text of JSON.

use std::io::{self, BufRead, Read};

use base64::engine::general_purpose::STANDARD;
use base64::read::DecoderReader;

use super::ImportError;

/// What stands before the pickle.
const BEFORE: &[u8] = b"\"base64\"";

/// The pickle within a page.
pub(super) fn pickle<R: BufRead>(mut input: R) -> Result<impl Read, ImportError> {
    let nothing =
        ImportError::Unknown("this page of HTML has no snapshot in it, as the viewer's saved pages have");
    if !skip_past(&mut input, BEFORE)? || !skip_past(&mut input, b"\"")? {
        return Err(nothing);
    }
    Ok(Decoded(DecoderReader::new(UpToQuote { input, ended: false }, &STANDARD)))
}

/// Says of what is no base64 where it stands.
struct Decoded<R>(R);

impl<R: Read> Read for Decoded<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let named = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidData => {
                io::Error::new(error.kind(), format!("the snapshot in this page is no base64: {error}"))
            }
            _ => error,
        };
        self.0.read(out).map_err(named)
    }
}

/// Reads up to the end of `what`; whether it was there.
fn skip_past<R: BufRead>(input: &mut R, what: &[u8]) -> io::Result<bool> {
    let mut matched = 0;
    loop {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Ok(false);
        }
        for (index, &byte) in buffer.iter().enumerate() {
            // The first byte of `what` is not in the rest of it but at its end, so a fresh start is enough.
            matched = if byte == what[matched] { matched + 1 } else { usize::from(byte == what[0]) };
            if matched == what.len() {
                input.consume(index + 1);
                return Ok(true);
            }
        }
        let length = buffer.len();
        input.consume(length);
    }
}

/// Ends before the next quotation mark.
struct UpToQuote<R> {
    input: R,
    ended: bool,
}

impl<R: BufRead> Read for UpToQuote<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.ended {
            return Ok(0);
        }
        let buffer = self.input.fill_buf()?;
        let wanted = &buffer[..buffer.len().min(out.len())];
        let length = wanted.iter().position(|&byte| byte == b'"').unwrap_or(wanted.len());
        self.ended = length < wanted.len();
        out[..length].copy_from_slice(&wanted[..length]);
        self.input.consume(length);
        Ok(length)
    }
}
