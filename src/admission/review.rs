//! AdmissionReview v1, as far as it is read and written.
//!
//! Of the objects in it only an [`ObjectView`] is kept: managed fields, lists and long strings are skipped while parsing,
//! and no document tree is ever built.
//!
//! Reference: `k8s.io/api/admission/v1`, and "Dynamic Admission Control" in the Kubernetes documentation.

use std::{borrow::Cow, collections::BTreeMap};

use json_patch::Patch;
use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};

use crate::protocol::{
    GroupKind,
    object::{self, ObjectView},
};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
const UID_LIMIT: usize = 256;

/// Why a body is not a review that can be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum ReviewError {
    /// It is not JSON, or some field has another type.
    #[error("the body cannot be read as an AdmissionReview: {0}")]
    Decode(#[from] serde_json::Error),
    /// Another kind or version.
    #[error("the body is {found}, not {KIND} {API_VERSION}: set admissionReviewVersions to [v1]")]
    Version {
        /// The `kind apiVersion` found, or what is missing.
        found: String,
    },
    /// There is no request in it.
    #[error("the AdmissionReview has no request")]
    NoRequest,
    /// There is no UID to answer to.
    #[error("the request's uid is missing or longer than {UID_LIMIT} bytes")]
    Uid,
    /// There is no object.
    #[error("the {operation} request has no {field}")]
    NoObject {
        /// The operation.
        operation: &'static str,
        /// The field that is missing.
        field: &'static str,
    },
}

/// What the API server asks.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Request {
    /// Names the call; the answer repeats it.
    pub(super) uid: String,
    /// Group, version and kind that the webhook's rules matched.
    pub(super) kind: Kind,
    /// `status`, `scale`, or empty.
    pub(super) sub_resource: String,
    /// CREATE, UPDATE, DELETE or CONNECT.
    pub(super) operation: String,
    /// Who writes.
    pub(super) user_info: UserInfo,
    /// Whether nothing will be stored.
    pub(super) dry_run: bool,
    /// The object as it is to be stored; absent on DELETE.
    #[serde(deserialize_with = "object::written")]
    pub(super) object: Option<ObjectView>,
    /// The stored object; absent on CREATE.
    #[serde(deserialize_with = "object::written")]
    pub(super) old_object: Option<ObjectView>,
}

/// A kind in a request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Kind {
    group: String,
    kind: String,
}

/// Who writes.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct UserInfo {
    /// User name.
    pub(super) username: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Review {
    api_version: String,
    kind: String,
    request: Option<Request>,
}

/// A write of the main resource of an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    /// The stored object; `None` on CREATE.
    pub(super) old: Option<&'a ObjectView>,
    /// The object as it is to be stored.
    pub(super) new: &'a ObjectView,
}

impl Request {
    /// Decodes a body.
    ///
    /// # Errors
    /// It is no AdmissionReview v1 with a request that can be answered.
    pub(super) fn decode(body: &[u8]) -> Result<Self, ReviewError> {
        let review: Review = serde_json::from_slice(body)?;
        if review.api_version != API_VERSION || review.kind != KIND {
            let or = |text: String, absent: &str| if text.is_empty() { absent.to_owned() } else { text };
            let mut found = format!(
                "{} {}",
                or(review.kind, "of no kind"),
                or(review.api_version, "without apiVersion")
            );
            crate::protocol::object::truncate(&mut found, UID_LIMIT);
            return Err(ReviewError::Version { found });
        }
        let request = review.request.ok_or(ReviewError::NoRequest)?;
        if request.uid.is_empty() || request.uid.len() > UID_LIMIT {
            return Err(ReviewError::Uid);
        }
        Ok(request)
    }

    /// Group and kind of the object.
    #[must_use]
    pub(super) fn group_kind(&self) -> GroupKind {
        GroupKind::new(&*self.kind.group, &*self.kind.kind)
    }

    /// The write that is asked about; `None` where it is not one that the protocol has a say in (a subresource, a
    /// DELETE or CONNECT).
    ///
    /// # Errors
    /// An object that belongs to the operation is missing.
    pub(super) fn write(&self) -> Result<Option<Asked<'_>>, ReviewError> {
        let operation = match self.operation.as_str() {
            _ if !self.sub_resource.is_empty() => return Ok(None),
            "CREATE" => "CREATE",
            "UPDATE" => "UPDATE",
            _ => return Ok(None),
        };
        let missing = |field| ReviewError::NoObject { operation, field };
        let new = self.object.as_ref().ok_or_else(|| missing("object"))?;
        let old = match operation {
            "UPDATE" => Some(self.old_object.as_ref().ok_or_else(|| missing("oldObject"))?),
            _ => None,
        };
        Ok(Some(Asked { old, new }))
    }
}

/// The answer.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<ByteString>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    audit_annotations: BTreeMap<Cow<'static, str>, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Why a write is denied, as `metav1.Status`. Without code and reason people would see a 400.
#[derive(Debug, Serialize)]
struct Status {
    status: &'static str,
    code: u16,
    reason: &'static str,
    message: String,
}

impl Response {
    /// Lets the write pass as it is.
    #[must_use]
    pub(super) fn allow(uid: String) -> Self {
        Self {
            uid,
            allowed: true,
            ..Self::default()
        }
    }

    /// Refuses the write.
    #[must_use]
    pub(super) fn deny(uid: String, message: String) -> Self {
        Self {
            uid,
            status: Some(Status {
                status: "Failure",
                code: 403,
                reason: "Forbidden",
                message,
            }),
            ..Self::default()
        }
    }

    /// With a JSON Patch, in base64.
    ///
    /// # Errors
    /// Never in practice: a patch of strings always serialises.
    pub(super) fn with_patch(mut self, patch: Option<&Patch>) -> Result<Self, serde_json::Error> {
        self.patch = patch.map(serde_json::to_vec).transpose()?.map(ByteString);
        self.patch_type = patch.map(|_| "JSONPatch");
        Ok(self)
    }

    /// With these warnings, each cut to what the API server lets pass, as many as fit.
    #[must_use]
    pub(super) fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings = super::warnings::fit(warnings);
        self
    }

    /// With an annotation for the API server's audit log, which shows it as `<webhook name>/<key>`.
    #[must_use]
    pub(super) fn with_audit(mut self, key: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Self {
        self.audit_annotations.insert(key.into(), value.into());
        self
    }

    /// Encodes the review around it.
    ///
    /// # Errors
    /// Never in practice: it is strings, booleans and numbers.
    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Review<'a> {
            api_version: &'a str,
            kind: &'a str,
            response: &'a Response,
        }
        serde_json::to_vec(&Review {
            api_version: API_VERSION,
            kind: KIND,
            response: self,
        })
    }
}
