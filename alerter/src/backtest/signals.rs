//! The signals of a replayed run, kept for its charts.

use std::collections::BTreeMap;

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

pub(super) use crate::chart::incident::SILENCE;
use crate::chart::track::{Point, Track};

/// The most signals kept for one file.
const MAX_TRACKS: usize = 48;
/// The signals drawn with the main one, the most informative first.
const BESIDE: &[&str] = &[
    metric::LOSS,
    metric::GRAD_NORM,
    metric::STEP_TIME,
    metric::LR,
    metric::TOKENS_PER_SECOND,
    metric::TOKENS_PER_SECOND_PER_GPU,
    metric::MFU,
    metric::MFU_REPORTED,
    metric::TFLOPS_REPORTED,
    metric::LOSS_SCALE,
    EVAL_LOSS,
    "forward_compute",
    "backward_compute",
    "fwd_bwd",
    "data",
];
const EVAL_LOSS: &str = "eval loss";

#[derive(Debug, Default)]
pub(super) struct Signals {
    tracks: BTreeMap<String, Track>,
    /// The number of samples beyond the limit.
    dropped: u64,
}

impl Signals {
    pub(super) fn record(&mut self, event: &Event) {
        let Some(step) = event.step else { return };
        let rank = event.rank.unwrap_or(0);
        match event.kind {
            Kind::Step => {
                // The parts of a rank's step are drawn too, because they distinguish peers.
                event.m.iter().chain(event.t.iter()).for_each(|(name, v)| self.push(name, rank, step, v));
            }
            Kind::Eval => {
                event.m.iter().for_each(|(name, v)| self.push(&format!("eval {name}"), rank, step, v))
            }
            _ => {}
        }
    }

    fn push(&mut self, name: &str, rank: u32, step: i64, value: f64) {
        if let Some(track) = self.tracks.get_mut(name) {
            track.push(rank, step, value);
        } else if self.tracks.len() < MAX_TRACKS {
            self.tracks.entry(name.to_owned()).or_default().push(rank, step, value);
        } else {
            self.dropped += 1;
        }
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The track of an incident's signal: throughput and MFU have several names.
    pub(super) fn for_signal<'a>(&'a self, signal: &'a str) -> Option<(&'a str, &'a [Point])> {
        let names: &[&str] = match signal {
            metric::TOKENS_PER_SECOND => &[metric::TOKENS_PER_SECOND, metric::TOKENS_PER_SECOND_PER_GPU],
            metric::MFU => &[metric::MFU, metric::MFU_REPORTED, metric::TFLOPS_REPORTED],
            // Silence is measured in seconds, like the step that ends it.
            SILENCE => &[metric::STEP_TIME],
            other => return self.named(other),
        };
        names.iter().find_map(|name| self.named(name))
    }

    fn named<'a>(&'a self, name: &'a str) -> Option<(&'a str, &'a [Point])> {
        self.tracks.get_key_value(name).map(|(name, track)| (name.as_str(), track.points()))
    }

    /// Every signal worth a panel.
    pub(super) fn beside(&self) -> impl Iterator<Item = (&str, &[Point])> {
        BESIDE.iter().filter_map(|name| self.named(name))
    }
}
