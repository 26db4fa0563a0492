//! NeMo RL: a record of several lines, `===== Step 3/100 =====`, then the sections `📊 Training
//! Results:` with `• Loss: 0.0123`, `⏱️  Timing:` with `• Total step time: 60.12s`, and `🔍
//! Performance Metrics:`; between them perhaps `📊 Validation Results:`.
//!
//! Steps start again with each epoch, which has a header of its own. Nothing marks the end of a
//! record: it is published when something else is printed, or when the log rests. Numbers have four
//! decimals.

#[cfg(test)]
mod tests;

use stepwatch_wire::Event;
use stepwatch_wire::names::metric;

use crate::absent::{self, Nothing};
use crate::format::{Format, Line, Out, Outcome};
use crate::own_loss::is_policy_loss;
use crate::pause::Evaluation;
use crate::{number, tags};

/// `=` on each side of a header; other programs print short ones.
const RULE: &str = "==========";
/// More steps, or epochs, than any run has.
const MAX_STEPS: i64 = 1 << 31;

#[derive(Debug, Default)]
pub(crate) struct NemoRl {
    epoch: Option<i64>,
    last_step: Option<i64>,
    open: Option<Record>,
    validation: Option<Event>,
    section: Section,
    pause: Evaluation,
}

/// A record whose lines are being read.
#[derive(Debug)]
struct Record {
    event: Event,
    /// Names whose value is nothing.
    nothing: Vec<String>,
    /// It was published already: then only what came after is published.
    given: bool,
}

/// What the lines are of.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Section {
    #[default]
    None,
    Results,
    Timing,
    Performance,
    Validation,
}

impl Format for NemoRl {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if let Some((what, n, of)) = header(line.text) {
            let gave = self.close(out);
            if what == "Epoch" {
                self.epoch = Some(n);
            } else {
                let before = self.epoch.unwrap_or(1).saturating_sub(1).saturating_mul(of);
                let step = before.saturating_add(n);
                self.pause.step(self.last_step, step, line, out);
                self.open = Some(Record { event: line.step(step), nothing: Vec::new(), given: false });
            }
            return if gave { Outcome::Matched } else { Outcome::Ignored };
        }
        if line.text.starts_with("▶ Starting validation at step ") {
            self.pause.begin(self.last_step, line, out);
            return if self.open.is_some() { Outcome::Ignored } else { Outcome::Unmatched };
        }
        if let Some(section) = section(line.text).filter(|_| self.open.is_some()) {
            self.end_validation(line, out);
            self.section = section;
            if section == Section::Validation {
                let step = self.open.as_ref().and_then(|r| r.event.step);
                self.validation = Some(line.eval(step, "val"));
            }
            return Outcome::Ignored;
        }
        if self.value(line.text, out) {
            return Outcome::Matched;
        }
        self.section = Section::None;
        if !self.give(out) {
            return Outcome::Unmatched;
        }
        out.only_ends();
        Outcome::Matched
    }

    fn resume(&mut self, last_step: i64) {
        self.last_step = Some(last_step);
    }

    fn rest(&mut self, out: &mut Out<'_>) {
        self.give(out);
    }
}

impl NemoRl {
    /// Takes a line of a section; false if it is of none.
    fn value(&mut self, text: &str, out: &mut Out<'_>) -> bool {
        let Some(Record { event: e, nothing, .. }) = &mut self.open else { return false };
        let item = text.strip_prefix("• ").or_else(|| text.strip_prefix("- "));
        let Some((key, value)) = item.and_then(|t| t.split_once(':')) else { return false };
        let (key, value) = (key.trim(), value.trim());
        match (self.section, number::lex(value)) {
            (Section::None, _) => return false,
            (Section::Results, None) if absent::is_nothing(value) => nothing.push(named(key).0),
            (_, None) => {}
            (Section::Validation, Some(n)) => {
                let e = self.validation.as_mut();
                let key = key.strip_prefix("Validation ").unwrap_or(key);
                e.map(|e| out.number(e, &named(key).0, n.value, n.quantum));
            }
            (Section::Timing, Some(n)) if key == "Total step time" => {
                out.number(e, metric::STEP_TIME, n.value, n.quantum);
            }
            (Section::Timing, Some(n)) => drop(e.t.set(key, n.value)),
            (Section::Results | Section::Performance, Some(_)) if key == "Training FLOPS" => {
                // `800.00 TFLOPS (100.00 TFLOPS per rank)`.
                let of_rank = number::after(value, "(").and_then(number::lex);
                of_rank.map(|n| out.number(e, metric::TFLOPS_REPORTED, n.value, n.quantum));
            }
            (Section::Results | Section::Performance, Some(n))
                if key.ends_with("Floating Point Utilization") =>
            {
                out.number(e, metric::MFU_REPORTED, n.value / 100.0, n.quantum.map(|q| q / 100.0));
            }
            (Section::Performance, Some(n)) => {
                let name = match key {
                    "E2E (Tokens/sec/gpu)" => metric::TOKENS_PER_SECOND_PER_GPU,
                    "E2E (Tokens/sec)" => metric::TOKENS_PER_SECOND,
                    _ => return true,
                };
                out.number(e, name, n.value, n.quantum);
            }
            (Section::Results, Some(n)) => {
                let (name, divisor) = named(key);
                out.number(e, &name, n.value / divisor, n.quantum.map(|q| q / divisor));
            }
        }
        true
    }

    /// Publishes the validation that was being read.
    fn end_validation(&mut self, line: &Line<'_>, out: &mut Out<'_>) {
        if let Some(e) = self.validation.take().filter(|e| !e.m.is_empty()) {
            self.pause.end(self.last_step, line, out);
            out.push(e);
        }
    }

    /// Publishes what was read of the record so far; false if there was nothing.
    fn give(&mut self, out: &mut Out<'_>) -> bool {
        let validation = self.validation.take().filter(|e| !e.m.is_empty());
        let gave = validation.is_some();
        validation.into_iter().for_each(|e| out.push(e));
        let Some(Record { event, nothing, given }) = &mut self.open else { return gave };
        if event.m.is_empty() && event.t.is_empty() && nothing.is_empty() {
            return gave;
        }
        // Should the record go on after all, what follows is of the same step.
        let rest = Event { ts: event.ts, step: event.step, ..Event::new(event.kind) };
        let event = core::mem::replace(event, rest);
        self.last_step = event.step;
        nothing.drain(..).for_each(|name| out.nothing(&name, Nothing::Null));
        out.record(event, core::mem::replace(given, true));
        true
    }

    /// The record is over.
    fn close(&mut self, out: &mut Out<'_>) -> bool {
        let gave = self.give(out);
        (self.open, self.section) = (None, Section::None);
        gave
    }
}

/// `========================= Step 3/100 =========================`, and of an epoch.
fn header(text: &str) -> Option<(&str, i64, i64)> {
    let inner = text.strip_prefix(RULE)?.strip_suffix(RULE)?.trim_matches('=').trim();
    let (what, rest) = inner.split_once(' ').filter(|(what, _)| matches!(*what, "Step" | "Epoch"))?;
    let (n, rest) = number::integer(rest)?;
    let (of, rest) = number::integer(rest.strip_prefix('/')?)?;
    (rest.is_empty() && n >= 1 && (n..=MAX_STEPS).contains(&of)).then_some((what, n, of))
}

/// `📊 Training Results:`, with which a section begins.
fn section(text: &str) -> Option<Section> {
    let title = text.trim_start_matches(|c: char| !c.is_ascii());
    if title.len() == text.len() {
        return None;
    }
    let title = title.trim_start();
    Some(match title {
        "Training Results:" => Section::Results,
        "Timing:" => Section::Timing,
        "Performance Metrics:" => Section::Performance,
        _ if title.starts_with("Validation Results") => Section::Validation,
        _ if title.starts_with("Validation Timing") => Section::None,
        _ => return None,
    })
}

/// Our name for a value, and its divisor; or its own.
fn named(key: &str) -> (String, f64) {
    if let Some((name, divisor)) = tags::canonical(key) {
        return (name.to_owned(), divisor);
    }
    let own = key.to_ascii_lowercase().replace(' ', "_");
    (if is_policy_loss(&own) { metric::LOSS.to_owned() } else { own }, 1.0)
}
