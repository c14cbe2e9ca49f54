//! From a review to its answer.

use crate::{
    protocol::{
        intent::Intent,
        keys::StampNote,
        rule::KindRule,
        stamp::{self, Answer, Decision, Write},
    },
    rules::manifests::FailurePolicy,
};

use super::{
    State,
    metrics::{Outcome, Webhook},
    patch::patch,
    review::{Asked, Request, Response, ReviewError},
    warnings::fold,
};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    /// The review is none.
    #[error(transparent)]
    Review(#[from] ReviewError),
    /// The answer cannot be written down.
    #[error("cannot encode the answer: {0}")]
    Encode(#[source] serde_json::Error),
}

/// Answers the review in a body: how it ended, and the body of the answer.
pub(super) fn answer(state: &State, webhook: Webhook, body: &[u8]) -> Result<(Outcome, Vec<u8>), Unanswered> {
    let request = Request::decode(body)?;
    let (outcome, response) = decide(state, webhook, &request)?;
    let body = response.encode().map_err(Unanswered::Encode)?;
    Ok((outcome, body))
}

fn decide(state: &State, webhook: Webhook, request: &Request) -> Result<(Outcome, Response), Unanswered> {
    let uid = request.uid.clone();
    let rule = state.rules.get().rule_for(&request.group_kind());
    let (Some(asked), Some(rule)) = (request.write()?, rule) else {
        return Ok((Outcome::Unchanged, Response::allow(uid)));
    };
    let settings = &state.settings;
    let user = &request.user_info.username;
    let recorded = settings.recorded(user);
    let write = Write {
        rule: &rule,
        old: asked.old,
        new: asked.new,
        writer: settings.writer(user, &recorded),
        at: (state.clock)(),
        policies: settings.policies,
    };
    match webhook {
        Webhook::Mutate => mutate(state, request, asked, &write),
        Webhook::Validate => Ok(validate(state, request, &write)),
    }
}

fn mutate(
    state: &State,
    request: &Request,
    asked: Asked<'_>,
    write: &Write<'_>,
) -> Result<(Outcome, Response), Unanswered> {
    let Answer {
        decision,
        edits,
        warnings,
    } = stamp::mutate(write);
    let (outcome, mut response) = match decision {
        Decision::Denied(message) => {
            log(request, write, Outcome::Denied, &message);
            (Outcome::Denied, Response::deny(request.uid.clone(), message))
        }
        Decision::Unchanged => (Outcome::Unchanged, Response::allow(request.uid.clone())),
        Decision::PutBack => (Outcome::PutBack, Response::allow(request.uid.clone())),
        Decision::CopyDropped => (Outcome::CopyDropped, Response::allow(request.uid.clone())),
        Decision::Stamped { stamp, hasty } => {
            if !request.dry_run {
                state.metrics.stamped(stamp.kind.clone(), hasty);
                tracing::info!(
                    kind = stamp.kind,
                    namespace = stamp.namespace,
                    name = stamp.name,
                    generation = stamp.generation,
                    before = %stamp.before,
                    after = %stamp.after,
                    by = stamp.by,
                    hasty,
                    "stamped"
                );
            }
            let stamped = StampNote {
                hasty,
                before: stamp.before.to_string(),
                after: stamp.after.to_string(),
            };
            let response = Response::allow(request.uid.clone()).with_audit(
                StampNote::key(stamp.generation),
                serde_json::to_string(&stamped).map_err(Unanswered::Encode)?,
            );
            (Outcome::Stamped, response)
        }
    };
    count(state, request, write.rule, outcome);
    response = response
        .with_patch(patch(asked, edits).as_ref())
        .map_err(Unanswered::Encode)?
        .with_audit("decision", outcome.as_str())
        .with_warnings(warnings);
    Ok((outcome, response))
}

fn validate(state: &State, request: &Request, write: &Write<'_>) -> (Outcome, Response) {
    let uid = request.uid.clone();
    let (outcome, response) = match (stamp::validate(write), state.settings.flip_failure_policy) {
        (Ok(()), _) => (Outcome::Unchanged, Response::allow(uid)),
        (Err(message), FailurePolicy::Ignore) => {
            log(request, write, Outcome::Unchanged, &message);
            (Outcome::Unchanged, Response::allow(uid).with_warnings(fold(&message)))
        }
        (Err(message), FailurePolicy::Fail) => {
            log(request, write, Outcome::Denied, &message);
            (Outcome::Denied, Response::deny(uid, message))
        }
    };
    count(state, request, write.rule, outcome);
    (outcome, response.with_audit("decision", outcome.as_str()))
}

fn count(state: &State, request: &Request, rule: &KindRule, outcome: Outcome) {
    if request.dry_run {
        return;
    }
    match outcome {
        Outcome::Denied => state.metrics.denied(rule.group_kind.to_string()),
        Outcome::PutBack => state.metrics.put_back(rule.group_kind.to_string()),
        _ => {}
    }
}

fn log(request: &Request, write: &Write<'_>, outcome: Outcome, message: &str) {
    if request.dry_run {
        return;
    }
    let before = write.old.map(|old| Intent::of(write.rule, old)).unwrap_or_default();
    tracing::info!(
        kind = %write.rule.group_kind,
        namespace = write.new.metadata.namespace,
        name = write.new.metadata.name,
        %before,
        after = %Intent::of(write.rule, write.new),
        by = write.writer.recorded,
        outcome = outcome.as_str(),
        "{message}"
    );
}
