//! Sentences of frameworks, and of text that is about them.

use proptest::prelude::*;
use stepwatch_wire::{Event, Kind};

use super::*;
use crate::LogReader;

mod speaker;

fn read(lines: &[&str]) -> Vec<Event> {
    let mut r = LogReader::new(None).unwrap();
    let mut out = Vec::new();
    for l in lines {
        r.line(l, &mut out);
    }
    out
}

const STEP: &str = " iteration 12/ 100 | elapsed time per iteration (ms): 10.0 | lm loss: 2.5 |";

/// What is read from a line behind step 12 of a training: the step, its loss, its gradient norm,
/// what is missing.
fn said(line: &str) -> Option<(i64, &'static str)> {
    let e = read(&[STEP, line]);
    let e = e.get(1)?;
    let loss = e.m.get("loss").is_some_and(f64::is_nan);
    let gradient = e.m.get("grad_norm").is_some_and(f64::is_nan) && e.missing == ["loss"];
    assert!(e.kind == Kind::Step && (loss || gradient), "{line}: {e:?}");
    Some((e.step?, if loss { "loss" } else { "gradient" }))
}

#[test]
fn sentences_of_frameworks() {
    for (line, want) in [
        (
            "[rank3]: RuntimeError: Loss or gradient norm is not finite on at least one rank at step 14. Stopping training before the optimizer update.",
            (14, "loss"),
        ),
        (
            "../aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion `Loss or gradient norm is not finite on at least one rank at step 20. Stopping training before the optimizer update.` failed.",
            (20, "loss"),
        ),
        (
            "FloatingPointError: invalid value (nan) encountered in jit(train_step). Because jax_config.debug_nans.value and/or config.jax_debug_infs is set, the de-optimized function (i.e., the function as if the `jit` decorator were removed) was called in an attempt to get a more precise error message.",
            (13, "loss"),
        ),
        ("RuntimeError: Non-finite gradient norm at step 41", (41, "gradient")),
        ("ValueError: Gradient norm is not finite", (13, "gradient")),
        (
            "I0706 16:50:26.230209 140110937163584 max_logging.py:37] Aborting training due to NaN loss.",
            (13, "loss"),
        ),
        (
            "RuntimeError: Rank 7, node gpu-1, device 7, iteration 13: Unexpected result nan (message='found NaN in local grad norm for bucket #0 in backward pass before data-parallel communication collective')",
            (13, "gradient"),
        ),
        (
            "ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 7 at iteration #15 invocation #1 (message='found NaN in local forward loss calculation')",
            (15, "loss"),
        ),
        (
            "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
            (13, "gradient"),
        ),
        (
            "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering the learning rate",
            (13, "gradient"),
        ),
        ("RuntimeError: nan loss encountered at step 17", (17, "loss")),
        ("RuntimeError: Loss is NaN", (13, "loss")),
        ("RuntimeError: Loss is Inf", (13, "loss")),
        ("RuntimeError: Train loss contains a NaN.", (13, "loss")),
        ("RuntimeError: Train loss ce contains a NaN.", (13, "loss")),
        ("FloatingPointError: Loss became infinite or NaN at iteration=13!", (13, "loss")),
        ("AssertionError: loss become infinite or NaN!", (13, "loss")),
        ("Batch 3: Invalid loss, terminating training", (13, "loss")),
        ("ERROR:tensorflow:Model diverged with loss = NaN.", (13, "loss")),
        ("ValueError: The loss returned in `training_step` is nan.", (13, "loss")),
        (
            "ValueError: Detected nan and/or inf values in `layer.weight`. Check your forward pass for numerically unstable operations.",
            (13, "gradient"),
        ),
        (
            "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped.",
            (13, "gradient"),
        ),
        ("RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.", (13, "gradient")),
        ("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", (13, "loss")),
        (
            "ValueError: PaddleRecall error(102): LossNan. Loss contains inf or nan values, its value is nan",
            (13, "loss"),
        ),
        ("Loss is nan, stopping training", (13, "loss")),
        ("Loss is infinite or NaN!", (13, "loss")),
        ("WARNING: non-finite loss, ending training tensor([nan])", (13, "loss")),
        ("Train step of epoch 0:  12%|█▏| 30/100 [00:03<00:25, 3.50it/s, loss=nan, lr=1e-5]", (30, "loss")),
        ("training: 30it [00:03, 3.50it/s, train_loss=nan]", (30, "loss")),
        ("Epoch 0:  12%|█▏        | 30/100 [00:03<00:25, 3.50it/s, v_num=0, train_loss=nan.0]", (30, "loss")),
        ("Epoch 0:   3%|  | 30/1000 [00:30<10:00, v_num=5, reduced_train_loss=nan.0]", (30, "loss")),
    ] {
        assert_eq!(said(line), Some(want), "{line}");
    }
}

/// JAX with jax_debug_nans: what it prints when it calls the function again, and what it raises if
/// that finds nothing.
#[test]
fn jax_without_an_operation_to_name() {
    let because = "Because jax_config.debug_nans.value and/or config.jax_debug_infs is set, the de-optimized function (i.e., the function as if the `jit` decorator were removed) was called in an attempt to get a more precise error message.";
    for (line, want) in [
        (format!("FloatingPointError: ('jit(train_step)', 'nan'). {because}"), "loss"),
        (format!("FloatingPointError: ('jit(f.<locals>.g)', 'inf'). {because}"), "loss"),
        (
            "Invalid nan value encountered in the output of a jax.jit function. Calling the de-optimized version.".into(),
            "loss",
        ),
        (
            "Invalid nan value encountered in the output of a C++-jit/pmap function. Calling the de-optimized version.".into(),
            "loss",
        ),
        (
            "Invalid nan value encountered in the backward pass of a jax.jit function. Calling the de-optimized backward pass.".into(),
            "gradient",
        ),
    ] {
        assert_eq!(said(&line), Some((13, want)), "{line}");
    }
}

#[test]
fn infinite_losses_of_lightning() {
    for value in ["nan", "inf", "-inf"] {
        let line = format!("ValueError: The loss returned in `training_step` is {value}.");
        assert_eq!(said(&line), Some((13, "loss")), "{line}");
    }
}

/// Lightning's early stopping, of a metric that it watches.
fn watched(metric: &str, value: &str) -> String {
    format!(
        "[rank: 0] Monitored metric {metric} = {value} is not finite. Previous best value was 0.123. Signaling Trainer to stop."
    )
}

#[test]
fn early_stopping_by_a_loss_of_training() {
    for metric in ["train_loss", "loss", "train_loss_epoch", "loss_step", "train/loss", "total_loss"] {
        assert_eq!(said(&watched(metric, "nan")), Some((13, "loss")), "{metric}");
    }
    assert_eq!(said(&watched("train_loss", "inf")), Some((13, "loss")));
    assert_eq!(said(&watched("grad_norm", "nan")), Some((13, "gradient")));
    let finite = "Monitored metric train_loss did not improve in the last 3 records. Best score: 0.123. Signaling Trainer to stop.";
    for line in [finite, &watched("train_accuracy", "nan"), &watched("train_aux_loss", "nan")] {
        assert_eq!(said(line), None, "{line}");
    }
}

#[test]
fn early_stopping_by_an_evaluation() {
    for metric in ["val_loss", "valid/loss", "validation_loss_epoch", "eval_loss"] {
        let line = watched(metric, "nan");
        let e = read(&[STEP, &line, &line.replace("rank: 0", "rank: 1")]);
        let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step)).collect();
        assert_eq!(seen, [(Kind::Step, Some(12)), (Kind::Eval, Some(12))], "{metric}");
        assert!(e[1].m.get("loss").is_some_and(f64::is_nan), "{e:?}");
    }
    let step = STEP.replace("12/", "13/");
    let (lost, words) = (watched("val_loss", "nan"), "Loss is nan, stopping training");
    let e = read(&[STEP, &lost, &step, &lost, words]);
    let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step)).collect();
    let (step, eval) = (|n| (Kind::Step, Some(n)), |n| (Kind::Eval, Some(n)));
    assert_eq!(seen, [step(12), eval(12), step(13), eval(13), step(14)]);
    assert_eq!(read(&[STEP, &watched("val_accuracy", "nan")]).len(), 1);
}

#[test]
fn an_evaluation_behind_the_goodbye_leaves_it_last() {
    let e =
        read(&[STEP, "[after training is done] datetime: 2026-01-01 00:00:00", &watched("val_loss", "nan")]);
    let kinds: Vec<_> = e.iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [Kind::Step, Kind::Bye, Kind::Eval, Kind::Bye]);
}

#[test]
fn checks_of_megatron_nanotron_nemo_and_fairseq() {
    for (line, want) in [
        (
            "ValueError: Gradient is nan or inf for model.decoder.3.pp_block.mlp.down_proj.weight",
            (13, "gradient"),
        ),
        ("FloatingPointError: gradients are Nan/Inf", (13, "gradient")),
        (
            "RuntimeError: Rank 7, node gpu-1, device 7, iteration 13: Unexpected result nan (message='found NaN in dlm loss')",
            (13, "loss"),
        ),
        (
            "ERROR:megatron.core.rerun_state_machine:Unexpected result inf on rank 7 at iteration #15 invocation #1 (message='found Inf in ar loss')",
            (15, "loss"),
        ),
        ("AssertionError: Got NaN loss with non-empty input", (13, "loss")),
        ("RuntimeError: [NaN DEBUG] NaN/Inf detected at 'encoder.layer_3'. Stopping training.", (13, "loss")),
    ] {
        assert_eq!(said(line), Some(want), "{line}");
    }
    for line in [
        "NaN/Inf detected at 'pos_emb' with nan_to_num removed!",
        "found NaN in 3 inputs, loss computed without them",
        "Student gradients are NaN/Inf (norm=nan)",
    ] {
        assert_eq!(said(line), None, "{line}");
    }
}

/// What is skipped did not end the run, and is no step of it.
#[test]
fn a_batch_that_is_skipped_is_no_end() {
    for line in [
        "Warning: NaN detected in loss, skipping batch",
        "ERROR: NaN detected in loss, skipping batch 13721",
        "NaN loss detected at step 13! Skipping this batch.",
        "Loss is nan, ignoring this update",
        "Skipped batch 5: non-finite loss",
        "Skipping step 13 because loss is nan",
        "Caught RuntimeError: Loss is NaN, skipping the batch",
        "ValueError: Gradient norm is not finite, skipping the update",
    ] {
        assert_eq!(said(line), None, "{line}");
    }
    for line in [
        "Loss is nan, stopping training after 5 skipped batches",
        "NaN loss detected, too many batches skipped: aborting",
        "RuntimeError: Loss is NaN after 5 skipped batches",
    ] {
        assert_eq!(said(line), Some((13, "loss")), "{line}");
    }
    let scale = "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run. Skipping step.";
    assert_eq!(said(scale), Some((13, "gradient")));
}

#[test]
fn words_about_it_are_no_events() {
    for line in [
        "If the loss is nan, lower the learning rate",
        "check_for_nan_in_loss_and_grad ........... True",
        "abort_on_nan_loss: True",
        "WARNING: training stops when loss is NaN",
        "the loss is nan_to_num'd",
        "NaN loss detection enabled",
        "no non-finite loss so far",
        "WARN: rank 0 grad_norm is not finite: nan",
        "non-finite gradient norm, skipping the update",
        "Evaluating:  12%|█▏| 30/100 [00:03<00:25, 3.50it/s, loss=nan]",
        "Downloading:  12%|█▏| 30/100 [00:03<00:25, 3.50it/s]",
        "1:5: loss is information",
    ] {
        assert_eq!(said(line), None, "{line}");
    }
    assert_eq!(read(&["RuntimeError: Loss is NaN", "Loss is nan, stopping training"]), [], "nobody trains");
}

#[test]
fn a_run_that_never_took_a_step_is_lost_too() {
    let e = read(&[
        "[rank0]: RuntimeError: Loss or gradient norm is not finite on at least one rank at step 1. Stopping training before the optimizer update.",
    ]);
    assert!(e[0].step == Some(1) && e[0].m.get("loss").unwrap().is_nan());
}

#[test]
fn a_known_end_is_not_reported_again() {
    let nan = STEP.replace("12/", "13/").replace("2.5", "nan");
    assert_eq!(read(&[STEP, &nan, "RuntimeError: Loss is NaN"]).len(), 2);
    let words = "Loss is nan, stopping training";
    assert_eq!(read(&[STEP, words, words, words]).len(), 2, "every rank says so");
    let later = STEP.replace("12/", "20/");
    assert_eq!(
        read(&[STEP, words, &later, words]).iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(),
        [12, 13, 20, 21]
    );
}

/// An old log may be read, or may have been copied, long after it was written.
#[test]
fn a_closing_line_without_a_time_is_as_old_as_the_last_step() {
    let step = format!("2025-01-01 00:00:10Z {}", STEP.trim());
    let at =
        |lines: &[&str]| read(lines).iter().map(|e| e.ts.map(|ts| ts - 1_735_689_600.0)).collect::<Vec<_>>();
    assert_eq!(at(&[&step, "RuntimeError: Loss is NaN"]), [Some(10.0), Some(10.0)]);
    assert_eq!(at(&[&step, "2025-01-01 00:00:12Z Loss is nan, stopping training"]), [Some(10.0), Some(12.0)]);
    assert_eq!(at(&[&step, "Validation loss is NaN"]), [Some(10.0), Some(10.0)]);
    assert_eq!(at(&[STEP, "RuntimeError: Loss is NaN"]), [None, None], "the log has no times");
}

/// What loops of all kinds end with.
#[test]
fn ends_of_loops_that_people_write() {
    for (line, want) in [
        ("ValueError: NaN loss at step 26", (26, "loss")),
        ("Encountered NaN loss at step 26", (26, "loss")),
        ("Loss has become NaN at iteration 26. Terminating.", (26, "loss")),
        ("The loss value is nan", (13, "loss")),
        ("Loss is tensor(nan, device='cuda:0', grad_fn=<NllLossBackward0>), stopping training", (13, "loss")),
        ("Loss is tensor(-inf), stopping training", (13, "loss")),
        ("ValueError: loss: tensor(nan, device='cuda:0') at step 26", (26, "loss")),
        ("Loss is nan, stopping training", (13, "loss")),
        ("training diverged: loss=nan, exiting", (13, "loss")),
        ("[rank0]: AssertionError: NaN detected", (13, "loss")),
        ("ValueError: Loss: nan", (13, "loss")),
        ("[rank3]: RuntimeError: train loss nan", (13, "loss")),
        ("Invalid loss detected: nan", (13, "loss")),
        ("NaN encountered in loss", (13, "loss")),
        ("RuntimeError: non finite loss", (13, "loss")),
        ("Error: NaN in loss at step 26", (26, "loss")),
        ("Detected NaN in loss, exiting", (13, "loss")),
        ("FloatingPointError: The losses are NaN/Inf at step 26.", (26, "loss")),
        ("fairseq2 - The loss is nan at step 26. Training cannot continue.", (26, "loss")),
        ("AssertionError: NaN loss", (13, "loss")),
        ("Inf loss during training step 26", (26, "loss")),
        ("Gradient norm is nan, exiting", (13, "gradient")),
        ("grad norm is nan at step 26, aborting", (26, "gradient")),
        ("NaN grad norm at step 26", (26, "gradient")),
        ("Found NaN in gradients, exiting", (13, "gradient")),
        ("RuntimeError: NaN gradients", (13, "gradient")),
        ("RuntimeError: grad_scale is too small, exiting: 9.313225746154785e-10", (13, "gradient")),
        ("The gradients are scaled down to minimum at step 26. Training cannot continue.", (26, "gradient")),
        (
            "Overflow detected at step 26, ignoring gradient, loss scale is already at minimum (0.0001). Your loss is probably exploding.",
            (26, "gradient"),
        ),
    ] {
        assert_eq!(said(line), Some(want), "{line}");
    }
}

#[test]
fn remarks_are_no_ends() {
    for line in [
        "no NaN loss detected",
        "checking for NaN in gradients",
        "skipping nan loss check",
        "loss is not nan",
        "check_for_nan_in_loss_and_grad=True",
        "nan_check: true",
        "on NaN loss: exiting",
        "NaN loss detection enabled for step 100",
        "NaN loss tolerance: 5 steps",
        "ValueError: NaN loss handling is not supported",
        "Gradient norm is nan",
        "Detected NaN in gradients",
        "Found NaN in gradients at step 13, skipping the update",
        "WARNING Skipping step 26 because grad norm is nan",
        "Gradient norm is nan, skipping step 13",
        "no NaN in loss at step 26",
        "never encountered NaN loss",
        "training ended without NaN loss at step 26",
        "NaN or Inf found in input tensor.",
        "max_loss=nan_policy, exiting",
        "loss: nan",
        "exiting if loss=nan",
        "grad_scale is too small for this",
        "NaN detected",
        "Loss is tensor(nan, device='cuda:0'), skipping batch",
        "Loss is tensor(nan, device='cuda:0')",
        "if loss is tensor(nan), stopping training",
        "nan loss steps: 0",
        "Loss NaN/Inf detected in 'box', recovering from last.pt...",
    ] {
        assert_eq!(said(line), None, "{line}");
    }
}

#[test]
fn nan_and_then_an_exception_is_the_end_of_dinov2() {
    let nan = "I20250901 11:00:00 12345 dinov2 train.py:268] NaN detected";
    let traceback = "Traceback (most recent call last):";
    let steps = |lines: &[&str]| read(lines).iter().map(|e| e.step.unwrap()).collect::<Vec<_>>();
    let e = read(&[STEP, nan, traceback, "  File \"train.py\", line 269", "AssertionError"]);
    assert!(e.len() == 2 && e[1].step == Some(13) && e[1].m.get("loss").unwrap().is_nan());
    assert_eq!(steps(&[STEP, "NaN detected!", "[rank0]: AssertionError"]), [12, 13]);
    let next = STEP.replace("12/", "13/");
    assert_eq!(steps(&[STEP, nan, &next, traceback]), [12, 13], "it went on");
    assert_eq!(steps(&[nan, traceback, STEP, traceback, "AssertionError"]), [12], "nobody trained");
    let mut lines = vec![STEP, nan];
    lines.extend(["other"; 20]);
    lines.push(traceback);
    assert_eq!(steps(&lines), [12], "long after it");
    assert_eq!(steps(&[STEP, "the NaN detected", traceback]), [12]);
}

#[test]
fn the_loss_of_an_evaluation_is_not_that_of_training() {
    for line in ["Validation loss is NaN", "ValueError: eval loss: nan", "The test loss is nan, stopping"] {
        let e = read(&[STEP, line]);
        assert_eq!(e.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Step, Kind::Eval], "{line}");
    }
}

/// Composer and OLMo print a record over several lines, which the next line of something else ends.
#[test]
fn a_sentence_right_behind_a_record_of_several_lines() {
    let composer = |n: i64| format!("[batch={n}/100]:\n\t Train loss/train/total: 9.5\n");
    let olmo = |n: i64| {
        format!(
            "2025-09-01T10:00:00.123Z\tgpu01:0\tolmo_core.train:87\tINFO\t[step={n}/1000,epoch=1]\n    train/CE loss=3.210\n"
        )
    };
    let ends = ["RuntimeError: Train loss contains a NaN.", "RuntimeError: nan loss encountered at step 3"];
    for (record, end) in [&composer as &dyn Fn(i64) -> String, &olmo].into_iter().zip(ends) {
        for between in ["", "\n", "other\n"] {
            let log = format!("{}{}{between}{end}\nother", record(1), record(2));
            let e = read(&log.lines().collect::<Vec<_>>());
            let seen: Vec<_> = e.iter().map(|e| (e.step, e.m.get("loss").unwrap().is_finite())).collect();
            assert_eq!(seen, [(Some(1), true), (Some(2), true), (Some(3), false)], "{log}");
        }
    }
}

proptest! {
    #[test]
    fn never_panics(text in "\\PC{0,80}", at in 0..TABLE.len(), tail in "[ a-z0-9=#:é]{0,20}") {
        let mut words = LastWords { last_step: Some(i64::MAX), ..LastWords::default() };
        let inner = core::cell::Cell::new(None);
        for text in [text.clone(), format!("{text}{}{tail}", TABLE[at].text)] {
            let line = Line { text: &text, raw: &text, ts: None, utc_offset: 0.0, inner: &inner };
            words.read(&line);
        }
    }

    /// Prose about losses, in any order, is no event of a log that trains.
    #[test]
    fn prose_is_no_event(words in proptest::collection::vec(prop::sample::select(vec!["the", "loss", "was", "fine", "nan", "gradient", "is", "scale", "to", "num", "step", "5", "saved"]), 1..8)) {
        let text = words.join(" ");
        let found = said(&text).is_some();
        prop_assert_eq!(found, text.contains("loss is nan"), "{}", text);
    }
}

/// What trainers print of a model, which may have read many logs.
/// Loggers quote what the trainer told them.
/// verl, naive.py of its reward managers: a text of several lines behind its tag.
/// Whatever the exception is called, and however it says it.
#[test]
fn exceptions_of_any_class() {
    for (line, want) in [
        ("Exception: loss is not a number", (13, "loss")),
        ("my.errors.DivergedError: the loss is not a number", (13, "loss")),
        ("Exception: train_loss at step 26 has become infinite", (26, "loss")),
        ("TrainingException: Loss was not finite.", (13, "loss")),
        ("NanError: loss became not a number in epoch 3", (13, "loss")),
        ("ArithmeticError: grad norm is not a number", (13, "gradient")),
        ("Exception: grad_norm = inf", (13, "gradient")),
        ("Exception: gradients are infinite", (13, "gradient")),
        ("ValueError: nonfinite loss", (13, "loss")),
        ("ValueError: NaN or infinite values in the training loss", (13, "loss")),
        ("ValueError: infinite gradient norm at step 26", (26, "gradient")),
        ("RuntimeError: ERROR: Got NaN losses 2025-11-22 12:00:00.123456", (13, "loss")),
        ("RuntimeError:  [!] NaN loss with loss_dur.", (13, "loss")),
        ("RuntimeError: training loss has become infinite; check the learning rate", (13, "loss")),
        ("FloatingPointError: non-finite joint loss in epoch 3", (13, "loss")),
        ("FloatingPointError: SVI loss produced NaN", (13, "loss")),
        ("RuntimeError: NaN detected in gradients", (13, "gradient")),
        ("RuntimeError: NaN or Inf found in gradients", (13, "gradient")),
    ] {
        assert_eq!(said(line), Some(want), "{line}");
    }
    for line in [
        "ValueError: loss must be a number, not nan",
        "ValueError: loss_scale is not a number",
        "TypeError: loss weight is not a number",
        "ValueError: the loss is not nan",
        "ValueError: NaN loss handling is not supported",
        "ValueError: infinite dataset has no loss",
        "Exception: 'loss is not a number'",
        "loss is not a number",
    ] {
        assert_eq!(said(line), None, "{line}");
    }
    let e = read(&[STEP, "Exception: validation loss is not a number"]);
    assert_eq!(e.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Step, Kind::Eval]);
}

/// Ultralytics, trainer.py: a header names the columns, and each epoch has a bar.
#[test]
fn a_bar_with_columns_of_which_one_is_no_number() {
    let bar = |loss: &str| {
        format!(
            "      3/100      2.31G {loss:>10}      0.512         16        640:  61%|██████    | 61/100 [00:10<00:06,  6.10it/s]"
        )
    };
    assert_eq!(said(&bar("nan")), Some((61, "loss")));
    assert_eq!(said(&bar("inf")), Some((61, "loss")));
    assert_eq!(said(&bar("1.25")), None);
    assert_eq!(said("nan 3/4: 61%|██████    | 61/100 [00:10<00:06,  6.10it/s]"), None);
}
