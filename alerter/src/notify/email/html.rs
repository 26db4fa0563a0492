//! The HTML of a mail: one column, without external resources, readable without styles and without
//! the chart.

use std::fmt::Write as _;

use stepwatch_model::Severity;
use stepwatch_respond::effect::Notification;
use stepwatch_respond::message::Status;

use super::{TEXT_MAX, standing};
use crate::markup::escape;
use crate::notify::text::{clean, line, shorten, web_link};

const HREF_MAX: usize = 2000;
const LINKS_MAX: usize = 6;

const FONT: &str = "font-family:-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif";

/// The content id of the chart in the mail.
pub(super) const CHART: &str = "chart";
/// The most characters of the chart's description.
const ALT_MAX: usize = 500;

/// Renders the HTML. `chart` is the description of the chart, if the mail has one.
pub(super) fn render(n: &Notification, chart: Option<&str>) -> String {
    let m = &n.message;
    let colour = match (m.status, m.severity) {
        (Status::Resolved, _) => "#1a7f37",
        (Status::Acknowledged, _) => "#6639ba",
        (Status::Firing, Severity::Page) => "#b42318",
        (Status::Firing, _) => "#9a6700",
    };
    let tidy = |text: &str| escape(shorten(clean(text).trim(), TEXT_MAX).as_str()).replace('\n', "<br>");
    let mut rows = String::new();
    for fact in m.facts.iter().filter(|fact| !fact.text.trim().is_empty()) {
        let _ = writeln!(
            rows,
            "<tr><td style=\"padding:6px 16px 6px 0;color:#57606a;vertical-align:top;white-space:nowrap\">{}</td>\
                 <td style=\"padding:6px 0;vertical-align:top\">{}</td></tr>",
            escape(&line(&fact.label, 80)),
            tidy(&fact.text)
        );
    }
    let mut links = String::new();
    let shown =
        m.links.iter().filter_map(|link| Some((web_link(&link.href, HREF_MAX)?, line(&link.text, 60))));
    for (href, text) in shown.take(LINKS_MAX) {
        let _ = writeln!(
            links,
            "<a href=\"{}\" style=\"display:inline-block;margin:0 8px 8px 0;padding:8px 14px;border:1px solid #d0d7de;\
                 border-radius:6px;color:#0969da;text-decoration:none\">{}</a>",
            escape(href),
            escape(&text)
        );
    }
    let chart = chart.map_or_else(String::new, |alt| {
        let alt = escape(&line(alt, ALT_MAX));
        format!(
            "<img src=\"cid:{CHART}\" alt=\"{alt}\" width=\"590\" style=\"display:block;width:100%;height:auto;margin:0 0 16px\">\n"
        )
    });
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"color-scheme\" content=\"light\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title></head>\n\
         <body style=\"margin:0;padding:24px 12px;background:#f6f8fa;color:#1f2328;font-size:15px;line-height:1.5;{FONT}\">\n\
         <div style=\"max-width:640px;margin:0 auto;background:#fff;border:1px solid #d0d7de;border-radius:8px;\
         border-top:6px solid {colour};padding:20px 24px\">\n\
         <div style=\"color:{colour};font-weight:700;letter-spacing:.04em;font-size:13px\">{standing}</div>\n\
         <h1 style=\"margin:4px 0 12px;font-size:20px;line-height:1.3\">{title}</h1>\n\
         <p style=\"margin:0 0 16px\">{summary}</p>\n{chart}\
         <table role=\"presentation\" style=\"border-collapse:collapse;font-size:14px;margin:0 0 16px\">\n{rows}</table>\n\
         <div>{links}</div>\n\
         <p style=\"margin:12px 0 0;padding-top:12px;border-top:1px solid #d8dee4;color:#57606a;font-size:13px\">\
         <b>Why you see this:</b> {reason}<br>Incident {incident}, since {since}</p>\n</div></body></html>\n",
        title = escape(&line(&m.title, 200)),
        standing = standing(n),
        summary = tidy(&m.summary),
        reason = tidy(&m.reason),
        incident = escape(&line(&m.incident, 128)),
        since = m.started_at,
    )
}
