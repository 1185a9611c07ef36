//! Writes a trace of a training that never was: layers allocate activations and free them backwards, some of them are
//! held by cycles until a collection under memory pressure, and at the end a request fails.
//!
//!     synthetic_trace OUTPUT [--events N] [--blocks N] [--hostile]
//!
//! `--events` is how many events it has at least, `--blocks` how many blocks a layer allocates, and `--hostile` gives
//! everything names that a page must not take for its own. The same arguments give the same bytes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::BufWriter;

use clap::Parser;
use flex_trace::record::{BlockState, ClockOrigin, Device, Frame, PressureEnd, RegionState, Source, tried};
use flex_trace::{Action, Address, Event, FrameId, Header, Record, StackId, StringId, WriteError, Writer};

const LAYERS: u32 = 24;
const CAPACITY_BYTES: u64 = 8 << 30;
const REGION_BYTES: u64 = 1 << 30;
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;
const PARAMETER_BYTES: u64 = 48 << 20;
const HOSTILE: &str = "</script><script>document.title='run'</script><img src=x onerror=document.title='run'>\u{202e}'\"&{{DATA}}";

#[derive(Parser)]
struct Arguments {
    output: std::path::PathBuf,
    #[arg(long, default_value_t = 20_000)]
    events: u64,
    #[arg(long, default_value_t = 4)]
    blocks: u32,
    #[arg(long)]
    hostile: bool,
}

#[derive(Clone, Copy)]
struct Block {
    address: u64,
    size_bytes: u64,
}

/// A training, and the device that it fills: blocks lie where there is room behind the latest one.
struct Training {
    writer: Writer<BufWriter<File>>,
    random: u64,
    events: u64,
    time_ns: u64,
    /// Free ranges by size in units of 512 bytes, to be taken again.
    free: std::collections::HashMap<u64, Vec<u64>>,
    next_address: u64,
    regions: u64,
    live_bytes: u64,
    in_cycles: VecDeque<(Block, u32)>,
    pressure: u64,
    hostile: bool,
}

type Done = Result<(), WriteError>;

impl Training {
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn name(&self, text: &str) -> String {
        if self.hostile { format!("{text} {HOSTILE}") } else { text.to_owned() }
    }

    fn define(&mut self) -> Done {
        let name = self.name("train.py");
        self.writer.write(&Record::Source(Source {
            producer: "synthetic_trace",
            kind: "a process",
            name: &name,
        }))?;
        self.writer.write(&Record::Clock(ClockOrigin::Monotonic))?;
        let device = self.name("spyre");
        let capacity_bytes = Some(CAPACITY_BYTES);
        self.writer.write(&Record::Device(Device { device: 0, name: Some(&device), capacity_bytes }))?;
        let value = self.name("true");
        self.writer.write(&Record::Setting { key: "collect_under_pressure", value: &value })?;
        let texts =
            ["forward", "/home/user/model/layers.py", "train", "/home/user/model/train.py", "Node", "Graph"];
        for (id, text) in texts.iter().enumerate() {
            let text = self.name(text);
            self.writer.write(&Record::String { id: StringId(id as u32), text: &text })?;
        }
        let outer = Frame { id: FrameId(0), function: StringId(2), file: StringId(3), line: 42 };
        self.writer.write(&Record::Frame(outer))?;
        for layer in 1..=LAYERS {
            let frame =
                Frame { id: FrameId(layer), function: StringId(0), file: StringId(1), line: 10 * layer };
            self.writer.write(&Record::Frame(frame))?;
            let frames = [layer, 0];
            self.writer.write(&Record::Stack { id: StackId(layer), frames: frames.as_slice().into() })?;
        }
        self.writer.write(&Record::Stack { id: StackId(0), frames: [0].as_slice().into() })
    }

    fn event(&mut self, stack: u32, action: Action) -> Done {
        self.time_ns += 1000 + self.random(20_000);
        self.events += 1;
        let event = Event {
            time_ns: Some(self.time_ns),
            thread: Some(1),
            stack: Some(StackId(stack)),
            ..Event::new(0, action)
        };
        self.writer.write(&Record::Event(event))
    }

    /// The address of a free range, in a region acquired for it if need be.
    fn place(&mut self, size_bytes: u64, stack: u32) -> Result<u64, WriteError> {
        if let Some(address) = self.free.get_mut(&(size_bytes / 512)).and_then(Vec::pop) {
            return Ok(address);
        }
        if self.next_address + size_bytes > FIRST_ADDRESS + self.regions * REGION_BYTES {
            let address = FIRST_ADDRESS + self.regions * REGION_BYTES;
            self.regions += 1;
            self.next_address = address;
            let action = Action::RegionAcquired {
                address: Address(address),
                size_bytes: REGION_BYTES,
                stream: 0,
                mapped: false,
            };
            self.event(stack, action)?;
        }
        self.next_address += size_bytes;
        Ok(self.next_address - size_bytes)
    }

    fn allocate(&mut self, size_bytes: u64, stack: u32) -> Result<Block, WriteError> {
        let address = self.place(size_bytes, stack)?;
        self.live_bytes += size_bytes;
        let action =
            Action::Allocated { address: Address(address), size_bytes, rounded_bytes: None, stream: 0 };
        self.event(stack, action)?;
        Ok(Block { address, size_bytes })
    }

    fn free(&mut self, block: Block) -> Done {
        self.live_bytes -= block.size_bytes;
        self.free.entry(block.size_bytes / 512).or_default().push(block.address);
        let (address, size_bytes) = (Address(block.address), block.size_bytes);
        self.event(0, Action::FreeRequested { address, size_bytes })?;
        self.event(0, Action::Freed { address, size_bytes })
    }

    /// What a layer's share of a step takes, in multiples that recur.
    fn activation_bytes(&mut self, layer: u32, blocks: u32) -> u64 {
        (24 << 20) / u64::from(blocks) / 512 * 512 + (self.random(4) + u64::from(layer % 3)) * 4096
    }

    fn step(&mut self, blocks: u32) -> Done {
        let mut activations = Vec::new();
        for layer in 1..=LAYERS {
            for _ in 0..blocks {
                let size_bytes = self.activation_bytes(layer, blocks);
                activations.push((self.allocate(size_bytes, layer)?, layer));
            }
        }
        while let Some((block, layer)) = activations.pop() {
            if self.random(6) == 0 {
                self.in_cycles.push_back((block, layer));
            } else {
                self.free(block)?;
            }
        }
        if self.live_bytes > CAPACITY_BYTES / 2 { self.collect() } else { Ok(()) }
    }

    fn collect(&mut self) -> Done {
        self.pressure += 1;
        let (pressure, requested_bytes) = (self.pressure, 64 << 20);
        self.event(7, Action::PressureBegan { pressure, requested_bytes })?;
        let mut by_layer = [(0_u64, 0_u64); LAYERS as usize + 1];
        while let Some((block, layer)) = self.in_cycles.pop_front() {
            by_layer[layer as usize].0 += block.size_bytes;
            by_layer[layer as usize].1 += 1;
            self.free(block)?;
        }
        let reclaimed_bytes = by_layer.iter().map(|(bytes, _)| bytes).sum();
        let objects = by_layer.iter().map(|(_, blocks)| 3 * blocks).sum();
        let (generation, duration_ns) = (2, 30_000_000);
        let collected =
            Action::Collected { generation, objects, reclaimed_bytes, duration_ns, pressure: Some(pressure) };
        self.event(7, collected)?;
        for (layer, (bytes, blocks)) in
            by_layer.into_iter().enumerate().filter(|(_, (_, blocks))| *blocks > 0)
        {
            let type_name = Some(StringId(4 + layer as u32 % 2));
            self.event(layer as u32, Action::Reclaimed { type_name, bytes, blocks })?;
        }
        let tried = tried::PENDING_FREES | tried::FULL_COLLECTION;
        let end = PressureEnd::Served;
        self.event(7, Action::PressureEnded { pressure, end, tried, reclaimed_bytes, duration_ns })
    }

    fn fail(&mut self) -> Done {
        let free = CAPACITY_BYTES - self.regions * REGION_BYTES;
        let (free_bytes, largest_free_bytes) = (Some(free), Some(free));
        let (requested_bytes, capacity_bytes) = (6 << 30, Some(CAPACITY_BYTES));
        self.event(3, Action::OutOfMemory { requested_bytes, free_bytes, largest_free_bytes, capacity_bytes })
    }

    fn state(&mut self) -> Done {
        for region in 0..self.regions {
            let state = RegionState {
                device: 0,
                address: Address(FIRST_ADDRESS + region * REGION_BYTES),
                size_bytes: REGION_BYTES,
                stream: 0,
                pool: (0, 0),
                small: false,
                expandable: false,
                allocated_bytes: None,
                active_bytes: None,
                stack: None,
            };
            self.writer.write(&Record::RegionState(state))?;
            let (size_bytes, requested_bytes) = (REGION_BYTES, 0);
            let block = flex_trace::record::BlockSnapshot {
                size_bytes,
                requested_bytes,
                state: BlockState::Free,
                stack: None,
            };
            self.writer.write(&Record::Block(block))?;
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let output = BufWriter::new(File::create(&arguments.output)?);
    let mut training = Training {
        writer: Writer::new(output, Header::default())?,
        random: 0x9e37_79b9_7f4a_7c15,
        events: 0,
        time_ns: 5_000_000_000,
        free: std::collections::HashMap::new(),
        next_address: FIRST_ADDRESS,
        regions: 0,
        live_bytes: 0,
        in_cycles: VecDeque::new(),
        pressure: 0,
        hostile: arguments.hostile,
    };
    training.define()?;
    for layer in 1..=LAYERS {
        training.allocate(PARAMETER_BYTES, layer)?;
    }
    while training.events < arguments.events {
        training.step(arguments.blocks)?;
    }
    training.fail()?;
    training.state()?;
    training.writer.finish()?;
    Ok(())
}
