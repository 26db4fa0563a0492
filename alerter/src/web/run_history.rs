//! The attempts and checkpoints of a run, as rows of its page.

use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Severity, number};
use stepwatch_respond::incident::IncidentRecord;

use super::format::{ago, clock};
use super::runs::href;
use crate::api::attempts::{
    AttemptView, ChangeView, CheckpointView, HistoryView, OutcomeView, StartPartView,
};
use crate::api::checkpoint_stages::{CheckpointStagesView, StageName, StageView};

/// Seconds beyond twice the usual time from which a part of a start is marked.
const LONGER_SECONDS: f64 = 60.0;

#[derive(Debug)]
pub(super) struct AttemptRow {
    /// The number of the attempt, from 0, as in messages and logs.
    pub(super) number: u32,
    pub(super) steps: String,
    /// The number of steps that the previous attempt had already made.
    pub(super) again: Option<i64>,
    pub(super) began: String,
    pub(super) lasted: String,
    pub(super) ended: String,
    pub(super) why: String,
    /// The CSS class of the colour.
    pub(super) class: &'static str,
    /// The incident that was open at the end: its link and title.
    pub(super) incident: Option<(String, String)>,
    pub(super) changes: Vec<ChangeRow>,
    pub(super) more_changes: u32,
    pub(super) start: Vec<StartRow>,
}

/// A part of a start.
#[derive(Debug)]
pub(super) struct StartRow {
    pub(super) phase: &'static str,
    pub(super) took: String,
    pub(super) usual: String,
    /// It took twice the usual time and a minute more.
    pub(super) long: bool,
}

/// A start that goes on.
#[derive(Debug)]
pub(super) struct StartingRow {
    pub(super) since: String,
    pub(super) lasts: String,
    /// `14 of 16 ranks`.
    pub(super) ranks: String,
    /// Those that have not said hello while most have.
    pub(super) missing: String,
    pub(super) start: Vec<StartRow>,
}

#[derive(Debug)]
pub(super) struct ChangeRow {
    pub(super) of: &'static str,
    pub(super) name: String,
    pub(super) before: String,
    pub(super) after: String,
}

#[derive(Debug)]
pub(super) struct CheckpointRow {
    pub(super) step: String,
    pub(super) when: String,
    pub(super) at: String,
    pub(super) took: String,
    pub(super) size: String,
    pub(super) outcome: &'static str,
    pub(super) class: &'static str,
    pub(super) why: String,
}

/// What is different from the last good attempt.
#[derive(Debug)]
pub(super) struct SinceGoodRows {
    /// The name of the attempt.
    pub(super) good: String,
    pub(super) at: String,
    pub(super) changes: Vec<ChangeRow>,
    pub(super) more: u32,
}

pub(super) fn since_good(history: &HistoryView) -> Option<SinceGoodRows> {
    let since = history.since_good.as_ref()?;
    let good = match since.attempt {
        Some(attempt) => format!("attempt {attempt}"),
        None if since.run == history.run => "this attempt".to_owned(),
        None => since.run.clone(),
    };
    Some(SinceGoodRows {
        good,
        at: clock(since.at.0),
        changes: since.changes.iter().map(ChangeRow::from).collect(),
        more: since.changes_hidden,
    })
}

/// A checkpoint with the stages after its save, or one that is loaded.
#[derive(Debug)]
pub(super) struct StageRow {
    pub(super) step: String,
    pub(super) save: String,
    pub(super) write: String,
    pub(super) upload: String,
    pub(super) durable: String,
    pub(super) size: String,
    pub(super) path: String,
    /// The CSS class of the colour, and what it stands for.
    pub(super) class: &'static str,
    pub(super) state: &'static str,
}

/// The attempts, latest first.
pub(super) fn attempts(history: &HistoryView, records: &[IncidentRecord], now: Ts) -> Vec<AttemptRow> {
    let all = &history.attempts;
    let row = |(i, a): (usize, &AttemptView)| {
        let next = i.checked_sub(1).and_then(|i| all.get(i)).map(|next| next.began_at.0);
        let before = all.get(i + 1).and_then(|before| before.last_step);
        AttemptRow::new(a, before, incident_at_end(a, next, records), now)
    };
    all.iter().enumerate().map(row).collect()
}

pub(super) fn starting(history: &HistoryView, now: Ts) -> Option<StartingRow> {
    let s = history.starting.as_ref()?;
    let (since, lasts) = (clock(s.since.0), Span((now - s.since.0).0.max(0)).to_string());
    let ranks = match s.world {
        Some(world) => format!("{} of {world} ranks", s.ranks),
        None => format!("{} ranks", s.ranks),
    };
    let missing: Vec<String> = s.missing.iter().map(u32::to_string).collect();
    let start = s.start.iter().map(StartRow::from).collect();
    Some(StartingRow { since, lasts, ranks, missing: missing.join(", "), start })
}

pub(super) fn checkpoints(history: &HistoryView, now: Ts) -> Vec<CheckpointRow> {
    history.checkpoints.iter().map(|c| CheckpointRow::new(c, now)).collect()
}

/// The stages of the last checkpoints, latest first. Nothing of a run that shows saves only, whose
/// list of checkpoints says the same.
pub(super) fn stages(history: &HistoryView) -> Vec<StageRow> {
    let is_later = |s: &StageView| s.stage != StageName::Save;
    if !history.stages.iter().any(|c| c.stages.iter().any(is_later)) {
        return Vec::new();
    }
    history.stages.iter().map(StageRow::from).collect()
}

/// The last load in a sentence; empty without one.
pub(super) fn load(history: &HistoryView, now: Ts) -> String {
    let Some((c, load)) = history.load.as_ref().and_then(|c| Some((c, c.stage(StageName::Load)?))) else {
        return String::new();
    };
    let step = c.step.map_or_else(String::new, |step| format!(" of step {step}"));
    let path = c.path.as_ref().map_or_else(String::new, |path| format!(" from {path}"));
    let what = match (load.failed, load.seconds) {
        (true, _) => "failed to load".to_owned(),
        (false, Some(secs)) => format!("was loaded in {}", Span::from_secs_f64(secs)),
        (false, None) => "is being loaded".to_owned(),
    };
    let at = load.ended_at.or(load.started_at).map_or_else(String::new, |at| format!(", {}", ago(now, at.0)));
    format!("The checkpoint{step} {what}{path}{at}.")
}

/// The worst incident that began during the attempt and was open at its end; the last one of equal
/// severity.
fn incident_at_end<'a>(
    a: &AttemptView,
    next: Option<Ts>,
    records: &'a [IncidentRecord],
) -> Option<&'a IncidentRecord> {
    let ended = a.ended_at?.0;
    let during = |r: &&IncidentRecord| {
        r.severity > Severity::Info
            && r.opened_at >= a.began_at.0
            && next.is_none_or(|next| r.opened_at < next)
            && r.resolved_at.is_none_or(|over| over >= ended)
    };
    records.iter().filter(during).max_by_key(|r| (r.severity, r.opened_at))
}

impl AttemptRow {
    fn new(a: &AttemptView, before: Option<i64>, incident: Option<&IncidentRecord>, now: Ts) -> Self {
        let steps = match (a.first_step, a.last_step) {
            (Some(first), Some(last)) => format!("{first} to {last}"),
            _ => "none".to_owned(),
        };
        let again = before.zip(a.first_step).map(|(before, first)| before - first + 1);
        let end = a.end.as_ref();
        Self {
            number: a.attempt,
            steps,
            again: again.filter(|again| *again > 0),
            began: clock(a.began_at.0),
            lasted: Span((a.ended_at.map_or(now, |at| at.0) - a.began_at.0).0.max(0)).to_string(),
            ended: a.ended_at.map_or_else(String::new, |at| clock(at.0)),
            why: end.map_or_else(|| "goes on".to_owned(), |end| end.words()),
            class: match end {
                None => "up",
                Some(end) if end.place.is_some() || end.code.is_some_and(|code| code != 0) => "failed",
                Some(_) => "info",
            },
            incident: incident.map(|r| (href("/incidents/", &r.id), r.title())),
            changes: a.changes.iter().map(ChangeRow::from).collect(),
            more_changes: a.changes_hidden,
            start: a.start.iter().map(StartRow::from).collect(),
        }
    }
}

impl From<&StartPartView> for StartRow {
    fn from(part: &StartPartView) -> Self {
        let span = |secs: f64| Span::from_secs_f64(secs).to_string();
        Self {
            phase: part.phase.words(),
            took: span(part.seconds),
            usual: part.usual_seconds.map_or_else(String::new, span),
            long: part.usual_seconds.is_some_and(|usual| part.seconds > 2.0 * usual + LONGER_SECONDS),
        }
    }
}

impl From<&ChangeView> for ChangeRow {
    fn from(c: &ChangeView) -> Self {
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        Self { of: c.of.words(), name: c.name.clone(), before: value(&c.before), after: value(&c.after) }
    }
}

impl CheckpointRow {
    fn new(c: &CheckpointView, now: Ts) -> Self {
        let (outcome, class) = match c.outcome {
            OutcomeView::Saved => ("saved", "up"),
            OutcomeView::Found => ("found on disk", "info"),
            OutcomeView::Failed => ("failed", "failed"),
        };
        Self {
            step: c.step.map_or_else(|| "step not known".to_owned(), |step| format!("step {step}")),
            when: ago(now, c.at.0),
            at: clock(c.at.0),
            took: c.seconds.map_or_else(String::new, |secs| Span::from_secs_f64(secs).to_string()),
            size: c.bytes.map_or_else(String::new, size),
            outcome,
            class,
            why: c.why.clone().unwrap_or_default(),
        }
    }
}

impl From<&CheckpointStagesView> for StageRow {
    fn from(c: &CheckpointStagesView) -> Self {
        let cell = |name| c.stage(name).map_or_else(|| "-".to_owned(), cell_of);
        let saved = c.stage(StageName::Save).and_then(|s| s.ended_at);
        // Most trainers report only that it is durable, not since when it was about to be.
        let lag = |s: &StageView| {
            let after = s.ended_at.zip(saved).map(|(at, saved)| at.0 - saved.0);
            after.map_or_else(|| cell_of(s), |after| format!("{} after the save", Span(after.0.max(0))))
        };
        let durable = c.stage(StageName::Durable).filter(|s| !s.failed && s.seconds.is_none());
        let (class, state) = match (c.stages.iter().any(|s| s.failed), c.counts) {
            (true, _) => ("failed", "failed"),
            (false, true) => ("up", "whole"),
            (false, false) => ("info", "not yet whole"),
        };
        Self {
            step: c.step.map_or_else(|| "step not known".to_owned(), |step| format!("step {step}")),
            save: cell(StageName::Save),
            write: cell(StageName::Write),
            upload: cell(StageName::Upload),
            durable: durable.map_or_else(|| cell(StageName::Durable), lag),
            size: c.bytes.map_or_else(String::new, size),
            path: c.path.clone().unwrap_or_default(),
            class,
            state,
        }
    }
}

/// How long a stage took, or what it is in.
fn cell_of(s: &StageView) -> String {
    match (s.failed, s.ended_at, s.seconds) {
        (true, _, _) => "failed".to_owned(),
        (false, None, _) => "goes on".to_owned(),
        (false, Some(_), None) => "done".to_owned(),
        (false, Some(_), Some(secs)) => Span::from_secs_f64(secs).to_string(),
    }
}

/// A size such as `1.4 TB`.
fn size(bytes: f64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB")];
    let unit = units.into_iter().find(|(least, _)| bytes >= *least).unwrap_or((1e3, "kB"));
    format!("{} {}", number(bytes / unit.0), unit.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_start_that_took_far_longer_than_usual_is_marked() {
        use crate::api::attempts::StartPhaseView;
        use crate::when::When;
        let row = |seconds, usual_seconds| {
            let at = When(Ts(0));
            let phase = StartPhaseView::Load;
            StartRow::from(&StartPartView { phase, began_at: at, ended_at: at, seconds, usual_seconds })
        };
        let long = row(190.0, Some(60.0));
        assert_eq!((long.phase, &*long.took, &*long.usual), ("load of the checkpoint", "3m 10s", "1m"));
        assert!(long.long && !row(170.0, Some(60.0)).long && !row(50.0, Some(5.0)).long);
        assert!(!row(9000.0, None).long && row(9000.0, None).usual.is_empty());
    }

    #[test]
    fn the_last_good_attempt_has_the_number_that_it_has_in_the_list() {
        use crate::api::attempts::SinceGoodView;
        use crate::api::doc::examples;
        use crate::when::When;
        let example: HistoryView = serde_json::from_value(examples::attempts()).unwrap();
        let number = example.attempts.first().map(|a| a.attempt);
        let at = When(Ts(0));
        let since = SinceGoodView {
            run: example.run.clone(),
            attempt: number,
            at,
            changes: Vec::new(),
            changes_hidden: 0,
        };
        let history = HistoryView { since_good: Some(since), ..example };
        let rows = attempts(&history, &[], Ts(0));
        let good = since_good(&history).map(|since| since.good);
        assert_eq!(good, rows.first().map(|row| format!("attempt {}", row.number)));
        assert_eq!(rows.first().map(|row| row.number), number);
    }

    #[test]
    fn a_start_says_how_many_ranks_it_has_and_which_it_lacks() {
        use crate::api::attempts::StartingView;
        use crate::when::When;
        let row = |world, missing: &[u32]| {
            let (since, missing) = (When(Ts(0)), missing.to_vec());
            let view = StartingView { since, ranks: 14, world, missing, start: Vec::new() };
            let history = HistoryView { starting: Some(view), ..HistoryView::default() };
            let row = starting(&history, Ts(90_000)).unwrap();
            [row.lasts, row.ranks, row.missing]
        };
        assert_eq!(row(Some(16), &[14, 15]), ["1m 30s", "14 of 16 ranks", "14, 15"]);
        assert_eq!(row(None, &[]), ["1m 30s", "14 ranks", ""]);
    }

    #[test]
    fn sizes_are_read_at_a_glance() {
        for (bytes, text) in [(1.4e12, "1.4 TB"), (2.5e9, "2.5 GB"), (999e6, "999 MB"), (12.0, "0.012 kB")] {
            assert_eq!(size(bytes), text);
        }
    }
}
