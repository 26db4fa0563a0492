//! The signals of a replayed run, kept for its pictures.

use std::collections::BTreeMap;

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

pub(super) use crate::chart::incident::SILENCE;
use crate::chart::track::{Point, Track};

/// Signals that are kept of one file.
const MAX_TRACKS: usize = 48;
/// What is drawn beside the signal in question, the most informative first.
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
    /// Samples of signals beyond the limit.
    dropped: u64,
}

impl Signals {
    pub(super) fn record(&mut self, event: &Event) {
        let Some(step) = event.step else { return };
        let rank = event.rank.unwrap_or(0);
        match event.kind {
            Kind::Step => {
                // Where ranks spent the step is drawn too: it distinguishes peers.
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

    /// The track that an incident's signal is seen in: throughput and MFU have several names.
    pub(super) fn for_signal<'a>(&'a self, signal: &'a str) -> Option<(&'a str, &'a [Point])> {
        let names: &[&str] = match signal {
            metric::TOKENS_PER_SECOND => &[metric::TOKENS_PER_SECOND, metric::TOKENS_PER_SECOND_PER_GPU],
            metric::MFU => &[metric::MFU, metric::MFU_REPORTED, metric::TFLOPS_REPORTED],
            // Silence is measured in seconds, as the step that ends it is.
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
