//! Stacks as read from memory, compared with what CPython says about itself, on every interpreter that is found: those
//! of `PYTHON_STACKS_INTERPRETERS` (separated by colons), or else `python3`, `python3.11` to `python3.13`, pyenv's and
//! the free-threaded one in the package cache. At least one has to be there, and each that is has to pass.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Prints what tells interpreters apart, for a CPython whose layout is known.
const DESCRIBE: &str = "import sys, sysconfig
if sys.implementation.name != 'cpython' or not (3, 11) <= sys.version_info < (3, 14): sys.exit(1)
print('%d.%d' % sys.version_info[:2] + ('t' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''))";

fn candidates() -> Vec<PathBuf> {
    if let Some(list) = env::var_os("PYTHON_STACKS_INTERPRETERS") {
        return env::split_paths(&list).collect();
    }
    let names = ["python3", "python3.11", "python3.12", "python3.13", "python3.13t"];
    let mut found: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
    let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    for folder in [home.join(".pyenv/versions"), home.join(".cache/torch-spyre")] {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        found.extend(entries.map(|entry| entry.path().join("bin/python3")).filter(|path| path.exists()));
    }
    found
}

/// One interpreter of each kind.
fn interpreters() -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for candidate in candidates() {
        let Ok(output) = Command::new(&candidate).args(["-c", DESCRIBE]).output() else { continue };
        if output.status.success() {
            let kind = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            found.entry(kind).or_insert(candidate);
        }
    }
    found
}

/// Cargo builds the example beside the tests.
fn probe() -> PathBuf {
    let test = env::current_exe().expect("a test has a path");
    let target = test.parent().and_then(Path::parent).expect("target/PROFILE/deps/TEST");
    target.join("examples").join(format!(
        "{}stacks_probe{}",
        env::consts::DLL_PREFIX,
        env::consts::DLL_SUFFIX
    ))
}

#[test]
fn stacks_read_from_memory_are_those_that_cpython_shows() {
    let interpreters = interpreters();
    assert!(!interpreters.is_empty(), "no CPython 3.11 to 3.13 found among {:?}", candidates());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interpreters.py");
    for (kind, python) in interpreters {
        println!("CPython {kind}: {}", python.display());
        let status =
            Command::new(&python).arg(&script).arg(probe()).env("PYTHONDONTWRITEBYTECODE", "1").status();
        let status = status.unwrap_or_else(|error| panic!("{}: {error}", python.display()));
        assert!(status.success(), "CPython {kind} at {}: {status}", python.display());
    }
}
