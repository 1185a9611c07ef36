//! Only `unlocked` gives a proof.

use std::marker::PhantomData;

use flex::Unlocked;

pub fn proof() -> Unlocked<'static> {
    Unlocked { scope: PhantomData }
}

fn main() {}
