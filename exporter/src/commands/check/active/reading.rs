//! What one test has found, and its comparison with the configured reference.

use std::collections::BTreeMap;

use super::super::report::{Finding, Findings, Verdict};
use crate::node_tests::{ActiveConfig, Measurement};

/// The measures of storage that other nodes may use at the same time: a slow one is worth a ticket.
const SHARED: &[&str] = &["disk_read", "disk_write"];

/// A value that is below its reference by this many times the tolerance is a fault.
const FAR: f64 = 3.0;

#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) findings: Findings,
    pub(super) measurements: Vec<Measurement>,
    /// Why the test did not run.
    not_run: Option<String>,
    /// Whether a tool got wrong data.
    wrong: bool,
}

impl Reading {
    pub(super) fn not_run(why: impl Into<String>) -> Self {
        Self { not_run: Some(why.into()), ..Self::default() }
    }

    /// The reading of a test that would disturb a job.
    pub(super) fn refused(why: &str) -> Self {
        Self::unknown(format!("not run: {why}"))
    }

    pub(super) fn unknown(why: impl Into<String>) -> Self {
        let mut reading = Self::default();
        reading.findings.unknown(why);
        reading
    }

    pub(super) fn measure(&mut self, measure: &str, device: impl Into<String>, bytes_per_second: f64) {
        let (measure, device) = (measure.to_owned(), device.into());
        self.measurements.push(Measurement { measure, device, bytes_per_second, reference: None });
    }

    /// Adds that a tool got wrong data. That is a fault when it was seen once: it makes no value
    /// slow that a second look could show to be right, and a part that does so does it seldom.
    pub(super) fn wrong_data(&mut self, what: impl Into<String>) {
        self.wrong = true;
        self.findings.unhealthy(what).action("drain the node and run dcgmi diag -r 3 on it");
    }

    /// Whether a second try could not make it better.
    pub(super) fn is_certain(&self) -> bool {
        self.wrong
    }

    /// Adds what another part of the test has found.
    pub(super) fn absorb(&mut self, other: Self) {
        self.findings.extend(other.findings);
        self.measurements.extend(other.measurements);
        self.wrong |= other.wrong;
        self.not_run = self.not_run.take().or(other.not_run);
    }

    /// What the user has named has to run.
    pub(super) fn require(&mut self) {
        if let Some(why) = self.not_run.take() {
            self.findings.unknown(format!("not run: {why}"));
        }
    }

    /// Adds the findings about what was measured.
    pub(super) fn judge(&mut self, config: &ActiveConfig) {
        if let Some(why) = self.not_run.take() {
            self.findings.add(Verdict::NotRun, why);
        }
        let mut by_measure: BTreeMap<String, Vec<Measurement>> = BTreeMap::new();
        for m in &mut self.measurements {
            m.reference = config.reference_of(&m.measure, &m.device);
            by_measure.entry(m.measure.clone()).or_default().push(m.clone());
        }
        for (measure, values) in by_measure {
            self.compare(&measure, &values, config.tolerance);
        }
    }

    fn compare(&mut self, measure: &str, values: &[Measurement], tolerance: f64) {
        let (mut right, mut references, mut alone, mut low) = (Vec::new(), Vec::new(), Vec::new(), false);
        for Measurement { device, bytes_per_second: value, reference, .. } in values {
            let Some(reference) = *reference else {
                alone.push(*value);
                continue;
            };
            if *value >= reference * (1.0 - tolerance) {
                right.push(*value);
                references.push(reference);
                continue;
            }
            low = true;
            let of = if device.is_empty() { String::new() } else { format!(" of {device}") };
            let text = format!(
                "{measure}{of} is {}, {:.1} % below the reference of {}",
                gigabytes(*value),
                100.0 * (1.0 - value / reference),
                gigabytes(reference)
            );
            let far = *value < reference * (1.0 - FAR * tolerance);
            let failed = far && !SHARED.contains(&measure);
            let verdict = if failed { Verdict::Unhealthy } else { Verdict::Warning };
            let action = "run the test again on the idle node; if it stays so, have the part looked at";
            self.findings.add(verdict, text).device(device.as_str()).action(action);
        }
        if !low && !right.is_empty() {
            let text = format!("{measure} is {}; the reference is {}", range(&right), span(&references));
            self.findings.ok(text);
        }
        if !alone.is_empty() {
            self.findings.add(Verdict::Measured, format!("{measure} is {}", range(&alone)));
        }
    }

    /// What is left of a failure that could not be tried again: one alone is no fault.
    pub(super) fn failed_once(mut self, why: &str) -> Self {
        for finding in self.findings.all_mut().iter_mut().filter(|f| f.verdict == Verdict::Unhealthy) {
            finding.verdict = Verdict::Warning;
            finding.text = format!("{} (once, and it could not be tried again: {why})", finding.text);
        }
        self
    }

    /// What a failed test and its repetition say together: a part is at fault that failed twice.
    pub(super) fn repeated(self, mut second: Self) -> Self {
        let failed = |f: &&Finding| f.verdict == Verdict::Unhealthy;
        if second.verdict() == Verdict::Unknown || second.verdict() == Verdict::NotRun {
            let why = second.findings.all().first().map(|f| f.text.clone()).unwrap_or_default();
            return self.failed_once(&why);
        }
        let wrong = second.wrong;
        let before: Vec<Finding> = self.findings.all().iter().filter(failed).cloned().collect();
        let mut again = 0;
        for finding in second.findings.all_mut().iter_mut().filter(|f| f.verdict == Verdict::Unhealthy) {
            let is_wrong = wrong && finding.device.is_none();
            if is_wrong || before.iter().any(|f| f.device == finding.device) {
                again += 1;
                continue;
            }
            finding.verdict = Verdict::Warning;
            finding.text = format!("{} (not the time before)", finding.text);
        }
        if again == 0 {
            for finding in before {
                let text = format!("{} (once, and not again)", finding.text);
                let added = second.findings.warning(text);
                if let Some(device) = finding.device {
                    added.device(device);
                }
            }
        }
        second
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.findings.worst().unwrap_or(Verdict::Unknown)
    }
}

/// `55.2 GB/s`, or `53.9 to 55.4 GB/s on 8 devices`.
fn range(values: &[f64]) -> String {
    match values.len() {
        1 => span(values),
        n => format!("{} on {n} devices", span(values)),
    }
}

/// `55.2 GB/s`, or `53.9 to 55.4 GB/s`.
fn span(values: &[f64]) -> String {
    let of = |pick: fn(f64, f64) -> f64| values.iter().copied().reduce(pick).unwrap_or(f64::NAN);
    let (least, most) = (of(f64::min), of(f64::max));
    if least < most { format!("{:.1} to {}", least / 1e9, gigabytes(most)) } else { gigabytes(most) }
}

fn gigabytes(bytes_per_second: f64) -> String {
    format!("{:.1} GB/s", bytes_per_second / 1e9)
}

/// A number of a tool's output, which is in bytes a second after the multiplication. One that is
/// written with a comma is refused rather than read as another one.
pub(super) fn number(text: &str, unit: f64) -> Option<f64> {
    let value = text.parse::<f64>().ok()? * unit;
    (value.is_finite() && value > 0.0).then_some(value)
}
