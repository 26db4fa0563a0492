//! The same facts as HTML: two plain pages without scripts, readable on a phone at night.

use core::fmt::Write as _;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Kind, number};
use stepwatch_respond::incident::{IncidentRecord, State as IncidentState};

use super::Api;
use super::auth::Caller;
use super::error::ApiError;
use super::html::{Cell, document, escape, table};
use super::view::{DeliveryView, IncidentDetail, IncidentView, LinkView, When};
use crate::clock::wall;
use crate::ingest::SourceSnapshot;
use crate::notify::text::web_link;
use crate::run_snapshot::RunSnapshot;
use crate::store::{DeliveryState, Filter};

/// Rows of each table of the overview.
const MAX_ROWS: usize = 200;
const REFRESH_SECONDS: u32 = 5;
/// Characters of a link that is shown.
const HREF_MAX: usize = 2000;

/// Nothing is loaded but our own style sheet, and the page cannot be framed.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Wraps a page in the headers that keep a browser from doing more than showing it.
fn page(status: StatusCode, html: String) -> Response {
    let mut response = (status, Html(html)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl ApiError {
    fn into_page(self) -> Response {
        let body = format!("{}<p class=\"alarm\">{}</p>", head(""), escape(&self.message));
        page(self.status, document("Stepwatch", 60, &body))
    }
}

pub(super) async fn style() -> Response {
    let headers =
        [(header::CONTENT_TYPE, "text/css; charset=utf-8"), (header::CACHE_CONTROL, "max-age=3600")];
    (headers, include_str!("assets/page.css")).into_response()
}

/// The page for a caller that was not let in.
pub(super) fn refused(error: ApiError) -> Response {
    error.into_page()
}

pub(super) async fn overview(State(api): State<Arc<Api>>, caller: Caller) -> Response {
    let filter = |unresolved| Filter {
        unresolved,
        and_firing: true,
        limit: Some(MAX_ROWS as u32),
        ..Filter::default()
    };
    let open = match api.incidents(&caller, filter(true)).await {
        Ok(open) => open,
        Err(e) => return e.into_page(),
    };
    let latest = Filter { limit: Some(20), ..Filter::default() };
    let latest = api.incidents(&caller, latest).await.unwrap_or_default();
    let over = |r: &IncidentRecord| r.state == IncidentState::Resolved && r.reopens_at().is_none();
    let closed: Vec<_> = latest.into_iter().filter(over).collect();
    let status = match api.status(&caller).await {
        Ok(status) => status,
        Err(e) => return e.into_page(),
    };
    let (now, view) = (wall(), api.runtime.views.get());
    let mut line = format!("{} open, {} runs", open.len(), status.runs);
    if let (Some(up), Some(all)) = (status.sources_up, status.sources) {
        let _ = write!(line, ", {up} of {all} sources up");
    }
    let mut body = head(&line);
    if view.store_refuses {
        body.push_str("<p class=\"alarm\">The store refuses commits: nothing new is sent until it takes them. See the log.</p>");
    }
    incident_table(&mut body, "Open incidents", &open, now, "Nothing is wrong that we can see.");
    let routing = api.runtime.read_model.routing();
    let seen = |r: &&RunSnapshot| caller.token_scope().is_none_or(|scope| scope.admits(&routing.labels(r)));
    run_table(&mut body, &view.runs.iter().filter(seen).collect::<Vec<_>>(), now);
    if caller.token_scope().is_none() {
        source_table(&mut body, &api.sources.views(), now);
    }
    incident_table(&mut body, "Lately resolved", &closed, now, "None.");
    let _ = write!(
        body,
        "<footer><p>Stepwatch {} ({}) &middot; {now}</p></footer>",
        status.version, status.revision
    );
    page(StatusCode::OK, document("Stepwatch", REFRESH_SECONDS, &body))
}

pub(super) async fn incident(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Response {
    match api.detail(&caller, &id).await {
        Ok(detail) => {
            page(StatusCode::OK, document(&detail.incident.summary, REFRESH_SECONDS, &incident_body(&detail)))
        }
        Err(e) => e.into_page(),
    }
}

fn head(line: &str) -> String {
    format!("<header><h1><a href=\"/\">Stepwatch</a></h1><p>{}</p></header>", escape(line))
}

fn ago(now: Ts, at: Ts) -> String {
    format!("{} ago", Span((now - at).0.max(0)))
}

fn incident_table(out: &mut String, title: &str, records: &[IncidentRecord], now: Ts, empty: &str) {
    let row = |r: &IncidentRecord| {
        let view = IncidentView::from(r.clone());
        vec![
            Cell::Badge(r.severity.as_str()),
            Cell::Badge(view.standing()),
            Cell::Text(r.place()),
            Cell::Text(format!("{}: {}", view.title, view.summary)),
            Cell::Number(ago(now, r.opened_at)),
            Cell::number(r.start_step),
            r.quiet
                .as_ref()
                .map_or_else(|| Cell::number(r.level), |q| Cell::Text(format!("nobody: {}", q.words))),
            Cell::Link { href: format!("/incidents/{}", r.id), text: r.id.clone() },
        ]
    };
    let columns = ["severity", "state", "run", "what", "since", "step", "notified level", "id"];
    table(out, title, &columns, &records.iter().map(row).collect::<Vec<_>>(), empty);
}

fn run_table(out: &mut String, runs: &[&RunSnapshot], now: Ts) {
    let row = |r: &&RunSnapshot| {
        let state = match r.ended {
            Some(0) => "ended".to_owned(),
            Some(code) => format!("ended with code {code}"),
            None if !r.lost_sources.is_empty() => format!("{} of its sources lost", r.lost_sources.len()),
            None => String::new(),
        };
        vec![
            Cell::text(&r.run),
            Cell::maybe(r.last_step),
            Cell::maybe(r.last_step_at.map(|at| ago(now, at))),
            Cell::number(r.attempt),
            Cell::number(r.ranks),
            Cell::maybe(r.last_checkpoint_step),
            Cell::Text(r.sources.join(", ")),
            Cell::Text(state),
        ]
    };
    let rows: Vec<_> = runs.iter().take(MAX_ROWS).map(row).collect();
    let columns = ["run", "step", "age", "attempt", "ranks", "checkpoint", "sources", ""];
    table(out, "Runs", &columns, &rows, "No run has been seen yet.");
}

fn source_table(out: &mut String, sources: &[SourceSnapshot], now: Ts) {
    let row = |s: &SourceSnapshot| {
        vec![
            Cell::text(&s.source),
            Cell::Badge(if s.up { "up" } else { "down" }),
            Cell::Number(ago(now, s.since)),
            Cell::maybe(s.last_record.map(|at| ago(now, at))),
            Cell::number(s.records),
            Cell::number(s.gaps),
            Cell::Text(s.error.clone().unwrap_or_default()),
        ]
    };
    // Sources that are down come first.
    let mut sources: Vec<_> = sources.iter().collect();
    sources.sort_by_key(|s| (s.up, Arc::clone(&s.source)));
    let rows: Vec<_> = sources.into_iter().take(MAX_ROWS).map(row).collect();
    let columns = ["source", "state", "since", "last record", "records", "gaps", "why"];
    table(out, "Sources", &columns, &rows, "No source is configured.");
}

fn incident_body(d: &IncidentDetail) -> String {
    let i = &d.incident;
    let mut body = head(&format!("{} of {}", i.title, i.place()));
    let _ = write!(body, "<p>{}</p>", escape(&i.summary));
    let mut rows = facts(i);
    rows.extend(d.description.iter().map(|text| vec![Cell::text("description"), Cell::text(text)]));
    let web = |l: &&LinkView| web_link(&l.href, HREF_MAX).is_some();
    let link = |l: &LinkView| Cell::Link { href: l.href.clone(), text: l.href.clone() };
    rows.extend(d.links.iter().filter(web).map(|l| vec![Cell::text(&l.text), link(l)]));
    table(&mut body, "Facts", &["", ""], &rows, "");
    if i.state != IncidentState::Resolved {
        let _ =
            write!(body, "<p>To take it: <code>stepwatch-alerter incidents ack {}</code></p>", escape(&i.id));
    }
    let rows: Vec<_> = d
        .timeline
        .iter()
        .map(|t| vec![Cell::number(time(t.at)), Cell::text(&t.actor), Cell::text(&t.what)])
        .collect();
    table(&mut body, "What happened", &["at", "who", "what"], &rows, "Nothing yet.");
    let rows: Vec<_> = d.deliveries.iter().map(delivery).collect();
    let columns = ["created", "receiver", "whom", "message", "why", "state", "attempts", "error"];
    table(&mut body, "Who was notified", &columns, &rows, "Nobody.");
    body
}

fn facts(i: &IncidentView) -> Vec<Vec<Cell>> {
    let mut facts = vec![
        ("severity", i.severity.as_str().to_owned()),
        ("state", i.standing().to_owned()),
        ("signal", i.signal.clone()),
    ];
    if !i.run.is_empty() {
        facts.push(("since step", i.start_step.to_string()));
        facts.push(("announced at step", i.opened_step.to_string()));
    }
    if i.kind != Kind::PrometheusAlert {
        let [value, expected, score] = [i.value, i.expected, i.score].map(number);
        facts.push(("value", format!("{value} (expected {expected}, score {score})")));
    }
    facts.extend(i.quiet.iter().map(|q| ("notifies", format!("nobody: {} ({})", q.words, q.by))));
    facts.push(("opened", time(i.opened_at)));
    facts.extend(i.suspects.iter().map(|s| ("suspect", format!("{}: {}", s.what(), s.why()))));
    if let (Some(by), Some(at)) = (&i.acked_by, i.acked_at) {
        facts.push(("acknowledged", format!("by {by} at {}", time(at))));
    }
    facts.extend(i.next_escalation_at.map(|at| ("next escalation", time(at))));
    facts.extend(i.resolved_at.map(|at| ("resolved", format!("{}{}", time(at), i.how_it_ended()))));
    facts.extend(i.reopens_at.map(|at| ("comes back", format!("{}, unless it is over by then", time(at)))));
    facts.into_iter().map(|(k, v)| vec![Cell::text(k), Cell::Text(v)]).collect()
}

fn delivery(d: &DeliveryView) -> Vec<Cell> {
    vec![
        Cell::number(time(d.created_at)),
        Cell::text(&d.receiver),
        Cell::Text(d.users.join(", ")),
        Cell::text(d.action.as_str()),
        Cell::Text(why(d)),
        Cell::Badge(delivery_state(d.state)),
        Cell::number(d.attempts),
        Cell::Text(d.error.clone().unwrap_or_default()),
    ]
}

/// Why this receiver, now.
fn why(d: &DeliveryView) -> String {
    let mut parts: Vec<String> = d.reason.iter().cloned().collect();
    if let Some(path) = &d.path {
        if !path.route.is_empty() {
            parts.push(format!("{} ({}), level {}", path.route, path.matched, path.level));
        }
        parts.extend(path.chosen.iter().chain(&path.asked).cloned());
    }
    parts.join("; ")
}

fn time(at: When) -> String {
    at.0.to_string()
}

fn delivery_state(s: DeliveryState) -> &'static str {
    match s {
        DeliveryState::Pending => "pending",
        DeliveryState::Attempting => "attempting",
        DeliveryState::Ambiguous => "ambiguous",
        DeliveryState::Delivered => "delivered",
        DeliveryState::Failed => "failed",
        DeliveryState::Superseded => "superseded",
    }
}
