//! Removes unsafe characters from the texts of an event, and possible secrets from what a trainer
//! declares.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{Event, Kind};
use crate::json::Value;
use crate::metrics::Metrics;
use crate::secrets::{is_secret_argument, is_secret_text};
use crate::words;

impl Event {
    /// Removes unsafe characters from every text. Each receiver of events calls this once.
    pub fn clean(&mut self) {
        for text in [&mut self.run, &mut self.node, &mut self.name, &mut self.level].into_iter().flatten() {
            make_line(text);
        }
        // Two run names must not differ only by blanks at their ends.
        if let Some(run) = self.run.as_mut().filter(|run| run.trim().len() < run.len()) {
            *run = run.trim().to_owned();
        }
        self.run.take_if(|run| run.is_empty());
        if let Some(text) = &mut self.text {
            make_clean(text);
        }
        self.missing.iter_mut().for_each(make_line);
        [&mut self.m, &mut self.q, &mut self.t].into_iter().for_each(Metrics::clean);
        clean_map(&mut self.extra);
    }

    /// Removes the entries of a `hello` whose text may be a secret: trainers declare all their
    /// settings, and who reads the stream need not know them. Numbers stay. Returns how many
    /// entries it removed.
    pub fn hide_secrets(&mut self) -> u64 {
        if self.kind == Kind::Hello { hide(&mut self.extra) } else { 0 }
    }
}

fn hide(map: &mut BTreeMap<String, Value>) -> u64 {
    let mut hidden = 0;
    map.retain(|name, value| {
        let kept = keeps(name, value, &mut hidden);
        hidden += u64::from(!kept);
        kept
    });
    hidden
}

/// Hides the entries of a value of this name; false if it may be a secret itself.
fn keeps(name: &str, value: &mut Value, hidden: &mut u64) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
        Value::Text(text) => !is_secret_text(name, text),
        Value::List(items) => items.iter_mut().all(|item| keeps(name, item, hidden)),
        Value::Map(_) if is_secret_argument(name) => false,
        Value::Map(inner) => {
            *hidden += hide(inner);
            true
        }
    }
}

fn make_line(text: &mut String) {
    if let Cow::Owned(line) = words::line(text) {
        *text = line;
    }
}

fn make_clean(text: &mut String) {
    if let Cow::Owned(clean) = words::clean(text) {
        *text = clean;
    }
}

fn clean_map(map: &mut BTreeMap<String, Value>) {
    if map.keys().any(|key| matches!(words::line(key), Cow::Owned(_))) {
        let odd = std::mem::take(map).into_iter();
        map.extend(odd.map(|(key, value)| (words::into_line(key), value)));
    }
    map.values_mut().for_each(clean_value);
}

fn clean_value(value: &mut Value) {
    match value {
        Value::Text(text) => make_clean(text),
        Value::List(items) => items.iter_mut().for_each(clean_value),
        Value::Map(map) => clean_map(map),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_has_no_secrets_and_its_numbers_stay() {
        let mut e = Event::parse(
            br#"{"k":"hello","run":"r","hub_token":"canary","team":"nlp","auth":{"user":"canary"},
            "config":{"lr":1,"key":"canary","tokens":9,"list":["canary:a@b"],"all":[{"pw":"canary"},{"bf16":true}]}}"#,
        )
        .unwrap();
        assert_eq!(e.hide_secrets(), 5);
        let text = format!("{:?}", e.extra);
        assert!(!text.contains("canary"), "{text}");
        assert!(["team", "lr", "tokens", "bf16"].iter().all(|kept| text.contains(kept)), "{text}");
        let mut lists = Event::parse(
            br#"{"k":"hello","run":"r","env":[{"name":"PW","value":"canary"}],"grid":[[{"pw":"canary"}]],
            "all":[["ada:canary@h"]],"tokens":[1,2],"hub_token":"True","headers":{"a":["canary"]}}"#,
        )
        .unwrap();
        assert_eq!(lists.hide_secrets(), 4);
        let text = format!("{:?}", lists.extra);
        assert!(!text.contains("canary"), "{text}");
        assert!(["grid", "tokens", "hub_token"].iter().all(|kept| text.contains(kept)), "{text}");
        let mut labels = Event::parse(br#"{"k":"hello","run":"r","env":"prod","tier":"gold"}"#).unwrap();
        assert_eq!(labels.hide_secrets(), 0, "routes select by them");
        let mut step =
            Event::parse(br#"{"k":"step","run":"r","step":1,"token":"a","m":{"loss":1}}"#).unwrap();
        assert_eq!(step.hide_secrets(), 0);
    }
}
