//! Names of objects and namespaces on the command line: what no object can be called is refused before anybody is asked,
//! since a name is a segment of the path of a request.

/// A word that is no name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub(super) enum NameError {
    /// No object is called so.
    #[error(
        "`{0}` is no name of an object: that is a DNS subdomain (RFC 1123), at most 253 lower-case letters, digits, `-` and \
         `.`, with a letter or a digit at both ends and on both sides of each `.`"
    )]
    Object(String),
    /// No namespace is called so.
    #[error(
        "`{0}` is no name of a namespace: that is a DNS label (RFC 1123), at most 63 lower-case letters, digits and `-`, with a \
         letter or a digit at both ends"
    )]
    Namespace(String),
}

/// The name of an object, as it is.
pub(super) fn object(name: &str) -> Result<String, NameError> {
    if name.len() <= 253 && name.split('.').all(is_label) {
        Ok(name.to_owned())
    } else {
        Err(NameError::Object(safe(name)))
    }
}

/// The name of a namespace, as it is.
pub(super) fn namespace(name: &str) -> Result<String, NameError> {
    if name.len() <= 63 && is_label(name) {
        Ok(name.to_owned())
    } else {
        Err(NameError::Namespace(safe(name)))
    }
}

fn is_label(label: &str) -> bool {
    let is_alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = label.as_bytes();
    bytes.first().is_some_and(is_alphanumeric)
        && bytes.last().is_some_and(is_alphanumeric)
        && bytes.iter().all(|b| is_alphanumeric(b) || *b == b'-')
}

fn safe(word: &str) -> String {
    let word = crate::report::text::clean(word);
    crate::report::text::cut(&word, 80)
}

#[cfg(test)]
mod tests {
    use super::{namespace, object};

    #[test]
    fn what_can_be_a_name() {
        let longest = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
        for name in ["a", "0", "shop-md-0-x7k2p.example", "1.2.3", longest.as_str()] {
            assert_eq!(object(name).as_deref(), Ok(name));
        }
        let too_long = format!("{longest}e");
        for name in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "a?b",
            "a%2fb",
            "a#b",
            "A",
            "-a",
            "a-",
            "a..b",
            ".a",
            "a.",
            "a b",
            "ä",
            "a_b",
            "a\nb",
            too_long.as_str(),
        ] {
            assert!(object(name).is_err(), "{name}");
        }
        assert!(namespace("prod-1").is_ok());
        for name in ["", "a.b", "a/b", "..", "Prod", "a".repeat(64).as_str()] {
            assert!(namespace(name).is_err(), "{name}");
        }
    }
}
