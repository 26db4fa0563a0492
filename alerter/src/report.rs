//! A report of how the GPU time of a period was used, what it cost, and what interrupted it, for
//! the people who pay for it.
//!
//! The times are those of the ledger, by hour; the causes are those of the incidents. [`view()`]
//! computes the numbers, which [`markdown`] and [`html`] format for people.

pub(crate) mod html;
pub(crate) mod markdown;
pub(crate) mod message;
pub(crate) mod schedule;
#[cfg(test)]
mod tests;
pub(crate) mod text;
pub(crate) mod view;

use stepwatch_detect::run::HOUR;
use stepwatch_model::Cause;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::incident::{IncidentRecord, Verdict};

use crate::postmortem::Impact;
use crate::store::RunTotals;
use crate::when::When;
use view::{CostlyView, InterruptionView, ReportView, RunReport, SavesView};

/// The most runs that are listed, in descending order of GPU time.
const RUNS_LISTED: usize = 100;
/// The most incidents that are listed, in descending order of cost.
const INCIDENTS_LISTED: usize = 10;

/// The most runs whose saves are listed.
const SAVES_LISTED: usize = 20;

/// A period of whole hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Period {
    pub(crate) since: Ts,
    pub(crate) until: Ts,
}

/// An incident of the period, and its loss if that was computed.
#[derive(Debug)]
pub(crate) struct Costed {
    pub(crate) record: IncidentRecord,
    pub(crate) impact: Option<Impact>,
}

impl Period {
    /// The hours that overlap with the time.
    pub(crate) fn around(since: Ts, until: Ts) -> Self {
        let begin = |at: Ts| at.0.div_euclid(HOUR.0);
        Self { since: Ts(begin(since) * HOUR.0), until: Ts((begin(Ts(until.0 - 1)) + 1) * HOUR.0) }
    }

    /// The time for which an incident lasted within the period.
    pub(crate) fn share_of(self, record: &IncidentRecord, now: Ts) -> Span {
        let end = record.resolved_at.unwrap_or(now).0.min(self.until.0);
        Span((end - record.opened_at.0.max(self.since.0)).max(0))
    }
}

/// The report, from the accounted time of each run and the incidents that notified people.
pub(crate) fn view(
    period: Period,
    run: Option<String>,
    totals: &[RunTotals],
    incidents: &[Costed],
) -> ReportView {
    let mut runs: Vec<RunReport> = totals.iter().map(|r| RunReport::new(&r.run, &r.totals)).collect();
    let by_time = |r: &RunReport| r.gpu_hours.unwrap_or_default();
    runs.sort_by(|a, b| by_time(b).total_cmp(&by_time(a)).then_with(|| a.run.cmp(&b.run)));
    let runs_hidden = runs.len().saturating_sub(RUNS_LISTED);
    runs.truncate(RUNS_LISTED);
    let mut all = stepwatch_detect::run::Totals::default();
    totals.iter().for_each(|r| all.join(&r.totals));
    let mut total = RunReport::new("", &all);
    // If only some of the runs report tokens, a ratio would be misleading.
    if totals.iter().any(|r| r.totals.total() > 0.0 && r.totals.counts().tokens <= 0.0) {
        (total.tokens_per_joule, total.tokens_per_dollar) = (None, None);
    }
    // A run of 8 GPUs weighs less than one of 8,000. Of a run whose size is not known nobody knows
    // what it weighs.
    let sized: Vec<&RunTotals> = totals.iter().filter(|r| r.totals.is_sized()).collect();
    let runs_unsized = totals.iter().filter(|r| !r.totals.is_sized() && r.totals.total() > 0.0).count();
    if !sized.is_empty() {
        let mut known = stepwatch_detect::run::Totals::default();
        sized.iter().for_each(|r| known.join(&r.totals));
        total.take_shares(&known);
    }
    let interruptions = interruptions(total.interruptions, total.seconds, incidents);
    ReportView {
        since: When(period.since),
        until: When(period.until),
        run,
        total,
        runs,
        runs_hidden,
        runs_unsized,
        interruptions,
        costliest: costliest(incidents),
        saves: Vec::new(),
        incidents: incidents.len(),
    }
}

/// The interruptions of runs, the most frequent first. Interruptions in the ledger without an
/// incident have a row of their own.
fn interruptions(counted: u32, seconds: f64, incidents: &[Costed]) -> Vec<InterruptionView> {
    let mut rows: Vec<InterruptionView> = Vec::new();
    for Costed { record, impact } in incidents.iter().filter(|c| interrupts(&c.record)) {
        let (component, class) = text::component(record.suspects.first().map(|s| &s.target));
        let what = record.kind.title();
        let same = |row: &&mut InterruptionView| row.component == component && row.what == what;
        let at = rows.iter_mut().find(same);
        let lost = impact.as_ref().map_or(Some(0.0), gpu_hours);
        let worth = impact.as_ref().map_or(Some(0.0), dollars);
        match at {
            Some(row) => {
                row.count += 1;
                row.lost_gpu_hours = row.lost_gpu_hours.zip(lost).map(|(before, lost)| before + lost);
                row.lost_dollars = row.lost_dollars.zip(worth).map(|(before, lost)| before + lost);
            }
            None => rows.push(InterruptionView {
                component: component.to_owned(),
                class: class.to_owned(),
                what: what.to_owned(),
                count: 1,
                share: 0.0,
                lost_gpu_hours: lost,
                lost_dollars: worth,
                seconds_between: 0.0,
            }),
        }
    }
    let explained: u32 = rows.iter().map(|row| row.count).sum();
    if counted > explained {
        rows.push(InterruptionView {
            component: text::NOT_EXPLAINED.to_owned(),
            class: "unknown".to_owned(),
            what: "restart without an incident".to_owned(),
            count: counted - explained,
            share: 0.0,
            lost_gpu_hours: Some(0.0),
            lost_dollars: Some(0.0),
            seconds_between: 0.0,
        });
    }
    let all: u32 = rows.iter().map(|row| row.count).sum();
    for row in &mut rows {
        row.share = f64::from(row.count) / f64::from(all.max(1));
        row.seconds_between = seconds / f64::from(row.count);
    }
    rows.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.component.cmp(&b.component)));
    rows
}

/// The saves of runs, those first that would save most, and then those that cost most.
pub(crate) fn listed(mut saves: Vec<SavesView>) -> Vec<SavesView> {
    let gain = |s: &SavesView| {
        let advised = s.interval.saved_gpu_hours_a_day.filter(|_| s.interval.advised);
        (s.interval.advised, advised.unwrap_or_default(), s.interval.cost)
    };
    saves.sort_by(|a, b| {
        let ((a_advised, a_saved, a_cost), (b_advised, b_saved, b_cost)) = (gain(a), gain(b));
        let by_gain = b_advised.cmp(&a_advised).then_with(|| b_saved.total_cmp(&a_saved));
        by_gain.then_with(|| b_cost.total_cmp(&a_cost)).then_with(|| a.run.cmp(&b.run))
    });
    saves.truncate(SAVES_LISTED);
    saves
}

/// Whether the incident made a run stand still, whatever named it: a GPU that failed, for example.
fn interrupts(record: &IncidentRecord) -> bool {
    let stood = record.cause == Cause::Progress || record.standstill.is_some();
    stood && !record.run.is_empty() && !was_false(record)
}

fn was_false(record: &IncidentRecord) -> bool {
    record.end.as_ref().is_some_and(|end| end.verdict == Some(Verdict::False))
}

/// The GPU hours that an incident lost; `None` if the size of the run was not known.
fn gpu_hours(impact: &Impact) -> Option<f64> {
    impact.lost.iter().map(|loss| loss.gpu_hours).sum()
}

fn dollars(impact: &Impact) -> Option<f64> {
    impact.lost.iter().map(|loss| loss.dollars).sum()
}

/// Incidents of runs whose size was not known stand last, in descending order of their length.
fn costliest(incidents: &[Costed]) -> Vec<CostlyView> {
    let cost = |c: &Costed| {
        let impact = c.impact.as_ref().filter(|_| !was_false(&c.record))?;
        let gpu_hours = gpu_hours(impact);
        let seconds: f64 = impact.lost.iter().map(|l| l.seconds).sum();
        (gpu_hours.unwrap_or(seconds) > 0.0).then(|| CostlyView {
            id: c.record.id.clone(),
            run: c.record.run.clone(),
            title: c.record.title(),
            summary: c.record.summary.to_string(),
            opened_at: When(c.record.opened_at),
            lasted_seconds: impact.lasted_seconds,
            lost_gpu_hours: gpu_hours,
            lost_dollars: dollars(impact).filter(|dollars| *dollars > 0.0),
        })
    };
    let mut all: Vec<CostlyView> = incidents.iter().filter_map(cost).collect();
    let known = |c: &CostlyView| c.lost_gpu_hours.unwrap_or_default();
    let unknown = |c: &CostlyView| c.lost_gpu_hours.map_or(c.lasted_seconds, |_| 0.0);
    all.sort_by(|a, b| {
        let by_length = || unknown(b).total_cmp(&unknown(a));
        known(b).total_cmp(&known(a)).then_with(by_length).then_with(|| a.id.cmp(&b.id))
    });
    all.truncate(INCIDENTS_LISTED);
    all
}
