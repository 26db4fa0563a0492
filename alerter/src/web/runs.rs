//! The page of all runs: those with incidents first, then active ones, with a sparkline of the
//! loss.

use std::collections::BTreeMap;
use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use stepwatch_model::number;
use stepwatch_model::time::Span;
use stepwatch_model::{Severity, Signal};
use stepwatch_wire::names::metric;
use url::form_urlencoded;

use super::format::ago;
use super::layout::{Frame, Place};
use super::page::{Result, page};
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::extract::Asked;
use crate::api::view::RunView;
use crate::clock::wall;
use crate::series::SeriesTable;
use crate::store::Filter;

/// The most runs on the page; others are found by name.
const MAX_ROWS: usize = 200;
/// The most unresolved incidents that are counted.
const MAX_INCIDENTS: u32 = 5_000;
/// The points and size of the sparkline.
const SPARK: usize = 80;
const WIDTH: f32 = 160.0;
const HEIGHT: f32 = 32.0;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Query {
    /// A part of the name to search for.
    run: String,
}

#[derive(Debug, Clone)]
pub(super) struct Row {
    name: String,
    href: String,
    /// The state as a word, and the CSS class of its colour.
    state: String,
    class: &'static str,
    step: Option<i64>,
    age: Option<String>,
    spark: String,
    loss: String,
    step_time: String,
    mfu: String,
    ranks: String,
    incidents: usize,
    worst: &'static str,
    ended: bool,
}

#[derive(Debug, Template)]
#[template(path = "runs.html")]
struct Page {
    frame: Frame,
    query: Query,
    rows: Vec<Row>,
    ended: Vec<Row>,
    hidden: usize,
}

/// `GET /runs`
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Asked(query): Asked<Query>,
) -> Result<Response> {
    let filter = Filter { unresolved: true, limit: Some(MAX_INCIDENTS), ..Filter::default() };
    let mut incidents: BTreeMap<String, (usize, Severity)> = BTreeMap::new();
    for record in api.incidents(&caller, filter).await? {
        let (count, worst) = incidents.entry(record.run).or_insert((0, Severity::Info));
        (*count, *worst) = (*count + 1, (*worst).max(record.severity));
    }
    let list = api.run_views(&caller);
    let wanted = query.run.trim().to_lowercase();
    let mut rows: Vec<(Severity, Row)> = list
        .runs
        .into_iter()
        .filter(|run| run.run.to_lowercase().contains(&wanted))
        .map(|run| {
            let (count, worst) = incidents.get(&run.run).copied().unwrap_or((0, Severity::Info));
            (if count > 0 { worst } else { Severity::Info }, Row::new(&api.runtime.series, run, count, worst))
        })
        .collect();
    rows.sort_by(|(a, x), (b, y)| b.cmp(a).then(y.incidents.cmp(&x.incidents)).then(x.name.cmp(&y.name)));
    let hidden = rows.len().saturating_sub(MAX_ROWS) + list.hidden;
    let (ended, rows): (Vec<Row>, Vec<Row>) =
        rows.into_iter().map(|(_, row)| row).take(MAX_ROWS).partition(|row| row.ended);
    let url = if wanted.is_empty() { "/runs".to_owned() } else { href("/runs?run=", &query.run) };
    let frame = Frame::new(&api, &caller, Place::Runs, "Runs", &url).await?.of(&headers);
    Ok(page(StatusCode::OK, &Page { frame, query, rows, ended, hidden }))
}

/// A link with a name as an escaped part of a path or a query.
pub(super) fn href(before: &str, name: &str) -> String {
    let name: String = form_urlencoded::byte_serialize(name.as_bytes()).collect();
    format!("{before}{}", name.replace('+', "%20"))
}

impl Row {
    fn new(series: &SeriesTable, run: RunView, incidents: usize, worst: Severity) -> Self {
        let value = |name: &str| {
            let found = run.signals.iter().find(|s| s.signal == name).and_then(|s| s.value);
            found.map_or_else(|| "-".to_owned(), |value| shown(name, value))
        };
        let (state, class) = standing(&run);
        Self {
            href: href("/runs/", &run.run),
            state,
            class,
            step: run.last_step,
            age: run.last_step_age_seconds.map(|age| Span::from_secs_f64(age).to_string()),
            spark: spark(series, &run.run),
            loss: value(metric::LOSS),
            step_time: value(metric::STEP_TIME),
            mfu: value(metric::MFU),
            ranks: run
                .world
                .map_or_else(|| run.ranks.to_string(), |world| format!("{} of {world}", run.ranks)),
            incidents,
            worst: worst.as_str(),
            ended: run.ended.is_some(),
            name: run.run,
        }
    }
}

/// The state of a run as text, and the CSS class of its colour.
pub(super) fn standing(run: &RunView) -> (String, &'static str) {
    match run.ended {
        Some(0) => ("ended".to_owned(), "info"),
        Some(code) => (format!("ended with {code}"), "failed"),
        None if run.sources.is_empty() && !run.lost_sources.is_empty() => ("not heard".to_owned(), "down"),
        None if run.last_step.is_none() => ("no step yet".to_owned(), "pending"),
        None => ("running".to_owned(), "up"),
    }
}

/// A value in the unit of its signal.
pub(super) fn shown(signal: &str, value: f64) -> String {
    let unit = Signal::find(signal).and_then(|signal| signal.unit.text(value));
    unit.unwrap_or_else(|| number(value))
}

/// The path of the sparkline of the loss; empty without two values.
fn spark(series: &SeriesTable, run: &str) -> String {
    let Some(window) = series.window(run, metric::LOSS, None, None, SPARK) else { return String::new() };
    let values: Vec<(f32, f32)> =
        window.points.iter().filter_map(|p| Some((p.step as f32, p.values?.last))).collect();
    path(&values, WIDTH, HEIGHT)
}

/// The SVG path through points, in a box with a margin of one pixel.
fn path(points: &[(f32, f32)], width: f32, height: f32) -> String {
    if points.len() < 2 {
        return String::new();
    }
    let range = |of: fn(&(f32, f32)) -> f32| {
        let (low, high) = points.iter().map(of).fold((f32::MAX, f32::MIN), |(a, b), v| (a.min(v), b.max(v)));
        (low, (high - low).max(f32::MIN_POSITIVE))
    };
    let ((left, wide), (low, high)) = (range(|p| p.0), range(|p| p.1));
    let place = |(x, y): &(f32, f32)| {
        let x = 1.0 + (x - left) / wide * (width - 2.0);
        let y = height - 1.0 - (y - low) / high * (height - 2.0);
        format!("{x:.1} {y:.1}")
    };
    format!("M{}", points.iter().map(place).collect::<Vec<_>>().join("L"))
}

/// When a run last reported.
pub(super) fn heard(run: &RunView) -> String {
    ago(wall(), run.last_heard_at.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fills_its_box() {
        assert_eq!(path(&[(0.0, 3.0), (5.0, 1.0), (10.0, 2.0)], 12.0, 12.0), "M1.0 1.0L6.0 11.0L11.0 6.0");
        assert_eq!(path(&[(1.0, 1.0)], 10.0, 10.0), "");
        assert_eq!(path(&[(1.0, 1.0), (2.0, 1.0)], 10.0, 10.0), "M1.0 9.0L9.0 9.0");
    }

    #[test]
    fn a_name_is_one_part_of_a_path() {
        assert_eq!(href("/runs/", "a/b c?d"), "/runs/a%2Fb%20c%3Fd");
    }
}
