//! Streams as their readers see them: through a file, through a socket, when they are slow, and when the ring is small.

mod common;

use std::fs;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{
    OneSite, PATIENCE, contents, contents_while, mode, options, pairs, recording, to_file, unix_ns,
    wait_until,
};
use flex::AllocationDirective;
use flex_stream::{Stream, StreamError, StreamOptions};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

#[test]
fn a_file_has_what_was_live_and_what_happened_since() {
    let allocator = recording(1000);
    let kept = allocator.allocate(1000, &AllocationDirective::default()).unwrap();
    let (_folder, path, stream) = to_file(&allocator);
    pairs(&allocator, 100);
    drop(kept);
    assert!(stream.stop());
    let found = contents(fs::File::open(&path).unwrap());
    assert_eq!((found.baseline, found.allocated, found.freed, found.lost), (1, 100, 101, 0));
    assert_eq!(found.texts, ["step", "train.py", "main"], "each once, before its first use");
    assert_eq!(found.frames, [3, 9]);
    assert_eq!(found.with_stack, 202);
    assert!(found.ended);
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn what_the_ring_has_overwritten_is_counted() {
    let allocator = recording(16);
    pairs(&allocator, 1);
    let (_folder, path, stream) = to_file(&allocator);
    pairs(&allocator, 20_000);
    assert!(stream.stop());
    let found = contents(fs::File::open(&path).unwrap());
    assert_eq!(found.allocated + found.freed + found.lost, 40_000, "{found:?}");
    assert!(found.lost > 0, "the ring has room for 16");
}

#[test]
fn a_file_that_was_removed_is_said_to_be_missing() {
    let allocator = recording(1000);
    let (_folder, path, stream) = to_file(&allocator);
    pairs(&allocator, 10);
    wait_until(&stream, |statistics| statistics.events >= 20);
    assert_eq!(stream.statistics().file_error, None);
    fs::remove_file(&path).unwrap();
    wait_until(&stream, |statistics| statistics.file_error.is_some());
    assert!(stream.statistics().file_error.unwrap().contains("removed"));
    pairs(&allocator, 10);
    assert!(stream.stop());
    assert_eq!((stream.statistics().dropped, path.exists()), (20, false));
}

/// The signals that a thread blocks, one bit each, by its name.
fn blocked_signals(thread: &str) -> Option<u64> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let mut statuses = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    let status = statuses.find(|status| status.starts_with(&format!("Name:\t{thread}\n")))?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t"))?;
    u64::from_str_radix(mask, 16).ok()
}

#[test]
fn the_thread_of_a_stream_takes_no_signal_from_the_program() {
    const SIGUSR1: u64 = 1 << 9;
    const SIGTERM: u64 = 1 << 14;
    let folder = tempfile::tempdir().unwrap();
    let file = Some(folder.path().join("run.trace"));
    let allocator = recording(1000);
    let stream = Stream::start(StreamOptions { file, ..options(&allocator) }).unwrap();
    pairs(&allocator, 1);
    wait_until(&stream, |statistics| statistics.events > 0); // It runs, and has its name.
    let blocked = blocked_signals("flex-stream").unwrap();
    assert_eq!(blocked & (SIGUSR1 | SIGTERM), SIGUSR1 | SIGTERM);
    assert!(stream.stop());
}

#[test]
fn nobody_waits_for_a_process_that_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("sockets");
    let allocator = recording(1000);
    let with_socket = || StreamOptions { socket_directory: Some(directory.clone()), ..options(&allocator) };
    drop(Stream::start(with_socket()).unwrap());
    // A listener that takes nobody, with as many callers as may wait, and old enough to be looked at.
    let stopped = directory.join("1.sock");
    let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&stopped).unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    let _waiting = UnixStream::connect(&stopped).unwrap();
    let old = Timespec { tv_sec: 1, tv_nsec: 0 };
    let times = Timestamps { last_access: old, last_modification: old };
    utimensat(CWD, &stopped, &times, AtFlags::empty()).unwrap();
    // The sweep of a new stream comes by, and leaves it alone.
    let stream = Stream::start(with_socket()).unwrap();
    assert!(stopped.exists());
    assert!(stream.stop());
}

#[test]
fn a_client_sees_the_program_while_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("sockets");
    let allocator = recording(1000);
    let _kept = allocator.allocate(1000, &AllocationDirective::default()).unwrap();
    let with_socket = || StreamOptions { socket_directory: Some(directory.clone()), ..options(&allocator) };
    let stream = Stream::start(with_socket()).unwrap();
    let socket = stream.socket().unwrap().to_owned();
    assert_eq!((mode(&directory), mode(&socket)), (0o700, 0o600));
    assert!(matches!(Stream::start(with_socket()), Err(StreamError::InUse { path }) if path == socket));

    let client = UnixStream::connect(&socket).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    wait_until(&stream, |statistics| statistics.clients == 1);
    pairs(&allocator, 10);
    assert!(stream.stop());
    let found = contents(client);
    assert_eq!((found.baseline, found.allocated, found.freed), (1, 10, 10));
    assert!(found.ended && !socket.exists());
}

#[test]
fn a_client_is_told_up_to_when_it_has_read() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Some(folder.path().join("sockets"));
    let allocator = recording(1000);
    pairs(&allocator, 1); // The region is there.
    let stream = Stream::start(StreamOptions { socket_directory: directory, ..options(&allocator) }).unwrap();
    let client = UnixStream::connect(stream.socket().unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    wait_until(&stream, |statistics| statistics.clients == 1);
    pairs(&allocator, 10);
    let after_ns = unix_ns();
    wait_until(&stream, |statistics| statistics.events >= 20);
    assert!(stream.stop());
    let found = contents(client);
    assert_eq!(found.marks.first().map(|mark| mark.1), Some(0), "at the beginning");
    let (marked_ns, marked) = *found.marks.last().unwrap();
    assert!(marked == 20 && marked_ns <= unix_ns(), "{found:?}");
    let claims_more = found.marks.iter().find(|&&(time_ns, events)| time_ns >= after_ns && events < 20);
    assert_eq!(claims_more, None, "{found:?}");
}

#[test]
fn a_client_that_does_not_read_costs_the_program_nothing_and_is_told_what_it_missed() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Some(folder.path().join("sockets"));
    let allocator = recording(1 << 16);
    let room = StreamOptions { client_room_bytes: 4096, socket_directory: directory, ..options(&allocator) };
    let stream = Stream::start(room).unwrap();
    let client = UnixStream::connect(stream.socket().unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    wait_until(&stream, |statistics| statistics.clients == 1);
    let (mut made, mut made_at) = (0, Vec::new());
    while stream.statistics().dropped == 0 {
        pairs(&allocator, 1000);
        made += 1000;
        made_at.push((unix_ns(), made));
        assert!(made < 10_000_000, "the socket has taken everything");
    }
    // More is left out while nobody reads; a reader that comes back is told.
    let seen = Arc::new(AtomicU64::new(0));
    let reader = std::thread::spawn({
        let seen = Arc::clone(&seen);
        move || contents_while(client, |found| seen.store(found.events(), Ordering::Relaxed))
    });
    // The end is not waited for long, so the reader has to have caught up before.
    let before = made;
    while seen.load(Ordering::Relaxed) < 2 * before {
        assert!(!reader.is_finished(), "{:?}", reader.join());
        pairs(&allocator, 1);
        made += 1;
        wait_until(&stream, |statistics| statistics.events + statistics.lost >= 2 * made);
    }
    assert!(stream.stop());
    let found = reader.join().unwrap();
    assert!(found.ended, "{found:?}");
    assert_eq!(found.events(), 2 * made, "{} lost", found.lost);
    assert!(found.lost > 0);
    // No watermark has claimed that events were above it that were left out, and not said to be.
    for &(marked_ns, events) in &found.marks {
        let made_before =
            made_at.iter().rfind(|(time_ns, _)| *time_ns <= marked_ns).map_or(0, |&(_, made)| made);
        assert!(events >= 2 * made_before, "{events} of {made_before} pairs");
    }
}

#[test]
fn a_client_that_goes_away_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Some(folder.path().join("sockets"));
    let allocator = recording(1000);
    let stream = Stream::start(StreamOptions { socket_directory: directory, ..options(&allocator) }).unwrap();
    drop(UnixStream::connect(stream.socket().unwrap()).unwrap());
    // With nothing to send, and more often than there are places: each makes room for the next.
    for _ in 0..20 {
        let client = UnixStream::connect(stream.socket().unwrap()).unwrap();
        wait_until(&stream, |statistics| statistics.clients == 1);
        drop(client);
        wait_until(&stream, |statistics| statistics.clients == 0);
    }
    pairs(&allocator, 10);
    wait_until(&stream, |statistics| statistics.events >= 20);
}

#[test]
fn two_devices_are_in_one_trace_and_two_readers_see_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let devices = vec![recording(1000), recording(1000)];
    let stream = Stream::start(StreamOptions {
        stacks: Some(Arc::new(OneSite)),
        socket_directory: Some(folder.path().join("sockets")),
        ..StreamOptions::new(devices.clone())
    })
    .unwrap();
    let connect = || {
        let client = UnixStream::connect(stream.socket().unwrap()).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    };
    let clients = [connect(), connect()];
    wait_until(&stream, |statistics| statistics.clients == 2);
    pairs(&devices[0], 3);
    pairs(&devices[1], 4);
    assert!(stream.stop());
    for client in clients {
        let found = contents(client);
        assert_eq!(found.allocated_on, [(0, 3), (1, 4)].into());
        assert!(found.ended);
    }
}
