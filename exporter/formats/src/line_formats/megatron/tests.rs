//! Lines of every branch of the family.

use super::*;
use crate::LogReader;
use crate::background::stages;
use crate::line_formats::samples::{PLAIN, Sampled, Written};
use stepwatch_wire::{CkptPhase, Edge, Kind};

impl Sampled for Megatron {
    const LOGS: &'static [&'static str] = &[
        include_str!("../../../tests/data/bloom176b_loss_spike.log"),
        include_str!("../../../tests/data/bloom176b_throughput_drop.log"),
        include_str!("../../../tests/data/bloom176b_eval.log"),
        include_str!("../../../tests/data/tr8_104b_divergence.log"),
        include_str!("../../../tests/data/megatron_v2_fp16_skipped.log"),
        include_str!("../../../tests/data/megatron_deepspeed_3d.log"),
        include_str!("../../../tests/data/deepspeed_pipe_engine.log"),
        include_str!("../../../tests/data/megatron_bridge_moe_mtp.log"),
        " samples/sec: 12.345 | iteration       10/  320000 | elapsed time per iteration (ms): 1234.5 | learning rate: 1.000E-04 | approx flops per GPU: 120.3TFLOPS | lm_loss: 2.345678E+00 | loss scale: 4096.0 | number of skipped iterations:   0 | number of nan iterations:   0 |\n",
    ];
    // The engine's lines stand beside the trainer's.
    const READ_BY: &'static [&'static str] = &["deepspeed"];
    const WRITTEN: &'static [Written] = &[Written {
        line: " iteration §/ 1000 | consumed samples: 4 | elapsed time per iteration (ms): 900.1 | learning rate: 1.0E-04 |⟨ lm loss: ¤ |⟩ loss scale: 1.0 | grad norm: 0.5 | number of skipped iterations:   0 | number of nan iterations:   0 |",
        always: true,
        ..PLAIN
    }];
}

fn read(lines: &[&str]) -> Vec<Event> {
    let mut r = LogReader::new(Some("megatron")).unwrap();
    let mut out = Vec::new();
    for l in lines {
        r.line(l, &mut out);
    }
    out
}

fn one(line: &str) -> Event {
    read(&[line]).remove(0)
}

fn metrics(e: &Event) -> Vec<(&str, f64)> {
    e.m.iter().collect()
}

#[test]
fn megatron_lm_today() {
    let e = one(concat!(
        " [2026-05-29 03:52:45.118201] iteration      300/     300 | consumed samples:       307200 |",
        " elapsed time per iteration (ms): 131064.1 | throughput per GPU (TFLOP/s/GPU): 412.3 |",
        " learning rate: 1.100000E-05 | global batch size:  1024 | lm loss: 1.504590E+00 | loss scale: 1.0 |",
        " grad norm: 0.623 | num zeros: 1834 | params norm: 7092.506 | number of skipped iterations:   0 |",
        " number of nan iterations:   0 |",
    ));
    assert_eq!((e.step, e.ts), (Some(300), Some(1780026765.118201)));
    assert_eq!(
        metrics(&e),
        [
            ("consumed_samples", 307200.0),
            ("step_time", 131.0641),
            ("tflops_reported", 412.3),
            ("lr", 1.1e-5),
            ("samples", 1024.0),
            ("loss", 1.50459),
            ("loss_scale", 1.0),
            ("grad_norm", 0.623),
            ("num_zeros", 1834.0),
            ("params_norm", 7092.506),
            ("skipped", 0.0),
            ("nan_iterations", 0.0),
        ]
    );
    assert!(e.missing.is_empty());
}

#[test]
fn gpt_neox_prints_nan_and_percent() {
    let e = one(concat!(
        " samples/sec: 12.345 | iteration       10/  320000 | elapsed time per iteration (ms): 1234.5 |",
        " learning rate: 1.000E-04 | approx flops per GPU: 120.3TFLOPS | MFU: 38.56% | HFU: 41.20% |",
        " lm_loss: NAN | loss scale: 4096.0 | number of skipped iterations:   0 | number of nan iterations:   0 |",
    ));
    assert_eq!(
        (e.step, e.m.get("samples_per_second"), e.m.get("step_time")),
        (Some(10), Some(12.345), Some(1.2345))
    );
    assert_eq!((e.m.get("tflops_reported"), e.m.get("mfu_reported")), (Some(120.3), Some(0.3856)));
    assert!(e.m.get("loss").unwrap().is_nan() && e.missing.is_empty());
}

#[test]
fn rocm_and_deepspeed_forks() {
    let e = one(concat!(
        "iteration 5/ 10 | elapsed time per iteration (ms): 2.0 | compute per GPU (TFLOP/s/GPU): 496.3 (avg 496.1) |",
        " tokens per GPU (tokens/s/GPU): 11234.5 | lm loss: 1.0E+00 |",
    ));
    assert_eq!(
        (e.m.get("tflops_reported"), e.m.get("tokens_per_second_per_gpu"), e.m.get("step_time")),
        (Some(496.3), Some(11234.5), Some(0.002))
    );
    let e = one(concat!(
        "iteration 5/ 10 | global batch size: 256 | lm loss: 2.0E+00 | actual seqlen:  2048 |",
        " tokens per gpu per second (tgs): 3456.789 | TFLOPs: 101.25 |",
    ));
    assert_eq!((e.m.get("tokens"), e.m.get("tokens_per_second_per_gpu")), (Some(524288.0), Some(3456.789)));
}

fn bare(step: i64, fields: &str) -> String {
    format!(" iteration {step:8}/    1000 | grad norm: 1.0 |{fields}")
}

fn missing(lines: &[String]) -> Vec<Vec<String>> {
    read(&lines.iter().map(String::as_str).collect::<Vec<_>>()).into_iter().map(|e| e.missing).collect()
}

#[test]
fn an_absent_loss_is_missing_unless_all_was_skipped() {
    let skipped = |n| format!(" number of skipped iterations: {n:3} |");
    let loss = " lm loss: 2.0E+00 |";
    assert_eq!(missing(&[bare(1, &skipped(0))]), [vec!["loss".to_owned()]]);
    assert_eq!(missing(&[bare(1, &skipped(1))]), [Vec::<String>::new()]);
    // A window of 100 of which 99 were skipped had one iteration with a loss, and that was NaN.
    let lines = [bare(100, loss), bare(200, &skipped(99)), bare(300, &skipped(100))];
    assert_eq!(missing(&lines), [vec![], vec!["loss".to_owned()], vec![]]);
}

#[test]
fn a_zero_over_no_iterations_is_not_a_loss() {
    let lines = [
        bare(1, " lm loss: 2.0E+00 | number of skipped iterations: 0 |"),
        bare(2, " lm loss: 0.000000E+00 | number of skipped iterations: 1 |"),
    ];
    let events = read(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!((events[1].m.get("loss"), events[1].m.get("skipped")), (None, Some(1.0)));
    assert!(events[1].missing.is_empty());
}

#[test]
fn auxiliary_losses_never_stand_in_for_the_loss() {
    let e = read(&[
        &bare(1, " reward model loss: 0.5 | load_balancing_loss: 1.3 | mtp_1 loss: 7.9 |"),
        &bare(2, " load_balancing_loss: 1.2 | mtp_1 loss: 7.8 |"),
        &bare(3, " reward model loss: 0.4 | load_balancing_loss: 1.2 |"),
    ]);
    assert_eq!((e[0].m.get("loss"), e[0].m.get("load_balancing_loss")), (Some(0.5), Some(1.3)));
    assert_eq!((e[1].m.get("loss"), &e[1].missing), (None, &vec!["loss".to_owned()]));
    assert_eq!((e[2].m.get("loss"), &e[2].missing), (Some(0.4), &vec!["mtp_1_loss".to_owned()]));
}

#[test]
fn the_extra_first_line_is_a_step_like_any_other() {
    let e = read(&[
        &bare(1, " consumed tokens: 1000 | lm loss: 9.0 |"),
        &bare(100, " consumed tokens: 100000 | lm loss: 5.0 |"),
    ]);
    assert_eq!((e[0].step, e[0].m.get("tokens")), (Some(1), None));
    assert_eq!((e[1].step, e[1].m.get("tokens")), (Some(100), Some(1000.0)));
}

#[test]
fn a_restart_in_the_same_log_is_no_window() {
    let e = read(&[
        &bare(500, " consumed tokens: 5000 | lm loss: 2.0 |"),
        &bare(401, " consumed tokens: 4010 | lm loss: 2.0 |"),
        &bare(402, " consumed tokens: 4020 | lm loss: 2.0 |"),
    ]);
    assert_eq!([e[1].m.get("tokens"), e[2].m.get("tokens")], [None, Some(10.0)]);
}

#[test]
fn evaluations_checkpoints_and_the_end() {
    let e = read(&[
        "[2026-05-29 03:52:45] saving checkpoint at iteration    1000 to /ckpt/run in torch_dist format",
        "  [2026-05-29 03:53:45] successfully saved checkpoint from iteration    1000 to /ckpt/run [ t 1/8, p 1/1 ]",
        " validation loss at iteration 1000 on validation set | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 |",
        "[after training is done] datetime: 2026-05-29 04:00:00 ",
    ]);
    assert_eq!((e[0].ckpt, e[0].step, e[0].ts), (Some(CkptPhase::Start), Some(1000), Some(1780026765.0)));
    assert_eq!(e[0].extra["path"].as_str(), Some("/ckpt/run"));
    assert_eq!((e[1].ckpt, e[1].ts), (Some(CkptPhase::End), Some(1780026825.0)));
    assert_eq!((e[2].kind, e[2].step, e[2].name.as_deref()), (Kind::Eval, Some(1000), Some("validation")));
    assert_eq!(metrics(&e[2]), [("loss", 2.5), ("lm_loss_ppl", 12.0)]);
    assert_eq!((e[3].kind, e[3].code), (Kind::Bye, Some(0)));
}

const SAVING: &str =
    "[2026-05-29 03:52:45.101] saving checkpoint at iteration    1000 to /ckpt/run in torch_dist format";
const SCHEDULED: &str =
    "  [2026-05-29 03:52:52.500] scheduled an async checkpoint save at iteration    1000 to /ckpt/run";
const SAVED: &str = "  [2026-05-29 03:53:45.000] successfully saved checkpoint from iteration    1000 to /ckpt/run [ t 1/8, p 1/1 ]";

/// Composed after the format strings of `megatron/training/checkpointing.py`.
#[test]
fn the_stages_of_checkpoints() {
    use CkptPhase::{End, Start};
    let step = bare(1001, " lm loss: 2.0 |");
    let n = Some(1000);
    let asynchronous = read(&[SAVING, SCHEDULED, &step, SAVED]);
    assert_eq!(
        stages(&asynchronous),
        [(Start, "save", n), (End, "save", n), (Start, "write", n), (End, "write", n), (End, "durable", n)]
    );
    let blocked = asynchronous[1].ts.unwrap() - asynchronous[0].ts.unwrap();
    assert!((blocked - 7.399).abs() < 1e-3, "{blocked}");
    let durable = asynchronous.last().unwrap();
    assert_eq!((durable.extra["path"].as_str(), durable.extra.get("seen")), (Some("/ckpt/run"), None));
    assert_eq!(stages(&read(&[SAVING, SAVED, &step])), [(Start, "save", n), (End, "save", n)], "no more");
    let late = read(&[&step, SAVED]);
    assert_eq!(stages(&late), [(End, "durable", n)], "its beginning was not read");
    assert_eq!(late[1].extra.get("seen"), Some(&stepwatch_wire::Value::Bool(true)));
    let local = "  [2026-05-29 03:53:45.000] successfully saved local checkpoint from iteration    1000";
    assert_eq!(stages(&read(&[SAVING, SCHEDULED, local]))[4..], [(End, "durable", n)]);
}

/// Composed after the format strings of `megatron/training/checkpointing.py`.
#[test]
fn loads_and_a_save_before_the_last_one_has_ended() {
    use CkptPhase::{End, Start};
    let e = read(&[
        " loading distributed checkpoint from /ckpt/run at iteration 1000",
        "  successfully loaded checkpoint from /ckpt/run [ t 1/8, p 1/1 ] at iteration 1000",
        "WARNING: Starting a checkpoint save before previous has finished. Consider increasing the checkpoint interval.",
        "loading checkpoint from somewhere else",
    ]);
    assert_eq!(stages(&e), [(Start, "load", Some(1000)), (End, "load", Some(1000))]);
    assert_eq!((e.len(), e[1].extra["path"].as_str()), (3, Some("/ckpt/run")));
    assert_eq!((e[2].name.as_deref(), e[2].level.as_deref()), (Some("checkpoint_backlog"), Some("warning")));
}

#[test]
fn what_is_no_step_line() {
    for text in [
        "iteration 5",
        "iteration 5/9",
        "iteration: 5/9 | x: 1",
        "iteration x/9 | x: 1",
        "after iteration 5/9 |",
    ] {
        assert!(read(&[text]).is_empty(), "{text}");
    }
}

#[test]
fn bridge_prints_its_flops_before_the_step() {
    let e = read(&[
        "Step Time : 4.21s GPU utilization: 412.3MODEL_TFLOP/s/GPU",
        &bare(1, " lm loss: 2.0 |"),
        &bare(2, " lm loss: 2.0 |"),
        "Step Time : 4.21s GPU utilization: 412.3MODEL_TFLOP/s/GPU",
        &bare(3, " lm loss: 2.0 | throughput per GPU (TFLOP/s/GPU): 400.1 |"),
    ]);
    let seen: Vec<_> = e.iter().map(|e| e.m.get("tflops_reported")).collect();
    assert_eq!(seen, [Some(412.3), None, Some(400.1)]);
}

#[test]
fn timers_of_every_shape() {
    let step = bare(5, " lm loss: 2.0 |");
    let e = read(&[
        "time (ms) | model and optimizer: 2483.04",
        "(min, max) time across ranks (ms):",
        "    load-checkpoint ................................: (100.00, 120.00)",
        &step,
        "(min, max) time across ranks (ms):",
        "    forward-backward ...............................: (123.45, 130.25)",
        "    forward-compute ................................: (40.00, 50.00)",
        "    optimizer ......................................: (5.00, 5.50)",
        &step,
        "time (ms) | forward: 10.00 | backward: 20.00 | optimizer: 5.00 | batch generator: 0.50",
        "times across ranks (ms):",
        "  forward-backward:",
        "     rank  0: 12.34",
        "     rank  1: 15.50",
        "max time across ranks (ms):",
        "    optimizer ......................................: 5.25",
        "something else",
    ]);
    let parts: Vec<Vec<_>> = e.iter().filter(|e| e.m.is_empty()).map(|e| e.t.iter().collect()).collect();
    assert_eq!(
        parts,
        [
            vec![("fwd_bwd", 0.13025), ("forward", 0.05), ("optimizer", 0.0055)],
            vec![("forward", 0.01), ("backward", 0.02), ("optimizer", 0.005), ("data", 0.0005)],
            vec![("fwd_bwd", 0.0155)],
            vec![("optimizer", 0.00525)],
        ]
    );
    assert!(e.iter().all(|e| e.step == Some(5)), "before the first step they are of none");
}

#[test]
fn stragglers_are_metrics_of_the_last_step() {
    let line = "INFO:megatron.core.utils:[2024-03-14 23:07:56] | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 | MnPwr/Rnk: 601796W/8 | MxDRtt/Rnk: 34.65ms/3 | MnEtpt/Rnk: 296.02TF/0 | MxEtpt/Rnk: 297.32TF/8";
    let e = read(&[line, &bare(5, " lm loss: 2.0 |"), line]);
    assert_eq!((e.len(), e[1].step), (2, Some(5)));
    assert_eq!(
        metrics(&e[1]),
        [
            ("straggler_time_min", 3.45308),
            ("straggler_time_min_rank", 8.0),
            ("straggler_time_max", 3.4682),
            ("straggler_time_max_rank", 0.0),
            ("straggler_data_time_max", 0.03465),
            ("straggler_data_time_max_rank", 3.0),
            ("straggler_tflops_min", 296.02),
            ("straggler_tflops_min_rank", 0.0),
            ("straggler_tflops_max", 297.32),
            ("straggler_tflops_max_rank", 8.0),
        ]
    );
}

#[test]
fn gpt_neox_saves_through_its_engine() {
    let p = "[2023-11-07 01:55:23,711] [INFO] [logging.py:96:log_dist] [Rank 0]";
    let engine = [
        format!("{p} [Torch] Checkpoint global_step1000 is about to be saved!"),
        "[2023-11-07 01:56:23,711] [INFO] [torch_checkpoint_engine.py:33:commit] [Torch] Checkpoint global_step1000 is ready now!".to_owned(),
        format!("{p} step=1000, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]"),
    ];
    let engine: Vec<&str> = engine.iter().map(String::as_str).collect();
    let e = read(&engine);
    let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step, e.ckpt)).collect();
    assert_eq!(
        seen,
        [(Kind::Ckpt, Some(1000), Some(CkptPhase::Start)), (Kind::Ckpt, Some(1000), Some(CkptPhase::End)),],
        "the engine's steps are not Megatron's"
    );
    let own = "saving checkpoint at iteration    1000 to /ckpt";
    assert_eq!(
        read(&[&[own], engine.as_slice()].concat()).len(),
        1,
        "the same checkpoint is not published twice"
    );
    let e = read(&[
        " validation results at iteration 1000 | lm_loss value: 2.5E+00 | lm_loss_ppl value: 1.2E+01 |",
    ]);
    assert_eq!((e[0].step, metrics(&e[0])), (Some(1000), vec![("loss", 2.5), ("lm_loss_ppl", 12.0)]));
}

#[test]
fn what_the_engine_does_not_say_is_saved_ends_with_the_next_step() {
    let p = "[2026-08-07 01:55:23,711] [INFO] [logging.py:107:log_dist] [Rank 0]";
    let saves = format!("{p} [Torch] Checkpoint global_step1000 is about to be saved!");
    let step =
        |n: i64| format!(" iteration {n}/ 2000 | elapsed time per iteration (ms): 10.0 | lm loss: 2.5 |");
    let seen = |lines: &[&str]| -> Vec<_> {
        read(lines).iter().filter(|e| e.kind == Kind::Ckpt).map(|e| (e.step, e.ckpt)).collect()
    };
    let (start, end) = ((Some(1000), Some(CkptPhase::Start)), (Some(1000), Some(CkptPhase::End)));
    assert_eq!(seen(&[&step(1000), &saves, &step(1010), &step(1020)]), [start, end]);
    let own = "  successfully saved checkpoint at iteration    1000 to /ckpt";
    assert_eq!(seen(&[&step(1000), &saves, own, &step(1010)]), [start, end], "published by itself, once");
}

/// As pretrain_*.py of 2019 and its copies print them.
#[test]
fn fields_without_a_colon() {
    let line = |loss: &str| {
        format!(
            " iteration      100/  320000 | elapsed time per iteration (ms): 812.1 | learning rate 1.000E-05 | lm loss {loss} | loss scale 1024.0 |"
        )
    };
    let e = &read(&[&line("9.786600E+00")])[0];
    assert_eq!((e.step, e.m.get("loss"), e.m.get("lr")), (Some(100), Some(9.7866), Some(1e-5)));
    assert_eq!((e.m.get("loss_scale"), e.missing.len()), (Some(1024.0), 0));
    assert!(read(&[&line("nan")])[0].m.get("loss").is_some_and(f64::is_nan));
}

#[test]
fn announced_evaluations_and_doubtful_results() {
    let e = read(&[
        "Evaluating on 320 samples",
        &bare(5, " lm loss: 2.0 |"),
        "Evaluating on 320 samples",
        "Evaluating iter 1/10",
        " validation loss at iteration 5 | lm loss value: 2.5E+00 |",
        "Possible transient error!",
        "exiting program at iteration 5",
    ]);
    let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step, e.edge)).collect();
    assert_eq!(
        seen,
        [
            (Kind::Step, Some(5), None),
            (Kind::Phase, Some(5), Some(Edge::Begin)),
            (Kind::Phase, Some(5), Some(Edge::End)),
            (Kind::Eval, Some(5), None),
            (Kind::Event, Some(5), None),
            (Kind::Bye, Some(5), None),
        ]
    );
    assert_eq!((e[4].name.as_deref(), e[4].level.as_deref()), (Some("rerun_mismatch"), Some("warning")));
}

#[test]
fn units_of_flops() {
    for (text, want) in
        [("120.3TFLOPS", 120.3), ("1.2PFLOPS", 1200.0), ("850.5GFLOPS", 0.8505), ("3.5MFLOPS", 3.5e-6)]
    {
        let e = one(&bare(1, &format!(" approx flops per GPU: {text} | lm loss: 2.0 |")));
        assert!((e.m.get("tflops_reported").unwrap() / want - 1.0).abs() < 1e-9, "{text}");
    }
}

#[test]
fn rocm_prints_a_mean_behind_the_value() {
    let e = one(&bare(
        7,
        " elapsed time per iteration (ms): 5814.3/5840.1 | throughput per GPU (TFLOP/s/GPU): 509.8/507.4 | tokens per GPU (tokens/s/GPU): 2817.5/2805.0 | lm loss: 2.0 |",
    ));
    let m = &e.m;
    assert_eq!(
        (m.get("step_time"), m.get("tflops_reported"), m.get("tokens_per_second_per_gpu")),
        (Some(5.8143), Some(509.8), Some(2817.5))
    );
}
