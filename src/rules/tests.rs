use super::*;

fn capi() -> Rules {
    Rules::capi().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_preset_parses() {
    assert!(capi().kinds().len() > 15);
}
