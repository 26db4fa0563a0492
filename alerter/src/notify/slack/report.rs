//! A report in Slack: the main figures, and a link to the full report.

use serde_json::{Value, json};

use super::blocks::{BUTTON_MAX, HEADER_MAX, HREF_MAX, actions_of, escape, mrkdwn, plain, section};
use crate::notify::report::{IncidentLine, ScheduledReport};
use crate::notify::text::web_link;

/// The most characters of one line of a list, and of its link. Three of them stay below the limit
/// of a section.
const LINE_MAX: usize = 400;
const LINE_HREF_MAX: usize = 500;
const LABEL_MAX: usize = 60;
const FIGURE_MAX: usize = 200;
const FALLBACK_MAX: usize = 1000;

pub(super) fn message(report: &ScheduledReport) -> Value {
    let header = format!("📊 {}", plain(&report.title, HEADER_MAX - 2));
    let mut blocks =
        vec![json!({"type": "header", "text": {"type": "plain_text", "text": header, "emoji": true}})];
    blocks.push(section(&escape(&report.period, LINE_MAX)));
    blocks.extend(report.nothing.as_deref().map(section));
    let figures: Vec<Value> = report.figures.iter().map(figure).collect();
    if !figures.is_empty() {
        blocks.push(json!({"type": "section", "fields": figures}));
    }
    let losses = report.losses.iter().map(|line| escape(line, LINE_MAX)).collect();
    blocks.extend(list("Largest losses", losses));
    blocks.extend(list("Costliest incidents", report.incidents.iter().map(incident).collect()));
    let href = report.url.as_deref().and_then(|url| web_link(url, HREF_MAX));
    blocks.extend(href.map(|href| {
        let text = plain("The whole report", BUTTON_MAX);
        actions_of(vec![json!({
            "type": "button", "action_id": "stepwatch_link_0", "url": href,
            "text": {"type": "plain_text", "text": text, "emoji": false},
        })])
    }));
    let why = format!("*Why you see this:* the schedule {} of reports", escape(&report.schedule, LABEL_MAX));
    blocks.push(json!({"type": "context", "elements": [mrkdwn(&why)]}));
    Value::Array(blocks)
}

/// The text for a phone's lock screen.
pub(super) fn fallback(report: &ScheduledReport) -> String {
    let figures: Vec<String> = report.figures.iter().map(|[label, text]| format!("{label} {text}")).collect();
    let told = report.nothing.clone().unwrap_or_else(|| figures.join(", "));
    escape(&format!("📊 {}: {told}", report.title), FALLBACK_MAX)
}

fn figure([label, text]: &[String; 2]) -> Value {
    mrkdwn(&format!("*{}*\n{}", escape(label, LABEL_MAX), escape(text, FIGURE_MAX)))
}

fn list(title: &str, lines: Vec<String>) -> Option<Value> {
    (!lines.is_empty()).then(|| section(&format!("*{title}*\n• {}", lines.join("\n• "))))
}

fn incident(line: &IncidentLine) -> String {
    let IncidentLine { what, cost, href } = line;
    let what = escape(&crate::notify::line(what, LINE_MAX), LINE_MAX);
    let what = match href.as_deref().and_then(|href| web_link(href, LINE_HREF_MAX)) {
        Some(href) => format!("<{href}|{what}>"),
        None => what,
    };
    format!("{what} ({cost})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::report::tests::{nothing, weekly};

    #[test]
    fn a_week_at_a_glance() {
        let report = weekly(true);
        insta::assert_snapshot!(serde_json::to_string_pretty(&message(&report)).unwrap());
        assert_eq!(
            fallback(&report),
            "📊 Weekly report, 2026-11-16 to 2026-11-22: GPU hours 10752, Cost $26880.00, \
             Goodput 89.3 %, Interruptions 4"
        );
    }

    #[test]
    fn of_nothing_and_without_an_address() {
        let blocks = message(&nothing()).to_string();
        assert!(blocks.contains("No time of any run is accounted."), "{blocks}");
        assert!(!blocks.contains("button") && !blocks.contains("Costliest"), "{blocks}");
        assert!(fallback(&nothing()).ends_with(": No time of any run is accounted."));
    }

    #[test]
    fn words_from_outside_are_no_markup_and_the_limits_hold() {
        let evil = format!("<!channel> <@U0BOSS> *b* `c` |> & {}", "very long ".repeat(400));
        let mut report = weekly(true);
        report.title = format!("Weekly report on {evil}");
        report.url = report.url.map(|url| url + &"x".repeat(HREF_MAX));
        for line in &mut report.incidents {
            line.what.clone_from(&evil);
        }
        report.incidents.push(report.incidents[0].clone());
        let blocks = message(&report);
        let blocks = blocks.as_array().unwrap();
        // A header has no markup.
        let sent = format!("{} {}", Value::from(&blocks[1..]), fallback(&report));
        let header = blocks[0].to_string();
        for evil in ["<!channel>", "<@U0BOSS>"] {
            assert!(!sent.contains(evil) && !header.contains(evil), "{evil} in {header} {sent}");
        }
        assert!(!sent.contains("*b*") && !sent.contains("`c`"), "{sent}");
        for block in blocks {
            let length = |text: &Value| text.as_str().map_or(0, |text| text.chars().count());
            let max = if block["type"] == "header" { 150 } else { 3000 };
            assert!(length(&block["text"]["text"]) <= max, "{block}");
        }
        // An address that is too long for a button is omitted.
        assert!(!sent.contains("\"type\":\"button\""), "{sent}");
    }
}
