//! Large snapshots, made while they are read.

use std::collections::HashMap;
use std::io::Read;

/// A snapshot of protocol 4, made while it is read, as Python writes it: each event with a new list of frames, each
/// dict and list remembered, each text written once.
pub(crate) struct Snapshot {
    pickle: Pickle,
    events: u64,
    made: u64,
}

#[derive(Default)]
struct Pickle {
    bytes: Vec<u8>,
    remembered: u32,
    texts: HashMap<String, u32>,
}

impl Pickle {
    fn put(&mut self, opcodes: &[u8]) {
        self.bytes.extend(opcodes);
        self.remembered += opcodes.iter().filter(|&&opcode| opcode == 0x94).count() as u32;
    }

    fn number(&mut self, value: u64) {
        self.bytes.extend(b"\x8a\x08");
        self.bytes.extend(value.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        if let Some(number) = self.texts.get(text) {
            self.bytes.push(b'j');
            self.bytes.extend(number.to_le_bytes());
            return;
        }
        self.bytes.extend([0x8c, text.len() as u8]);
        self.bytes.extend(text.as_bytes());
        self.texts.insert(text.to_owned(), self.remembered);
        self.put(b"\x94");
    }
}

impl Snapshot {
    pub(crate) fn new(events: u64) -> Self {
        let mut pickle = Pickle::default();
        pickle.put(b"\x80\x04}\x94(");
        pickle.text("segments");
        pickle.put(b"]\x94");
        pickle.text("device_traces");
        pickle.put(b"]\x94]\x94(");
        Snapshot { pickle, events, made: 0 }
    }

    /// Pairs of an allocation and a free, at a thousand addresses; one of 500 stacks of 20 frames each.
    fn event(&mut self) {
        let (pair, is_free) = (self.made / 2, self.made % 2 == 1);
        let pickle = &mut self.pickle;
        pickle.put(b"}\x94(");
        for key in ["action", "addr", "size", "stream", "time_us", "frames"] {
            pickle.text(key);
            match key {
                "action" => pickle.text(if is_free { "free_completed" } else { "alloc" }),
                "addr" => pickle.number(0x7f00_0000_0000 + pair % 1000 * 4096),
                "time_us" => pickle.number(1_700_000_000_000_000 + self.made),
                "frames" => frames(pickle, pair % 500),
                _ => pickle.put(b"K\x08"),
            }
        }
        pickle.put(b"u");
        self.made += 1;
        if self.made == self.events {
            pickle.put(b"eau.");
        } else if self.made.is_multiple_of(1000) {
            pickle.put(b"e(");
        }
    }
}

fn frames(pickle: &mut Pickle, stack: u64) {
    pickle.put(b"]\x94(");
    for frame in 0..20 {
        pickle.put(b"}\x94(");
        for (key, value) in [("name", format!("function_{frame}")), ("filename", "train.py".to_owned())] {
            pickle.text(key);
            pickle.text(&value);
        }
        pickle.text("line");
        pickle.number(stack);
        pickle.put(b"u");
    }
    pickle.put(b"e");
}

impl Read for Snapshot {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        while self.pickle.bytes.len() < out.len() && self.made < self.events {
            self.event();
        }
        let length = self.pickle.bytes.len().min(out.len());
        out[..length].copy_from_slice(&self.pickle.bytes[..length]);
        self.pickle.bytes.drain(..length);
        Ok(length)
    }
}
