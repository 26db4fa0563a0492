//! Scrapes an endpoint in Prometheus's format that a trainer serves, and converts it into steps.
//!
//! This is for trainers without another way to export numbers (Axolotl, prime-rl), and for Ray's
//! agent. A scrape samples every few seconds, so it misses steps in between and spikes in them. It
//! takes only about a dozen series of an exposition: those of a recognised framework, those that
//! the configuration names, and those whose names show that they are about training.

mod client;
mod exposition;
mod preset;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use glob::Pattern;
use serde::{Deserialize, Serialize};
use stepwatch_kit::config::Period;
use stepwatch_kit::shutdown::Shutdown;

use super::sink::{Sink, Surroundings};
use crate::clock::unix_now;
use crate::family::Family;
use crate::origin::Priority;
use crate::origin::{Origin, Via};
use crate::readings::{self, Names, Readings};
use crate::source::SourceHandle;
use client::{Client, Fetched};
use preset::Preset;

/// This kind has no families of its own.
pub(super) const FAMILIES: &[&Family] = &[];
/// The most patterns of `keep` and of `drop`.
const MAX_PATTERNS: usize = 64;
/// An endpoint that does not answer within this time, or the interval, is down.
const MAX_TIMEOUT: Duration = Duration::from_secs(10);
/// The most fetches until two in a row show the same values.
const MAX_FETCHES: usize = 4;

/// `scrape: {url: "http://127.0.0.1:8000/metrics", interval: 5s, run: qwen-sft}`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrapeConfig {
    pub url: String,
    #[serde(default = "interval")]
    pub interval: Period,
    /// The format of the endpoint: `auto` detects it, `prometheus` is anything.
    #[serde(default = "auto")]
    pub format: String,
    /// The run it belongs to; otherwise the value of a label, or else the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The host that the endpoint reports, if it is not this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Labels that give the run and rank of a series.
    #[serde(default)]
    pub labels: LabelConfig,
    /// The meanings of names: from theirs to ours.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, String>,
    /// Patterns of further names to take, as custom metrics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<String>,
    /// Patterns of names to leave out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drop: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LabelConfig {
    /// The label that names the run.
    pub run: Option<String>,
    /// The label that numbers the rank.
    pub rank: Option<String>,
}

fn interval() -> Period {
    Period::secs(5)
}

fn auto() -> String {
    "auto".into()
}

impl ScrapeConfig {
    /// The errors of the configuration, each as `key: reason`.
    pub(super) fn check(&self) -> Vec<String> {
        let mut wrong = readings::check(&self.metrics);
        if let Err(why) = client::check(&self.url) {
            wrong.push(format!("url: {why}"));
        }
        if self.interval < Period::millis(100) {
            wrong.push("interval: must be at least 100ms".into());
        }
        if self.format != "auto" && Preset::named(&self.format).is_none() {
            let known = preset::names().join(", ");
            wrong.push(format!("format: unknown endpoint {:?}; known are auto, {known}", self.format));
        }
        for (key, patterns) in [("keep", &self.keep), ("drop", &self.drop)] {
            if patterns.len() > MAX_PATTERNS {
                wrong.push(format!("{key}: {} patterns, the limit is {MAX_PATTERNS}", patterns.len()));
            }
            for pattern in patterns {
                if let Err(err) = Pattern::new(pattern) {
                    wrong.push(format!("{key}: {pattern:?} is not a pattern: {err}"));
                }
            }
        }
        wrong
    }

    /// The run of series without one: host and port.
    fn address(&self) -> String {
        let after = self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest);
        let host = after.split(['/', '?']).next().unwrap_or(after);
        host.rsplit_once('@').map_or(host, |(_, host)| host).to_owned()
    }
}

/// The configuration of an endpoint in compiled form.
struct Wanted {
    config: ScrapeConfig,
    names: Names,
    keep: Vec<Pattern>,
    drop: Vec<Pattern>,
}

/// The events of a single exposition.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(text: &str) -> Vec<stepwatch_wire::Event> {
    let Ok(config) = stepwatch_kit::config::parse("", "{url: \"http://x/\", keep: [\"*a*\"]}") else {
        return Vec::new();
    };
    let wanted = Wanted::new(config);
    let fetched = Fetched { text: text.to_owned(), ..Fetched::default() };
    let page = exposition::read(&fetched, None, &wanted);
    let mut events = page.states(&mut BTreeMap::new());
    let mut readings = Readings::new(0.0);
    for (who, report) in page.reports(&wanted) {
        events.extend(readings.take(&who, report, None, 0.0).events);
    }
    events
}

/// The state of one endpoint between scrapes.
struct Scrape {
    wanted: Wanted,
    /// The framework that serves the endpoint, once it is recognised.
    preset: Option<&'static Preset>,
    readings: Readings,
    /// The last state of Ray's controllers, by run.
    states: BTreeMap<String, String>,
    /// The fingerprint of the last exposition.
    shown: u64,
    name: Arc<str>,
    sink: Box<dyn Sink>,
    health: SourceHandle,
}

pub(super) fn start(config: ScrapeConfig, around: &Surroundings, shutdown: Shutdown) {
    let timeout = MAX_TIMEOUT.min(config.interval.as_duration());
    let client = match Client::new(&config.url, timeout) {
        Ok(client) => client,
        Err(err) => return tracing::error!(url = config.url, %err, "cannot scrape"),
    };
    let scrape = Scrape::new(config, Box::new(around.hub.clone()));
    tokio::spawn(scrape.run(client, shutdown));
}

impl Scrape {
    fn new(config: ScrapeConfig, sink: Box<dyn Sink>) -> Self {
        let name: Arc<str> = client::shown(&config.url).into();
        Self {
            preset: Preset::named(&config.format),
            readings: Readings::new(unix_now()),
            states: BTreeMap::new(),
            shown: 0,
            health: sink.source(&name, "scrape"),
            name,
            sink,
            wanted: Wanted::new(config),
        }
    }

    async fn run(mut self, client: Client, shutdown: Shutdown) {
        let mut ticks = tokio::time::interval(self.wanted.config.interval.into());
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                _ = ticks.tick() => {}
            }
            let fetched = tokio::select! {
                () = shutdown.wait() => return,
                fetched = self.fetch(&client) => fetched,
            };
            self.health.up(fetched.is_ok());
            // An endpoint exists only while its trainer does, so a failure is logged once and not
            // every five seconds.
            if fetched.is_err() != failing {
                failing = !failing;
                let why = fetched.as_ref().err().map(ToString::to_string);
                tracing::info!(url = %self.name, why, answers = !failing, "a scraped endpoint");
            }
            match fetched {
                Ok(fetched) => self.take(&fetched, unix_now()),
                Err(client::Failed::TooLarge) => self.health.dropped("too_large", 1),
                Err(_) => {}
            }
        }
    }

    /// Fetches an exposition that did not change while it was written.
    ///
    /// A trainer sets one gauge after the other. In between, an exposition has the step of one
    /// moment and the loss of another. Two equal expositions in a row are consistent.
    async fn fetch(&mut self, client: &Client) -> Result<Fetched, client::Failed> {
        let mut fetched = client.fetch().await?;
        for _ in 1..MAX_FETCHES {
            let shown = exposition::read(&fetched, self.preset, &self.wanted).fingerprint();
            // Only one large exposition fits into memory, so it is not fetched again.
            if core::mem::replace(&mut self.shown, shown) == shown || fetched.is_large() {
                break;
            }
            // If the endpoint is gone meanwhile, the first exposition is its last.
            let Ok(again) = client.fetch().await else { break };
            fetched = again;
        }
        Ok(fetched)
    }

    /// Publishes the events of an exposition.
    fn take(&mut self, fetched: &Fetched, now: f64) {
        let page = exposition::read(fetched, self.preset, &self.wanted);
        self.preset = page.preset.or(self.preset);
        let mut dropped = page.dropped;
        let mut lag: Option<f64> = None;
        let mut events = page.states(&mut self.states);
        for (who, report) in page.reports(&self.wanted) {
            let known = self.sink.last_step(&who.run, who.rank);
            let taken = self.readings.take(&who, report, known, now);
            dropped += taken.dropped;
            events.extend(taken.events);
        }
        for mut event in events {
            if let Some(ts) = event.ts {
                lag = Some(lag.map_or(now - ts, |lag| lag.min(now - ts)));
            }
            event.node.clone_from(&self.wanted.config.node);
            let origin = Origin::source(Via::Scrape, &self.name, Priority::Telemetry);
            self.sink.publish(origin, event);
        }
        if let Some(lag) = lag {
            self.health.lag_seconds(lag);
        }
        for (reason, count) in [("malformed", page.malformed), ("series_limit", dropped)] {
            if count > 0 {
                self.health.dropped(reason, count);
            }
        }
        self.health.unmatched_lines(page.unmatched);
    }
}

impl Wanted {
    fn new(config: ScrapeConfig) -> Self {
        let patterns = |all: &[String]| all.iter().filter_map(|p| Pattern::new(p).ok()).collect();
        Self {
            names: Names::new(&config.metrics),
            keep: patterns(&config.keep),
            drop: patterns(&config.drop),
            config,
        }
    }

    /// Whether the configuration includes or excludes a series; `None` if the name must decide.
    fn asked(&self, name: &str) -> Option<bool> {
        if self.drop.iter().any(|p| p.matches(name)) {
            return Some(false);
        }
        let asked = self.names.has(name) || self.keep.iter().any(|p| p.matches(name));
        asked.then_some(true)
    }
}
