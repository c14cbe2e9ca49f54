//! Remembers what a pure function has answered to the same arguments: the worlds ask the same things over and over.

use std::{
    any::Any,
    cell::RefCell,
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

thread_local! {
    // Of one thread, as the mutants are.
    static KNOWN: RefCell<HashMap<u64, Box<dyn Any>>> = RefCell::default();
}

/// The answer of `f`, which depends on nothing but `key`.
pub(crate) fn memo<T: Clone + 'static>(key: impl Hash, f: impl FnOnce() -> T) -> T {
    let mut hasher = DefaultHasher::new();
    std::any::type_name::<T>().len().hash(&mut hasher);
    pausegen::protocol::mutant::current().hash(&mut hasher);
    key.hash(&mut hasher);
    let key = hasher.finish();
    let known = KNOWN.with_borrow(|known| known.get(&key).and_then(|value| value.downcast_ref::<T>()).cloned());
    known.unwrap_or_else(|| {
        let value = f();
        KNOWN.with_borrow_mut(|known| known.insert(key, Box::new(value.clone())));
        value
    })
}
