//! The meanings of other projects' metric names.

use std::borrow::Cow;
use std::collections::BTreeMap;

use stepwatch_wire::names::metric;

/// The most entries of a `metrics:` map.
pub(crate) const MAX_NAMES: usize = 256;
/// The most bytes of the name of a metric.
const MAX_NAME: usize = 128;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Meaning<'a> {
    /// A metric of ours or a custom one, and the divisor of the number.
    Metric(Cow<'a, str>, f64),
    /// A metric of an evaluation.
    Eval(Cow<'a, str>),
    /// The number of the step.
    Step,
    /// The Unix time of the step in seconds.
    Time,
    Drop,
}

/// Names in the configuration, which override known ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names(BTreeMap<String, String>);

/// Prefixes of the names of frameworks that report in these ways.
const PREFIXES: &[&str] = &[
    "megatron.training.",
    "megatron_training_",
    "nv.dl.training.",
    "nemo.training.",
    "dl.",
    "rl.",
    "axolotl_",
    "trainer_",
    "training.",
    "training_",
    "training/",
    "train.",
    "train_",
    "train/",
    "stepwatch.",
];

const STEPS: &[&str] = &[
    "step",
    "steps",
    "global_step",
    "global_steps",
    "current_step",
    "iteration",
    "iterations",
    "global_iteration",
];

/// Names that the tag map of logs lacks, without prefix and in the form of [`bare`].
const KNOWN: &[(&str, &str, f64)] = &[
    ("step_duration_ms", metric::STEP_TIME, 1000.0),
    ("step_duration_milliseconds", metric::STEP_TIME, 1000.0),
    ("step_duration_ms_milliseconds", metric::STEP_TIME, 1000.0),
    ("step_time_milliseconds", metric::STEP_TIME, 1000.0),
    ("step_duration", metric::STEP_TIME, 1.0),
    ("step_duration_seconds", metric::STEP_TIME, 1.0),
    ("step_seconds", metric::STEP_TIME, 1.0),
    ("sft_v2_step_duration", metric::STEP_TIME, 1.0),
    ("throughput_tflops", metric::TFLOPS_REPORTED, 1.0),
    ("skipped_iters", metric::SKIPPED, 1.0),
    ("skipped_iterations", metric::SKIPPED, 1.0),
    ("nan_iterations", metric::NAN_ITERATIONS, 1.0),
    ("grad_zeros", metric::NUM_ZEROS, 1.0),
    ("tokens_processed", metric::TOKENS, 1.0),
    ("throughput_tokens_per_sec", metric::TOKENS_PER_SECOND, 1.0),
    ("throughput_tps", metric::TOKENS_PER_SECOND, 1.0),
    ("sft_v2_valid_tokens_per_second", metric::TOKENS_PER_SECOND, 1.0),
    ("policy_loss", metric::LOSS, 1.0),
    ("mfu_ratio", metric::MFU_REPORTED, 1.0),
];

const EVALS: &[&str] = &["eval_", "eval/", "eval.", "validation_", "validation/", "val_", "val/"];

impl Meaning<'_> {
    pub(crate) fn into_owned(self) -> Meaning<'static> {
        match self {
            Self::Metric(name, by) => Meaning::Metric(Cow::Owned(name.into_owned()), by),
            Self::Eval(name) => Meaning::Eval(Cow::Owned(name.into_owned())),
            Self::Step => Meaning::Step,
            Self::Time => Meaning::Time,
            Self::Drop => Meaning::Drop,
        }
    }
}

impl Names {
    /// Creates it from a map of their names to ours.
    pub(crate) fn new(configured: &BTreeMap<String, String>) -> Self {
        Self(configured.clone())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The meaning of a name; an unknown one is a custom metric.
    pub(crate) fn meaning<'a>(&'a self, name: &'a str, unit: &str) -> Meaning<'a> {
        self.known(name, unit).unwrap_or_else(|| Meaning::Metric(clip(name), 1.0))
    }

    /// The meaning of a configured or known name.
    pub(crate) fn known<'a>(&'a self, name: &'a str, unit: &str) -> Option<Meaning<'a>> {
        if let Some(ours) = self.0.get(name) {
            return Some(match ours.as_str() {
                "step" => Meaning::Step,
                "time" => Meaning::Time,
                "drop" => Meaning::Drop,
                eval if eval.starts_with("eval_") => Meaning::Eval(Cow::Borrowed(&eval["eval_".len()..])),
                ours => Meaning::Metric(clip(ours), divisor(ours, 1.0, unit)),
            });
        }
        let bare = bare(name);
        if STEPS.contains(&bare.as_ref()) {
            return Some(Meaning::Step);
        }
        if bare == "last_step_timestamp_seconds" {
            return Some(Meaning::Time);
        }
        if let Some(prefix) = EVALS.iter().find(|p| bare.starts_with(**p)) {
            return Some(Meaning::Eval(Cow::Owned(bare[prefix.len()..].to_owned())));
        }
        let ours = KNOWN.iter().find(|(theirs, ..)| *theirs == bare).map(|(_, ours, by)| (*ours, *by));
        let (ours, by) = ours.or_else(|| stepwatch_formats::canonical(&bare))?;
        Some(Meaning::Metric(Cow::Borrowed(ours), divisor(ours, by, unit)))
    }
}

/// The errors of a `metrics:` map, as `key: reason`.
pub(crate) fn check(configured: &BTreeMap<String, String>) -> Vec<String> {
    let mut wrong = Vec::new();
    if configured.len() > MAX_NAMES {
        wrong.push(format!("metrics: {} entries, the limit is {MAX_NAMES}", configured.len()));
    }
    if let Some((theirs, _)) = configured.iter().find(|(_, ours)| ours.is_empty()) {
        wrong.push(format!("metrics: {theirs:?} needs a name of ours, `step`, `time` or `drop`"));
    }
    wrong
}

/// The name in lower case without the framework's prefix and a counter's suffix, words joined by
/// `_`.
fn bare(name: &str) -> Cow<'_, str> {
    let bare = PREFIXES.iter().find_map(|p| name.strip_prefix(p)).unwrap_or(name);
    let bare = bare.strip_suffix("_total").unwrap_or(bare);
    if bare.bytes().any(|b| b == b'.' || b.is_ascii_uppercase()) {
        return Cow::Owned(bare.replace('.', "_").to_ascii_lowercase());
    }
    Cow::Borrowed(bare)
}

/// The divisor of a name, unless the reporter gives the unit.
fn divisor(ours: &str, by: f64, unit: &str) -> f64 {
    match (ours, unit) {
        (metric::STEP_TIME, "s" | "seconds") => 1.0,
        (metric::STEP_TIME, "ms" | "milliseconds") => 1e3,
        (metric::STEP_TIME, "us" | "microseconds") => 1e6,
        (metric::STEP_TIME, "ns" | "nanoseconds") => 1e9,
        (metric::MFU_REPORTED, "%" | "percent") => 100.0,
        _ => by,
    }
}

fn clip(name: &str) -> Cow<'_, str> {
    Cow::Borrowed(&name[..name.floor_char_boundary(MAX_NAME)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_several_frameworks() {
        let names = Names::default();
        for (theirs, unit, ours, by) in [
            ("megatron.training.loss", "", metric::LOSS, 1.0),
            ("megatron.training.step_duration_ms", "ms", metric::STEP_TIME, 1000.0),
            ("megatron.training.throughput_tflops", "", metric::TFLOPS_REPORTED, 1.0),
            ("megatron.training.learning_rate", "", metric::LR, 1.0),
            ("megatron.training.tokens_per_sec", "", metric::TOKENS_PER_SECOND, 1.0),
            ("megatron_training_skipped_iters_total", "", metric::SKIPPED, 1.0),
            ("nv.dl.training.tokens.processed", "{token}", metric::TOKENS, 1.0),
            ("rl.policy.loss", "", metric::LOSS, 1.0),
            ("rl.grad_norm", "", metric::GRAD_NORM, 1.0),
            ("rl.sft_v2.step.duration", "s", metric::STEP_TIME, 1.0),
            ("axolotl_train_loss", "", metric::LOSS, 1.0),
            ("axolotl_gradient_norm", "", metric::GRAD_NORM, 1.0),
            ("trainer_mfu_percent", "", metric::MFU_REPORTED, 100.0),
            ("trainer_throughput_tokens_per_sec", "", metric::TOKENS_PER_SECOND, 1.0),
            ("train/loss", "", metric::LOSS, 1.0),
            ("Loss", "", metric::LOSS, 1.0),
            ("step_time", "ms", metric::STEP_TIME, 1000.0),
            ("mfu", "%", metric::MFU_REPORTED, 100.0),
        ] {
            assert_eq!(names.known(theirs, unit), Some(Meaning::Metric(ours.into(), by)), "{theirs}");
        }
        for step in ["trainer_step", "axolotl_global_steps_total", "global_step", "iteration", "train.step"] {
            assert_eq!(names.known(step, ""), Some(Meaning::Step), "{step}");
        }
        assert_eq!(names.known("trainer_last_step_timestamp_seconds", ""), Some(Meaning::Time));
        assert_eq!(names.known("axolotl_eval_loss", ""), Some(Meaning::Eval("loss".into())));
        assert_eq!(names.known("python_gc_objects", ""), None);
        assert_eq!(names.meaning("rl.reward.mean", ""), Meaning::Metric("rl.reward.mean".into(), 1.0));
    }

    #[test]
    fn the_configuration_comes_first() {
        let map = [("a", "loss"), ("b", "step"), ("loss", "drop"), ("c", "eval_loss"), ("d", "step_time")];
        let names = Names::new(&map.map(|(a, b)| (a.to_owned(), b.to_owned())).into());
        assert_eq!(names.meaning("a", ""), Meaning::Metric("loss".into(), 1.0));
        assert_eq!(names.meaning("b", ""), Meaning::Step);
        assert_eq!(names.meaning("loss", ""), Meaning::Drop);
        assert_eq!(names.meaning("c", ""), Meaning::Eval("loss".into()));
        assert_eq!(names.meaning("d", "ms"), Meaning::Metric("step_time".into(), 1000.0));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(name in "\\PC{0,200}", unit in "\\PC{0,4}") {
            let _ = Names::default().meaning(&name, &unit);
        }
    }
}
