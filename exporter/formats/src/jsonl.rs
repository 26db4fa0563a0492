//! JSON lines: our own events, the files that trainers write beside their checkpoints, and any object with a step in it.
//!
//! Numbers are lenient: bare `NaN` and `Infinity` as Python writes them. Which key is what is told by the configuration, or by a
//! built-in map that recognises its framework by the keys it always writes, or by the usual names.

use std::collections::BTreeMap;

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind, Value};

use crate::format::{Format, Line, Out, Outcome};
use crate::{number, tags, time};

/// Keys of one framework's records.
struct Map {
    /// It is this framework's record if all of these are there.
    when: &'static [&'static str],
    /// Our metric and its divisor, where their key means something else than usual.
    keys: &'static [(&'static str, &'static str, f64)],
    /// Object that holds the metrics.
    inside: Option<&'static str>,
}

const MAPS: &[Map] = &[
    // LLaMA-Factory trainer_log.jsonl
    Map {
        when: &["current_steps", "total_steps"],
        keys: &[("throughput", metric::TOKENS_PER_SECOND, 1.0)],
        inside: None,
    },
    // ms-swift logging.jsonl
    Map { when: &["global_step/max_steps"], keys: &[], inside: None },
    // NeMo Automodel training.jsonl prints MFU in percent
    Map {
        when: &["step", "timestamp", "tps", "tps_per_gpu"],
        keys: &[("mfu", metric::MFU_REPORTED, 100.0)],
        inside: None,
    },
    // verl's file logger
    Map { when: &["step", "data"], keys: &[], inside: Some("data") },
    // levanter's json_logger
    Map { when: &["tracker", "step", "metrics"], keys: &[], inside: Some("metrics") },
];

const STEP_KEYS: &[&str] = &[
    "current_steps",
    "global_step/max_steps",
    "step",
    "global_step",
    "_step",
    "iteration",
    "iter",
    "train/global_step",
];
const TOTAL_KEYS: &[&str] = &["total_steps", "max_steps"];
const TIME_KEYS: &[&str] = &["timestamp", "ts", "_timestamp", "time", "created_at"];
/// Counters of all tokens so far.
const TOKEN_KEYS: &[&str] = &["total_tokens", "num_input_tokens_seen", "num_tokens"];

#[derive(Debug, Default)]
pub(crate) struct Jsonl {
    /// Theirs by ours, from the configuration; empty means to find out.
    keys: BTreeMap<String, String>,
    tokens: Option<(i64, f64)>,
    /// The loss was there before: its absence means something.
    has_loss: bool,
    /// Steps in a row whose record had everything that the configuration tells of.
    whole: u32,
}

/// After so many whole records, one that lacks the loss alone is a loss that could not be written. A file that logs the loss
/// every few steps never comes that far.
const WHOLE: u32 = 20;

impl Jsonl {
    pub(crate) fn with_keys<'a>(keys: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        Self { keys: keys.map(|(k, v)| (k.to_owned(), v.to_owned())).collect(), ..Self::default() }
    }
}

impl Format for Jsonl {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if !line.text.starts_with('{') {
            return Outcome::Unmatched;
        }
        if self.keys.is_empty() && line.text.contains("\"k\"") {
            if let Ok(mut e) = Event::parse(line.text.as_bytes()) {
                e.ts = e.ts.or(line.ts);
                out.push(e);
                return Outcome::Matched;
            }
        }
        let Ok(v @ Value::Map(_)) = Value::parse(line.text.as_bytes()) else { return Outcome::Unmatched };
        let event = if self.keys.is_empty() { found(&v, line, out) } else { self.told(&v, line, out) };
        let end = finished(&v, line);
        let outcome = if event.is_some() || end.is_some() { Outcome::Matched } else { Outcome::Unmatched };
        if let Some(mut event) = event {
            self.settle(&v, &mut event);
            out.push(event);
        }
        if let Some(end) = end {
            out.push(end);
        }
        outcome
    }
}

impl Jsonl {
    /// A record whose keys the configuration tells.
    fn told(&self, v: &Value, line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
        let step = integer(at(v, self.keys.get("step")?)?)?;
        let mut e = Event { step: Some(step), ts: line.ts, ..Event::new(Kind::Step) };
        for (ours, theirs) in &self.keys {
            let Some(value) = at(v, theirs) else { continue };
            match ours.as_str() {
                "step" => {}
                "ts" => e.ts = instant(value, line).or(e.ts),
                "run" => e.run = value.as_str().map(str::to_owned),
                "rank" => e.rank = integer(value).and_then(|n| u32::try_from(n).ok()),
                name => {
                    if let Some(n) = value.as_f64() {
                        out.resolution(name, n);
                        out.value(&mut e, name, n);
                    }
                }
            }
        }
        (!e.m.is_empty() || e.ts.is_some()).then_some(e)
    }

    /// What depends on the records before: an absent loss, and tokens of one step.
    fn settle(&mut self, v: &Value, e: &mut Event) {
        let had_loss = self.has_loss;
        self.has_loss |= e.kind == Kind::Step && e.m.get(metric::LOSS).is_some();
        if e.kind != Kind::Step {
            return;
        }
        self.absent(v, e);
        // Strict writers turn NaN into null.
        let null = at(v, self.keys.get(metric::LOSS).map_or("loss", String::as_str)) == Some(&Value::Null);
        if null && had_loss && e.missing.is_empty() && e.m.get(metric::LOSS).is_none() {
            e.missing.push(metric::LOSS.to_owned());
        }
        let counted = TOKEN_KEYS.iter().find_map(|k| v.get(k)?.as_f64()).filter(|n| n.is_finite());
        if let (Some(now), Some(step)) = (counted, e.step) {
            if let Some((before, then)) = self.tokens.filter(|(s, n)| *s < step && *n < now) {
                if e.m.get(metric::TOKENS).is_none() {
                    e.m.set(metric::TOKENS, (now - then) / (step - before) as f64);
                }
            }
            self.tokens = Some((step, now));
        }
    }
}

impl Jsonl {
    /// Notices a loss that the configuration tells of, that every record had so far, and that this one alone lacks.
    fn absent(&mut self, v: &Value, e: &mut Event) {
        let Some(loss) = self.keys.get(metric::LOSS) else { return };
        let others = self.keys.values().filter(|key| *key != loss).all(|key| at(v, key).is_some());
        let has_loss = at(v, loss).is_some();
        if others && !has_loss && self.whole >= WHOLE {
            e.missing.push(metric::LOSS.to_owned());
        } else {
            self.whole = if others && has_loss { self.whole.saturating_add(1) } else { 0 };
        }
    }
}

/// A record of a framework we know, or with the usual names.
fn found(v: &Value, line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let Value::Map(top) = v else { return None };
    let step = STEP_KEYS.iter().find_map(|k| integer(top.get(*k)?))?;
    let map = MAPS.iter().find(|m| m.when.iter().all(|k| top.contains_key(*k)));
    let inside =
        map.and_then(|m| top.get(m.inside?)).or_else(|| top.get("metrics")).or_else(|| top.get("data"));
    let numbers = match inside {
        Some(Value::Map(inner)) => inner,
        _ => top,
    };
    let eval = is_eval(numbers);
    let mut e =
        Event { step: Some(step), ts: line.ts, ..Event::new(if eval { Kind::Eval } else { Kind::Step }) };
    e.ts = TIME_KEYS.iter().find_map(|k| instant(top.get(*k)?, line)).or(e.ts);
    e.rank = top.get("rank").and_then(integer).and_then(|n| u32::try_from(n).ok());
    if eval {
        e.name = Some("eval".to_owned());
    }
    for (key, value) in numbers {
        if reserved(key) {
            continue;
        }
        match value {
            Value::Number(n) => set(key, *n, map, eval, &mut e, out),
            // Only text that spells no finite number is one: `"NaN"`, but not an identifier of digits.
            Value::Text(t) => {
                if let Some(n) = stepwatch_wire::num::parse(t).filter(|n| !n.is_finite() || t.contains('.')) {
                    set(key, n, map, eval, &mut e, out);
                }
            }
            _ => {}
        }
    }
    let known = eval || [metric::LOSS, metric::GRAD_NORM, metric::LR].iter().any(|m| e.m.get(m).is_some());
    let null_loss = numbers.get("loss") == Some(&Value::Null);
    (known || null_loss).then_some(e)
}

/// LLaMA-Factory and ms-swift tell how many steps there are; a record of the last is the end of the run.
fn finished(v: &Value, line: &Line<'_>) -> Option<Event> {
    let both = v.get("global_step/max_steps").and_then(Value::as_str).and_then(|t| t.split_once('/'));
    let (step, total) = match both {
        Some((step, total)) => (number::integer(step)?.0, number::integer(total)?.0),
        None => (integer(v.get("current_steps")?)?, integer(v.get("total_steps")?)?),
    };
    let bye = Event { step: Some(step), ts: line.ts, code: Some(0), ..Event::new(Kind::Bye) };
    (total > 0 && step >= total).then_some(bye)
}

/// A record of an evaluation carries no loss of training.
fn is_eval(numbers: &BTreeMap<String, Value>) -> bool {
    let has = |name: &str| numbers.contains_key(name);
    let eval = ["eval_loss", "eval/loss", "val_loss", "val/loss", "validation_loss"].iter().any(|k| has(k));
    eval && !has("loss") && !has("train/loss")
}

fn reserved(key: &str) -> bool {
    STEP_KEYS.contains(&key)
        || TOTAL_KEYS.contains(&key)
        || TIME_KEYS.contains(&key)
        || key == "rank"
        || tags::other_axis(key)
}

fn set(key: &str, n: f64, map: Option<&Map>, eval: bool, e: &mut Event, out: &mut Out<'_>) {
    if eval {
        let bare = ["eval_", "eval/", "val_", "val/", "validation_"].iter().find_map(|p| key.strip_prefix(p));
        out.value(e, bare.unwrap_or(key), n);
        return;
    }
    let special =
        map.and_then(|m| m.keys.iter().find(|(k, ..)| *k == key)).map(|(_, name, divisor)| (*name, *divisor));
    let (name, divisor) = special.or_else(|| tags::canonical(key)).unwrap_or((key, 1.0));
    // Where two keys mean the same metric, the first stands.
    let name = if name != key && e.m.get(name).is_some() { key } else { name };
    let divisor = if name == key && special.is_none() { 1.0 } else { divisor };
    out.resolution(name, n / divisor);
    out.value(e, name, n / divisor);
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

/// Unix seconds (milli-, micro- and nanoseconds are told by their size), or an ISO 8601 text.
fn instant(v: &Value, line: &Line<'_>) -> Option<f64> {
    match v {
        Value::Number(n) => {
            let n = [1.0, 1e3, 1e6, 1e9].iter().map(|d| n / d).find(|s| *s < 1e11)?;
            (n > 1e8).then_some(n)
        }
        Value::Text(t) => time::lead(t).map(|(stamp, _)| line.unix(stamp)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reader;

    fn read(lines: &[&str]) -> Vec<Event> {
        with(Reader::new(Some("jsonl")).unwrap(), lines)
    }

    fn with(mut r: Reader, lines: &[&str]) -> Vec<Event> {
        let mut out = Vec::new();
        for l in lines {
            r.line(l, &mut out);
        }
        out
    }

    #[test]
    fn our_own_events() {
        let e = read(&[
            r#"{"v":1,"k":"step","ts":5.5,"run":"r","rank":3,"step":7,"m":{"loss":NaN}}"#,
            r#"{"k":"bye","code":1}"#,
        ]);
        assert_eq!(
            (e[0].step, e[0].rank, e[0].run.as_deref(), e[0].ts),
            (Some(7), Some(3), Some("r"), Some(5.5))
        );
        assert!(e[0].m.get("loss").unwrap().is_nan());
        assert_eq!((e[1].kind, e[1].code), (Kind::Bye, Some(1)));
    }

    #[test]
    fn llama_factory() {
        let e = read(&[
            r#"{"current_steps":5,"total_steps":10,"loss":1.58,"lr":1e-05,"epoch":0.05,"percentage":50.0,"elapsed_time":"0:00:10","throughput":1500.5,"total_tokens":1000}"#,
            r#"{"current_steps":5,"total_steps":10,"eval_loss":1.25,"epoch":0.05}"#,
            r#"{"current_steps":10,"total_steps":10,"loss":1.5,"lr":0.0,"epoch":0.1,"total_tokens":3000}"#,
        ]);
        assert_eq!((e[0].step, e[0].m.get("loss"), e[0].m.get("lr")), (Some(5), Some(1.58), Some(1e-5)));
        assert_eq!(e[0].m.get("tokens_per_second"), Some(1500.5));
        assert_eq!((e[1].kind, e[1].m.get("loss")), (Kind::Eval, Some(1.25)));
        assert_eq!(e[2].m.get("tokens"), Some(400.0));
        assert_eq!((e[3].kind, e[3].step), (Kind::Bye, Some(10)));
        let e = read(&[r#"{"train_runtime":5.5,"global_step/max_steps":"94/94"}"#]);
        assert_eq!((e.len(), e[0].kind), (1, Kind::Bye));
    }

    #[test]
    fn ms_swift_verl_and_levanter() {
        let e = read(&[
            r#"{"loss":1.47,"grad_norm":10.5,"learning_rate":2e-06,"token_acc":0.65,"global_step/max_steps":"1/94","elapsed_time":"2s"}"#,
            r#"{"step":3,"data":{"actor/pg_loss":-0.005,"actor/grad_norm":1.992,"actor/lr":1e-6,"perf/total_num_tokens":500,"perf/mfu/actor":0.31,"timing_s/step":62.5,"perf/throughput":811.5}}"#,
            r#"{"tracker":"json_logger","event":"log","step":4,"metrics":{"train/loss":2.25,"grad/norm/total":0.5,"throughput/duration":1.25}}"#,
        ]);
        assert_eq!((e[0].step, e[0].m.get("lr"), e[0].m.get("token_acc")), (Some(1), Some(2e-6), Some(0.65)));
        let m = &e[1].m;
        assert_eq!(
            (e[1].step, m.get("loss"), m.get("grad_norm"), m.get("tokens")),
            (Some(3), Some(-0.005), Some(1.992), Some(500.0))
        );
        assert_eq!(
            (m.get("mfu_reported"), m.get("step_time"), m.get("tokens_per_second_per_gpu")),
            (Some(0.31), Some(62.5), Some(811.5))
        );
        let m = &e[2].m;
        assert_eq!(
            (m.get("loss"), m.get("grad_norm"), m.get("step_time")),
            (Some(2.25), Some(0.5), Some(1.25))
        );
    }

    #[test]
    fn keys_of_the_configuration() {
        let keys =
            [("step", "it"), ("loss", "train.losses.lm"), ("ts", "when"), ("rank", "r"), ("lr", "a.b")];
        let e = with(
            Reader::with_keys(keys),
            &[
                r#"{"it":7,"train":{"losses":{"lm":2.5,"aux":1.0}},"when":1795227416980,"r":3,"a.b":0.1}"#,
                r#"{"it":8,"train":{"losses":{"lm":null}}, "when":"2026-04-01T16:06:12.572Z"}"#,
                r#"{"train":{"losses":{"lm":2.5}}}"#,
            ],
        );
        assert_eq!(e.len(), 2);
        assert_eq!((e[0].step, e[0].rank, e[0].ts), (Some(7), Some(3), Some(1795227416.98)));
        assert_eq!(e[0].m.iter().collect::<Vec<_>>(), [("loss", 2.5), ("lr", 0.1)]);
        assert_eq!((e[1].ts, &e[1].missing), (Some(1775059572.572), &vec!["loss".to_owned()]));
    }

    #[test]
    fn a_loss_that_every_record_had_is_missed() {
        let keys = || Reader::with_keys([("step", "it"), ("loss", "l"), ("lr", "lr")]);
        let whole = |n: u32| format!(r#"{{"it":{n},"l":2.5,"lr":0.1}}"#);
        let without = |n: u32| format!(r#"{{"it":{n},"lr":0.1}}"#);
        let read = |lines: Vec<String>| {
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let missing = with(keys(), &lines).into_iter().filter(|e| e.missing == ["loss"]);
            missing.map(|e| e.step.unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(read((1..=20).map(whole).chain([without(21), without(22)]).collect()), [21, 22]);
        assert_eq!(read((1..=19).map(whole).chain([without(20)]).collect()), [0; 0], "too early to tell");
        let other = r#"{"it":21,"note":1}"#.to_owned();
        assert_eq!(read((1..=20).map(whole).chain([other]).collect()), [0; 0], "a record of something else");
        let every_tenth = |n| if n % 10 == 0 { whole(n) } else { without(n) };
        assert_eq!(read((1..=200).map(every_tenth).collect()), [0; 0]);
    }

    #[test]
    fn plain_records() {
        let e = read(&[r#"{"_step": 5, "train/loss": Infinity, "grad_norm": "NaN", "job": "123"}"#]);
        assert_eq!((e[0].step, e[0].m.get("loss")), (Some(5), Some(f64::INFINITY)));
        assert!(e[0].m.get("grad_norm").unwrap().is_nan() && e[0].m.get("job").is_none());
        for text in [
            r#"{"step":1}"#,
            r#"{"loss":1}"#,
            r#"{"step":1.5,"loss":1}"#,
            "{",
            "[1]",
            r#"{"step":1,"loss":"low"}"#,
            r#"{"k":"nope"}"#,
        ] {
            assert!(read(&[text]).is_empty(), "{text}");
        }
    }
}
