//! Operations and a naive model, shared by the arena's own tests and by tests of the public interface.
//!
//! It names the crate from the outside (`flex::`), and uses nothing that is not public.

// Each test target uses a part of it, and one of them is inside the crate.
#![allow(dead_code, unreachable_pub)]

pub mod model;
pub mod op;
pub mod strategies;
