//! The router: what comes in over HTTP, and with which status it goes out.

use std::time::Instant;

use axum::{
    Router,
    body::Bytes,
    extract::{self, DefaultBodyLimit, FromRequest, Request},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{CONNECTION, CONTENT_TYPE},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::post,
};
use tokio::time;

use super::{
    State,
    answer::{Unanswered, answer},
    metrics::{Outcome, Webhook},
    ops::{self, Ops},
    timeout::budget,
};

/// The largest body that is read. A review holds the object twice, and an object may have up to 3 MiB on its way in.
pub const BODY_LIMIT: usize = 8 * 1024 * 1024;

/// `/mutate`, `/validate`, `/healthz`, `/readyz` and `/metrics`.
pub fn router(state: State) -> Router {
    let ops = state.ops.clone();
    Router::new()
        .route("/mutate", post(mutate))
        .route("/validate", post(validate))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(state)
        .merge(ops::router(ops.clone()))
        .layer(middleware::from_fn_with_state(ops, close_when_stopping))
}

async fn mutate(extract::State(state): extract::State<State>, request: Request) -> Response {
    call(&state, Webhook::Mutate, request).await
}

async fn validate(extract::State(state): extract::State<State>, request: Request) -> Response {
    call(&state, Webhook::Validate, request).await
}

/// A call that is not answered.
struct Refusal {
    status: StatusCode,
    outcome: Outcome,
    message: String,
}

async fn call(state: &State, webhook: Webhook, request: Request) -> Response {
    let begun = Instant::now();
    let answered = review(state, webhook, request, begun).await;
    let (outcome, response) = match answered {
        Ok((outcome, body)) => (outcome, ([(CONTENT_TYPE, "application/json")], body).into_response()),
        Err(Refusal {
            status,
            outcome,
            message,
        }) => {
            tracing::warn!(
                webhook = webhook.as_str(),
                status = status.as_u16(),
                "not answered: {message}"
            );
            (outcome, (status, format!("{message}\n")).into_response())
        }
    };
    state.metrics.ended(webhook, outcome, begun.elapsed());
    response
}

async fn review(
    state: &State,
    webhook: Webhook,
    request: Request,
    begun: Instant,
) -> Result<(Outcome, Vec<u8>), Refusal> {
    let malformed = |message| Refusal {
        status: StatusCode::BAD_REQUEST,
        outcome: Outcome::Malformed,
        message,
    };
    let budget = budget(request.uri().query()).map_err(|error| malformed(error.to_string()))?;
    if !is_json(request.headers()) {
        return Err(Refusal {
            status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
            outcome: Outcome::WrongContentType,
            message: "the content type must be application/json".to_owned(),
        });
    }
    let late = || Refusal {
        status: StatusCode::GATEWAY_TIMEOUT,
        outcome: Outcome::TimedOut,
        message: format!("no answer within the caller's timeout ({} ms)", budget.as_millis()),
    };
    let body = time::timeout(budget, Bytes::from_request(request, &()))
        .await
        .map_err(|_| late())?
        .map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Refusal {
                status: StatusCode::PAYLOAD_TOO_LARGE,
                outcome: Outcome::TooLarge,
                message: format!("the body is larger than {BODY_LIMIT} bytes"),
            },
            _ => malformed(format!("the body cannot be read: {}", rejection.body_text())),
        })?;
    let answered = answer(state, webhook, &body).map_err(|error| match error {
        Unanswered::Review(error) => malformed(error.to_string()),
        Unanswered::Encode(_) => Refusal {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            outcome: Outcome::Malformed,
            message: error.to_string(),
        },
    })?;
    if begun.elapsed() > budget {
        return Err(late());
    }
    Ok(answered)
}

/// `application/json`, with or without parameters.
fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

/// While this process is on its way out, callers are told to open their next connection elsewhere.
async fn close_when_stopping(extract::State(ops): extract::State<Ops>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if ops.is_stopping() {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
