//! Where the command writes: files are replaced whole and keep what they are, what is no file is written to, and
//! what cannot be written is an error that says so.

mod common;

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::sample;
use tempfile::TempDir;

const FLEXMEM: &str = env!("CARGO_BIN_EXE_flexmem");

/// The subcommands with `--output`.
const WRITERS: [&str; 2] = ["import", "report"];

fn file() -> String {
    sample("complete_trace.pickle").display().to_string()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(FLEXMEM);
    command.args(arguments);
    command
}

fn write(writer: &str, output: &Path) -> Output {
    command(&[writer, &file(), "-o", output.to_str().unwrap()]).output().unwrap()
}

/// What a subcommand writes.
fn expected(writer: &str) -> Vec<u8> {
    let output = write(writer, Path::new("-"));
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    output.stdout
}

#[track_caller]
fn assert_written(writer: &str, output: &Path) {
    let found = write(writer, output);
    assert!(found.status.success(), "{found:?}");
    let name = format!("{}: ", output.display());
    assert!(String::from_utf8(found.stdout).unwrap().starts_with(&name));
    assert!(fs::read(output).unwrap() == expected(writer), "{}", output.display());
}

#[track_caller]
fn assert_refused(output: &Path, why: &str) {
    for writer in WRITERS {
        let found = write(writer, output);
        let said = String::from_utf8(found.stderr).unwrap();
        let expected = format!("flexmem: {}: {why}\n", output.display());
        assert_eq!((found.status.code(), said), (Some(1), expected));
    }
}

fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_link_stays_and_what_it_points_to_is_written() {
    for writer in WRITERS {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("inner")).unwrap();
        let (target, link) = (folder.path().join("inner/target"), folder.path().join("link"));
        symlink("inner/target", &link).unwrap();
        assert_written(writer, &link);
        fs::write(&target, "old").unwrap();
        assert_written(writer, &link);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::symlink_metadata(&target).unwrap().is_file());
        assert_eq!(names(&folder), ["inner", "link"]);
    }
}

#[test]
fn a_file_keeps_its_permissions_and_its_other_names() {
    for writer in WRITERS {
        let folder = tempfile::tempdir().unwrap();
        let (output, other) = (folder.path().join("out"), folder.path().join("other"));
        fs::write(&output, "old").unwrap();
        fs::set_permissions(&output, Permissions::from_mode(0o640)).unwrap();
        let before = fs::metadata(&output).unwrap();
        assert_written(writer, &output);
        let replaced = fs::metadata(&output).unwrap();
        assert_eq!(replaced.mode() & 0o777, 0o640);
        assert_ne!(replaced.ino(), before.ino(), "written beside its place");
        fs::hard_link(&output, &other).unwrap();
        fs::write(&output, vec![b'x'; 1 << 20]).unwrap();
        assert_written(writer, &output);
        assert_eq!(fs::metadata(&other).unwrap().ino(), fs::metadata(&output).unwrap().ino());
        assert_eq!(names(&folder), ["other", "out"]);
    }
}

#[test]
fn what_must_not_or_cannot_be_written_is_refused_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let (protected, loops) = (folder.path().join("protected"), folder.path().join("loop"));
    fs::write(&protected, "precious").unwrap();
    fs::set_permissions(&protected, Permissions::from_mode(0o444)).unwrap();
    assert_refused(&protected, "this file is read-only; remove it, or allow writing to it");
    assert_eq!(fs::read_to_string(&protected).unwrap(), "precious");
    assert_refused(folder.path(), "this is a folder; expected the name of a file");
    assert_refused(&protected.join("out"), &format!("{} is not a folder", protected.display()));
    assert_refused(&folder.path().join("new/"), "this names a folder; expected the name of a file");
    let missing = folder.path().join("missing");
    assert_refused(&missing.join("out"), &format!("there is no folder {}", missing.display()));
    symlink("loop", &loops).unwrap();
    let found = write("import", &loops);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    assert_eq!(names(&folder), ["loop", "protected"]);
}

#[test]
fn a_folder_in_which_no_file_can_be_made_is_named() {
    // Nobody can in this one, whatever rights the tests have.
    for writer in WRITERS {
        let found = write(writer, Path::new("/proc/flexmem-out"));
        let said = String::from_utf8(found.stderr).unwrap();
        assert_eq!(found.status.code(), Some(1));
        let expected = "flexmem: /proc/flexmem-out: no file can be made in the folder /proc: ";
        assert!(said.starts_with(expected), "{said}");
    }
}

#[test]
fn a_pipe_with_a_name_is_written_to() {
    for writer in WRITERS {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        assert!(write(writer, &pipe).status.success());
        assert!(reader.join().unwrap() == expected(writer));
        assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
        assert_eq!(names(&folder), ["pipe"]);
    }
}

#[test]
fn the_standard_output_by_name_is_written_to_and_nothing_else_goes_there() {
    for writer in WRITERS {
        let mut child = command(&[writer, &file(), "-o", "/dev/stdout"]);
        let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
        let mut found = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut found).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(found == expected(writer), "{writer} to a pipe");
        let refused = command(&[writer, &file(), "-o", "/dev/stdout", "--json"]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
}

#[test]
fn an_open_file_by_name_goes_on_where_it_was() {
    for writer in WRITERS {
        let folder = tempfile::tempdir().unwrap();
        for number in [1, 2, 3] {
            let output = folder.path().join(format!("out{number}"));
            let script = format!(
                "exec {number}>\"$3\"; echo before >&{number}; \"$0\" \"$1\" \"$2\" -o /dev/fd/{number}"
            );
            let mut shell = Command::new("sh");
            shell.args(["-c", &script, FLEXMEM, writer, &file()]).arg(&output).stdout(Stdio::null());
            assert!(shell.status().unwrap().success());
            let whole = [b"before\n".as_slice(), &expected(writer)].concat();
            assert!(fs::read(&output).unwrap() == whole, "{writer} to file {number}");
        }
    }
}

#[test]
fn devices_stay_what_they_are() {
    for writer in WRITERS {
        let found = write(writer, Path::new("/dev/null"));
        assert!(found.status.success(), "{found:?}");
    }
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    assert_refused(Path::new("/dev/full"), "No space left on device (os error 28)");
    assert!(fs::metadata("/dev/full").unwrap().file_type().is_char_device());
}

/// Everything that goes to the standard output.
fn printers(file: &str) -> Vec<Vec<&str>> {
    let mut all = vec![
        vec!["--help"],
        vec!["--version"],
        vec!["info", "--help"],
        vec!["completions", "bash"],
        vec!["import", file, "-o", "-"],
        vec!["import", file, "-o", "/dev/null"],
        vec!["import", file, "-o", "/dev/null", "--json"],
        vec!["report", file, "-o", "-"],
        vec!["report", file, "-o", "/dev/null"],
    ];
    for command in
        [&["info"][..], &["report"], &["plan", "--regions", "1"], &["replay", "--device-memory", "4GiB"]]
    {
        let text = [command, &[file]].concat();
        all.push([text.as_slice(), &["--json"]].concat());
        if command[0] != "report" {
            all.push(text);
        }
    }
    all
}

#[test]
fn a_full_standard_output_is_an_error() {
    for arguments in printers(&file()) {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = command(&arguments).stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let expected = "flexmem: the standard output: No space left on device (os error 28)\n";
        assert_eq!((output.status.code(), said.as_str()), (Some(1), expected), "{arguments:?}");
    }
}

#[test]
fn a_reader_who_has_seen_enough_is_no_error() {
    for arguments in printers(&file()) {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(&arguments).stdout(writer).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}
