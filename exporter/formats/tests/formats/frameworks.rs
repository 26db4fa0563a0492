//! Every framework's log is recognised as its own and as nobody else's; logs that people published
//! are compared value by value.

#![expect(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use proptest::prelude::*;
use stepwatch_formats::{LogReader, names};
use stepwatch_wire::{CkptPhase, Event, Kind, MAX_EVENT_BYTES};

/// Logs and the format that must be found in them. What was not captured is composed from the
/// trainers' own format strings.
const LOGS: &[(&str, &str)] = &[
    ("megatron", include_str!("../data/bloom176b_loss_spike.log")),
    ("megatron", include_str!("../data/bloom176b_throughput_drop.log")),
    ("megatron", include_str!("../data/bloom176b_eval.log")),
    ("megatron", include_str!("../data/tr8_104b_divergence.log")),
    ("megatron", include_str!("../data/megatron_v2_fp16_skipped.log")),
    ("megatron", include_str!("../data/megatron_deepspeed_3d.log")),
    ("megatron", include_str!("../data/deepspeed_pipe_engine.log")),
    ("megatron", include_str!("../data/megatron_bridge_moe_mtp.log")),
    ("megatron", NEOX),
    ("huggingface", include_str!("../data/hf_msswift.log")),
    ("huggingface", TRANSFORMERS_5),
    ("jsonl", include_str!("../data/nemo_automodel.jsonl")),
    ("torchtitan", include_str!("../data/torchtitan_stdout.log")),
    ("torchtitan", include_str!("../data/torchtitan_2026.log")),
    ("nemo", include_str!("../data/nemo_progress.log")),
    ("nemo", include_str!("../data/nemo_automodel_stdout.log")),
    ("nemo-rl", NEMO_RL),
    ("nanotron", include_str!("../data/nanotron.log")),
    ("olmo", include_str!("../data/olmo.log")),
    ("olmo", OLMO_CORE),
    ("maxtext", include_str!("../data/maxtext_dpo.log")),
    ("verl", include_str!("../data/verl_console.log")),
    ("nanochat", NANOCHAT),
    ("nanogpt", include_str!("../data/nanogpt_nan.log")),
    ("modded-nanogpt", include_str!("../data/modded_nanogpt.log")),
    ("llmc", include_str!("../data/llmc_main.log")),
    ("llmc", include_str!("../data/llmc_tel_trl.log")),
    ("llmc", include_str!("../data/llmc_nan.log")),
    ("composer", include_str!("../data/llmfoundry_console.log")),
    ("composer", include_str!("../data/composer_shearing.log")),
    ("build-nanogpt", BUILD_NANOGPT),
    ("build-nanogpt", "0 val 10.9511\n0 hella 0.2463\n0 train 10.955029\n1 train 9.511034\n"),
    ("torchtune", include_str!("../data/torchtune.log")),
    ("lingua", LINGUA),
    ("openrlhf", OPENRLHF),
    ("litgpt", include_str!("../data/litgpt.log")),
    ("litgpt", include_str!("../data/litgpt_2023.log")),
    ("levanter", LEVANTER),
    ("openrlhf", OPENRLHF_SFT),
    ("deepspeed", include_str!("../data/deepspeed_2020_cifar.log")),
    ("deepspeed", DEEPSPEED),
];

const NEOX: &str = " samples/sec: 12.345 | iteration       10/  320000 | elapsed time per iteration (ms): 1234.5 | learning rate: 1.000E-04 | approx flops per GPU: 120.3TFLOPS | lm_loss: 2.345678E+00 | loss scale: 4096.0 | number of skipped iterations:   0 | number of nan iterations:   0 |\n";
const TRANSFORMERS_5: &str = "{'loss': '2.346', 'grad_norm': '1.203', 'learning_rate': '4.9e-05', 'epoch': '0.02'}\n{'eval_loss': '2.1', 'eval_runtime': '6.1', 'epoch': '0.02'}\n";
const OLMO_CORE: &str = "2026-06-22 10:00:00.123\tnode-3:0\tolmo_core.train.callbacks.console_logger:62\tINFO\t[step=10/1000,epoch=1,eta=1:02:03]\n    train/CE loss=2.345\n    optim/total grad norm=0.4312\n    throughput/device/TPS=12,345\n";
const NEMO_RL: &str = "\n========================= Step 3/100 =========================\n▶ Preparing batch...\n▶ Taking a training step...\n\n📊 Training Results:\n  • Loss: 0.0123\n\n⏱️  Timing:\n  • Total step time: 60.12s\n  • policy_training: 20.10s (33.4%)\n";
const NANOCHAT: &str = "step 00010/21400 (0.05%) | loss: 9.123456 | lrm: 1.00 | dt: 412.33ms | tok/sec: 1,271,000 | bf16_mfu: 46.10 | epoch: 1 | total time: 0.10m\nStep 00250 | Validation bpb: 1.012345\n";
const BUILD_NANOGPT: &str = "validation loss: 10.9511\nstep     0 | loss: 10.955029 | lr 8.3916e-07 | norm: 15.3366 | dt: 27415.62ms | tok/sec: 19123.74\nstep     1 | loss: 10.911112 | lr 1.6783e-06 | norm: 14.9931 | dt: 330.12ms | tok/sec: 1588123.45\n";
const LINGUA: &str = "0: INFO    24-10-21 10:00:00.500000 - 0:00:10 - step: 10  acc: 0  loss:  9.1234  grad: 1.23e+00  flops: 4.05e+14  wps: 1.12e+04  iter:  0.4123  data: 0.0012  lr: 3.00e-04  mem: 61%  pow: 650.1 W\n";
const OPENRLHF: &str = "(PPOTrainer pid=1234) \u{2728} Global step 12: {'policy_loss': 0.0123, 'actor_lr': 5e-07, 'reward': 0.5, 'timing/step_total': 31.5}\n";
const LEVANTER: &str = "2025-09-26T10:00:00 - 0 - tqdm_loggable.tqdm_logging - tqdm_logging.py:145 - INFO :: Progress on:train 108it/10.0kit rate:1.1it/s remaining:2:25:00 elapsed:02:00 postfix:loss=7.5\n";
const OPENRLHF_SFT: &str = "Train step of epoch 0:  12%|\u{2588}\u{258f}        | 12/100 [00:03<00:25,  3.50it/s, gpt_loss=2.34, lr=1e-5, grad_norm=0.5]\n";
const DEEPSPEED: &str = "worker-0: [2023-11-07 01:55:23,711] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[4.99e-05], mom=[(0.9, 0.95)]\nworker-0: [2023-11-07 01:55:23,811] [INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.03, CurrSamplesPerSec=25.70, MemAllocated=4.32GB, MaxMemAllocated=38.49GB\n";

struct Log {
    events: Vec<Event>,
    reader: LogReader,
}

fn read(text: &str, format: Option<&str>) -> Log {
    let mut reader = LogReader::new(format).unwrap();
    let mut events = Vec::new();
    for line in text.lines() {
        reader.line(line, &mut events);
    }
    reader.rest(&mut events);
    Log { events, reader }
}

impl Log {
    fn of_kind(&self, kind: Kind) -> Vec<&Event> {
        self.events.iter().filter(|e| e.kind == kind).collect()
    }

    fn steps(&self) -> Vec<i64> {
        self.of_kind(Kind::Step).iter().map(|e| e.step.unwrap()).collect()
    }

    fn column(&self, name: &str) -> Vec<f64> {
        self.of_kind(Kind::Step).iter().map(|e| e.m.get(name).unwrap()).collect()
    }

    /// Whether a column is this but for what dividing by a unit costs.
    fn reads(&self, name: &str, want: &[f64]) -> bool {
        let column = self.column(name);
        column.len() == want.len() && column.iter().zip(want).all(|(a, b)| (a - b).abs() <= 1e-12 * b.abs())
    }

    fn quantum_is(&self, name: &str, want: f64) -> bool {
        (self.reader.resolution().get(name).unwrap() / want - 1.0).abs() < 1e-9
    }
}

#[test]
fn every_log_is_recognised_as_its_own() {
    for (format, text) in LOGS {
        assert_eq!(read(text, None).reader.name(), *format, "{text:.200}");
    }
}

#[test]
fn no_log_is_read_by_another_format() {
    // The engine's lines stand beside the trainer's, a JSON object is a Python dict too (the list
    // of formats decides), and the last resort reads whatever has a step in it.
    let shared = |log: &str, other: &str| {
        other == "generic" || [("megatron", "deepspeed"), ("jsonl", "huggingface")].contains(&(log, other))
    };
    for (format, text) in LOGS {
        for other in names().into_iter().filter(|o| *o != "auto" && o != format && !shared(format, o)) {
            let log = read(text, Some(other));
            let trained = log.events.iter().find(|e| matches!(e.kind, Kind::Step | Kind::Eval));
            assert!(trained.is_none(), "{other} reads {format}: {trained:?}");
        }
    }
}

#[test]
fn every_format_has_a_log_here() {
    let elsewhere = ["auto", "generic", "megatron-progress"];
    for name in names().into_iter().filter(|n| !elsewhere.contains(n)) {
        assert!(LOGS.iter().any(|(format, _)| *format == name), "{name}");
    }
}

#[test]
fn nemo() {
    let log = read(include_str!("../data/nemo_progress.log"), None);
    assert_eq!(log.steps(), [120, 121, 122, 123]);
    assert_eq!(log.column("loss"), [1.233, 1.288, 1.333, 1.245]);
    assert_eq!(log.column("step_time"), [0.03146, 0.03163, 0.03215, 0.03157]);
    assert_eq!((log.column("lr"), log.column("samples")), (vec![3e-5; 4], vec![1.0; 4]));
    assert_eq!(log.column("consumed_samples"), [121.0, 122.0, 123.0, 124.0]);
    let evals = log.of_kind(Kind::Eval);
    assert_eq!(
        (evals.len(), evals[0].m.get("loss")),
        (1, Some(4.106)),
        "one evaluation, repeated on every line"
    );
    assert!(log.quantum_is("loss", 1e-3) && log.quantum_is("step_time", 1e-5));
    let log = read(include_str!("../data/nemo_automodel_stdout.log"), None);
    assert_eq!(log.steps(), [13, 14, 15, 16]);
    assert_eq!(log.column("loss"), [0.6407, 0.7505, 0.7045, 0.6826]);
    assert_eq!(log.column("grad_norm"), [1.1754, 1.2398, 1.0398, 1.116]);
    assert_eq!(log.column("tokens_per_second"), [6574.51, 10144.41, 10021.5, 7053.11]);
    assert_eq!(log.column("tokens_per_second_per_gpu"), [821.81, 1268.05, 1252.69, 881.64]);
    assert_eq!(log.column("memory_gib"), [31.55, 25.49, 32.47, 23.56]);
    assert_eq!((log.column("lr"), log.events[0].ts), (vec![1e-5; 4], Some(1786376939.0)));
}

#[test]
fn nanotron() {
    let log = read(include_str!("../data/nanotron.log"), None);
    assert_eq!(log.steps(), [327281, 327282, 327283, 991, 992]);
    assert_eq!(log.column("loss"), [2.38, 2.35, 2.51, 10.6, 10.6]);
    assert_eq!(log.column("grad_norm"), [1.25, 1.22, 1.21, 0.515, 0.507]);
    assert_eq!(log.column("step_time"), [11.5, 11.5, 11.5, 0.045, 0.0412]);
    assert_eq!(log.column("tokens_per_second"), [22800.0, 22800.0, 22800.0, 14200.0, 15500.0]);
    assert_eq!(log.column("tokens_per_second_per_gpu"), [11400.0, 11400.0, 11400.0, 1780.0, 1940.0]);
    assert_eq!(log.column("tflops_reported"), [38.3, 38.3, 38.3, 0.00869, 0.0095]);
    assert_eq!(log.column("samples"), [64.0, 64.0, 64.0, 20.0, 20.0], "sequences, in those versions");
    assert_eq!(log.column("consumed_tokens")[0], 85.8e9);
    let stamps: Vec<_> = log.events.iter().map(|e| e.ts.unwrap()).collect();
    assert_eq!(stamps[..3], [1760718716.0, 1760718727.0, 1760718739.0]);
    assert!(log.quantum_is("loss", 0.01) && log.quantum_is("grad_norm", 1e-3));
}

#[test]
fn olmo() {
    let log = read(include_str!("../data/olmo.log"), None);
    assert_eq!((log.steps(), log.events[0].ts), (vec![75], Some(1713467177.0)));
    assert_eq!((log.column("loss"), log.column("tokens_per_second_per_gpu")), (vec![7.417], vec![9407.0]));
    assert_eq!(
        (log.column("total_tokens"), log.column("train/Perplexity")),
        (vec![314572800.0], vec![1664.0])
    );
}

#[test]
fn torchtune() {
    let log = read(include_str!("../data/torchtune.log"), None);
    assert_eq!(log.steps(), [1, 2, 3, 4]);
    let losses = [2.085338592529297, 1.8718312978744507, 1.1732845306396484, 1.1244843006134033];
    assert_eq!((log.column("loss"), log.column("lr")), (losses.to_vec(), vec![2e-5; 4]));
    assert_eq!(log.column("tokens_per_second_per_gpu")[3], 417.49818620797487);
}

#[test]
fn torchtitan() {
    let log = read(include_str!("../data/torchtitan_2026.log"), None);
    assert_eq!((log.steps(), log.column("loss")), (vec![14, 15, 16], vec![3.24405, 3.1068, 3.05047]));
    assert_eq!(log.column("grad_norm"), [0.8319, 0.8587, 0.5443]);
    assert_eq!(log.column("tokens_per_second_per_gpu"), [7282.0, 7334.0, 7313.0]);
    assert!(log.reads("memory_gib", &[9.46; 3]) && log.reads("memory_ratio", &[0.6499; 3]));
    assert!(log.reads("tflops_reported", &[0.52, 0.53, 0.52]) && log.reads("mfu_reported", &[0.0017; 3]));
    let stamps: Vec<_> = log.events.iter().map(|e| e.ts.unwrap()).collect();
    assert_eq!(stamps, [1779120286.338, 1779120287.456, 1779120288.577]);
}

#[test]
fn composer_with_its_clock() {
    let log = read(include_str!("../data/composer_shearing.log"), None);
    assert_eq!((log.steps(), log.column("loss")), (vec![366], vec![10.375]));
    assert_eq!(
        (log.column("time/batch"), log.column("metrics/train/Perplexity")),
        (vec![365.0], vec![32048.3164])
    );
    assert_eq!(log.reader.counters().unmatched, 0);
}

#[test]
fn losses_that_became_nan() {
    let log = read(include_str!("../data/nanogpt_nan.log"), None);
    assert_eq!(log.steps(), [2980, 2990, 3000, 3010, 3020]);
    let losses = log.column("loss");
    assert_eq!(losses[..3], [3.8983, 3.8853, 4.249]);
    assert!(losses[3].is_nan() && losses[4].is_nan());
    assert!(log.reads("step_time", &[1.09918, 1.09665, 35.39233, 1.01995, 1.01595]));
    let (eval, saves) = (log.of_kind(Kind::Eval), log.of_kind(Kind::Ckpt));
    assert_eq!(
        (eval[0].step, eval[0].m.get("loss"), eval[0].m.get("train_loss")),
        (Some(3000), Some(4.0427), Some(4.039))
    );
    let saves: Vec<_> = saves.iter().map(|e| (e.step, e.ckpt)).collect();
    assert_eq!(saves, [(Some(3000), Some(CkptPhase::Start)), (Some(3000), Some(CkptPhase::End))]);
    let log = read(include_str!("../data/llmc_nan.log"), None);
    assert_eq!(log.steps(), [10, 11, 20]);
    assert!(log.column("loss").iter().chain(&log.column("grad_norm")).all(|v| v.is_nan()));
    assert_eq!(log.column("step_time"), [0.03658, 0.03651, 0.03674]);
    let eval = log.of_kind(Kind::Eval);
    assert!(eval[0].step == Some(20) && eval[0].m.get("loss").unwrap().is_nan());
}

#[test]
fn deepspeed() {
    let log = read(include_str!("../data/deepspeed_2020_cifar.log"), Some("deepspeed"));
    let rates: Vec<_> =
        log.of_kind(Kind::Hb).iter().map(|e| e.m.get("samples_per_second").unwrap()).collect();
    assert_eq!((rates.len(), rates[0], rates[12]), (13, 1292.6411179579866, 1284.5698818883018));
    assert!(log.steps().is_empty(), "micro-steps of an epoch number no step");
    let log = read(include_str!("../data/deepspeed_neox_timers.log"), Some("deepspeed"));
    assert_eq!((log.events.len(), log.reader.counters().ignored), (0, 2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Lines of any logs in any order, cut and spliced: no format panics, and its events can be
    /// written and read again.
    #[test]
    fn mixed_and_broken_logs_stay_valid_events(
        picks in proptest::collection::vec((0..LOGS.len(), any::<usize>(), any::<usize>(), "[0-9.:=|,\\[\\] eE+-]{0,6}"), 1..12),
        format in 0..names().len(),
    ) {
        let mut reader = LogReader::new(Some(names()[format])).unwrap();
        let mut events = Vec::new();
        for (log, line, at, splice) in &picks {
            let lines: Vec<&str> = LOGS[*log].1.lines().collect();
            let line = lines[line % lines.len()];
            let at = (0..=at % (line.len() + 1)).rev().find(|at| line.is_char_boundary(*at)).unwrap();
            reader.line(line, &mut events);
            reader.line(&format!("{}{splice}{}", &line[..at], &line[at..]), &mut events);
            reader.line(&line[..at], &mut events);
        }
        reader.rest(&mut events);
        let c = reader.counters();
        prop_assert_eq!(c.lines, c.matched + c.ignored + c.unmatched);
        for e in events {
            let json = e.to_json();
            if json.len() <= MAX_EVENT_BYTES {
                prop_assert!(Event::parse(json.as_bytes()).is_ok(), "{}", json);
            }
        }
    }
}
