//! The wall clock: for people who read records. It jumps, so nothing is ever decided by it.

use jiff::Timestamp;

/// Now. `PAUSEGEN_TEST_CLOCK_OFFSET=-26h` puts it off, for the tests that show that nothing depends on it; builds without
/// debug assertions do not look.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    if cfg!(debug_assertions)
        && let Ok(offset) = std::env::var("PAUSEGEN_TEST_CLOCK_OFFSET")
        && let Ok(offset) = offset.parse::<jiff::SignedDuration>()
    {
        return now.checked_add(offset).unwrap_or(now);
    }
    now
}
