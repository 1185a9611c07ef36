//! How streams begin and end: what is refused, what takes the place of what, and what they have when recording itself
//! begins, changes and ends.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use common::{Contents, PATIENCE, contents, history, options, pairs, record, recording, to_file, wait_until};
use flex::history::HistoryOptions;
use flex_stream::{Stream, StreamError, StreamOptions};

fn contents_of(path: &Path) -> Contents {
    contents(fs::File::open(path).unwrap())
}

#[test]
fn what_cannot_be_opened_is_an_error_that_names_it() {
    let allocator = recording(16);
    assert!(matches!(Stream::start(options(&allocator)), Err(StreamError::NoSink)));
    let text = |file: &str| {
        let started = Stream::start(StreamOptions { file: Some(file.into()), ..options(&allocator) });
        started.err().unwrap().to_string()
    };
    assert!(text("/no/such/folder/run.trace").contains("/no/such/folder/run.trace: No such file"));
    assert!(text("/dev/full").contains("/dev/full: No space left"));
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let open = Some(folder.path().to_owned());
    let started = Stream::start(StreamOptions { socket_directory: open, ..options(&allocator) });
    assert!(matches!(started, Err(StreamError::UnsafeDirectory { .. })));
}

#[test]
fn what_happened_while_nothing_was_recorded_is_said_to_be_missing() {
    let allocator = recording(1000);
    let (_folder, path, stream) = to_file(&allocator);
    pairs(&allocator, 10);
    wait_until(&stream, |statistics| statistics.events >= 20);
    allocator.record_history(None).unwrap();
    pairs(&allocator, 7);
    record(&allocator, 1000);
    pairs(&allocator, 5);
    assert!(stream.stop());
    assert!(!stream.is_running());
    let found = contents(fs::File::open(&path).unwrap());
    assert_eq!((found.allocated, found.freed, found.lost), (15, 15, 0));
    assert_eq!(found.interruptions, [20]);
}

#[test]
fn what_is_forgotten_before_it_was_drained_counts_as_lost() {
    let allocator = recording(1000);
    pairs(&allocator, 1); // The region is there.
    let (_folder, path, stream) = to_file(&allocator);
    for _ in 0..50 {
        pairs(&allocator, 10);
        let forgetting = HistoryOptions { clear: true, ..history(1000) };
        allocator.record_history(Some(forgetting)).unwrap();
    }
    pairs(&allocator, 1);
    allocator.record_history(None).unwrap();
    assert!(stream.stop());
    let found = contents(fs::File::open(&path).unwrap());
    assert_eq!(found.allocated + found.freed + found.lost, 2 * 501, "{found:?}");
}

#[test]
fn the_path_of_a_process_that_died_is_taken_over_and_a_stream_may_start_again() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("sockets");
    let allocator = recording(1000);
    let with_socket = || StreamOptions { socket_directory: Some(directory.clone()), ..options(&allocator) };
    let first = Stream::start(with_socket()).unwrap();
    let socket = first.socket().unwrap().to_owned();
    assert!(first.stop() && first.stop(), "the second time there is nothing to do");
    // Nobody listens on a socket whose listener was dropped without removing it.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    let second = Stream::start(with_socket()).unwrap();
    let client = UnixStream::connect(&socket).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    wait_until(&second, |statistics| statistics.clients == 1);
    assert!(second.stop());
    assert!(contents(client).ended);
}

#[test]
fn a_stream_that_cannot_begin_leaves_the_one_that_runs_alone() {
    let allocator = recording(1000);
    let (folder, path, stream) = to_file(&allocator);
    let stream = Arc::new(stream);
    pairs(&allocator, 1);
    let refused = |file: &str, socket_directory| {
        let file = Some(file.into());
        let wanted = StreamOptions { file, socket_directory, ..options(&allocator) };
        Stream::prepare(wanted, Some(Arc::clone(&stream))).err().unwrap().as_system_error().unwrap()
    };
    let inside = path.join("run.trace"); // Of a file that is no folder.
    let inside = inside.to_str().unwrap();
    assert_eq!(refused(inside, None).path, Path::new(inside));
    let numbers: Vec<_> =
        ["/no/such/run.trace", "/", "/dev/full", inside].map(|file| refused(file, None).errno).into();
    assert_eq!(numbers, [2, 21, 28, 20], "ENOENT, EISDIR, ENOSPC, ENOTDIR");
    let other = folder.path().join("other.trace");
    assert_eq!(refused(other.to_str().unwrap(), Some(path.clone())).errno, 13, "no folder for sockets");
    assert!(!other.exists(), "the file is the last that is opened");
    pairs(&allocator, 1);
    assert!(stream.is_running() && stream.stop());
    let found = contents_of(&path);
    assert_eq!((found.allocated, found.freed, found.lost, found.ended), (2, 2, 0, true));
}

#[test]
fn until_it_begins_the_one_before_goes_on_and_then_it_has_ended() {
    let allocator = recording(1000);
    let (folder, path, stream) = to_file(&allocator);
    let stream = Arc::new(stream);
    let next = folder.path().join("next.trace");
    let to_next = || StreamOptions { file: Some(next.clone()), ..options(&allocator) };
    drop(Stream::prepare(to_next(), Some(Arc::clone(&stream))).unwrap());
    let starting = Stream::prepare(to_next(), Some(Arc::clone(&stream))).unwrap();
    pairs(&allocator, 3);
    assert!(stream.is_running());
    let second = starting.begin().unwrap();
    assert!(!stream.is_running());
    pairs(&allocator, 2);
    assert!(second.stop());
    let counts = [path, next].map(|path| contents_of(&path)).map(|found| (found.allocated, found.ended));
    assert_eq!(counts, [(3, true), (2, true)]);
}

#[test]
fn a_stream_to_the_same_file_and_socket_takes_them_over() {
    let allocator = recording(1000);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    let both = || StreamOptions {
        file: Some(path.clone()),
        socket_directory: Some(folder.path().join("sockets")),
        ..options(&allocator)
    };
    let first = Arc::new(Stream::start(both()).unwrap());
    pairs(&allocator, 3);
    let starting = Stream::prepare(both(), Some(Arc::clone(&first))).unwrap();
    assert!(first.is_running() && first.drain());
    assert_eq!(contents_of(&path).allocated, 3, "nothing is changed yet");
    let second = starting.begin().unwrap();
    assert!(!first.is_running());
    pairs(&allocator, 2);
    let client = UnixStream::connect(second.socket().unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    wait_until(&second, |statistics| statistics.clients == 1);
    // The file is locked again, although the stream before has closed it.
    let (locks, number) = (fs::read_to_string("/proc/locks").unwrap(), fs::metadata(&path).unwrap().ino());
    let is_ours = |lock: &str| lock.contains("POSIX") && lock.contains(&format!(":{number} "));
    assert!(locks.lines().any(is_ours), "{locks}");
    assert!(second.stop());
    assert!(contents(client).ended);
    let found = contents_of(&path);
    assert_eq!((found.allocated, found.ended), (2, true));
}

#[test]
fn a_relative_path_is_one_from_the_folder_of_that_moment() {
    let allocator = recording(16);
    // Relative to wherever the tests run, without changing that for the others.
    let folder = tempfile::tempdir_in(".").unwrap();
    let name = Path::new(folder.path().file_name().unwrap()).join("run.trace");
    let stream = Stream::start(StreamOptions { file: Some(name.clone()), ..options(&allocator) }).unwrap();
    assert_eq!(stream.file(), Some(&*std::env::current_dir().unwrap().join(&name)));
    assert!(stream.stop());
    assert!(contents_of(&name).ended);
}

#[test]
fn what_was_recorded_is_written_before_a_drain_returns() {
    let allocator = recording(1 << 16);
    let (_folder, path, stream) = to_file(&allocator);
    pairs(&allocator, 10); // The region too, and that the baseline was told.
    assert!(stream.drain());
    let before = stream.statistics().events;
    for made in 1..50 {
        pairs(&allocator, 10);
        assert!(stream.drain());
        assert_eq!(stream.statistics().events, before + 20 * made);
    }
    assert_eq!(contents_of(&path).freed, 500);
    assert!(stream.stop() && stream.drain(), "one that has ended has nothing left");
}

#[test]
fn a_recording_that_ended_comes_before_the_next_one_also_if_nobody_looked_in_between() {
    let allocator = recording(1000);
    pairs(&allocator, 1); // The region is there.
    let (_folder, path, stream) = to_file(&allocator);
    pairs(&allocator, 10);
    allocator.record_history(None).unwrap();
    pairs(&allocator, 7);
    record(&allocator, 1000);
    pairs(&allocator, 5);
    assert!(stream.stop());
    let found = contents_of(&path);
    assert_eq!((found.allocated, found.freed, found.lost, found.interruptions), (15, 15, 0, vec![20]));
}

#[test]
fn nothing_of_a_recording_that_ended_or_was_cleared_is_lost() {
    let allocator = recording(1 << 16);
    pairs(&allocator, 1); // The region is there.
    let (_folder, path, stream) = to_file(&allocator);
    for _ in 0..20 {
        pairs(&allocator, 10);
        allocator.record_history(Some(HistoryOptions { clear: true, ..history(1 << 16) })).unwrap();
        pairs(&allocator, 10);
        allocator.record_history(None).unwrap();
        assert!(stream.drain());
        record(&allocator, 1 << 16);
    }
    assert!(stream.stop());
    let found = contents_of(&path);
    assert_eq!((found.allocated, found.freed, found.lost), (400, 400, 0));
    assert_eq!(found.interruptions, (1..=20).map(|ended| 40 * ended).collect::<Vec<_>>());
    assert_eq!(stream.statistics().lost, 0);
}
