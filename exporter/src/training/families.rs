//! The families of training metrics.

use stepwatch_wire::names::metric;

use crate::family::Family;

const RUN: &[&str] = &["run"];
const RANK: &[&str] = &["run", "rank"];
const STAGE: &[&str] = &["run", "stage"];

pub static RUN_INFO: Family = Family::gauge(
    "train_run_info",
    "",
    &["run", "framework", "version", "model", "dtype", "gpu", "job_id"],
    "What the trainer declared; always 1",
);
pub static LOSS: Family =
    Family::gauge("train_loss", "", RUN, "Training loss of the last step that had a finite one");
pub static LOSS_MAX: Family =
    Family::gauge("train_loss_max", "", &["run", "window"], "Largest finite training loss within the window");
pub static EVAL_LOSS: Family =
    Family::gauge("train_eval_loss", "", &["run", "dataset"], "Loss of the last evaluation");
pub static GRAD_NORM: Family =
    Family::gauge("train_grad_norm", "", RUN, "Global gradient norm of the last step that had a finite one");
pub static GRAD_NORM_MAX: Family = Family::gauge(
    "train_grad_norm_max",
    "",
    &["run", "window"],
    "Largest finite gradient norm within the window",
);
pub static LEARNING_RATE: Family =
    Family::gauge("train_learning_rate", "", RUN, "Learning rate of the last step");
pub static LOSS_SCALE: Family =
    Family::gauge("train_loss_scale", "", RUN, "Loss scale of mixed-precision training");
pub static PARAMS_NORM: Family = Family::gauge("train_params_norm", "", RUN, "Norm of the parameters");
pub static EPOCH: Family =
    Family::gauge("train_epoch", "", RUN, "Epochs of the data set so far, with the fraction");
pub static STEP: Family = Family::gauge("train_step", "", RUN, "Last step of the current attempt");
pub static STEPS: Family = Family::counter(
    "train_steps_total",
    "",
    RUN,
    "Steps done while this exporter watched; steps repeated after a restart count again",
);
pub static ATTEMPT: Family = Family::gauge(
    "train_attempt",
    "",
    RUN,
    "How often the run has restarted, across restarts of this exporter",
);
pub static RESTARTS: Family =
    Family::counter("train_restarts_total", "", RUN, "Restarts of the run while this exporter watched");
pub static RANK_DEATHS: Family = Family::counter(
    "train_rank_deaths_total",
    "",
    RUN,
    "Processes of ranks that closed their socket without a goodbye",
);
pub static WORLD: Family =
    Family::gauge("train_world_size", "", RUN, "Ranks of the whole job, as the trainer declares");
pub static LAST_STEP: Family =
    Family::gauge("train_last_step_timestamp_seconds", "seconds", RUN, "Unix time of the last step");
pub static TOKENS: Family =
    Family::counter("train_tokens_total", "", RUN, "Tokens of the whole job while this exporter watched");
pub static TOKENS_PER_SECOND: Family =
    Family::gauge("train_tokens_per_second", "", RUN, "Tokens per second of the whole job at the last step");
pub static TOKENS_PER_SECOND_PER_GPU: Family = Family::gauge(
    "train_tokens_per_second_per_gpu",
    "",
    RUN,
    "Tokens per second of one GPU at the last step",
);
pub static MFU: Family = Family::gauge(
    "train_mfu_ratio",
    "ratio",
    &["run", "convention"],
    "Model FLOP/s over dense peak FLOP/s at the last step, computed here by each convention of counting FLOPs",
);
pub static MFU_REMARK: Family = Family::gauge(
    "train_mfu_remark",
    "",
    &["run", "remark"],
    "Why a run has no MFU, or what its MFU leaves out; always 1",
);
pub static MFU_REPORTED: Family = Family::gauge(
    "train_mfu_reported_ratio",
    "ratio",
    RUN,
    "MFU as the trainer printed it, by its own convention and peak",
);
pub static FLOPS_REPORTED: Family = Family::gauge(
    "train_reported_flops_per_second_per_gpu",
    "",
    RUN,
    "Model FLOP/s of one GPU as the trainer printed it",
);
pub static PEAK_FLOPS: Family = Family::gauge(
    "train_peak_flops_per_second",
    "",
    RUN,
    "Dense peak FLOP/s of one GPU that train_mfu_ratio divides by; absent for a GPU that is not in the table",
);
pub static NONFINITE: Family = Family::counter(
    "train_nonfinite_total",
    "",
    &["run", "what", "how"],
    "Steps whose loss, gradient norm or other metric was NaN or infinite: as a value, as a field that its line lacked, by the overflow that skipped the step, or as the trainer's own count",
);
pub static SKIPPED: Family =
    Family::counter("train_skipped_steps_total", "", RUN, "Optimizer steps that the trainer skipped");
pub static CUSTOM: Family =
    Family::gauge("train_custom", "", &["run", "name"], "Last value of a metric of the trainer's own");
pub static CKPT_SUCCESS: Family = Family::gauge(
    "train_checkpoint_last_success_timestamp_seconds",
    "seconds",
    RUN,
    "Unix time at which the last checkpoint was one that a restart would take, written or durable where the run shows that: all work since then is lost by a crash now",
);
pub static CKPT_STEP: Family = Family::gauge(
    "train_checkpoint_last_step",
    "",
    RUN,
    "Step of the last checkpoint that a restart would take",
);
pub static CKPT_DURATION: Family = Family::gauge(
    "train_checkpoint_duration_seconds",
    "seconds",
    STAGE,
    "How long the stage took when it last ended: the save, for which steps wait, the write, the upload, all until it was durable or seen whole on disk, or a load",
);
pub static CKPT_SIZE: Family = Family::gauge(
    "train_checkpoint_size_bytes",
    "bytes",
    STAGE,
    "Size of the checkpoint of which the stage last ended",
);
pub static CKPT_FAILURES: Family =
    Family::counter("train_checkpoint_failures_total", "", RUN, "Checkpoints that failed");
pub static CKPT_IN_PROGRESS: Family = Family::gauge(
    "train_checkpoint_in_progress",
    "",
    RUN,
    "Whether a checkpoint is being saved while steps wait",
);

pub static STEP_DURATION: Family =
    Family::histogram("train_step_duration_seconds", "seconds", RANK, "Durations of steps");
pub static RANK_STEP: Family = Family::gauge("train_rank_step", "", RANK, "Last step of the rank");
pub static RANK_STEP_TIME: Family = Family::gauge(
    "train_rank_last_step_duration_seconds",
    "seconds",
    RANK,
    "Duration of the last step of the rank",
);
pub static RANK_UP: Family = Family::gauge(
    "train_rank_up",
    "",
    RANK,
    "Whether the process of the rank holds its connection; absent for ranks that are done or report in other ways",
);
pub static HEARTBEAT: Family = Family::gauge(
    "train_heartbeat_timestamp_seconds",
    "seconds",
    RANK,
    "Unix time of the last event of the rank",
);
pub static PHASE_SECONDS: Family = Family::counter(
    "train_phase_seconds_total",
    "seconds",
    &["run", "rank", "phase"],
    "Time spent in each phase, as the trainer measures it",
);
pub static PHASE_ACTIVE: Family = Family::gauge(
    "train_phase_active",
    "",
    &["run", "rank", "phase"],
    "Whether the rank is in the phase now",
);
pub static DATA_WAIT: Family = Family::gauge(
    "train_dataloader_wait_ratio",
    "ratio",
    RANK,
    "Share of the last step that was spent waiting for data",
);
pub static CLIENT_DROPPED: Family = Family::counter(
    "train_client_dropped_total",
    "",
    RANK,
    "Events that the rank's client dropped because it could not send them, as its process counts",
);
pub static RUNS: Family = Family::gauge("stepwatch_exporter_runs", "", &[], "Runs that are tracked now");

pub static FAMILIES: &[&Family] = &[
    &RUN_INFO,
    &LOSS,
    &LOSS_MAX,
    &EVAL_LOSS,
    &GRAD_NORM,
    &GRAD_NORM_MAX,
    &LEARNING_RATE,
    &LOSS_SCALE,
    &PARAMS_NORM,
    &EPOCH,
    &STEP,
    &STEPS,
    &ATTEMPT,
    &RESTARTS,
    &RANK_DEATHS,
    &WORLD,
    &LAST_STEP,
    &TOKENS,
    &TOKENS_PER_SECOND,
    &TOKENS_PER_SECOND_PER_GPU,
    &MFU,
    &MFU_REMARK,
    &MFU_REPORTED,
    &FLOPS_REPORTED,
    &PEAK_FLOPS,
    &NONFINITE,
    &SKIPPED,
    &CUSTOM,
    &CKPT_SUCCESS,
    &CKPT_STEP,
    &CKPT_DURATION,
    &CKPT_SIZE,
    &CKPT_FAILURES,
    &CKPT_IN_PROGRESS,
    &STEP_DURATION,
    &RANK_STEP,
    &RANK_STEP_TIME,
    &RANK_UP,
    &HEARTBEAT,
    &PHASE_SECONDS,
    &PHASE_ACTIVE,
    &DATA_WAIT,
    &CLIENT_DROPPED,
    &RUNS,
];

/// Metrics of a step that are gauges of the run, each with the factor to its base unit.
pub(super) static GAUGES: [(&str, &Family, f64); 10] = [
    (metric::LOSS, &LOSS, 1.0),
    (metric::GRAD_NORM, &GRAD_NORM, 1.0),
    (metric::LR, &LEARNING_RATE, 1.0),
    (metric::LOSS_SCALE, &LOSS_SCALE, 1.0),
    (metric::PARAMS_NORM, &PARAMS_NORM, 1.0),
    (metric::EPOCH, &EPOCH, 1.0),
    (metric::TOKENS_PER_SECOND, &TOKENS_PER_SECOND, 1.0),
    (metric::TOKENS_PER_SECOND_PER_GPU, &TOKENS_PER_SECOND_PER_GPU, 1.0),
    (metric::MFU_REPORTED, &MFU_REPORTED, 1.0),
    (metric::TFLOPS_REPORTED, &FLOPS_REPORTED, 1e12),
];

/// Metrics with families of their own beside [`GAUGES`]; all others are custom.
pub(super) const ELSEWHERE: &[&str] =
    &[metric::STEP_TIME, metric::TOKENS, metric::MFU, metric::SKIPPED, metric::NAN_ITERATIONS];
