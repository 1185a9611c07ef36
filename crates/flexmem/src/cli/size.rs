//! Sizes as arguments: `24GiB`, `1.5g`, `512 MB`, `1048576`.

/// Reads a size in bytes. `K`, `M`, `G`, `T` and `KiB` and so on are powers of 1024, `KB` and so on of 1000.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("expected a size such as 24GiB, 512MB or 1048576, found {text:?}");
    let text_only = text.trim();
    let end = text_only.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text_only.len());
    let (number, unit) = text_only.split_at(end);
    let unit = unit.trim().to_ascii_lowercase();
    let power = match unit.as_str() {
        "" | "b" => 0,
        "k" | "kb" | "ki" | "kib" => 1,
        "m" | "mb" | "mi" | "mib" => 2,
        "g" | "gb" | "gi" | "gib" => 3,
        "t" | "tb" | "ti" | "tib" => 4,
        _ => return Err(wrong()),
    };
    let is_decimal = unit.len() == 2 && unit.ends_with('b');
    let factor = if is_decimal { 1000_u64 } else { 1024 }.pow(power);
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).filter(|&bytes| bytes > 0).ok_or_else(wrong);
    }
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * factor as f64;
    if bytes >= 1.0 && bytes < 2f64.powi(63) { Ok(bytes as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_all_spellings() {
        for (text, bytes) in [
            ("1048576", 1 << 20),
            ("24GiB", 24 << 30),
            ("24 gib", 24 << 30),
            ("24G", 24 << 30),
            ("1.5g", 3 << 29),
            ("512MB", 512_000_000),
            ("7b", 7),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "GiB", "0", "-1", "1.2.3", "5 parsecs", "5bb", "5ib", "5gibb", "99999999999T", "1e400"]
        {
            assert!(parse(text).unwrap_err().contains(&format!("{text:?}")), "{text}");
        }
    }
}
