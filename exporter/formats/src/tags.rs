//! What the same quantity is called in different frameworks.
//!
//! Matching ignores case, a leading `train/`, and whether words are joined by a blank, `-` or `_`.
//! A key that is not here keeps its own name and becomes a custom metric.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::LazyLock;

use stepwatch_wire::names::metric;

/// A metric of ours, and what the framework's number must be divided by to become it.
pub type Tag = (&'static str, f64);

/// Our metric, its divisor, and the keys that mean it in their normal form.
const TAGS: &[(Tag, &[&str])] = &[
    (
        (metric::LOSS, 1.0),
        &[
            "loss",
            "lm_loss",
            "train_loss",
            "training_loss",
            "loss_step",
            "train_loss_step",
            "loss_metrics/global_avg_loss",
            "reduced_train_loss",
            "learning/loss",
            "ce_loss",
            "crossentropyloss",
            "loss/train/total",
            "loss/train",
            "loss/out",
            "samples/train_loss",
            "actor/pg_loss",
        ],
    ),
    (
        (metric::GRAD_NORM, 1.0),
        &[
            "grad_norm",
            "gradient_norm",
            "gradnorm",
            "gnorm",
            "total_grad_norm",
            "global_grad_norm",
            "learning/grad_norm",
            "optim/total_grad_norm",
            "optim/grad_norm",
            "l2_norm/grad/global",
            "grad/norm/total",
            "actor/grad_norm",
        ],
    ),
    (
        (metric::LR, 1.0),
        &[
            "lr",
            "learning_rate",
            "learningrate",
            "current_lr",
            "learning/current_learning_rate",
            "samples/lr",
            "actor/lr",
        ],
    ),
    (
        (metric::STEP_TIME, 1.0),
        &[
            "step_time",
            "step_time_seconds",
            "step_time_(s)",
            "dt",
            "iteration_time",
            "iteration_time_(s)",
            "iter_time",
            "iter_time_(s)",
            "time_per_step",
            "time_per_iteration",
            "s/it",
            "s/iter",
            "sec/step",
            "seconds_per_step",
            "elapsed_time_per_iteration_(s)",
            "time_metrics/end_to_end(s)",
            "perf/step_time_seconds",
            "perf/step_time_s",
            "train_step_timing_in_s",
            "runtime/iteration_time",
            "throughput/duration",
            "perf/time_per_step",
            "timing_s/step",
            "speed/curr_iter_time",
        ],
    ),
    (
        (metric::STEP_TIME, 1000.0),
        &[
            "ms",
            "ms/it",
            "ms/iter",
            "ms/step",
            "step_time_ms",
            "step_time_(ms)",
            "iter_time_ms",
            "iter_time_(ms)",
            "dt_ms",
            "dt_(ms)",
            "time_per_iteration_ms",
            "elapsed_time_per_iteration_(ms)",
        ],
    ),
    (
        (metric::TOKENS, 1.0),
        &["tokens", "num_tokens_per_step", "tokens_per_step", "perf/total_num_tokens", "global_tokens"],
    ),
    (
        (metric::TOKENS_PER_SECOND, 1.0),
        &[
            "tokens_per_second",
            "tokens_per_sec",
            "tokens/sec",
            "tokens/s",
            "tok/s",
            "tok/sec",
            "toks/s",
            "throughput/tokens_per_second",
            "throughput/tokens_per_sec",
            "runtime/tokens_per_sec",
        ],
    ),
    ((metric::TOKENS_PER_SECOND, 1e-3), &["kt/s"]),
    (
        (metric::TOKENS_PER_SECOND_PER_GPU, 1.0),
        &[
            "tps",
            "wps",
            "tgs",
            "tgs_(tokens/gpu/second)",
            "interval_tokens_per_second_per_device",
            "speed/wps",
            "throughput(tps)",
            "tokens_per_second_per_gpu",
            "tokens_per_sec_per_gpu",
            "token_per_gpu_per_sec",
            "tokens/s/gpu",
            "tokens/sec/gpu",
            "tok/s/gpu",
            "tps_per_gpu",
            "perf/per_device_tokens_per_sec",
            "perf/throughput",
            "throughput/device/tps",
            "throughput/device/tokens_per_sec",
            "throughput/device/tokens_per_second",
        ],
    ),
    (
        (metric::MFU_REPORTED, 1.0),
        &["mfu", "throughput/device/mfu", "device/mfu", "perf/mfu", "perf/mfu/actor"],
    ),
    (
        (metric::MFU_REPORTED, 100.0),
        &["mfu(%)", "mfu_(%)", "mfu_percent", "throughput/mfu", "runtime/model_flops_utilization"],
    ),
    (
        (metric::TFLOPS_REPORTED, 1.0),
        &[
            "tflops",
            "tflops_per_gpu",
            "tflop/s/gpu",
            "tflops/gpu",
            "throughput/tflops/device",
            "perf/per_device_tflops_per_sec",
        ],
    ),
    (
        (metric::TFLOPS_REPORTED, 1e12),
        &["throughput/device/flops_per_sec", "runtime/flops_per_sec_per_gpu", "speed/flops"],
    ),
    ((metric::LOSS_SCALE, 1.0), &["loss_scale", "samples/loss_scale"]),
    ((metric::EPOCH, 1.0), &["epoch"]),
    ((metric::SAMPLES, 1.0), &["global_batch_size"]),
    ((metric::NUM_ZEROS, 1.0), &["num_zeros"]),
    ((metric::PARAMS_NORM, 1.0), &["params_norm", "param_norm", "learning/param_norm"]),
];

/// Beginnings of keys that mean the learning rate of one of several groups; the first group of a
/// record is taken.
const LR_GROUPS: &[&str] = &["lr-", "optim/lr", "optim/learning_rate"];

/// Seconds of a step spent in a part of it: keys in their normal form, and the part.
const PARTS: &[(&str, &str)] = &[
    ("time_metrics/data_loading(s)", "data"),
    ("throughput/device/data_loading_(s)", "data"),
    ("throughput/loading_time", "data"),
    ("speed/data_load_time", "data"),
    ("throughput/hook_time", "hooks"),
];

/// verl's timers, the whole step aside.
const TIMERS: &str = "timing_s/";

static BY_KEY: LazyLock<HashMap<&str, Tag>> =
    LazyLock::new(|| TAGS.iter().flat_map(|(tag, keys)| keys.iter().map(|key| (*key, *tag))).collect());

/// Our metric for a framework's key.
pub fn canonical(key: &str) -> Option<Tag> {
    let bare = bare(key);
    // OLMo-core prints percent where Composer and Lightning print a ratio, and only the case
    // distinguishes them.
    if bare == "throughput/device/MFU" {
        return Some((metric::MFU_REPORTED, 100.0));
    }
    let key = Key::normalize(bare)?;
    let group = || LR_GROUPS.iter().any(|g| bare.get(..g.len()).is_some_and(|b| b.eq_ignore_ascii_case(g)));
    BY_KEY.get(key.as_str()).copied().or_else(|| group().then_some((metric::LR, 1.0)))
}

/// The part of a step whose seconds are under a key.
pub(crate) fn part(key: &str) -> Option<&str> {
    let bare = bare(key);
    if let Some(timer) = bare.strip_prefix(TIMERS) {
        return (timer != "step").then_some(timer);
    }
    let key = Key::normalize(bare)?;
    PARTS.iter().find(|(tag, _)| *tag == key.as_str()).map(|(_, part)| *part)
}

/// Whether tokens under a key may be those of all steps so far: `tokens`, `train/tokens`.
pub(crate) fn may_count_all(key: &str) -> bool {
    key.len() >= "tokens".len() && Key::normalize(bare(key)).is_some_and(|key| key.as_str() == "tokens")
}

/// True of a key whose step axis is samples or tokens: the same number again, at another place.
pub(crate) fn other_axis(key: &str) -> bool {
    key.ends_with(" vs samples") || key.ends_with(" vs tokens")
}

fn bare(key: &str) -> &str {
    key.get(..6).filter(|p| p.eq_ignore_ascii_case("train/")).map_or(key, |p| &key[p.len()..])
}

/// The longest key that can be in the table.
const MAX_KEY: usize = 48;

/// A key in its normal form, without an allocation: it is made for every number of every record.
struct Key([u8; MAX_KEY], usize);

impl Key {
    /// `None` of a key that is too long, or not ASCII, and so in no table.
    fn normalize(key: &str) -> Option<Self> {
        let mut normal = [0; MAX_KEY];
        for (to, from) in normal.get_mut(..key.len())?.iter_mut().zip(key.bytes()) {
            *to = match from {
                b' ' | b'-' => b'_',
                c => c.to_ascii_lowercase(),
            };
        }
        key.is_ascii().then_some(Self(normal, key.len()))
    }

    fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0[..self.1]).unwrap_or("")
    }
}
