//! JSON and YAML. Active characters in strings are written as escapes, which read back the same.

use serde::Serialize;

use super::RenderError;
use crate::report::text;

pub(super) fn json(value: &impl Serialize) -> Result<String, RenderError> {
    let json = serde_json::to_string_pretty(value).map_err(|error| RenderError {
        format: "JSON",
        source: error.into(),
    })?;
    Ok(text::clean_json(&json) + "\n")
}

/// A value as YAML that is safe to print.
///
/// # Errors
/// The value cannot be written as YAML.
pub fn yaml(value: &impl Serialize) -> Result<String, RenderError> {
    let failed = |error: serde_saphyr::SerializeError| RenderError {
        format: "YAML",
        source: error.into(),
    };
    let yaml = serde_saphyr::to_string(value).map_err(failed)?;
    if !yaml.chars().any(|c| c != '\n' && text::is_active(c)) {
        return Ok(yaml);
    }
    // JSON is YAML, too, and has an escape for everything.
    json(value)
}
