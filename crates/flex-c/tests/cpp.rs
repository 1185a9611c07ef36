//! Native programs against the library: `cpp/plain.c` as strict C99, and the C++ tests in `cpp/`, plain and under
//! ThreadSanitizer. They are compiled with the system's compilers (`CC`, `CXX`); each program has a watchdog.
//!
//! The sanitizer does not see into this library: Rust's standard library is not instrumented, and its locks are no
//! pthread mutexes. Two things follow, which `tsan.supp` and `flex.hpp` take care of:
//!
//! - Calls that the library makes into libc (`free`, `memcpy`) would be taken for unsynchronised accesses. The program
//!   is therefore linked to the *shared* library, whose calls the sanitizer can leave out as a whole. Reports about
//!   the program's own accesses are not affected.
//! - That the library orders a free before the allocation that uses the memory again, and the setting of a callback
//!   before its calls, has to be announced. `flex.hpp` does that.
//!
//! Races inside the library are looked for elsewhere, with an instrumented standard library.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

/// What a static library of Rust's needs of the system.
const SYSTEM_LIBRARIES: [&str; 4] = ["-lgcc_s", "-lpthread", "-ldl", "-lm"];
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cpp")
}

/// Where cargo has put this test, and with it the libraries.
fn libraries() -> PathBuf {
    let test = env::current_exe().expect("the test has a path");
    test.parent().expect("it lies in a folder").to_path_buf()
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"))
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn succeed(command: &mut Command) -> String {
    let output = output(command);
    let text = text(&output);
    assert!(output.status.success(), "{command:?} failed: {}\n{text}", output.status);
    text
}

/// The compiler named by `variable`, or `default`, with the flags of every program.
fn compiler(variable: &str, default: &str, standard: &str) -> Command {
    let mut command = Command::new(env::var(variable).unwrap_or_else(|_| default.into()));
    command.arg(standard).args(WARNINGS).args(["-g", "-O1", "-I"]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include"));
    command
}

fn program(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    folder.join(name)
}

/// Compiles the C++ tests with more flags.
fn cpp_tests(name: &str, flags: &[&str], link: &[PathBuf]) -> PathBuf {
    let program = program(name);
    let mut command = compiler("CXX", "c++", "-std=c++17");
    command.args(flags);
    command.args(["main.cpp", "allocation.cpp", "pressure.cpp"].map(|file| sources().join(file)));
    succeed(command.args(link).args(SYSTEM_LIBRARIES).arg("-o").arg(&program));
    program
}

#[test]
fn plain_c99() {
    let program = program("plain_c");
    let mut command = compiler("CC", "cc", "-std=c99");
    // `fork` and `_exit` are POSIX, not C.
    command.arg("-D_POSIX_C_SOURCE=200809L").arg(sources().join("plain.c"));
    succeed(command.arg(libraries().join("libflex_c.a")).args(SYSTEM_LIBRARIES).arg("-o").arg(&program));
    assert_eq!(succeed(&mut Command::new(program)), "ok\n");
}

/// The examples of a document, by language.
fn examples<'a>(document: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    document.split(fence.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

#[test]
fn the_examples_in_the_documents_compile() {
    let mut compiled = 0;
    for name in ["c_api.md", "lock_ordering.md"] {
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        let text = fs::read_to_string(document).expect("the document is there");
        for (language, variable, default, standard) in
            [("c", "CC", "cc", "-std=c99"), ("cpp", "CXX", "c++", "-std=c++17")]
        {
            for example in examples(&text, language).iter().filter(|text| text.starts_with("#include")) {
                let source = program(&format!("example_{compiled}.{language}"));
                fs::write(&source, example).expect("the example can be written");
                succeed(compiler(variable, default, standard).arg("-fsyntax-only").arg(source));
                compiled += 1;
            }
        }
    }
    assert_eq!(compiled, 4);
}

#[test]
fn cpp_with_the_static_library() {
    let program = cpp_tests("cpp_plain", &[], &[libraries().join("libflex_c.a")]);
    assert!(succeed(&mut Command::new(&program)).ends_with("tests passed\n"));

    let thrown = output(Command::new(&program).arg("raw-throw"));
    let said = text(&thrown);
    assert!(!thrown.status.success(), "an exception that leaves a C callback ends the process");
    assert!(said.contains("an exception left a callback of the C ABI"), "{said}");
}

#[test]
fn cpp_under_thread_sanitizer() {
    const SANITIZE: &str = "-fsanitize=thread";
    let probe = program("tsan_probe");
    let mut command = Command::new(env::var("CXX").unwrap_or_else(|_| "c++".into()));
    let source = sources().join("tsan_probe.cpp");
    let compiled = output(command.arg(SANITIZE).arg(source).arg("-o").arg(&probe));
    if !compiled.status.success() || !output(&mut Command::new(&probe)).status.success() {
        assert!(env::var_os("CI").is_none(), "the C++ compiler here has no working ThreadSanitizer");
        eprintln!("skipped: this machine has no working ThreadSanitizer");
        return;
    }
    let program = cpp_tests("cpp_tsan", &[SANITIZE], &[libraries().join("libflex_c.so")]);
    let suppressions = sources().join("tsan.supp");
    let options = format!("exitcode=66 history_size=7 suppressions={}", suppressions.display());
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", libraries()).env("TSAN_OPTIONS", options);
    let said = succeed(&mut command);
    assert!(!said.contains("ThreadSanitizer"), "{said}");

    let raced = output(command.arg("race"));
    let said = text(&raced);
    assert_eq!(raced.status.code(), Some(66), "the suppressions hide a race of the program's own: {said}");
    assert!(said.contains("data race"), "{said}");
}
