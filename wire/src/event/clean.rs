//! Removes unsafe characters from the texts of an event.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::Event;
use crate::json::Value;
use crate::metrics::Metrics;
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
