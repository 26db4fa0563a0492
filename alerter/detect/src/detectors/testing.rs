//! Synthetic runs for the tests of the detectors.

use std::sync::Arc;

use crate::Run;
use crate::detectors::Detectors;
use crate::sample::{StepClass, StepSample};
use stepwatch_model::time::Ts;
use stepwatch_model::{Change, Finding, Kind, Severity};
use stepwatch_wire::Event;

/// Pseudo-random noise, roughly normal, the same for a seed.
#[derive(Debug, Clone)]
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        // An all-zero state would stay zero; a small one needs a few rounds to look random.
        let mut noise = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| {
            noise.uniform();
        });
        noise
    }

    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

/// A healthy run of a language model: a falling loss, a log-normal gradient norm, steady steps of
/// two seconds.
pub(crate) fn healthy(seed: u64, n: i64) -> Vec<StepSample> {
    let mut noise = Noise::new(seed);
    (1..=n)
        .map(|step| StepSample {
            step,
            ts: Ts(2000 * step),
            interval: 1,
            class: if step == 1 { StepClass::First } else { StepClass::Train },
            loss: Some(2.2 + 6.0 / (step as f64 + 20.0).sqrt() + 0.02 * noise.normal()),
            grad_norm: Some(0.25 * (0.08 * noise.normal()).exp()),
            lr: Some(3e-4 * (step as f64 / 50.0).min(1.0)),
            step_time: Some(2.0 * (0.004 * noise.normal()).exp()),
            ..StepSample::default()
        })
        .collect()
}

/// All findings of a run.
pub(crate) fn judge(samples: &[StepSample]) -> Vec<Finding> {
    let mut detectors = Detectors::default();
    let mut out = Vec::new();
    samples.iter().for_each(|s| detectors.step(s, &mut out));
    out
}

/// The raised findings, without annotations.
pub(crate) fn raised(findings: &[Finding]) -> Vec<(Kind, Severity, i64)> {
    let raised = findings.iter().filter(|v| v.change == Change::Raise);
    raised.map(|v| (v.kind, v.severity, v.step)).collect()
}

pub(crate) fn pages(findings: &[Finding]) -> Vec<(Kind, i64)> {
    raised(findings)
        .into_iter()
        .filter(|(_, s, _)| *s == Severity::Page)
        .map(|(k, _, step)| (k, step))
        .collect()
}

/// Kinds that were raised and have not been cleared.
pub(crate) fn open(findings: &[Finding]) -> Vec<Kind> {
    let mut open: Vec<Kind> = Vec::new();
    for v in findings {
        match v.change {
            Change::Raise | Change::Another | Change::More if !open.contains(&v.kind) => open.push(v.kind),
            Change::Clear | Change::Lapse => open.retain(|k| *k != v.kind),
            _ => {}
        }
    }
    open
}

/// A trainer that makes 100 steps of a second between two saves, and what is found of a kind.
#[derive(Debug)]
pub(crate) struct Saver {
    kind: Kind,
    pub(crate) run: Run,
    pub(crate) step: i64,
    pub(crate) out: Vec<Finding>,
}

impl Saver {
    pub(crate) fn new(kind: Kind) -> Self {
        let run = Run::new("r", Ts(0), &Arc::default());
        let mut trainer = Self { kind, run, step: 0, out: Vec::new() };
        trainer.say(r#""k":"hello","world":8"#);
        trainer.say(r#""k":"step","step":1,"m":{"loss":2.0}"#);
        trainer
    }

    /// A rank reports this, the first one if none is named.
    pub(crate) fn say(&mut self, what: &str) {
        let mut e = Event::parse(format!(r#"{{"run":"r",{what}}}"#).as_bytes()).unwrap();
        let now = Ts(1000 * self.step.max(1));
        (e.ts, e.rank) = (Some(now.as_secs_f64()), e.rank.or(Some(0)));
        self.run.event(now, "n:1", &e, &mut self.out);
    }

    pub(crate) fn moves(&mut self) -> &mut Self {
        self.step += 100;
        self.say(&format!(r#""k":"step","step":{},"m":{{"loss":2.0}}"#, self.step));
        self
    }

    fn of_kind(&self) -> impl Iterator<Item = &Finding> {
        self.out.iter().filter(|v| v.kind == self.kind)
    }

    /// What was found: the change and the words.
    pub(crate) fn found(&self) -> Vec<(Change, String)> {
        self.of_kind().map(|v| (v.change, v.why.to_string())).collect()
    }

    pub(crate) fn changes(&self) -> Vec<(Change, Severity)> {
        self.of_kind().map(|v| (v.change, v.severity)).collect()
    }
}
