mod blocks;
mod epochs;
mod lost;
mod own_loss;
mod shapes;
mod tokens;

use proptest::prelude::*;
use stepwatch_wire::{Event, Kind};

use super::Generic;
use crate::LogReader;
use crate::line_formats::samples::{PLAIN, Sampled, Written};

impl Sampled for Generic {
    const LOGS: &'static [&'static str] = &[];
    const WRITTEN: &'static [Written] = &[
        Written { line: "step § |⟨ loss ¤ |⟩ lr 1e-05 | wd 0.1 | 410 ms", ..PLAIN },
        Written { line: "§:⟨ Loss ¤ |⟩ LR 8.4e-07 | Time 20119.00ms | Weight Decay 0.1", ..PLAIN },
        Written {
            line: "Epoch 0:   1%|          | §/40320 [01:00<6:00:00,  1.86it/s⟨, loss=¤⟩, lr=6e-4, Kt/s=122.0]",
            ..PLAIN
        },
        Written { line: "step: §⟨ | loss: ¤⟩", bare: true, ..PLAIN },
    ];
}

fn read_with(mut r: LogReader, lines: &[&str]) -> Vec<Event> {
    let mut out = Vec::new();
    for l in lines {
        r.line(l, &mut out);
    }
    out
}

fn read(lines: &[&str]) -> Vec<Event> {
    read_with(LogReader::new(Some("generic")).unwrap(), lines)
}

fn auto(lines: &[&str]) -> Vec<Event> {
    read_with(LogReader::new(None).unwrap(), lines)
}

fn one(line: &str) -> (Option<i64>, Vec<(String, f64)>) {
    let e = read(&[line]).pop().unwrap_or_else(|| panic!("nothing in {line}"));
    (e.step, e.m.iter().map(|(k, v)| (k.to_owned(), v)).collect())
}

/// What LeRobot prints at a step, which it rounds to thousands from 1000 on (`format_big_number`).
fn lerobot(step: &str, episodes: &str, loss: &str, norm: &str) -> String {
    format!(
        "INFO 2026-05-29 03:52:45 train.py:232 step:{step} smpl:8K ep:{episodes} epch:0.24 loss:{loss} grdn:{norm} lr:1.0e-05 updt_s:0.101 data_s:0.010"
    )
}

#[test]
fn a_step_in_thousands_is_rounded() {
    let line = |step: &str, loss: &str, norm: &str| lerobot(step, "14", loss, norm);
    let lines = [
        line("800", "0.123", "0.5"),
        line("1K", "0.122", "0.5"),
        // At 1200, and at 1400, where a second loss is lost.
        line("1K", "0.121", "0.5"),
        line("1K", "nan", "0.5"),
        line("2K", "0.119", "0.5"),
        line("2K", "0.118", "inf"),
        line("3K", "0.118", "0.5"),
        line("1M", "nan", "nan"),
    ];
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    for e in [read(&lines), auto(&lines)] {
        let steps: Vec<_> = e.iter().map(|e| e.step.unwrap()).collect();
        assert_eq!(steps, [800, 1000, 1001, 2000, 2001, 3000, 1_000_000]);
        assert_eq!(e[1].m.get("loss"), Some(0.122), "the numbers of a published step stay");
        assert!(e[2].m.get("loss").unwrap().is_nan());
        assert_eq!(e[4].m.get("grad_norm"), Some(f64::INFINITY));
        assert!(e[6].m.get("loss").unwrap().is_nan());
    }
    let lines = [line("12K", "0.2", "0.5"), line("12K", "nan", "0.5")];
    let e = auto(&[&lines[0], &lines[1]]);
    assert_eq!(e.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [12_000, 12_001], "joined late");
    // A batch is no step, and is counted in thousands where it is a size.
    assert_eq!(read(&["batch: 4K, loss: 2.5", "step: 4th, loss: 2.5"]), []);
}

#[test]
fn a_rounded_step_does_not_begin_again_with_an_epoch() {
    let lines = [("900", "998"), ("1K", "999"), ("1K", "1K"), ("2K", "1K"), ("2K", "3K"), ("3K", "4K")];
    let lines: Vec<_> = lines.iter().map(|(step, episodes)| lerobot(step, episodes, "0.1", "0.5")).collect();
    let e = read(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let seen: Vec<_> = e.iter().map(|e| (e.step.unwrap(), e.m.get("epoch").unwrap())).collect();
    assert_eq!(seen, [(900, 998.0), (1000, 999.0), (2000, 1000.0), (3000, 4000.0)]);
}

#[test]
fn lines_that_people_print() {
    for (line, step, metrics) in [
        ("step 100 loss 2.345", 100, &[("loss", 2.345)][..]),
        ("step12: loss=2.5", 12, &[("loss", 2.5)]),
        ("Step 12/100 | train_loss 2.5 | gnorm 0.7", 12, &[("loss", 2.5), ("grad_norm", 0.7)]),
        ("[12/100] loss: 2.5, lr: 3e-4", 12, &[("loss", 2.5), ("lr", 3e-4)]),
        ("12/100 loss 2.5", 12, &[("loss", 2.5)]),
        ("INFO:trainer:iter=7 lm loss=2.5 dt=412.5ms", 7, &[("loss", 2.5), ("step_time", 0.4125)]),
        ("Epoch: 1, Global Step: 700, Batch: 3, Loss: 0.5", 700, &[("loss", 0.5), ("epoch", 1.0)]),
        (
            "| step    12 | loss 2.5 | 123.5 ms | 51.2% bf16 MFU | 4,376 tok/s |",
            12,
            &[("loss", 2.5), ("step_time", 0.1235), ("mfu_reported", 0.512), ("tokens_per_second", 4376.0)],
        ),
        (
            "update 5 - train loss 2.5 - ppl 12.2 - tokens/s 14.5K",
            5,
            &[("loss", 2.5), ("ppl", 12.2), ("tokens_per_second", 14500.0)],
        ),
        ("it 3: avg_loss 2.5 (2.6), grad-norm nan", 3, &[("loss", 2.5), ("grad_norm", f64::NAN)]),
        (
            "{'step': 5, 'loss': tensor(2.5, device='cuda:0'), 'mfu': 41.5}",
            5,
            &[("loss", 2.5), ("mfu_reported", 0.415)],
        ),
        ("Training step 5, policy_loss: 0.25, kl: 0.01", 5, &[("loss", 0.25), ("kl", 0.01)]),
        (
            "Step 5 | Loss: 0.25 | LR: 1.00e-06 | Throughput: 12345 tokens/s | MFU: 30.1%",
            5,
            &[("loss", 0.25), ("lr", 1e-6), ("tokens_per_second", 12345.0), ("mfu_reported", 0.301)],
        ),
        ("step 9 loss 1.5 [host 10.0.0.1:29500, torch 2.7.1, 12:34:56]", 9, &[("loss", 1.5)]),
        ("time=12:34:56 step=9 loss=1.5 time=250ms", 9, &[("loss", 1.5), ("step_time", 0.25)]),
    ] {
        let (got, m) = one(line);
        assert_eq!(got, Some(step), "{line}");
        let same = m.len() == metrics.len()
            && m.iter()
                .zip(metrics)
                .all(|((k, v), (name, want))| k == name && (v == want || v.is_nan() && want.is_nan()));
        assert!(same, "{line}: {m:?}");
    }
}

#[test]
fn what_is_no_step() {
    for line in [
        "Downloading 12/100",
        "Downloading shards:  12%|█▏        | 12/100 [00:03<00:25, 3.50it/s]",
        "Downloading step 12/100 loss_curves.png 5",
        "step 5",
        "loss 2.5",
        "step 5 time 3.2",
        "step 5 lr 0.1",
        "the loss at step 500 was 2.3",
        "Resumed from step 500 with loss 2.31",
        "Saved checkpoint at step 1000 (loss 2.31)",
        "best loss 2.3 at step 500",
        "  File \"train.py\", line 12, in step",
        "RuntimeError: loss is nan at step 5",
        "connecting to 10.0.0.1:29500 step rank 3",
        "step 5.5 loss 2",
        "step -5 loss 2",
        "step 12 of warmup at lr_scheduler.py:120",
        "2026-05-29 03:52:45 loss 05/29/2026",
        "[2026-05-29 03:52:45] starting",
    ] {
        assert_eq!(read(&[line, line]), [], "{line}");
    }
}

#[test]
fn evaluations_are_no_steps() {
    let e = read(&[
        "step 100 | loss 2.5",
        "step 100 | val_loss 2.75 | val_acc 0.5",
        "Validation: [10/50] loss 3.5",
        "Validation: step 100 loss 2.7",
        "step 200 | train loss 2.25, val loss 2.5",
    ]);
    let got: Vec<_> = e.iter().map(|e| (e.kind, e.step, e.name.as_deref(), e.m.get("loss"))).collect();
    assert_eq!(
        got,
        [
            (Kind::Step, Some(100), None, Some(2.5)),
            (Kind::Eval, Some(100), Some("val"), Some(2.75)),
            (Kind::Eval, Some(100), Some("eval"), Some(2.7)),
            (Kind::Step, Some(200), None, Some(2.25)),
            (Kind::Eval, Some(200), Some("val"), Some(2.5)),
        ]
    );
    assert_eq!(e[1].m.get("acc"), Some(0.5));
}

#[test]
fn the_policy_stands_for_the_loss_where_a_run_tells_none() {
    let lost = read(&[
        "step: 4, policy_loss: 0.25, raw_grad_norm: 0.5",
        "step: 5, policy_loss: nan, raw_grad_norm: nan",
    ]);
    assert_eq!((lost[0].m.get("loss"), lost[0].m.get("grad_norm")), (Some(0.25), Some(0.5)));
    assert!(lost[1].m.get("loss").unwrap().is_nan() && lost[1].m.get("grad_norm").unwrap().is_nan());
    let both = read(&[
        "step 4 | loss 2.5 | policy loss: 0.25",
        "step 5 | policy loss: 0.25 | kl 0.1",
        "Validation: step 5 | actor loss: 0.25",
    ]);
    let losses: Vec<_> = both.iter().map(|e| (e.kind, e.m.get("loss"))).collect();
    assert_eq!(losses, [(Kind::Step, Some(2.5)), (Kind::Step, None), (Kind::Eval, None)]);
    let critic = read(&["step 5 | critic loss: nan | policy_entropy_loss: 0.5"]);
    assert_eq!(critic[0].m.get("loss"), None, "of another model, and a part");
}

#[test]
fn a_header_before_a_fraction_may_be_any_word_but_one_of_an_evaluation() {
    let steps = |head: &str, behind: &str| {
        let line = |n: i64| format!("{head}  [{n:>6}/125000]  {behind}loss: 5.1 (5.2)  max mem: 1000");
        let seen = read(&[&line(10), &line(20)]);
        seen.iter().map(|e| (e.kind, e.step.unwrap(), e.m.get("loss"))).collect::<Vec<_>>()
    };
    let eta = "eta: 1 day, 2:03:04  lr: 0.001 (0.001)  ";
    let want = [(Kind::Step, 10, Some(5.1)), (Kind::Step, 20, Some(5.1))];
    let logger = "I20260529 03:52:45 1234 dinov2 helpers.py:102] ";
    for head in ["Training", "Train", "Pretrain"] {
        assert_eq!(steps(head, eta), want, "{head}");
        assert_eq!(steps(&format!("{logger}{head}"), eta), want, "{head}");
    }
    assert_eq!(steps("Training", ""), want);
    for head in ["Test:", "Test", "Eval", "Validation:", "Evaluating", "GPU", "Epoch"] {
        assert_eq!(steps(head, eta), [], "{head}");
        assert_eq!(steps(&format!("{logger}{head}"), eta), [], "{head}");
    }
    assert_eq!(steps("Fold", ""), [], "it counts something else");
}

#[test]
fn a_stray_line_is_no_run() {
    assert_eq!(auto(&["step 1 loss 2.5", "noise", "more noise"]), []);
    let steps = |lines: &[&str]| auto(lines).iter().map(|e| e.step.unwrap()).collect::<Vec<_>>();
    assert_eq!(steps(&["step 1 loss 2.5", "noise", "step 2 loss 2.4", "step 3 loss 2.3"]), [1, 2, 3]);
    assert_eq!(steps(&["step 1 loss 2.5", "step 1 loss 2.5"]), [0; 0]);
    assert_eq!(
        steps(&["step 5 loss 2.5", "step 2 loss 2.4", "step 3 loss 2.4"]),
        [2, 3],
        "5 was of something else"
    );
    assert_eq!(
        steps(&["step 1 loss 2.5", "step 2 mfu 0.1", "step 3 mfu 0.1"]),
        [2, 3],
        "they must agree on what they carry"
    );
}

#[test]
fn a_frameworks_own_grammar_wins() {
    let megatron =
        |n: i64| format!(" iteration {n}/ 100 | elapsed time per iteration (ms): 10.0 | lm loss: 2.5 |");
    let (a, b) = (megatron(1), megatron(2));
    let mut r = LogReader::new(None).unwrap();
    let mut out = Vec::new();
    for l in [
        "step 1 loss 2.5",
        "step 2 loss 2.4",
        &a,
        "step 3 loss 2.5",
        "step 4 loss 2.5",
        &b,
        "step 5 loss 2.5",
    ] {
        r.line(l, &mut out);
    }
    assert_eq!(r.name(), "megatron");
    assert_eq!(out.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [1, 2, 1, 2]);
    // Another job in the same file, after all.
    let lines: Vec<_> = (1..40).map(|n| format!("step {n} loss 2.5")).collect();
    out.clear();
    for l in &lines {
        r.line(l, &mut out);
    }
    assert_eq!((r.name(), out.len(), out[0].step), ("generic", 39, Some(1)), "and nothing is lost");
}

#[test]
fn steps_that_begin_again_with_each_epoch_count_on() {
    let steps = |lines: &[&str]| read(lines).iter().map(|e| e.step.unwrap()).collect::<Vec<_>>();
    let line = |e: i64, s: i64| format!("Epoch [{e}/3], Step [{s}/600], Loss: 0.5");
    let lines: Vec<_> = [(1, 300), (1, 600), (2, 300), (2, 600), (3, 300)].map(|(e, s)| line(e, s)).to_vec();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    assert_eq!(steps(&lines), [300, 600, 900, 1200, 1500]);
    assert_eq!(steps(&["Epoch: [0][ 10/90] Loss 6.9 (6.9)", "Epoch: [1][ 0/90] Loss 6.9 (6.9)"]), [10, 90]);
    assert_eq!(
        steps(&["[1,  2000] loss: 2.2", "[1, 12000] loss: 1.3", "[2,  2000] loss: 1.2"]),
        [2000, 12000, 14000]
    );
    assert_eq!(
        steps(&["epoch 0 step 500 loss 1", "epoch 1 step 600 loss 1"]),
        [500, 600],
        "it counts on itself"
    );
    let bar =
        |e: i64, n: i64| format!("Epoch {e}:  12%|█▏| {n}/100 [00:03<00:25, 3.50it/s, v_num=0, loss=2.34]");
    let bars = [bar(0, 50), bar(0, 50), bar(0, 100), bar(1, 50)];
    let e = read(&bars.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(e.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [50, 100, 150]);
    assert_eq!(e[0].m.iter().collect::<Vec<_>>(), [("loss", 2.34), ("epoch", 0.0)]);
    // A bar that begins again is drawn at 0 under the old epoch first.
    let anew = [bar(0, 100), bar(0, 0), bar(1, 0), bar(1, 50)].map(|b| b.replace("v_num=0, ", ""));
    let e = read(&anew.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(e.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [100, 150]);
    // A restart of the job that goes back two epochs.
    assert_eq!(steps(&[lines[0], lines[4], lines[0]]), [300, 1500, 300]);
}

#[test]
fn epochs_of_the_examples_of_pytorch_count_on() {
    let got = read(&[
        "Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.5",
        "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.25",
        "Train Epoch: 2 [0/60000 (0%)]\tLoss: 2.0",
        "Train Epoch: 2 [640/60000 (1%)]\tLoss: 1.75",
    ]);
    let steps: Vec<_> = got.iter().map(|e| (e.step.unwrap(), e.m.get("epoch").unwrap())).collect();
    assert_eq!(steps, [(0, 1.0), (640, 1.0), (60_000, 2.0), (60_640, 2.0)]);
}

#[test]
fn fractions_behind_a_comma_are_not_guessed() {
    assert!(read(&["step 5 loss 2,15 lr 0,001"]).is_empty());
    assert_eq!(one("step 5 loss 2.5 lr 0,001"), (Some(5), vec![("loss".to_owned(), 2.5)]));
    assert_eq!(one("step 1,005 loss 2.5").0, Some(1005));
}

#[test]
fn what_syslog_puts_before_a_line_is_no_metric() {
    let line = "Nov 20 10:00:05 gpu-1 python[4242]: step 5 loss 2.5";
    assert_eq!(one(line), (Some(5), vec![("loss".to_owned(), 2.5)]));
    let lost = |i: u8| format!("Nov 20 10:00:0{i} gpu-1 kernel: eth0: packet loss {i} at step {i}");
    assert!(auto(&[&lost(1), &lost(2), &lost(3)]).is_empty());
}

#[test]
fn counts_on_after_a_restart_of_the_reader() {
    let mut r = LogReader::new(Some("generic")).unwrap();
    let mut out = Vec::new();
    r.line("Epoch [3/9], Step [300/600], Loss: 0.5", &mut out);
    r.resume(1500);
    r.line("Epoch [3/9], Step [400/600], Loss: 0.5", &mut out);
    assert_eq!(out[1].step, Some(1600));
}

#[test]
fn ranks_that_the_line_itself_gives() {
    let e = read(&["rank 3 | step 5 | loss 2.5", "step 5 | rank: 1 | loss 2.5"]);
    assert_eq!(e.iter().map(|e| e.rank).collect::<Vec<_>>(), [Some(3), Some(1)]);
}

#[test]
fn a_loss_of_none_is_missing() {
    let e = read(&[
        "step 13 loss 2.5 lr 0.1",
        "step 14 loss None",
        "step 15 | loss: None, lr 0.1",
        "step 16 val_loss None",
    ]);
    let got: Vec<_> = e.iter().map(|e| (e.step.unwrap(), e.m.get("loss"), e.missing.len())).collect();
    assert_eq!(got, [(13, Some(2.5), 0), (14, None, 1), (15, None, 1)]);
    assert_eq!(e[1].missing, ["loss"]);
}

#[test]
fn steps_of_an_epoch_in_brackets_count_on() {
    let steps = |lines: &[&str]| read(lines).iter().map(|e| e.step.unwrap()).collect::<Vec<_>>();
    let timm = [
        "Train: 0 [  50/1251 (  4%)]  Loss: 6.93 (6.94)  Time: 0.250s, 1024.00/s  (0.25s, 1024.00/s)  LR: 1.000e-05  Data: 0.010 (0.02)",
        "Train: 0 [1250/1251 (100%)]  Loss: 6.8 (6.94)  Time: 0.250s, 1024.00/s  (0.25s, 1024.00/s)  LR: 1.000e-05  Data: 0.010 (0.02)",
        "Train: 1 [   0/1251 (  0%)]  Loss: 6.7 (6.94)  Time: 0.250s, 1024.00/s  (0.25s, 1024.00/s)  LR: 1.000e-05  Data: 0.010 (0.02)",
    ];
    assert_eq!(steps(&timm), [50, 1250, 1251]);
    let mmengine = [
        "2024/01/01 10:00:00 - mmengine - INFO - Epoch(train)  [1][ 90/100]  lr: 1.0e-02  eta: 0:01:00  time: 0.25  data_time: 0.01  memory: 1000  loss: 2.5",
        "2024/01/01 10:00:20 - mmengine - INFO - Epoch(train)  [2][ 10/100]  lr: 1.0e-02  eta: 0:01:00  time: 0.25  data_time: 0.01  memory: 1000  loss: 2.4",
        "2024/01/01 10:00:40 - mmengine - INFO - Epoch(train)  [2][ 20/100]  lr: 1.0e-02  eta: 0:01:00  time: 0.25  data_time: 0.01  memory: 1000  loss: 2.3",
    ];
    assert_eq!(steps(&mmengine), [90, 110, 120]);
}

#[test]
fn the_source_location_of_loguru_is_no_metric() {
    let line = "2026-11-21 06:12:00.123 | INFO     | __main__:train:41 - step 5 loss 2.5";
    assert_eq!(one(line), (Some(5), vec![("loss".to_owned(), 2.5)]));
}

/// How a number is printed.
#[derive(Debug, Clone, Copy)]
enum Print {
    Decimals(usize),
    Exponent(usize),
    Shortest,
}

impl Print {
    fn text(self, v: f64) -> String {
        match self {
            Self::Decimals(n) => format!("{v:.n$}"),
            Self::Exponent(n) => format!("{v:.n$e}"),
            Self::Shortest => format!("{v}"),
        }
    }
}

fn print() -> impl Strategy<Value = Print> {
    prop_oneof![
        (1usize..9).prop_map(Print::Decimals),
        (1usize..9).prop_map(Print::Exponent),
        Just(Print::Shortest)
    ]
}

/// Names of a metric with the metric they mean.
const NAMES: &[(&str, &str)] = &[
    ("loss", "loss"),
    ("train_loss", "loss"),
    ("train/loss", "loss"),
    ("lm loss", "loss"),
    ("Loss", "loss"),
    ("gnorm", "grad_norm"),
    ("grad-norm", "grad_norm"),
    ("grad norm", "grad_norm"),
    ("Grad_Norm", "grad_norm"),
    ("lr", "lr"),
    ("learning rate", "lr"),
    ("learning_rate", "lr"),
    ("dt", "step_time"),
    ("step_time", "step_time"),
    ("tok/s", "tokens_per_second"),
    ("tokens/sec", "tokens_per_second"),
    ("kl", "kl"),
    ("aux_loss", "aux_loss"),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn printed_values_are_read_back_exactly(
        step in 0i64..10_000_000,
        step_name in prop::sample::select(vec!["step", "Step", "iter", "iteration", "global_step", "it", "update", "batch"]),
        total in prop::option::of(1i64..1_000_000),
        to_value in prop::sample::select(vec![": ", "=", " = ", " ", ":", "\t", "   ", " : "]),
        between in prop::sample::select(vec![" | ", ", ", "  ", "\t", " - ", "; ", " || ", ",  ", "] ["]),
        loss in (0.001f64..100.0, print()),
        others in prop::collection::vec((prop::sample::select(NAMES.to_vec()), 1e-7f64..1e6, print()), 0..6),
        head in prop::sample::select(vec!["", "INFO - ", "[INFO] ", "trainer.py:123 ", "2026-05-29 03:52:45 ", "3: "]),
    ) {
        let mut want = vec![("loss", loss.1.text(loss.0))];
        let mut fields = vec![format!("loss{to_value}{}", want[0].1)];
        for ((name, ours), value, print) in others {
            if want.iter().all(|(n, _)| n != &ours) {
                want.push((ours, print.text(value)));
                fields.push(format!("{name}{to_value}{}", print.text(value)));
            }
        }
        let of = total.map_or(String::new(), |t| format!("/{t}"));
        let line = format!("{head}{step_name}{to_value}{step}{of}{between}{}", fields.join(between));
        let events = read(&[&line]);
        prop_assert_eq!(events.len(), 1, "{}", line);
        prop_assert_eq!((events[0].kind, events[0].step), (Kind::Step, Some(step)), "{}", line);
        for (name, text) in &want {
            prop_assert_eq!(events[0].m.get(name), text.parse().ok(), "{} in {}", name, line);
        }
        prop_assert_eq!(events[0].m.iter().count(), want.len(), "{}", line);
    }

    #[test]
    fn never_panics(lines in prop::collection::vec("\\PC{0,60}", 0..6), near in "(step|loss|epoch|[0-9]+|[:=/|,. ()\\[\\]-]){0,20}") {
        let mut lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        lines.push(&near);
        for e in read(&lines) {
            prop_assert!(e.step.is_some_and(|s| s >= 0));
        }
    }
}

#[test]
fn a_line_of_which_nothing_but_the_step_is_left_is_missed() {
    let missed = |line: &dyn Fn(u32) -> String, then: &[&str]| {
        let lines: Vec<String> = (1..=40).map(line).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).chain(then.iter().copied()).collect();
        let missing = auto(&lines).into_iter().filter(|e| e.missing == ["loss"]);
        missing.map(|e| e.step.unwrap()).collect::<Vec<_>>()
    };
    let line = |s: u32| format!("step: {s} loss: 1.2");
    assert_eq!(missed(&line, &["step: 41", "step: 42", "step: 43"]), [41, 42, 43]);
    assert_eq!(missed(&line, &["step: 41", "step: 42 loss: 1.2"]), [41]);
    let logged = |s: u32| format!("2026-01-01 10:00:{:02} INFO epoch 1 | step {s} | loss 1.25", s % 60);
    let gone =
        ["2026-01-01 10:00:41 INFO epoch 1 | step 41 |", "2026-01-01 10:00:42 INFO epoch 1 | step 42 |"];
    assert_eq!(missed(&logged, &gone), [41, 42]);
    for then in [
        &["step: 41"][..],
        &["step: 41", "step: 41 loss: 1.2", "step: 42", "step: 43"],
        &["step: 40", "step: 41 loss: 1.2"],
        &["saving at step: 41", "saving at step: 42"],
        &["step: 41 saved", "step: 42 saved"],
        &["step: 41/100", "step: 42/100"],
        &["step: 50", "step: 60"],
        &["eval step: 41", "eval step: 42"],
        &["step: 41", "step: 41 eval_loss: 1.3", "step: 42 loss: 1.2"],
    ] {
        assert_eq!(missed(&line, then), [0; 0], "{then:?}");
    }
    let both: Vec<String> = (1..60).flat_map(|s| [format!("step: {s}"), line(s)]).collect();
    let both: Vec<&str> = both.iter().map(String::as_str).collect();
    assert!(auto(&both).iter().all(|e| e.missing.is_empty()), "each step is announced");
}

#[test]
fn a_word_for_nothing_ends_a_name() {
    let e = read(&["step=28 loss=2.5 lr=0.1", "step=29 loss=2.4 lr=0.1", "step=30 loss=null lr=0.1"]);
    let names: Vec<_> = e[2].m.iter().collect();
    assert_eq!((names, e[2].missing.clone()), (vec![("lr", 0.1)], vec!["loss".to_owned()]));
    assert_eq!(one("step 5 loss 2.5 wd None gnorm 0.5").1.len(), 2);
    assert_eq!(one("step 5 null loss 2.5 loss 1.5").1[0], ("null_loss".to_owned(), 2.5), "it began the name");
}

#[test]
fn a_step_without_a_name_may_lack_its_loss() {
    let missed = |line: &dyn Fn(u32) -> String, then: &str| {
        let lines: Vec<String> = (0..26).map(line).chain([then.to_owned()]).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        auto(&lines).into_iter().skip(26).map(|e| (e.step.unwrap(), e.missing)).collect::<Vec<_>>()
    };
    let rest = "Grad Norm 16.8 | LR 8.4e-07 | Time 20119.00ms | Tokens/s 26059";
    let line = |s: u32| format!("{s}: Loss 10.94 | {rest}");
    let lost = vec!["loss".to_owned()];
    for then in [format!("26: Loss None | {rest}"), format!("26: {rest}")] {
        assert_eq!(missed(&line, &then), [(26, lost.clone())], "{then}");
    }
    let bracket = |s: u32| format!("[{s}] loss 2.5, lr 0.1, gnorm 1.0");
    for then in ["[30] loss None, lr 0.1, gnorm 1.0", "[30] lr 0.1, gnorm 1.0", "[30] loss None, lr 0.1"] {
        assert_eq!(missed(&bracket, then)[0].0, 30, "{then}");
    }
    assert_eq!(missed(&bracket, "[30] loss null, lr 0.1, gnorm 1.0"), [(30, lost.clone())]);
    assert_eq!(missed(&bracket, "[30] lr 0.1, gnorm 1.0"), [(30, lost)]);
    for then in [format!("3: {rest}"), "30: LR 0.1 | Time 20ms | Free 5".to_owned()] {
        assert_eq!(missed(&line, &then), [], "{then}");
    }
    let named = |s: u32| format!("step {s} loss 2.5 gnorm 1.0");
    assert_eq!(missed(&named, &format!("30: {rest}")), [], "the steps of this log have a name");
}
