//! Two guards cannot be exchanged: each would lock the other's allocator again.

use flex::AllocatorGuard;

pub fn exchange<'a, 'b>(first: &mut AllocatorGuard<'a>, second: &mut AllocatorGuard<'b>) {
    std::mem::swap(first, second);
}

fn main() {}
