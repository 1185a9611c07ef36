//! Every input of the committed corpus, without a fuzzer.

use std::fs;
use std::path::Path;

fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut inputs: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{} is empty", folder.display());
    for path in inputs {
        println!("{}", path.display());
        run(&fs::read(path).unwrap());
    }
}

#[test]
fn arena() {
    replay("arena", flex_fuzz::arena::run);
}

#[test]
fn pressure() {
    replay("pressure", flex_fuzz::pressure::run);
}

#[test]
fn trace() {
    replay("trace", flex_fuzz::trace::run);
}

#[test]
fn import() {
    replay("import", flex_fuzz::import::run);
}
