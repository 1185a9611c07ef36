//! Two guards may be looked at.

use flex::AllocatorGuard;

pub fn look<'a, 'b>(first: &AllocatorGuard<'a>, second: &AllocatorGuard<'b>) -> bool {
    first.frees_in_flight() && second.frees_in_flight()
}

fn main() {}
