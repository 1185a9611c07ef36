//! Tests of the arena as a whole.
