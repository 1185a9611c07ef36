//! `flexmem watch` on this very process, which streams what its tests do.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use flex::history::{HistoryOptions, Sites};
use flex::{AllocationDirective, AllocatorOptions, CompositeAddress, FlexAllocator, Topology};
use flex_sim::{SimulatedDevice, SimulatedOptions};
use flex_stream::{StackFrame, Stacks, Stream, StreamOptions};
use flex_trace::record::{Device, Source};
use flex_trace::{Action, Event, Header, Record, Writer};
use serde_json::Value;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const CAPACITY: u64 = 1 << 20;

/// Every thread is at one place.
struct Here;

impl Sites for Here {
    fn current(&self) -> u32 {
        1
    }
}

impl Stacks for Here {
    fn frames(&self, _site: u32) -> Vec<StackFrame> {
        vec![StackFrame { filename: "/job/train.py".into(), function: "step".into(), line: 3 }]
    }
}

/// A device of 1 MiB whose history is streamed, by a socket in a folder of its own.
struct World {
    allocator: FlexAllocator,
    stream: Stream,
    runtime: TempDir,
}

impl World {
    fn new(max_entries: usize) -> World {
        let topology = Topology::uniform(CAPACITY).unwrap();
        let device = SimulatedDevice::new(SimulatedOptions {
            name: "spyre:0".to_owned(),
            capacity_bytes: CAPACITY,
            ..SimulatedOptions::default()
        });
        let allocator = FlexAllocator::new(device.unwrap(), &topology, AllocatorOptions::default()).unwrap();
        let sites: Option<Arc<dyn Sites>> = Some(Arc::new(Here));
        let history = HistoryOptions { max_entries, sites, ..HistoryOptions::default() };
        allocator.record_history(Some(history)).unwrap();
        let runtime = tempfile::tempdir().unwrap();
        let stream = Stream::start(StreamOptions {
            stacks: Some(Arc::new(Here)),
            socket_directory: Some(folder_of(&runtime)),
            ..StreamOptions::new(vec![allocator.clone()])
        });
        World { allocator, stream: stream.unwrap(), runtime }
    }

    fn allocate(&self, bytes: u64) -> CompositeAddress {
        self.allocator.allocate(bytes, &AllocationDirective::default()).unwrap()
    }

    fn watch(&self, arguments: &[&str]) -> Watcher {
        let mut command = watch(&self.runtime, std::process::id(), arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Watcher { child, output }
    }

    fn wait_for_clients(&self, clients: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.stream.statistics().clients != clients {
            assert!(Instant::now() < deadline, "{:?}", self.stream.statistics());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn folder_of(runtime: &TempDir) -> PathBuf {
    runtime.path().join("flexmem")
}

fn watch(runtime: &TempDir, process: u32, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexmem"));
    command.env("XDG_RUNTIME_DIR", runtime.path()).arg("watch").arg(process.to_string()).args(arguments);
    command
}

/// `flexmem watch` while it runs.
struct Watcher {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Watcher {
    /// The next line that is as wanted.
    fn line(&mut self, is_wanted: impl Fn(&str) -> bool) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the watch has ended:\n{all}");
            if is_wanted(&line) {
                return line;
            }
            all += &line;
        }
    }

    /// The next object whose first device is as wanted.
    fn moment(&mut self, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let line = self.line(|line| is_wanted(&serde_json::from_str(line).unwrap()));
        serde_json::from_str(&line).unwrap()
    }

    /// The rest of the output, when it has ended well.
    fn rest(mut self) -> String {
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success());
        text
    }
}

fn device(moment: &Value) -> &Value {
    &moment["devices"][0]
}

#[test]
fn what_happens_is_seen_while_it_happens() {
    let world = World::new(10_000);
    let kept = world.allocate(300 << 10);
    let mut watcher = world.watch(&["--json", "--interval", "0.05"]);
    let first = watcher.moment(|moment| device(moment)["live_bytes"] == 300 << 10);
    assert_eq!((&first["process"], &first["ended"]), (&std::process::id().into(), &false.into()));
    assert_eq!(device(&first)["name"], "spyre:0");
    assert_eq!(device(&first)["reserved_bytes"], CAPACITY);
    assert_eq!(device(&first)["holders"][0]["bytes"], 300 << 10);
    assert!(device(&first)["holders"][0]["site"].as_str().unwrap().contains("train.py"));

    let more = world.allocate(500 << 10);
    assert!(world.allocator.allocate(CAPACITY, &AllocationDirective::default()).is_err());
    let failed = watcher.moment(|moment| device(moment)["out_of_memory"] == 1);
    let failure = &device(&failed)["out_of_memory_events"][0];
    assert_eq!(failure["requested_bytes"], CAPACITY);
    assert_eq!(failure["free_bytes"], CAPACITY - (800 << 10));
    drop((kept, more));
    watcher.moment(|moment| device(moment)["live_bytes"] == 0 && device(moment)["peak_bytes"] == 800 << 10);

    assert!(world.stream.stop());
    let rest = watcher.rest();
    let last: Value = serde_json::from_str(rest.lines().last().unwrap()).unwrap();
    assert_eq!(last["ended"], true);
    assert_eq!((&device(&last)["allocations"], &device(&last)["frees"]), (&1.into(), &2.into()));
    assert_eq!(device(&last)["lost_events"], 0);
}

#[test]
fn lines_tell_what_happened_to_a_pipe() {
    let world = World::new(10_000);
    let mut watcher = world.watch(&["--interval", "0.05"]);
    watcher.line(|line| line.contains("live 0 B, peak 0 B"));
    let _kept = world.allocate(300 << 10);
    assert!(world.allocator.allocate(CAPACITY, &AllocationDirective::default()).is_err());
    let line = watcher.line(|line| line.contains("out of memory"));
    assert!(line.contains("tried 1.00 MiB, 724.00 KiB free, 724.00 KiB in one piece, at "), "{line}");
    watcher.line(|line| line.contains("live 300.00 KiB, peak 300.00 KiB, reserved 1.00 MiB"));
    assert!(world.stream.stop());
    assert!(watcher.rest().contains("has ended"));
}

#[test]
fn lines_say_what_was_lost_and_that_the_watch_began_anew() {
    let world = World::new(16);
    let mut watcher = world.watch(&["--interval", "0.05"]);
    watcher.line(|line| line.contains("live 0 B, peak 0 B"));
    let _kept: Vec<_> = (0..100).map(|_| world.allocate(2000)).collect();
    let lost = watcher.line(|line| line.contains("lost: "));
    assert!(lost.contains(" s  device 0  lost: ") && lost.contains(" event"), "{lost}");
    watcher.line(|line| line.contains("began anew, since events were lost"));
    assert!(world.stream.stop());
    watcher.rest();
}

#[test]
fn once_shows_what_is_known_and_ends() {
    let world = World::new(10_000);
    let _kept = world.allocate(300 << 10);
    let output = watch(&world.runtime, std::process::id(), &["--once"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("device 0 (spyre:0), 1.00 MiB\n"), "{text}");
    assert!(text.contains("300.00 KiB in 1 block, 29 %\n"), "{text}");
    assert!(text.contains("train.py"), "{text}");
    world.wait_for_clients(0);
}

#[test]
fn an_output_that_is_full_ends_the_watch() {
    let world = World::new(1024);
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for arguments in [&["--once"][..], &["--json"], &["--interval", "0.05"]] {
        let mut command = watch(&world.runtime, std::process::id(), arguments);
        let output = command.stdout(full()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let expected = "flexmem: the standard output: No space left on device (os error 28)\n";
        assert_eq!((output.status.code(), said.as_str()), (Some(1), expected), "{arguments:?}");
    }
}

#[test]
fn after_a_loss_the_watch_begins_anew_and_is_right_again() {
    let world = World::new(16);
    let mut watcher = world.watch(&["--json", "--interval", "0.05"]);
    watcher.moment(|moment| device(moment)["live_bytes"] == 0);
    let kept: Vec<_> = (0..100).map(|_| world.allocate(2000)).collect();
    // A machine that is busy may lose some twice, between two moments.
    let lossy = watcher.moment(|moment| moment["synchronizations"].as_u64() >= Some(1));
    assert!(device(&lossy)["lost_events"].as_u64().unwrap() > 0);
    watcher.moment(|moment| device(moment)["live_bytes"] == 200_000);
    drop(kept);
    watcher.moment(|moment| device(moment)["live_bytes"] == 0);
    assert!(world.stream.stop());
    watcher.rest();
}

/// Answers one watch of this process as a program would that was stopped when it had told what is live, at `told`.
fn stopped_program(runtime: &TempDir, told: SystemTime) -> std::thread::JoinHandle<()> {
    let folder = folder_of(runtime);
    std::fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
    let listener = UnixListener::bind(folder.join(format!("{}.sock", std::process::id()))).unwrap();
    let time_ns = told.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    std::thread::spawn(move || {
        let mut writer = Writer::new(listener.accept().unwrap().0, Header::default()).unwrap();
        let source = Source { producer: "test", kind: "process", name: "1" };
        writer.write(&Record::Source(source)).unwrap();
        writer.write(&Record::Device(Device { device: 0, name: None, capacity_bytes: None })).unwrap();
        let known = Action::SnapshotTaken { reserved_bytes: None };
        writer.write(&Record::Event(Event::new(0, known))).unwrap();
        writer.write(&Record::Watermark { time_ns }).unwrap();
        writer.finish().unwrap();
    })
}

#[test]
fn what_is_old_is_said_to_be() {
    let told = SystemTime::now() - Duration::from_secs(1000);
    let shown = |arguments: &[&str]| {
        let runtime = tempfile::tempdir().unwrap();
        let program = stopped_program(&runtime, told);
        let output = watch(&runtime, std::process::id(), arguments).output().unwrap();
        program.join().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let moment: Value = serde_json::from_str(&shown(&["--once", "--json"])).unwrap();
    let age_s = moment["age_s"].as_f64().unwrap();
    assert!((1000.0..1000.0 + PATIENCE.as_secs_f64()).contains(&age_s), "{moment}");
    let page = shown(&["--once"]);
    assert!(page.starts_with(&format!("process {}, running, as of 10", std::process::id())), "{page}");
    let lines = shown(&[]);
    assert!(lines.contains(" s  behind: what follows is as of 10"), "{lines}");
}

#[test]
fn what_is_new_is_not_said_to_be_old() {
    let world = World::new(10_000);
    let mut watcher = world.watch(&["--json", "--interval", "0.05"]);
    let moment = watcher.moment(|moment| moment["age_s"].as_f64().is_some_and(|age_s| age_s < 1.0));
    assert_eq!(moment["synchronizations"], 0);
    assert!(world.stream.stop());
    watcher.rest();
}

/// The exit status of a watch that cannot begin, and what it says.
fn refused(runtime: &TempDir, process: u32) -> (i32, String) {
    let Output { status, stderr, stdout } = watch(runtime, process, &[]).output().unwrap();
    assert!(stdout.is_empty());
    (status.code().unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn a_process_that_cannot_be_watched_is_said_to_be_so() {
    let runtime = tempfile::tempdir().unwrap();
    let (status, text) = refused(&runtime, 1 << 30);
    assert_eq!((status, text.as_str()), (4, "flexmem: there is no process 1073741824\n"));
    let (status, text) = refused(&runtime, std::process::id());
    assert_eq!(status, 5, "{text}");
    assert!(text.contains("TORCH_SPYRE_ALLOC_CONF=history:100000,stream_socket:true"), "{text}");
    // A socket that nobody listens on any more.
    let world = World::new(16);
    let socket = world.stream.socket().unwrap().to_owned();
    assert!(world.stream.stop());
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert_eq!(refused(&world.runtime, std::process::id()).0, 5);
}

/// A process of another user: by the rights of root one made for it, which does not end in the middle, or else one that
/// is visible. None where there is neither, as in a container of one user.
fn process_of_another_user() -> Option<(u32, Option<Child>)> {
    if let Ok(child) = Command::new("sleep").arg("600").uid(65_534).spawn() {
        return Some((child.id(), Some(child)));
    }
    let user = |path: &Path| std::fs::metadata(path).ok().map(|metadata| metadata.uid());
    let own = user(Path::new("/proc/self")).unwrap();
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let mut entries = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let found =
        entries.find_map(|path| number(&path).filter(|_| user(&path).is_some_and(|user| user != own)));
    found.map(|process| (process, None))
}

#[test]
fn another_users_process_is_refused() {
    let runtime = tempfile::tempdir().unwrap();
    let Some((process, child)) = process_of_another_user() else {
        eprintln!(
            "no process of another user: the test beside `status` in cli/watch says the same of the error"
        );
        return;
    };
    let (status, text) = refused(&runtime, process);
    if let Some(mut child) = child {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(status, 6, "{text}");
    assert!(text.contains("belongs to the user with number"), "{text}");
}

#[test]
fn a_folder_that_others_may_enter_is_refused() {
    let world = World::new(16);
    let folder = folder_of(&world.runtime);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&folder, open).unwrap();
    let (status, text) = refused(&world.runtime, std::process::id());
    assert_eq!(status, 1, "{text}");
    assert!(text.contains(&said(&folder)) && text.contains("others may enter it"), "{text}");
}

fn said(path: &Path) -> String {
    path.display().to_string()
}
