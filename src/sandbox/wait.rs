//! Waits that end.

use std::time::{Duration, Instant};

/// How often a state is looked at.
const INTERVAL: Duration = Duration::from_millis(50);

/// Asks until the answer is `Ok(Ok(_))`, or an error ends it, or the time is up; then it returns the last `Ok(Err(_))`.
pub(super) async fn until<T, S, E>(
    timeout: Duration,
    mut ask: impl AsyncFnMut() -> Result<Result<T, S>, E>,
) -> Result<Result<T, S>, E> {
    let start = Instant::now();
    loop {
        let answer = ask().await?;
        if answer.is_ok() || start.elapsed() > timeout {
            return Ok(answer);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
