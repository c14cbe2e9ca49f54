//! Decoding that takes what fits and passes over what does not.
//!
//! Which shape a status has is its controller's affair. One that is not as expected must not make an object unreadable:
//! then nobody could pause it.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

/// A `T` from an object; from anything else, its default.
#[derive(Debug, Default)]
pub(crate) struct Lenient<T>(pub(crate) T);

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Object(PhantomData)).map(Self)
    }
}

/// A string; from anything else, the empty one.
pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(optional_text(deserializer)?.unwrap_or_default())
}

/// A string, if it is one.
pub(super) fn optional_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    deserializer.deserialize_any(Text)
}

/// An integer, if it is one.
pub(super) fn integer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    deserializer.deserialize_any(Integer)
}

/// The objects of a list; from anything else, none.
pub(super) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    deserializer.deserialize_any(List(PhantomData))
}

/// A `T` from an object; from anything else, nothing.
pub(super) fn optional<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    deserializer
        .deserialize_any(Object(PhantomData::<Wrapped<T>>))
        .map(|wrapped| wrapped.0)
}

struct Wrapped<T>(Option<T>);

impl<T> Default for Wrapped<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Wrapped<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(|value| Self(Some(value)))
    }
}

struct Object<T>(PhantomData<T>);
struct List<T>(PhantomData<T>);
struct Text;
struct Integer;

/// The visits of JSON's types that a visitor does not want.
macro_rules! pass_over {
    ($value:expr; $($visit:ident),*) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON value")
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_none<E>(self) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            deserializer.deserialize_any(self)
        }
        $(pass_over!(@ $visit, $value);)*
    };
    (@ bool, $value:expr) => {
        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok($value)
        }
    };
    (@ integer, $value:expr) => {
        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok($value)
        }
    };
    (@ float, $value:expr) => {
        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok($value)
        }
    };
    (@ str, $value:expr) => {
        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
            Ok($value)
        }
    };
    (@ seq, $value:expr) => {
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok($value)
        }
    };
    (@ map, $value:expr) => {
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok($value)
        }
    };
}

impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for Object<T> {
    type Value = T;
    pass_over!(T::default(); bool, integer, float, str, seq);

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for List<T> {
    type Value = Vec<T>;
    pass_over!(Vec::new(); bool, integer, float, str, map);

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(Lenient(item)) = seq.next_element()? {
            list.push(item);
        }
        Ok(list)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Option<String>;
    pass_over!(None; bool, integer, float, seq, map);

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(text.to_owned()))
    }
}

impl<'de> Visitor<'de> for Integer {
    type Value = Option<i64>;
    pass_over!(None; bool, float, str, seq, map);

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Some(number))
    }
    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(i64::try_from(number).ok())
    }
}
