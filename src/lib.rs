//! pausegen makes a Kubernetes pause checkable.
//!
//! The rooms, from the inside out:
//!
//! - [`protocol`]: the whole protocol as pure functions. No I/O, no clock, no Kubernetes client.
//! - [`rules`]: the rules file, its built-in preset, and the webhook configurations and RBAC generated from it.
//! - [`admission`]: the HTTPS webhook that stamps.
//! - [`companion`]: the controller that echoes.
//! - [`tls`]: CA and serving certificates.
//! - [`history`]: each flip and each acknowledgement as one line of a chain.
//! - [`report`]: what people and machines read.
//! - [`sandbox`]: a local control plane for tests and the demo.
//! - [`commands`]: one file per subcommand.

pub mod admission;
pub mod commands;
pub mod companion;
pub mod history;
pub mod protocol;
pub mod report;
pub mod rules;
pub mod sandbox;
#[cfg(test)]
mod testing;
pub mod tls;
mod wall_clock;

/// An error with what caused it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
