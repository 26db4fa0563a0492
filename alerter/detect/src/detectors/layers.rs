//! Statistics of layers, each compared with its own past: which of them deviate, and which did
//! first.
//!
//! On x = ln(value), by [`crate::stats::robust`]: a layer is out when its value is `ratio` times
//! its usual one or more, either way if asked for, and 8 sigmas from it; also when it is no number
//! at all. Reports come every hundred steps or so, and a model has some dozens of layers, so sigmas
//! alone would alarm.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_model::out_of_line;

use crate::sample::Reading;
use crate::stats::median::median;
use crate::stats::robust::Robust;
use stepwatch_model::{Clause, Observation, Suspect, Target, clause};

/// Reports that start a layer's level.
const WARM: usize = 8;
/// Sigmas of ln(value), at least: of a normal distribution 6·10⁻¹⁶ lies above 8.
const SIGMAS: f64 = 8.0;
/// Smallest scale: a few percent are nothing in a norm.
const FLOOR: f64 = 0.05;
/// Reports out of place after which the level is taken as new.
const NEW_LEVEL: u32 = 16;
/// The least number of layers for a common change.
const MANY: usize = 4;

/// How far out a layer must be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) ratio: f64,
    /// Weight of a report in the usual value.
    pub(super) rate: f64,
    /// A value far below the usual one counts as one far above it does.
    pub(super) both: bool,
    /// The change that all layers share is subtracted.
    pub(super) apart: bool,
}

/// `None` while the run reports no statistics of layers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Layers(Option<Box<Known>>);

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Known {
    /// The layers by the id of their series, at most as many as the run's signals.
    layers: BTreeMap<u16, Layer>,
    /// Step of the last report, and of the one before.
    last: Option<i64>,
    before: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Layer {
    name: String,
    base: Robust<WARM>,
    value: f64,
    expected: f64,
    /// First report that was out, and reports out in a row.
    since: Option<i64>,
    out: u32,
}

/// A layer that deviates.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Out {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) expected: f64,
    pub(super) since: i64,
    /// Reports out in a row.
    pub(super) reports: u32,
}

impl Out {
    pub(super) fn ratio(&self) -> f64 {
        self.value / self.expected
    }

    /// The size of the deviation, in logarithms; infinite for a non-finite value.
    fn excess(&self) -> f64 {
        let r = self.ratio().ln().abs();
        if r.is_finite() { r } else { f64::INFINITY }
    }

    pub(super) fn level(&self) -> Clause {
        out_of_line(self.value, self.expected)
    }
}

impl Layers {
    /// Handles the readings with one of these prefixes; false if there are none.
    pub(super) fn take(&mut self, readings: &[Reading<'_>], prefixes: &[&str], limits: Limits) -> bool {
        let mut ours: Vec<(u16, f64)> = Vec::new();
        for r in readings {
            let Some(name) = prefixes.iter().find_map(|p| r.name.strip_prefix(p)) else { continue };
            let known = self.0.get_or_insert_default();
            known.layers.entry(r.id).or_insert_with(|| Layer::new(name));
            ours.push((r.id, r.value));
        }
        let Some(known) = &mut self.0 else { return false };
        let Some(step) = readings.first().map(|r| r.step).filter(|_| !ours.is_empty()) else { return false };
        if known.last != Some(step) {
            known.before = known.last.replace(step);
        }
        let common = if limits.apart { known.common(&ours) } else { 0.0 };
        for (id, value) in ours {
            if let Some(layer) = known.layers.get_mut(&id) {
                layer.take(step, value, common, limits);
            }
        }
        true
    }

    /// The layers that deviate in `reports` reports in a row or more, the first one first. Within
    /// one report, the one with the largest deviation comes first.
    pub(super) fn out(&self, reports: u32) -> Vec<Out> {
        let mut out: Vec<Out> =
            self.layers().filter(|l| l.out >= reports).filter_map(Layer::as_out).collect();
        out.sort_by(|a, b| {
            (a.since, b.excess()).partial_cmp(&(b.since, a.excess())).unwrap_or(core::cmp::Ordering::Equal)
        });
        out
    }

    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |known| known.layers.len())
    }

    fn layers(&self) -> impl Iterator<Item = &Layer> {
        self.0.iter().flat_map(|known| known.layers.values())
    }

    /// Whether the last report is no older than reports are apart.
    pub(super) fn is_fresh(&self, step: i64) -> bool {
        let Some((last, before)) = self.0.as_ref().and_then(|k| Some((k.last?, k.before))) else {
            return false;
        };
        let every = before.map_or(1, |before| last.saturating_sub(before)).max(1);
        step.saturating_sub(last) <= every
    }

    /// Resets the steps, because the run restarted.
    pub(super) fn restart(&mut self) {
        let Some(known) = &mut self.0 else { return };
        (known.last, known.before) = (None, None);
        for l in known.layers.values_mut() {
            (l.since, l.out) = (None, 0);
        }
    }
}

impl Known {
    /// The median rise of the layers above their usual values, in logarithms.
    fn common(&self, values: &[(u16, f64)]) -> f64 {
        let above = values.iter().filter_map(|(id, value)| {
            let dev = self.layers.get(id)?.base.deviation(value.ln())?;
            dev.d.is_finite().then_some(dev.d as f32)
        });
        let mut above: Vec<f32> = above.collect();
        if above.len() < MANY { 0.0 } else { median(&mut above) }
    }
}

impl Layer {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            base: Robust::default(),
            value: 0.0,
            expected: 0.0,
            since: None,
            out: 0,
        }
    }

    fn take(&mut self, step: i64, value: f64, common: f64, limits: Limits) {
        self.value = value;
        // The logarithm of zero is minus infinity: far below the usual value, and not part of it.
        let x = value.ln();
        let out = match self.base.deviation(x) {
            Some(dev) => {
                self.expected = self.base.location().exp();
                let d = if limits.both { (dev.d - common).abs() } else { dev.d - common };
                !value.is_finite() || d > limits.ratio.ln() && d > SIGMAS * self.base.scale()
            }
            None => !value.is_finite() && self.base.count() > 0,
        };
        self.out = if out { self.out.saturating_add(1) } else { 0 };
        self.since = if out { self.since.or(Some(step)) } else { None };
        self.base.update(x, limits.rate, FLOOR);
        if self.out >= NEW_LEVEL && value.is_finite() {
            self.base.anchor(FLOOR);
        }
    }

    fn as_out(&self) -> Option<Out> {
        let since = self.since?;
        Some(Out {
            name: self.name.clone(),
            value: self.value,
            expected: self.expected,
            since,
            reports: self.out,
        })
    }
}

pub(super) fn out_of_place(out: usize, layers: usize) -> Clause {
    clause!("{out} of {layers} layers are out of place", out, layers)
}

/// The layer that deviated first, as a suspect, and how many deviated with it.
pub(super) fn suspect(out: &[Out], layers: usize, what: &str) -> Option<Suspect> {
    let first = out.first()?;
    let together = out.iter().filter(|o| o.since == first.since).count();
    let seen = Observation::LayerOut {
        signal: what.to_owned(),
        value: first.value.into(),
        expected: first.expected.into(),
        since_step: first.since,
        together: together as u64,
        out: out.len() as u64,
        layers: layers as u64,
    };
    Some(Suspect::new(Target::Layer { name: first.name.clone() }, seen))
}
