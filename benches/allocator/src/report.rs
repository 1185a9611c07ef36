//! What the figures are held against, the table of ratios, and `target/bench/summary.json`.
//!
//! The file has more than one writer (`benches/python/overhead.py` is the other): each replaces its own keys and keeps
//! the rest.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

/// What a ratio should be.
#[derive(Debug, Clone, Copy)]
enum Target {
    AtMost(f64),
    AtLeast(f64),
    /// Shown, and held against nothing.
    Open,
}

/// The keys that this program measures, in the order of the table.
const TARGETS: [(&str, Target); 29] = [
    ("pair.train.offset_allocator", Target::AtMost(0.65)),
    ("pair.train.vma_min_memory", Target::AtMost(0.4)),
    ("pair.train.pytorch_model", Target::AtMost(0.2)),
    ("pair.kv.offset_allocator", Target::AtMost(0.65)),
    ("pair.kv.mimalloc", Target::AtMost(1.5)),
    ("pair.mix.offset_allocator", Target::AtMost(0.7)),
    ("pair.pareto.offset_allocator", Target::AtMost(0.7)),
    ("pair.snapshots.offset_allocator", Target::AtMost(0.65)),
    ("pair.snapshots.vma_min_memory", Target::AtMost(0.4)),
    ("pair.snapshots.pytorch_model", Target::AtMost(0.2)),
    ("packing.train.vma_min_memory", Target::AtLeast(0.998)),
    ("packing.mix.vma_min_memory", Target::AtLeast(1.04)),
    ("packing.mix.best_fit", Target::AtLeast(1.03)),
    ("packing.pareto.vma_min_memory", Target::AtLeast(1.025)),
    ("packing.phase.vma_min_memory", Target::AtLeast(0.99)),
    ("packing.minimalloc.best_peer", Target::AtLeast(1.0)),
    ("packing.snapshots.vma_min_memory", Target::AtLeast(0.998)),
    ("packing.snapshots.vma_default", Target::Open),
    ("packing.snapshots.best_fit", Target::Open),
    ("packing.snapshots.offset_allocator", Target::Open),
    ("packing.snapshots.pytorch_model", Target::Open),
    ("alloc.p99_over_p50", Target::AtMost(4.0)),
    ("metadata.vma", Target::AtMost(0.8)),
    ("locked.over_floor", Target::AtMost(1.3)),
    ("history.event_ns", Target::AtMost(150.0)),
    ("threads2.over_one", Target::AtLeast(1.5)),
    ("threads2.mimalloc_over_one", Target::Open),
    ("threads2.small.over_one", Target::AtLeast(1.5)),
    ("threads2.small.mimalloc_over_one", Target::Open),
];

impl Target {
    fn verdict(self, ratio: f64) -> &'static str {
        let is_met = match self {
            Target::AtMost(limit) => ratio <= limit,
            Target::AtLeast(limit) => ratio >= limit,
            Target::Open => return "",
        };
        if is_met { "met" } else { "missed" }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::AtMost(limit) => write!(formatter, "<= {limit}"),
            Target::AtLeast(limit) => write!(formatter, ">= {limit}"),
            Target::Open => formatter.write_str("-"),
        }
    }
}

/// What one table has: by workload, then by contender.
type Table = BTreeMap<String, BTreeMap<&'static str, Value>>;

/// The ratios, why some are missing, and the tables that the plots are drawn from.
#[derive(Debug, Default)]
pub(crate) struct Report {
    ratios: BTreeMap<&'static str, f64>,
    reasons: BTreeMap<&'static str, String>,
    tables: BTreeMap<&'static str, Table>,
}

impl Report {
    /// A ratio that was measured.
    pub(crate) fn set(&mut self, key: &'static str, ratio: f64) {
        self.ratios.insert(key, ratio);
    }

    /// A ratio that could not be measured.
    pub(crate) fn missing(&mut self, key: &'static str, reason: String) {
        self.reasons.insert(key, reason);
    }

    /// A figure beside the ratios: of a contender on a workload, for a table of the summary.
    pub(crate) fn record(
        &mut self,
        table: &'static str,
        workload: &str,
        contender: &'static str,
        figure: Value,
    ) {
        let table = self.tables.entry(table).or_default();
        table.entry(workload.into()).or_default().insert(contender, figure);
    }

    /// The table of ratios against the targets.
    pub(crate) fn print(&self) {
        println!("\n{:<36} {:>8} {:>10}", "ratio", "measured", "target");
        for (key, target) in TARGETS {
            let (measured, verdict) = match self.ratios.get(key) {
                Some(&ratio) => (format!("{ratio:.3}"), target.verdict(ratio)),
                None => ("-".into(), self.reason(key)),
            };
            println!("{key:<36} {measured:>8} {:>10}  {verdict}", target.to_string());
        }
    }

    fn reason(&self, key: &str) -> &str {
        self.reasons.get(key).map_or("not measured in this run", String::as_str)
    }

    /// Puts the ratios and tables into the summary, beside what others have put there.
    ///
    /// # Errors
    ///
    /// The file is not JSON, or cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let context = || path.display().to_string();
        let mut summary: Map<String, Value> = match std::fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text).with_context(context)?,
            Err(_) => Map::new(),
        };
        section(&mut summary, "machine").extend(machine());
        for (key, _) in TARGETS {
            let ratio = self.ratios.get(key);
            section(&mut summary, "ratios").insert(key.into(), json!(ratio));
            let reasons = section(&mut summary, "reasons");
            match ratio {
                Some(_) => reasons.remove(key),
                None => reasons.insert(key.into(), self.reason(key).into()),
            };
        }
        for (name, table) in &self.tables {
            summary.insert((*name).into(), json!(table));
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(context)?;
        }
        std::fs::write(path, serde_json::to_string_pretty(&summary)? + "\n").with_context(context)
    }
}

/// An object within the summary, made if it is not there.
fn section<'a>(summary: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let value = summary.entry(name).or_insert_with(|| json!({}));
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().expect("made an object above")
}

fn machine() -> Map<String, Value> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut machine =
        Map::from_iter([("processor".into(), json!(std::env::consts::ARCH)), ("cores".into(), json!(cores))]);
    let model = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    machine.extend(model.map(|model| ("model".into(), json!(model))));
    // A ratio from a machine that does other work is worth less.
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    let load = load.and_then(|text| text.split_whitespace().next().map(str::to_owned));
    machine.extend(load.map(|load| ("load".into(), json!(load))));
    machine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_have_the_limit_itself_within() {
        assert_eq!([0.4, 0.41].map(|ratio| Target::AtMost(0.4).verdict(ratio)), ["met", "missed"]);
        assert_eq!([0.4, 0.39].map(|ratio| Target::AtLeast(0.4).verdict(ratio)), ["met", "missed"]);
        assert_eq!(Target::Open.verdict(7.0), "");
    }

    #[test]
    fn keys_of_others_survive_and_own_ones_are_replaced() {
        let path = std::env::temp_dir().join(format!("flex-benches-{}.json", std::process::id()));
        let others = json!({
            "machine": {"torch": "2"},
            "ratios": {"torch.empty.cpu": 1.1, "metadata.vma": 9.0},
            "packing": {"gone": {"flex": 0.1}},
            "latency_ns": {"kept": {}},
        });
        std::fs::write(&path, others.to_string()).unwrap();
        let mut report = Report::default();
        report.set("pair.train.pytorch_model", 0.25);
        report.missing("metadata.vma", "no counters".into());
        report.record("packing", "mix", "flex", json!(0.9));
        report.record("packing", "mix", "peer", json!(0.8));
        report.write(&path).unwrap();
        let summary: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(summary["ratios"]["torch.empty.cpu"], 1.1);
        assert_eq!(summary["ratios"]["pair.train.pytorch_model"], 0.25);
        assert_eq!(summary["ratios"]["metadata.vma"], Value::Null);
        assert_eq!(summary["reasons"]["metadata.vma"], "no counters");
        assert_eq!(summary["machine"]["torch"], "2");
        assert_eq!(summary["packing"], json!({"mix": {"flex": 0.9, "peer": 0.8}}));
        assert_eq!(summary["latency_ns"], json!({"kept": {}}));
        assert!(summary["machine"]["cores"].as_u64().unwrap() > 0);
    }
}
