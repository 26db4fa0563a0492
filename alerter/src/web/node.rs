//! The page of one node: its faults, GPUs, runs, incidents, and setup differences.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use stepwatch_model::number;

use super::format::{ago, clock};
use super::layout::{Frame, Place};
use super::nodes::word;
use super::page::{Result, page};
use super::runs::href;
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::extract::Named;
use crate::api::nodes::{ConditionView, DifferenceView, GpuView, LevelView, NodeDetail};
use crate::clock::wall;

#[derive(Debug, Template)]
#[template(path = "node.html")]
struct Page {
    frame: Frame,
    name: String,
    state: &'static str,
    heard: String,
    /// The name and link of each run.
    runs: Vec<(String, String)>,
    jobs: Vec<String>,
    conditions: Vec<Condition>,
    gpus: Vec<Gpu>,
    differences: Vec<DifferenceView>,
    incidents: Vec<Incident>,
}

#[derive(Debug)]
struct Condition {
    what: String,
    /// The CSS class of the colour.
    class: &'static str,
    level: &'static str,
    standing: String,
    text: String,
    action: String,
    place: String,
}

#[derive(Debug)]
struct Gpu {
    name: String,
    busy: String,
    clock: String,
    power: String,
    temperature: String,
    errors: String,
    throttled: String,
    read: String,
    gone: bool,
}

#[derive(Debug)]
struct Incident {
    id: String,
    severity: &'static str,
    title: String,
    standing: &'static str,
    when: String,
    summary: String,
}

/// `GET /nodes/{node}`
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Named(name): Named,
) -> Result<Response> {
    let NodeDetail { node, condition_list, gpu_list, differences, incident_list } =
        api.node_detail(&caller, &name).await?;
    let now = wall();
    let frame = Frame::new(&api, &caller, Place::Nodes, &name, &href("/nodes/", &name)).await?.of(&headers);
    let incident = |i: &crate::api::view::IncidentView| Incident {
        id: i.id.clone(),
        severity: i.severity.as_str(),
        title: i.title.clone(),
        standing: i.standing(),
        when: ago(now, i.opened_at.0),
        summary: i.summary.clone(),
    };
    let detail = Page {
        frame,
        state: word(node.state),
        heard: ago(now, node.last_heard_at.0),
        runs: node.runs.iter().map(|run| (run.clone(), href("/runs/", run))).collect(),
        jobs: node.jobs,
        conditions: condition_list.iter().map(Condition::from).collect(),
        gpus: gpu_list.iter().map(Gpu::from).collect(),
        differences,
        incidents: incident_list.iter().map(incident).collect(),
        name: node.node,
    };
    Ok(page(StatusCode::OK, &detail))
}

impl From<&ConditionView> for Condition {
    fn from(c: &ConditionView) -> Self {
        let (class, level) = match c.level {
            LevelView::Error => ("page", "error"),
            LevelView::Warning => ("ticket", "warning"),
            LevelView::Info => ("info", "info"),
        };
        let times = if c.times > 1 { format!(", {} times", c.times) } else { String::new() };
        Self {
            what: c.xid.map_or_else(|| c.name.replace('_', " "), |xid| format!("XID {xid}")),
            class,
            level,
            standing: match (c.holds, c.over_at) {
                (true, _) => format!("since {}{times}", clock(c.began_at.0)),
                (false, Some(over)) => format!("over at {}{times}", clock(over.0)),
                (false, None) => format!("at {}{times}", clock(c.last_at.0)),
            },
            text: c.text.clone(),
            action: c.action.clone(),
            place: c.place.clone(),
        }
    }
}

impl From<&GpuView> for Gpu {
    fn from(g: &GpuView) -> Self {
        // An unreported value is not zero.
        let shown = |value: Option<f64>, unit: &dyn Fn(f64) -> String| value.map_or("-".to_owned(), unit);
        let of = |value: Option<f64>, most: Option<f64>, unit: &str, scale: f64| {
            let most = most.map_or_else(String::new, |most| format!(" of {}", number(most / scale)));
            shown(value, &|v| format!("{}{most} {unit}", number(v / scale)))
        };
        let index = g.index.map_or_else(String::new, |index| format!("GPU {index} "));
        Self {
            name: format!("{index}{}", g.uuid),
            busy: shown(g.utilization_ratio, &|v| format!("{:.0} %", 100.0 * v)),
            clock: of(g.sm_clock_hertz, g.sm_clock_max_hertz, "MHz", 1e6),
            power: of(g.power_watts, g.power_limit_watts, "W", 1.0),
            temperature: shown(g.temperature_celsius, &|v| format!("{v:.0} °C")),
            errors: shown(g.ecc_corrected, &|v| format!("{v:.0} corrected")),
            throttled: g.throttled_by.join(", "),
            read: g.read_at.map_or_else(|| "never".to_owned(), |at| ago(wall(), at.0)),
            gone: !g.there,
        }
    }
}
