//! The time that a caller waits, from `?timeout=10s`.

use std::time::Duration;

/// What the API server takes where a webhook configuration says nothing (`timeoutSeconds`).
const DEFAULT: Duration = Duration::from_secs(10);
/// The longest that a webhook configuration may ask for.
const LONGEST: Duration = Duration::from_secs(30);
/// The answer is to be there this long before the caller gives up.
const MARGIN: Duration = Duration::from_millis(250);

/// A timeout that is none.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("timeout={0:?} is not a positive duration such as 10s")]
pub(super) struct BadTimeout(String);

/// How long a call may take, from its query; at most 30 s, and a little less than the caller waits.
pub(super) fn budget(query: Option<&str>) -> Result<Duration, BadTimeout> {
    let asked = query
        .unwrap_or_default()
        .split('&')
        .find_map(|pair| match pair.split_once('=') {
            Some(("timeout", value)) => Some(value),
            None if pair == "timeout" => Some(""),
            _ => None,
        });
    let asked = match asked {
        None => DEFAULT,
        Some(text) => parse(text)
            .filter(|asked| !asked.is_zero())
            .ok_or_else(|| BadTimeout(text.chars().take(40).collect()))?,
    };
    let asked = asked.min(LONGEST);
    Ok(asked - MARGIN.min(asked / 4))
}

/// A duration as Go writes it (`time.ParseDuration`): decimal numbers with units, `1m30s`, `1.5s`, `500ms`. Without a
/// sign: a call that ended before it began makes no sense.
fn parse(text: &str) -> Option<Duration> {
    if text.is_empty() {
        return None;
    }
    let mut seconds = 0.0_f64;
    let mut rest = text;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (digits, after) = rest.split_at(number);
        let unit = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let scale = match unit {
            "ns" => 1e-9,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        seconds += digits.parse::<f64>().ok()? * scale;
        rest = after;
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{budget, parse};

    #[test]
    fn durations_as_go_writes_them() {
        for (text, millis) in [
            ("10s", 10_000),
            ("1.5s", 1500),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1h0m0.5s", 3_600_500),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "", "10", "s", "10x", "-10s", "+1s", "1..5s", ".s", "10s ", "1e3s", "ten", "10s5",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn answers_before_the_caller_gives_up() {
        for (query, millis) in [
            (None, 9750),
            (Some("timeout=10s"), 9750),
            (Some("a=b&timeout=2s"), 1750),
            (Some("timeout=100ms"), 75),
            (Some("timeout=10m"), 29_750),
        ] {
            assert_eq!(budget(query), Ok(Duration::from_millis(millis)), "{query:?}");
        }
        for query in [
            "timeout=",
            "timeout",
            "timeout=0s",
            "timeout=-1s",
            "timeout=%31s",
            "timeout=1e999999h",
        ] {
            assert!(budget(Some(query)).is_err(), "{query}");
        }
    }
}
