//! JSON lines: our own events, the files that trainers write beside their checkpoints, and any
//! object with a step in it.
//!
//! Numbers are lenient: bare `NaN` and `Infinity` as Python writes them. The meaning of the keys is
//! given by the configuration, or by a built-in map that recognises its framework by the keys it
//! always writes, or by the usual names. torchtitan's structured log, which has spans and not
//! steps, is put together in `titan.rs`.

mod maps;
#[cfg(test)]
mod tests;
mod titan;

use std::collections::BTreeMap;

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Value};

use crate::absent::Nothing;
use crate::format::{Format, Line, Out, Outcome};
use crate::own_loss::OwnLoss;
use crate::tokens::{TokenCounter, Tokens};
use crate::{number, time};
use maps::Found;
use titan::Titan;

/// Counters of all tokens so far.
const TOKEN_KEYS: &[&str] = &["total_tokens", "num_input_tokens_seen", "num_tokens", "optim/total_tokens"];

#[derive(Debug, Default)]
pub(crate) struct Jsonl {
    /// Theirs by ours, from the configuration; empty means to find out.
    keys: BTreeMap<String, String>,
    titan: Titan,
    own_loss: OwnLoss,
    counter: TokenCounter,
    tokens: Tokens,
    /// All tokens so far and seconds since the start, where a record has their mean.
    mean: Option<(f64, f64)>,
}

impl Jsonl {
    pub(crate) fn with_keys<'a>(keys: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        Self { keys: keys.map(|(k, v)| (k.to_owned(), v.to_owned())).collect(), ..Self::default() }
    }
}

impl Format for Jsonl {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let Some(record) = record(line.text) else { return Outcome::Unmatched };
        let line = &Line { text: record, ..*line };
        if self.keys.is_empty() && line.text.contains("\"k\"") {
            if let Ok(mut e) = Event::parse(line.text.as_bytes()) {
                e.ts = e.ts.or(line.ts);
                out.as_it_is(e);
                return Outcome::Matched;
            }
        }
        let Ok(v @ Value::Map(_)) = Value::parse(line.text.as_bytes()) else { return Outcome::Unmatched };
        if !self.keys.is_empty() {
            let Some(step) = self.configured(&v, line, out) else {
                return self.give(&v, Found::default(), line, out);
            };
            if step.m.is_empty() && !out.has_nothing(None) && self.knows_all(&v) {
                let outcome = out.bare(step.clone());
                if outcome != Outcome::Unmatched {
                    return outcome;
                }
            }
            let says = !step.m.is_empty() || step.ts.is_some() || out.has_nothing(Some(metric::LOSS));
            return self.give(&v, Found { step: says.then_some(step), ..Found::default() }, line, out);
        }
        if let Some(record) = titan::Record::from_value(&v) {
            return self.titan.read(&record, out);
        }
        let mut found = maps::found(&v, line, &mut self.own_loss, out);
        if found.progress {
            return Outcome::Ignored;
        }
        if let Some(bare) = found.bare.take() {
            return out.bare(bare);
        }
        self.give(&v, found, line, out)
    }

    fn pending_bytes(&self) -> usize {
        self.titan.pending_bytes()
    }

    fn give_up_pending(&mut self) {
        self.titan.give_up_pending();
    }
}

impl Jsonl {
    fn give(&mut self, v: &Value, found: Found, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let Found { step, eval, counts, .. } = found;
        let end = maps::finished(v, line);
        let matched = step.is_some() || eval.is_some() || end.is_some();
        if let Some(mut step) = step {
            if counts {
                self.tokens.settle(&mut step);
            }
            self.settle(v, &mut step);
            out.push(step);
        }
        // The time of an evaluation is none of the steps after it.
        self.mean = maps::since_start(v).or(self.mean);
        [eval, end].into_iter().flatten().for_each(|e| out.push(e));
        if matched { Outcome::Matched } else { Outcome::Unmatched }
    }

    /// A record whose keys the configuration gives.
    fn configured(&self, v: &Value, line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
        let step = integer(at(v, self.keys.get("step")?)?)?;
        let mut e = line.step(step);
        for (ours, theirs) in &self.keys {
            let Some(value) = at(v, theirs) else { continue };
            match ours.as_str() {
                "step" => {}
                "ts" => e.ts = instant(value, line).or(e.ts),
                "run" => e.run = value.as_str().map(str::to_owned),
                "rank" => e.rank = integer(value).and_then(|n| u32::try_from(n).ok()),
                name => match value.as_f64() {
                    Some(n) => {
                        out.resolution(name, n);
                        out.value(&mut e, name, n);
                    }
                    None if *value == Value::Null => out.nothing(name, Nothing::Certain),
                    None => {}
                },
            }
        }
        Some(e)
    }

    /// Whether a record has only keys that the configuration gives.
    fn knows_all(&self, v: &Value) -> bool {
        let Value::Map(top) = v else { return false };
        let configured =
            |key: &String| self.keys.values().any(|path| path == key || path.split('.').next() == Some(key));
        top.keys().all(configured)
    }

    /// What depends on the records before: tokens of one step, and per second.
    fn settle(&mut self, v: &Value, e: &mut Event) {
        let counted = TOKEN_KEYS.iter().find_map(|k| v.get(k)?.as_f64()).filter(|n| n.is_finite());
        if let (Some(now), Some(step)) = (counted, e.step) {
            let tokens = self.counter.of_step(step, now).filter(|_| e.m.get(metric::TOKENS).is_none());
            if let Some(tokens) = tokens {
                e.m.set(metric::TOKENS, tokens);
            }
        }
        if let Some(now) = maps::since_start(v) {
            self.rate(now, e);
        }
    }

    /// LLaMA-Factory logs the mean since its process started, in which a slow hour of a long run
    /// does not show. The tokens so far divided by it are the time, and two records give the rate
    /// between them. The first of a process keeps its own.
    fn rate(&self, (tokens, at): (f64, f64), e: &mut Event) {
        match self.mean {
            None => {}
            Some((before, then)) if tokens > before && at > then => {
                e.m.set(metric::TOKENS_PER_SECOND, (tokens - before) / (at - then));
            }
            Some(_) => {
                e.m.remove(metric::TOKENS_PER_SECOND);
            }
        }
    }
}

/// Bytes that a logger may put before a record.
const MAX_PREFIX: usize = 160;

/// The object that a line is, or that it ends with behind what a logger put before it:
/// `INFO:metrics:{"step": 5, …}`.
fn record(text: &str) -> Option<&str> {
    let at = text.find('{').filter(|at| *at <= MAX_PREFIX)?;
    let record = &text[at..];
    // A dict of Python has single quotes, and follows a bar.
    let json = at == 0 || record.starts_with("{\"") && record.ends_with('}') && !text[..at].contains('|');
    json.then_some(record)
}

/// The value at a key, or at a dotted path of keys. A key that has the dots itself is found first.
fn at<'v>(v: &'v Value, path: &str) -> Option<&'v Value> {
    if let Some(found) = v.get(path) {
        return Some(found);
    }
    path.match_indices('.').find_map(|(i, _)| at(v.get(&path[..i])?, &path[i + 1..]))
}

fn integer(v: &Value) -> Option<i64> {
    match v {
        Value::Number(n) => number::whole(*n),
        Value::Text(t) => {
            number::integer(t).filter(|(_, rest)| rest.is_empty() || rest.starts_with('/')).map(|(n, _)| n)
        }
        _ => None,
    }
}

/// Unix seconds or finer, or an ISO 8601 text.
fn instant(v: &Value, line: &Line<'_>) -> Option<f64> {
    match v {
        Value::Number(n) => time::epoch(*n),
        Value::Text(t) => time::lead(t).map(|(stamp, _)| line.unix(stamp)),
        _ => None,
    }
}
