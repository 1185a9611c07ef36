//! A proof may be handed on.

use flex::Unlocked;

pub fn hand_on(proof: &Unlocked<'_>, to: impl FnOnce(&Unlocked<'_>)) {
    to(proof);
}

fn main() {}
