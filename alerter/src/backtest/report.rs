//! The report of a replay, for programs and for a terminal.

use std::io::{self, Write};
use std::iter::Sum;

use serde::Serialize;
use stepwatch_model::{Kind, Severity, Suspect};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_respond::message::number;
use stepwatch_respond::route::Router;
use stepwatch_wire::words::line as one_line;

use super::replay::Replay;
use super::{Format, words};

/// The width of text in terminal columns.
const WIDTH: usize = 100;
const INDENT: &str = "          ";

/// One incident, with the fields on which scripts rely.
#[derive(Debug, Serialize)]
struct Incident<'a> {
    file: &'a str,
    kind: Kind,
    severity: Severity,
    signal: &'a str,
    start_step: i64,
    opened_step: i64,
    detected_step: i64,
    end_step: Option<i64>,
    #[serde(with = "stepwatch_wire::num::any")]
    value: f64,
    #[serde(with = "stepwatch_wire::num::any")]
    expected: f64,
    #[serde(with = "stepwatch_wire::num::any")]
    score: f64,
    suspects: Vec<Words>,
}

/// A suspect as text. The form of these lines is a contract; the typed form is in the API.
#[derive(Debug, Serialize)]
struct Words {
    what: String,
    why: String,
}

impl Words {
    fn from_suspect(suspect: &Suspect) -> Self {
        Self { what: suspect.what(), why: suspect.why() }
    }
}

#[derive(Debug, Serialize)]
struct Line<'a> {
    summary: Summary<'a>,
}

#[derive(Debug, Serialize)]
struct Summary<'a> {
    file: &'a str,
    samples: u64,
    first_step: i64,
    last_step: i64,
    signals: Vec<&'static str>,
    incidents: Counts,
}

#[derive(Debug, Default, Clone, Copy, Serialize)]
pub(super) struct Counts {
    pub(super) page: usize,
    pub(super) ticket: usize,
    pub(super) info: usize,
}

/// The format options of a report.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style<'a> {
    pub(super) format: Format,
    pub(super) config: &'a ResponderConfig,
}

pub(super) fn write(file: &str, replay: &Replay, style: Style<'_>, out: &mut dyn Write) -> io::Result<()> {
    match style.format {
        Format::Json => json(file, replay, out),
        Format::Text => text(file, replay, style.config, out),
    }
}

fn json(file: &str, replay: &Replay, out: &mut dyn Write) -> io::Result<()> {
    for r in replay.incidents() {
        serde_json::to_writer(&mut *out, &Incident::from_record(file, r))?;
        writeln!(out)?;
    }
    let (first_step, last_step) = replay.steps();
    let (samples, signals, incidents) = (replay.samples(), replay.signals(), Counts::from_replay(replay));
    let summary = Summary { file, samples, first_step, last_step, signals, incidents };
    serde_json::to_writer(&mut *out, &Line { summary })?;
    writeln!(out)
}

fn text(file: &str, replay: &Replay, config: &ResponderConfig, out: &mut dyn Write) -> io::Result<()> {
    let (first, last) = replay.steps();
    writeln!(out, "{file}")?;
    writeln!(
        out,
        "  {} samples of steps {first} to {last} in {}: {}",
        replay.samples(),
        words::lasted(replay),
        replay.signals().join(", ")
    )?;
    writeln!(out, "  {}", Counts::from_replay(replay))?;
    let router = Router::new(&config.routes, &config.teams).unwrap_or_default();
    for story in replay.stories() {
        let r = &story.record;
        writeln!(out)?;
        writeln!(
            out,
            "  {:<7} {} at step {}",
            r.severity.as_str().to_uppercase(),
            r.kind.title(),
            r.detected_step
        )?;
        let mut line = |text: &str| wrap(out, text);
        line(&story.summary())?;
        line(&words::course(r))?;
        for s in &r.suspects {
            line(&format!("suspect {}: {}", s.what(), s.why()))?;
        }
        if r.severity > Severity::Info && !config.routes.is_empty() {
            line(&words::rule(config, &router, r))?;
        }
    }
    writeln!(out)
}

/// Writes the total of several files.
pub(super) fn total(replays: &[(Counts, f64)], out: &mut dyn Write) -> io::Result<()> {
    let counts: Counts = replays.iter().map(|(c, _)| *c).sum();
    let weeks: f64 = replays.iter().map(|(_, w)| w).sum();
    let rate = if weeks > 0.0 {
        format!(
            "; {} pages and {} tickets a run-week",
            number(counts.page as f64 / weeks),
            number(counts.ticket as f64 / weeks)
        )
    } else {
        String::new()
    };
    writeln!(out, "{} runs, {} of training: {counts}{rate}", replays.len(), words::length(weeks))
}

/// Writes text under its heading, broken between words.
fn wrap(out: &mut dyn Write, text: &str) -> io::Result<()> {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && INDENT.len() + line.chars().count() + 1 + word.chars().count() > WIDTH {
            writeln!(out, "{INDENT}{line}")?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        // Names in a log must not contain terminal control characters.
        line.push_str(&one_line(word));
    }
    writeln!(out, "{INDENT}{line}")
}

impl<'a> Incident<'a> {
    fn from_record(file: &'a str, r: &'a IncidentRecord) -> Self {
        Self {
            file,
            kind: r.kind,
            severity: r.severity,
            signal: &r.signal,
            start_step: r.start_step,
            opened_step: r.opened_step,
            detected_step: r.detected_step,
            end_step: r.end_step,
            value: r.value,
            expected: r.expected,
            score: r.score,
            suspects: r.suspects.iter().map(Words::from_suspect).collect(),
        }
    }
}

impl Counts {
    pub(super) fn from_replay(replay: &Replay) -> Self {
        let of = |s| replay.incidents().filter(|i| i.severity == s).count();
        Self { page: of(Severity::Page), ticket: of(Severity::Ticket), info: of(Severity::Info) }
    }
}

impl core::fmt::Display for Counts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "pages: {}, tickets: {}, annotations: {}", self.page, self.ticket, self.info)
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            page: a.page + b.page,
            ticket: a.ticket + b.ticket,
            info: a.info + b.info,
        })
    }
}
