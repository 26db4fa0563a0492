//! Lines of both generations of NeMo.

use super::*;
use crate::LogReader;
use crate::background::stages;
use crate::line_formats::samples::{PLAIN, Sampled, Written};
use stepwatch_wire::{Edge, Kind, Value};

impl Sampled for Nemo {
    const LOGS: &'static [&'static str] = &[
        include_str!("../../../tests/data/nemo_progress.log"),
        include_str!("../../../tests/data/nemo_automodel_stdout.log"),
    ];
    const WRITTEN: &'static [Written] = &[
        Written {
            line: "Training epoch 0, iteration §/149 | lr: 3e-05 | consumed_samples: 123 | global_batch_size: 1 | global_step: § |⟨ reduced_train_loss: ¤ |⟩ train_step_timing in s: 0.03215",
            ..PLAIN
        },
        Written {
            line: "2026-08-10 15:49:07 | INFO | root | step § | epoch 0 |⟨ loss ¤ |⟩ grad_norm 1.0398 | lr 1.00e-05 | mem 32.47 GiB | tps 10021.50(1252.69/gpu) | num_label_tokens 37370",
            ..PLAIN
        },
    ];
}

fn read(lines: &[&str]) -> (Vec<Event>, LogReader) {
    let mut r = LogReader::new(Some("nemo")).unwrap();
    let mut out = Vec::new();
    for l in lines {
        r.line(l, &mut out);
    }
    (out, r)
}

fn metrics(e: &Event) -> Vec<(&str, f64)> {
    e.m.iter().collect()
}

const PROGRESS: &str = concat!(
    "Training epoch 0, iteration 9/99 | lr: 0.0003 | global_batch_size: 512 | global_step: 9 |",
    " reduced_train_loss: 10.93 | train_step_timing in s: 1.234 | consumed_samples: 5120",
);

#[test]
fn the_progress_printer() {
    let (e, r) = read(&[PROGRESS]);
    assert_eq!((e[0].kind, e[0].step, e[0].ts), (Kind::Step, Some(9), None));
    assert_eq!(
        metrics(&e[0]),
        [
            ("epoch", 0.0),
            ("lr", 0.0003),
            ("samples", 512.0),
            ("loss", 10.93),
            ("step_time", 1.234),
            ("consumed_samples", 5120.0),
        ]
    );
    let quantum = |name| r.resolution().get(name).unwrap();
    assert!((quantum("loss") / 0.01 - 1.0).abs() < 1e-9 && (quantum("lr") / 1e-7 - 1.0).abs() < 1e-9);
    let (e, _) = read(&["Training epoch 1, iteration 7/99 | reduced_train_loss: nan | grad_norm: inf"]);
    assert_eq!((e[0].step, e[0].m.get("epoch")), (Some(7), Some(1.0)));
    assert!(e[0].m.get("loss").unwrap().is_nan() && e[0].m.get("grad_norm") == Some(f64::INFINITY));
}

#[test]
fn evaluations_show_as_a_pause_and_a_new_value() {
    let step = |n: i64, val: &str| {
        format!("Training epoch 0, iteration {n}/99 | global_step: {n} | reduced_train_loss: 1.5{val}")
    };
    let (e, r) = read(&[
        "Sanity checking Validation: iteration 1/2",
        &step(9, ""),
        "Validation: iteration 1/2",
        "Validation: iteration 2/2",
        &step(10, " | val_loss: 4.106"),
        &step(11, " | val_loss: 4.106"),
    ]);
    let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step, e.edge)).collect();
    assert_eq!(
        seen,
        [
            (Kind::Step, Some(9), None),
            (Kind::Phase, Some(9), Some(Edge::Begin)),
            (Kind::Phase, Some(9), Some(Edge::End)),
            (Kind::Eval, Some(9), None),
            (Kind::Step, Some(10), None),
            (Kind::Step, Some(11), None),
        ]
    );
    assert_eq!((e[3].name.as_deref(), metrics(&e[3])), (Some("val"), vec![("loss", 4.106)]));
    assert_eq!((r.counters().matched, r.counters().ignored), (3, 3));
}

/// Composed after lines of NeMo 2 in logs of others, with the paths shortened.
#[test]
fn checkpoints() {
    use CkptPhase::{End, Start};
    let p = "[NeMo I 2026-02-17 17:58:41 nemo_logging:393]";
    let save = format!(
        "{p} Global Checkpoint Save : Rank: 0 : Iteration: 24 : Start time: 1771351120.135s : Save duration: 25.537s"
    );
    let (e, r) = read(&[
        &save,
        &format!("{p} Scheduled async checkpoint save for /ckpt/step=24.ckpt"),
        &format!("{p} Async finalization time took 0.018 s"),
        &format!("{p} Successfully saved checkpoint from iteration      24 to /ckpt/step=24.ckpt"),
        &format!("{p} Async checkpoint save for step 25 (/ckpt/step=24.ckpt) finalized successfully."),
    ]);
    let n = Some(24);
    assert_eq!(stages(&e), [(End, "save", n), (Start, "write", n), (End, "write", n), (End, "durable", n)]);
    assert_eq!(e[0].extra["seconds"].as_f64(), Some(25.537));
    assert_eq!(e[3].extra["path"].as_str(), Some("/ckpt/step=24.ckpt"));
    assert_eq!((e.len(), r.counters().ignored), (4, 2));
    assert_eq!(stages(&read(&[&save]).0), [(End, "save", n)], "a save that is not asynchronous");
    let other = save.replace("Rank: 0", "Rank: 1");
    assert!(read(&[&other]).0.is_empty(), "each rank prints it");
}

/// Composed after the format strings of `nemo/utils/callbacks/s3_checkpoint_io.py` and
/// `nemo/utils/s3_utils.py`.
#[test]
fn uploads_to_s3() {
    use CkptPhase::{End, Fail, Start};
    let p = "[NeMo I 2026-02-17 17:58:41 s3_checkpoint_io:183]";
    let begins = |path: &str, rank: u32| {
        format!("{p} Uploading checkpoint to {path} in asynchronous mode, rank {rank}")
    };
    let ends = |path: &str| {
        format!(
            "{p} Time elapsed uploading file /dev/shm/tmpx of size 1.5GB to {path} with chunk_size=64MB and max_concurrency=10: 12.34 seconds"
        )
    };
    let bytes = format!(
        "{p} Time elapsed uploading bytes buffer to s3://b/step=48.ckpt with chunk_size=64MB and max_concurrency=10: nan seconds"
    );
    let by_crt = |path: &str| {
        ends(path).replace("chunk_size=64MB and max_concurrency", "chunk size=64MB and max_threads")
    };
    let (file, last) =
        ("s3://b/gpt--val_loss=5.00-step=24-consumed_samples=96.ckpt", "s3://b/step=24-last.ckpt");
    let (e, _) = read(&[
        &begins(file, 0),
        &begins("s3://b/mp_rank_01/step=24.ckpt", 1),
        &begins(last, 0),
        &ends(file),
        &ends("s3://b/mp_rank_01/step=24.ckpt"),
        &by_crt(last),
        &begins("s3://b/step=48.ckpt", 0),
        &bytes,
        &begins("s3://b/step=72.ckpt", 0),
        "[NeMo E 2026-02-17 17:59:41 s3_checkpoint_io:152] Failed to upload /dev/shm/tmpx to s3://b/step=72.ckpt, exception: timed out",
        &begins("s3://b/nothing.ckpt", 0),
        &begins("s3://b/step=99999999999999999999.ckpt", 0),
        &ends(file),
    ]);
    let (n, next, third) = (Some(24), Some(48), Some(72));
    assert_eq!(
        stages(&e),
        [
            (Start, "upload", n),
            (Start, "upload", n),
            (End, "upload", n),
            (Start, "upload", next),
            (End, "upload", next),
            (Start, "upload", third),
            (Fail, "upload", third),
        ]
    );
    let seconds: Vec<_> = e.iter().map(|e| e.extra.get("seconds").and_then(Value::as_f64)).collect();
    assert_eq!(seconds[2..5], [Some(12.34), None, None]);
}

/// Composed after the format string of `nemo/lightning/io/pl.py`.
#[test]
fn loads() {
    let line = |rank: u32, seconds: &str| {
        format!(
            "[NeMo I 2026-02-17 17:50:00 nemo_logging:393] Global Checkpoint Load : Rank : {rank} : Start time : 1771351120.135s : Time spent in load_checkpoint: {seconds}s"
        )
    };
    let (e, _) = read(&[&line(0, "63.250"), &line(1, "63.250"), &line(0, "inf")]);
    assert_eq!(stages(&e), [(CkptPhase::End, "load", None), (CkptPhase::End, "load", None)]);
    assert_eq!(e[0].extra["seconds"].as_f64(), Some(63.25));
    assert_eq!(e[1].extra.get("seconds"), None);
}

#[test]
fn automodel() {
    let (e, _) = read(&[
        "2026-08-10 15:48:59 | INFO | root | step 13 | epoch 0 | loss 0.6407 | grad_norm 1.1754 | lr 1.00e-05 | mem 31.55 GiB | tps 6574.51(821.81/gpu) | num_label_tokens 26779",
        "[val] step 13 | epoch 0 | loss 0.5407 | lr 1.00e-05 | num_label_tokens 26779",
        "2026-08-10 15:49:00 | INFO | root | [val] name \"squad\" | step 13 | epoch 0 | loss nan | lr 1.00e-05 | num_label_tokens 5",
        "step 14 | epoch 0 | loss nan | grad_norm 1.0 | lr 1.00e-05 | tps 100.00",
    ]);
    assert_eq!((e[0].kind, e[0].step, e[0].ts), (Kind::Step, Some(13), Some(1786376939.0)));
    assert_eq!(
        metrics(&e[0]),
        [
            ("epoch", 0.0),
            ("loss", 0.6407),
            ("grad_norm", 1.1754),
            ("lr", 1e-5),
            ("memory_gib", 31.55),
            ("tokens_per_second_per_gpu", 821.81),
            ("tokens_per_second", 6574.51),
            ("num_label_tokens", 26779.0),
        ]
    );
    assert_eq!(
        (e[1].kind, e[1].name.as_deref(), e[1].m.get("loss")),
        (Kind::Eval, Some("val"), Some(0.5407))
    );
    assert_eq!((e[2].kind, e[2].name.as_deref(), e[2].step), (Kind::Eval, Some("squad"), Some(13)));
    assert!(e[2].m.get("loss").unwrap().is_nan() && e[3].m.get("loss").unwrap().is_nan());
    assert_eq!(
        (e[3].m.get("tokens_per_second"), e[3].m.get("tokens_per_second_per_gpu")),
        (Some(100.0), None)
    );
}

#[test]
fn what_is_no_step_line() {
    for text in [
        "Training epoch 0, iteration 9",
        "Training epoch 0, iteration x/9 | a: 1",
        "step 13 | epoch 0",
        "step 13 | loss 0.5",
        "first step 13 | epoch 0 | loss 0.5",
        "step 13 of 20 | epoch 0 | loss 0.5",
    ] {
        assert!(read(&[text]).0.is_empty(), "{text}");
    }
}

#[test]
fn a_loss_of_none_is_missing() {
    let automodel = "step 4 | epoch 0 | loss 10.93 | grad_norm 3.0 | lr 3.0e-05 | mem 17.89 GiB";
    for line in [PROGRESS, automodel] {
        let (e, _) = read(&[line, line, &line.replace("10.93", "None")]);
        let seen: Vec<_> = e.iter().map(|e| (e.m.get("loss").is_some(), e.missing.clone())).collect();
        assert_eq!(seen, [(true, vec![]), (true, vec![]), (false, vec!["loss".to_owned()])], "{line}");
    }
}
