//! What makes foreign text safe to print, and a few words for people.
//!
//! Names, reasons, users and messages come from whoever may write an object, or a file. None of it may move the cursor,
//! colour a terminal, hide text or turn it around.

use std::{borrow::Cow, fmt::Write as _};

use jiff::SignedDuration;
use unicode_width::UnicodeWidthStr;

use super::model::Laggard;

/// Whether a character could do anything but show itself: control characters, those that order text from right to left,
/// invisible ones, and line separators.
#[must_use]
pub fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Foreign text with every active character written out: `\u{1b}`.
#[must_use]
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_active) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_active(c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// JSON text whose strings hold no active character as such: they are written `\u001b`, which reads back the same.
#[must_use]
pub fn clean_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        // Outside of strings JSON has line breaks and spaces only.
        if is_active(c) && c != '\n' {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                // A String takes everything.
                let _ = write!(safe, "\\u{unit:04x}");
            }
        } else {
            safe.push(c);
        }
    }
    safe
}

/// How many columns a terminal needs for it.
#[must_use]
pub fn width(text: &str) -> usize {
    text.width()
}

/// Cuts to so many columns, with an ellipsis where something is missing.
#[must_use]
pub fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = 0;
    let mut buffer = [0; 4];
    for c in text.chars() {
        let next = width(c.encode_utf8(&mut buffer));
        if used + next + 1 > columns {
            break;
        }
        used += next;
        kept.push(c);
    }
    if columns > 0 {
        kept.push('…');
    }
    kept
}

/// A duration in its largest unit, as kubectl prints an age: `9d`, `3h`, `12s`.
#[must_use]
pub fn age(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

/// A duration of an acknowledgement.
#[must_use]
pub fn seconds(seconds: f64) -> String {
    if seconds < 120.0 {
        format!("{seconds:.1}s")
    } else {
        age(SignedDuration::from_secs_f64(seconds.min(1e12)))
    }
}

/// `1 answer`, `2 answers`.
#[must_use]
pub fn count(n: usize, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{n} {noun}s")
    }
}

/// The first few who are waited for, and how many more.
#[must_use]
pub fn laggards(laggards: &[Laggard], most: usize) -> String {
    let mut shown: Vec<String> = laggards
        .iter()
        .take(most)
        .map(|laggard| format!("{} ({} {})", laggard.display(), laggard.attestor, laggard.lag.as_str()))
        .collect();
    let more = laggards.len().saturating_sub(shown.len());
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use proptest::{prelude::*, test_runner::RngSeed};

    use super::{age, clean, clean_json, cut, is_active, width};

    const HOSTILE: &str = "a\u{1b}[2J\u{7}\r\nb\u{9b}31m\u{202e}c\u{200b}\u{2066}\u{feff}\u{e0041}";

    #[test]
    fn nothing_active_is_left() {
        let safe = clean(HOSTILE);
        assert!(!safe.chars().any(is_active), "{safe:?}");
        assert!(safe.starts_with("a\\u{1b}[2J"), "{safe}");
        assert_eq!(clean("Zürich 🌍 日本"), "Zürich 🌍 日本");
    }

    #[test]
    fn json_reads_back() {
        let json = serde_json::to_string(HOSTILE).unwrap();
        let safe = clean_json(&json);
        assert!(!safe.chars().any(is_active), "{safe:?}");
        assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), HOSTILE);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 300, rng_seed: RngSeed::Fixed(8), failure_persistence: None, ..ProptestConfig::default()
        })]

        #[test]
        fn any_text_is_made_safe(text in "\\PC{0,10}[\\u{0}-\\u{9f}]{0,5}\\PC{0,5}") {
            prop_assert!(!clean(&text).chars().any(is_active));
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(serde_json::from_str::<String>(&clean_json(&json)).unwrap(), text);
        }

        #[test]
        fn a_cut_fits(text in "\\PC{0,40}", columns in 0..30_usize) {
            prop_assert!(width(&cut(&text, columns)) <= columns);
        }
    }

    #[test]
    fn ages() {
        for (seconds, expected) in [
            (-5, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7200, "2h"),
            (172_800, "2d"),
            (864_000, "10d"),
        ] {
            assert_eq!(age(SignedDuration::from_secs(seconds)), expected);
        }
    }
}
