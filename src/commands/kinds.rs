//! The kinds that a cluster serves, which one a person means by a word, and all objects of one.

use std::collections::BTreeSet;
use std::fmt::Debug;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, ListParams, ObjectList, PartialObjectMeta};
use kube::discovery::{ApiCapabilities, ApiGroup, Discovery, Scope, verbs};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::protocol::GroupKind;
use crate::rules::Rules;

/// Objects that a list returns in one page.
const PAGE: u32 = 500;
/// How often a list begins anew because it could not be continued.
const ATTEMPTS: usize = 3;

/// A kind that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Served {
    /// Where, in the version that the API server prefers.
    pub(super) resource: ApiResource,
    /// Whether its objects are in namespaces.
    pub(super) namespaced: bool,
}

/// Why a kind cannot be told, or its objects not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum KindsError {
    /// The cluster does not say what it serves.
    #[error("cannot read which kinds are served")]
    Discovery(#[source] kube::Error),
    /// The CRDs cannot be listed.
    #[error("cannot read the CustomResourceDefinitions")]
    Definitions(#[source] kube::Error),
    /// Objects cannot be listed.
    #[error("cannot list {resource}")]
    List {
        /// The resource.
        resource: String,
        /// Why not.
        source: kube::Error,
    },
    /// There is no such kind.
    #[error("no kind that a rule is for is called `{word}`; there is: {known}")]
    Unknown {
        /// What was asked for.
        word: String,
        /// What there is.
        known: String,
    },
    /// There are several.
    #[error("`{word}` may mean {candidates}: write one of these in full")]
    Ambiguous {
        /// What was asked for.
        word: String,
        /// What it may mean.
        candidates: String,
    },
}

impl Served {
    /// Group and kind.
    pub(super) fn group_kind(&self) -> GroupKind {
        GroupKind::new(self.resource.group.clone(), self.resource.kind.clone())
    }

    /// `resource.group`, as kubectl writes it.
    pub(super) fn name(&self) -> String {
        let ApiResource { plural, group, .. } = &self.resource;
        if group.is_empty() {
            plural.clone()
        } else {
            format!("{plural}.{group}")
        }
    }

    /// Its objects in a namespace; an empty one stands for all.
    pub(super) fn api<K>(&self, client: &Client, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = ApiResource, Scope = kube::core::DynamicResourceScope>,
    {
        if self.namespaced && !namespace.is_empty() {
            Api::namespaced_with(client.clone(), namespace, &self.resource)
        } else {
            Api::all_with(client.clone(), &self.resource)
        }
    }

    /// Whether a person may mean it by this word: kind or resource, with the group or without, in any case.
    fn is_called(&self, word: &str) -> bool {
        let ApiResource {
            plural, kind, group, ..
        } = &self.resource;
        let word = word.to_ascii_lowercase();
        let (name, of) = word.split_once('.').unwrap_or((&word, ""));
        (name == *plural || name == kind.to_ascii_lowercase()) && (of.is_empty() || of == *group)
    }
}

/// The ruled kinds that a cluster serves, owners before what they own.
pub(super) async fn ruled(client: &Client, rules: &Rules) -> Result<Vec<Served>, KindsError> {
    let groups: BTreeSet<&str> = rules.inputs().map(|(selector, _)| selector.group.as_str()).collect();
    let mut kinds = served(client, &groups).await?;
    kinds.retain(|kind| rules.rule_for(&kind.group_kind()).is_some());
    sort(&mut kinds, rules);
    Ok(kinds)
}

/// Every custom resource, and the ruled kinds, owners before what they own.
pub(super) async fn custom_and_ruled(client: &Client, rules: &Rules) -> Result<Vec<Served>, KindsError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let all = ListParams::default();
    let definitions = api.list_metadata(&all).await.map_err(KindsError::Definitions)?;
    let custom: BTreeSet<String> = definitions
        .items
        .into_iter()
        .filter_map(|crd| crd.metadata.name)
        .collect();
    let groups = custom.iter().filter_map(|name| Some(name.split_once('.')?.1));
    let groups: BTreeSet<&str> = groups
        .chain(rules.inputs().map(|(selector, _)| selector.group.as_str()))
        .collect();
    let mut kinds = served(client, &groups).await?;
    kinds.retain(|kind| custom.contains(&kind.name()) || rules.rule_for(&kind.group_kind()).is_some());
    sort(&mut kinds, rules);
    Ok(kinds)
}

fn sort(kinds: &mut [Served], rules: &Rules) {
    kinds.sort_by_cached_key(|kind| (rules.order(&kind.group_kind()), kind.group_kind()));
}

async fn served(client: &Client, groups: &BTreeSet<&str>) -> Result<Vec<Served>, KindsError> {
    let groups: Vec<&str> = groups.iter().copied().collect();
    let discovery = Discovery::new(client.clone()).filter(&groups).run().await;
    let discovery = discovery.map_err(KindsError::Discovery)?;
    let usable = |capabilities: &ApiCapabilities| {
        [verbs::LIST, verbs::PATCH]
            .iter()
            .all(|verb| capabilities.supports_operation(verb))
    };
    Ok(discovery
        .groups()
        .flat_map(ApiGroup::recommended_resources)
        .filter(|(_, capabilities)| usable(capabilities))
        .map(|(resource, capabilities)| Served {
            resource,
            namespaced: capabilities.scope == Scope::Namespaced,
        })
        .collect())
}

/// The one kind that a word means.
pub(super) fn find<'a>(kinds: &'a [Served], word: &str) -> Result<&'a Served, KindsError> {
    let names = |kinds: &mut dyn Iterator<Item = &Served>| kinds.map(Served::name).collect::<Vec<_>>().join(", ");
    let mut found = kinds.iter().filter(|kind| kind.is_called(word));
    match (found.next(), found.next()) {
        (Some(kind), None) => Ok(kind),
        (None, _) => Err(KindsError::Unknown {
            word: word.to_owned(),
            known: names(&mut kinds.iter()),
        }),
        (Some(_), Some(_)) => Err(KindsError::Ambiguous {
            word: word.to_owned(),
            candidates: names(&mut kinds.iter().filter(|kind| kind.is_called(word))),
        }),
    }
}

/// What `keep` keeps of the objects of a kind, read in pages; `page` is told how many have been read.
pub(super) async fn list<K, T>(
    kind: &Served,
    api: &Api<K>,
    keep: impl Fn(K) -> Option<T>,
    page: impl FnMut(usize),
) -> Result<Vec<T>, KindsError>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    pages(kind, async |params| api.list(params).await, keep, page).await
}

/// As [`list`], of the metadata alone.
pub(super) async fn list_metadata<T>(
    kind: &Served,
    api: &Api<DynamicObject>,
    keep: impl Fn(PartialObjectMeta<DynamicObject>) -> Option<T>,
    page: impl FnMut(usize),
) -> Result<Vec<T>, KindsError> {
    pages(kind, async |params| api.list_metadata(params).await, keep, page).await
}

async fn pages<K: Clone, T>(
    kind: &Served,
    read: impl AsyncFn(&ListParams) -> kube::Result<ObjectList<K>>,
    keep: impl Fn(K) -> Option<T>,
    mut page: impl FnMut(usize),
) -> Result<Vec<T>, KindsError> {
    let failed = |source| KindsError::List {
        resource: kind.name(),
        source,
    };
    let mut attempt = 0;
    'anew: loop {
        attempt += 1;
        let (mut kept, mut count) = (Vec::new(), 0);
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let list = match read(&params).await {
                Ok(list) => list,
                // Gone meanwhile, with its CRD.
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
                // The pages of one list expire; what was read so far is worth nothing then.
                Err(kube::Error::Api(status)) if status.code == 410 && attempt < ATTEMPTS => continue 'anew,
                Err(error) => return Err(failed(error)),
            };
            count += list.items.len();
            page(count);
            kept.extend(list.items.into_iter().filter_map(&keep));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(kept),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds() -> Vec<Served> {
        [
            ("cluster.x-k8s.io", "Cluster", "clusters"),
            ("cluster.x-k8s.io", "Machine", "machines"),
            ("postgresql.cnpg.io", "Cluster", "clusters"),
            ("", "Pod", "pods"),
        ]
        .map(|(group, kind, plural)| Served {
            resource: ApiResource {
                group: group.to_owned(),
                version: "v1".to_owned(),
                api_version: String::new(),
                kind: kind.to_owned(),
                plural: plural.to_owned(),
            },
            namespaced: true,
        })
        .to_vec()
    }

    #[test]
    fn a_word_means_one_kind_or_it_is_asked_for_more() {
        let kinds = kinds();
        let find = |word| find(&kinds, word).map(Served::name);
        for word in [
            "machine",
            "Machine",
            "machines",
            "Machines.cluster.x-k8s.io",
            "machine.cluster.x-k8s.io",
        ] {
            assert_eq!(find(word).unwrap(), "machines.cluster.x-k8s.io", "{word}");
        }
        assert_eq!(find("pod").unwrap(), "pods");
        assert_eq!(
            find("cluster.postgresql.cnpg.io").unwrap(),
            "clusters.postgresql.cnpg.io"
        );
        let said = find("cluster").unwrap_err().to_string();
        assert!(
            said.contains("clusters.cluster.x-k8s.io, clusters.postgresql.cnpg.io"),
            "{said}"
        );
        let said = find("ship").unwrap_err().to_string();
        assert!(
            said.contains("`ship`") && said.contains("machines.cluster.x-k8s.io"),
            "{said}"
        );
    }

    fn page(names: &[&str], token: &str) -> ObjectList<Option<&'static str>> {
        let items = names.iter().map(|_| Some("x")).collect();
        let mut list = ObjectList {
            types: kube::api::TypeMeta::default(),
            metadata: kube::api::ListMeta::default(),
            items,
        };
        list.metadata.continue_ = Some(token.to_owned());
        list
    }

    fn refused(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(kube::core::Status {
            code,
            ..kube::core::Status::default()
        }))
    }

    #[tokio::test]
    async fn a_list_is_read_page_by_page_and_begun_anew_where_it_expires() {
        let kinds = kinds();
        let kind = kinds.first().unwrap();
        let calls = std::sync::Mutex::new(Vec::new());
        let read = async |params: &ListParams| {
            let mut calls = calls.lock().unwrap();
            calls.push(params.continue_token.clone().unwrap_or_default());
            match calls.len() {
                1 | 3 => Ok(page(&["a", "b"], "more")),
                2 => Err(refused(410)),
                _ => Ok(page(&["c"], "")),
            }
        };
        let mut counts = Vec::new();
        let found = pages(kind, read, |item| item, |count| counts.push(count))
            .await
            .unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!(*calls.lock().unwrap(), ["", "more", "", "more"]);
        assert_eq!(counts, [2, 2, 3]);

        let none = pages(
            kind,
            async |_: &ListParams| Err::<ObjectList<()>, _>(refused(404)),
            Some,
            |_| {},
        );
        assert_eq!(none.await.unwrap().len(), 0, "a kind that is gone has no objects");
        let error = pages(
            kind,
            async |_: &ListParams| Err::<ObjectList<()>, _>(refused(410)),
            Some,
            |_| {},
        );
        assert!(
            error
                .await
                .unwrap_err()
                .to_string()
                .contains("clusters.cluster.x-k8s.io")
        );
    }
}
