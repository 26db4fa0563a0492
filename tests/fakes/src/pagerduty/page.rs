//! A page with the alerts as the person on call would see them.

use std::fmt::Write as _;

use serde_json::Value;

use super::{Alert, AlertState, PagerDuty};
use crate::html::{self, escape};

const STYLE: &str = "
.sum{max-width:860px;margin:0 auto 16px;display:flex;gap:12px}
.sum div{flex:1;background:#fff;border:1px solid #ddd;border-radius:8px;padding:10px 16px}.sum b{display:block;font-size:24px}
.alert{background:#fff;border:1px solid #ddd;border-left:6px solid #bbb;border-radius:8px;max-width:860px;margin:0 auto 16px;padding:14px 20px}
.alert.triggered{border-left-color:#d0342c}.alert.acknowledged{border-left-color:#f0ad00}.alert.resolved{border-left-color:#06ac38}
.tag{font-size:11px;font-weight:700;text-transform:uppercase;padding:2px 8px;border-radius:10px;color:#fff;background:#bbb;margin-right:8px}
.triggered .tag{background:#d0342c}.acknowledged .tag{background:#f0ad00}.resolved .tag{background:#06ac38}
.title{font-size:16px;font-weight:600;margin:6px 0}table{border-collapse:collapse;margin:6px 0}td{padding:1px 16px 1px 0;vertical-align:top}
td:first-child{color:#8a8a8a;white-space:nowrap}ul{margin:6px 0 0;padding-left:18px;color:#555}
";

pub(super) fn render(pd: &PagerDuty) -> String {
    let mut out = String::new();
    let count = |s: AlertState| pd.alerts.iter().filter(|a| a.state == s).count();
    out.push_str("<div class=sum>");
    for (n, label) in [
        (pd.pages.len(), "pages sent"),
        (count(AlertState::Triggered), "triggered"),
        (count(AlertState::Acknowledged), "acknowledged"),
        (count(AlertState::Resolved), "resolved"),
    ] {
        let _ = write!(out, "<div><b>{n}</b>{label}</div>");
    }
    out.push_str("</div>");
    pd.alerts.iter().rev().for_each(|a| alert(&mut out, a));
    if pd.alerts.is_empty() {
        out.push_str("<p class=empty>Nobody has been paged. Sleep well.</p>");
    }
    html::page("PagerDuty (fake)", STYLE, &out)
}

fn alert(out: &mut String, a: &Alert) {
    let state = a.state.as_str();
    let _ = write!(
        out,
        "<section class=\"alert {state}\"><span class=tag>{state}</span><span class=dim>{} &middot; {} &middot; {}</span>\
         <div class=title>{}</div>",
        escape(&a.severity),
        escape(&a.source),
        escape(&a.dedup_key),
        escape(&a.summary),
    );
    details(out, &a.event["payload"]["custom_details"]);
    for link in a.event["links"].as_array().into_iter().flatten() {
        let href = link["href"].as_str().unwrap_or_default();
        let _ = write!(
            out,
            "<a href=\"{}\">{}</a> &nbsp; ",
            escape(href),
            escape(link["text"].as_str().unwrap_or(href))
        );
    }
    out.push_str("<ul>");
    for entry in &a.log {
        let _ = write!(out, "<li>{} {}</li>", html::clock(entry.time.as_second()), escape(&entry.what));
    }
    out.push_str("</ul></section>");
}

fn details(out: &mut String, details: &Value) {
    let Some(map) = details.as_object() else { return };
    out.push_str("<table>");
    for (key, value) in map {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let _ = write!(out, "<tr><td>{}</td><td>{}</td></tr>", escape(key), escape(&text));
    }
    out.push_str("</table>");
}
