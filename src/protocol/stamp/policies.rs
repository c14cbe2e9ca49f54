//! What the policies say of a pause. They never apply to a resume.

use super::{Policy, Write};
use crate::protocol::{
    intent::{Intent, is_on},
    keys::{REASON, Stamp, Why},
    rule::{AnnotationMatch, InputSource},
};

/// Applies the policies to a write that is stamped. Warnings are added to `warnings`.
///
/// # Errors
/// The message for the person whose write is denied.
pub(super) fn apply_all(
    write: &Write<'_>,
    stamp: &Stamp,
    hasty: bool,
    warnings: &mut Vec<String>,
) -> Result<(), String> {
    let before = write.old.map(|old| Intent::of(write.rule, old)).unwrap_or_default();
    if !before.pauses(&stamp.after) {
        return Ok(());
    }
    for input in write
        .rule
        .inputs
        .iter()
        .filter(|input| !before.has(&input.id) && is_on(input, write.new))
    {
        if let InputSource::Annotation {
            key,
            on: AnnotationMatch::Present,
        } = &input.source
            && write
                .new
                .metadata
                .annotation(key)
                .is_some_and(|value| value.eq_ignore_ascii_case("false"))
        {
            warnings.push(format!(
                "{key}: \"false\" pauses: the annotation pauses by being there. Remove it to resume"
            ));
        }
    }
    if write.writer.is_exempt || write.writer.is_companion || stamp.why != Why::Flip {
        return Ok(());
    }
    if hasty {
        let message = format!(
            "the flip before pause generation {} is not acknowledged yet; this one cannot be acknowledged before {} s \
             have passed",
            stamp.generation,
            write.rule.staleness_bound.as_secs()
        );
        apply(
            write.policies.hasty,
            message,
            "wait for the acknowledgement first",
            warnings,
        )?;
    }
    let old_reason = write.old.and_then(|old| old.metadata.annotation(REASON));
    let new_reason = write
        .new
        .metadata
        .annotation(REASON)
        .filter(|reason| !reason.trim().is_empty());
    if new_reason.is_none() || new_reason == old_reason {
        let message = "this pause comes without a reason of its own".to_owned();
        apply(
            write.policies.require_reason,
            message,
            "set the annotation pausegen.io/reason in the same write",
            warnings,
        )?;
    }
    Ok(())
}

fn apply(policy: Policy, message: String, remedy: &str, warnings: &mut Vec<String>) -> Result<(), String> {
    match policy {
        Policy::Off => Ok(()),
        Policy::Warn => {
            warnings.push(message);
            Ok(())
        }
        Policy::Deny => Err(format!("{message}: {remedy}")),
    }
}
