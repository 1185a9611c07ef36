//! Writes a snapshot of PyTorch with so many events, at about 850 bytes each, to the standard output:
//!
//! ```sh
//! cargo run --release -p flexmem --example large_snapshot 1270000 >large.pickle  # 1 GiB
//! ```

#[path = "../tests/common/large.rs"]
mod large;

use std::io::{self, Read};

fn main() -> io::Result<()> {
    let events = std::env::args().nth(1).and_then(|argument| argument.parse().ok()).unwrap_or(10_000);
    let mut snapshot = large::Snapshot::new(events);
    let (mut output, mut buffer) = (io::stdout().lock(), vec![0; 1 << 20]);
    loop {
        let length = snapshot.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        io::Write::write_all(&mut output, &buffer[..length])?;
    }
}
