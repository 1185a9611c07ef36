//! The environment: `TORCH_SPYRE_ALLOC_CONF`, `FLEX_*` and `TORCH_SPYRE_ALLOC_DEBUG`, parsed strictly.
//!
//! Every error names the variable, the item and what was expected. Nothing is guessed, nothing ignored.

use std::env;
use std::time::Duration;

use flex::RegionOrder;
use flex::gate::{CollectPolicy, PolicySettings};
use flex::history::MAX_ENTRIES;

use crate::stream::Targets;

/// The allocator's settings, in the style of `PYTORCH_CUDA_ALLOC_CONF`.
const ALLOC_CONF: &str = "TORCH_SPYRE_ALLOC_CONF";
const DEVICE: &str = "FLEX_DEVICE";
const MAX_REGIONS: &str = "FLEX_MAX_REGIONS";
const DOMAINS: &str = "FLEX_NUM_MEMORY_DOMAINS";
const DEBUG: &str = "TORCH_SPYRE_ALLOC_DEBUG";

const KEYS: &str = "one of device_memory, devices, gc, gc_timeout_ms, escalate, region_order, history, stream_file, \
                    stream_socket, poison, cycles, cycle_warning";

/// The most devices a process may have: a device number is one byte of a tensor's context.
pub(crate) const MAX_DEVICES: u64 = 64;

/// How the simulated device lays its memory out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    /// One region of exactly the device's memory.
    Sim,
    /// As the hardware does for a physical function: regions named by their address.
    Pf,
    /// As the hardware does for a virtual function: regions named by an index.
    Vf,
}

/// Everything the environment says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Configuration {
    pub(crate) device_memory_bytes: u64,
    pub(crate) device_count: u64,
    pub(crate) policy: PolicySettings,
    pub(crate) region_order: RegionOrder,
    pub(crate) poison: bool,
    /// Events kept from the start; 0 for no history.
    pub(crate) history_entries: u64,
    /// Where the history is streamed to from the start.
    pub(crate) stream: Targets,
    pub(crate) cycles: bool,
    pub(crate) cycle_warning_bytes: Option<u64>,
    pub(crate) kind: DeviceKind,
    pub(crate) max_regions: u32,
    pub(crate) domain_count: u32,
    pub(crate) debug: bool,
}

impl Default for Configuration {
    fn default() -> Self {
        Configuration {
            device_memory_bytes: 4 << 30,
            device_count: 1,
            policy: PolicySettings::default(),
            region_order: RegionOrder::default(),
            poison: false,
            history_entries: 0,
            stream: Targets::default(),
            cycles: false,
            cycle_warning_bytes: None,
            kind: DeviceKind::Sim,
            max_regions: 7,
            domain_count: 1,
            debug: false,
        }
    }
}

impl Configuration {
    /// Reads the environment of the process.
    ///
    /// # Errors
    /// The first offending variable, with its item and what was expected.
    pub(crate) fn from_environment() -> Result<Self, String> {
        let mut configuration = Configuration::default();
        configuration.read_alloc_conf(&variable(ALLOC_CONF)?.unwrap_or_default())?;
        if let Some(kind) = variable(DEVICE)? {
            configuration.kind = match kind.trim().to_ascii_uppercase().as_str() {
                "" | "SIM" | "MOCK" => DeviceKind::Sim,
                "PF" => DeviceKind::Pf,
                "VF" => DeviceKind::Vf,
                _ => return Err(bad(DEVICE, &kind, "SIM, PF, VF or MOCK")),
            };
        }
        if let Some(regions) = variable(MAX_REGIONS)? {
            configuration.max_regions = number(MAX_REGIONS, &regions, &regions, 2, 4096)? as u32;
        }
        if let Some(domains) = variable(DOMAINS)? {
            configuration.domain_count = number(DOMAINS, &domains, &domains, 1, 4096)? as u32;
        }
        if configuration.max_regions % configuration.domain_count != 0 {
            let expected = format!("a divisor of the {} regions ({MAX_REGIONS})", configuration.max_regions);
            return Err(bad(DOMAINS, &configuration.domain_count.to_string(), &expected));
        }
        if let Some(debug) = variable(DEBUG)? {
            configuration.debug = match debug.trim() {
                "" | "0" => false,
                "1" => true,
                _ => return Err(bad(DEBUG, &debug, "0 or 1")),
            };
        }
        Ok(configuration)
    }

    fn read_alloc_conf(&mut self, text: &str) -> Result<(), String> {
        if text.trim().is_empty() {
            return Ok(());
        }
        let mut seen = Vec::new();
        for item in text.split(',').map(str::trim) {
            let Some((key, value)) = item.split_once(':') else {
                return Err(bad(ALLOC_CONF, item, "key:value"));
            };
            let (key, value) = (key.trim(), value.trim());
            if seen.contains(&key) {
                return Err(bad(ALLOC_CONF, item, "each key at most once"));
            }
            seen.push(key);
            self.set(item, key, value)?;
        }
        if self.cycle_warning_bytes.is_some() && !self.cycles && seen.contains(&"cycles") {
            return Err(bad(ALLOC_CONF, "cycles:false", "cycles:true, or no cycle_warning beside it"));
        }
        if self.history_entries == 0 && !self.stream.is_empty() {
            let key = if self.stream.socket { "stream_socket" } else { "stream_file" };
            return Err(bad(ALLOC_CONF, key, "a history to stream beside it, such as history:100000"));
        }
        Ok(())
    }

    fn set(&mut self, item: &str, key: &str, value: &str) -> Result<(), String> {
        let bad = |expected: &str| Err(bad(ALLOC_CONF, item, expected));
        match key {
            "device_memory" => match size_bytes(value) {
                Some(bytes) => self.device_memory_bytes = bytes,
                None => {
                    return bad(
                        "a size of at least 128 bytes and less than 512 GiB a region, such as 4GiB, 1.5 MiB or 1048576",
                    );
                }
            },
            "devices" => self.device_count = number(ALLOC_CONF, item, value, 1, MAX_DEVICES)?,
            "gc" => {
                self.policy.collect = match collect_policy(value) {
                    Some(policy) => policy,
                    None => return bad("gc:always, gc:respect_disable or gc:off"),
                }
            }
            "gc_timeout_ms" => {
                let milliseconds = number(ALLOC_CONF, item, value, 1, MAX_TIMEOUT_MS)?;
                self.policy.timeout = Duration::from_millis(milliseconds);
            }
            "escalate" => self.policy.escalate = boolean(item, value)?,
            "poison" => self.poison = boolean(item, value)?,
            "cycles" => self.cycles = boolean(item, value)?,
            "cycle_warning" => match size_bytes(value) {
                Some(bytes) => self.cycle_warning_bytes = Some(bytes),
                None => return bad("a size of at least 128 bytes, such as 64MiB"),
            },
            "region_order" => {
                self.region_order = match value {
                    "most_free" => RegionOrder::MostFree,
                    "least_free" => RegionOrder::LeastFree,
                    _ => return bad("region_order:most_free or region_order:least_free"),
                }
            }
            "stream_file" if value.is_empty() => return bad("a path, such as /tmp/run-%p.trace"),
            "stream_file" => self.stream.file = Some(value.into()),
            "stream_socket" => self.stream.socket = boolean(item, value)?,
            "history" => self.history_entries = number(ALLOC_CONF, item, value, 0, MAX_ENTRIES.into())?,
            _ => return bad(KEYS),
        }
        Ok(())
    }
}

/// The longest timeout: a year, far from overflowing a deadline.
pub(crate) const MAX_TIMEOUT_MS: u64 = 365 * 24 * 3600 * 1000;

/// The policy's name as in the environment and in Python.
pub(crate) fn collect_policy(name: &str) -> Option<CollectPolicy> {
    match name {
        "always" => Some(CollectPolicy::Always),
        "respect_disable" => Some(CollectPolicy::RespectDisable),
        "off" => Some(CollectPolicy::Off),
        _ => None,
    }
}

/// The name of a policy.
pub(crate) fn collect_policy_name(policy: CollectPolicy) -> &'static str {
    match policy {
        CollectPolicy::Always => "always",
        CollectPolicy::RespectDisable => "respect_disable",
        CollectPolicy::Off => "off",
    }
}

fn bad(variable: &str, item: &str, expected: &str) -> String {
    format!("{variable}: invalid item {item:?}: expected {expected}")
}

fn variable(name: &str) -> Result<Option<String>, String> {
    match env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(value)) => Err(bad(name, &value.to_string_lossy(), "UTF-8 text")),
    }
}

fn boolean(item: &str, value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(bad(ALLOC_CONF, item, "true or false")),
    }
}

fn number(variable: &str, item: &str, value: &str, least: u64, most: u64) -> Result<u64, String> {
    let value = value.trim();
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    match value.parse() {
        Ok(number) if digits && (least..=most).contains(&number) => Ok(number),
        _ => Err(bad(variable, item, &format!("an integer from {least} to {most}"))),
    }
}

/// A size: a number, decimals allowed, with B, KiB, MiB, GiB or TiB in any case, or plain bytes.
fn size_bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, u32); 5] = [("kib", 10), ("mib", 20), ("gib", 30), ("tib", 40), ("b", 0)];
    let text = text.to_ascii_lowercase();
    let (digits, shift) = UNITS
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?.trim_end(), *shift)))
        .unwrap_or((&text, 0));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty()
        || !is_number(whole)
        || !is_number(fraction)
        || (fraction.is_empty() && digits.contains('.'))
    {
        return None;
    }
    let whole: u128 = whole.parse().ok()?;
    // Exact to the byte: the fraction is scaled as an integer.
    let fraction = fraction.get(..fraction.len().min(18))?;
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let bytes = whole.checked_mul(1 << shift)?.checked_add((fraction << shift) / scale)?;
    let bytes = u64::try_from(bytes).ok()?;
    (bytes >= flex::ALIGNMENT_BYTES).then_some(bytes)
}
