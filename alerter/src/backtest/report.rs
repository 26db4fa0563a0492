//! What a replay found, for programs and for people.

use std::io::{self, Write};

use serde::Serialize;
use stepwatch_engine::incident::IncidentRecord;
use stepwatch_engine::message::number;
use stepwatch_engine::verdict::{Kind, Severity, Suspect};

use super::Format;
use super::replay::Replay;

/// One incident, with the members that scripts rely on.
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
    suspects: &'a [Suspect],
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

#[derive(Debug, Default, Serialize)]
struct Counts {
    page: usize,
    ticket: usize,
    info: usize,
}

pub(super) fn write(file: &str, replay: &Replay, format: Format, out: &mut dyn Write) -> io::Result<()> {
    match format {
        Format::Json => json(file, replay, out),
        Format::Text => text(file, replay, out),
    }
}

fn json(file: &str, replay: &Replay, out: &mut dyn Write) -> io::Result<()> {
    for r in replay.incidents() {
        serde_json::to_writer(&mut *out, &Incident::of(file, r))?;
        writeln!(out)?;
    }
    let (first_step, last_step) = replay.steps();
    let (samples, signals, incidents) = (replay.samples(), replay.signals(), Counts::of(replay.incidents()));
    let summary = Summary { file, samples, first_step, last_step, signals, incidents };
    serde_json::to_writer(&mut *out, &Line { summary })?;
    writeln!(out)
}

fn text(file: &str, replay: &Replay, out: &mut dyn Write) -> io::Result<()> {
    let (first, last) = replay.steps();
    let c = Counts::of(replay.incidents());
    writeln!(
        out,
        "{file}: {} samples, steps {first} to {last}: {}",
        replay.samples(),
        replay.signals().join(", ")
    )?;
    for r in replay.incidents() {
        let until = r.end_step.map_or("still open".into(), |end| format!("over at {end}"));
        writeln!(
            out,
            "  {:<6} {:<16} at step {}, since {}, {until}; {} is {}{}",
            r.severity.as_str(),
            r.kind.as_str(),
            r.detected_step,
            r.start_step,
            r.signal,
            number(r.value),
            if r.expected.is_finite() { format!(", expected {}", number(r.expected)) } else { String::new() },
        )?;
        writeln!(out, "         {}", r.summary)?;
    }
    writeln!(out, "  pages: {}, tickets: {}, annotations: {}", c.page, c.ticket, c.info)
}

impl<'a> Incident<'a> {
    fn of(file: &'a str, r: &'a IncidentRecord) -> Self {
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
            suspects: &r.suspects,
        }
    }
}

impl Counts {
    fn of(incidents: &[IncidentRecord]) -> Self {
        let of = |s| incidents.iter().filter(|i| i.severity == s).count();
        Self { page: of(Severity::Page), ticket: of(Severity::Ticket), info: of(Severity::Info) }
    }
}
