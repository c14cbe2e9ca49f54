//! A companion that lies, for the one test that shows that a liar is found out. Builds without debug assertions cannot.

/// Whether to acknowledge every flip at once, without asking anybody: `PAUSEGEN_TEST_ACKNOWLEDGE_AT_ONCE=1`.
pub(super) fn acknowledges_at_once() -> bool {
    cfg!(debug_assertions) && std::env::var("PAUSEGEN_TEST_ACKNOWLEDGE_AT_ONCE").is_ok_and(|value| value == "1")
}
