//! Traces whose records are sound and whose figures are not: every command answers them, with checked arithmetic.

use flex::RegionOrder;
use flex_trace::record::{BlockSnapshot, BlockState, ClockOrigin, Device, History, PressureEnd, RegionState};
use flex_trace::{Action, Event, Header, Record, StackId, StringId, Writer};
use flexmem::TraceFile;
use flexmem::info::{Options, info};
use flexmem::replay::{CachingAllocator, FlexReplay, Layout, Operations, Segments, play};
use flexmem::report::{Limits, Report};
use proptest::prelude::*;

/// The figures at which sums, products and differences end.
fn figure() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(512),
        Just(1 << 20),
        Just(1 << 62),
        Just(1 << 63),
        Just(u64::MAX - 1),
        Just(u64::MAX),
        0_u64..4096,
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let name = StringId(7);
    (0_u32..15, figure(), figure(), figure(), figure(), any::<bool>()).prop_map(
        move |(kind, a, b, c, d, flag)| {
            let (address, size_bytes, stream, some) = (a.into(), b, c, flag.then_some(d));
            match kind {
                0 | 1 => Action::Allocated { address, size_bytes, rounded_bytes: some, stream },
                2 => Action::FreeRequested { address, size_bytes },
                3 => Action::Freed { address, size_bytes },
                4 => Action::RegionAcquired { address, size_bytes, stream, mapped: flag },
                5 => Action::RegionReleased { address, size_bytes, mapped: flag },
                6 => Action::PressureBegan { pressure: a, requested_bytes: b },
                7 => {
                    let end = if flag { PressureEnd::Served } else { PressureEnd::OutOfMemory };
                    Action::PressureEnded { pressure: a, end, tried: b, reclaimed_bytes: c, duration_ns: d }
                }
                8 => Action::Collected {
                    generation: a as u32,
                    objects: b,
                    reclaimed_bytes: c,
                    duration_ns: d,
                    pressure: some,
                },
                9 => Action::Reclaimed { type_name: None, bytes: a, blocks: b },
                10 => Action::OutOfMemory {
                    requested_bytes: a,
                    free_bytes: some,
                    largest_free_bytes: flag.then_some(c),
                    capacity_bytes: Some(b),
                },
                11 => Action::SnapshotTaken { reserved_bytes: some },
                12 => Action::Lost { events: a },
                13 => Action::Baseline { address, size_bytes, stream },
                _ => Action::Other { name, address, size_bytes },
            }
        },
    )
}

fn record() -> impl Strategy<Value = Record<'static>> {
    let event = (0_u32..3, action(), prop::option::of(figure()), prop::option::of(figure())).prop_map(
        |(device, action, time_ns, thread)| {
            let stack = thread.filter(|&thread| thread > 1000).map(|_| StackId(5));
            Record::Event(Event { device, time_ns, thread, stack, action })
        },
    );
    let region = (0_u32..3, figure(), figure(), prop::option::of(figure()), any::<bool>()).prop_map(
        |(device, address, size_bytes, stated, expandable)| {
            Record::RegionState(RegionState {
                device,
                address: address.into(),
                size_bytes,
                stream: 0,
                pool: (address, size_bytes),
                small: expandable,
                expandable,
                allocated_bytes: stated,
                active_bytes: stated,
                stack: None,
            })
        },
    );
    let block = (figure(), figure(), 0..3).prop_map(|(size_bytes, requested_bytes, state)| {
        let state = [BlockState::Free, BlockState::Live, BlockState::PendingFree][state as usize];
        Record::Block(BlockSnapshot { size_bytes, requested_bytes, state, stack: None })
    });
    let history = (0_u32..3, any::<bool>(), prop::option::of(figure()), figure(), figure()).prop_map(
        |(device, recorded, reserved_before_bytes, contradictions, baseline_freed)| {
            Record::History(History {
                device,
                recorded,
                reserved_before_bytes,
                contradictions,
                baseline_freed,
            })
        },
    );
    let device = (0_u32..3, prop::option::of(figure())).prop_map(|(device, capacity_bytes)| {
        Record::Device(Device { device, name: Some("\u{1b}[2J"), capacity_bytes })
    });
    let clock = any::<bool>()
        .prop_map(|steps| Record::Clock(if steps { ClockOrigin::Steps } else { ClockOrigin::Unix }));
    prop_oneof![12 => event, 2 => region, 4 => block, 1 => history, 1 => device, 1 => clock]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_answer_is_given(records in prop::collection::vec(record(), 0..60), top in 0_usize..4) {
        let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
        for record in &records {
            writer.write(record).unwrap();
        }
        let bytes = writer.finish().unwrap();
        let mut trace = TraceFile::import(bytes.as_slice(), "extreme").unwrap();
        let options = Options { device_memory_bytes: None, top };
        let answers = info(&mut trace, &options).unwrap();
        prop_assert!(answers.devices.iter().all(|device| device.holders.largest.len() <= top));
        Report::of(&mut trace, "extreme", Limits::default()).unwrap().page().unwrap();
        for (_, operations) in Operations::of(&mut trace).unwrap() {
            let layout = Layout { regions: 2 };
            let mut flex = FlexReplay::new(1 << 30, layout, RegionOrder::MostFree).unwrap();
            let mut outcomes = vec![play(&operations, &mut flex)];
            for segments in [Segments::Fixed, Segments::Expandable] {
                let mut model = CachingAllocator::with_segments(1 << 63, segments);
                outcomes.push(play(&operations, &mut model));
            }
            for outcome in outcomes {
                prop_assert!(outcome.live_peak_bytes <= operations.peak_bytes());
            }
        }
    }
}
