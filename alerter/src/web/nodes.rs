//! The page of all nodes: one tile each, the worst first.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;

use super::layout::{Frame, Place};
use super::page::{Result, page};
use super::runs::href;
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::extract::Asked;
use crate::api::nodes::{NodeStateView, NodeView};

/// The most nodes that are listed with their faults.
const MAX_ROWS: usize = 100;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Query {
    /// Limits the page to nodes of this run.
    run: String,
}

/// The nodes of one run, or without a run, as tiles.
#[derive(Debug)]
struct Group {
    name: String,
    tiles: Vec<Tile>,
}

#[derive(Debug, Clone)]
struct Tile {
    name: String,
    href: String,
    state: &'static str,
}

#[derive(Debug)]
struct Row {
    tile: Tile,
    worst: String,
    runs: String,
    jobs: String,
    gpus: usize,
    incidents: usize,
    heard: String,
}

#[derive(Debug, Template)]
#[template(path = "nodes.html")]
struct Page {
    frame: Frame,
    query: Query,
    /// The number of nodes in each state, in the order of the states.
    counts: Vec<(&'static str, usize)>,
    rows: Vec<Row>,
    more: usize,
    groups: Vec<Group>,
    total: usize,
    hidden: usize,
}

/// `GET /nodes`
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Asked(query): Asked<Query>,
) -> Result<Response> {
    let mut list = api.node_list(&caller).await?;
    if !query.run.is_empty() {
        list.nodes.retain(|node| node.runs.contains(&query.run));
    }
    let states =
        [NodeStateView::Faulty, NodeStateView::Suspect, NodeStateView::Silent, NodeStateView::Healthy];
    let count = |state| (word(state), list.nodes.iter().filter(|node| node.state == state).count());
    let bad = || list.nodes.iter().filter(|node| node.state != NodeStateView::Healthy);
    let url = if query.run.is_empty() { "/nodes".to_owned() } else { href("/nodes?run=", &query.run) };
    let frame = Frame::new(&api, &caller, Place::Nodes, "Nodes", &url).await?.of(&headers);
    let nodes = Page {
        frame,
        query,
        counts: states.map(count).into(),
        rows: bad().take(MAX_ROWS).map(Row::from).collect(),
        more: bad().count().saturating_sub(MAX_ROWS),
        groups: groups(&list.nodes),
        total: list.nodes.len(),
        hidden: list.hidden,
    };
    Ok(page(StatusCode::OK, &nodes))
}

pub(super) fn word(state: NodeStateView) -> &'static str {
    match state {
        NodeStateView::Faulty => "faulty",
        NodeStateView::Suspect => "suspect",
        NodeStateView::Silent => "silent",
        NodeStateView::Healthy => "healthy",
    }
}

/// The nodes grouped by run, those without a run last; within a group the worst first.
fn groups(nodes: &[NodeView]) -> Vec<Group> {
    let mut all: std::collections::BTreeMap<(bool, &str), Vec<Tile>> = std::collections::BTreeMap::new();
    for node in nodes {
        let run = node.runs.first().map_or("", String::as_str);
        all.entry((run.is_empty(), run)).or_default().push(Tile::from(node));
    }
    all.into_iter().map(|((_, run), tiles)| Group { name: run.to_owned(), tiles }).collect()
}

impl From<&NodeView> for Tile {
    fn from(node: &NodeView) -> Self {
        Self { name: node.node.clone(), href: href("/nodes/", &node.node), state: word(node.state) }
    }
}

impl From<&NodeView> for Row {
    fn from(node: &NodeView) -> Self {
        let named = if node.incidents == 1 { "an incident names it" } else { "incidents name it" };
        let silent = format!("nothing heard since {}", node.last_heard_at.0);
        Self {
            tile: Tile::from(node),
            worst: match (&node.worst, node.state) {
                (Some(worst), _) => worst.clone(),
                (None, NodeStateView::Silent) => silent,
                (None, _) => named.to_owned(),
            },
            runs: node.runs.join(", "),
            jobs: node.jobs.join(", "),
            gpus: node.gpus,
            incidents: node.incidents,
            heard: super::format::ago(crate::clock::wall(), node.last_heard_at.0),
        }
    }
}
