//! Records of the frameworks that write JSON lines, and of those with the usual names.

use std::borrow::Cow;
use std::collections::BTreeMap;

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind, Value};

use super::{instant, integer};
use crate::absent::Nothing;
use crate::format::{Line, Out};
use crate::own_loss::OwnLoss;
use crate::{number, tags, word_meaning};

/// Keys of one framework's records.
struct Map {
    /// It is this framework's record if all of these are there.
    when: &'static [&'static str],
    /// Our metric and its divisor, where their key means something else than usual.
    keys: &'static [(&'static str, &'static str, f64)],
    /// Object that holds the metrics.
    inside: Option<&'static str>,
}

/// LLaMA-Factory's tokens per second since the start.
pub(super) const MEAN_THROUGHPUT: &str = "throughput";

const MAPS: &[Map] = &[
    // LLaMA-Factory's trainer_log.jsonl.
    Map {
        when: &["current_steps", "total_steps"],
        keys: &[(MEAN_THROUGHPUT, metric::TOKENS_PER_SECOND, 1.0)],
        inside: None,
    },
    // ms-swift's logging.jsonl. Its `train_speed(s/it)` is the mean since the start and no step
    // time.
    Map { when: &["global_step/max_steps"], keys: &[], inside: None },
    // NeMo Automodel's training.jsonl: MFU in percent, tokens of the whole job.
    Map {
        when: &["step", "timestamp", "tps", "tps_per_gpu"],
        keys: &[("mfu", metric::MFU_REPORTED, 100.0), ("tps", metric::TOKENS_PER_SECOND, 1.0)],
        inside: None,
    },
    // fairseq: words per second of the whole job.
    Map { when: &["wps", "ups"], keys: &[("wps", metric::TOKENS_PER_SECOND, 1.0)], inside: None },
    Map { when: &["wps", "wpb"], keys: &[("wps", metric::TOKENS_PER_SECOND, 1.0)], inside: None },
    // verl's file logger.
    Map { when: &["step", "data"], keys: &[], inside: Some("data") },
    // levanter's json_logger: MFU in percent.
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
    // fairseq's, and those of its evaluations.
    "num_updates",
    "valid_num_updates",
];
const TOTAL_KEYS: &[&str] = &["total_steps", "max_steps"];
const TIME_KEYS: &[&str] = &["timestamp", "ts", "_timestamp", "time", "created_at"];
/// What the whole is called in an object of a metric and its parts.
const TOTALS: &[&str] = &["total", "all", "global", "mean", "value"];
/// Beginnings of the keys of an evaluation.
const EVAL_PREFIXES: &[&str] =
    &["eval_", "eval/", "val_", "val/", "val-", "valid_", "validation_", "validation/"];
/// MaxText writes its running averages during an evaluation as steps of their own, and this key
/// only then.
const RUNNING_EVAL: &str = "eval/step_time_seconds";

/// What a record contains.
#[derive(Default)]
pub(super) struct Found {
    pub(super) step: Option<Event>,
    pub(super) eval: Option<Event>,
    /// The tokens of the step may be those of all so far.
    pub(super) counts: bool,
    /// It has a step and nothing else.
    pub(super) bare: Option<Event>,
    /// It is of one batch of an evaluation, and has no result.
    pub(super) progress: bool,
}

/// A record of a known framework, or with the usual names.
pub(super) fn found(v: &Value, line: &Line<'_>, own: &mut OwnLoss, out: &mut Out<'_>) -> Found {
    let Value::Map(top) = v else { return Found::default() };
    let Some(step) = STEP_KEYS.iter().find_map(|k| integer(top.get(*k)?)) else { return Found::default() };
    let map = MAPS.iter().find(|m| m.when.iter().all(|k| top.contains_key(*k)));
    let inside =
        map.and_then(|m| top.get(m.inside?)).or_else(|| top.get("metrics")).or_else(|| top.get("data"));
    let numbers = match inside {
        Some(Value::Map(inner)) => inner,
        _ => top,
    };
    // verl writes every value of a step, so that `null` is one that is not finite.
    let is_whole = matches!(top.get("data"), Some(Value::Map(data)) if core::ptr::eq(data, numbers));
    let numbers = &*with_totals(numbers);
    let usual = numbers.contains_key("loss") || numbers.keys().any(|k| means(k, metric::LOSS));
    let number_of = |name| numbers.iter().any(|(k, v)| means(k, name) && number(v).is_some());
    if numbers.contains_key(RUNNING_EVAL) && !usual {
        return Found { progress: true, ..Found::default() };
    }
    let evaluates = numbers.iter().any(|(k, v)| of_evaluation(k).is_some() && *v != Value::Null);
    // Who writes every field into every record has no loss where it evaluates.
    let core_metrics = [metric::LOSS, metric::GRAD_NORM, metric::LR];
    let with_core = !evaluates || core_metrics.into_iter().any(number_of);
    if !evaluates {
        own.moves(step);
    }
    if usual && number_of(metric::LOSS) {
        own.saw_usual();
    }
    let own = if usual || !with_core { None } else { own_loss(numbers, own) };
    let trains = own.is_some() || usual && with_core;
    let event = |kind| {
        let mut e = line.event(kind, Some(step));
        e.ts = TIME_KEYS.iter().find_map(|k| instant(top.get(*k)?, line)).or(e.ts);
        e.rank = top.get("rank").and_then(integer).and_then(|n| u32::try_from(n).ok());
        e
    };
    let eval = evaluates.then(|| evaluation(numbers, trains, event(Kind::Eval), out));
    if evaluates && !trains {
        return Found { eval: eval.filter(|e| !e.m.is_empty()), ..Found::default() };
    }
    let eval = eval.filter(|e| e.m.get(metric::LOSS).is_some());
    nothings(numbers, own, if is_whole { Nothing::Certain } else { Nothing::Null }, out);
    let step = training(numbers, own, map, eval.is_some(), event(Kind::Step), out);
    if top.keys().all(|k| reserved(k) || means(k, metric::EPOCH)) {
        return Found { bare: Some(step), ..Found::default() };
    }
    let known = core_metrics.iter().any(|m| step.m.get(m).is_some());
    let null = |(key, v): (&String, &Value)| {
        *v == Value::Null && (own == Some(key) || means(key, metric::LOSS) || means(key, metric::GRAD_NORM))
    };
    // A schedule of its own has one number.
    let lacks = step.m.len() >= 2 && out.has_lost(&step);
    let is_step = known || lacks || numbers.iter().any(null);
    let tokens = numbers.keys().find(|key| key.contains("oken") && means(key, metric::TOKENS));
    let counts = tokens.is_some_and(|key| tags::may_count_all(key));
    Found { step: is_step.then_some(step), eval, counts, ..Found::default() }
}

/// The numbers with the total of each metric that is an object: `"grad_norm": {"total": 1.2}`.
fn with_totals(numbers: &BTreeMap<String, Value>) -> Cow<'_, BTreeMap<String, Value>> {
    let total = |key: &String, v: &Value| {
        let Value::Map(inner) = v else { return None };
        tags::canonical(key)?;
        let mut parts = inner.iter().filter(|(part, _)| !word_meaning::evaluates(part));
        let one = parts.next().filter(|_| inner.len() == 1).map(|(_, v)| v);
        let found = TOTALS.iter().find_map(|name| inner.get(*name)).or(one)?;
        (number(found).is_some() || *found == Value::Null).then(|| found.clone())
    };
    let totals: Vec<_> = numbers.iter().filter_map(|(key, v)| Some((key.clone(), total(key, v)?))).collect();
    if totals.is_empty() {
        return Cow::Borrowed(numbers);
    }
    let mut all = numbers.clone();
    all.extend(totals);
    Cow::Owned(all)
}

/// The key that stands for the loss. Where it is null, it still does.
fn own_loss<'k>(numbers: &'k BTreeMap<String, Value>, own: &mut OwnLoss) -> Option<&'k str> {
    let stands = |(key, v): &(&String, &Value)| {
        let value = number(v).is_some() || **v == Value::Null && own.is(key);
        value && !reserved(key) && of_evaluation(key).is_none()
    };
    let names: Vec<&str> = numbers.iter().filter(stands).map(|(key, _)| key.as_str()).collect();
    own.find(names.into_iter())
}

/// Our metric for a key, of which one may stand for the loss.
fn ours(key: &str, own: Option<&str>) -> Option<tags::Tag> {
    if own == Some(key) { Some((metric::LOSS, 1.0)) } else { tags::canonical(key) }
}

/// What a record has no value of.
fn nothings(numbers: &BTreeMap<String, Value>, own: Option<&str>, how: Nothing, out: &mut Out<'_>) {
    for (key, _) in numbers.iter().filter(|(k, v)| **v == Value::Null && !reserved(k)) {
        out.nothing(ours(key, own).map_or(key, |(name, _)| name), how);
    }
}

/// The training in a record, without what is logged as an evaluation beside it.
fn training(
    numbers: &BTreeMap<String, Value>,
    own: Option<&str>,
    map: Option<&Map>,
    evaluated: bool,
    mut e: Event,
    out: &mut Out<'_>,
) -> Event {
    for (key, n) in numbers.iter().filter(|(k, _)| !reserved(k)).filter_map(|(k, v)| Some((k, number(v)?))) {
        if let Some(part) = tags::part(key) {
            e.t.set(part, n);
            continue;
        }
        if evaluated && of_evaluation(key).is_some() {
            continue;
        }
        let special = map
            .and_then(|m| m.keys.iter().find(|(k, ..)| *k == key))
            .map(|(_, name, divisor)| (*name, *divisor));
        let (name, divisor) = special.or_else(|| ours(key, own)).unwrap_or((key, 1.0));
        // Where two keys mean the same metric, the first counts.
        let (name, divisor) =
            if name != key && e.m.get(name).is_some() { (key.as_str(), 1.0) } else { (name, divisor) };
        out.resolution(name, n / divisor);
        out.value(&mut e, name, n / divisor);
    }
    e
}

/// The evaluation in a record: all of it, or the part with such names if it is beside the training.
fn evaluation(numbers: &BTreeMap<String, Value>, beside: bool, mut e: Event, out: &mut Out<'_>) -> Event {
    e.name = Some("eval".to_owned());
    for (key, n) in numbers.iter().filter(|(k, _)| !reserved(k)).filter_map(|(k, v)| Some((k, number(v)?))) {
        match of_evaluation(key) {
            None if beside => {}
            Some("avg_loss") => drop(out.value(&mut e, metric::LOSS, n)),
            bare => drop(out.value(&mut e, bare.unwrap_or(key), n)),
        }
    }
    e
}

/// A number, also as text: `"NaN"`, `"2.5"`, but not an identifier of digits.
fn number(v: &Value) -> Option<f64> {
    match v {
        Value::Number(n) => Some(*n),
        Value::Text(t) => {
            stepwatch_wire::num::parse(t).filter(|n| !n.is_finite() || t.contains('.') || t.contains("e-"))
        }
        _ => None,
    }
}

fn of_evaluation(key: &str) -> Option<&str> {
    EVAL_PREFIXES.iter().find_map(|p| key.strip_prefix(p))
}

fn means(key: &str, name: &str) -> bool {
    tags::canonical(key).is_some_and(|(ours, _)| ours == name)
}

/// LLaMA-Factory and ms-swift log how many steps there are; a record of the last is the end of the
/// run.
pub(super) fn finished(v: &Value, line: &Line<'_>) -> Option<Event> {
    let both = v.get("global_step/max_steps").and_then(Value::as_str).and_then(|t| t.split_once('/'));
    let (step, total) = match both {
        Some((step, total)) => (number::integer(step)?.0, number::integer(total)?.0),
        None => (integer(v.get("current_steps")?)?, integer(v.get("total_steps")?)?),
    };
    (total > 0 && step >= total).then(|| line.done(Some(step)))
}

/// All tokens so far and the seconds that they took, of a record that has the mean rate since the
/// start.
pub(super) fn since_start(v: &Value) -> Option<(f64, f64)> {
    v.get("current_steps").and(v.get("total_steps"))?;
    let tokens = v.get("total_tokens")?.as_f64().filter(|n| n.is_finite() && *n > 0.0)?;
    let mean = v.get(MEAN_THROUGHPUT)?.as_f64().filter(|n| n.is_finite() && *n > 0.0)?;
    Some((tokens, tokens / mean))
}

fn reserved(key: &str) -> bool {
    STEP_KEYS.contains(&key)
        || TOTAL_KEYS.contains(&key)
        || TIME_KEYS.contains(&key)
        || key == "rank"
        || tags::other_axis(key)
}
