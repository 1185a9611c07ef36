//! The Python stack of the calling thread as a number, taken without attaching to the interpreter.
//!
//! PyTorch detaches threads around operators, so a thread that allocates usually holds no GIL, and it must not take it:
//! its callers may hold locks that the owner of the GIL wants. It reads its own frames instead. That is sound because
//! a thread's frames stand still while it is inside C code, and they keep their code objects alive, whose names and
//! line tables never change. Nothing is written, no reference is counted, nothing waits.
//!
//! | module | what it is |
//! |---|---|
//! | `api` | the few functions of CPython, resolved at run time |
//! | `layout` | where each version of CPython keeps what is read |
//! | `raw` | the calling thread's frames by that layout, and what tells code objects apart |
//! | `objects` | strings and line numbers out of CPython's objects |
//! | `public` | the same frames through CPython's own functions, for attached threads |
//! | `table` | from a stack's hash to its number, without a lock |
//! | `sites` | every distinct stack once: a tree of frames |
//! | `visitors` | who is reading, so that the end of the interpreter can wait for them |
//!
//! Locks: one, in `sites`, for stacks seen for the first time and for looking frames up. It is a leaf: nothing is
//! called and nothing waited for under it.

mod api;
mod layout;
mod objects;
mod public;
mod raw;
mod sites;
mod table;
mod visitors;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use api::Api;
use layout::Layout;
use sites::Sites;
use visitors::Visitors;

/// The most frames of a stack that are kept, counted from the innermost.
pub const MAX_DEPTH: usize = 64;

/// The most nodes of the tree of stacks. A stack that does not fit is site 0, and counted.
pub const MAX_SITES: u32 = 1 << 20;

/// How long [`Stacks::close`] waits for threads that are reading. That takes them microseconds; on a machine that is
/// overloaded, or under a quota, a thread may have to wait for its turn in the middle of it, for much less than this.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether what is read from memory can be believed.
mod trust {
    /// Nobody has compared it yet: nothing is captured.
    pub(super) const UNKNOWN: u8 = 0;
    /// It was compared, and agrees.
    pub(super) const GIVEN: u8 = 1;
    /// It was found to differ, or no layout is known: CPython's own functions are asked.
    pub(super) const REFUSED: u8 = 2;
}

/// One frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    /// `co_filename` of its code.
    pub filename: Arc<str>,
    /// `co_name` of its code.
    pub name: Arc<str>,
    /// The line it is at; 0 where the line table names none.
    pub line: u32,
}

/// How stacks are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// From memory, on attached and detached threads.
    Direct,
    /// Through CPython's functions, on attached threads only; a detached thread's stack is site 0.
    AttachedOnly,
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Mode::Direct => "direct",
            Mode::AttachedOnly => "attached_only",
        })
    }
}

/// What was counted since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Nodes of the tree of stacks: at most [`MAX_SITES`].
    pub sites: u32,
    /// Stacks that did not fit.
    pub dropped: u64,
}

/// The stacks of one process.
pub struct Stacks {
    api: Api,
    /// None of an interpreter whose layout is not known.
    layout: Option<Layout>,
    /// One of [`trust`]. Refused once, it stays so.
    trust: AtomicU8,
    is_attached: fn() -> bool,
    sites: Sites,
    visitors: Visitors,
    dropped: AtomicU64,
}

impl Stacks {
    /// Prepares reading. `is_attached` tells whether the calling thread is attached to the interpreter.
    ///
    /// Nothing is captured until [`verify`](Self::verify) was called, on stacks of all forms, and then
    /// [`trust`](Self::trust).
    ///
    /// # Errors
    /// A function that this interpreter lacks.
    ///
    /// # Safety
    /// The calling thread is attached to the main interpreter, which lives until [`close`](Self::close) returns.
    pub unsafe fn new(is_attached: fn() -> bool) -> Result<Self, String> {
        let api = Api::resolve()?;
        // SAFETY: the caller's contract.
        let layout = unsafe { layout::of_this_interpreter(&api) };
        Ok(Self::with_layout(api, layout, is_attached))
    }

    /// As [`new`](Self::new), but never reads from memory.
    ///
    /// # Errors
    /// A function that this interpreter lacks.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    pub unsafe fn attached_only(is_attached: fn() -> bool) -> Result<Self, String> {
        Ok(Self::with_layout(Api::resolve()?, None, is_attached))
    }

    fn with_layout(api: Api, layout: Option<Layout>, is_attached: fn() -> bool) -> Self {
        let trust = if layout.is_some() { trust::UNKNOWN } else { trust::REFUSED };
        Stacks {
            api,
            layout,
            trust: AtomicU8::new(trust),
            is_attached,
            sites: Sites::new(MAX_SITES),
            visitors: Visitors::default(),
            dropped: AtomicU64::new(0),
        }
    }

    /// The number of the calling thread's Python stack: equal for equal stacks, 0 for a thread that runs no Python
    /// code or cannot be read, and until there is trust. Neither waits nor attaches; may be called on any thread,
    /// attached or not.
    ///
    /// The second time a stack is seen costs a few nanoseconds a frame. The first time its names are copied.
    pub fn capture(&self) -> u32 {
        let Some(_visit) = self.visitors.enter() else { return 0 };
        let site = match (self.trust.load(Ordering::Acquire), &self.layout) {
            (trust::GIVEN, Some(layout)) => self.capture_directly(layout),
            (trust::REFUSED, _) if (self.is_attached)() => self.capture_attached(),
            _ => Some(0),
        };
        site.unwrap_or_else(|| {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            0
        })
    }

    /// The frames of a site, innermost first; none for site 0 and for a number that is no site.
    pub fn frames(&self, site: u32) -> Vec<Frame> {
        self.sites.frames(site)
    }

    /// How stacks are read; `None` as long as none are, since nobody has compared them.
    pub fn mode(&self) -> Option<Mode> {
        match self.trust.load(Ordering::Acquire) {
            trust::UNKNOWN => None,
            trust::GIVEN => Some(Mode::Direct),
            _ => Some(Mode::AttachedOnly),
        }
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        Counts { sites: self.sites.len(), dropped: self.dropped.load(Ordering::Relaxed) }
    }

    /// Compares the calling thread's stack as read from memory with what CPython's functions say; true also if nothing
    /// is read from memory. If they differ, nothing ever will be.
    ///
    /// # Safety
    /// The calling thread is attached.
    pub unsafe fn verify(&self) -> bool {
        let is_refused = self.trust.load(Ordering::Acquire) == trust::REFUSED;
        let Some(layout) = self.layout.as_ref().filter(|_| !is_refused) else { return true };
        // SAFETY: the caller's contract.
        let expected = unsafe { public::frames(&self.api, MAX_DEPTH) };
        let same = raw::frames(layout, self.api.own_state()) == expected;
        if !same {
            self.trust.store(trust::REFUSED, Ordering::Release);
        }
        same
    }

    /// Begins to capture, since stacks of all forms were compared: from memory, unless one was found to differ.
    pub fn trust(&self) {
        // Refused by another thread meanwhile, it stays so.
        let _ =
            self.trust.compare_exchange(trust::UNKNOWN, trust::GIVEN, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Ends capturing for ever, and waits for those who are at it: from here on CPython may free the state of other
    /// threads. To be called detached, at the exit of the interpreter and before it is finalized.
    ///
    /// False if a thread was still reading after ten seconds. That is one that somebody has stopped, as a debugger does
    /// with single threads; if it is let go again after its state was freed, it reads freed memory.
    pub fn close(&self) -> bool {
        self.visitors.close(CLOSE_TIMEOUT)
    }

    fn capture_directly(&self, layout: &Layout) -> Option<u32> {
        let state = self.api.own_state();
        let Some(hash) = raw::hash(layout, state) else { return Some(0) };
        self.sites.find(hash).or_else(|| {
            let frames = raw::collect(layout, state);
            self.sites.learn(hash, &frames, |frame| frame.symbolize(layout))
        })
    }

    fn capture_attached(&self) -> Option<u32> {
        // SAFETY: the caller has asked: the thread is attached.
        let frames = unsafe { public::frames(&self.api, MAX_DEPTH) };
        if frames.is_empty() {
            return Some(0);
        }
        let hash = public::hash(&frames);
        self.sites.find(hash).or_else(|| self.sites.learn(hash, &frames, Frame::clone))
    }
}
