//! The arguments of a request: a JSON body for methods that write, a query or a form for methods
//! that read.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{No, blocks};
use crate::server::Received;

const MAX_HISTORY: usize = 999;
const DEFAULT_HISTORY: usize = 100;

/// The content of a message; absent parts are `None`.
pub(super) struct Content {
    pub(super) text: Option<String>,
    pub(super) blocks: Option<Vec<Value>>,
    pub(super) attachments: Option<Vec<Value>>,
    pub(super) metadata: Option<Value>,
}

impl Content {
    pub(super) fn read(args: &Value, max_text: usize) -> Result<Self, No> {
        let list = |key: &str, error: &'static str| match &args[key] {
            Value::Null => Ok(None),
            Value::Array(items) => Ok(Some(items.clone())),
            _ => Err(No::from(error)),
        };
        let text = args["text"].as_str().map(str::to_owned).filter(|t| !t.is_empty());
        let blocks = list("blocks", "invalid_blocks_format")?;
        let attachments = list("attachments", "invalid_attachments")?;
        let empty = |v: &Option<Vec<Value>>| v.as_ref().is_none_or(Vec::is_empty);
        if text.is_none() && empty(&blocks) && empty(&attachments) {
            return Err("no_text".into());
        }
        if text.as_ref().is_some_and(|t| t.chars().count() > max_text) {
            return Err("msg_too_long".into());
        }
        blocks::check_message(blocks.as_deref(), attachments.as_deref())
            .map_err(|e| No { messages: e.details, ..No::from(e.error) })?;
        let metadata = (!args["metadata"].is_null()).then(|| args["metadata"].clone());
        if let Some(m) = &metadata {
            if !(m["event_type"].is_string() && m["event_payload"].is_object()) {
                return Err("invalid_metadata_format".into());
            }
        }
        Ok(Self { text, blocks, attachments, metadata })
    }
}

/// The arguments of methods that write, from a JSON body.
pub(super) fn json_args(req: &Received) -> Result<Value, No> {
    if !req.header("content-type").unwrap_or_default().starts_with("application/json") {
        return Err("invalid_post_type".into());
    }
    match serde_json::from_slice(&req.body) {
        Ok(v @ Value::Object(_)) => Ok(v),
        _ => Err("invalid_json".into()),
    }
}

/// The arguments of methods that read, from a query or a form, but not from JSON.
pub(super) fn read_args(req: &Received) -> BTreeMap<String, String> {
    let mut args = req.query.clone();
    if req.header("content-type").unwrap_or_default().starts_with("application/x-www-form-urlencoded") {
        args.extend(url::form_urlencoded::parse(&req.body).into_owned());
    }
    args
}

pub(super) fn limit(args: &BTreeMap<String, String>) -> Result<usize, No> {
    match args.get("limit").map(|s| s.parse::<usize>()) {
        None => Ok(DEFAULT_HISTORY),
        Some(Ok(n)) if (1..=MAX_HISTORY).contains(&n) => Ok(n),
        Some(_) => Err("invalid_limit".into()),
    }
}

pub(super) fn flag(args: &BTreeMap<String, String>, key: &str) -> bool {
    args.get(key).is_some_and(|v| v == "true" || v == "1")
}

pub(super) fn cursor(args: &BTreeMap<String, String>) -> usize {
    args.get("cursor").and_then(|c| c.parse().ok()).unwrap_or(0)
}

pub(super) fn next_cursor(all: usize, until: usize) -> String {
    if all > until { until.to_string() } else { String::new() }
}

/// Whether a timestamp is in the window. `oldest` and `latest` are exclusive unless `inclusive` is
/// given.
pub(super) fn in_window(ts: &str, args: &BTreeMap<String, String>) -> bool {
    let at: f64 = ts.parse().unwrap_or_default();
    let bound = |key: &str| args.get(key).and_then(|s| s.parse::<f64>().ok());
    let inclusive = flag(args, "inclusive");
    let after = bound("oldest").is_none_or(|o| at > o || (inclusive && at == o));
    after && bound("latest").is_none_or(|l| at < l || (inclusive && at == l))
}
