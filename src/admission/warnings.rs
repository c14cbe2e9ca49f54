//! What the API server lets pass of warnings: it cuts each at 256 characters, and all together at 4096.

const EACH: usize = 255;
const TOTAL: usize = 4096;

/// As many of these as fit, each cut to what is shown of it.
#[must_use]
pub(super) fn fit(warnings: Vec<String>) -> Vec<String> {
    let mut left = TOTAL;
    warnings
        .into_iter()
        .map(|warning| cut(&warning).to_owned())
        .take_while(|warning| {
            let fits = warning.len() <= left;
            left = left.saturating_sub(warning.len());
            fits
        })
        .collect()
}

/// A long text as several warnings, broken between words.
#[must_use]
pub(super) fn fold(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= EACH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Counted in bytes: the API server counts characters, so this is the stricter of the two.
fn cut(text: &str) -> &str {
    let end = (0..=EACH.min(text.len()))
        .rev()
        .find(|&i| text.is_char_boundary(i))
        .unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{fit, fold};

    #[test]
    fn a_long_warning_is_cut_between_characters() {
        let fitted = fit(vec!["ä".repeat(200)]);
        assert_eq!(fitted, ["ä".repeat(127)]);
    }

    #[test]
    fn no_more_than_4096_in_all() {
        let fitted = fit(vec!["x".repeat(255); 40]);
        assert_eq!(fitted.len(), 16);
        assert!(fitted.iter().map(String::len).sum::<usize>() <= 4096);
    }

    #[test]
    fn a_text_is_folded_between_words() {
        let text = "one two three ".repeat(40);
        let folded = fold(&text);
        assert!(folded.len() > 1);
        assert!(folded.iter().all(|line| line.len() < 256));
        assert_eq!(folded.join(" "), text.trim_end());
    }
}
