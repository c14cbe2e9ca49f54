//! Objects from files: YAML with any number of documents, JSON, JSON lines, and the lists that `kubectl get` writes.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read},
};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IntoDeserializer, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{
    audit::{self, Objects},
    text,
};
use crate::{protocol::object::ObjectView, rules::Rules};

/// Begins the uid that an object is given where the file leaves it out.
pub const NO_UID: &str = "no-uid:";
/// How much of a parser's message is shown.
const MESSAGE_LIMIT: usize = 300;

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be opened or read.
    #[error("{file} cannot be read")]
    Read {
        /// The file.
        file: String,
        /// Why not.
        source: io::Error,
    },
    /// It is no text.
    #[error("{file} is not UTF-8 text ({message}): give what `kubectl get -o yaml` or `-o json` writes, unpacked")]
    NoText {
        /// The file.
        file: String,
        /// What is wrong.
        message: String,
    },
    /// What is in it is no object.
    #[error("{file} is not {format} that holds Kubernetes objects: {message}")]
    Parse {
        /// The file.
        file: String,
        /// `JSON` or `YAML`.
        format: &'static str,
        /// What is wrong, with line and column.
        message: String,
    },
    /// There is nothing in it.
    #[error("{file} holds no object: give what `kubectl get -o yaml` or `-o json` writes")]
    Empty {
        /// The file.
        file: String,
    },
}

/// Gathers the objects of several files.
#[derive(Debug, Default)]
pub struct Files {
    found: BTreeMap<(String, String, String), ObjectView>,
    names: Vec<String>,
    repeated: usize,
    without_uid: usize,
    unruled: usize,
}

impl Files {
    /// Reads one file. `name` is its name in messages.
    ///
    /// # Errors
    /// It cannot be read, or holds no objects. What was read before stays.
    pub fn add(&mut self, rules: &Rules, name: &str, reader: impl Read) -> Result<(), FileError> {
        let mut reader = BufReader::with_capacity(1 << 16, reader);
        let read = |source| FileError::Read {
            file: name.to_owned(),
            source,
        };
        skip_space(&mut reader).map_err(read)?;
        let begin = reader.fill_buf().map_err(read)?;
        if let Some(message) = no_text(begin) {
            let file = text::clean(name).into_owned();
            return Err(FileError::NoText { file, message });
        }
        let first = begin.first().copied();
        let mut any = false;
        match first {
            Some(b'{' | b'[') => {
                for document in serde_json::Deserializer::from_reader(&mut reader).into_iter::<Document>() {
                    let document = document.map_err(|error| Self::failed(name, "JSON", &error))?;
                    any = true;
                    self.take(rules, document);
                }
            }
            _ => {
                let mut options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
                if let Some(budget) = &mut options.budget {
                    // A backup is long. What stays bounded is the depth, and what aliases multiply.
                    budget.max_reader_input_bytes = None;
                    budget.max_events = usize::MAX;
                    budget.max_nodes = usize::MAX;
                    budget.max_total_scalar_bytes = usize::MAX;
                    budget.max_total_comment_bytes = usize::MAX;
                    budget.max_documents = usize::MAX;
                }
                for document in serde_saphyr::read_with_options::<_, Document>(&mut reader, options) {
                    let document = document.map_err(|error| Self::failed(name, "YAML", &error))?;
                    any = true;
                    self.take(rules, document);
                }
            }
        }
        if !any {
            return Err(FileError::Empty { file: name.to_owned() });
        }
        self.names.push(name.to_owned());
        Ok(())
    }

    fn failed(file: &str, format: &'static str, error: &(dyn std::error::Error + 'static)) -> FileError {
        let file = text::clean(file).into_owned();
        let short = |message: String| {
            let line = message.lines().next().unwrap_or_default();
            text::cut(&text::clean(line), MESSAGE_LIMIT)
        };
        // A parser says of it only that something was wrong below it.
        match error.source().and_then(|cause| cause.downcast_ref::<io::Error>()) {
            Some(cause) if cause.kind() == io::ErrorKind::InvalidData => FileError::NoText {
                file,
                message: short(cause.to_string()),
            },
            Some(cause) => FileError::Read {
                file,
                source: io::Error::new(cause.kind(), short(cause.to_string())),
            },
            None => FileError::Parse {
                file,
                format,
                message: short(error.to_string()),
            },
        }
    }

    fn take(&mut self, rules: &Rules, document: Document) {
        for mut object in document.0 {
            let kind = object.group_kind();
            if rules.rule_for(&kind).is_none() {
                self.unruled += 1;
                continue;
            }
            if object.metadata.uid.is_empty() {
                self.without_uid += 1;
                object.metadata.uid = format!("{NO_UID}{kind}/{}/{}", object.metadata.namespace, object.metadata.name);
            }
            let meta = &object.metadata;
            let key = (kind.to_string(), meta.namespace.clone(), meta.name.clone());
            if self.found.insert(key, object).is_some() {
                self.repeated += 1;
            }
        }
    }

    /// What was found.
    #[must_use]
    pub fn objects(self, rules: &Rules) -> Objects {
        let all: Vec<_> = self
            .found
            .into_values()
            .filter_map(|object| audit::ruled(rules, object))
            .collect();
        let mut unknown = vec![
            "this is what the files say: what has changed since they were written is not known, nor whether a webhook \
             stood then"
                .to_owned(),
        ];
        if self.repeated > 0 {
            unknown.push(format!(
                "{} in the files more than once: the last one counts",
                text::count(self.repeated, "object is").replace("object iss", "objects are")
            ));
        }
        if self.without_uid > 0 {
            unknown.push(format!(
                "{} without a uid, so that records cannot be told from copies of them",
                text::count(self.without_uid, "object")
            ));
        }
        if self.unruled > 0 {
            unknown.push(format!(
                "{} of kinds without a rule were passed over",
                text::count(self.unruled, "object")
            ));
        }
        Objects {
            listed: all.iter().map(|ruled| ruled.rule.group_kind.clone()).collect(),
            all,
            unknown,
            incomplete: false,
            source: self.names.join(", "),
        }
    }
}

/// Why the begin of a file is no text. UTF-16 is, with its mark.
fn no_text(begin: &[u8]) -> Option<String> {
    if begin.starts_with(b"\xff\xfe") || begin.starts_with(b"\xfe\xff") {
        return None;
    }
    let error = std::str::from_utf8(begin).err()?;
    // Where it ends in the middle of a character the rest is still to come.
    error.error_len().map(|_| error.to_string())
}

/// Skips white space and a byte order mark.
fn skip_space(reader: &mut impl BufRead) -> io::Result<()> {
    let mut is_start = true;
    loop {
        let buffer = reader.fill_buf()?;
        let mark = if is_start && buffer.starts_with(b"\xef\xbb\xbf") {
            3
        } else {
            0
        };
        is_start = false;
        let space = buffer.iter().skip(mark).take_while(|b| b.is_ascii_whitespace()).count();
        let all = mark + space == buffer.len();
        if buffer.is_empty() {
            return Ok(());
        }
        reader.consume(mark + space);
        if !all {
            return Ok(());
        }
    }
}

/// The objects of one document: itself, or the items of a list.
struct Document(Vec<ObjectView>);

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Document;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a Kubernetes object or a list of them")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Document, A::Error> {
                let items = RefCell::new(None);
                let object = ObjectView::deserialize(MapAccessDeserializer::new(WithItems { map, items: &items }))?;
                Ok(Document(match items.into_inner() {
                    None => vec![object],
                    Some(items) => items.into_iter().map(|item| typed(item, &object)).collect(),
                }))
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Document, A::Error> {
                let mut all = Vec::new();
                while let Some(Document(objects)) = seq.next_element()? {
                    all.extend(objects);
                }
                Ok(Document(all))
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

/// Items of some lists say neither their kind nor their version: the list does.
fn typed(mut item: ObjectView, list: &ObjectView) -> ObjectView {
    if item.kind.is_empty() {
        list.kind
            .strip_suffix("List")
            .unwrap_or_default()
            .clone_into(&mut item.kind);
    }
    if item.api_version.is_empty() {
        item.api_version.clone_from(&list.api_version);
    }
    item
}

/// A map without its `items`, which are taken out on the way.
struct WithItems<'a, A> {
    map: A,
    items: &'a RefCell<Option<Vec<ObjectView>>>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for WithItems<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        loop {
            match self.map.next_key::<String>()? {
                None => return Ok(None),
                Some(key) if key == "items" => {
                    let items: Vec<ObjectView> = self.map.next_value::<Option<_>>()?.unwrap_or_default();
                    self.items.borrow_mut().get_or_insert_default().extend(items);
                }
                Some(key) => return seed.deserialize(key.into_deserializer()).map(Some),
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}
