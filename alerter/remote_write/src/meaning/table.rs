//! The series names that are known without a rule.

use stepwatch_wire::names::metric;

use crate::signal::Signal;

type MakeSignal = fn() -> Signal;

/// Families of our own exporter that are signals of a run. Families with more labels are in
/// [`super::ours`].
pub(super) static OURS: &[(&str, MakeSignal)] = &[
    ("train_step", || Signal::Step),
    ("train_rank_step", || Signal::Step),
    ("train_world_size", || Signal::World),
    ("train_attempt", || Signal::Attempt),
    ("train_loss", || Signal::metric(metric::LOSS)),
    ("train_grad_norm", || Signal::metric(metric::GRAD_NORM)),
    ("train_learning_rate", || Signal::metric(metric::LR)),
    ("train_loss_scale", || Signal::metric(metric::LOSS_SCALE)),
    ("train_params_norm", || Signal::metric(metric::PARAMS_NORM)),
    ("train_epoch", || Signal::metric(metric::EPOCH)),
    ("train_tokens_per_second", || Signal::metric(metric::TOKENS_PER_SECOND)),
    ("train_mfu_reported_ratio", || Signal::metric(metric::MFU_REPORTED)),
    ("train_skipped_steps_total", || Signal::Rise { name: metric::SKIPPED }),
    ("train_step_duration_seconds_sum", || Signal::StepSeconds),
    ("train_step_duration_seconds_count", || Signal::StepCount),
    ("train_checkpoint_last_step", || Signal::CheckpointStep),
    ("train_checkpoint_failures_total", || Signal::CheckpointFailures),
    ("train_checkpoint_in_progress", || Signal::CheckpointRunning),
];

/// The prefixes of metric names that trainers use.
pub(super) const PREFIXES: [&str; 4] = ["train_", "training_", "trainer_", "megatron_"];

/// Labels that name a run, in order of precedence.
pub(super) const RUN_LABELS: &[&str] =
    &["run", "run_name", "run_id", "training_run", "experiment", "experiment_name"];
/// Run labels for metrics whose name is specific to trainers.
pub(super) const OTHER_RUN_LABELS: &[&str] = &[
    "run",
    "run_name",
    "run_id",
    "training_run",
    "experiment",
    "experiment_name",
    "job_name",
    "exported_job",
    "job",
];

const MILLI: f64 = 1e-3;
const PERCENT: f64 = 1e-2;

/// Metric names of trainers without the prefix, the signal, and the factor for the value.
pub(super) static OTHERS: &[(&[&str], &str, f64)] = &[
    (&["step", "global_step", "steps", "iteration", "current_step"], "step", 1.0),
    (&["loss", "lm_loss", "cross_entropy_loss"], metric::LOSS, 1.0),
    (&["grad_norm", "gradient_norm", "global_grad_norm"], metric::GRAD_NORM, 1.0),
    (&["learning_rate", "lr"], metric::LR, 1.0),
    (&["loss_scale"], metric::LOSS_SCALE, 1.0),
    (
        &["step_time_seconds", "step_duration_seconds", "iteration_time_seconds", "seconds_per_step"],
        metric::STEP_TIME,
        1.0,
    ),
    (&["step_time_ms", "iteration_time_ms", "elapsed_time_per_iteration_ms"], metric::STEP_TIME, MILLI),
    (&["tokens_per_second", "tokens_per_sec", "throughput_tokens"], metric::TOKENS_PER_SECOND, 1.0),
    (&["mfu", "mfu_ratio", "model_flops_utilization"], metric::MFU, 1.0),
    (&["mfu_percent"], metric::MFU, PERCENT),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Device {
    Gpu,
    Port,
}

/// A family whose value is a device reading.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) family: &'static str,
    /// A label and the value that selects the series, if the family has several.
    pub(super) label: Option<(&'static str, &'static str)>,
    pub(super) device: Device,
    /// The name of the reading in an event.
    pub(super) reading: &'static str,
    pub(super) scale: f64,
}

const fn gpu(family: &'static str, reading: &'static str, scale: f64) -> Row {
    Row { family, label: None, device: Device::Gpu, reading, scale }
}

const fn of(label: &'static str, value: &'static str, row: Row) -> Row {
    Row { label: Some((label, value)), ..row }
}

const fn port(family: &'static str, reading: &'static str) -> Row {
    Row { family, label: None, device: Device::Port, reading, scale: 1.0 }
}

/// Hertz per megahertz: NVIDIA's field list gives `DCGM_FI_DEV_*` clocks in MHz and utilization in
/// percent.
const MEGA: f64 = 1e6;

pub(super) static DEVICES: &[Row] = &[
    gpu("gpu_energy_joules_total", "energy_joules", 1.0),
    of("domain", "sm", gpu("gpu_clock_hertz", "sm_clock_hertz", 1.0)),
    of("domain", "memory", gpu("gpu_clock_hertz", "memory_clock_hertz", 1.0)),
    of("domain", "sm", gpu("gpu_clock_max_hertz", "sm_clock_max_hertz", 1.0)),
    gpu("gpu_power_watts", "power_watts", 1.0),
    gpu("gpu_power_limit_watts", "power_limit_watts", 1.0),
    of("sensor", "gpu", gpu("gpu_temperature_celsius", "temperature_celsius", 1.0)),
    of("sensor", "memory", gpu("gpu_temperature_celsius", "memory_temperature_celsius", 1.0)),
    gpu("gpu_utilization_ratio", "utilization_ratio", 1.0),
    gpu("gpu_tensor_active_ratio", "tensor_active_ratio", 1.0),
    of("kind", "replay", gpu("gpu_pcie_errors_total", "pcie_replays", 1.0)),
    gpu("DCGM_FI_DEV_SM_CLOCK", "sm_clock_hertz", MEGA),
    gpu("DCGM_FI_DEV_MEM_CLOCK", "memory_clock_hertz", MEGA),
    gpu("DCGM_FI_DEV_POWER_USAGE", "power_watts", 1.0),
    gpu("DCGM_FI_DEV_POWER_MGMT_LIMIT", "power_limit_watts", 1.0),
    gpu("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "energy_joules", 1e-3),
    gpu("DCGM_FI_DEV_GPU_TEMP", "temperature_celsius", 1.0),
    gpu("DCGM_FI_DEV_MEMORY_TEMP", "memory_temperature_celsius", 1.0),
    gpu("DCGM_FI_DEV_GPU_UTIL", "utilization_ratio", PERCENT),
    gpu("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor_active_ratio", 1.0),
    gpu("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "pcie_replays", 1.0),
    gpu("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "ecc_corrected", 1.0),
    gpu("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "ecc_uncorrected", 1.0),
    gpu("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "remapped_rows_correctable", 1.0),
    gpu("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "remapped_rows_uncorrectable", 1.0),
    port("rdma_port_rate_bytes_per_second", "rate_bytes_per_second"),
    port("rdma_port_transmit_bytes_total", "transmit_bytes"),
    port("rdma_port_link_downed_total", "link_downed"),
    port("node_infiniband_rate_bytes_per_second", "rate_bytes_per_second"),
    port("node_infiniband_port_data_transmitted_bytes_total", "transmit_bytes"),
    port("node_infiniband_link_downed_total", "link_downed"),
    port("node_infiniband_symbol_error_total", "symbol_errors"),
    port("node_infiniband_link_error_recovery_total", "link_error_recoveries"),
    port("node_infiniband_port_discards_transmitted_total", "transmit_discards"),
];
