//! Durations as people write them: `90s`, `5m`, `2h`, `7d`, `1h30m`.

use std::time::Duration;

use jiff::SignedDuration;

/// Reads a duration.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected a duration such as 90s, 5m, 2h or 7d";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if let Some((number, unit)) = text.char_indices().next_back().map(|(at, unit)| (text.get(..at), unit))
        && let Some(days) = match unit {
            'd' => Some(1),
            'w' => Some(7),
            _ => None,
        }
    {
        let number: u64 = number
            .unwrap_or_default()
            .trim()
            .parse()
            .map_err(|_| EXPECTED.to_owned())?;
        return number
            .checked_mul(days * 86400)
            .map(Duration::from_secs)
            .ok_or_else(|| EXPECTED.to_owned());
    }
    let parsed: SignedDuration = text.parse().map_err(|_| EXPECTED.to_owned())?;
    Duration::try_from(parsed).map_err(|_| EXPECTED.to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::duration;

    #[test]
    fn durations() {
        for (text, seconds) in [
            ("0", 0),
            ("90s", 90),
            ("5m", 300),
            ("1h30m", 5400),
            ("7d", 604_800),
            ("2w", 1_209_600),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "d", "-5s", "five", "7 fortnights", "99999999999999999999d", "5"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
