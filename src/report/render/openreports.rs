//! A `ClusterReport` of openreports.io/v1alpha1: one result for each object that has nothing to be looked at, else one for
//! each finding.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{evidence, paused_by};
use crate::report::{
    model::{Code, Finding, Report, Row},
    text,
};

const POLICY: &str = "pause-acknowledged";

pub(super) fn render(report: &Report, now: Timestamp) -> Value {
    let (mut results, mut pass, mut fail, mut warn) = (Vec::new(), 0, 0, 0);
    for row in &report.rows {
        if row.findings.is_empty() {
            pass += 1;
            results.push(result(row, None, now));
        }
        for finding in &row.findings {
            if outcome(finding) == "warn" {
                warn += 1;
            } else {
                fail += 1;
            }
            results.push(result(row, Some(finding), now));
        }
    }
    // What could not be read was not evaluated.
    let error = i32::from(!report.complete);
    if error > 0 {
        let message = report.unknown.join("; ");
        results.push(json!({"policy": POLICY, "result": "error", "message": message, "timestamp": timestamp(now)}));
    }
    json!({
        "apiVersion": "openreports.io/v1alpha1",
        "kind": "ClusterReport",
        "metadata": {"name": "pausegen"},
        "source": "pausegen",
        "summary": {"pass": pass, "fail": fail, "warn": warn, "error": error, "skip": 0},
        "results": results,
    })
}

fn timestamp(at: Timestamp) -> Value {
    json!({"seconds": at.as_second(), "nanos": at.subsec_nanosecond()})
}

fn outcome(finding: &Finding) -> &'static str {
    match finding.code {
        Code::Old | Code::Contradicted => "warn",
        _ => "fail",
    }
}

fn severity(finding: &Finding) -> &'static str {
    match finding.code {
        Code::OfAnother | Code::Broken | Code::NotAnEcho | Code::InputsDiffer => "high",
        Code::Pending | Code::Unstamped | Code::Contradicted => "medium",
        Code::Old => "low",
    }
}

fn result(row: &Row, finding: Option<&Finding>, now: Timestamp) -> Value {
    let mut properties = Map::new();
    let mut put = |key: &str, value: String| {
        if !value.is_empty() {
            properties.insert(key.to_owned(), Value::String(text::clean(&value).into_owned()));
        }
    };
    put("status", row.status.as_str().to_owned());
    put("pausedBy", paused_by(row));
    put("generation", row.generation.map(|n| n.to_string()).unwrap_or_default());
    put(
        "observedGeneration",
        row.observed_generation.map(|n| n.to_string()).unwrap_or_default(),
    );
    put("evidence", evidence(row));
    put("since", row.since.clone().unwrap_or_default());
    put("by", row.by.clone());
    put("reason", row.reason.clone());
    put("acknowledgedAt", row.acknowledged_at.clone().unwrap_or_default());
    let mut subject = json!({"apiVersion": row.api_version, "kind": row.kind, "name": row.name, "uid": row.uid});
    if let (Value::Object(subject), false) = (&mut subject, row.namespace.is_empty()) {
        subject.insert("namespace".to_owned(), Value::String(row.namespace.clone()));
    }
    let mut result = json!({
        "policy": POLICY,
        "category": "Pause",
        "scored": true,
        "timestamp": timestamp(now),
        "resources": [subject],
        "properties": properties,
        "result": finding.map_or("pass", outcome),
        "severity": finding.map_or("info", severity),
    });
    if let (Value::Object(result), Some(finding)) = (&mut result, finding) {
        result.insert("rule".to_owned(), Value::String(finding.code.as_str().to_owned()));
        result.insert(
            "message".to_owned(),
            Value::String(text::clean(&finding.message).into_owned()),
        );
    }
    result
}
