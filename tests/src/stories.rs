//! Stories that happened to people, told again in virtual time: what a cluster reports, the real
//! engine, and the messages that people get. `docs/stories.md` is made of them.

mod choked_uploads;
mod deleted_model;
mod half_driver;
mod hundred_hosts;
mod never_saved;
mod scene;
mod slow_save;
mod two_hosts;
mod wrong_variable;

use std::fmt::Write as _;

use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::message::Message;

pub use scene::{Scene, Step};

/// A story and what it must lead to.
#[derive(Debug)]
pub struct Story {
    pub title: &'static str,
    /// What happened, for the reader of the document.
    pub what: &'static str,
    /// When the cause began.
    pub onset: Ts,
    /// The message that says it: the last one that people got about the incident.
    pub message: Message,
    /// When people were first told about the incident; of a ticket that becomes a page, when that
    /// is sent.
    pub told: Ts,
    /// What the message must name: the cause, and the figures that show it.
    pub names: &'static [&'static str],
    /// How soon after the onset people must be told.
    pub within: Span,
}

/// All stories, in the order of the document.
pub const ALL: &[fn() -> Story] = &[
    slow_save::tell,
    choked_uploads::tell,
    hundred_hosts::tell,
    two_hosts::tell,
    never_saved::tell,
    half_driver::tell,
    wrong_variable::tell,
    deleted_model::tell,
];

impl Story {
    pub fn delay(&self) -> Span {
        self.told - self.onset
    }

    /// All words of the message.
    pub fn text(&self) -> String {
        let facts = self.message.facts.iter().map(|fact| format!("{}: {}\n", fact.label, fact.text));
        format!("{}\n{}\n{}", self.message.title, self.message.summary, facts.collect::<String>())
    }
}

/// The text of `docs/stories.md`.
pub fn document(stories: &[Story]) -> String {
    let mut out = String::from(INTRODUCTION);
    for story in stories {
        let (delay, kind) = (story.delay(), story.message.kind.as_str());
        let severity = story.message.severity.as_str();
        let _ = write!(out, "\n## {}\n\n{}\n\n", story.title, wrapped(story.what, ""));
        let told = format!("People are told after {delay}, by a {severity} of the kind `{kind}`:");
        let _ = write!(out, "{}\n\n", wrapped(&told, ""));
        let _ = write!(out, "{}\n>\n", wrapped(&format!("**{}**", story.message.title), "> "));
        let _ = write!(out, "{}\n>\n", wrapped(&story.message.summary, "> "));
        for fact in &story.message.facts {
            for (nth, line) in fact.text.lines().enumerate() {
                let text = if nth == 0 { format!("* {}: {line}", fact.label) } else { format!("  {line}") };
                let _ = writeln!(out, "{}", wrapped(&text, "> "));
            }
        }
    }
    out
}

const INTRODUCTION: &str = "\
# Stories

Each of these cost a team days or weeks. Here a simulated cluster reports what it reported then, in
virtual time; the engine is the real one, and the messages are the ones that it sends, with GPUs at
2.50 dollars an hour. `tests/tests/stories.rs` plays the stories and compares this page with them.
";

/// Wraps at the width of the documents.
fn wrapped(text: &str, margin: &str) -> String {
    const WIDTH: usize = 96;
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().filter(|line| line.is_empty() || line.len() + word.len() < WIDTH);
        match line {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    let lines: Vec<_> = lines.iter().map(|line| format!("{margin}{line}").trim_end().to_owned()).collect();
    lines.join("\n")
}
