//! `include/flex.h` says what the crate exports: it is generated again and compared.
//!
//! With `FLEX_WRITE_HEADER=1` in the environment (`make header`) the file is written instead.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn header() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/flex.h")
}

fn generated() -> String {
    let mut text = Vec::new();
    cbindgen::generate(env!("CARGO_MANIFEST_DIR")).expect("cbindgen reads the crate").write(&mut text);
    String::from_utf8(text).expect("a header is text")
}

#[test]
fn the_header_is_up_to_date() {
    let (path, generated) = (header(), generated());
    if env::var_os("FLEX_WRITE_HEADER").is_some() {
        fs::write(&path, generated).expect("the header can be written");
        return;
    }
    let committed = fs::read_to_string(&path).expect("include/flex.h is there");
    assert!(committed == generated, "include/flex.h is stale; `make header` writes it anew");
}

#[test]
fn the_header_declares_every_exported_function() {
    let text = generated();
    let mut exported = 0;
    for source in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).expect("src is there") {
        let source = fs::read_to_string(source.expect("an entry").path()).expect("a source is text");
        for item in source.split("#[unsafe(no_mangle)]").skip(1) {
            let name =
                item.split_once(" fn ").and_then(|(_, rest)| rest.split_once('(')).expect("a function").0;
            assert!(text.contains(&format!("{name}(")), "{name} is not declared");
            exported += 1;
        }
    }
    assert!(exported > 20, "{exported} functions found");
}
