//! `kubectl` as a person runs it, with its answer read.

use std::time::Duration;

use kube::api::DynamicObject;

use super::{Error, Sandbox};

/// How `kubectl wait` says that the time is up.
const TIMED_OUT: &str = "timed out waiting for the condition";

impl Sandbox {
    /// Runs `kubectl` as the administrator and returns what it writes to stdout.
    ///
    /// # Errors
    ///
    /// It cannot be run, or it fails.
    pub async fn kubectl_ok(&self, args: &[&str]) -> Result<String, Error> {
        let output = self.kubectl(args).await?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(failed(args, &output.stderr))
    }

    /// Runs `kubectl` with `-o json` and returns the object that it writes.
    ///
    /// # Errors
    ///
    /// It cannot be run, it fails, or it writes something else.
    pub async fn kubectl_object(&self, args: &[&str]) -> Result<DynamicObject, Error> {
        let args: Vec<&str> = args.iter().copied().chain(["-o", "json"]).collect();
        let text = self.kubectl_ok(&args).await?;
        parse(&args, &text)
    }

    /// Runs `kubectl wait` and returns the object with which it was content; `None` where the time was up before.
    ///
    /// # Errors
    ///
    /// It cannot be run, or it fails for another reason.
    pub async fn kubectl_wait(
        &self,
        namespace: &str,
        what: &str,
        condition: &str,
        timeout: Duration,
    ) -> Result<Option<DynamicObject>, Error> {
        let (condition, timeout) = (
            format!("--for={condition}"),
            format!("--timeout={}s", timeout.as_secs()),
        );
        let args = ["wait", "-n", namespace, what, &condition, &timeout, "-o", "json"];
        let output = self.kubectl(args).await?;
        if output.status.success() {
            return parse(&args, &String::from_utf8_lossy(&output.stdout)).map(Some);
        }
        if String::from_utf8_lossy(&output.stderr).contains(TIMED_OUT) {
            return Ok(None);
        }
        Err(failed(&args, &output.stderr))
    }
}

fn failed(args: &[&str], stderr: &[u8]) -> Error {
    Error::Kubectl {
        command: args.join(" "),
        says: String::from_utf8_lossy(stderr).trim().to_owned(),
    }
}

fn parse(args: &[&str], text: &str) -> Result<DynamicObject, Error> {
    serde_json::from_str(text).map_err(|error| Error::Kubectl {
        command: args.join(" "),
        says: format!("its output is no object: {error}"),
    })
}
