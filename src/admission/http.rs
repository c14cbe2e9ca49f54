//! The router: what comes in over HTTP, and with which status it goes out.

use std::time::{Duration, Instant};

use axum::{
    Router,
    body::{BodyDataStream, HttpBody as _},
    extract::{self, Request},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::post,
};
use futures::StreamExt as _;
use tokio::time;

use super::{
    State,
    answer::{Unanswered, answer},
    metrics::{Outcome, Webhook},
    ops::{self, Ops},
    server::{Full, Slot},
    timeout::budget,
};

/// The largest body that is read. A review holds the object twice, and an object may have up to 3 MiB on its way in.
pub const BODY_LIMIT: usize = 8 * 1024 * 1024;
/// How long the rest of a body that is too large may take to pass by.
const DRAIN: Duration = Duration::from_secs(1);

/// `/mutate`, `/validate`, `/healthz`, `/readyz` and `/metrics`.
pub fn router(state: State) -> Router {
    let ops = state.ops.clone();
    Router::new()
        .route("/mutate", post(mutate))
        .route("/validate", post(validate))
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
            let mut response = (status, format!("{message}\n")).into_response();
            if outcome == Outcome::Shed {
                // The API server asks once more then, within the time that it has.
                response
                    .headers_mut()
                    .insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            (outcome, response)
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
    let body = time::timeout(budget, read(request)).await.map_err(|_| late())??;
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

/// Reads a body, as long as there is room for it.
async fn read(request: Request) -> Result<Vec<u8>, Refusal> {
    let too_large = || Refusal {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        outcome: Outcome::TooLarge,
        message: format!("the body is larger than {BODY_LIMIT} bytes"),
    };
    let full = |status, what| {
        move |Full| Refusal {
            status,
            outcome: Outcome::Shed,
            message: format!("too many {what} at a time"),
        }
    };
    // Outside of a server there is none.
    let slot = request.extensions().get::<Slot>().cloned();
    if let Some(slot) = &slot {
        slot.reads().map_err(full(StatusCode::TOO_MANY_REQUESTS, "requests"))?;
    }
    let announced = request.body().size_hint().lower();
    let mut body = Vec::new();
    let mut frames = request.into_body().into_data_stream();
    if announced > BODY_LIMIT as u64 {
        drain(frames).await;
        return Err(too_large());
    }
    while let Some(frame) = frames.next().await {
        let frame = frame.map_err(|error| Refusal {
            status: StatusCode::BAD_REQUEST,
            outcome: Outcome::Malformed,
            message: format!("the body cannot be read: {error}"),
        })?;
        if body.len() + frame.len() > BODY_LIMIT {
            drop(body);
            drain(frames).await;
            return Err(too_large());
        }
        if let Some(slot) = &slot {
            slot.takes(frame.len())
                .map_err(full(StatusCode::SERVICE_UNAVAILABLE, "bytes of bodies"))?;
        }
        body.extend_from_slice(&frame);
    }
    if let Some(slot) = &slot {
        slot.has_read();
    }
    Ok(body)
}

/// Lets the rest of a body pass by, as far as that is cheap. A caller that still writes when the connection is closed may
/// never read why.
async fn drain(mut frames: BodyDataStream) {
    let mut passed = 0;
    let passing = async {
        while let Some(Ok(frame)) = frames.next().await {
            passed += frame.len();
            if passed > 2 * BODY_LIMIT {
                break;
            }
        }
    };
    // Whoever is slower does not learn why.
    let _ = time::timeout(DRAIN, passing).await;
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
