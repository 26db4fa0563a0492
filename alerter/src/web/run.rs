//! The page of one run: its state, its signals with a common cursor, its ranks, nodes and
//! incidents.
//!
//! The charts are drawn on the server, so that they work without a script; the script redraws them
//! to allow zooming.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use stepwatch_detect::run::TimeState;
use stepwatch_model::time::Span;
use stepwatch_model::{Severity, Signal};
use stepwatch_respond::incident::{IncidentRecord, State as IncidentState};
use stepwatch_wire::names::metric;

use super::incidents::Row;
use super::layout::{Frame, Place};
use super::page::{Result, page};
use super::run_history::{
    AttemptRow, CheckpointRow, SinceGoodRows, StageRow, StartingRow, attempts, checkpoints, load, since_good,
    stages, starting,
};
use super::runs::{heard, href, shown, standing};
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::extract::{Asked, Named};
use crate::api::ranks::RanksView;
use crate::api::view::{RunView, StateTime};
use crate::chart::track::Point;
use crate::chart::{self, Chart, Look, Mark, Panel, Tone};
use crate::clock::wall;
use crate::series::{MarkKind, SeriesPoint};

/// The accounted seconds of a run from which its goodput is shown.
const MIN_ACCOUNTED: f64 = 60.0;
/// The signals with a chart, in order.
const CHARTS: [&str; 6] =
    [metric::LOSS, metric::GRAD_NORM, metric::STEP_TIME, metric::MFU, metric::TOKENS_PER_SECOND, metric::LR];
/// The most points of a chart that is drawn here.
const POINTS: usize = 480;
/// The most ranks and columns of the rank chart.
const MAX_RANKS: usize = 64;
const MAX_COLUMNS: usize = 60;
/// The most incidents on the page.
const MAX_INCIDENTS: usize = 20;
/// The most nodes that are named.
const MAX_NODES: usize = 64;
/// The most marks of one kind in a chart that is drawn here.
const MAX_MARKS: usize = 12;
/// The shares of slowness and the CSS classes of their colours.
const SLOW: [(f64, &str); 4] = [(0.10, "s4"), (0.05, "s3"), (0.02, "s2"), (0.005, "s1")];

/// The first and the last requested step.
type Steps = (Option<i64>, Option<i64>);

/// The steps to show. The URL has them, so that a link shows the same.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Query {
    /// Steps, or empty, because a form sends its empty fields too.
    from: String,
    to: String,
    /// The axis (`time` or `step`) and the logarithmic scale, which the script reads.
    x: String,
    log: String,
}

#[derive(Debug)]
struct Plot {
    signal: &'static str,
    label: String,
    last: String,
    expected: Option<String>,
}

/// How a part of the run's time was used.
#[derive(Debug)]
struct TimeRow {
    state: String,
    about: &'static str,
    share: String,
    gpu_hours: String,
    dollars: String,
}

/// A row of the rank chart.
#[derive(Debug)]
struct RankRow {
    rank: u32,
    node: String,
    link: String,
    excess: String,
    cells: Vec<&'static str>,
}

#[derive(Debug, Template)]
#[template(path = "run.html")]
struct Page {
    frame: Frame,
    query: Query,
    name: String,
    api: String,
    state: String,
    class: &'static str,
    facts: Vec<(&'static str, String)>,
    time: Vec<TimeRow>,
    plots: Vec<Plot>,
    drawn: String,
    ranks: Vec<RankRow>,
    ranks_hidden: usize,
    nodes: Vec<(String, String)>,
    more_nodes: usize,
    nodes_link: String,
    incidents: Vec<Row>,
    since_good: Option<SinceGoodRows>,
    starting: Option<StartingRow>,
    attempts: Vec<AttemptRow>,
    checkpoints: Vec<CheckpointRow>,
    stages: Vec<StageRow>,
    load: String,
}

/// `GET /runs/{run}`
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Named(name): Named,
    Asked(query): Asked<Query>,
) -> Result<Response> {
    api.require_run(&caller, &name)?;
    let steps = query.steps()?;
    let records = api.incidents_of(&caller, &name).await?;
    let view = api.run_views(&caller).runs.into_iter().find(|run| run.run == name);
    let link = href("/runs/", &name);
    let frame = Frame::new(&api, &caller, Place::Runs, &name, &link).await?.of(&headers);
    let table = api.runtime.views.get().ranks.get(&name).cloned().unwrap_or_default();
    let ranks = RanksView::new(name.clone(), &table, MAX_RANKS);
    let mut nodes: Vec<String> = table.ranks.iter().filter_map(|rank| rank.node.clone()).collect();
    nodes.sort();
    nodes.dedup();
    let more_nodes = nodes.len().saturating_sub(MAX_NODES);
    let (state, class) = view.as_ref().map_or(("not watched any more".to_owned(), "info"), standing);
    let (now, history) = (wall(), api.history_of(&name));
    let detail = Page {
        // A zoomed chart must not be replaced; the script refreshes the rest.
        frame: Frame { renews: false, ..frame },
        api: href("/api/v1/runs/", &name),
        state,
        class,
        facts: view.as_ref().map_or_else(Vec::new, facts),
        time: view.as_ref().map_or_else(Vec::new, time_rows),
        plots: plots(&api, &name),
        drawn: draw(&api, &name, steps, &records),
        since_good: since_good(&history),
        starting: starting(&history, now),
        attempts: attempts(&history, &records, now),
        checkpoints: checkpoints(&history, now),
        stages: stages(&history),
        load: load(&history, now),
        ranks_hidden: ranks.hidden,
        ranks: rank_rows(&ranks),
        nodes: nodes.into_iter().take(MAX_NODES).map(|node| (href("/nodes/", &node), node)).collect(),
        more_nodes,
        nodes_link: href("/nodes?run=", &name),
        incidents: records
            .into_iter()
            .take(MAX_INCIDENTS)
            .map(|record| Row::from_record(&api, &caller, record, now))
            .collect(),
        name,
        query,
    };
    Ok(page(StatusCode::OK, &detail))
}

impl Query {
    /// The first and the last requested step.
    fn steps(&self) -> Result<Steps> {
        let step = |name: &str, text: &str| match text.trim() {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!("{name}: must be the number of a step, got {text:?}"))
            }),
        };
        Ok((step("from", &self.from)?, step("to", &self.to)?))
    }
}

fn facts(run: &RunView) -> Vec<(&'static str, String)> {
    let step = |step: Option<i64>| step.map_or_else(|| "none yet".to_owned(), |step| step.to_string());
    let age = run.last_step_age_seconds.map(|age| format!(", {} ago", Span::from_secs_f64(age)));
    let ranks = run.world.map_or_else(|| run.ranks.to_string(), |world| format!("{} of {world}", run.ranks));
    let mut facts = vec![
        ("Step", format!("{}{}", step(run.last_step), age.unwrap_or_default())),
        ("Heard", heard(run)),
        ("Attempt", run.attempt.to_string()),
        ("Ranks", ranks),
        (
            "Last checkpoint",
            run.last_checkpoint_step.map_or_else(|| "not known".into(), |s| format!("step {s}")),
        ),
        ("Exporters", run.sources.join(", ")),
    ];
    let accounted: f64 = run.time.iter().map(|time| time.seconds).sum();
    if let Some(goodput) = run.goodput.filter(|_| accounted >= MIN_ACCOUNTED) {
        facts.push(("Goodput", format!("{:.1} %", 100.0 * goodput)));
    }
    if let Some(saves) = &run.save_interval {
        facts.push((
            "Saves",
            format!("{}, {} each", saves.interval(), Span::from_secs_f64(saves.save_seconds)),
        ));
        facts.push(("Best interval of saves", saves.best()));
        facts.push(("Time between failures", saves.failures()));
        facts.extend(saves.saved().map(|saved| ("Saved a day by the best interval", saved)));
    }
    if !run.lost_sources.is_empty() {
        facts.push(("Exporters that do not answer", run.lost_sources.join(", ")));
    }
    facts
}

/// The states in descending order of time.
fn time_rows(run: &RunView) -> Vec<TimeRow> {
    let total: f64 = run.time.iter().map(|time| time.seconds).sum();
    if total < MIN_ACCOUNTED {
        return Vec::new();
    }
    let mut all: Vec<_> = run.time.iter().collect();
    all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let row = |time: &&StateTime| TimeRow {
        about: TimeState::ALL.into_iter().find(|s| s.as_str() == time.state).map_or("", TimeState::about),
        state: time.state.clone(),
        share: format!("{:.1} %", 100.0 * time.seconds / total),
        gpu_hours: time.gpu_seconds.map_or_else(|| "-".to_owned(), |s| format!("{:.1}", s / 3600.0)),
        dollars: time.dollars.map_or_else(|| "-".to_owned(), |dollars| format!("${dollars:.2}")),
    };
    all.iter().map(row).collect()
}

fn plots(api: &Api, name: &str) -> Vec<Plot> {
    let latest = api.runtime.series.latest(name);
    let plot = |signal: &'static str| {
        let latest = latest.iter().find(|l| l.signal == signal)?;
        Some(Plot {
            signal,
            label: label(signal),
            last: latest.value.map_or_else(|| "-".to_owned(), |value| shown(signal, value)),
            expected: latest.expectation.map(|e| shown(signal, e.expected)),
        })
    };
    CHARTS.into_iter().filter_map(plot).collect()
}

fn label(signal: &str) -> String {
    if signal == metric::LR {
        return "Learning rate".to_owned();
    }
    Signal::find(signal).map_or_else(|| signal.replace('_', " "), |signal| signal.label.to_owned())
}

/// The charts as one SVG; empty if no series of the run is kept.
fn draw(api: &Api, name: &str, steps: Steps, records: &[IncidentRecord]) -> String {
    let window = |signal: &str| api.runtime.series.window(name, signal, steps.0, steps.1, POINTS);
    let windows: Vec<_> = CHARTS.into_iter().filter_map(|signal| Some((signal, window(signal)?))).collect();
    let tracks: Vec<(&str, Vec<Point>)> =
        windows.iter().map(|(signal, window)| (*signal, track(&window.points))).collect();
    let all = || tracks.iter().flat_map(|(_, points)| points);
    let Some(steps) = all().map(|p| p.from).min().zip(all().map(|p| p.to).max()) else {
        return String::new();
    };
    let panel = |(i, (signal, points)): (usize, &'_ (&str, Vec<Point>))| (i, label(signal), points.len());
    let labels: Vec<_> = tracks.iter().enumerate().map(panel).collect();
    let panels = labels
        .into_iter()
        .map(|(i, label, _)| Panel { leads: i == 0, ..chart::incident::panel(&label, &tracks[i].1) });
    let restarts = windows.first().map_or(&[][..], |(_, window)| window.marks.as_slice());
    let restarts = restarts.iter().filter(|mark| mark.kind == MarkKind::Restart).rev().take(MAX_MARKS);
    let mut marks: Vec<Mark> = restarts
        .map(|mark| Mark { step: mark.step, label: "restart".into(), tone: Tone::Over, href: None })
        .collect();
    let within = |r: &&IncidentRecord| {
        r.severity > Severity::Info && r.start_step <= steps.1 && r.end_step.unwrap_or(steps.1) >= steps.0
    };
    let shown: Vec<&IncidentRecord> = records.iter().filter(within).take(MAX_MARKS).collect();
    marks.extend(shown.iter().map(|r| Mark {
        step: r.start_step.max(steps.0),
        label: r.title(),
        tone: tone(r.severity),
        href: Some(href("/incidents/", &r.id)),
    }));
    let span = |r: &&IncidentRecord| chart::Span {
        from: r.start_step,
        to: r.end_step.filter(|_| r.state == IncidentState::Resolved).unwrap_or(steps.1),
        tone: tone(r.severity),
    };
    let chart = Chart {
        heading: None,
        title: format!("Signals of {name}"),
        description: format!("Steps {} to {}, {} incidents.", steps.0, steps.1, shown.len()),
        steps,
        panels: panels.collect(),
        marks,
        spans: shown.iter().map(span).collect(),
        bars: Vec::new(),
    };
    chart::svg(&chart, Look::default())
}

fn tone(severity: Severity) -> Tone {
    match severity {
        Severity::Info => Tone::Info,
        Severity::Ticket => Tone::Ticket,
        Severity::Page => Tone::Page,
    }
}

fn track(points: &[SeriesPoint]) -> Vec<Point> {
    let ends = points.iter().skip(1).map(|next| next.step - 1).chain(points.last().map(|p| p.step));
    let point = |(p, end): (&SeriesPoint, i64)| Point {
        from: p.step,
        to: end,
        attempt: 0,
        low: p.values.map_or(f64::INFINITY, |v| f64::from(v.min)),
        high: p.values.map_or(f64::NEG_INFINITY, |v| f64::from(v.max)),
        last: p.values.map_or(f64::NAN, |v| f64::from(v.last)),
        samples: p.count,
        nonfinite: p.nonfinite,
    };
    points.iter().zip(ends).map(point).collect()
}

/// The comparable ranks, and the slowness of each in every column.
fn rank_rows(view: &RanksView) -> Vec<RankRow> {
    let skip = view.steps.len().saturating_sub(MAX_COLUMNS);
    let row = |(rank, row): (&crate::api::ranks::RankView, &Vec<Option<f64>>)| {
        let excess = rank.excess?;
        let node = rank.node.clone().unwrap_or_default();
        Some(RankRow {
            rank: rank.rank,
            link: href("/nodes/", &node),
            node,
            excess: format!("{:+.1} %", 100.0 * excess),
            cells: row.iter().skip(skip).map(|excess| slowness(*excess)).collect(),
        })
    };
    view.ranks.iter().zip(&view.excess).filter_map(row).collect()
}

/// The CSS class of a rank's slowness.
fn slowness(excess: Option<f64>) -> &'static str {
    let Some(excess) = excess else { return "none" };
    SLOW.iter().find(|(least, _)| excess >= *least).map_or("s0", |(_, class)| class)
}
