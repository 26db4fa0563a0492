//! The report page: how the GPU time of the last days was used, for all runs or one.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use stepwatch_model::time::{Span, Ts};
use url::form_urlencoded;

use super::layout::{Frame, Place};
use super::page::{Result, page};
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::extract::Asked;
use crate::api::view::When;
use crate::clock::wall;
use crate::report::Period;
use crate::report::text::{self, Cell, Table};
use crate::report::view::ReportView;

/// The periods that can be chosen, in days; the second is the default.
const DAYS: [u16; 3] = [1, 7, 30];

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Query {
    days: u16,
    run: String,
    /// A fixed period in place of the last days, to which scheduled reports link.
    since: Option<When>,
    until: Option<When>,
}

impl Default for Query {
    fn default() -> Self {
        Self { days: DAYS[1], run: String::new(), since: None, until: None }
    }
}

impl Query {
    /// The period in whole hours, and whether it was given.
    fn period(&self, now: Ts) -> Result<(Period, bool)> {
        match (self.since, self.until) {
            (Some(since), Some(until)) if since < until => Ok((Period::around(since.0, until.0), true)),
            (None, None) => {
                let since = now.earlier(Span::secs(86_400 * i64::from(self.days)));
                Ok((Period::around(since, now), false))
            }
            (Some(_), Some(_)) => Err(ApiError::bad_request("since: must be before until".to_owned())),
            _ => Err(ApiError::bad_request("since, until: go together".to_owned())),
        }
    }
}

#[derive(Debug, Template)]
#[template(path = "report.html")]
struct ReportPage {
    frame: Frame,
    query: Query,
    /// Whether the period was given, and is none of the choices.
    named: bool,
    choices: [(u16, String); DAYS.len()],
    period: String,
    figures: Vec<[String; 2]>,
    tables: Vec<Table>,
    hidden: usize,
    files: [(&'static str, String); 3],
}

/// `GET /report`
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Asked(query): Asked<Query>,
) -> Result<Response> {
    if !DAYS.contains(&query.days) {
        return Err(ApiError::bad_request(format!("days: must be one of {DAYS:?}")));
    }
    let now = wall();
    let (period, named) = query.period(now)?;
    let run = Some(query.run.clone()).filter(|run| !run.is_empty());
    let view = api.report(&caller, period, run, now).await?;
    let url = if named { of_period(&view) } else { href(query.days, &query.run) };
    let frame = Frame::new(&api, &caller, Place::Runs, &text::title(&view), &url).await?;
    let choices = DAYS.map(|days| (days, href(days, &query.run)));
    let files = ["markdown", "html", "json"].map(|format| (format, file(&view, format, named)));
    let hidden = view.runs_hidden;
    let page_of = ReportPage {
        frame,
        query,
        named,
        choices,
        period: text::period(&view),
        figures: if view.total.seconds > 0.0 { text::figures(&view) } else { Vec::new() },
        tables: text::tables(&view),
        hidden,
        files,
    };
    Ok(page(StatusCode::OK, &page_of))
}

fn href(days: u16, run: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("days", &days.to_string());
    if !run.is_empty() {
        query.append_pair("run", run);
    }
    format!("/report?{}", query.finish())
}

fn of_period(view: &ReportView) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("since", &view.since.0.to_string());
    query.append_pair("until", &view.until.0.to_string());
    query.extend_pairs(view.run.iter().map(|run| ("run", run)));
    format!("/report?{}", query.finish())
}

/// The link to the report as a file; its end was `named`, or is now.
fn file(view: &ReportView, format: &str, named: bool) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("since", &view.since.0.to_string());
    if named {
        query.append_pair("until", &view.until.0.to_string());
    }
    query.extend_pairs(view.run.iter().map(|run| ("run", run)));
    query.append_pair("format", format);
    format!("/api/v1/report?{}", query.finish())
}
