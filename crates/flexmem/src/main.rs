//! The command `flexmem`.
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let start = std::time::Instant::now();
    let file = std::fs::File::open(&path).unwrap();
    let out = std::io::BufWriter::new(std::fs::File::create("/tmp/flexmem_out.ftrace").unwrap());
    let mut writer = flex_trace::Writer::new(out, flex_trace::Header::default()).unwrap();
    match flexmem::import::import(file, &path, &mut writer) {
        Ok(kind) => println!("{kind:?} {} records {:?}", writer.records(), start.elapsed()),
        Err(error) => println!("error: {error}"),
    }
    writer.finish().unwrap();
}
