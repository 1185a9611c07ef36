//! Figures and lists for people.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};

use humansize::{BINARY, FormatSizeOptions, format_size};

use crate::info::answers::Holders;
use crate::site::NO_STACK;

/// A size, as people say it: `1.50 GiB`.
pub(super) fn size(bytes: u64) -> String {
    size_with_places(bytes, 2)
}

/// A size with so many places behind the point; bytes have none.
pub(super) fn size_with_places(bytes: u64, places: usize) -> String {
    let places = if bytes < 1024 { 0 } else { places };
    format_size(bytes, FormatSizeOptions::from(BINARY).decimal_places(places).decimal_zeroes(places))
}

/// Text from a file or another process as a terminal may have it: what would steer the terminal, end the line, or
/// change the order of letters, is spelled out.
pub(super) fn harmless(text: &str) -> Cow<'_, str> {
    let is_harmful = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut spelled = String::new();
    for c in text.chars() {
        if is_harmful(c) {
            spelled.extend(c.escape_default());
        } else {
            spelled.push(c);
        }
    }
    Cow::Owned(spelled)
}

/// Says on the error stream what went wrong. If that is gone too, there is nobody to tell.
pub(super) fn complain(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "flexmem: {}", harmless(&text.to_string()));
}

/// A number with commas.
pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 block`, `2 blocks`.
pub(super) fn count(value: u64, what: &str) -> String {
    format!("{} {what}{}", number(value), if value == 1 { "" } else { "s" })
}

/// `1 other block`, `2 other blocks`: those that a list does not show.
fn besides(value: u64, what: &str) -> String {
    count(value, &format!("other {what}"))
}

/// A share in percent.
pub(super) fn percent(part: u64, whole: u64) -> String {
    format!("{:.0} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// A time span.
pub(super) fn duration(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match seconds {
        0.0..0.001 => format!("{:.0} µs", seconds * 1e6),
        0.001..1.0 => format!("{:.0} ms", seconds * 1e3),
        1.0..600.0 => format!("{seconds:.1} s"),
        _ => format!("{:.0} min", seconds / 60.0),
    }
}

/// Lines with a label each, aligned; lines without one belong to the label above. All are [`harmless`].
#[derive(Debug, Default)]
pub(super) struct Lines {
    text: String,
}

const LABEL_WIDTH: usize = 15;

impl Lines {
    pub(super) fn plain(&mut self, text: impl fmt::Display) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{}", harmless(&text.to_string()));
    }

    pub(super) fn add(&mut self, label: &str, text: impl fmt::Display) {
        let _ = writeln!(self.text, "  {label:<LABEL_WIDTH$}{}", harmless(&text.to_string()));
    }

    /// Who holds memory, the largest first.
    pub(super) fn holders(&mut self, label: &str, holders: &Holders) {
        for (index, holder) in holders.largest.iter().enumerate() {
            let site = holder.site.clone().unwrap_or_else(|| format!("({NO_STACK})"));
            let label = if index == 0 { label } else { "" };
            let (bytes, blocks) = (size(holder.bytes), count(holder.blocks, "block"));
            self.add(label, format_args!("{bytes:>11}  {blocks:>12}  {site}"));
        }
        let others = holders.others;
        if others.sites > 0 {
            let label = if holders.largest.is_empty() { label } else { "" };
            let (bytes, blocks) = (size(others.bytes), count(others.blocks, "block"));
            self.add(label, format_args!("{bytes:>11}  {blocks:>12}  in {}", besides(others.sites, "place")));
        }
    }

    /// How many entries a list does not show, if any.
    pub(super) fn left_out(&mut self, label: &str, entries: u64, what: &str) {
        if entries > 0 {
            self.add(label, besides(entries, what));
        }
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_do_not_steer_the_terminal() {
        let mut lines = Lines::default();
        lines.plain("a\u{1b}[2Jb");
        lines.add("x", "one\ntwo\u{202e}");
        lines.add("y", "größe ✓");
        assert_eq!(
            lines.into_text(),
            "a\\u{1b}[2Jb\n  x              one\\ntwo\\u{202e}\n  y              größe ✓\n"
        );
    }

    #[test]
    fn figures_read_well() {
        assert_eq!((size(0), size(512), size(1536)), ("0 B".into(), "512 B".into(), "1.50 KiB".into()));
        assert_eq!(size(5_308_694_528), "4.94 GiB");
        assert_eq!(
            (size_with_places(2_705_829_396, 3), size_with_places(7, 3)),
            ("2.520 GiB".into(), "7 B".into())
        );
        assert_eq!(
            (number(1), number(1234), number(1_234_567)),
            ("1".into(), "1,234".into(), "1,234,567".into())
        );
        assert_eq!((count(1, "block"), count(2, "block")), ("1 block".into(), "2 blocks".into()));
        assert_eq!(percent(1, 3), "33 %");
        assert_eq!(
            (duration(2_000), duration(5_000_000), duration(1_500_000_000)),
            ("2 µs".into(), "5 ms".into(), "1.5 s".into())
        );
    }
}
