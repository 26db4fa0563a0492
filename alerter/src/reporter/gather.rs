//! Collects the numbers of a report from the store and the runtime's snapshot.

use stepwatch_detect::run::HOUR;
use stepwatch_model::Cause;
use stepwatch_model::time::Ts;
use stepwatch_respond::incident::IncidentRecord;

use crate::postmortem::{self, Account};
use crate::report::view::{ReportView, SavesView};
use crate::report::{self, Costed, Period};
use crate::runtime::{RuntimeSnapshot, Views};
use crate::store::{Result, RunTotals, Store};

/// The most incidents of a period that are read, latest first, and the most for which the cost is
/// computed, longest first, because that reads their messages.
const INCIDENTS_SCANNED: u32 = 5_000;
const INCIDENTS_COSTED: usize = 300;
/// The most incidents whose messages are in memory at once.
const READ_AT_ONCE: usize = 64;

/// The report of a period, for one run or all, with the incidents that `sees` accepts.
pub(crate) async fn gather(
    store: &Store,
    views: &Views,
    period: Period,
    run: Option<String>,
    sees: impl Fn(&IncidentRecord) -> bool,
    now: Ts,
) -> Result<ReportView> {
    // Neither needs the other, and each takes a good part of the time of a report.
    let (mut totals, records) = tokio::try_join!(
        store.accounted(period.since, period.until, run.as_deref()),
        store.incidents_between(period.since, period.until, run.as_deref(), INCIDENTS_SCANNED),
    )?;
    add_open_hours(&mut totals, &views.get(), period, run.as_deref());
    let seen = records.into_iter().filter(sees).collect();
    let incidents = costed(store, seen, period, now).await?;
    let saves = report::listed(saves(&views.get(), &totals));
    Ok(ReportView { saves, ..report::view(period, run, &totals, &incidents) })
}

/// Adds the accounted time of hours that are not over.
fn add_open_hours(totals: &mut Vec<RunTotals>, view: &RuntimeSnapshot, period: Period, run: Option<&str>) {
    let hours = period.since.0 / HOUR.0..period.until.0 / HOUR.0;
    for snapshot in &view.runs {
        let Some(open) = snapshot.open_hour.as_ref().filter(|open| hours.contains(&open.hour)) else {
            continue;
        };
        if run.is_some_and(|run| run != snapshot.run) {
            continue;
        }
        match totals.iter_mut().find(|known| known.run == snapshot.run) {
            Some(known) => known.totals.join(&open.totals),
            None => totals.push(RunTotals { run: snapshot.run.clone(), totals: open.totals.clone() }),
        }
    }
}

/// The saves of the runs that have time in the period and go on.
fn saves(view: &RuntimeSnapshot, totals: &[RunTotals]) -> Vec<SavesView> {
    let goes_on = view
        .runs
        .iter()
        .filter(|snapshot| snapshot.ended.is_none() && totals.iter().any(|known| known.run == snapshot.run));
    goes_on
        .filter_map(|snapshot| {
            let interval = snapshot.save_interval_view()?;
            Some(SavesView { run: snapshot.run.clone(), interval })
        })
        .collect()
}

/// The incidents with the loss of each, if it is computed.
async fn costed(store: &Store, records: Vec<IncidentRecord>, period: Period, now: Ts) -> Result<Vec<Costed>> {
    let mut all: Vec<Costed> = records.into_iter().map(|record| Costed { record, impact: None }).collect();
    all.sort_by_key(|c| core::cmp::Reverse(period.share_of(&c.record, now)));
    let may_cost = |c: &&mut Costed| {
        let speed_or_progress = matches!(c.record.cause, Cause::Progress | Cause::Speed | Cause::Numerics);
        !c.record.run.is_empty() && (speed_or_progress || c.record.standstill.is_some())
    };
    let mut longest: Vec<&mut Costed> = all.iter_mut().filter(may_cost).take(INCIDENTS_COSTED).collect();
    for some in longest.chunks_mut(READ_AT_ONCE) {
        let ids: Vec<&str> = some.iter().map(|c| c.record.id.as_str()).collect();
        let read = store.deliveries_of(&ids).await?;
        for costed in some {
            let deliveries = read.get(&costed.record.id).map(Vec::as_slice).unwrap_or_default();
            let account = Account { record: &costed.record, timeline: &[], deliveries, chart: None, now };
            costed.impact = Some(postmortem::impact(&account));
        }
    }
    Ok(all)
}
