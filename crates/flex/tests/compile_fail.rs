//! What the types refuse, each with the expected error, beside a twin that compiles.
//!
//! The expected texts are those of the compiler in `rust-toolchain.toml`; another one words them differently, so
//! there only the twins are built. After an update of that file, run with `TRYBUILD=overwrite` and read the
//! differences.

use std::process::Command;

/// The version whose texts are recorded.
const RECORDED: &str = "rustc 1.95.";

#[test]
fn the_contract_is_checked_by_the_compiler() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().expect("cargo has just run rustc");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    if version.starts_with(RECORDED) {
        cases.compile_fail("tests/ui/fail/*.rs");
    } else {
        eprintln!("the refused programs are checked with {RECORDED}*, this is {version}");
    }
}
