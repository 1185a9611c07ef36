//! The measurements. Each takes contenders and traces and gives figures; what they are held against is in `report`.

pub(crate) mod clock;
pub(crate) mod history;
pub(crate) mod instructions;
pub(crate) mod latency;
pub(crate) mod locked;
pub(crate) mod metadata;
pub(crate) mod overlap;
pub(crate) mod packing;
pub(crate) mod replay;
pub(crate) mod threads;
pub(crate) mod time;

/// The middle one, or the mean of the middle two.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// The arithmetic mean.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
