//! The result of a self-check, for people and for programs.
//!
//! The JSON is a contract (`docs/check.md`): keys are added, never renamed, and [`SCHEMA`] is
//! raised when the meaning of one changes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_wire::words;

use crate::node_tests::Measurement;

/// Facts by name; values are text, because some facts are.
pub type Facts = BTreeMap<String, String>;

/// Which findings fail a check besides unhealthy ones.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Strictness {
    /// Whether warnings fail it.
    pub(super) strict: bool,
    /// Whether unknown findings do not.
    pub(super) lenient: bool,
}

/// The version of the JSON.
pub const SCHEMA: u32 = 1;

/// Verdicts from good to bad. Unknown is worse than a warning and better than unhealthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Ok,
    /// A value of a test of `--active` that was compared with nothing.
    Measured,
    /// A test of `--active` did not run, because what it needs is not there.
    NotRun,
    /// The problem needs a ticket, but the node can take a job.
    Warning,
    Unknown,
    Unhealthy,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub check: Cow<'static, str>,
    pub verdict: Verdict,
    /// The subject as metrics and events name it: a GPU's UUID, a port, a mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    pub text: String,
    /// The recommended action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Cow<'static, str>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: u32,
    pub verdict: Verdict,
    pub exit: u8,
    pub node: String,
    /// The Unix time of the check.
    pub ts: f64,
    /// The duration of the check in seconds.
    pub seconds: f64,
    pub findings: Vec<Finding>,
    /// The facts about the node, for `--write-reference` and for an inventory.
    #[serde(default, skip_serializing_if = "Facts::is_empty")]
    pub facts: Facts,
    /// What the tests of `--active` measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measurements: Vec<Measurement>,
}

/// Collects the findings of one check.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Measured => "measured",
            Self::NotRun => "not run",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Unhealthy => "unhealthy",
        }
    }
}

impl Report {
    pub(super) fn new(
        node: String,
        ts: f64,
        seconds: f64,
        findings: Vec<Finding>,
        strictness: Strictness,
    ) -> Self {
        // If nothing was checked, nothing is known.
        let verdict = findings.iter().map(|f| f.verdict).max().unwrap_or(Verdict::Unknown);
        let strictly = [Verdict::NotRun, Verdict::Warning];
        let warned = findings.iter().any(|f| strictly.contains(&f.verdict));
        let exit = match verdict {
            Verdict::Unhealthy => 1,
            Verdict::NotRun | Verdict::Warning | Verdict::Unknown if strictness.strict && warned => 1,
            Verdict::Unknown if !strictness.lenient => 2,
            Verdict::Ok | Verdict::Measured | Verdict::NotRun | Verdict::Warning | Verdict::Unknown => 0,
        };
        let (facts, measurements) = (Facts::new(), Vec::new());
        Self { schema: SCHEMA, verdict, exit, node, ts, seconds, findings, facts, measurements }
    }

    /// One line a finding, the worst last: a scrolling terminal shows it, and `tail -n 1` gives it
    /// as the reason.
    pub fn text(&self, quiet: bool) -> String {
        let mut findings: Vec<&Finding> =
            self.findings.iter().filter(|f| !quiet || f.verdict != Verdict::Ok).collect();
        findings.sort_by_key(|f| f.verdict);
        let width = findings.iter().map(|f| f.check.len()).max().unwrap_or(0);
        findings.iter().map(|f| f.line(width)).collect()
    }

    pub fn json(&self, quiet: bool) -> String {
        let mut shown = self.clone();
        shown.findings.retain(|f| !quiet || f.verdict != Verdict::Ok);
        serde_json::to_string_pretty(&shown).unwrap_or_default() + "\n"
    }
}

impl Finding {
    pub(super) fn new(check: &'static str, verdict: Verdict, text: impl Into<String>) -> Self {
        Self { check: check.into(), verdict, device: None, text: text.into(), action: None }
    }

    /// Makes an `ok` result unknown, because a collector did not read.
    pub(super) fn not_seen_by(self, collector: &str) -> Self {
        if self.verdict != Verdict::Ok {
            return self;
        }
        let text = format!("nothing bad was seen, and {collector} could not look at all of it");
        Self { verdict: Verdict::Unknown, text, ..self }
    }

    fn line(&self, width: usize) -> String {
        let action = self.action.as_deref().map(|a| format!("; {a}")).unwrap_or_default();
        // Texts of drivers and kernels may contain anything, but a finding is one line.
        let text = words::into_line(format!("{}{action}", self.text));
        format!("{:<9} {:<width$} {text}\n", self.verdict.as_str(), self.check)
    }
}

impl Findings {
    pub(super) fn add(&mut self, verdict: Verdict, text: impl Into<String>) -> FindingDetails<'_> {
        // The caller adds the name.
        self.0.push(Finding::new("", verdict, text));
        FindingDetails(self.0.last_mut())
    }

    pub(super) fn unhealthy(&mut self, text: impl Into<String>) -> FindingDetails<'_> {
        self.add(Verdict::Unhealthy, text)
    }

    pub(super) fn warning(&mut self, text: impl Into<String>) -> FindingDetails<'_> {
        self.add(Verdict::Warning, text)
    }

    pub(super) fn unknown(&mut self, text: impl Into<String>) -> FindingDetails<'_> {
        self.add(Verdict::Unknown, text)
    }

    pub(super) fn ok(&mut self, text: impl Into<String>) {
        self.add(Verdict::Ok, text);
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(super) fn all(&self) -> &[Finding] {
        &self.0
    }

    pub(super) fn all_mut(&mut self) -> &mut [Finding] {
        &mut self.0
    }

    /// The worst verdict; `None` without a finding.
    pub(super) fn worst(&self) -> Option<Verdict> {
        self.0.iter().map(|finding| finding.verdict).max()
    }

    /// Adds an `ok` finding if there is no other.
    pub(super) fn or_ok(mut self, text: impl FnOnce() -> String) -> Self {
        if self.0.is_empty() {
            self.ok(text());
        }
        self
    }

    pub(super) fn named(self, check: &'static str) -> impl Iterator<Item = Finding> {
        self.0.into_iter().map(move |finding| Finding { check: check.into(), ..finding })
    }
}

/// The finding that was just added, to set its other fields.
pub(super) struct FindingDetails<'a>(Option<&'a mut Finding>);

impl FindingDetails<'_> {
    pub(super) fn device(mut self, device: impl Into<String>) -> Self {
        if let Some(finding) = &mut self.0 {
            finding.device = Some(device.into());
        }
        self
    }

    pub(super) fn action(mut self, action: impl Into<Cow<'static, str>>) -> Self {
        if let Some(finding) = &mut self.0 {
            finding.action = Some(action.into());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: Findings, strict: bool, lenient: bool) -> Report {
        Report::new(
            "n1".into(),
            1.5,
            0.25,
            findings.named("gpu_count").collect(),
            Strictness { strict, lenient },
        )
    }

    #[test]
    fn the_worst_stands_last_and_decides() {
        let mut found = Findings::default();
        found.unhealthy("7 of 8 GPUs\nanswer").device("GPU-1").action("reboot the node");
        found.ok("fine");
        found.unknown("hm");
        found.warning("soon");
        let report = report(found, false, false);
        assert_eq!((report.verdict, report.exit), (Verdict::Unhealthy, 1));
        insta::assert_snapshot!(report.text(false), @r"
        ok        gpu_count fine
        warning   gpu_count soon
        unknown   gpu_count hm
        unhealthy gpu_count 7 of 8 GPUs answer; reboot the node
        ");
        assert_eq!(report.text(true).lines().count(), 3);
        let json: serde_json::Value = serde_json::from_str(&report.json(true)).unwrap();
        assert_eq!((json["exit"].as_u64(), json["findings"].as_array().unwrap().len()), (Some(1), 3));
        assert_eq!(json["findings"][0]["device"], "GPU-1");
        assert_eq!(serde_json::from_str::<Report>(&report.json(false)).unwrap(), report);
    }

    #[test]
    fn what_was_not_run_is_never_ok() {
        let mut found = Findings::default();
        found.add(Verdict::NotRun, "nvbandwidth is not installed");
        found.ok("fine");
        let report = report(found, false, false);
        assert_eq!(report.verdict, Verdict::NotRun);
        assert!(report.text(true).starts_with("not run   gpu_count nvbandwidth is not installed"));
        assert!(report.json(false).contains("\"verdict\": \"not_run\""));
    }

    #[test]
    fn what_passes_is_for_the_caller_to_say() {
        for (verdicts, normal, strict, lenient) in [
            (&[Verdict::Ok][..], 0, 0, 0),
            (&[Verdict::Ok, Verdict::Measured], 0, 0, 0),
            (&[Verdict::Ok, Verdict::Warning], 0, 1, 0),
            (&[Verdict::Unknown], 2, 2, 0),
            (&[Verdict::Unknown, Verdict::Warning], 2, 1, 0),
            (&[Verdict::Ok, Verdict::NotRun], 0, 1, 0),
            (&[Verdict::Unknown, Verdict::NotRun], 2, 1, 0),
            (&[Verdict::Unhealthy, Verdict::Unknown], 1, 1, 1),
            (&[], 2, 2, 0),
        ] {
            let exit = |strict, lenient| {
                let mut found = Findings::default();
                for verdict in verdicts {
                    found.add(*verdict, "x");
                }
                report(found, strict, lenient).exit
            };
            assert_eq!((exit(false, false), exit(true, false), exit(false, true)), (normal, strict, lenient));
        }
        assert_eq!(report(Findings::default().or_ok(|| "fine".into()), false, false).verdict, Verdict::Ok);
    }
}
