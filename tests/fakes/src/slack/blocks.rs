//! The limits of Block Kit, as Slack's SDKs and error messages state them.

use std::collections::BTreeSet;

use serde_json::Value;

const MAX_BLOCKS: usize = 50;
const MAX_ATTACHMENTS: usize = 100;
/// This limit is not documented; senders found it.
const MAX_BLOCKS_CHARS: usize = 13_200;
const MAX_SECTION: usize = 3_000;
const MAX_FIELDS: usize = 10;
const MAX_FIELD: usize = 2_000;
const MAX_HEADER: usize = 150;
const MAX_CONTEXT_ELEMENTS: usize = 10;
const MAX_ACTIONS: usize = 25;
const MAX_BUTTON: usize = 75;
const MAX_VALUE: usize = 2_000;
const MAX_URL: usize = 3_000;
const MAX_ID: usize = 255;
const MAX_ALT: usize = 2_000;

pub(super) struct Refused {
    pub(super) error: &'static str,
    pub(super) details: Vec<String>,
}

/// Checks all blocks of a message, including those in attachments.
pub(super) fn check_message(blocks: Option<&[Value]>, attachments: Option<&[Value]>) -> Result<(), Refused> {
    let attachments = attachments.unwrap_or_default();
    if attachments.len() > MAX_ATTACHMENTS {
        return Err(Refused { error: "too_many_attachments", details: Vec::new() });
    }
    check(blocks.unwrap_or_default())?;
    for a in attachments {
        check(a["blocks"].as_array().map(Vec::as_slice).unwrap_or_default())?;
    }
    Ok(())
}

fn check(blocks: &[Value]) -> Result<(), Refused> {
    let mut c = Checker::default();
    if blocks.len() > MAX_BLOCKS {
        c.wrong("/blocks", &format!("no more than {MAX_BLOCKS} items allowed"));
    }
    let mut ids = BTreeSet::new();
    for (i, b) in blocks.iter().enumerate() {
        let at = format!("/blocks/{i}");
        c.block(&at, b);
        if let Some(id) = b["block_id"].as_str() {
            if !ids.insert(id) {
                c.wrong(&format!("{at}/block_id"), "must be unique");
            }
        }
    }
    if !c.errors.is_empty() {
        return Err(Refused { error: "invalid_blocks", details: c.errors });
    }
    if c.chars > MAX_BLOCKS_CHARS {
        return Err(Refused { error: "msg_blocks_too_long", details: Vec::new() });
    }
    Ok(())
}

/// Appends all texts for people in `v`.
pub(super) fn collect_text(v: &Value, out: &mut String) {
    match v {
        Value::Array(items) => items.iter().for_each(|i| collect_text(i, out)),
        Value::Object(map) => {
            for (key, v) in map {
                match v {
                    Value::String(s)
                        if matches!(key.as_str(), "text" | "fallback" | "title" | "alt_text") =>
                    {
                        out.push('\n');
                        out.push_str(s);
                    }
                    _ => collect_text(v, out),
                }
            }
        }
        _ => {}
    }
}

#[derive(Default)]
struct Checker {
    errors: Vec<String>,
    chars: usize,
}

impl Checker {
    fn wrong(&mut self, pointer: &str, what: &str) {
        self.errors.push(format!("{what} [json-pointer:{pointer}]"));
    }

    fn block(&mut self, at: &str, b: &Value) {
        self.length(&format!("{at}/block_id"), b.get("block_id"), MAX_ID);
        match b["type"].as_str().unwrap_or_default() {
            "header" => self.text(&format!("{at}/text"), &b["text"], MAX_HEADER, &["plain_text"]),
            "section" => self.section(at, b),
            "context" => {
                let each = |c: &mut Self, at: &str, e: &Value| match e["type"].as_str() {
                    Some("image") => c.image(at, e),
                    _ => c.text(at, e, MAX_SECTION, &["mrkdwn", "plain_text"]),
                };
                self.list(&format!("{at}/elements"), &b["elements"], MAX_CONTEXT_ELEMENTS, each);
            }
            "actions" => {
                self.list(&format!("{at}/elements"), &b["elements"], MAX_ACTIONS, Self::element);
                self.unique_actions(at, b);
            }
            "image" => self.image(at, b),
            "divider" => {}
            "rich_text" => self.list(&format!("{at}/elements"), &b["elements"], MAX_BLOCKS, |_, _, _| {}),
            other => self.wrong(&format!("{at}/type"), &format!("unsupported type: {other}")),
        }
    }

    /// Checks that actions are unique, because a click identifies its button by block and action.
    fn unique_actions(&mut self, at: &str, b: &Value) {
        let mut ids = BTreeSet::new();
        let elements = b["elements"].as_array().into_iter().flatten();
        for (i, id) in elements.enumerate().filter_map(|(i, e)| Some((i, e["action_id"].as_str()?))) {
            if !ids.insert(id) {
                self.wrong(
                    &format!("{at}/elements/{i}/action_id"),
                    &format!("`action_id` \"{id}\" already exists"),
                );
            }
        }
    }

    fn section(&mut self, at: &str, b: &Value) {
        if b["text"].is_null() && b["fields"].is_null() {
            self.wrong(at, "missing required field: text or fields");
        }
        if !b["text"].is_null() {
            self.text(&format!("{at}/text"), &b["text"], MAX_SECTION, &["mrkdwn", "plain_text"]);
        }
        if !b["fields"].is_null() {
            self.list(&format!("{at}/fields"), &b["fields"], MAX_FIELDS, |c, at, f| {
                c.text(at, f, MAX_FIELD, &["mrkdwn", "plain_text"]);
            });
        }
        if !b["accessory"].is_null() {
            self.element(&format!("{at}/accessory"), &b["accessory"]);
        }
    }

    fn element(&mut self, at: &str, e: &Value) {
        self.length(&format!("{at}/action_id"), e.get("action_id"), MAX_ID);
        match e["type"].as_str() {
            Some("image") => self.image(at, e),
            Some("button") => {
                self.text(&format!("{at}/text"), &e["text"], MAX_BUTTON, &["plain_text"]);
                self.length(&format!("{at}/value"), e.get("value"), MAX_VALUE);
                self.length(&format!("{at}/url"), e.get("url"), MAX_URL);
                if e["style"].as_str().is_some_and(|s| s != "primary" && s != "danger") {
                    self.wrong(&format!("{at}/style"), "must be primary or danger");
                }
            }
            Some("overflow" | "static_select" | "users_select") => {}
            _ => self.wrong(&format!("{at}/type"), "unsupported element"),
        }
    }

    fn image(&mut self, at: &str, e: &Value) {
        let sourced =
            e["image_url"].as_str().is_some_and(|u| u.starts_with("http")) || e["slack_file"].is_object();
        if !sourced {
            self.wrong(&format!("{at}/image_url"), "missing required field: image_url or slack_file");
        }
        self.length(&format!("{at}/image_url"), e.get("image_url"), MAX_URL);
        if e["alt_text"].as_str().is_none_or(str::is_empty) {
            self.wrong(&format!("{at}/alt_text"), "missing required field: alt_text");
        }
        self.length(&format!("{at}/alt_text"), e.get("alt_text"), MAX_ALT);
    }

    /// Checks a text object.
    fn text(&mut self, at: &str, t: &Value, max: usize, types: &[&str]) {
        let kind = t["type"].as_str().unwrap_or_default();
        if !types.contains(&kind) {
            self.wrong(&format!("{at}/type"), &format!("must be one of {types:?}, got {kind:?}"));
        }
        if t["text"].as_str().is_none_or(str::is_empty) {
            self.wrong(&format!("{at}/text"), "must be more than 0 characters");
        }
        if kind == "mrkdwn" && !t["emoji"].is_null() {
            self.wrong(&format!("{at}/emoji"), "only allowed for plain_text");
        }
        if kind == "plain_text" && !t["verbatim"].is_null() {
            self.wrong(&format!("{at}/verbatim"), "only allowed for mrkdwn");
        }
        self.chars += t["text"].as_str().map_or(0, |s| s.chars().count());
        self.length(&format!("{at}/text"), t.get("text"), max);
    }

    fn length(&mut self, at: &str, v: Option<&Value>, max: usize) {
        match v {
            None | Some(Value::Null) => {}
            Some(Value::String(s)) if s.chars().count() <= max => {}
            Some(Value::String(_)) => self.wrong(at, &format!("must be less than {} characters", max + 1)),
            Some(_) => self.wrong(at, "must be a string"),
        }
    }

    fn list(&mut self, at: &str, list: &Value, max: usize, each: impl Fn(&mut Self, &str, &Value)) {
        match list.as_array() {
            None => self.wrong(at, "missing required field"),
            Some(items) if items.is_empty() => self.wrong(at, "must have at least 1 item"),
            Some(items) if items.len() > max => self.wrong(at, &format!("no more than {max} items allowed")),
            Some(items) => {
                for (i, item) in items.iter().enumerate() {
                    each(self, &format!("{at}/{i}"), item);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn error(blocks: Value) -> Option<&'static str> {
        check(blocks.as_array().unwrap()).err().map(|r| r.error)
    }

    #[test]
    fn limits_hold_at_the_edge_and_one_past_it() {
        let header = |n| json!([{"type": "header", "text": {"type": "plain_text", "text": "x".repeat(n)}}]);
        assert_eq!(error(header(150)), None);
        assert_eq!(error(header(151)), Some("invalid_blocks"));
        let section = |n| json!([{"type": "section", "text": {"type": "mrkdwn", "text": "x".repeat(n)}}]);
        assert_eq!(error(section(3000)), None);
        assert_eq!(error(section(3001)), Some("invalid_blocks"));
        let many = |n: usize| Value::Array(vec![json!({"type": "divider"}); n]);
        assert_eq!(error(many(50)), None);
        assert_eq!(error(many(51)), Some("invalid_blocks"));
        let fields = |n: usize| {
            let f = vec![json!({"type": "mrkdwn", "text": "x"}); n];
            json!([{"type": "section", "fields": f}])
        };
        assert_eq!(error(fields(10)), None);
        assert_eq!(error(fields(11)), Some("invalid_blocks"));
    }

    #[test]
    fn refuses_shapes_that_slack_refuses() {
        let button =
            |id| json!({"type": "button", "action_id": id, "text": {"type": "plain_text", "text": "x"}});
        assert_eq!(error(json!([{"type": "actions", "elements": [button("a"), button("b")]}])), None);
        for bad in [
            json!([{"type": "header", "text": {"type": "mrkdwn", "text": "x"}}]),
            json!([{"type": "section"}]),
            json!([{"type": "section", "text": {"type": "mrkdwn", "text": ""}}]),
            json!([{"type": "context", "elements": []}]),
            json!([{"type": "banner"}]),
            json!([{"type": "image", "image_url": "https://x/y.png"}]),
            json!([{"type": "divider", "block_id": "a"}, {"type": "divider", "block_id": "a"}]),
            json!([{"type": "header", "text": {"type": "plain_text", "text": "x", "verbatim": true}}]),
            json!([{"type": "actions", "elements": [button("a"), button("a")]}]),
        ] {
            assert_eq!(error(bad.clone()), Some("invalid_blocks"), "{bad}");
        }
        let long = json!({"type": "section", "text": {"type": "mrkdwn", "text": "x".repeat(2900)}});
        assert_eq!(error(Value::Array(vec![long; 5])), Some("msg_blocks_too_long"));
    }
}
