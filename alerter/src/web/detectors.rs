//! The recent reports of each detector, and the verdicts of people about them.

use std::collections::BTreeMap;
use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::incident::{IncidentRecord, Verdict};

use super::format::ago;
use super::layout::{Frame, Place};
use super::page::{Result, page};
use super::runbooks::meaning;
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::extract::Asked;
use crate::clock::wall;
use crate::store::Filter;

/// The most incidents that are read, latest first.
const MAX_SEEN: u32 = 5_000;
const DAY: i64 = 86_400;
/// The periods that can be chosen, in days.
const PERIODS: [u16; 3] = [7, 30, 90];

#[derive(Debug, Deserialize)]
pub(super) struct Query {
    #[serde(default = "days")]
    days: u16,
}

fn days() -> u16 {
    PERIODS[1]
}

/// The incidents of one kind.
#[derive(Debug, Default, Clone, PartialEq)]
struct Count {
    pages: usize,
    tickets: usize,
    notes: usize,
    real: usize,
    noise: usize,
    wrong: usize,
    last: Option<Ts>,
}

impl Count {
    fn add(&mut self, record: &IncidentRecord) {
        match record.severity {
            Severity::Page => self.pages += 1,
            Severity::Ticket => self.tickets += 1,
            Severity::Info => self.notes += 1,
        }
        match record.end.as_ref().and_then(|end| end.verdict) {
            Some(Verdict::Real) => self.real += 1,
            Some(Verdict::Noise) => self.noise += 1,
            Some(Verdict::False) => self.wrong += 1,
            None => {}
        }
        self.last = self.last.max(Some(record.opened_at));
    }

    fn answered(&self) -> usize {
        self.real + self.noise + self.wrong
    }

    /// The share of incidents with a verdict that were real.
    fn precision(&self) -> String {
        match self.answered() {
            0 => "-".to_owned(),
            all => format!("{:.0} %", 100.0 * self.real as f64 / all as f64),
        }
    }
}

#[derive(Debug)]
struct Row {
    kind: &'static str,
    title: &'static str,
    meaning: String,
    count: Count,
    precision: String,
    last: String,
}

#[derive(Debug, Template)]
#[template(path = "detectors.html")]
struct Page {
    frame: Frame,
    days: u16,
    periods: [u16; 3],
    rows: Vec<Row>,
    silent: Vec<Row>,
    all: Count,
    precision: String,
    pages_a_week: String,
    /// Whether there are more incidents than were read.
    cut: bool,
}

/// `GET /detectors`
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Asked(query): Asked<Query>,
) -> Result<Response> {
    let days = if PERIODS.contains(&query.days) { query.days } else { days() };
    let now = wall();
    let since = now.earlier(Span::secs(i64::from(days) * DAY));
    let filter = Filter { limit: Some(MAX_SEEN), ..Filter::default() };
    let records = api.incidents(&caller, filter).await?;
    let cut = records.len() == MAX_SEEN as usize && records.iter().all(|r| r.opened_at >= since);
    let (mut all, mut by_kind) = (Count::default(), BTreeMap::<Kind, Count>::new());
    for record in records.iter().filter(|r| r.opened_at >= since) {
        all.add(record);
        by_kind.entry(record.kind).or_default().add(record);
    }
    let mut rows: Vec<Row> =
        Kind::ALL.iter().map(|kind| row(*kind, by_kind.remove(kind).unwrap_or_default(), now)).collect();
    rows.sort_by_key(|row| core::cmp::Reverse((row.count.pages, row.count.tickets, row.count.notes)));
    let (rows, silent) = rows.into_iter().partition(|row| row.count.last.is_some());
    let url = format!("/detectors?days={days}");
    let frame = Frame::new(&api, &caller, Place::Detectors, "Detectors", &url).await?;
    let frame = Frame { renews: false, reloads: false, ..frame.of(&headers) };
    let (precision, weeks) = (all.precision(), f64::from(days) / 7.0);
    let pages_a_week = format!("{:.1}", all.pages as f64 / weeks);
    let shown = Page { frame, days, periods: PERIODS, rows, silent, all, precision, pages_a_week, cut };
    Ok(page(StatusCode::OK, &shown))
}

fn row(kind: Kind, count: Count, now: Ts) -> Row {
    Row {
        kind: kind.as_str(),
        title: kind.title(),
        meaning: meaning(kind).unwrap_or_default(),
        precision: count.precision(),
        last: count.last.map_or_else(String::new, |at| ago(now, at)),
        count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_precision_is_that_of_what_was_answered() {
        let count = Count { pages: 10, real: 3, noise: 1, ..Count::default() };
        assert_eq!((count.answered(), count.precision().as_str()), (4, "75 %"));
        assert_eq!(Count::default().precision(), "-");
    }
}
