//! The setup of the node or of one run. It is published when it is new or changes, and every ten
//! minutes.

use std::time::{Duration, Instant};

use stepwatch_wire::{Event, Kind, Value};

use super::value::{Settings, fingerprint};
use super::{FINGERPRINT, VALUE};
use crate::clock::unix_now;
use crate::collector::Context;
use crate::origin::Origin;
use crate::samples::Samples;

const AGAIN: Duration = Duration::from_mins(10);
/// The most settings in one event, which also has a few other fields.
const KEYS_AN_EVENT: usize = 28;
/// The most changes that the text names.
const NAMED: usize = 3;

#[derive(Debug, Default)]
pub(super) struct Scope {
    settings: Settings,
    fingerprint: String,
    /// The changes since it was last published, as text.
    changed: Vec<String>,
    news: bool,
    last_published: Option<Instant>,
}

impl Scope {
    /// The state with the settings that an earlier process of this exporter saved.
    pub(super) fn remembered(settings: Settings) -> Self {
        let fingerprint = fingerprint(&settings);
        Self { settings, fingerprint, ..Self::default() }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sets the settings. Returns whether a known one is different or missing; a new one is no
    /// change.
    pub(super) fn take(&mut self, settings: Settings) -> bool {
        if settings == self.settings {
            return false;
        }
        let difference = |(key, before): (&String, &String)| match settings.get(key) {
            Some(now) if now == before => None,
            Some(now) => Some(format!("{key} was {before} and is {now}")),
            None => Some(format!("{key} was {before} and is not to be seen")),
        };
        let changed: Vec<String> = self.settings.iter().filter_map(difference).collect();
        let differs = !changed.is_empty();
        self.changed.extend(changed);
        self.fingerprint = fingerprint(&settings);
        self.settings = settings;
        self.news = true;
        differs
    }

    /// Publishes the settings if that is due. Returns whether it did, and they were news. Those of
    /// a run are published with one of its ranks on this node.
    pub(super) fn report(&mut self, cx: &Context<'_>, now: Instant, run: Option<(&str, u32)>) -> bool {
        let due = self.last_published.is_none_or(|at| now.saturating_duration_since(at) >= AGAIN);
        if !self.news && !due || self.settings.is_empty() {
            return false;
        }
        let again = !self.news && self.last_published.is_some();
        let text = self.sentence();
        let parts = self.settings.len().div_ceil(KEYS_AN_EVENT);
        let all: Vec<(&String, &String)> = self.settings.iter().collect();
        for (part, settings) in all.chunks(KEYS_AN_EVENT).enumerate() {
            let mut event = Event {
                ts: Some(unix_now()),
                run: run.map(|(name, _)| name.to_owned()),
                rank: run.map(|(_, rank)| rank),
                name: Some("config".into()),
                level: Some("info".into()),
                text: Some(text.clone()),
                ..Event::new(Kind::Health)
            };
            let mut say = |key: &str, value| _ = event.extra.insert(key.to_owned(), value);
            say("fingerprint", Value::Text(self.fingerprint.clone()));
            if parts > 1 {
                say("part", Value::Number((part + 1) as f64));
                say("parts", Value::Number(parts as f64));
            }
            if again {
                say("again", Value::Bool(true));
            }
            for (key, value) in settings {
                say(key, Value::Text((*value).clone()));
            }
            cx.hub.publish(Origin::Node, event);
        }
        self.changed.clear();
        self.last_published = Some(now);
        std::mem::take(&mut self.news)
    }

    fn sentence(&self) -> String {
        if self.changed.is_empty() {
            return format!("set up as {}, {} settings", self.fingerprint, self.settings.len());
        }
        let named = self.changed.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join("; ");
        match self.changed.len().saturating_sub(NAMED) {
            0 => named,
            more => format!("{named}; and {more} more"),
        }
    }

    pub(super) fn write(&self, run: &str, values: bool, out: &mut Samples) {
        if self.settings.is_empty() {
            return;
        }
        out.set(&FINGERPRINT, &[run, &self.fingerprint], true);
        if values {
            for (key, value) in &self.settings {
                out.set(&VALUE, &[run, key, value], true);
            }
        }
    }
}
