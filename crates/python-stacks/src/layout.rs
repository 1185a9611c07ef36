//! Where each version of CPython keeps what is read: offsets in bytes, on 64-bit platforms.
//!
//! The structures do not change within a minor version. Those of 3.11 and 3.12 are written down here, from their
//! headers; 3.13 tells them itself, in `_PyRuntime.debug_offsets`, but for one field. Other versions, builds for
//! debugging and 32-bit platforms are not read: a field at another place would be read as garbage.

use crate::api::Api;

/// How to get from a thread state to its innermost frame.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Innermost {
    /// `state->current_frame`.
    Direct { state: usize },
    /// `state->cframe->current_frame`.
    ThroughCFrame { state: usize, cframe: usize },
}

/// The offsets of one version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) innermost: Innermost,
    // _PyInterpreterFrame
    pub(crate) frame_previous: usize,
    pub(crate) frame_code: usize,
    /// The instruction before the next, or the current one: what a line is looked up by.
    pub(crate) frame_instruction: usize,
    pub(crate) frame_owner: usize,
    // PyCodeObject
    pub(crate) code_first_line: usize,
    pub(crate) code_filename: usize,
    pub(crate) code_name: usize,
    pub(crate) code_line_table: usize,
    pub(crate) code_first_traceable: usize,
    pub(crate) code_instructions: usize,
    // PyBytesObject
    pub(crate) bytes_size: usize,
    pub(crate) bytes_data: usize,
    // PyASCIIObject, and the data of the two compact forms
    pub(crate) text_length: usize,
    pub(crate) text_hash: usize,
    pub(crate) text_state: usize,
    pub(crate) text_ascii_data: usize,
    pub(crate) text_compact_data: usize,
}

const V3_11: Layout = Layout {
    innermost: Innermost::ThroughCFrame { state: 56, cframe: 8 },
    frame_previous: 48,
    frame_code: 32,
    frame_instruction: 56,
    frame_owner: 69,
    code_first_line: 72,
    code_filename: 112,
    code_name: 120,
    code_line_table: 136,
    code_first_traceable: 168,
    code_instructions: 184,
    bytes_size: 16,
    bytes_data: 32,
    text_length: 16,
    text_hash: 24,
    text_state: 32,
    text_ascii_data: 48,
    text_compact_data: 72,
};

const V3_12: Layout = Layout {
    innermost: Innermost::ThroughCFrame { state: 56, cframe: 0 },
    frame_previous: 8,
    frame_code: 0,
    frame_instruction: 56,
    frame_owner: 70,
    code_first_line: 68,
    code_filename: 112,
    code_name: 120,
    code_line_table: 136,
    code_first_traceable: 176,
    code_instructions: 192,
    bytes_size: 16,
    bytes_data: 32,
    text_length: 16,
    text_hash: 24,
    text_state: 32,
    text_ascii_data: 40,
    text_compact_data: 56,
};

/// The layout of the running interpreter, if it is known.
///
/// # Safety
/// The calling thread is attached.
pub(crate) unsafe fn of_this_interpreter(api: &Api) -> Option<Layout> {
    // Only these builds have such functions. Their objects may have more fields.
    let is_debug_build = [c"gettotalrefcount", c"getobjects"].iter().any(|name| {
        // SAFETY: attached; returns a borrowed reference or null.
        unsafe { !(api.sys_object)(name.as_ptr()).is_null() }
    });
    if cfg!(not(target_pointer_width = "64")) || is_debug_build {
        return None;
    }
    match (api.version >> 16) & 0xffff {
        0x030b => Some(V3_11),
        0x030c => Some(V3_12),
        0x030d => debug_offsets(api),
        _ => None,
    }
}

/// `_Py_DebugOffsets` of 3.13, up to the last field that is used.
#[repr(C)]
struct DebugOffsets {
    cookie: [u8; 8],
    version: u64,
    free_threaded: u64,
    runtime_state: [u64; 3],
    interpreter_state: [u64; 13],
    // size, prev, next, interp, current_frame, thread_id, native_thread_id, datastack_chunk, status
    thread_state: [u64; 9],
    // size, previous, executable, instr_ptr, localsplus, owner
    interpreter_frame: [u64; 6],
    // size, filename, name, qualname, linetable, firstlineno, argcount, localsplusnames, localspluskinds, instructions
    code_object: [u64; 10],
    // size, ob_type
    object: [u64; 2],
    type_object: [u64; 4],
    tuple_object: [u64; 3],
    list_object: [u64; 3],
    dict_object: [u64; 3],
    float_object: [u64; 2],
    long_object: [u64; 3],
    // size, ob_size, ob_sval
    bytes_object: [u64; 3],
    // size, state, length, asciiobject_size
    unicode_object: [u64; 4],
}

/// How far `_co_firsttraceable`, which the offsets leave out, lies before the instructions: itself, its padding, and
/// `co_extra`.
const FIRST_TRACEABLE_BEFORE_INSTRUCTIONS: usize = 16;

/// How much larger `PyCompactUnicodeObject` is than `PyASCIIObject`.
const COMPACT_EXTRA: usize = 16;

fn debug_offsets(api: &Api) -> Option<Layout> {
    let runtime = api.runtime?.cast::<DebugOffsets>();
    // SAFETY: `_PyRuntime` begins with them in 3.13, as the version and the cookie are checked to say. They are written
    // before the process's first instruction.
    let offsets = unsafe { &*runtime };
    if offsets.cookie != *b"xdebugpy" || offsets.version != api.version {
        return None;
    }
    let at = |value: u64| usize::try_from(value).ok().filter(|offset| *offset < 1 << 16);
    let [_, filename, name, _, line_table, first_line, _, _, _, instructions] = offsets.code_object;
    let [_, state, length, ascii_size] = offsets.unicode_object;
    Some(Layout {
        innermost: Innermost::Direct { state: at(offsets.thread_state[4])? },
        frame_previous: at(offsets.interpreter_frame[1])?,
        frame_code: at(offsets.interpreter_frame[2])?,
        frame_instruction: at(offsets.interpreter_frame[3])?,
        frame_owner: at(offsets.interpreter_frame[5])?,
        code_first_line: at(first_line)?,
        code_filename: at(filename)?,
        code_name: at(name)?,
        code_line_table: at(line_table)?,
        code_first_traceable: at(instructions)?.checked_sub(FIRST_TRACEABLE_BEFORE_INSTRUCTIONS)?,
        code_instructions: at(instructions)?,
        bytes_size: at(offsets.bytes_object[1])?,
        bytes_data: at(offsets.bytes_object[2])?,
        text_length: at(length)?,
        text_hash: at(length)? + 8,
        text_state: at(state)?,
        text_ascii_data: at(ascii_size)?,
        text_compact_data: at(ascii_size)? + COMPACT_EXTRA,
    })
}
