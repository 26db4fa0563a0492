//! What the same quantity is called in different frameworks.
//!
//! Matching ignores case and a leading `train/`. A key that is not here keeps its own name and becomes a custom metric.

use stepwatch_wire::names::metric;

/// A metric of ours, and what the framework's number must be divided by to become it.
pub type Tag = (&'static str, f64);

const TAGS: &[(&str, Tag)] = &[
    ("loss", (metric::LOSS, 1.0)),
    ("lm loss", (metric::LOSS, 1.0)),
    ("lm_loss", (metric::LOSS, 1.0)),
    ("train_loss", (metric::LOSS, 1.0)),
    ("training_loss", (metric::LOSS, 1.0)),
    ("loss_metrics/global_avg_loss", (metric::LOSS, 1.0)),
    ("reduced_train_loss", (metric::LOSS, 1.0)),
    ("learning/loss", (metric::LOSS, 1.0)),
    ("ce loss", (metric::LOSS, 1.0)),
    ("crossentropyloss", (metric::LOSS, 1.0)),
    ("loss/train/total", (metric::LOSS, 1.0)),
    ("actor/pg_loss", (metric::LOSS, 1.0)),
    ("loss/out", (metric::LOSS, 1.0)),
    ("grad_norm", (metric::GRAD_NORM, 1.0)),
    ("grad-norm", (metric::GRAD_NORM, 1.0)),
    ("grad norm", (metric::GRAD_NORM, 1.0)),
    ("gradient_norm", (metric::GRAD_NORM, 1.0)),
    ("gradnorm", (metric::GRAD_NORM, 1.0)),
    ("learning/grad_norm", (metric::GRAD_NORM, 1.0)),
    ("optim/total grad norm", (metric::GRAD_NORM, 1.0)),
    ("optim/total_grad_norm", (metric::GRAD_NORM, 1.0)),
    ("optim/grad_norm", (metric::GRAD_NORM, 1.0)),
    ("l2_norm/grad/global", (metric::GRAD_NORM, 1.0)),
    ("grad/norm/total", (metric::GRAD_NORM, 1.0)),
    ("actor/grad_norm", (metric::GRAD_NORM, 1.0)),
    ("lr", (metric::LR, 1.0)),
    ("learning_rate", (metric::LR, 1.0)),
    ("learning-rate", (metric::LR, 1.0)),
    ("learning rate", (metric::LR, 1.0)),
    ("learning/current_learning_rate", (metric::LR, 1.0)),
    ("optim/learning_rate", (metric::LR, 1.0)),
    ("optim/lr", (metric::LR, 1.0)),
    ("actor/lr", (metric::LR, 1.0)),
    ("step_time", (metric::STEP_TIME, 1.0)),
    ("step_time_seconds", (metric::STEP_TIME, 1.0)),
    ("iteration-time", (metric::STEP_TIME, 1.0)),
    ("time_metrics/end_to_end(s)", (metric::STEP_TIME, 1.0)),
    ("perf/step_time_seconds", (metric::STEP_TIME, 1.0)),
    ("train_step_timing in s", (metric::STEP_TIME, 1.0)),
    ("runtime/iteration_time", (metric::STEP_TIME, 1.0)),
    ("throughput/duration", (metric::STEP_TIME, 1.0)),
    ("perf/time_per_step", (metric::STEP_TIME, 1.0)),
    ("timing_s/step", (metric::STEP_TIME, 1.0)),
    ("speed/curr_iter_time", (metric::STEP_TIME, 1.0)),
    ("tokens", (metric::TOKENS, 1.0)),
    ("num_tokens_per_step", (metric::TOKENS, 1.0)),
    ("perf/total_num_tokens", (metric::TOKENS, 1.0)),
    ("tokens_per_second", (metric::TOKENS_PER_SECOND, 1.0)),
    ("tokens_per_sec", (metric::TOKENS_PER_SECOND, 1.0)),
    ("tps", (metric::TOKENS_PER_SECOND, 1.0)),
    ("throughput/tokens_per_second", (metric::TOKENS_PER_SECOND, 1.0)),
    ("throughput/tokens_per_sec", (metric::TOKENS_PER_SECOND, 1.0)),
    ("runtime/tokens_per_sec", (metric::TOKENS_PER_SECOND, 1.0)),
    ("tokens_per_second_per_gpu", (metric::TOKENS_PER_SECOND_PER_GPU, 1.0)),
    ("tokens_per_sec_per_gpu", (metric::TOKENS_PER_SECOND_PER_GPU, 1.0)),
    ("tps_per_gpu", (metric::TOKENS_PER_SECOND_PER_GPU, 1.0)),
    ("throughput(tps)", (metric::TOKENS_PER_SECOND_PER_GPU, 1.0)),
    ("perf/per_device_tokens_per_sec", (metric::TOKENS_PER_SECOND_PER_GPU, 1.0)),
    ("perf/throughput", (metric::TOKENS_PER_SECOND_PER_GPU, 1.0)),
    ("throughput/device/tps", (metric::TOKENS_PER_SECOND_PER_GPU, 1.0)),
    ("throughput/device/tokens_per_sec", (metric::TOKENS_PER_SECOND_PER_GPU, 1.0)),
    ("throughput/device/tokens_per_second", (metric::TOKENS_PER_SECOND_PER_GPU, 1.0)),
    ("mfu", (metric::MFU_REPORTED, 1.0)),
    ("mfu(%)", (metric::MFU_REPORTED, 100.0)),
    ("throughput/mfu", (metric::MFU_REPORTED, 100.0)),
    ("throughput/device/mfu", (metric::MFU_REPORTED, 1.0)),
    ("runtime/model_flops_utilization", (metric::MFU_REPORTED, 100.0)),
    ("perf/mfu/actor", (metric::MFU_REPORTED, 1.0)),
    ("tflops", (metric::TFLOPS_REPORTED, 1.0)),
    ("perf/per_device_tflops_per_sec", (metric::TFLOPS_REPORTED, 1.0)),
    ("tflops_per_gpu", (metric::TFLOPS_REPORTED, 1.0)),
    ("loss-scale", (metric::LOSS_SCALE, 1.0)),
    ("loss_scale", (metric::LOSS_SCALE, 1.0)),
    ("epoch", (metric::EPOCH, 1.0)),
    ("num-zeros", (metric::NUM_ZEROS, 1.0)),
    ("params-norm", (metric::PARAMS_NORM, 1.0)),
    ("learning/param_norm", (metric::PARAMS_NORM, 1.0)),
];

/// Our metric for a framework's key.
pub fn canonical(key: &str) -> Option<Tag> {
    let bare = key.get(..6).filter(|p| p.eq_ignore_ascii_case("train/")).map_or(key, |p| &key[p.len()..]);
    TAGS.iter().find(|(tag, _)| tag.eq_ignore_ascii_case(bare)).map(|(_, t)| *t)
}

/// True of a key whose step axis is samples or tokens: the same number again, at another place.
pub(crate) fn other_axis(key: &str) -> bool {
    key.ends_with(" vs samples") || key.ends_with(" vs tokens")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_several_frameworks() {
        for (key, want) in [
            ("lm loss", Some((metric::LOSS, 1.0))),
            ("train/CE loss", Some((metric::LOSS, 1.0))),
            ("Train/loss", Some((metric::LOSS, 1.0))),
            ("throughput/device/TPS", Some((metric::TOKENS_PER_SECOND_PER_GPU, 1.0))),
            ("mfu(%)", Some((metric::MFU_REPORTED, 100.0))),
            ("token_acc", None),
            ("é", None),
            ("traié", None),
        ] {
            assert_eq!(canonical(key), want, "{key}");
        }
        assert!(other_axis("lm loss vs samples") && !other_axis("lm loss"));
    }

    #[test]
    fn no_tag_twice() {
        for (i, (tag, _)) in TAGS.iter().enumerate() {
            assert!(TAGS[..i].iter().all(|(t, _)| t != tag), "{tag}");
        }
    }
}
