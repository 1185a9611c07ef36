//! Tests of the arena as a whole: the rules one by one, and random runs against a naive model.

#[path = "../../tests/common/mod.rs"]
mod common;

#[path = "tests/random.rs"]
mod random;
#[path = "tests/rules.rs"]
mod rules;
#[path = "tests/zones.rs"]
mod zones;
