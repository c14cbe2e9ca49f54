//! What an operator can set about admission.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

use crate::{
    protocol::{
        object::truncate,
        stamp::{Policies, Writer},
    },
    rules::manifests::FailurePolicy,
};

/// The stamp keeps at most this many bytes of a user name.
const USER_LIMIT: usize = 256;

/// What an operator can set about admission.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// What is warned of or denied.
    pub policies: Policies,
    /// User names to whom the policies do not apply.
    pub exempt_users: BTreeSet<String>,
    /// The user names under which the companion writes. Nobody else's acknowledgement is let through.
    pub companion_users: BTreeSet<String>,
    /// How a user is recorded in the stamp.
    pub record_user: RecordUser,
    /// The `failurePolicy` of the webhooks that are called for a flip. Under `Ignore` a flip without its stamp is warned
    /// of, not denied.
    pub flip_failure_policy: FailurePolicy,
}

/// How a user is recorded in the stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecordUser {
    /// The user name, cut to 256 bytes.
    #[default]
    Full,
    /// The first 16 hexadecimal digits of its SHA-256.
    Hash,
    /// Not at all.
    Off,
}

impl Settings {
    /// A user as the stamp records it.
    #[must_use]
    pub fn recorded(&self, user: &str) -> String {
        match self.record_user {
            RecordUser::Full => {
                let mut user = user.to_owned();
                truncate(&mut user, USER_LIMIT);
                user
            }
            RecordUser::Hash => {
                let digest = Sha256::digest(user.as_bytes());
                digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
            }
            RecordUser::Off => String::new(),
        }
    }

    /// A user as the protocol asks about it; `recorded` is what [`Settings::recorded`] gave.
    #[must_use]
    pub fn writer<'a>(&self, user: &str, recorded: &'a str) -> Writer<'a> {
        Writer {
            recorded,
            is_companion: self.companion_users.contains(user),
            is_exempt: self.exempt_users.contains(user),
        }
    }
}
