//! One step of one run, as the detectors see it: ranks already aligned, duplicates gone.

use crate::time::Ts;

/// What kind of step it was, as far as the trainer told or the engine learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StepClass {
    #[default]
    Train,
    /// First step after a start or a restart: compilation, warm caches, loading.
    First,
    /// A checkpoint was written during it.
    Checkpoint,
    /// An evaluation ran during it.
    Eval,
}

/// `None` is absent: not logged at this step. NaN and infinities arrive as numbers and only `nonfinite` may keep them.
#[derive(Debug, Clone, Default)]
pub struct StepSample {
    pub step: i64,
    pub ts: Ts,
    /// Restart epoch; steps are comparable only within one.
    pub attempt: u32,
    /// Steps since the previous sample: the logging interval. 0: a further report of the same step, from another rank, that
    /// carries only non-finite values.
    pub interval: i64,
    pub class: StepClass,
    pub loss: Option<f64>,
    pub grad_norm: Option<f64>,
    pub lr: Option<f64>,
    pub loss_scale: Option<f64>,
    /// Optimizer steps skipped in the interval (fp16 overflow).
    pub skipped: Option<f64>,
    /// The line should have carried a loss and did not.
    pub loss_missing: bool,
    /// Seconds a step.
    pub step_time: Option<f64>,
    pub tokens_per_second: Option<f64>,
    /// Ratio.
    pub mfu: Option<f64>,
}
