//! Prints incidents and notifications as they occur.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use stepwatch_fakes::{AlertState, PagerDuty, Post, Slack};
use stepwatch_tests::Stack;
use tokio::sync::mpsc;

use crate::screen::{Colour, Screen, wrap};
use crate::steps::Steps;

/// The polling interval of the demo.
const EVERY: Duration = Duration::from_millis(25);
/// The width of a Slack message on the terminal.
const BODY_WIDTH: usize = 84;

/// The state of what was printed so far.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    incidents: BTreeMap<String, (String, String)>,
    posts: usize,
    /// The number of printed edits of each message.
    edits: BTreeMap<String, usize>,
    pages: usize,
    log: usize,
    /// The seconds from the first bad step to the last page.
    pub(crate) delay: Option<f64>,
    /// The incidents in the alerter's last list.
    pub(crate) known: Vec<Value>,
    /// What happens to replicas meanwhile.
    news: Option<mpsc::Receiver<String>>,
}

impl Feed {
    /// A feed that also prints these texts.
    pub(crate) fn with(news: mpsc::Receiver<String>) -> Self {
        Self { news: Some(news), ..Self::default() }
    }

    /// Prints news until `done` holds; false if `deadline` passes first.
    pub(crate) async fn until(
        &mut self,
        screen: &mut Screen,
        (stack, steps): (&Stack, &Steps),
        deadline: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> bool {
        let ends = tokio::time::Instant::now() + deadline;
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            ticks.tick().await;
            if let Ok(known) = stack.alerter.incidents().await {
                self.known = known;
            }
            self.print(screen, stack, steps);
            if done(self) {
                return true;
            }
            if tokio::time::Instant::now() >= ends {
                return false;
            }
            if let Some(step) = steps.last() {
                screen.live(&step.to_string());
            }
        }
    }

    fn print(&mut self, screen: &mut Screen, stack: &Stack, steps: &Steps) {
        while let Some(text) = self.news.as_mut().and_then(|news| news.try_recv().ok()) {
            screen.event(Colour::Yellow, "REPLICAS", &text);
        }
        for incident in self.known.iter().rev() {
            let text = |key: &str| incident[key].as_str().unwrap_or_default().to_owned();
            let now = (text("severity"), text("state"));
            let before = self.incidents.insert(text("id"), now.clone());
            if before.as_ref() != Some(&now) {
                print_incident(screen, incident, before.as_ref());
            }
        }
        let slack = stack.slack.state();
        for post in slack.posts.iter().skip(self.posts) {
            print_post(screen, post);
        }
        self.posts = slack.posts.len();
        for post in &slack.posts {
            let seen = self.edits.insert(post.ts.clone(), post.edits.len()).unwrap_or(0);
            if post.edits.len() > seen {
                screen.event(Colour::Blue, "SLACK", &format!("message edited: {}", headline(post)));
            }
        }
        self.print_pages(screen, &stack.pagerduty.state(), steps);
    }

    fn print_pages(&mut self, screen: &mut Screen, pd: &PagerDuty, steps: &Steps) {
        for page in pd.pages.iter().skip(self.pages) {
            let incident = self.known.iter().find(|i| i["id"] == page.dedup_key.as_str());
            let step = incident.and_then(|i| i["detected_step"].as_i64());
            let took = step.and_then(|s| Some(page.time.as_microsecond() as f64 / 1e6 - steps.sent_at(s)?));
            let took = match (step, took) {
                (Some(step), Some(s)) => {
                    self.delay = Some(s);
                    format!("\n{:.0} ms after step {step} was reported", s * 1e3)
                }
                _ => String::new(),
            };
            screen.event(Colour::Red, "PAGE", &format!("the phone rings: {}{took}", page.summary));
        }
        self.pages = pd.pages.len();
        let entries: Vec<_> =
            pd.alerts.iter().flat_map(|a| &a.log).filter(|e| !e.what.contains("on-call paged")).collect();
        for entry in entries.iter().skip(self.log) {
            screen.event(Colour::Plain, "PAGERDUTY", &entry.what);
        }
        self.log = entries.len();
    }
}

/// Whether every page has one PagerDuty alert and one Slack message, in this state if one is given.
pub(crate) fn delivered(feed: &Feed, stack: &Stack, state: Option<AlertState>) -> bool {
    let pages: Vec<_> = feed.known.iter().filter(|i| i["severity"] == "page").collect();
    let (pd, slack) = (stack.pagerduty.state(), stack.slack.state());
    !pages.is_empty()
        && pages.iter().all(|i| {
            let id = i["id"].as_str().unwrap_or_default();
            let mut alerts = pd.alerts_of(id);
            alerts.next().is_some_and(|a| state.is_none_or(|s| a.state == s))
                && alerts.next().is_none()
                && one_message(&slack, id)
        })
}

fn one_message(slack: &Slack, incident: &str) -> bool {
    slack
        .top()
        .filter(|p| p.metadata.as_ref().is_some_and(|m| m["event_payload"]["incident"] == incident))
        .count()
        == 1
}

fn print_incident(screen: &mut Screen, i: &Value, before: Option<&(String, String)>) {
    let text = |key: &str| i[key].as_str().unwrap_or_default();
    let colour = match (text("state"), text("severity")) {
        ("resolved", "page" | "ticket") => Colour::Green,
        ("acknowledged", _) => Colour::Yellow,
        (_, "page") => Colour::Red,
        (_, "ticket") => Colour::Yellow,
        _ => Colour::Dim,
    };
    let what = match (before, text("state")) {
        (None, _) => {
            format!("{} · {} of {}: {}", text("severity"), text("kind"), text("run"), text("summary"))
        }
        (Some(_), "resolved") => format!("resolved: {} of {}", text("kind"), text("run")),
        (Some(_), "acknowledged") => format!("acknowledged by {}: escalation stops", text("acked_by")),
        (Some(_), _) => format!("now {}: {}", text("severity"), text("summary")),
    };
    screen.event(colour, "INCIDENT", &what);
}

fn print_post(screen: &mut Screen, post: &Post) {
    if !post.is_top() {
        screen.event(Colour::Blue, "SLACK", &format!("in the thread: {}", headline(post)));
        return;
    }
    let mut lines = Vec::new();
    post.blocks.iter().for_each(|b| block_lines(b, &mut lines));
    let body: Vec<_> = lines.iter().flat_map(|l| wrap(l, BODY_WIDTH)).map(|l| format!("│ {l}")).collect();
    screen.event(Colour::Blue, "SLACK", &format!("#training\n{}", body.join("\n")));
}

/// Converts a block of a message to lines: the text of headers and sections, and one line per
/// field. Buttons and context are left out.
fn block_lines(block: &Value, out: &mut Vec<String>) {
    match block["type"].as_str() {
        Some("header" | "section") => {
            if let Some(text) = block["text"]["text"].as_str() {
                // A fact that is too long for a field has its label on a separate line.
                match text.split_once('\n') {
                    Some((label, rest)) if label.starts_with('*') => out.push(fact(label, rest)),
                    _ => out.extend(text.lines().map(plain)),
                }
            }
            for field in block["fields"].as_array().into_iter().flatten() {
                let (label, text) =
                    field["text"].as_str().and_then(|t| t.split_once('\n')).unwrap_or_default();
                out.push(fact(label, text));
            }
        }
        Some("context") => {
            let small = block["elements"][0]["text"].as_str().unwrap_or_default();
            out.extend(small.lines().last().map(plain));
        }
        _ => {}
    }
}

fn fact(label: &str, text: &str) -> String {
    format!("  {:<21} {}", plain(label), plain(&text.replace('\n', "; ")))
}

/// The first line of a message.
fn headline(post: &Post) -> String {
    plain(post.text.lines().next().unwrap_or_default())
}

/// Converts Slack's markup to plain text: labels of links, no stars, entities as characters.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('<') {
        let (inside, tail) = after.split_once('>').unwrap_or((after, ""));
        out.push_str(before);
        out.push_str(inside.rsplit('|').next().unwrap_or(inside));
        rest = tail;
    }
    out.push_str(rest);
    out.replace(['*', '`'], "").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_becomes_plain_text() {
        assert_eq!(plain("*Run* `a` &lt;b&gt; <https://x|runbook>."), "Run a <b> runbook.");
    }
}
