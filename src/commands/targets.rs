//! The objects that a command line names.

use kube::Client;

use super::{
    cluster::{self, ClusterError, Served},
    names::{self, NameError},
};
use crate::report::{select::LabelSelector, text};

/// Which objects.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct TargetArgs {
    /// TYPE/NAME, or TYPE NAME, any number of them
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    /// The namespace; else that of the context
    #[arg(short, long, value_name = "NAME", value_parser = names::namespace)]
    namespace: Option<String>,
    /// All namespaces; with --selector or --all
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Every object of TYPE with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "all")]
    selector: Option<LabelSelector>,
    /// Every object of TYPE; without TYPE every object that inherits from no other, so that all of a namespace is reached
    #[arg(long)]
    all: bool,
}

/// An object that is named.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) kind: Served,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Target {
    /// `kind.group/name`.
    pub(super) fn display(&self) -> String {
        self.kind.display(&self.name)
    }
}

/// The objects cannot be told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum TargetError {
    /// Nothing is named.
    #[error("name an object, such as cluster/demo, or a type with --selector or --all")]
    Nothing,
    /// A name is missing.
    #[error("`{0}` names a type and no object: write {0}/NAME, or add --selector or --all")]
    NoName(String),
    /// A mixture.
    #[error("`{0}` does not go with the form TYPE/NAME of the others: write TYPE/NAME for each")]
    Mixed(String),
    /// Both a name and a selection.
    #[error("give names, or --selector, or --all")]
    Both,
    /// No object is called so.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The kind is not known.
    #[error(
        "the cluster serves no `{0}` that can be paused by these rules: `pausegen rules check --server` lists what it does"
    )]
    NoKind(String),
    /// Several kinds have that name.
    #[error("`{word}` may be {kinds}: add the group, as in `{example}`")]
    Ambiguous {
        /// What was written.
        word: String,
        /// What it may be.
        kinds: String,
        /// One of them, in full.
        example: String,
    },
    /// Nothing is selected.
    #[error("nothing is selected{0}")]
    Empty(String),
    /// The cluster cannot be asked.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl TargetArgs {
    /// Whether the words name objects that there can be: known before anything is asked.
    pub(super) fn check(&self) -> Result<(), TargetError> {
        self.named().map(drop)
    }

    /// The kind and the name of each object that is named.
    fn named(&self) -> Result<Vec<(&str, &str)>, TargetError> {
        let named: Vec<(&str, &str)> = match self.objects.split_first() {
            None => Vec::new(),
            Some((first, _)) if first.contains('/') => {
                let pairs = self
                    .objects
                    .iter()
                    .map(|object| object.split_once('/').ok_or_else(|| TargetError::Mixed(safe(object))));
                pairs.collect::<Result<_, _>>()?
            }
            Some((types, names)) => {
                if let Some(mixed) = names.iter().find(|name| name.contains('/')) {
                    return Err(TargetError::Mixed(safe(mixed)));
                }
                types
                    .split(',')
                    .flat_map(|word| names.iter().map(move |name| (word, name.as_str())))
                    .collect()
            }
        };
        for (_, name) in &named {
            names::object(name)?;
        }
        Ok(named)
    }

    /// The objects, in the order in which they are named; of a selection, owners first.
    pub(super) async fn resolve(
        &self,
        client: &Client,
        kinds: &[Served],
        default_namespace: &str,
    ) -> Result<Vec<Target>, TargetError> {
        let namespace = match (&self.namespace, self.all_namespaces) {
            (_, true) => String::new(),
            (Some(namespace), _) => namespace.clone(),
            (None, _) => default_namespace.to_owned(),
        };
        let selects = self.all || self.selector.is_some();
        let named = self.named()?;
        if named.is_empty() {
            let of: Vec<&Served> = match self.objects.first() {
                None if !selects => return Err(TargetError::Nothing),
                None => kinds
                    .iter()
                    .filter(|kind| !kind.rule.inherits && !kind.rule.inputs.is_empty())
                    .filter(|kind| kind.namespaced || namespace.is_empty())
                    .collect(),
                Some(types) => {
                    let of = types.split(',').map(|word| kind(kinds, word));
                    let of = of.collect::<Result<_, _>>()?;
                    if !selects {
                        return Err(TargetError::NoName(safe(types)));
                    }
                    of
                }
            };
            return self.select(client, of, &namespace).await;
        }
        let named: Vec<(&Served, &str)> = named
            .into_iter()
            .map(|(word, name)| Ok((kind(kinds, word)?, name)))
            .collect::<Result<_, TargetError>>()?;
        if selects || self.all_namespaces {
            return Err(TargetError::Both);
        }
        Ok(named
            .into_iter()
            .map(|(kind, name)| Target {
                kind: kind.clone(),
                namespace: if kind.namespaced {
                    namespace.clone()
                } else {
                    String::new()
                },
                name: name.to_owned(),
            })
            .collect())
    }

    async fn select(&self, client: &Client, kinds: Vec<&Served>, namespace: &str) -> Result<Vec<Target>, TargetError> {
        let mut targets = Vec::new();
        for kind in kinds {
            let what = format!("{}.{}", kind.resource.plural, kind.resource.group);
            let found = cluster::list(client, kind, namespace)
                .await
                .map_err(ClusterError::of(what))?;
            let wanted = found
                .into_iter()
                .filter(|object| self.selector.as_ref().is_none_or(|s| s.matches(object)));
            targets.extend(wanted.map(|object| Target {
                kind: kind.clone(),
                namespace: object.metadata.namespace,
                name: object.metadata.name,
            }));
        }
        if targets.is_empty() {
            let place = Some(namespace)
                .filter(|n| !n.is_empty())
                .map(|n| format!(" in namespace {n}"));
            return Err(TargetError::Empty(safe(&place.unwrap_or_default())));
        }
        Ok(targets)
    }
}

fn kind<'a>(kinds: &'a [Served], word: &str) -> Result<&'a Served, TargetError> {
    let found: Vec<&Served> = kinds.iter().filter(|kind| kind.is_called(word)).collect();
    match found.as_slice() {
        [] => Err(TargetError::NoKind(safe(word))),
        [one] => Ok(one),
        [first, ..] => {
            let full = |kind: &&Served| format!("{}.{}", kind.resource.plural, kind.resource.group);
            Err(TargetError::Ambiguous {
                word: safe(word),
                kinds: found.iter().map(full).collect::<Vec<_>>().join(" or "),
                example: full(first),
            })
        }
    }
}

fn safe(word: &str) -> String {
    text::clean(word).into_owned()
}
