//! OpenRLHF. PPO and its kin print `✨ Global step 12: {'policy_loss': 0.0123, 'actor_lr': 5e-07,
//! 'reward': 0.5, …}`, one Python dict a step.
//!
//! SFT, RM and DPO print nothing but a bar: `Train step of epoch 1:  12%|█▏ | 12/100 [00:03<00:25,
//! 3.50it/s, gpt_loss=2.34, lr=1e-5, grad_norm=0.5]`. Its steps are micro-batches, and are counted
//! on over the epochs. It is drawn with the numbers of a batch before that is counted. The
//! evaluation behind it has a bar with the mean so far. At its end it may be drawn full with the
//! mean of the batches before the last, then with the whole mean: it is published when something
//! else is printed, or nothing for a while.

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Value};

use crate::absent::Nothing;
use crate::format::{Format, Line, Out, Outcome};
use crate::pause::Evaluation;
use crate::{number, python, tags, tqdm};

const KEYS: &[(&str, &str)] = &[
    ("policy_loss", metric::LOSS),
    ("gpt_loss", metric::LOSS),
    ("actor_lr", metric::LR),
    ("actor_grad_norm", metric::GRAD_NORM),
    ("timing/step_total", metric::STEP_TIME),
];

/// What the bar of an evaluation begins with; DPO's counts the same steps under another name.
const EVALUATIONS: &[&str] = &["Eval stage of steps ", "Eval stage of global_step "];

#[derive(Debug, Default)]
pub(crate) struct OpenRlhf {
    last_step: Option<i64>,
    /// The step of the bar that was drawn last.
    drawn: Option<i64>,
    /// The loss of that step was no number.
    lost: bool,
    pause: Evaluation,
    /// The evaluation behind the last step, once its bar was full.
    evaluated: Option<Evaluated>,
}

/// A bar of an evaluation as it was drawn full the last time.
#[derive(Debug)]
struct Evaluated {
    /// The step that its description names.
    at: i64,
    postfix: String,
    /// Its event, until it is published.
    event: Option<Event>,
}

impl Format for OpenRlhf {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if let Some(bar) = tqdm::bar(line.text) {
            return self.bar(&bar, line, out).unwrap_or(Outcome::Unmatched);
        }
        let read = || {
            let (_, rest) = line.text.split_once("Global step ")?;
            let (step, rest) = number::integer(rest)?;
            let at = rest.find(": {")?;
            // Some trainers name the part of the step between the number and the colon: `12
            // [rollout-partial]`.
            let named = rest[..at].trim();
            let fits = named.is_empty() || (named.starts_with('[') && named.ends_with(']'));
            let (dict, _) = python::dict(&rest[at + 2..])?;
            fits.then_some((step, dict))
        };
        let Some((step, dict)) = read() else { return Outcome::Unmatched };
        let mut e = line.step(step);
        for (key, v) in &dict {
            let number = match v {
                Value::Number(n) => Some(*n),
                Value::Text(t) => number::lex(t).filter(|n| n.rest.is_empty()).map(|n| n.value),
                _ => None,
            };
            let (name, divisor) = ours(key);
            let Some(n) = number else {
                if *v == Value::Null {
                    out.nothing(name, Nothing::Null);
                }
                continue;
            };
            out.resolution(name, n / divisor);
            out.value(&mut e, name, n / divisor);
        }
        if e.m.is_empty() {
            return Outcome::Unmatched;
        }
        out.push(e);
        Outcome::Matched
    }

    fn rest(&mut self, out: &mut Out<'_>) {
        self.evaluation_ends(out);
    }
}

impl OpenRlhf {
    fn bar(&mut self, bar: &tqdm::Bar<'_>, line: &Line<'_>, out: &mut Out<'_>) -> Option<Outcome> {
        let at = EVALUATIONS.iter().find_map(|words| bar.description.strip_prefix(words));
        if let Some((at, _)) = at.and_then(number::integer) {
            return Some(self.evaluation(at, bar, line, out));
        }
        if bar.description == "Train epoch" || bar.description.starts_with("Train epoch [") {
            return Some(Outcome::Ignored); // of PPO: its loss is in the dict
        }
        let (epoch, "") = number::integer(bar.description.strip_prefix("Train step of epoch ")?)? else {
            return None;
        };
        let step = epoch.checked_mul(bar.total).and_then(|before| before.checked_add(bar.n))?;
        let mut e = line.step(step);
        numbers(bar.postfix, &mut e, out);
        let again = self.drawn == Some(step);
        let loss = e.m.get(metric::LOSS);
        // Before its first batch a bar has no numbers.
        let vanished = loss.is_none() && !bar.postfix.is_empty() && !again && out.has_lost(&e);
        let lost = vanished || loss.is_some_and(|v| !v.is_finite());
        if loss.is_none() && !vanished || again && (!lost || self.lost) {
            return Some(Outcome::Ignored);
        }
        // Drawn once more with the numbers of the next one.
        e.step = Some(step + i64::from(again));
        self.evaluation_ends(out);
        self.evaluated = None;
        self.pause.step(self.last_step, step, line, out);
        (self.last_step, self.drawn, self.lost) = (e.step, Some(step), lost);
        out.push(e);
        Some(Outcome::Matched)
    }

    /// The evaluation whose bar names the step `at`.
    fn evaluation(&mut self, at: i64, bar: &tqdm::Bar<'_>, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let full = self.evaluated.as_ref().filter(|e| e.at == at);
        if full.is_none() {
            self.pause.begin(self.last_step, line, out);
        }
        let drawn = full.is_some_and(|e| e.postfix == bar.postfix);
        if bar.n < bar.total || bar.postfix.is_empty() || drawn {
            return Outcome::Ignored;
        }
        if full.is_none() {
            self.pause.end(self.last_step, line, out);
            self.evaluation_ends(out);
        }
        let mut event = line.eval(self.last_step.or(Some(at)), "eval");
        numbers(bar.postfix, &mut event, out);
        self.evaluated = Some(Evaluated { at, postfix: bar.postfix.to_owned(), event: Some(event) });
        Outcome::Matched
    }

    fn evaluation_ends(&mut self, out: &mut Out<'_>) {
        if let Some(event) = self.evaluated.as_mut().and_then(|e| e.event.take()) {
            out.push(event);
        }
    }
}

/// What a key means to us, and its divisor.
fn ours(key: &str) -> (&str, f64) {
    let ours = KEYS.iter().find(|(k, _)| *k == key).map(|(_, name)| (*name, 1.0));
    ours.or_else(|| tags::canonical(key)).unwrap_or((key, 1.0))
}

/// `gpt_loss=2.34, lr=1e-05`, with `eval ` before a key of an evaluation.
fn numbers(postfix: &str, e: &mut Event, out: &mut Out<'_>) {
    for (key, value) in postfix.split(',').filter_map(|f| f.split_once('=')) {
        let key = key.trim().trim_start_matches("eval ").trim_start_matches("eval_");
        let (name, divisor) = ours(key);
        out.metric(e, name, value, divisor);
    }
}

#[cfg(test)]
mod tests {
    use super::OpenRlhf;
    use crate::LogReader;
    use crate::line_formats::samples::{PLAIN, Sampled, Written};
    use stepwatch_wire::{Event, Kind};

    impl Sampled for OpenRlhf {
        const LOGS: &'static [&'static str] = &[
            "(PPOTrainer pid=1234) \u{2728} Global step 12: {'policy_loss': 0.0123, 'actor_lr': 5e-07, 'reward': 0.5, 'timing/step_total': 31.5}\n",
            "Train step of epoch 0:  12%|\u{2588}\u{258f}        | 12/100 [00:03<00:25,  3.50it/s, gpt_loss=2.34, lr=1e-5, grad_norm=0.5]\n",
        ];
        const WRITTEN: &'static [Written] = &[
            Written {
                line: "(PPOTrainer pid=1234) \u{2728} Global step §: {⟨'policy_loss': ¤, ⟩'actor_lr': 5e-07, 'reward': 0.5, 'timing/step_total': 31.5}",
                ..PLAIN
            },
            Written {
                line: "Train step of epoch 0:  12%|\u{2588}\u{258f}        | §/100 [00:03<00:25,  3.50it/s⟨, gpt_loss=¤⟩, lr=1e-5, grad_norm=0.5]",
                ..PLAIN
            },
        ];
        const OWN: &'static [Written] = &[Written {
            line: "Global step §: {'policy_loss': 2.5, 'actor_lr': 5e-07, 'reward': ¤}",
            ..PLAIN
        }];
    }

    fn read(line: &str) -> Vec<Event> {
        let mut out = Vec::new();
        LogReader::new(Some("openrlhf")).unwrap().line(line, &mut out);
        out
    }

    #[test]
    fn steps() {
        let e = read(concat!(
            "(PPOTrainer pid=1234) ✨ Global step 12: {'policy_loss': 0.0123, 'actor_lr': 5e-07, 'actor_grad_norm': nan, 'reward': 0.5,",
            " 'response_length': 512.0, 'timing/step_total': 31.5, 'note': 'x'}"
        ));
        assert_eq!((e[0].kind, e[0].step), (Kind::Step, Some(12)));
        let m = &e[0].m;
        assert_eq!(
            (m.get("loss"), m.get("lr"), m.get("reward"), m.get("step_time"), m.get("response_length")),
            (Some(0.0123), Some(5e-7), Some(0.5), Some(31.5), Some(512.0))
        );
        assert!(m.get("grad_norm").unwrap().is_nan() && m.get("note").is_none());
        assert_eq!(read("✨ Global step 3 [rollout-partial]: {'policy_loss': 0.5}")[0].step, Some(3));
    }

    fn bars(lines: &[&str]) -> Vec<Event> {
        let mut out = Vec::new();
        let mut r = LogReader::new(None).unwrap();
        for l in lines {
            r.line(l, &mut out);
        }
        assert_eq!(r.name(), "openrlhf");
        out
    }

    #[test]
    fn bars_of_fine_tuning_count_on_over_the_epochs() {
        let bar = |epoch: i64, n: i64, postfix: &str| {
            format!("Train step of epoch {epoch}:  12%|█▏        | {n}/100 [00:03<00:25,  3.50it/s{postfix}]")
        };
        let lines = [
            bar(0, 0, ""),
            bar(0, 1, ", gpt_loss=2.34, lr=1e-5, grad_norm=0.5"),
            bar(0, 1, ", gpt_loss=2.3, lr=1e-5, grad_norm=0.5"),
            bar(0, 100, ", gpt_loss=2.25, lr=1e-5, grad_norm=0.4"),
            "Train epoch:  50%|█████     | 1/2 [01:00<01:00, 60.0s/it]".to_owned(),
            bar(1, 1, ", gpt_loss=2.2, lr=9e-6, grad_norm=0.3"),
            bar(1, 1, ", gpt_loss=nan, lr=9e-6, grad_norm=nan"),
            bar(1, 1, ", gpt_loss=nan, lr=9e-6, grad_norm=nan"),
        ];
        let e = bars(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(e.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [1, 100, 101, 102]);
        let m = &e[0].m;
        assert_eq!((m.get("loss"), m.get("lr"), m.get("grad_norm")), (Some(2.34), Some(1e-5), Some(0.5)));
        assert!(e[3].m.get("loss").unwrap().is_nan() && e[3].m.get("grad_norm").unwrap().is_nan());
    }

    #[test]
    fn bars_of_reward_models_and_preferences() {
        let e = bars(&[
            "Train step of epoch 0:  12%|█▏| 12/100 [00:03<00:25,  3.50it/s, loss=0.69, acc=0.5, chosen_reward=0.1, reject_reward=0.1, lr=9e-6, grad_norm=0.3]",
            "Eval stage of steps 3:  50%|█████| 1/2 [00:03<00:25,  3.50it/s, eval_loss=0.7, acc_mean=0.5]",
            "Eval stage of steps 3: 100%|█████| 2/2 [00:03<00:25,  3.50it/s, eval_loss=0.65, acc_mean=0.6]",
            "Train step of epoch 0:  13%|█▏| 13/100 [00:13<00:25,  3.50it/s, loss=0.68, acc=0.5, chosen_reward=0.1, reject_reward=0.1, lr=9e-6, grad_norm=0.3]",
        ]);
        let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step, e.m.get("loss"))).collect();
        assert_eq!(
            seen,
            [
                (Kind::Step, Some(12), Some(0.69)),
                (Kind::Phase, Some(12), None),
                (Kind::Phase, Some(12), None),
                (Kind::Eval, Some(12), Some(0.65)),
                (Kind::Step, Some(13), Some(0.68)),
            ]
        );
        assert_eq!(e[0].m.get("chosen_reward"), Some(0.1));
    }

    /// `update()` draws a full bar with the mean of the batches before, `set_postfix()` the same
    /// with the whole mean, and closing it draws that once more.
    const FULL: [&str; 3] = [
        "Eval stage of steps 3: 100%|█████| 2/2 [00:07<00:00,  3.50s/it, eval gpt_loss=2.4]",
        "Eval stage of steps 3: 100%|█████| 2/2 [00:07<00:00,  3.50s/it, eval gpt_loss=2.3]",
        "Eval stage of steps 3: 100%|█████| 2/2 [00:07<00:00,  3.50s/it, eval gpt_loss=2.3]",
    ];

    fn sft(n: i64) -> String {
        format!(
            "Train step of epoch 0:  12%|█▏| {n}/100 [00:03<00:25,  3.50it/s, gpt_loss=2.5, lr=9e-6, grad_norm=0.3]"
        )
    }

    #[test]
    fn a_full_bar_drawn_again_is_one_evaluation() {
        let begins = "Eval stage of steps 3:   0%|          | 0/2 [00:00<?, ?it/s]";
        let half = "Eval stage of steps 3:  50%|█████     | 1/2 [00:03<00:03,  3.50s/it, eval gpt_loss=2.4]";
        let later = FULL[2].replace("steps 3", "steps 4").replace("2.3", "2.2");
        let e = bars(&[&sft(12), begins, half, FULL[0], FULL[1], FULL[2], &sft(13), &later, &sft(14)]);
        let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step, e.m.get("loss"))).collect();
        let pause = (Kind::Phase, Some(12), None);
        let next = (Kind::Phase, Some(13), None);
        assert_eq!(
            seen,
            [
                (Kind::Step, Some(12), Some(2.5)),
                pause,
                pause,
                (Kind::Eval, Some(12), Some(2.3)),
                (Kind::Step, Some(13), Some(2.5)),
                next,
                next,
                (Kind::Eval, Some(13), Some(2.2)),
                (Kind::Step, Some(14), Some(2.5)),
            ]
        );
    }

    #[test]
    fn the_last_evaluation_is_published_when_the_log_rests() {
        let mut r = LogReader::new(None).unwrap();
        let mut e = Vec::new();
        for line in [&sft(12), FULL[0], FULL[1]] {
            r.line(line, &mut e);
        }
        let evals = |e: &[Event]| -> Vec<_> {
            e.iter().filter(|e| e.kind == Kind::Eval).map(|e| e.m.get("loss").unwrap()).collect()
        };
        assert!(evals(&e).is_empty(), "the bar may be drawn again");
        r.rest(&mut e);
        r.line(FULL[2], &mut e);
        r.rest(&mut e);
        assert_eq!(evals(&e), [2.3]);
    }

    #[test]
    fn the_evaluation_of_dpo_counts_global_steps() {
        let e = bars(&[
            &sft(12).replace("gpt_loss", "loss"),
            "Eval stage of global_step 3:  50%|█████     | 1/2 [00:03<00:03,  3.50s/it]",
            "Eval stage of global_step 3: 100%|██████████| 2/2 [00:07<00:00,  3.50s/it]",
            "Eval stage of global_step 3: 100%|██████████| 2/2 [00:07<00:00,  3.50s/it, eval_loss=0.65, acc_mean=0.6]",
            &sft(13).replace("gpt_loss", "loss"),
        ]);
        let kinds: Vec<_> = e.iter().map(|e| e.kind).collect();
        assert_eq!(kinds, [Kind::Step, Kind::Phase, Kind::Phase, Kind::Eval, Kind::Step]);
        assert_eq!(
            (e[3].step, e[3].m.get("loss"), e[3].m.get("acc_mean")),
            (Some(12), Some(0.65), Some(0.6))
        );
    }

    #[test]
    fn what_is_no_step() {
        for text in
            ["Global step 3", "Global step 3: {}", "Global step x: {'a': 1}", "Global step 3 and: {'a': 1}"]
        {
            assert!(read(text).is_empty(), "{text}");
        }
    }
}
