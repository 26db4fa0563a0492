//! Evaluations, saves and loads of the Trainer.

use super::*;
use crate::background::stages;

#[test]
fn evaluations_and_checkpoints_are_pauses() {
    let step = |n: i64| format!("{{'loss': 2.5, 'learning_rate': 5e-05, 'epoch': 0.1, 'step': {n}}}");
    let p = "[INFO|trainer.py:4307] 2025-06-01 10:00:00,000 >>";
    let e = read(&[
        &format!("{p} ***** Running Evaluation *****"),
        &step(500),
        &format!("{p} "),
        &format!("{p} ***** Running Evaluation *****"),
        "{'eval_loss': 1.5, 'eval_runtime': 6.1, 'epoch': 0.1}",
        &format!("{p} Saving model checkpoint to out/checkpoint-500"),
        &step(510),
    ]);
    let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step)).collect();
    assert_eq!(
        seen,
        [
            (Kind::Step, Some(500)),
            (Kind::Phase, Some(500)),
            (Kind::Phase, Some(500)),
            (Kind::Eval, Some(500)),
            (Kind::Ckpt, Some(500)),
            (Kind::Ckpt, Some(500)),
            (Kind::Step, Some(510)),
        ]
    );
}

/// Composed after the format strings of `src/transformers/trainer.py`.
#[test]
fn a_load_ends_when_training_begins() {
    let p = "[INFO|trainer.py:2876] 2025-06-01 10:00:00,000 >>";
    let e = read(&[
        &format!("{p} Loading model from out/checkpoint-500."),
        &format!("{p}   Num Epochs = 3"),
        &format!("{p} ***** Running training *****"),
        &format!("{p} ***** Running training *****"),
        &format!("{p} Loading model from /models/base."),
    ]);
    let n = Some(500);
    assert_eq!(stages(&e), [(CkptPhase::Start, "load", n), (CkptPhase::End, "load", n)]);
}

/// Composed after the format strings of `src/transformers/trainer.py`.
#[test]
fn a_log_with_the_lines_of_its_logger_would_show_saves() {
    let p = "[INFO|trainer.py:2519] 2025-06-01 10:00:00,000 >>";
    let step = "{'loss': 2.5, 'learning_rate': 5e-05, 'epoch': 0.1, 'step': 10}";
    let hellos = |lines: &[&str]| {
        let all = read(lines).into_iter().filter(|e| e.kind == Kind::Hello);
        all.map(|e| {
            let word = |key: &str| e.extra.get(key).and_then(|value| value.as_str()).map(str::to_owned);
            (word("source"), word("saves_printed"))
        })
        .collect::<Vec<_>>()
    };
    let said = [(Some("printed".to_owned()), Some("most".to_owned()))];
    assert_eq!(hellos(&[step, &format!("{p}   Number of trainable parameters = 8,030,261,248"), step]), said);
    let banner = format!("{p} ***** Running training *****");
    assert!(hellos(&[step, &banner, step]).is_empty(), "scripts print this too");
}
