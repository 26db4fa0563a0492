//! A message for a person, independent of the channel that carries it.

mod advice;
mod details;

use serde::{Deserialize, Serialize};

use crate::config::ResponderConfig;
use crate::external::Alert;
use crate::incident_record::{Ended, IncidentRecord};
use crate::matcher::Labels;
use crate::rollback;
use stepwatch_model::{Cause, Kind, Severity, Signal, SignalUnit, Ts};
pub use stepwatch_model::{RunSummary, number, place};

pub(crate) use advice::advice;
pub use details::{Checkpoint, Cost, Details, Evidence, RunDetails};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Firing,
    Acknowledged,
    Resolved,
}

/// Why a message was sent. The text forms are a contract: receivers and templates match on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The first message about the incident.
    #[default]
    First,
    /// Nobody answered, or a person escalated: the next level is notified.
    Escalated,
    /// Nobody answered: the same level is notified again.
    Repeated,
    /// Every level was notified and nobody answered.
    StillFiring,
    /// The incident became more severe.
    Raised,
    /// Another kind names the incident now.
    Changed,
    /// Something new is known: another fault that belongs to it, other suspects.
    News,
    /// The condition was over and returned.
    CameBack,
    /// The condition flaps: further returns notify nobody.
    Flapping,
    /// More incidents joined a storm.
    StormGrew,
    Acknowledged,
    /// The acknowledgement was removed.
    Unacknowledged,
    /// The incident was acknowledged, but not resolved in time.
    AckExpired,
    /// Another receiver could not be notified.
    ReceiverFailed,
    /// The silence that suppressed it ended, and it still holds.
    SilenceEnded,
    /// The incident that inhibited it does not any more, and it still holds.
    InhibitionEnded,
    Resolved,
    /// A test of the receiver.
    Test,
    /// A person resolved it, but it still fires or got worse.
    Reopened,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub incident: String,
    /// Empty for a node that no run uses.
    pub run: String,
    /// Nodes that are faulty themselves.
    #[serde(default)]
    pub nodes: Vec<String>,
    pub kind: Kind,
    pub severity: Severity,
    pub status: Status,
    /// How the incident ended; `None` while it is open.
    #[serde(default)]
    pub ended: Option<Ended>,
    /// At most 150 characters: fits a Slack header and a phone's lock screen.
    pub title: String,
    /// One or two sentences: what happened, with the numbers.
    pub summary: String,
    /// The summary is an operator's template in the markup of its channel. Values that it quotes
    /// are not markup.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub marked_up: bool,
    /// Labelled lines in the order of interest: since, value against expected, suspect, last good
    /// checkpoint, cost, ...
    pub facts: Vec<Fact>,
    /// The same facts as data.
    #[serde(default)]
    pub details: Details,
    /// Why this message was sent now, for programs.
    #[serde(default)]
    pub because: Reason,
    /// The reason in words: `new incident`, `escalated to level 2: no answer for 5m`, `resolved by
    /// itself after 12m`, ...
    pub reason: String,
    pub links: Vec<Link>,
    /// The address of the chart, if the alerter has an address and the incident has steps. The
    /// chart does not exist if the run sent no samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<String>,
    /// What routes and silences match on.
    #[serde(default)]
    pub labels: Labels,
    pub started_at: Ts,
    pub at: Ts,
}

impl Reason {
    pub const ALL: &[Self] = &[
        Self::First,
        Self::Escalated,
        Self::Repeated,
        Self::StillFiring,
        Self::Raised,
        Self::Changed,
        Self::News,
        Self::CameBack,
        Self::Flapping,
        Self::StormGrew,
        Self::Acknowledged,
        Self::Unacknowledged,
        Self::AckExpired,
        Self::ReceiverFailed,
        Self::SilenceEnded,
        Self::InhibitionEnded,
        Self::Resolved,
        Self::Test,
        Self::Reopened,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Escalated => "escalated",
            Self::Repeated => "repeated",
            Self::StillFiring => "still_firing",
            Self::Raised => "raised",
            Self::Changed => "changed",
            Self::News => "news",
            Self::CameBack => "came_back",
            Self::Flapping => "flapping",
            Self::StormGrew => "storm_grew",
            Self::Acknowledged => "acknowledged",
            Self::Unacknowledged => "unacknowledged",
            Self::AckExpired => "ack_expired",
            Self::ReceiverFailed => "receiver_failed",
            Self::SilenceEnded => "silence_ended",
            Self::InhibitionEnded => "inhibition_ended",
            Self::Resolved => "resolved",
            Self::Test => "test",
            Self::Reopened => "reopened",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    pub label: String,
    pub text: String,
}

/// The target of a link, for services with a place of their own for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkRole {
    Incident,
    Runbook,
    /// A link of the operator's templates.
    #[default]
    Other,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Link {
    #[serde(default)]
    pub role: LinkRole,
    pub text: String,
    pub href: String,
}

/// The reason of a message, for programs and for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Why {
    pub(crate) because: Reason,
    pub(crate) words: String,
    /// Who removed an acknowledgement.
    pub(crate) by: Option<String>,
}

impl Why {
    pub(crate) fn new(because: Reason, words: impl Into<String>) -> Self {
        Self { because, words: words.into(), by: None }
    }
}

const TITLE_MAX: usize = 150;
const SUSPECTS_SHOWN: usize = 3;
const DESCRIPTION_MAX: usize = 1000;

/// The label of the fact with an alert's description, and the text of the link to its runbook.
pub const DESCRIPTION: &str = "Description";
pub const RUNBOOK: &str = "Runbook";

/// What a message is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) record: &'a IncidentRecord,
    pub(crate) run: &'a RunSummary,
    /// One of its external alerts, while any fires.
    pub(crate) alert: Option<&'a Alert>,
    pub(crate) holds: Holds,
}

/// Whether what an incident reports still holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    Yes,
    Over,
    /// Its reports stopped.
    Silent,
    RunEnded,
}

/// Composes the message as of `now`.
pub(crate) fn compose(
    now: Ts,
    about: About<'_>,
    status: Status,
    why: &Why,
    config: &ResponderConfig,
) -> Message {
    let About { record: r, run, alert, holds } = about;
    let details = Details { unacknowledged_by: why.by.clone(), ..Details::of(now, r, run, config) };
    Message {
        incident: r.id.clone(),
        run: r.run.clone(),
        nodes: r.nodes.clone(),
        kind: r.kind,
        severity: r.severity,
        status,
        ended: r.end.as_ref().map(|end| end.how),
        title: title(r, status),
        summary: summary(r, holds),
        marked_up: false,
        facts: facts(now, about, details.advice.as_deref(), config),
        details,
        because: why.because,
        reason: why.words.clone(),
        links: links(r, alert, config),
        chart: chart(r, config),
        labels: r.labels.clone(),
        started_at: r.opened_at,
        at: now,
    }
}

fn title(r: &IncidentRecord, status: Status) -> String {
    let head = match status {
        Status::Firing => r.severity.as_str().to_uppercase(),
        Status::Acknowledged => "ACK".to_owned(),
        Status::Resolved if r.is_stale() => "STALE".to_owned(),
        Status::Resolved => "RESOLVED".to_owned(),
    };
    let at = if r.has_steps() { format!(" at step {}", r.start_step) } else { String::new() };
    let place = r.place();
    let head = if place.is_empty() { head } else { format!("{head} {place}") };
    let title = format!("{head}: {}{at}", r.title());
    if title.chars().count() <= TITLE_MAX {
        title
    } else {
        title.chars().take(TITLE_MAX - 1).chain(['…']).collect()
    }
}

fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return String::new() };
    let mut s: String = first.to_uppercase().chain(chars).collect();
    if !s.ends_with(['.', '!', '?']) {
        s.push('.');
    }
    s
}

/// The summary while the incident holds, or in the past tense. Then only its first clause is kept,
/// because the consequences in the others ended too.
fn summary(r: &IncidentRecord, holds: Holds) -> String {
    let over = match holds {
        Holds::Yes => return sentence(&r.summary.to_string()),
        Holds::Over => "over",
        Holds::Silent => "nothing is heard of it any more",
        Holds::RunEnded => "over with the run",
    };
    let since = r.end_step.filter(|_| r.has_steps() && holds != Holds::RunEnded);
    let since = since.map(|step| format!(" since step {step}")).unwrap_or_default();
    sentence(&format!("{over}{since}; it was: {}", r.summary.what()))
}

fn facts(now: Ts, about: About<'_>, advice: Option<&str>, config: &ResponderConfig) -> Vec<Fact> {
    let About { record: r, run, alert, .. } = about;
    let mut facts = Vec::new();
    let mut add = |label: &str, text: String| facts.push(Fact { label: label.to_owned(), text });
    if let Some(text) = description(r, alert) {
        add(DESCRIPTION, text);
    }
    if r.has_steps() {
        let seen = if r.opened_step == r.start_step {
            String::new()
        } else {
            format!(", seen at step {}", r.opened_step)
        };
        add("Since step", format!("{} ({} ago{seen})", r.start_step, now - r.opened_at));
    } else if !r.hits_a_run() || r.cause != Cause::Telemetry {
        // An alert may have fired for long before it was posted here.
        let since = alert.map_or(r.opened_at, |alert| alert.starts_at.min(r.opened_at));
        add("Since", format!("{} ago", now - since));
    }
    if let Some(text) = value_against_expected(r) {
        add(&label_of(&r.signal), text);
    }
    let suspects: Vec<String> =
        r.suspects.iter().take(SUSPECTS_SHOWN).map(|s| format!("{}: {}", s.what(), s.why())).collect();
    if !suspects.is_empty() {
        add(if r.kind == Kind::AlertStorm { "Among them" } else { "Suspect" }, suspects.join("\n"));
    }
    if !r.hits_a_run() {
        match r.nodes.len() {
            0 => {}
            1 => add("Runs", "none on this node".into()),
            _ => add("Runs", "none on these nodes".into()),
        }
    } else if r.costs_a_run() {
        add("Last good checkpoint", checkpoint(now, r, run));
        if r.cause == Cause::Checkpoint {
            add("Work at risk", at_risk(run, config));
        }
        add("Cost", cost(now, r, run, config));
    }
    if let Some(advice) = advice {
        add("What to do", sentence(advice));
    }
    if run.attempt > 0 {
        add("Restarts", run.attempt.to_string());
    }
    if let Some(by) = &r.acked_by {
        add("Acknowledged by", by.clone());
    }
    facts
}

fn label_of(signal: &str) -> String {
    let own = || sentence(signal).trim_end_matches('.').replace('_', " ");
    Signal::find(signal).map_or_else(own, |known| known.label.to_owned())
}

fn value_against_expected(r: &IncidentRecord) -> Option<String> {
    // The summary already has the number of firing alerts if it is more than one.
    if r.kind.is_external() {
        return None;
    }
    let unit = Signal::find(&r.signal).map_or(SignalUnit::Number, |known| known.unit);
    let value = unit.text(r.value)?;
    let limit = if matches!(r.kind, Kind::Hang | Kind::CkptCost) { "allowed" } else { "expected" };
    // Where no time is usual, none is expected.
    let is_unknown = unit == SignalUnit::Duration && r.expected == 0.0;
    let expected = Some(r.expected).filter(|v| v.is_finite() && !is_unknown).and_then(|v| unit.text(v));
    Some(expected.map_or_else(|| value.clone(), |expected| format!("{value} ({limit} {expected})")))
}

fn checkpoint(now: Ts, r: &IncidentRecord, run: &RunSummary) -> String {
    let ago = run.checkpoint_at.map(|at| format!("{} ago", now - at));
    let Some(step) = run.checkpoint_step else { return ago.unwrap_or_else(|| "none reported".into()) };
    let ago = ago.map_or_else(String::new, |ago| format!(", {ago}"));
    let choice = rollback::choose(r, run);
    let flawed = choice.passed_over.iter().find(|one| one.step == step);
    match (choice.checkpoint, flawed) {
        (Some(good), Some(flawed)) => format!("step {good} ({flawed})"),
        (None, Some(flawed)) => format!("none known: {flawed}"),
        _ if !rollback::is_after_onset(r, run, step) => format!("step {step}{ago}"),
        (Some(good), None) => format!("step {good} (the last, step {step}, is from after the onset)"),
        (None, None) => {
            format!("none known: the last, step {step}{ago}, is from after the onset")
        }
    }
}

/// What a crash now would lose, and that in GPU hours and dollars if the size of the run is known.
fn at_risk(run: &RunSummary, config: &ResponderConfig) -> String {
    let lost = |secs: f64| {
        let Some(gpus) = run.gpus else { return String::new() };
        let hours = secs / 3600.0 * f64::from(gpus);
        let dollars = config.cost_per_gpu_hour.map(|rate| format!(" = ${:.2}", rate * hours));
        format!(" = {} GPU hours{}", number(hours), dollars.unwrap_or_default())
    };
    let span = stepwatch_model::time::Span::from_secs_f64;
    let gpus = run.gpus.map_or_else(|| format!("an {UNKNOWN_SIZE}"), gpus);
    let now = format!("{} of {gpus}{}", span(run.unsaved), lost(run.unsaved));
    if run.unsaved_at_most <= run.unsaved {
        return now;
    }
    format!(
        "{now}; up to {} before the next checkpoint{}",
        span(run.unsaved_at_most),
        lost(run.unsaved_at_most)
    )
}

/// The size of a run whose GPUs nothing shows for sure.
pub const UNKNOWN_SIZE: &str = "unknown number of GPUs";

/// `8 GPUs`
pub(crate) fn gpus(n: u32) -> String {
    format!("{n} GPU{}", if n == 1 { "" } else { "s" })
}

fn cost(now: Ts, r: &IncidentRecord, run: &RunSummary, config: &ResponderConfig) -> String {
    let Some(n) = run.gpus else {
        return format!("{UNKNOWN_SIZE}: nothing says how many its processes have");
    };
    let gpus = gpus(n);
    let Some(rate) = config.cost_per_gpu_hour else {
        return format!("{gpus}; set cost_per_gpu_hour for dollars");
    };
    let hourly = rate * f64::from(n);
    let hours = (now - r.opened_at).as_secs_f64() / 3600.0;
    format!("${hourly:.2}/h ({gpus} at ${rate:.2}), ${:.2} since it opened", hourly * hours)
}

/// The annotation `description` of a Prometheus alert.
pub fn description(r: &IncidentRecord, alert: Option<&Alert>) -> Option<String> {
    let text = alert.filter(|_| r.kind.is_external())?.description()?.trim();
    let cut = text.char_indices().nth(DESCRIPTION_MAX).map(|(at, _)| format!("{}…", &text[..at]));
    (!text.is_empty()).then(|| cut.unwrap_or_else(|| text.to_owned()))
}

/// The links of a message. A Prometheus alert links to its own runbook, if its rule names one.
pub fn links(r: &IncidentRecord, alert: Option<&Alert>, config: &ResponderConfig) -> Vec<Link> {
    let mut links = Vec::new();
    let own = alert.filter(|_| r.kind.is_external()).and_then(Alert::runbook);
    if let Some(href) = own {
        links.push(Link { role: LinkRole::Runbook, text: RUNBOOK.into(), href: href.to_owned() });
    } else if !config.runbook_url.is_empty() {
        let base = config.runbook_url.trim_end_matches('/');
        links.push(Link {
            role: LinkRole::Runbook,
            text: RUNBOOK.into(),
            href: format!("{base}/{}", r.kind.runbook()),
        });
    }
    if let Some(base) = &config.external_url {
        let base = base.trim_end_matches('/');
        let href = format!("{base}/incidents/{}", r.id);
        links.push(Link { role: LinkRole::Incident, text: "Incident".into(), href });
    }
    links
}

/// The address of the chart of an incident.
fn chart(r: &IncidentRecord, config: &ResponderConfig) -> Option<String> {
    let base = config.external_url.as_ref().filter(|_| r.has_steps())?;
    Some(format!("{}/incidents/{}/chart.png", base.trim_end_matches('/'), r.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_written_as_they_are_named() {
        for reason in Reason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
    }

    #[test]
    fn a_checkpoint_is_named_also_if_nobody_knows_when_it_was_saved() {
        let r = IncidentRecord::new(String::new(), Ts(0), Kind::Hang, Severity::Page);
        let run = RunSummary {
            last_step: Some(150),
            checkpoint_step: Some(100),
            saved: vec![100],
            ..RunSummary::default()
        };
        assert_eq!(checkpoint(Ts(0), &r, &run), "step 100");
        assert_eq!(checkpoint(Ts(0), &r, &RunSummary::default()), "none reported");
    }

    #[test]
    fn the_data_of_a_message_name_the_same_checkpoint_as_its_words() {
        let new = IncidentRecord::new(String::new(), Ts(0), Kind::Hang, Severity::Page);
        let r = IncidentRecord { run: "llama".into(), ..new };
        let unread = stepwatch_model::PassedOver { step: 100, why: stepwatch_model::Flaw::LoadFailed };
        let run = RunSummary {
            last_step: Some(150),
            checkpoint_step: Some(100),
            checkpoint_at: Some(Ts(0)),
            saved: vec![50, 100],
            flawed: vec![unread],
            ..RunSummary::default()
        };
        assert_eq!(checkpoint(Ts(0), &r, &run), "step 50 (checkpoint 100 could not be loaded)");
        let data = Details::of(Ts(0), &r, &run, &ResponderConfig::default()).checkpoint.unwrap_or_default();
        assert_eq!((data.step, data.good_step, data.after_onset), (Some(100), Some(50), false));
    }

    #[test]
    fn work_at_risk_has_a_price_only_where_the_size_is_known() {
        let config = ResponderConfig { cost_per_gpu_hour: Some(2.5), ..ResponderConfig::default() };
        let unknown = RunSummary { unsaved: 600.0, unsaved_at_most: 1200.0, ..RunSummary::default() };
        let known = RunSummary { gpus: Some(8), ..unknown.clone() };
        assert_eq!(
            at_risk(&known, &config),
            "10m of 8 GPUs = 1.333 GPU hours = $3.33; up to 20m before the next checkpoint = 2.667 GPU hours = $6.67"
        );
        assert_eq!(
            at_risk(&unknown, &config),
            "10m of an unknown number of GPUs; up to 20m before the next checkpoint"
        );
    }

    #[test]
    fn numbers_as_people_read_them() {
        for (v, text) in [
            (2.3456, "2.346"),
            (0.87, "0.87"),
            (145.119, "145.1"),
            (98258.265, "98258"),
            (1e14, "1.00e14"),
            (3e-5, "3.00e-5"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-infinity"),
            (0.0, "0"),
            (100.0, "100"),
            (0.0123456, "0.01235"),
        ] {
            assert_eq!(number(v), text, "{v}");
        }
    }
}
