//! What property tests share.

use proptest::{prelude::*, test_runner::RngSeed};

/// A short run that is the same every time; with `PROPTEST_CASES` set, a run of so many cases that is another one every
/// time (`PROPTEST_RNG_SEED` repeats one).
pub(crate) fn cases(few: u32) -> ProptestConfig {
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_some() {
        return config;
    }
    ProptestConfig {
        cases: few,
        rng_seed: RngSeed::Fixed(11),
        ..config
    }
}

/// Any JSON, a few levels deep.
pub(crate) fn any_json() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-z]{1,8}", inner, 0..4).prop_map(Value::from_iter),
        ]
    })
}

/// A text with some of its bytes replaced, cut out or said twice. It is UTF-8 all the same.
pub(crate) fn damaged(text: &'static str) -> impl Strategy<Value = String> {
    let damage = (
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        0..4_u8,
        "\\PC|[:{}\\[\\],&*!|>\"'\n -]",
    );
    prop::collection::vec(damage, 1..4).prop_map(move |all| {
        let mut bytes = text.as_bytes().to_vec();
        for (at, length, kind, with) in all {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            let end = at + length.index(40).min(bytes.len() - at);
            let piece = bytes[at..end].to_vec();
            match kind {
                0 => drop(bytes.splice(at..end, with.into_bytes())),
                1 => drop(bytes.splice(at..at, piece)),
                2 => drop(bytes.splice(at..end, [])),
                _ => drop(bytes.splice(at..at, with.into_bytes())),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
