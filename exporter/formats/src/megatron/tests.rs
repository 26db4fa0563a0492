//! Lines of every branch of the family.

use super::*;
use crate::Reader;

fn read(lines: &[&str]) -> Vec<Event> {
    let mut r = Reader::new(Some("megatron")).unwrap();
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
