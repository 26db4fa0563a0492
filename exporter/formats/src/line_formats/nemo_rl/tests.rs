//! Logs composed from the format strings of `sft.py`, `grpo.py`, `dpo.py` and `ppo.py`.

use stepwatch_wire::{Event, Kind};

use super::NemoRl;
use crate::LogReader;
use crate::line_formats::samples::{PLAIN, Sampled, Written};

impl Sampled for NemoRl {
    const LOGS: &'static [&'static str] = &[
        "\n========================= Step 3/100 =========================\n▶ Preparing batch...\n▶ Taking a training step...\n\n📊 Training Results:\n  • Loss: 0.0123\n\n⏱️  Timing:\n  • Total step time: 60.12s\n  • policy_training: 20.10s (33.4%)\n",
    ];
    const WRITTEN: &'static [Written] = &[Written {
        line: "========================= Step §/1000 =========================\n▶ Preparing batch...\n📊 Training Results:\n⟨  • Loss: ¤\n⟩  • Avg Reward: 0.4123\n⏱️  Timing:\n  • Total step time: 60.12s\n  • policy_training: 20.1s (33.3%)",
        end: Some("other"),
        ..PLAIN
    }];
}

fn read(log: &str) -> Vec<Event> {
    let mut r = LogReader::new(None).unwrap();
    let mut out = Vec::new();
    for l in log.lines() {
        r.line(l, &mut out);
    }
    r.rest(&mut out);
    assert_eq!(r.name(), "nemo-rl");
    out
}

fn rule(what: &str) -> String {
    format!("\n{0} {what} {0}\n", "=".repeat(25))
}

fn grpo(step: &str, loss: &str) -> String {
    format!(
        "{}▶ Preparing batch...\n▶ Generating responses for batch of size 2048...\n▶ Training policy...\n\n📊 Training Results:\n  • Loss: {loss}\n  • Generation KL Error: 0.0012\n  • Avg Reward: 0.4123\n  • Mean Generation Length: 800.1234\n\n⏱️  Timing:\n  • Total step time: 60.12s\n  • policy_training: 20.10s (33.4%)\n  • generation: 30.00s (49.9%)\n\n🔍 Performance Metrics:\n  • Mean Total Tokens per Sample: 812.50\n  • Throughputs (per GPU):\n    - E2E (Samples/sec/gpu): 0.53\n    - E2E (Tokens/sec/gpu): 1234.50\n    - Policy Training (Tokens/sec/gpu): 5000.00\n  • Throughputs (per Group):\n    - E2E (Tokens/sec): 9876.00\n  • Training FLOPS: 800.00 TFLOPS (100.00 TFLOPS per rank)\n  • Training Model Floating Point Utilization: 10.11%\n",
        rule(&format!("Step {step}"))
    )
}

#[test]
fn a_step_of_grpo() {
    let e = read(&format!("{}{}{}", rule("Epoch 1/1"), grpo("1/100", "0.0123"), grpo("2/100", "nan")));
    assert_eq!(
        e.iter().map(|e| (e.kind, e.step)).collect::<Vec<_>>(),
        [(Kind::Step, Some(1)), (Kind::Step, Some(2))]
    );
    let want = [
        ("loss", 0.0123),
        ("generation_kl_error", 0.0012),
        ("avg_reward", 0.4123),
        ("mean_generation_length", 800.1234),
        ("step_time", 60.12),
        ("tokens_per_second_per_gpu", 1234.5),
        ("tokens_per_second", 9876.0),
        ("tflops_reported", 100.0),
        ("mfu_reported", 0.1011),
    ];
    assert_eq!(e[0].m.iter().collect::<Vec<_>>(), want);
    assert_eq!((e[0].t.get("policy_training"), e[0].t.get("generation")), (Some(20.1), Some(30.0)));
    assert!(e[1].m.get("loss").unwrap().is_nan());
}

#[test]
fn fine_tuning_with_a_validation() {
    let step = |n: &str, loss: &str, between: &str| {
        format!(
            "{}▶ Preparing batch...\n▶ Taking a training step...\n{between}\n📊 Training Results:\n  • Loss: {loss}\n\n⏱️  Timing:\n  • Total step time: 3.21s\n  • policy_training: 3.00s (93.5%)\n",
            rule(&format!("Step {n}"))
        )
    };
    let validation = "▶ Starting validation at step 2...\n\n📊 Validation Results:\n    • Validation loss: 2.5000\n\n  ⏱️  Validation Timing:\n    • Total validation time: 12.00s\n";
    let log = [
        rule("Epoch 1/2"),
        step("1/2", "2.5000", ""),
        step("2/2", "2.4000", validation),
        rule("Epoch 2/2"),
        step("1/2", "2.3000", ""),
    ];
    let e = read(&log.concat());
    let seen: Vec<_> = e
        .iter()
        .filter(|e| e.kind != Kind::Phase)
        .map(|e| (e.kind, e.step.unwrap(), e.m.get("loss").unwrap()))
        .collect();
    assert_eq!(
        seen,
        [(Kind::Step, 1, 2.5), (Kind::Eval, 2, 2.5), (Kind::Step, 2, 2.4), (Kind::Step, 3, 2.3)]
    );
    assert_eq!(e.iter().filter(|e| e.kind == Kind::Phase).count(), 2, "the validation begins and ends");
    assert_eq!(e.last().unwrap().m.get("step_time"), Some(3.21));
}

#[test]
fn preferences_and_the_losses_of_ppo() {
    let head = rule("Step 1/10");
    let e = read(&format!(
        "{head}\n📊 Training Results:\n  • loss: 0.6521\n  • sft_loss: 0.0000\n  • preference_loss: 0.6521\n  • accuracy: 0.5000\n\n⏱️  Timing:\n  • Total step time: 3.21s\n"
    ));
    assert_eq!((e[0].m.get("loss"), e[0].m.get("preference_loss")), (Some(0.6521), Some(0.6521)));
    let e = read(&format!(
        "{head}\n📊 Training Results:\n  • Policy Loss: nan\n  • Generation KL Error: N/A\n  • Critic Loss: 0.25\n  • Critic Grad Norm: 1.5\n"
    ));
    assert!(e[0].m.get("loss").unwrap().is_nan());
    assert_eq!((e[0].m.get("critic_loss"), e[0].m.get("grad_norm")), (Some(0.25), None));
}

#[test]
fn an_exception_behind_a_record_is_its_last_word() {
    let log = format!("{}{}\nRuntimeError: Loss is NaN\n", grpo("1/100", "0.0123"), grpo("2/100", "0.0120"));
    let e = read(&log);
    assert_eq!(e.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(e[2].m.get("loss").unwrap().is_nan());
}

#[test]
fn what_comes_late_is_of_the_same_step() {
    let mut r = LogReader::new(None).unwrap();
    let mut out = Vec::new();
    let lines = |r: &mut LogReader, out: &mut Vec<Event>, text: &str| {
        for l in text.lines() {
            r.line(l, out);
        }
    };
    lines(&mut r, &mut out, &format!("{}📊 Training Results:\n  • Loss: 0.5\n", rule("Step 7/10")));
    r.rest(&mut out);
    lines(&mut r, &mut out, "⏱️  Timing:\n  • Total step time: 3.21s\n▶ Preparing batch...\n");
    let seen: Vec<_> = out.iter().map(|e| (e.step.unwrap(), e.m.iter().count())).collect();
    assert_eq!(seen, [(7, 1), (7, 1)]);
    assert!(out.iter().all(|e| e.missing.is_empty()));
}

#[test]
fn what_is_no_record() {
    for text in [
        "========================= Step 3 =========================",
        "===== Step 3/100 =====",
        "========================= Phase 3/100 =========================",
        "  • Loss: 0.0123",
        "📊 Training Results:\n  • Loss: 0.0123",
        "========================= Step 3/100 =========================\nother\nother",
    ] {
        let mut r = LogReader::new(None).unwrap();
        let mut out = Vec::new();
        for l in text.lines() {
            r.line(l, &mut out);
        }
        r.rest(&mut out);
        assert_eq!(out, [], "{text}");
    }
}

proptest::proptest! {
    #[test]
    fn never_panics(lines in proptest::collection::vec("(=========================|📊|⏱️| Step 3/9 |Training Results:|Timing:|• Loss: |- E2E|[0-9.]{1,4}|\\PC){0,6}", 0..12)) {
        let mut r = LogReader::new(Some("nemo-rl")).unwrap();
        let mut out = Vec::new();
        for l in &lines {
            r.line(l, &mut out);
        }
        r.rest(&mut out);
    }
}
