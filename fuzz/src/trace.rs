//! Bytes that may be a trace: the reader gives records or an error, and what it gives can be written and read again.

use flex_trace::{Header, MAGIC, ReadError, Reader, Record, Tables, Writer};

/// Runs one input: as a whole file, and as the payload of a frame whose checksum is right.
///
/// # Panics
/// If a record, written again, comes back as another, or if the reader gives more than the bytes can hold.
pub fn run(input: &[u8]) {
    // An error is a fine answer.
    let _ = read(input);
    let length = (input.len() as u32).to_le_bytes();
    let checksum = crc32fast::hash(&[&length, input].concat()).to_le_bytes();
    let _ = read(&[&MAGIC, [1, 0, 0, 0].as_slice(), &length, &checksum, input].concat());
}

fn read(file: &[u8]) -> Result<(), ReadError> {
    let mut reader = Reader::new(file)?;
    let mut tables = Tables::new();
    let mut count = 0;
    while let Some(record) = reader.next()? {
        count += 1;
        assert!(count <= file.len(), "a record has two bytes at least");
        tables.keep(&record);
        check_again(&record);
    }
    Ok(())
}

fn check_again(record: &Record<'_>) {
    let mut writer = Writer::new(Vec::new(), Header::default()).expect("memory does not fail");
    writer.write(record).expect("it came out of a frame");
    let bytes = writer.into_output().expect("memory does not fail");
    let mut again = Reader::new(bytes.as_slice()).expect("a trace");
    assert_eq!(again.next().expect("a record").as_ref(), Some(record));
}
