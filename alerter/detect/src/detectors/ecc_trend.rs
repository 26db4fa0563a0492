//! Detects corrected memory errors that are more frequent than usual for this GPU: a sign of wear
//! before a failure.
//!
//! Errors are counted by the hour and compared with what an hour usually had, a slow average of the
//! hours before. Corrected errors alone harm nothing and some boards live with a few, so that it
//! takes `times` the usual and at least `floor` of them. Rows that were remapped are repairs
//! already made: `rows` of them within a day, or one that replaced a row with an uncorrectable
//! error, make a ticket too. This is a prediction and never pages: the advice is to drain the node
//! at the next checkpoint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::detector::{NodeAt, NodeDetector};
use crate::node::{Gpu, NodeState, words};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Change, Fact, Finding, Kind, Observation, Sentence, Severity, Suspect, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Corrected errors of an hour against the usual hour: an engineering limit.
    pub times: f64,
    /// Corrected errors of an hour, at least: 60 are one a minute. With the default of `times` it
    /// decides where a usual hour has fewer than 7.5; a Poisson count with that mean has 60 with a
    /// chance of 2·10⁻³³. Errors come in bursts: the margin is for those.
    pub floor: f64,
    /// Rows remapped within a day: an engineering limit.
    pub rows: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, times: 8.0, floor: 60.0, rows: 2.0 }
    }
}

const HOUR: Span = Span::secs(3600);
const DAY: Span = Span::secs(86_400);
/// The weight of an hour in the usual count, so that about a day counts.
const WEIGHT: f64 = 0.05;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct EccTrend {
    gpus: BTreeMap<String, Watch>,
    raised: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Watch {
    readings: u64,
    corrected: Counter,
    /// The usual number of errors in an hour.
    usual: f64,
    rows: Counter,
    worse_rows: Counter,
    /// Since when the GPU needs a ticket, and why.
    faulty: Option<(Ts, Observation)>,
    value: f64,
}

/// How much a counter rose since a period began.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Counter {
    last: Option<f64>,
    began: Ts,
    risen: f64,
}

impl Counter {
    /// Records a value. Returns the count of the last period if one has ended. A counter that fell
    /// was reset.
    fn take(&mut self, now: Ts, v: Option<f64>, period: Span) -> Option<f64> {
        let v = v?;
        let Some(last) = self.last.replace(v) else {
            self.began = now;
            return None;
        };
        self.risen += (v - last).max(0.0);
        if now - self.began < period {
            return None;
        }
        self.began = now;
        Some(core::mem::take(&mut self.risen))
    }
}

impl EccTrend {
    /// Records a reading; true if the GPU has just come to need a ticket.
    fn take(&mut self, c: &Config, now: Ts, uuid: &str, gpu: &Gpu) -> bool {
        let w = self.gpus.entry(uuid.to_owned()).or_default();
        w.readings = gpu.readings;
        let r = &gpu.last;
        let hour = w.corrected.take(now, r.ecc_corrected, HOUR);
        w.rows.take(now, r.remapped_correctable, DAY);
        w.worse_rows.take(now, r.remapped_uncorrectable, DAY);
        let so_far = hour.unwrap_or(w.corrected.risen);
        let many = so_far >= c.floor && so_far >= c.times * w.usual;
        let (rows, worse_rows) = (w.rows.risen, w.worse_rows.risen);
        let why = if worse_rows >= 1.0 {
            Some(Observation::RowsRemapped { rows: worse_rows.into(), uncorrectable: true })
        } else if rows >= c.rows {
            Some(Observation::RowsRemapped { rows: rows.into(), uncorrectable: false })
        } else if many {
            Some(Observation::MemoryErrors { value: so_far.into(), expected: w.usual.into() })
        } else {
            None
        };
        if let Some(hour) = hour {
            // An unusual hour is capped, so that it hardly changes the usual count.
            w.usual += WEIGHT * (hour.min(c.floor.max(2.0 * w.usual)) - w.usual);
        }
        if let Some(why) = why {
            w.value = so_far;
            return w.faulty.replace((now, why)).is_none();
        }
        // The fault is over after a whole day without a reason for a ticket.
        w.faulty = w.faulty.take().filter(|(at, _)| now - *at < DAY);
        false
    }

    fn report(&self, view: NodeAt<'_>) -> Finding {
        let f = view.node;
        let mut v = view.finding(Kind::EccTrend, "ecc", Change::Raise, Severity::Ticket);
        let faulty = self.gpus.iter().filter_map(|(uuid, w)| Some((uuid, w, w.faulty.as_ref()?)));
        for (uuid, w, (_, why)) in faulty {
            let gpu = words::gpu_of(f, uuid, "");
            if v.why.is_empty() {
                (v.value, v.expected, v.score) = (w.value, w.usual, w.value / w.usual.max(1.0));
                let (device, node) = (Fact::Device(gpu.clone()), f.name.clone());
                v.why = Sentence::from(clause!("{gpu} of {node}: {seen}", gpu = device, node, seen = why))
                    .and(clause!(
                        "nothing is lost yet: drain {node} at the next checkpoint and reset the GPU",
                        node = f.name.clone(),
                    ))
                    .naming(gpu.clone());
            }
            v.suspects.push(Suspect::new(gpu, why.clone()));
        }
        v
    }
}

impl NodeDetector for EccTrend {
    type Config = Config;

    fn look(&mut self, c: &Config, view: NodeAt<'_>, out: &mut Vec<Finding>) {
        if !c.enabled {
            return;
        }
        let NodeAt { now, node: f, .. } = view;
        let mut news = false;
        for (uuid, gpu) in f.gpus.iter().filter(|(uuid, _)| f.gpus.is_there(uuid)) {
            if self.gpus.get(uuid).is_none_or(|w| w.readings != gpu.readings) {
                news |= self.take(c, now, uuid, gpu);
            }
        }
        let mut gone = None;
        self.gpus.retain(|uuid, w| {
            let there = f.gpus.is_there(uuid);
            if !there && w.faulty.is_some() {
                let read = f.gpus.get(uuid).map_or(now, |gpu| gpu.last.at);
                gone = Some((words::not_there(f, words::gpu_of(f, uuid, "")), read));
            }
            there
        });
        if news {
            self.raised = true;
            out.push(self.report(view));
        } else if self.raised && self.gpus.values().all(|w| w.faulty.is_none()) {
            self.raised = false;
            let mut v = view.finding(Kind::EccTrend, "ecc", Change::Clear, Severity::Info);
            v.why = match gone {
                Some((why, read)) => {
                    (v.change, v.ts) = (Change::Lapse, read);
                    why.into()
                }
                None => {
                    clause!("the memory of {node} has been quiet for a day", node = f.name.clone()).into()
                }
            };
            out.push(v);
        }
    }

    fn deadline(&self, _: &Config, _: &NodeState) -> Option<Ts> {
        None
    }
}
