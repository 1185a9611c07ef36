//! The calling thread's frames, read from memory, and what tells code objects apart.
//!
//! A stack is recognised by a hash of its frames. Code objects die and others take their place, also at the same
//! address, so a frame is hashed with what its code looks like: besides the addresses of code and instruction, the
//! first line, the hash of the name, length and beginning of the line table, length and end of the file name. Two
//! that agree in all of that, one after the other at one address, are taken for the same: the later one is then shown
//! with the file, name and line of the earlier. (And of a million different stacks two share a hash, of which 63 bits
//! are used, with a chance of 2^-24.)

use crate::api::ThreadState;
use crate::layout::{Innermost, Layout};
use crate::objects::{self, field};
use crate::sites::Keyed;
use crate::{Frame, MAX_DEPTH};

/// A frame that runs on a generator's behalf is complete from its start.
const OWNED_BY_GENERATOR: u8 = 1;
/// Stands for a call from C (3.12 and later); it has no code of its own.
const OWNED_BY_C_STACK: u8 = 3;

/// Frames that are passed over on the way to [`MAX_DEPTH`] others, at most: those that stand for calls from C.
const MAX_STEPS: usize = 4 * MAX_DEPTH;

/// A frame of the calling thread. Its code lives as long as the thread stays where it is.
#[derive(Clone, Copy)]
pub(crate) struct RawFrame {
    code: *const u8,
    instruction: *const u8,
    key: u64,
}

/// Visits the frames of a thread state, the calling thread's own, innermost first; at most [`MAX_DEPTH`].
///
/// Frames that CPython's own functions do not show, since they have not begun or stand for calls from C, are left out.
#[inline]
fn walk(layout: &Layout, state: ThreadState, mut visit: impl FnMut(*const u8, *const u8)) {
    if state.is_null() {
        return;
    }
    let state = state.cast_const().cast::<u8>();
    // SAFETY: the calling thread's own state, which nobody changes while it is here: its frames, linked innermost
    // first, and their code objects, which they own. `Stacks::close` comes before CPython frees the state.
    unsafe {
        let mut frame: *const u8 = match layout.innermost {
            Innermost::Direct { state: offset } => field(state, offset),
            Innermost::ThroughCFrame { state: offset, cframe } => field(field(state, offset), cframe),
        };
        let mut depth = 0;
        for _ in 0..MAX_STEPS {
            if frame.is_null() || depth == MAX_DEPTH {
                return;
            }
            let owner: u8 = field(frame, layout.frame_owner);
            if owner != OWNED_BY_C_STACK {
                let code: *const u8 = field(frame, layout.frame_code);
                let instruction: *const u8 = field(frame, layout.frame_instruction);
                let first: i32 = field(code, layout.code_first_traceable);
                let begun = code.wrapping_add(layout.code_instructions).wrapping_offset(2 * first as isize);
                if owner == OWNED_BY_GENERATOR || instruction >= begun {
                    visit(code, instruction);
                    depth += 1;
                }
            }
            frame = field(frame, layout.frame_previous);
        }
    }
}

/// The hash of the calling thread's stack, never 0; `None` if it runs no Python code.
#[inline]
pub(crate) fn hash(layout: &Layout, state: ThreadState) -> Option<u64> {
    let mut hash = 0;
    walk(layout, state, |code, instruction| hash = mix(hash, key(layout, code, instruction)) | 1);
    (hash != 0).then_some(hash)
}

/// The calling thread's stack, to be symbolized while it stays where it is.
pub(crate) fn collect(layout: &Layout, state: ThreadState) -> Vec<RawFrame> {
    let mut frames = Vec::with_capacity(MAX_DEPTH);
    walk(layout, state, |code, instruction| {
        frames.push(RawFrame { code, instruction, key: key(layout, code, instruction) });
    });
    frames
}

/// The calling thread's stack with its names.
pub(crate) fn frames(layout: &Layout, state: ThreadState) -> Vec<Frame> {
    collect(layout, state).iter().map(|frame| frame.symbolize(layout)).collect()
}

/// What tells a frame's place from others.
#[inline]
fn key(layout: &Layout, code: *const u8, instruction: *const u8) -> u64 {
    // SAFETY: `code` is a live code object, as `walk` says, and owns its strings and bytes. Samples lie within them.
    unsafe {
        let filename: *const u8 = field(code, layout.code_filename);
        let name: *const u8 = field(code, layout.code_name);
        let lines: *const u8 = field(code, layout.code_line_table);
        let first_line: u32 = field(code, layout.code_first_line);
        let lines_size: usize = field(lines, layout.bytes_size);
        let name_hash: u64 = field(name, layout.text_hash);
        // A name is hardly ever without its hash: the compiler interns it.
        let name_hash = if name_hash == u64::MAX { end_of_text(layout, name) } else { name_hash };
        let length: usize = field(filename, layout.text_length);
        let end = end_of_text(layout, filename);
        let beginning = sample(lines.add(layout.bytes_data), lines_size, 0);
        let place = mix(code.addr() as u64, instruction.addr() as u64);
        let shape = mix(beginning ^ u64::from(first_line).rotate_left(40), end ^ (lines_size as u64) << 32);
        mix(place ^ name_hash, shape ^ length as u64)
    }
}

/// The last bytes of a string's content.
///
/// # Safety
/// `object` is a live `str` of the interpreter that `layout` describes.
#[inline]
unsafe fn end_of_text(layout: &Layout, object: *const u8) -> u64 {
    // SAFETY: the caller's contract.
    unsafe {
        let (data, size) = objects::text_data(layout, object);
        sample(data, size, size.saturating_sub(8))
    }
}

/// Eight of the `size` bytes at `data`, those from `start` on; or all of fewer.
///
/// # Safety
/// The bytes are there, and `start` is 0 or leaves eight.
#[inline]
unsafe fn sample(data: *const u8, size: usize, start: usize) -> u64 {
    // SAFETY: the caller's contract; of fewer bytes than a word has, the two ends are read, which may overlap.
    unsafe {
        let half = |at: usize| u64::from(data.add(at).cast::<u32>().read_unaligned());
        let byte = |at: usize| u64::from(data.add(at).read());
        match size {
            8.. => data.add(start).cast::<u64>().read_unaligned(),
            4.. => half(0) << 32 | half(size - 4),
            1.. => byte(0) << 16 | byte(size / 2) << 8 | byte(size - 1),
            0 => 0,
        }
    }
}

/// Two words into one that depends on every bit of both: the two halves of a product, as in wyhash.
#[inline]
fn mix(one: u64, other: u64) -> u64 {
    let product = u128::from(one ^ 0xa076_1d64_78bd_642f) * u128::from(other ^ 0xe703_7ed1_a0b4_28db);
    (product >> 64) as u64 ^ product as u64
}

impl RawFrame {
    /// Names and line. The thread is still where it was when the frame was read.
    pub(crate) fn symbolize(&self, layout: &Layout) -> Frame {
        // SAFETY: as in `key`.
        unsafe {
            let text = |offset| objects::text(layout, field(self.code, offset)).into();
            let table = objects::bytes(layout, field(self.code, layout.code_line_table));
            let first_line = field(self.code, layout.code_first_line);
            let begin = self.code.addr() + layout.code_instructions;
            let offset = (self.instruction.addr() as isize - begin as isize).div_euclid(2);
            Frame {
                filename: text(layout.code_filename),
                name: text(layout.code_name),
                line: objects::line(table, first_line, offset),
            }
        }
    }
}

impl Keyed for RawFrame {
    fn key(&self) -> u64 {
        self.key
    }
}
