//! Hugging Face `Trainer` and what is built on it (TRL, Axolotl, LLaMA-Factory, ms-swift): one
//! Python dict a log.
//!
//! By default it replaces a loss that is no number by the mean of the others; its gradient norm is
//! what it is.
//!
//! The dict carries no step. It is taken, in this order, from a key that contains it
//! (`global_step/max_steps`, …), from the progress bar, from `epoch` once the banner gave how many
//! steps an epoch has, and otherwise counted: every dict is `logging_steps` (or, where that was not
//! given, one) further than the last. Since version 5 numbers are strings of four significant
//! digits.

use std::collections::BTreeMap;

use stepwatch_wire::names::{ckpt, hello, metric};
use stepwatch_wire::{CkptPhase, Event, Kind, Value};

use crate::absent::Nothing;
use crate::format::{Format, Line, Out, Outcome};
use crate::pause::{Evaluation, Saving};
use crate::tokens::{TokenCounter, Tokens};
use crate::{number, python, tags, tqdm};

/// Keys that contain the step itself, some of them as `N/TOTAL`. fairseq's dict, which has a loss
/// and an epoch too, has `num_updates`.
const STEP_KEYS: &[&str] =
    &["global_step/max_steps", "global_step", "current_steps", "step", "iteration", "num_updates"];
/// Counters of all tokens so far.
const TOKEN_KEYS: &[&str] = &["num_tokens", "num_input_tokens_seen", "total_tokens", "tokens/total"];
/// What PPO of TRL logs in place of a loss.
const POLICY_LOSS: &str = "loss/policy_avg";
/// What the Trainer prints when it begins, by the logger that prints its saves. Scripts that print
/// the rest of its banner do not.
const OF_TRAINER: &str = "Number of trainable parameters =";
/// More steps between two dicts than any run logs.
const MAX_INTERVAL: f64 = 1e9;
/// Significant digits of version 5, which drops trailing zeros.
const DIGITS: i32 = 4;

#[derive(Debug, Default)]
pub(crate) struct HuggingFace {
    bar: Option<Seen>,
    /// Total of the training bar, known once a training dict was printed under it; evaluation has
    /// bars of its own.
    training_total: Option<i64>,
    last_step: Option<i64>,
    /// Steps between two dicts, as last observed or as the banner gave it.
    interval: Option<i64>,
    total_steps: Option<f64>,
    epochs: Option<f64>,
    /// Of all tokens so far, and of a name that may be that.
    counter: TokenCounter,
    tokens: Tokens,
    /// Second of the bar at the last heartbeat.
    beat: Option<i64>,
    /// The loss of the last dict was no number.
    lost: bool,
    pause: Evaluation,
    saving: Saving,
    /// The step of the checkpoint that is being loaded.
    loading: Option<i64>,
}

/// The last bar that may be the training bar.
#[derive(Debug, Clone, Copy)]
struct Seen {
    n: i64,
    total: i64,
}

impl Format for HuggingFace {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let mut text = line.text;
        let mut outcome = Outcome::Unmatched;
        if let Some(bar) = tqdm::bar(text) {
            outcome = Outcome::Ignored;
            if bar.description.is_empty() {
                self.progress(&bar, line, out);
            }
            text = bar.rest;
        }
        if let Some(dict) = text.find('{').and_then(|at| python::dict(&text[at..])).map(|(d, _)| d) {
            if let Some(event) = self.dict(&dict, line, out) {
                out.push(event);
                return Outcome::Matched;
            }
        } else if let Some(step) = resumed(text) {
            self.loading = Some(step);
            out.push(line.stage(ckpt::LOAD, CkptPhase::Start, Some(step)));
            return Outcome::Matched;
        } else if self.banner(text) {
            // It prints this next, and then trains.
            let trains = text.contains("***** Running train");
            if let Some(step) = self.loading.take_if(|_| trains) {
                out.push(line.stage(ckpt::LOAD, CkptPhase::End, Some(step)));
                return Outcome::Matched;
            }
            if text.contains(OF_TRAINER) {
                out.push(prints_saves(line));
            }
            if text.contains("***** Running Eval") {
                self.pause.begin(self.last_step, line, out);
            }
            return Outcome::Ignored;
        } else if let Some(step) = saved(text) {
            self.saving.begin(Some(step), line, out);
            return Outcome::Matched;
        }
        outcome
    }

    fn resume(&mut self, last_step: i64) {
        self.last_step = Some(last_step);
    }
}

impl HuggingFace {
    /// A drawing of a bar without a description: remembers its position, and publishes a heartbeat
    /// once a second while training.
    fn progress(&mut self, bar: &tqdm::Bar<'_>, line: &Line<'_>, out: &mut Out<'_>) {
        let training = self.training_total.is_none_or(|t| t == bar.total);
        if !training {
            return;
        }
        let moved = self.bar.is_none_or(|b| b.n != bar.n);
        if self.bar.is_some_and(|b| bar.n < b.n) {
            self.last_step = None; // a restart in the same log
        }
        self.bar = Some(Seen { n: bar.n, total: bar.total });
        if self.training_total.is_some() && moved && self.beat != Some(bar.elapsed) {
            self.beat = Some(bar.elapsed);
            out.push(Event { step: Some(bar.n), ts: line.ts, ..Event::new(Kind::Hb) });
        }
    }

    /// What `***** Running training *****` and the printed arguments give; true if the line was of
    /// them.
    fn banner(&mut self, text: &str) -> bool {
        let given = |name: &str| {
            let (_, value) = text.split_once(name)?;
            number::lex(value.trim_start().strip_prefix('=')?).map(|n| n.value)
        };
        if text.contains("***** Running") || text.contains(OF_TRAINER) {
            return true;
        }
        if let Some(n) = given("Total optimization steps") {
            self.total_steps = Some(n);
        } else if let Some(n) = given("Num Epochs") {
            self.epochs = Some(n);
        } else if let Some(n) = given("logging_steps").filter(|n| (1.0..MAX_INTERVAL).contains(n)) {
            self.interval = Some(n as i64);
        } else {
            return false;
        }
        true
    }

    fn dict(&mut self, d: &BTreeMap<String, Value>, line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
        if is_end(d) {
            self.lost_mean(d, line, out);
            let mut e = Event { step: self.last_step, ts: line.ts, code: Some(0), ..Event::new(Kind::Bye) };
            numbers(d, &mut e, out);
            if e.m.get(metric::LOSS).is_some_and(|mean| !mean.is_finite()) {
                e.m.remove(metric::LOSS);
            }
            return Some(e);
        }
        if d.contains_key("loss") && (d.contains_key("learning_rate") || d.contains_key("epoch")) {
            return Some(self.step(d, line, out));
        }
        if let Some(d) = with_policy_loss(d) {
            return Some(self.step(&d, line, out));
        }
        if self.has_lost_loss(d, line, out) {
            return Some(self.step(d, line, out));
        }
        let eval =
            d.keys().any(|k| k.starts_with("eval_") && (k.ends_with("_loss") || k.ends_with("_runtime")));
        if eval {
            self.pause.end(self.last_step, line, out);
        }
        eval.then(|| self.eval(d, line, out))
    }

    /// Whether a dict is as those with a loss were, and has none. Others that are logged without a
    /// loss are no steps of their own.
    fn has_lost_loss(&self, d: &BTreeMap<String, Value>, line: &Line<'_>, out: &mut Out<'_>) -> bool {
        let trains = ["learning_rate", "epoch"].iter().all(|key| d.contains_key(*key));
        if !trains || d.keys().any(|key| key.starts_with("eval_")) {
            return false;
        }
        let mut e = line.step(self.last_step.unwrap_or(0));
        numbers(d, &mut e, out);
        out.has_lost(&e)
    }

    /// The closing record has the mean of all losses. One that is no number means that a loss was
    /// none, which no step may have shown: the step is the last.
    fn lost_mean(&self, d: &BTreeMap<String, Value>, line: &Line<'_>, out: &mut Out<'_>) {
        let mean = d.get("train_loss").and_then(Value::as_f64);
        if let Some(mean) = mean.filter(|mean| !mean.is_finite() && !self.lost) {
            let step = self.last_step.or(self.bar.map(|b| b.n)).unwrap_or(0);
            let mut e = line.step(step);
            e.m.set(metric::LOSS, mean);
            out.push(e);
        }
    }

    fn step(&mut self, d: &BTreeMap<String, Value>, line: &Line<'_>, out: &mut Out<'_>) -> Event {
        let step = self.which_step(d);
        let mut e = Event { step: Some(step), ts: line.ts, ..Event::new(Kind::Step) };
        numbers(d, &mut e, out);
        // A line of fairseq's JSON is a dict, too: its words per second are those of the job.
        if d.contains_key("wps") && (d.contains_key("ups") || d.contains_key("wpb")) {
            let rate = e.m.remove(metric::TOKENS_PER_SECOND_PER_GPU);
            rate.map(|rate| e.m.set(metric::TOKENS_PER_SECOND, rate));
        }
        if d.keys().any(|key| tags::may_count_all(key)) {
            self.tokens.settle(&mut e);
        }
        let counted = TOKEN_KEYS.iter().find_map(|k| d.get(*k)?.as_f64()).filter(|n| n.is_finite());
        if let Some(tokens) = counted.and_then(|now| self.counter.of_step(step, now)) {
            e.m.set(metric::TOKENS, tokens);
        }
        if let Some(last) = self.last_step.filter(|l| *l < step) {
            self.interval = Some(step - last);
        }
        self.pause.step(self.last_step, step, line, out);
        self.saving.step(step, line, out);
        self.last_step = Some(step);
        self.lost = e.m.get(metric::LOSS).is_some_and(|loss| !loss.is_finite()) || out.misses(&e);
        e
    }

    fn which_step(&mut self, d: &BTreeMap<String, Value>) -> i64 {
        if let Some(step) = STEP_KEYS.iter().find_map(|k| step_value(d.get(*k)?)) {
            return step;
        }
        let next = self.last_step.unwrap_or(0) + self.interval.unwrap_or(1).max(1);
        if let Some(bar) = self.bar {
            self.training_total = Some(bar.total);
            // A bar is drawn ten times a second at most, so fast steps may leave it behind, the
            // first one as it was before it.
            let stale = bar.n <= self.last_step.unwrap_or(0);
            return if stale { next } else { bar.n };
        }
        let by_epoch = || {
            let epoch = d.get("epoch")?.as_f64()?;
            let step = epoch * self.total_steps? / self.epochs?;
            number::whole(step.round()).filter(|s| *s >= 1)
        };
        by_epoch().filter(|s| self.last_step.is_none_or(|last| *s > last)).unwrap_or(next)
    }

    /// `eval_loss` is the loss of the evaluation; `eval_<set>_loss` of a named set.
    fn eval(&self, d: &BTreeMap<String, Value>, line: &Line<'_>, out: &mut Out<'_>) -> Event {
        let step = STEP_KEYS.iter().find_map(|k| step_value(d.get(*k)?)).or(self.last_step);
        let set = d.keys().find_map(|k| k.strip_prefix("eval_")?.strip_suffix("_runtime"));
        let prefix = set.map_or("eval_".to_owned(), |s| format!("eval_{s}_"));
        let name = set.unwrap_or("eval").to_owned();
        let mut e = Event { step, ts: line.ts, name: Some(name), ..Event::new(Kind::Eval) };
        for (key, v) in d {
            let Some(v) = v.as_f64() else { continue };
            let key = key.strip_prefix(&prefix).unwrap_or(key);
            if !STEP_KEYS.contains(&key) {
                out.value(&mut e, key, v);
            }
        }
        e
    }
}

/// A dict of PPO with the loss of its policy as the loss.
fn with_policy_loss(d: &BTreeMap<String, Value>) -> Option<BTreeMap<String, Value>> {
    let policy = d.get(POLICY_LOSS).filter(|_| !d.contains_key("loss"))?.clone();
    let trains = ["lr", "episode"].iter().any(|k| d.contains_key(*k));
    trains.then(|| {
        let mut d = d.clone();
        d.remove(POLICY_LOSS);
        d.insert("loss".into(), policy);
        d
    })
}

/// Whether it is the record of the whole run. With `include_num_input_tokens_seen` every step has
/// `train_runtime` too, so a key that only the whole run has must be beside it.
fn is_end(d: &BTreeMap<String, Value>) -> bool {
    let of_the_run = ["train_loss", "train_samples_per_second"].iter().any(|k| d.contains_key(*k));
    d.contains_key("train_runtime") && of_the_run && !d.contains_key("loss")
}

/// `Saving model checkpoint to out/checkpoint-500`, whose end is the next sign of training.
fn saved(text: &str) -> Option<i64> {
    of_path(text.split_once("Saving model checkpoint to ")?.1)
}

/// A log that shows the logger's lines shows saves too, but not those of shards with FSDP.
fn prints_saves(line: &Line<'_>) -> Event {
    let mut e = line.event(Kind::Hello, None);
    e.extra.insert(hello::SOURCE.into(), Value::Text(hello::PRINTED.into()));
    e.extra.insert(hello::SAVES.into(), Value::Text(hello::MOST.into()));
    e
}

/// `Loading model from out/checkpoint-500.`, which others print of any model.
fn resumed(text: &str) -> Option<i64> {
    of_path(text.split_once("Loading model from ")?.1.trim_end_matches(['.', ')']))
}

fn of_path(path: &str) -> Option<i64> {
    let (_, step) = path.trim_end_matches('/').rsplit_once("checkpoint-")?;
    number::integer(step).filter(|(_, rest)| rest.is_empty()).map(|(step, _)| step)
}

/// `12`, `"12"`, `"12/500"`.
fn step_value(v: &Value) -> Option<i64> {
    match v {
        Value::Number(n) => number::whole(*n),
        Value::Text(t) => {
            number::integer(t).filter(|(_, rest)| rest.is_empty() || rest.starts_with('/')).map(|(n, _)| n)
        }
        _ => None,
    }
}

/// Sets every number of the dict under our name for it, or its own.
fn numbers(d: &BTreeMap<String, Value>, e: &mut Event, out: &mut Out<'_>) {
    for (key, v) in d {
        if STEP_KEYS.contains(&key.as_str()) {
            continue;
        }
        let (name, divisor) = tags::canonical(key).unwrap_or((key, 1.0));
        match v {
            // The whole text must be the number: `'2s'` and `'1.06%'` are for people.
            Value::Text(t) => {
                let Some(n) = number::lex(t).filter(|n| n.rest.trim().is_empty()) else { continue };
                // A whole number is printed whole, or it is a float that lost its zeros; only the
                // digits distinguish the two.
                let quantum = number::quantum_of_digits(n.value, DIGITS).or(n.quantum);
                let quantum = quantum.zip(n.quantum).map(|(digits, printed)| digits.min(printed) / divisor);
                out.number(e, name, n.value / divisor, quantum);
            }
            Value::Number(n) => {
                out.resolution(name, n / divisor);
                out.value(e, name, n / divisor);
            }
            Value::Null => out.nothing(name, Nothing::Certain),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    mod checkpoints;
    mod sample;

    use super::*;
    use crate::LogReader;

    fn read(lines: &[&str]) -> Vec<Event> {
        let mut r = LogReader::new(Some("huggingface")).unwrap();
        let mut out = Vec::new();
        for l in lines {
            r.line(l, &mut out);
        }
        out
    }

    fn steps(lines: &[&str]) -> Vec<i64> {
        read(lines).iter().filter(|e| e.kind == Kind::Step).map(|e| e.step.unwrap()).collect()
    }

    fn log(epoch: &str) -> String {
        format!("{{'loss': 2.5, 'learning_rate': 5e-05, 'epoch': {epoch}}}")
    }

    #[test]
    fn version_4_and_5() {
        let four = "{'loss': 2.3456, 'grad_norm': 1.2031, 'learning_rate': 4.9e-05, 'epoch': 0.02}";
        let five = "{'loss': '2.346', 'grad_norm': 'nan', 'learning_rate': '4.9e-05', 'epoch': '0.02'}";
        let e = read(&[four, five]);
        assert_eq!(
            (e[0].m.get("loss"), e[0].m.get("grad_norm"), e[0].m.get("lr")),
            (Some(2.3456), Some(1.2031), Some(4.9e-5))
        );
        assert_eq!((e[1].m.get("loss"), e[1].m.get("epoch")), (Some(2.346), Some(0.02)));
        assert!(e[1].m.get("grad_norm").unwrap().is_nan());
    }

    #[test]
    fn step_from_the_bar() {
        let e = read(&[
            "  2%|▏         | 10/500 [00:10<08:10,  1.00s/it]\r                \r{'loss': 2.5, 'epoch': 0.1}",
            "  4%|▏         | 20/500 [00:20<08:10,  1.00s/it]{'loss': nan, 'epoch': 0.2}",
            "  5%|▏         | 25/500 [00:25<08:10,  1.00s/it]",
            " 50%|▏         | 3/6 [00:01<00:01,  1.00it/s]",
            "{'eval_loss': '1.5', 'eval_runtime': '6.1', 'epoch': '0.2'}",
        ]);
        let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step)).collect();
        assert_eq!(
            seen,
            [
                (Kind::Step, Some(10)),
                (Kind::Hb, Some(20)),
                (Kind::Step, Some(20)),
                (Kind::Hb, Some(25)),
                (Kind::Eval, Some(20)),
            ]
        );
        assert!(e[2].m.get("loss").unwrap().is_nan());
        assert_eq!(
            (e[4].m.get("loss"), e[4].m.get("runtime"), e[4].name.as_deref()),
            (Some(1.5), Some(6.1), Some("eval"))
        );
    }

    #[test]
    fn a_bar_left_behind_does_not_repeat_a_step() {
        let l = log("0.1");
        let bar = |n: i64| format!("  2%|▏| {n}/500 [00:10<08:10, 50.00it/s]");
        assert_eq!(steps(&[&bar(10), &l, &bar(20), &l, &l, &bar(41), &l]), [10, 20, 30, 41]);
        assert_eq!(steps(&[&bar(0), &l, &bar(1), &bar(2), &l, &bar(3), &l]), [1, 2, 3]);
    }

    #[test]
    fn step_from_the_epoch_or_counted() {
        let banner = ["  Num Epochs = 3", "  Total optimization steps = 1,500"];
        let logs = [log("0.02"), log("0.04"), log("0.06")];
        assert_eq!(steps(&[banner[0], banner[1], &logs[0], &logs[1], &logs[2]]), [10, 20, 30]);
        assert_eq!(steps(&[&logs[0], &logs[1]]), [1, 2]);
        assert_eq!(steps(&["logging_steps=50,", &logs[0], &logs[1]]), [50, 100]);
        let mut r = LogReader::new(Some("huggingface")).unwrap();
        r.resume(7);
        let mut out = Vec::new();
        r.line(&logs[0], &mut out);
        assert_eq!(out[0].step, Some(8));
    }

    #[test]
    fn a_restart_starts_over() {
        let l = log("0.1");
        let bar = |n: i64| format!("  2%|▏| {n}/500 [00:10<08:10, 1.00it/s]");
        assert_eq!(steps(&[&bar(400), &l, &bar(350), &bar(360), &l]), [400, 360]);
    }

    #[test]
    fn tokens_named_sets_and_the_end() {
        let e = read(&[
            "{'loss': 1.0, 'epoch': 0.1, 'num_tokens': 1000.0, 'step': 10}",
            "{'loss': 1.0, 'epoch': 0.2, 'num_tokens': 3000.0, 'step': 20}",
            "{'eval_c4_loss': 1.5, 'eval_c4_runtime': 6.1, 'epoch': 0.2}",
            "{'train_runtime': 172.5, 'train_samples_per_second': 5.4, 'train_loss': 1.5, 'epoch': 1.0}",
        ]);
        assert_eq!((e[0].m.get("tokens"), e[1].m.get("tokens")), (None, Some(200.0)));
        assert_eq!((e[2].name.as_deref(), e[2].m.get("loss"), e[2].step), (Some("c4"), Some(1.5), Some(20)));
        assert_eq!((e[3].kind, e[3].code, e[3].m.get("train_runtime")), (Kind::Bye, Some(0), Some(172.5)));
    }

    #[test]
    fn a_mean_that_is_no_number_is_a_lost_loss() {
        let end = |mean: &str| {
            format!(
                "{{'train_runtime': 172.5, 'train_samples_per_second': 5.4, 'train_loss': {mean}, 'epoch': 1.0}}"
            )
        };
        let step = "{'loss': 1.0, 'epoch': 0.1, 'step': 10}";
        for mean in ["nan", "inf", "'nan'"] {
            let e = read(&[step, &end(mean)]);
            let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step)).collect();
            assert_eq!(
                seen,
                [(Kind::Step, Some(10)), (Kind::Step, Some(10)), (Kind::Bye, Some(10))],
                "{mean}"
            );
            assert!(!e[1].m.get("loss").unwrap().is_finite() && e[2].m.get("train_loss").is_none());
        }
        let e = read(&["{'loss': nan, 'epoch': 0.1, 'step': 10}", &end("nan")]);
        assert_eq!(e.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Step, Kind::Bye], "published before");
        let e = read(&["100%|██| 40/40 [00:10<00:00,  1.00s/it]", &end("nan")]);
        assert_eq!((e[0].kind, e[0].step), (Kind::Step, Some(40)), "nothing was logged before the end");
        let e = read(&[step, &end("1.5")]);
        assert_eq!(e.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Step, Kind::Bye]);
    }

    #[test]
    fn a_step_with_the_time_since_the_start_is_no_end() {
        let log = |step: i64, loss: &str, norm: &str| {
            format!(
                "{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 4.9e-05, 'epoch': 0.02, 'num_input_tokens_seen': {}, 'train_runtime': 12.3, 'train_tokens_per_second': 456.7, 'step': {step}}}",
                step * 128
            )
        };
        let end = "{'train_runtime': 172.5, 'train_samples_per_second': 5.4, 'train_steps_per_second': 0.3, 'train_loss': 1.5, 'num_input_tokens_seen': 5120, 'epoch': 1.0}";
        let e = read(&[
            &log(10, "2.1", "1.5"),
            &log(20, "nan", "inf"),
            &log(30, "'nan'", "'inf'"),
            &log(40, "None", "1.5"),
            end,
        ]);
        let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step)).collect();
        let step = |n| (Kind::Step, Some(n));
        assert_eq!(seen, [step(10), step(20), step(30), step(40), (Kind::Bye, Some(40))]);
        assert_eq!((e[0].m.get("loss"), e[0].m.get("train_tokens_per_second")), (Some(2.1), Some(456.7)));
        for e in &e[1..3] {
            assert!(e.m.get("loss").unwrap().is_nan() && e.m.get("grad_norm") == Some(f64::INFINITY));
        }
        assert_eq!((e[1].m.get("tokens"), &e[3].missing), (Some(128.0), &vec!["loss".to_owned()]));
        assert_eq!((e[4].code, e[4].m.get("train_runtime")), (Some(0), Some(172.5)));
    }

    #[test]
    fn the_policy_loss_is_the_loss_where_ppo_logs_none() {
        let log = |policy: &str, then: &str| {
            format!(
                "{{'eps': 3, 'objective/kl': 0.5, 'objective/rlhf_reward': -0.25, 'policy/approxkl_avg': 0.01, 'loss/policy_avg': {policy}, 'loss/value_avg': 0.75, 'val/ratio': 1.0, 'lr': 2.9e-06, 'episode': 64{then}}}"
            )
        };
        let bar = |n: i64| format!("  2%|▏         | {n}/500 [00:10<08:10,  1.00s/it]");
        // The bar is drawn once the dict is printed.
        let e = read(&[
            &bar(0),
            &log("-0.0123", ", 'epoch': 0.01"),
            &bar(1),
            &log("nan", ", 'epoch': 0.02"),
            &bar(2),
            &log("'nan'", ", 'epoch': '0.03'"),
            &log("None", ", 'epoch': 0.04"),
            &log("0.5", ""),
        ]);
        let steps: Vec<_> = e.iter().filter(|e| e.kind == Kind::Step).collect();
        assert_eq!(steps.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        let first = |name: &str| steps[0].m.get(name);
        assert_eq!((first("loss"), first("lr"), first("epoch")), (Some(-0.0123), Some(2.9e-6), Some(0.01)));
        assert_eq!((first("loss/value_avg"), first("objective/rlhf_reward")), (Some(0.75), Some(-0.25)));
        assert!(steps[1].m.get("loss").unwrap().is_nan() && steps[2].m.get("loss").unwrap().is_nan());
        assert_eq!(steps[3].missing, ["loss"]);
        let (mut r, mut out) = (LogReader::new(None).unwrap(), Vec::new());
        r.line(&log("-0.0123", ", 'epoch': 0.01"), &mut out);
        assert_eq!((r.name(), out.len()), ("huggingface", 1));
        let both = "{'loss': 1.0, 'loss/policy_avg': 2.0, 'lr': 0.1, 'epoch': 0.1}";
        assert_eq!(read(&[both])[0].m.get("loss"), Some(1.0), "a loss of its own");
        assert_eq!(read(&["{'loss/policy_avg': 2.0, 'epoch': 0.1}"]), []);
    }

    #[test]
    fn fairseq_behind_its_logger_counts_updates() {
        let (mut r, mut out) = (LogReader::new(None).unwrap(), Vec::new());
        for (update, n) in [("2.000", "69900"), ("2.001", "70000")] {
            let line = format!(
                r#"2026-05-29 03:52:45 | INFO | train_inner | {{"epoch": 3, "update": {update}, "loss": "5.125", "ppl": "12.3", "num_updates": "{n}", "lr": "0.0001", "gnorm": "0.514"}}"#
            );
            r.line(&line, &mut out);
        }
        let seen: Vec<_> = out.iter().map(|e| (e.step.unwrap(), e.m.get("loss"))).collect();
        assert_eq!(seen, [(69_900, Some(5.125)), (70_000, Some(5.125))]);
    }

    #[test]
    fn tokens_of_axolotl_are_counted_of_all() {
        let line = |total: i64, trainable: i64| {
            format!(
                "{{'loss': 1.0, 'epoch': 0.1, 'ppl': 2.71828, 'tokens/train_per_sec_per_gpu': 812.5, 'tokens/trainable': {trainable}, 'tokens/total': {total}}}"
            )
        };
        let e = read(&[&line(1000, 400), &line(3000, 900)]);
        assert_eq!((e[0].m.get("tokens"), e[1].m.get("tokens")), (None, Some(2000.0)));
        assert_eq!(e[1].m.get("tokens/train_per_sec_per_gpu"), Some(812.5), "of some of them");
    }

    #[test]
    fn version_5_has_four_digits() {
        let (mut r, mut out) = (LogReader::new(Some("huggingface")).unwrap(), Vec::new());
        r.line("{'loss': '2.5', 'grad_norm': '12.35', 'learning_rate': '5e-05', 'num_tokens': '123456', 'epoch': '1'}", &mut out);
        let close = |name: &str, want: f64| (r.resolution().get(name).unwrap() / want - 1.0).abs() < 1e-9;
        assert!(close("loss", 1e-3) && close("grad_norm", 1e-2) && close("lr", 1e-8));
        assert_eq!(out[0].m.get("loss"), Some(2.5));
    }

    #[test]
    fn numbers_that_are_none() {
        let e = read(&[
            "{'loss': nan, 'grad_norm': inf, 'learning_rate': 5e-05, 'epoch': 0.1}",
            "{'loss': 'nan', 'grad_norm': 'inf', 'learning_rate': '5e-05', 'epoch': '0.2'}",
            "{'loss': None, 'grad_norm': 1.0, 'learning_rate': 5e-05, 'epoch': 0.3}",
        ]);
        for e in &e[..2] {
            assert!(e.m.get("loss").unwrap().is_nan() && e.m.get("grad_norm") == Some(f64::INFINITY));
        }
        assert_eq!((e[2].m.get("loss"), &e[2].missing), (None, &vec!["loss".to_owned()]));
    }

    #[test]
    fn foreign_dicts_are_not_steps() {
        for text in ["{'loss': 1}", "{'a': 1}", "x {y} {'loss': 1, 'epoch': 1}", "{'text': 'eval_loss'}"] {
            assert!(read(&[text]).is_empty(), "{text}");
        }
    }
}
