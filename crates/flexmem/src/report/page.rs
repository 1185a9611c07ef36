//! Puts the page together: one file without references to any other.
//!
//! What comes from the trace is deflated and in base64, so nothing in it can be taken for HTML; the scripts put it on
//! the page as text only. The Content-Security-Policy lets the browser run the one script whose hash it names and
//! fetch nothing.

use std::io::Write;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::recording::DeviceRecording;
use super::summary::Summary;

const PAGE: &str = include_str!("../../report/page.html");
const STYLE: &str = include_str!("../../report/style.css");
/// In an order in which each module follows those that it imports from.
const MODULES: [&str; 8] = [
    include_str!("../../report/text.js"),
    include_str!("../../report/data.js"),
    include_str!("../../report/levels.js"),
    include_str!("../../report/chart.js"),
    include_str!("../../report/map.js"),
    include_str!("../../report/tables.js"),
    include_str!("../../report/keys.js"),
    include_str!("../../report/main.js"),
];

/// What the page reads first: the figures, and where the columns lie behind them.
#[derive(Serialize)]
struct Contents<'a> {
    summary: &'a Summary,
    devices: Vec<Vec<Place>>,
}

#[derive(Serialize)]
struct Place {
    name: String,
    count: usize,
    bytes: usize,
}

/// The page.
pub(super) fn render(summary: &Summary, recordings: &[DeviceRecording]) -> anyhow::Result<String> {
    let script = script();
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
        hash(&script),
        hash(STYLE)
    );
    let data = BASE64_STANDARD.encode(pack(summary, recordings)?);
    let mut page = PAGE.to_owned();
    for (name, value) in [("POLICY", policy.as_str()), ("STYLE", STYLE), ("SCRIPT", &script), ("DATA", &data)]
    {
        page = page.replacen(&format!("{{{{{name}}}}}"), value, 1);
    }
    Ok(page)
}

/// One script of all modules: their imports and exports, each on a line, are what holds them apart.
fn script() -> String {
    let mut script = String::from("\"use strict\";\n");
    for line in MODULES.iter().flat_map(|module| module.lines()) {
        if !line.starts_with("import ") {
            script.push_str(line.strip_prefix("export ").unwrap_or(line));
            script.push('\n');
        }
    }
    script
}

fn hash(text: &str) -> String {
    format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(text)))
}

/// The length of the JSON in four bytes, little endian, the JSON, and the columns; deflated.
fn pack(summary: &Summary, recordings: &[DeviceRecording]) -> anyhow::Result<Vec<u8>> {
    let columns: Vec<_> = recordings.iter().map(DeviceRecording::columns).collect();
    let devices = columns.iter().map(|columns| {
        let place = |(name, column): &(String, super::columns::Column)| Place {
            name: name.clone(),
            count: column.count(),
            bytes: column.bytes().len(),
        };
        columns.iter().map(place).collect()
    });
    let json = serde_json::to_vec(&Contents { summary, devices: devices.collect() })?;
    let mut packed = DeflateEncoder::new(Vec::new(), Compression::new(6));
    packed.write_all(&u32::try_from(json.len())?.to_le_bytes())?;
    packed.write_all(&json)?;
    for (_, column) in columns.iter().flatten() {
        packed.write_all(column.bytes())?;
    }
    Ok(packed.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_has_no_module_syntax_left_and_cannot_end_its_element() {
        let script = script();
        assert!(!script.lines().any(|line| line.starts_with("import ") || line.starts_with("export ")));
        assert!(!script.contains("</script") && !script.contains("<!--"), "it would end inside the page");
        assert!(!STYLE.contains("</style"));
    }

    #[test]
    fn no_top_level_name_is_defined_twice() {
        let script = script();
        let mut names: Vec<&str> = script
            .lines()
            .filter_map(|line| {
                let line = line.strip_prefix("async ").unwrap_or(line);
                ["function ", "class ", "const ", "let "].iter().find_map(|word| line.strip_prefix(word))
            })
            .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next())
            .filter(|name| !name.is_empty())
            .collect();
        names.sort_unstable();
        let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert!(twice.is_empty(), "{twice:?}");
    }
}
