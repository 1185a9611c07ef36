//! What a running process does with device memory, from the stream of its history.
//!
//! - `connection`: the records of the stream, as far as they have come.
//! - `view`: what follows from them; [`answers`]: that as plain values, which `--json` shows.
//!
//! The stream begins with what is live. If events were lost after that, what is live is not known any more; then a new
//! connection begins with what is live again.

pub mod answers;
mod connection;
mod view;

pub use connection::{Connection, State};
pub use view::View;
