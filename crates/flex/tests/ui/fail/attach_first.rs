//! The reference's "WRONG": attach first, then take the mutex. Nobody can lock an allocator.

use flex::FlexAllocator;

fn attach<R>(body: impl FnOnce() -> R) -> R {
    body()
}

pub fn allocate(allocator: &FlexAllocator) {
    attach(|| {
        let _guard = allocator.lock();
    });
}

fn main() {}
