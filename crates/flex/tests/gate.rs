//! The gate and its ladder against a fake interpreter: who collects, when it counts, and that every wait ends.
//!
//! Interleavings are forced with channels; every test has a watchdog.

#[path = "common/gate_world.rs"]
mod gate_world;
#[path = "common/interpreter.rs"]
mod interpreter;
#[path = "common/support.rs"]
mod support;

#[path = "gate/collections.rs"]
mod collections;
#[path = "gate/deadlines.rs"]
mod deadlines;
#[path = "gate/grants.rs"]
mod grants;
#[path = "gate/hooks.rs"]
mod hooks;
#[path = "gate/many_threads.rs"]
mod many_threads;
#[path = "gate/reentrancy.rs"]
mod reentrancy;
#[path = "gate/sharing.rs"]
mod sharing;
