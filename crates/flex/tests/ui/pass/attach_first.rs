//! What an attached thread does instead: it allocates, and the callback releases the mutex before it attaches.

use flex::{AllocationDirective, FlexAllocator};

fn attach<R>(body: impl FnOnce() -> R) -> R {
    body()
}

pub fn allocate(allocator: &FlexAllocator) {
    attach(|| {
        let _memory = allocator.allocate(128, &AllocationDirective::default());
    });
}

fn main() {}
