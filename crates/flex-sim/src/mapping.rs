//! Memory of one region: reserved address space, committed on touch. All unsafe code of the crate is here.
//!
//! # The operating system's primitives
//!
//! | call | for |
//! |---|---|
//! | `mmap(PRIVATE, ANONYMOUS, NORESERVE)` | reserve a region |
//! | `munmap` | give it back, when the mapping is dropped |
//! | `madvise(DONTNEED)` | drop the pages of a span |
//! | `mincore` | count committed pages |
//!
//! # Invariant
//!
//! `base` starts a mapping of `mapped_bytes` readable and writable bytes that this value alone owns; it is unmapped
//! only by its drop. Accesses through `&self` only read and those through `&mut self` may write, so the lock
//! around a mapping orders all accesses made here. Who uses [`Mapping::base_address`] orders its own.

use std::ptr::NonNull;

use flex::DeviceError;

/// Pages whose state is asked for in one call.
const MINCORE_PAGES: usize = 1 << 16;

/// An anonymous mapping.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    size_bytes: usize,
    mapped_bytes: usize,
}

// SAFETY: the mapping is plain memory, owned by this value and bound to no thread.
unsafe impl Send for Mapping {}
// SAFETY: methods that take `&self` only read the memory, see the module's invariant.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves address space for `size_bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Os`] with the size and the system's error number.
    pub(crate) fn reserve(size_bytes: u64) -> Result<Mapping, DeviceError> {
        let too_large = || os_error("mmap", size_bytes, libc::ENOMEM);
        let size = usize::try_from(size_bytes).map_err(|_| too_large())?;
        let mapped_bytes = size.checked_next_multiple_of(page_bytes()).ok_or_else(too_large)?;
        // SAFETY: no address is asked for, so no existing mapping is touched; there is no file.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(os_error("mmap", size_bytes, last_errno()));
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| os_error("mmap", size_bytes, libc::EFAULT))?;
        Ok(Mapping { base, size_bytes: size, mapped_bytes })
    }

    /// Where the mapping starts in the host's address space.
    pub(crate) fn base_address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// Copies out of the mapping. The span must lie within it.
    pub(crate) fn read(&self, offset_bytes: usize, bytes: &mut [u8]) {
        let from = self.span(offset_bytes, bytes.len());
        // SAFETY: `span` checked that the source lies in the mapping; the destination is a Rust slice, which the
        // private mapping cannot overlap; writers are excluded by `&self`.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies into the mapping. The span must lie within it.
    pub(crate) fn write(&mut self, offset_bytes: usize, bytes: &[u8]) {
        let to = self.span(offset_bytes, bytes.len());
        // SAFETY: as in `read`, with the roles exchanged; other accesses are excluded by `&mut self`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Sets a span, which must lie within the mapping.
    pub(crate) fn fill(&mut self, offset_bytes: usize, len_bytes: usize, byte: u8) {
        let to = self.span(offset_bytes, len_bytes);
        // SAFETY: `span` checked that the destination lies in the mapping; `&mut self` excludes other accesses.
        unsafe { std::ptr::write_bytes(to, byte, len_bytes) }
    }

    /// Drops the whole pages inside a span, which must lie within the mapping; they read as zeros afterwards.
    pub(crate) fn discard(&mut self, offset_bytes: usize, len_bytes: usize) {
        let start = offset_bytes.next_multiple_of(page_bytes());
        let end = offset_bytes + len_bytes;
        // A span that ends with the region owns the rest of its last page.
        let end = if end == self.size_bytes { self.mapped_bytes } else { end - end % page_bytes() };
        if start >= end {
            return;
        }
        assert!(end <= self.mapped_bytes, "{start}..{end} of {}", self.mapped_bytes);
        // SAFETY: whole pages inside a private anonymous mapping that this value owns; `&mut self` excludes others.
        let status =
            unsafe { libc::madvise(self.base.as_ptr().add(start).cast(), end - start, libc::MADV_DONTNEED) };
        // Advice: where the system does not follow it (locked memory), the pages merely stay.
        debug_assert!(status == 0 || last_errno() == libc::EINVAL, "madvise: errno {}", last_errno());
    }

    /// Bytes in committed pages.
    pub(crate) fn committed_bytes(&self) -> u64 {
        let page = page_bytes();
        let mut residency = vec![0_u8; MINCORE_PAGES.min(self.mapped_bytes / page)];
        let mut committed_pages = 0;
        for start in (0..self.mapped_bytes).step_by(MINCORE_PAGES * page) {
            let len = (self.mapped_bytes - start).min(MINCORE_PAGES * page);
            let states = &mut residency[..len / page];
            // SAFETY: the span lies in the mapping and the vector has one byte for each of its pages.
            let status =
                unsafe { libc::mincore(self.base.as_ptr().add(start).cast(), len, states.as_mut_ptr()) };
            if status == 0 {
                committed_pages += states.iter().filter(|&&state| state & 1 == 1).count();
            }
        }
        (committed_pages * page) as u64
    }

    /// The address of a span after checking that it lies within the mapping.
    fn span(&self, offset_bytes: usize, len_bytes: usize) -> *mut u8 {
        let end = offset_bytes.checked_add(len_bytes);
        assert!(
            end.is_some_and(|end| end <= self.size_bytes),
            "{len_bytes} bytes at {offset_bytes} of {}",
            self.size_bytes
        );
        // SAFETY: the offset is at most the size of the mapping, checked above.
        unsafe { self.base.as_ptr().add(offset_bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned by this value and nothing can reach it afterwards, except by addresses whose
        // users have promised to be done with them.
        let status = unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
        debug_assert_eq!(status, 0, "munmap: errno {}", last_errno());
    }
}

/// The host's page size.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: reads a constant of the system.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("the system has a page size")
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn os_error(operation: &'static str, size_bytes: u64, errno: i32) -> DeviceError {
    let message = std::io::Error::from_raw_os_error(errno).to_string().into();
    DeviceError::Os { operation, size_bytes, errno, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_that_cannot_be_is_an_error_with_its_size() {
        let size_bytes = 1 << 62;
        match Mapping::reserve(size_bytes) {
            Err(DeviceError::Os { operation: "mmap", size_bytes: named, errno, .. }) => {
                assert_eq!((named, errno), (size_bytes, libc::ENOMEM));
            }
            other => panic!("expected a system error, got {other:?}"),
        }
        assert!(Mapping::reserve(u64::MAX).is_err());
    }

    #[test]
    fn only_whole_pages_inside_a_span_are_dropped() {
        let page = page_bytes();
        let mut mapping = Mapping::reserve(4 * page as u64).unwrap();
        mapping.fill(0, 4 * page, 7);
        mapping.discard(1, 2 * page);
        let mut bytes = vec![0; 4 * page];
        mapping.read(0, &mut bytes);
        assert!(bytes[..page].iter().all(|&byte| byte == 7));
        assert!(bytes[page..2 * page].iter().all(|&byte| byte == 0));
        assert!(bytes[2 * page..].iter().all(|&byte| byte == 7));
        mapping.discard(1, page - 1);
        mapping.discard(5, 0);
        mapping.read(0, &mut bytes);
        assert!(bytes[..page].iter().all(|&byte| byte == 7));
    }

    #[test]
    fn the_last_page_belongs_to_a_span_that_ends_with_the_region() {
        let page = page_bytes();
        let size = page + 128;
        let mut mapping = Mapping::reserve(size as u64).unwrap();
        mapping.fill(0, size, 7);
        assert_eq!(mapping.committed_bytes(), 2 * page as u64);
        mapping.discard(page, 128);
        let mut last = [1; 128];
        mapping.read(page, &mut last);
        assert_eq!(last, [0; 128]);
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095 of 4096")]
    fn accesses_are_checked_here_too() {
        Mapping::reserve(4096).unwrap().fill(4095, 2, 0);
    }
}
