//! What is logged, and that no allocator mutex is held meanwhile: a subscriber is foreign code.

#[path = "common/support.rs"]
mod support;

use std::fmt;
use std::sync::{Arc, Mutex};

use flex::pressure::Verdict;
use flex::rank;
use support::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the messages, and asks an allocator for its statistics at each: that would deadlock under its mutex.
#[derive(Clone)]
struct Log {
    allocator: flex::FlexAllocator,
    messages: Arc<Mutex<Vec<String>>>,
}

impl Log {
    fn of(allocator: &flex::FlexAllocator) -> Self {
        Log { allocator: allocator.clone(), messages: Arc::default() }
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.messages.lock().unwrap())
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("flex")
    }

    fn event(&self, event: &Event<'_>) {
        assert_eq!(*event.metadata().level(), Level::DEBUG);
        rank::assert_unlocked("log");
        self.allocator.statistics().unwrap();
        let mut message = Message(String::new());
        event.record(&mut message);
        self.messages.lock().unwrap().push(message.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn rare_events_are_logged_with_the_mutex_free() {
    let _watchdog = watchdog();
    let (allocator, device) = on_device(&tensor_regions(&[(0, 4 * KIB), (0, 4 * KIB)]));
    let log = Log::of(&allocator);
    tracing::subscriber::with_default(log.clone(), || {
        device.injection().fail_nth_acquire(1);
        let first = allocate(&allocator, 4 * KIB).unwrap();
        assert_eq!(log.take(), ["region refused", "region acquired"]);

        let hoard = Hoard::of(vec![first]);
        let second = allocate(&allocator, 4 * KIB).unwrap();
        assert_eq!(log.take(), ["region acquired"]);
        let freed = hoard.clone();
        set_callback(&allocator, move |guard, _| {
            guard.unlocked(|_| freed.free_one()).unwrap();
            Verdict::GiveUp
        });
        drop(allocate(&allocator, 4 * KIB).unwrap());
        drop(second);
        assert_eq!(log.take(), ["pressure event ended"]);

        device.injection().fail_release(1);
        allocator.empty_cache().unwrap_err();
        let mut messages = log.take();
        messages.sort();
        assert_eq!(messages, ["region not released", "region released"]);
    });
    check(&allocator, 0);
    let pressure = allocator.pressure_statistics();
    assert_eq!((pressure.events, pressure.rescued), (1, 1));
}
