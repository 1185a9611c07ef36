//! Memory-pressure callbacks that do anything: free, allocate, register, search, panic, replace themselves.
//!
//! An input is a list of steps. A step that allocates brings what its callback does each time it is called. One
//! thread, so everything is exact: which requests must be served, how often the callback is called, every counter.

mod callback;
mod plan;
mod world;

use arbitrary::{Arbitrary, Unstructured};

use plan::Plan;
use world::World;

/// Runs one input.
///
/// # Panics
/// If a request is served or fails wrongly, a counter is wrong, an invariant is violated, or something is left at the
/// end.
pub fn run(input: &[u8]) {
    let Ok(plan) = Plan::arbitrary_take_rest(Unstructured::new(input)) else { return };
    let world = World::new(plan.poison);
    for step in plan.steps {
        world.step(step);
        world.check();
    }
    world.finish();
}
