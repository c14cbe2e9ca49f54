//! An object as the Kubernetes client hands it to us: decoded through a view that keeps the little that is read, so that
//! lists in a spec, schemas and managed fields never become values of ours.

use std::{borrow::Cow, fmt::Debug};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, api::ApiResource, core::DynamicResourceScope};
use serde::{Deserialize, Deserializer};

use crate::protocol::object::ObjectView;

/// What is read of an object.
pub(crate) trait View: for<'de> Deserialize<'de> + Clone + Debug {
    /// The little that the client itself reads.
    fn meta(&self) -> ObjectMeta;
}

impl View for ObjectView {
    fn meta(&self) -> ObjectMeta {
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        ObjectMeta {
            name: some(&self.metadata.name),
            namespace: some(&self.metadata.namespace),
            uid: some(&self.metadata.uid),
            resource_version: some(&self.metadata.resource_version),
            ..ObjectMeta::default()
        }
    }
}

/// An object of a kind that is only known at run time.
#[derive(Debug, Clone)]
pub(crate) struct Item<V = ObjectView> {
    meta: ObjectMeta,
    /// What is read of it.
    pub(crate) view: V,
}

impl<'de, V: View> Deserialize<'de> for Item<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let view = V::deserialize(deserializer)?;
        Ok(Self {
            meta: view.meta(),
            view,
        })
    }
}

impl<V> Resource for Item<V> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(dt: &ApiResource) -> Cow<'_, str> {
        dt.kind.as_str().into()
    }
    fn group(dt: &ApiResource) -> Cow<'_, str> {
        dt.group.as_str().into()
    }
    fn version(dt: &ApiResource) -> Cow<'_, str> {
        dt.version.as_str().into()
    }
    fn api_version(dt: &ApiResource) -> Cow<'_, str> {
        dt.api_version.as_str().into()
    }
    fn plural(dt: &ApiResource) -> Cow<'_, str> {
        dt.plural.as_str().into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}
