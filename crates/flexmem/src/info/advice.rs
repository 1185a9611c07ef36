//! What to do next. Never what is set already.

use super::answers::{HistoryState, Info, MemoryInfo};

/// Memory between live blocks that is worth a word: this part of what is reserved.
const STUCK: u64 = 10;

/// What to do, the most useful first.
pub(super) fn advice(info: &Info) -> Vec<String> {
    let mut advice = Vec::new();
    let Some(busiest) = info.devices.first() else {
        return vec![
            "The file tells of no device: take the snapshot after the program has used one.".to_owned(),
        ];
    };
    match busiest.history.state {
        HistoryState::OwnersOnly => advice.push(
            "History has no events, as before PyTorch 2.1: with a later one, call \
             torch.cuda.memory._record_memory_history() before the model is made, then take the snapshot again."
                .to_owned(),
        ),
        HistoryState::NeverOn => advice.push(
            "History was never on: call torch.cuda.memory._record_memory_history() (torch.spyre.memory's on spyre) before \
             the model is made, then take the snapshot again."
                .to_owned(),
        ),
        HistoryState::Truncated if busiest.history.is_contradictory_alone() => advice.push(
            "Some events do not fit the others, so that the peak may have been another: the file is damaged, or was \
             put together from several."
                .to_owned(),
        ),
        HistoryState::Truncated if is_pytorch(info) => advice.push(
            "History does not reach back to an empty device: switch it on earlier, or raise max_entries, to see the \
             peak for sure."
                .to_owned(),
        ),
        HistoryState::Truncated | HistoryState::Whole => {}
    }
    if let Some(memory) = &busiest.memory {
        advice.extend(about_fragmentation(info, memory));
    }
    advice
}

fn about_fragmentation(info: &Info, memory: &MemoryInfo) -> Option<String> {
    if memory.stuck_bytes <= memory.reserved_bytes / STUCK || !is_pytorch(info) || !knows_expandable(info) {
        return None;
    }
    let is_on = info.is_on("expandable_segments");
    match (is_on, memory.expandable_segments) {
        (false, _) => Some(
            "Much is free between live blocks: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets segments grow \
             instead."
                .to_owned(),
        ),
        (true, 0) => Some(
            "expandable_segments is set, and no segment is expandable: the platform does not support it.".to_owned(),
        ),
        (true, _) => None,
    }
}

/// Whether the allocator has expandable segments: that of `spyre` has none, whose settings come under a name of their
/// own.
fn knows_expandable(info: &Info) -> bool {
    info.settings.iter().all(|setting| setting.key != "TORCH_SPYRE_ALLOC_CONF")
}

fn is_pytorch(info: &Info) -> bool {
    info.source.kind.starts_with("PyTorch snapshot")
}

impl Info {
    /// Whether a setting of the allocator is on.
    pub fn is_on(&self, key: &str) -> bool {
        self.settings.iter().any(|setting| setting.key == key && setting.value == "True")
    }

    /// Settings that differ from PyTorch's defaults, as `key:value`.
    pub fn settings_on(&self) -> Vec<String> {
        let is_default = |value: &str| matches!(value, "" | "False" | "None" | "0" | "-1" | "1");
        let own = |key: &str| key.contains("ALLOC_CONF") || key.contains('.');
        let changed =
            self.settings.iter().filter(|setting| !is_default(&setting.value) && !own(&setting.key));
        changed.map(|setting| format!("{}:{}", setting.key, setting.value)).collect()
    }
}
