//! Composer and LLM Foundry: a record of several lines, `[batch=1/100]:` and then `Train
//! loss/train/total: 10.9736`, …; evaluations `[Eval batch=10/10] Eval on eval data:` and then
//! `Eval metrics/eval/LanguageCrossEntropy: 2.3`.
//!
//! Nothing marks the end of a record: it is published when something else is printed, or when the
//! log rests. A run whose length is given in tokens or samples numbers its records by them, and its
//! steps are taken from `time/batch`, or counted.

#[cfg(test)]
mod tests;

use stepwatch_wire::Event;
use stepwatch_wire::names::metric;

use crate::absent::{self, Nothing};
use crate::format::{Format, Line, Out, Outcome};
use crate::pause::Evaluation;
use crate::tokens::TokenCounter;
use crate::{number, tags};

#[derive(Debug, Default)]
pub(crate) struct Composer {
    last_step: Option<i64>,
    open: Option<Record>,
    /// The epoch that is being trained, the steps of all before it, and its own so far.
    epoch: Option<(i64, i64, i64)>,
    /// Tokens or samples at the record before.
    position: Option<i64>,
    tokens: TokenCounter,
    pause: Evaluation,
}

/// A record whose lines are being read.
#[derive(Debug)]
struct Record {
    event: Event,
    /// What its lines begin with.
    prefix: &'static str,
    /// Its step is not in the log but counted.
    counted: bool,
    /// It was published already: then only what came after is published.
    given: bool,
    /// Names whose value is `None`.
    nothing: Vec<&'static str>,
}

impl Record {
    fn new(event: Event, prefix: &'static str, counted: bool) -> Self {
        Self { event, prefix, counted, given: false, nothing: Vec::new() }
    }
}

/// The position of a record, from its header.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Step(i64),
    /// The batch of an epoch, which has so many if that is known.
    Epoch {
        epoch: i64,
        batch: i64,
        batches: Option<i64>,
    },
    /// Tokens or samples so far.
    Position(i64),
}

impl Format for Composer {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if let Some(outcome) = self.header(line, out) {
            return outcome;
        }
        if let Some(record) = &mut self.open {
            if let Some((key, value)) =
                line.text.strip_prefix(record.prefix).and_then(|t| t.rsplit_once(": "))
            {
                value_of(record, key.trim(), value, out);
                return Outcome::Matched;
            }
        }
        if !self.close(out) {
            return Outcome::Unmatched;
        }
        out.only_ends();
        Outcome::Matched
    }

    fn resume(&mut self, last_step: i64) {
        self.last_step = Some(last_step);
    }

    fn rest(&mut self, out: &mut Out<'_>) {
        let again = self.open.as_ref().map(|r| {
            let e = &r.event;
            let event = Event { ts: e.ts, step: e.step, name: e.name.clone(), ..Event::new(e.kind) };
            Record { given: true, ..Record::new(event, r.prefix, false) }
        });
        self.close(out);
        // Should the record go on after all, what follows is of the same step.
        self.open = again.map(|mut r| {
            r.event.step = self.last_step.or(r.event.step);
            r
        });
    }
}

impl Composer {
    fn header(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Option<Outcome> {
        if let Some((name, data)) = evaluation(line.text) {
            let gave = self.close(out);
            if data {
                self.pause.end(self.last_step, line, out);
                let event = line.eval(self.last_step, name);
                self.open = Some(Record::new(event, "Eval ", false));
            } else {
                self.pause.begin(self.last_step, line, out);
            }
            return Some(if gave { Outcome::Matched } else { Outcome::Ignored });
        }
        let place = training(line.text)?;
        let gave = self.close(out);
        let (step, counted) = self.step(place);
        self.pause.step(self.last_step, step, line, out);
        self.open = Some(Record::new(line.step(step), "Train ", counted));
        Some(if gave { Outcome::Matched } else { Outcome::Ignored })
    }

    /// The step of a record, and whether it is only counted.
    fn step(&mut self, place: Place) -> (i64, bool) {
        match place {
            Place::Step(step) => (step, false),
            Place::Epoch { epoch, batch, batches } => {
                let before = match (self.epoch, batches) {
                    (_, Some(batches)) => batches.saturating_mul(epoch - 1),
                    (Some((e, before, _)), None) if e == epoch => before,
                    (Some((e, before, reached)), None) if e < epoch => before + reached,
                    _ => 0,
                };
                self.epoch = Some((epoch, before, batch));
                (before + batch, false)
            }
            Place::Position(position) => {
                // A smaller one is an earlier checkpoint.
                let restarted = self.position.is_some_and(|p| position < p);
                self.position = Some(position);
                let last = self.last_step.filter(|_| !restarted).unwrap_or(0);
                (last + 1, true)
            }
        }
    }

    /// Publishes the record that was being read; false if there was none.
    fn close(&mut self, out: &mut Out<'_>) -> bool {
        let Some(Record { event: mut e, given, prefix, nothing, .. }) = self.open.take() else {
            return false;
        };
        if e.m.is_empty() && (given || prefix == "Eval ") {
            return false;
        }
        if prefix == "Train " {
            self.last_step = e.step;
            let counted = e.step.zip(e.m.get("time/token"));
            if let Some(tokens) = counted.and_then(|(step, now)| self.tokens.of_step(step, now)) {
                e.m.set(metric::TOKENS, tokens);
            }
        }
        nothing.iter().for_each(|name| out.nothing(name, Nothing::Null));
        out.record(e, given);
        true
    }
}

/// Reads one line of a record into it.
fn value_of(record: &mut Record, key: &str, value: &str, out: &mut Out<'_>) {
    let e = &mut record.event;
    if record.prefix == "Eval " {
        // `metrics/eval/LanguageCrossEntropy`, `metrics/c4/LanguageCrossEntropy`.
        let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
        let loss = name == "LanguageCrossEntropy" || name == "loss";
        if let Some(n) = number::lex(value) {
            out.value(e, if loss { metric::LOSS } else { name }, n.value);
        }
        return;
    }
    if key == "time/batch" && record.counted {
        // Batches that were done when this one began.
        if let Some((done, _)) = number::integer(value) {
            (e.step, record.counted) = (Some(done + 1), false);
        }
    }
    let tag = tags::canonical(key).filter(|(name, _)| e.m.get(name).is_none());
    if let Some((name, _)) = tag.filter(|_| absent::is_nothing(value)) {
        if !record.nothing.contains(&name) {
            record.nothing.push(name);
        }
        return;
    }
    let (name, divisor) = tag.unwrap_or((key, 1.0));
    out.metric(e, name, value, divisor);
}

/// `[Eval batch=5/100] Eval on eval data`, with a colon behind it if metrics follow: the name of
/// the data.
fn evaluation(text: &str) -> Option<(&str, bool)> {
    let (_, rest) = text.strip_prefix("[Eval batch=")?.split_once("] Eval on ")?;
    let data = rest.ends_with(':');
    Some((rest.trim_end_matches(':').trim_end_matches(" data"), data))
}

/// `[batch=1/100]:`, `[epoch=1][batch=3/100]:`, `[epoch=2][batch=3]:`, `[token=2097152/5000000]:`.
/// Without the colon nothing follows.
fn training(text: &str) -> Option<Place> {
    let inner = text.strip_suffix(':').unwrap_or(text).strip_prefix('[')?.strip_suffix(']')?;
    let (epoch, inner) = match inner.strip_prefix("epoch=").and_then(|t| t.split_once("][")) {
        Some((epoch, inner)) => (Some(number::integer(epoch).filter(|(_, r)| r.is_empty())?.0), inner),
        None => (None, inner),
    };
    let (unit, count) = inner.split_once('=')?;
    let (n, rest) = number::integer(count)?;
    let total = rest.strip_prefix('/').and_then(number::integer).map(|(t, _)| t);
    match (unit, epoch) {
        ("batch", Some(epoch)) => Some(Place::Epoch { epoch, batch: n, batches: total }),
        ("batch", None) => total.map(|_| Place::Step(n)),
        ("token" | "sample" | "second" | "iteration", None) => total.map(|_| Place::Position(n)),
        _ => None,
    }
}
