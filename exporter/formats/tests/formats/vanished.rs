//! A loss that turns null or is left out of its line is an event in every format of lines.

#![expect(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use stepwatch_formats::{LogReader, names};
use stepwatch_wire::{Event, Kind};

/// Lines that had the loss before it is missed, as `absent.rs` has it.
const USUAL: i64 = 20;

/// How a format writes a step: `§` stands for the number of the step, `¤` for the loss. What is in
/// `⟨⟩` is left out with the loss.
struct Written {
    /// Its name in the list of formats.
    format: &'static str,
    line: &'static str,
    /// Ends a record of several lines.
    end: Option<&'static str>,
    /// It writes a loss that is none as a word.
    word: Option<&'static str>,
    /// Nothing but the step is left, so that the next line must prove it.
    bare: bool,
}

const PLAIN: Written = Written { format: "", line: "", end: None, word: Some("None"), bare: false };

const WRITTEN: &[Written] = &[
    Written {
        format: "megatron",
        line: " iteration §/ 1000 | consumed samples: 4 | elapsed time per iteration (ms): 900.1 | learning rate: 1.0E-04 |⟨ lm loss: ¤ |⟩ loss scale: 1.0 | grad norm: 0.5 | number of skipped iterations:   0 | number of nan iterations:   0 |",
        ..PLAIN
    },
    Written {
        format: "jsonl",
        line: r#"{"step": §,⟨ "loss": ¤,⟩ "grad_norm": 0.5, "lr": 1e-05}"#,
        word: Some("null"),
        ..PLAIN
    },
    Written {
        format: "huggingface",
        line: "{⟨'loss': ¤, ⟩'grad_norm': 1.25, 'learning_rate': 4.9e-05, 'epoch': 0.02}",
        ..PLAIN
    },
    Written {
        format: "huggingface",
        line: "{⟨'loss': ¤, ⟩'grad_norm': 1.25, 'learning_rate': 4.9e-05, 'num_tokens': §000, 'epoch': 0.02, 'global_step/max_steps': '§/500'}",
        ..PLAIN
    },
    Written {
        format: "torchtitan",
        line: "[rank0]:[titan] 2026-05-18 16:04:48,577 - root - INFO - step: §⟨  loss:  ¤⟩  grad_norm:  0.5443  memory:  9.46GiB(64.99%)  tps: 7,313  tflops: 0.52  mfu: 0.17%",
        ..PLAIN
    },
    Written {
        format: "nemo",
        line: "Training epoch 0, iteration §/149 | lr: 3e-05 | consumed_samples: 123 | global_batch_size: 1 | global_step: § |⟨ reduced_train_loss: ¤ |⟩ train_step_timing in s: 0.03215",
        ..PLAIN
    },
    Written {
        format: "nemo",
        line: "2026-08-10 15:49:07 | INFO | root | step § | epoch 0 |⟨ loss ¤ |⟩ grad_norm 1.0398 | lr 1.00e-05 | mem 32.47 GiB | tps 10021.50(1252.69/gpu) | num_label_tokens 37370",
        ..PLAIN
    },
    Written {
        format: "nemo-rl",
        line: "========================= Step §/1000 =========================\n▶ Preparing batch...\n📊 Training Results:\n⟨  • Loss: ¤\n⟩  • Avg Reward: 0.4123\n⏱️  Timing:\n  • Total step time: 60.12s\n  • policy_training: 20.1s (33.3%)",
        end: Some("other"),
        ..PLAIN
    },
    Written {
        format: "nanotron",
        line: "10/17/2025 16:32:19 [INFO|DP=0|PP=0|TP=0]: iteration: § / 378950 | consumed_tokens: 85.8G | elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 22.8K |⟨ lm_loss: ¤ |⟩ lr: 1e-05 | grad_norm: 1.21",
        word: None,
        ..PLAIN
    },
    Written {
        format: "olmo",
        line: "2026-06-22 10:00:00.123\tnode-3:0\tolmo_core.train.callbacks.console_logger:62\tINFO\t[step=§/1000,epoch=1,eta=1:02:03]\n⟨    train/CE loss=¤\n⟩    optim/total grad norm=0.4312\n    throughput/device/TPS=12,345",
        end: Some("other"),
        ..PLAIN
    },
    Written {
        format: "maxtext",
        line: "I0706 16:50:26.257925 140110937163584 metric_logger.py:214] completed step: §, seconds: 0.570, TFLOP/s/device: 37.633, Tokens/s/device: 7185.042, total_weights: 5480⟨, loss: ¤⟩, lm_loss: 0.000, perplexity: 2.000",
        ..PLAIN
    },
    Written {
        format: "verl",
        line: "step:§ -⟨ actor/pg_loss:¤ -⟩ actor/grad_norm:2.060 - actor/lr:0.010 - critic/rewards/mean:0.5 - perf/throughput:300.0",
        ..PLAIN
    },
    Written {
        format: "nanochat",
        line: "step 0§/21400 (0.05%) |⟨ loss: ¤ |⟩ lrm: 1.00 | dt: 412.33ms | tok/sec: 1,271,000 | bf16_mfu: 46.10 | epoch: 1 | total time: 0.10m",
        ..PLAIN
    },
    Written {
        format: "nanochat",
        line: "Step 0§/00900 |⟨ Training loss: ¤|⟩ lrm: 0.900000| num_tokens: 1,234",
        ..PLAIN
    },
    Written { format: "nanogpt", line: "iter §: ⟨loss ¤, ⟩time 135.20ms, mfu 38.12%", ..PLAIN },
    Written {
        format: "modded-nanogpt",
        line: "step:§/1845⟨ train_loss:¤⟩ train_time:§00ms step_avg:100.00ms",
        ..PLAIN
    },
    Written {
        format: "llmc",
        line: "step   §/7400 |⟨ loss ¤ (+0.12z)|⟩ norm 0.4321 (-0.30z)| lr 6.00e-04 | 123.45 ms | 51.2% bf16 MFU | 431234 tok/s",
        ..PLAIN
    },
    Written { format: "llmc", line: "s:§⟨ trl:¤⟩ lr:0.000600 norm:0.43", ..PLAIN },
    Written { format: "llmc", line: "s:§⟨ trl:¤⟩", bare: true, ..PLAIN },
    Written {
        format: "composer",
        line: "[batch=§/1000]:\n\t Train time/epoch: 0\n⟨\t Train loss/train/total: ¤\n⟩\t Train lr-DecoupledAdamW/group0: 1e-05",
        end: Some("other"),
        ..PLAIN
    },
    Written {
        format: "build-nanogpt",
        line: "step     § |⟨ loss: ¤ |⟩ lr 1.6783e-06 | norm: 14.9931 | dt: 330.12ms | tok/sec: 1588123.45",
        ..PLAIN
    },
    Written { format: "build-nanogpt", line: "§ train⟨ ¤⟩", bare: true, ..PLAIN },
    Written {
        format: "torchtune",
        line: "Step § |⟨ loss:¤⟩ lr:2e-05 tokens_per_second_per_gpu:655.93",
        ..PLAIN
    },
    Written {
        format: "torchtune",
        line: "1|§|Loss: ⟨¤⟩:   2%|\u{258f}         | §/5000 [01:00<50:00,  1.63it/s]",
        ..PLAIN
    },
    Written {
        format: "lingua",
        line: "0: INFO    24-10-21 10:00:00.500000 - 0:00:10 - step: §  acc: 0⟨  loss:  ¤⟩  grad: 1.23e+00  flops: 4.05e+14  wps: 1.12e+04  iter:  0.4123  data: 0.0012  lr: 3.00e-04  mem: 61%  pow: 650.1 W",
        ..PLAIN
    },
    Written {
        format: "openrlhf",
        line: "(PPOTrainer pid=1234) \u{2728} Global step §: {⟨'policy_loss': ¤, ⟩'actor_lr': 5e-07, 'reward': 0.5, 'timing/step_total': 31.5}",
        ..PLAIN
    },
    Written {
        format: "openrlhf",
        line: "Train step of epoch 0:  12%|\u{2588}\u{258f}        | §/100 [00:03<00:25,  3.50it/s⟨, gpt_loss=¤⟩, lr=1e-5, grad_norm=0.5]",
        ..PLAIN
    },
    Written {
        format: "litgpt",
        line: "Epoch 4 | iter § step § |⟨ loss train: ¤,⟩ val: 1.057 | iter time: 115.27 ms (step)",
        ..PLAIN
    },
    Written {
        format: "litgpt",
        line: "iter § step §: ⟨loss ¤, ⟩iter time: 215.31ms (optimizer.step)",
        ..PLAIN
    },
    Written {
        format: "levanter",
        line: "2025-09-26T10:00:00 - 0 - tqdm_loggable.tqdm_logging - tqdm_logging.py:145 - INFO :: Progress on:train §it/10.0kit rate:1.1it/s remaining:2:25:00 elapsed:1:00:§ postfix:⟨loss=¤⟩",
        ..PLAIN
    },
    Written {
        format: "deepspeed",
        line: "steps: §⟨ loss: ¤⟩ iter time (s): 145.206 samples/sec: 7.052",
        ..PLAIN
    },
    Written { format: "generic", line: "step § |⟨ loss ¤ |⟩ lr 1e-05 | wd 0.1 | 410 ms", ..PLAIN },
    Written {
        format: "generic",
        line: "§:⟨ Loss ¤ |⟩ LR 8.4e-07 | Time 20119.00ms | Weight Decay 0.1",
        ..PLAIN
    },
    Written {
        format: "generic",
        line: "Epoch 0:   1%|          | §/40320 [01:00<6:00:00,  1.86it/s⟨, loss=¤⟩, lr=6e-4, Kt/s=122.0]",
        ..PLAIN
    },
    Written { format: "generic", line: "step: §⟨ | loss: ¤⟩", bare: true, ..PLAIN },
];

impl Written {
    fn step(&self, step: i64, loss: &str) -> String {
        let line = match self.line.split_once('⟨').filter(|_| loss.is_empty()) {
            Some((head, rest)) => format!("{head}{}", rest.split_once('⟩').unwrap().1),
            None => self.line.replace(['⟨', '⟩'], ""),
        };
        line.replace('§', &(100 + step).to_string()).replace('¤', loss)
    }

    fn read(&self, losses: &[&str]) -> Vec<Event> {
        let mut reader = LogReader::new(None).unwrap();
        let mut events = Vec::new();
        for (step, loss) in (1..).zip(losses) {
            for line in self.step(step, loss).lines().chain(self.end) {
                reader.line(line, &mut events);
            }
        }
        assert_eq!(reader.name(), self.format, "{}", self.line);
        events
    }

    /// The steps that lack something, and what, of a log whose losses are these.
    fn missing(&self, losses: &[&str]) -> Vec<(i64, Vec<String>)> {
        let events = self.read(losses);
        let steps = events.iter().filter(|e| e.kind == Kind::Step && !e.missing.is_empty());
        steps.map(|e| (e.step.unwrap(), e.missing.clone())).collect()
    }
}

/// Losses, each another, of so many steps.
fn losses(n: i64) -> Vec<String> {
    (0..n).map(|i| format!("{:.4}", 9.5 - 0.0625 * i as f64)).collect()
}

fn and<'a>(losses: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    losses.iter().map(String::as_str).chain(more.iter().copied()).collect()
}

/// Steps are counted from 101, and where the log has none, from 1.
fn at(written: &Written, step: i64) -> i64 {
    if written.line.contains('§') { 100 + step } else { step }
}

/// All that is not as it should be.
fn none_differs(of: impl Fn(&Written) -> Option<String>) {
    let wrong: Vec<_> = WRITTEN.iter().filter_map(|w| Some(format!("{}\n    {}", w.line, of(w)?))).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_format_is_here() {
    let none = ["auto", "megatron-progress"];
    for name in names().into_iter().filter(|name| !none.contains(name)) {
        assert!(WRITTEN.iter().any(|w| w.format == name), "{name}");
    }
}

#[test]
fn a_loss_that_vanishes_from_its_line_is_missing_in_every_format() {
    let usual = losses(USUAL + 2);
    none_differs(|written| {
        let last = at(written, USUAL + 3);
        let more: &[&str] = if written.bare { &["", ""] } else { &[""] };
        let want: Vec<_> = (last..).take(more.len()).map(|step| (step, vec!["loss".to_owned()])).collect();
        let found = written.missing(&and(&usual, more));
        (found != want).then(|| format!("{found:?}"))
    });
}

#[test]
fn a_loss_that_turns_into_a_word_is_missing_in_every_format() {
    let usual = losses(3);
    none_differs(|written| {
        let found = written.missing(&and(&usual, &[written.word?]));
        let want = [(at(written, 4), vec!["loss".to_owned()])];
        (found != want).then(|| format!("{found:?}"))
    });
}

#[test]
fn a_loss_of_nan_is_a_number_that_is_not_finite_in_every_format() {
    let usual = losses(3);
    none_differs(|written| {
        let nan = if written.format == "jsonl" { "NaN" } else { "nan" };
        let events = written.read(&and(&usual, &[nan]));
        let last = events.iter().rfind(|e| e.kind == Kind::Step);
        let lost = last.is_some_and(|e| e.m.get("loss").is_some_and(f64::is_nan));
        (!lost).then(|| format!("{last:?}"))
    });
}

/// Each format that writes its values by name, and a value of its own that it can write as nothing.
const OWN: &[(&str, &str, &str)] = &[
    ("jsonl", r#"{"step": §, "loss": 2.5, "lr": 1e-05, "reward": ¤}"#, "null"),
    ("huggingface", "{'loss': 2.5, 'learning_rate': 4.9e-05, 'reward': ¤, 'epoch': 0.02}", "None"),
    ("verl", "step:§ - actor/pg_loss:2.5 - actor/lr:0.1 - reward:¤ - perf/throughput:300.0", "None"),
    ("openrlhf", "Global step §: {'policy_loss': 2.5, 'actor_lr': 5e-07, 'reward': ¤}", "None"),
    ("torchtune", "Step § | loss:2.5 lr:2e-05 reward:¤ tokens_per_second_per_gpu:655.93", "None"),
    ("maxtext", "completed step: §, seconds: 0.570, loss: 2.5, reward: ¤", "None"),
    ("nanogpt", "iter §: loss 2.5, time 135.20ms, reward ¤", "None"),
];

#[test]
fn a_metric_of_its_own_that_turns_into_a_word_is_missing() {
    let usual = losses(USUAL);
    for (format, line, word) in OWN {
        let written = Written { format, line, ..PLAIN };
        let want = vec![(at(&written, USUAL + 1), vec!["reward".to_owned()])];
        assert_eq!(written.missing(&and(&usual, &[word])), want, "{line}");
    }
}

/// What is logged only now and then is not missed, however long.
#[test]
fn a_loss_of_every_other_line_is_not_missed() {
    let all = losses(90);
    for every in [2, 3, 10] {
        let some: Vec<_> =
            (0..).zip(&all).map(|(i, l)| if i < 2 || i % every == 0 { l.as_str() } else { "" }).collect();
        none_differs(|written| {
            // Megatron's own line always has its loss, unless it is not a number.
            let found = if written.format == "megatron" { Vec::new() } else { written.missing(&some) };
            (!found.is_empty()).then(|| format!("every {every}: {found:?}"))
        });
    }
}
