//! A report of `KubeflowCallback`, and the events made from it.

use std::collections::BTreeMap;

use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, EventError, Kind, Value as Json};

use crate::readings::{Names, Readings, Report, Value, Who};

/// The most metrics of one report.
const MAX_METRICS: usize = 256;

/// Numbers of a report that are not metrics of a step: those of the whole training, which are sent
/// at its end, and progress.
const NOT_METRICS: &[&str] = &[
    "total_steps",
    "current_epoch",
    "train_loss",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "train_tokens_per_second",
    "total_flos",
];

#[derive(Debug, Default, PartialEq)]
pub(super) struct Status {
    /// The Unix time of the report in seconds.
    pub(super) updated: Option<f64>,
    /// The progress in percent.
    progress: Option<f64>,
    metrics: Vec<(String, f64)>,
    /// The number of values that are not numbers or are over the limit.
    skipped: u64,
}

/// The meanings of names: those of this callback, which the configured ones override.
pub(super) fn names(configured: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut names: BTreeMap<_, _> =
        NOT_METRICS.iter().map(|name| ((*name).to_owned(), "drop".to_owned())).collect();
    names.extend(configured.clone());
    names
}

impl Status {
    pub(super) fn parse(body: &[u8]) -> Result<Self, EventError> {
        let body = Json::parse(body)?;
        let wrong = |reason: &str| EventError { field: "trainerStatus".into(), reason: reason.into() };
        let status = body.get("trainerStatus").ok_or_else(|| wrong("is required"))?;
        let Json::Map(_) = status else { return Err(wrong("must be an object")) };
        let updated = status.get("lastUpdatedTime").and_then(Json::as_str);
        let updated = updated.and_then(|t| t.parse::<jiff::Timestamp>().ok());
        let mut read = Self {
            updated: updated.map(|t| t.as_millisecond() as f64 / 1000.0),
            progress: status.get("progressPercentage").and_then(Json::as_f64),
            ..Self::default()
        };
        if let Some(Json::List(metrics)) = status.get("metrics") {
            read.skipped = metrics.len().saturating_sub(MAX_METRICS) as u64;
            for metric in metrics.iter().take(MAX_METRICS) {
                let named = metric.get("name").and_then(Json::as_str);
                match named.zip(metric.get("value").and_then(number)) {
                    Some((name, value)) => read.metrics.push((name.to_owned(), value)),
                    None => read.skipped += 1,
                }
            }
        }
        Ok(read)
    }

    /// The events of the report, and how many values were over a limit. The callback repeats the
    /// last logged values in every report; a value that did not change was not logged again.
    pub(super) fn events(
        &self,
        mut who: Who,
        names: &Names,
        readings: &mut Readings,
        known: Option<i64>,
        now: f64,
    ) -> (Vec<Event>, u64) {
        if self.is_start() {
            readings.forget(&who);
            who.about.insert(hello::RESUMED.to_owned(), Json::Bool(known.is_some()));
        }
        let readings_of = self.metrics.iter().map(|(n, v)| names.reading(n, "", Value::Gauge(*v))).collect();
        let report = Report { time: self.updated, readings: readings_of, ..Report::default() };
        let mut taken = readings.take(&who, report, known, now);
        if self.progress.is_some_and(|p| p >= 100.0) {
            let text = Some("the trainer reported that it is done".to_owned());
            taken.events.push(Event {
                run: Some(who.run),
                rank: Some(0),
                ts: self.updated,
                text,
                ..Event::new(Kind::Bye)
            });
        }
        (taken.events, taken.dropped + self.skipped)
    }

    /// Whether training begins: no step has been reported yet.
    fn is_start(&self) -> bool {
        self.progress == Some(0.0) && self.metrics.iter().all(|(name, _)| name != "current_step")
    }
}

/// Parses a number, which the callback sends as text.
fn number(value: &Json) -> Option<f64> {
    value.as_f64().or_else(|| stepwatch_wire::num::parse(value.as_str()?))
}
