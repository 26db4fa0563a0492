use super::*;

/// What each framework writes, as it writes it.
const WRITTEN: &[(&str, f64, &[&str])] = &[
    (
        metric::LOSS,
        1.0,
        &[
            "lm loss",
            "lm_loss",
            "lm-loss",
            "loss",
            "train_loss",
            "train/loss",
            "Train/Loss",
            "train/lm_loss",
            "loss_metrics/global_avg_loss",
            "reduced_train_loss",
            "learning/loss",
            "train/CE loss",
            "train/CrossEntropyLoss",
            "loss/train/total",
            "Train/Samples/train_loss",
            "actor/pg_loss",
            "Loss/train",
        ],
    ),
    (
        metric::GRAD_NORM,
        1.0,
        &[
            "grad-norm",
            "grad norm",
            "grad_norm",
            "gradient_norm",
            "train/grad_norm",
            "learning/grad_norm",
            "optim/total grad norm",
            "optim/total_grad_norm",
            "l2_norm/grad/global",
            "grad/norm/total",
            "actor/grad_norm",
        ],
    ),
    (
        metric::LR,
        1.0,
        &[
            "learning-rate",
            "learning rate",
            "learning_rate",
            "train/learning_rate",
            "lr",
            "lr-AdamW",
            "lr-DecoupledAdamW/group0",
            "learning/current_learning_rate",
            "optim/LR (group 0)",
            "optim/learning_rate_group0",
            "optim/lr",
            "Train/Samples/lr",
            "actor/lr",
        ],
    ),
    (
        metric::STEP_TIME,
        1.0,
        &[
            "iteration-time",
            "elapsed time per iteration (s)",
            "time_metrics/end_to_end(s)",
            "perf/step_time_seconds",
            "perf/step_time_s",
            "train_step_timing in s",
            "runtime/iteration_time",
            "throughput/duration",
            "timing_s/step",
            "perf/time_per_step",
            "dt",
            "speed/curr_iter_time",
        ],
    ),
    (metric::STEP_TIME, 1000.0, &["elapsed time per iteration (ms)", "ms"]),
    (metric::TOKENS_PER_SECOND, 1.0, &["tok/s", "tokens_per_sec", "throughput/tokens_per_second"]),
    (
        metric::TOKENS_PER_SECOND_PER_GPU,
        1.0,
        &[
            "throughput(tps)",
            "tps",
            "tokens_per_second_per_gpu",
            "perf/per_device_tokens_per_sec",
            "throughput/device/TPS",
            "throughput/device/tokens_per_sec",
            "throughput/device/tokens_per_second",
            "tps_per_gpu",
            "tokens_per_sec_per_gpu",
            "perf/throughput",
            "speed/wps",
        ],
    ),
    (metric::MFU_REPORTED, 1.0, &["mfu", "throughput/device/mfu", "perf/mfu/actor", "perf/mfu"]),
    (
        metric::MFU_REPORTED,
        100.0,
        &["mfu(%)", "throughput/mfu", "throughput/device/MFU", "runtime/model_flops_utilization"],
    ),
    (metric::TFLOPS_REPORTED, 1.0, &["tflops", "throughput/tflops/device", "TFLOPS_per_GPU"]),
    (metric::TFLOPS_REPORTED, 1e12, &["runtime/flops_per_sec_per_gpu", "throughput/device/flops_per_sec"]),
    (metric::LOSS_SCALE, 1.0, &["loss-scale", "train/loss_scale", "Train/Samples/loss_scale"]),
    (metric::NUM_ZEROS, 1.0, &["num-zeros"]),
    (metric::PARAMS_NORM, 1.0, &["params-norm", "learning/param_norm"]),
    (metric::SAMPLES, 1.0, &["global batch size", "global_batch_size"]),
];

#[test]
fn every_tag_of_every_framework() {
    for (name, divisor, keys) in WRITTEN {
        for key in *keys {
            assert_eq!(canonical(key), Some((*name, *divisor)), "{key}");
        }
    }
    for key in ["token_acc", "é", "traié", "", "train/", "lrm", "loss_2", &"loss".repeat(20)] {
        assert_eq!(canonical(key), None, "{key}");
    }
    assert!(other_axis("lm loss vs samples") && other_axis("x vs tokens") && !other_axis("lm loss"));
}

#[test]
fn parts_of_a_step() {
    for (key, want) in [
        ("time_metrics/data_loading(s)", Some("data")),
        ("throughput/device/data loading (s)", Some("data")),
        ("timing_s/gen", Some("gen")),
        ("timing_s/step", None),
        ("loss", None),
    ] {
        assert_eq!(part(key), want, "{key}");
    }
}

#[test]
fn the_table_is_in_normal_form_and_has_nothing_twice() {
    let keys: Vec<_> = TAGS.iter().flat_map(|(_, keys)| *keys).chain(PARTS.iter().map(|(k, _)| k)).collect();
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(Key::normalize(key).unwrap().as_str(), **key);
        assert!(!keys[..i].contains(key), "{key}");
    }
}
