//! The figures of a report beside a naive model, and the limits of a page.

use std::collections::BTreeMap;

use flex_trace::record::{Frame, PressureEnd};
use flex_trace::{Action, Address, Event, FrameId, Header, Record, StackId, StringId, Writer};
use flexmem::TraceFile;
use flexmem::report::summary::Summary;
use flexmem::report::{Limits, Report};
use proptest::prelude::*;

const SITES: u32 = 6;

fn trace(events: &[Event]) -> TraceFile {
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    for (id, text) in ["forward", "model.py"].into_iter().enumerate() {
        writer.write(&Record::String { id: StringId(id as u32), text }).unwrap();
    }
    for site in 0..SITES {
        let frame = Frame { id: FrameId(site), function: StringId(0), file: StringId(1), line: site + 1 };
        writer.write(&Record::Frame(frame)).unwrap();
        writer.write(&Record::Stack { id: StackId(site), frames: [site].as_slice().into() }).unwrap();
    }
    for event in events {
        writer.write(&Record::Event(*event)).unwrap();
    }
    TraceFile::import(writer.finish().unwrap().as_slice(), "test.trace").unwrap()
}

fn report(events: &[Event], limits: Limits) -> Report {
    Report::of(&mut trace(events), "test.trace", limits).unwrap()
}

fn allocated(address: u64, size_bytes: u64, site: u32) -> Event {
    let action = Action::Allocated { address: Address(address), size_bytes, rounded_bytes: None, stream: 0 };
    Event { stack: Some(StackId(site)), ..Event::new(0, action) }
}

fn freed(address: u64) -> Event {
    Event::new(0, Action::Freed { address: Address(address), size_bytes: 0 })
}

/// What is live after each event, from the first definition of it.
struct Model {
    live: Vec<BTreeMap<u64, (u64, u32)>>,
}

impl Model {
    fn of(events: &[Event]) -> Model {
        let mut live = vec![BTreeMap::new()];
        for event in events {
            let mut now = live.last().unwrap().clone();
            match event.action {
                Action::Allocated { address, size_bytes, .. } => {
                    now.insert(address.0, (size_bytes, event.stack.unwrap().0));
                }
                Action::Freed { address, .. } => drop(now.remove(&address.0)),
                _ => {}
            }
            live.push(now);
        }
        Model { live }
    }

    fn bytes(&self, moment: usize) -> u64 {
        self.live[moment].values().map(|(bytes, _)| bytes).sum()
    }

    fn bytes_of(&self, moment: usize, site: u32) -> u64 {
        self.live[moment].values().filter(|(_, of)| *of == site).map(|(bytes, _)| bytes).sum()
    }
}

fn check(summary: &Summary, events: &[Event]) {
    let model = Model::of(events);
    let device = &summary.devices[0];
    let last = events.len();
    let peak = (0..=last).max_by_key(|&moment| (model.bytes(moment), std::cmp::Reverse(moment))).unwrap();
    assert_eq!((device.peak.live_bytes, device.peak.moment), (model.bytes(peak), peak as u64));
    assert_eq!(device.peak.live_blocks, model.live[peak].len() as u64);
    assert_eq!((device.end.live_bytes, device.end.moment), (model.bytes(last), last as u64));
    for of_site in &device.sites {
        let label = &summary.sites[of_site.site as usize].label;
        let site = (0..SITES).find(|site| *label == format!("forward (model.py:{})", site + 1)).unwrap();
        assert_eq!(of_site.at_peak_bytes, model.bytes_of(peak, site), "{label}");
        assert_eq!(of_site.at_end_bytes, model.bytes_of(last, site), "{label}");
        let most = (0..=last).map(|moment| model.bytes_of(moment, site)).max().unwrap();
        assert_eq!(of_site.peak_bytes, most, "{label}");
    }
    let map = &device.map;
    assert_eq!(map.blocks, map.shown + map.left_out);
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => (0..20_u64, 1..5000_u64, 0..SITES).prop_map(|(address, size, site)| allocated(address, size, site)),
        2 => (0..20_u64).prop_map(freed),
    ];
    proptest::collection::vec(event, 1..200)
}

proptest! {
    #[test]
    fn the_figures_are_those_of_a_naive_model(events in events(), buckets in 1..64_usize, blocks in 0..100_usize) {
        let limits = Limits { buckets, blocks, bands: 2, ..Limits::default() };
        let report = report(&events, limits);
        check(&report.summary, &events);
        prop_assert!(report.summary.devices[0].map.shown <= blocks as u64);
        prop_assert!(report.summary.devices[0].buckets <= buckets as u64);
    }
}

/// Numbers as hostile files have them: at the ends of their range, and equal to one another.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..4_u64, Just(u64::MAX), (u64::MAX - 3)..=u64::MAX, Just(1 << 63), any::<u64>()]
}

fn any_action() -> impl Strategy<Value = Action> {
    let address = || number().prop_map(Address);
    prop_oneof![
        (address(), number(), number()).prop_map(|(address, size_bytes, stream)| Action::Allocated {
            address,
            size_bytes,
            rounded_bytes: None,
            stream
        }),
        (address(), number()).prop_map(|(address, size_bytes)| Action::Freed { address, size_bytes }),
        (address(), number()).prop_map(|(address, size_bytes)| Action::Baseline {
            address,
            size_bytes,
            stream: 0
        }),
        (address(), number(), any::<bool>()).prop_map(|(address, size_bytes, mapped)| {
            Action::RegionAcquired { address, size_bytes, stream: 0, mapped }
        }),
        (address(), number(), any::<bool>())
            .prop_map(|(address, size_bytes, mapped)| Action::RegionReleased { address, size_bytes, mapped }),
        (number(), number())
            .prop_map(|(pressure, requested_bytes)| Action::PressureBegan { pressure, requested_bytes }),
        (number(), number()).prop_map(|(bytes, blocks)| Action::Reclaimed { type_name: None, bytes, blocks }),
        (number(), number()).prop_map(|(objects, reclaimed_bytes)| Action::Collected {
            generation: 2,
            objects,
            reclaimed_bytes,
            duration_ns: u64::MAX,
            pressure: None
        }),
        number().prop_map(|events| Action::Lost { events }),
    ]
}

proptest! {
    #[test]
    fn what_makes_no_sense_makes_a_page_that_says_so(
        actions in proptest::collection::vec((0..3_u32, any_action(), proptest::option::of(number())), 0..120),
    ) {
        let event = |&(device, action, time_ns): &(u32, Action, Option<u64>)| {
            Event { time_ns, ..Event::new(device, action) }
        };
        let events: Vec<Event> = actions.iter().map(event).collect();
        let mut report = report(&events, Limits { blocks: 20, regions: 5, ..Limits::default() });
        let page = report.page().unwrap();
        prop_assert!(page.len() < 200 << 10);
        for device in &report.summary.devices {
            let of_device = || events.iter().filter(|event| event.device == device.device);
            let baseline = of_device().filter(|event| matches!(event.action, Action::Baseline { .. })).count();
            prop_assert_eq!(device.events as usize, of_device().count() - baseline);
            prop_assert_eq!(device.map.blocks, device.allocations + device.baseline_blocks);
            prop_assert_eq!(device.map.blocks, device.map.shown + device.map.left_out);
        }
    }
}

#[test]
fn what_is_left_out_is_the_smallest_and_is_said() {
    let baseline =
        |size: u64| Action::Baseline { address: Address(size * 10_000), size_bytes: size * 64, stream: 0 };
    let events: Vec<Event> = (1..=100).map(|size| Event::new(0, baseline(size))).collect();
    let report = report(&events, Limits { blocks: 40, ..Limits::default() });
    let map = &report.summary.devices[0].map;
    assert_eq!((map.blocks, map.shown, map.left_out), (100, 40, 60));
    // Blocks of about the same size, within a tenth, are taken in their order.
    assert!((60 * 64..67 * 64).contains(&map.largest_left_out_bytes), "{map:?}");
    let smallest: u64 = (1..=60).map(|size: u64| size * 64).sum();
    assert!((smallest..smallest * 11 / 10).contains(&map.left_out_bytes), "{map:?}");
}

#[test]
fn a_page_that_would_be_too_long_leaves_out_blocks_until_it_fits() {
    let mut random = 1_u64;
    let events: Vec<Event> = (0..20_000)
        .map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            allocated(random >> 16, random >> 40, random as u32 % SITES)
        })
        .collect();
    let small = Limits { page_bytes: 150 << 10, buckets: 64, ..Limits::default() };
    let mut report = report(&events, small);
    let page = report.page().unwrap();
    assert!(page.len() <= small.page_bytes, "{}", page.len());
    let map = &report.summary.devices[0].map;
    assert_eq!(map.blocks, map.shown + map.left_out);
    assert!(map.shown > 0 && map.left_out > 0);
}

#[test]
fn a_page_that_cannot_fit_is_an_error() {
    let mut report = report(&[allocated(1, 1, 0)], Limits { page_bytes: 1000, ..Limits::default() });
    let error = report.page().unwrap_err().to_string();
    assert!(error.contains("without a single block; expected at most 1000"), "{error}");
}

#[test]
fn devices_beyond_the_limit_are_counted() {
    let events: Vec<Event> =
        (0..9).map(|device| Event { device, ..allocated(1, 10 * u64::from(device) + 1, 0) }).collect();
    let report = report(&events, Limits { devices: 4, ..Limits::default() });
    assert_eq!((report.summary.devices.len(), report.summary.devices_left_out), (4, 5));
    let numbers: Vec<u32> = report.summary.devices.iter().map(|device| device.device).collect();
    assert_eq!(numbers, [3, 2, 1, 0], "the busiest first");
}

#[test]
fn pressure_and_what_it_reclaimed_are_told() {
    let at_site = |action| Event { stack: Some(StackId(2)), ..Event::new(0, action) };
    let end = PressureEnd::OutOfMemory;
    let events = [
        at_site(Action::PressureBegan { pressure: 7, requested_bytes: 100 }),
        Event::new(
            0,
            Action::Collected {
                generation: 2,
                objects: 5,
                reclaimed_bytes: 30,
                duration_ns: 9,
                pressure: Some(7),
            },
        ),
        at_site(Action::Reclaimed { type_name: Some(StringId(0)), bytes: 20, blocks: 2 }),
        at_site(Action::Reclaimed { type_name: Some(StringId(0)), bytes: 10, blocks: 1 }),
        Event::new(
            0,
            Action::PressureEnded { pressure: 7, end, tried: 4, reclaimed_bytes: 30, duration_ns: 11 },
        ),
        at_site(Action::PressureBegan { pressure: 8, requested_bytes: 50 }),
        // It waited for the same collection.
        Event::new(
            0,
            Action::PressureEnded { pressure: 9, end, tried: 8, reclaimed_bytes: 30, duration_ns: 11 },
        ),
    ];
    let report = report(&events, Limits::default());
    let device = &report.summary.devices[0];
    let pressure: Vec<_> = device.pressure.shown.iter().map(|event| (event.pressure, event.end)).collect();
    assert_eq!(pressure, [(7, "out of memory"), (9, "out of memory"), (8, "unfinished")]);
    assert_eq!(device.pressure.reclaimed_bytes, 30, "one collection freed that for both");
    let first = &device.pressure.shown[0];
    assert_eq!(
        (first.began_moment, first.requested_bytes, &*first.tried),
        (Some(1), Some(100), &["full collection"][..])
    );
    let cycle = &device.cycles.shown[0];
    assert_eq!(
        (cycle.type_name.as_deref(), cycle.bytes, cycle.blocks, cycle.times),
        (Some("forward"), 30, 3, 2)
    );
    assert_eq!(device.collections.shown[0].parts.len(), 2);
    assert_eq!(device.collections.reclaimed_bytes, 30);
}
