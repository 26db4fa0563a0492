//! One step of one run, as the detectors see it: ranks already aligned, duplicates gone.

use serde::{Deserialize, Serialize};
use stepwatch_wire::Metrics;

use stepwatch_model::time::Ts;

/// The kind of a step, as the trainer reported it or the engine derived it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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

/// `None` is absent: not logged at this step. NaN and infinities arrive as numbers and only
/// `nonfinite` may keep them.
#[derive(Debug, Clone, Default)]
pub struct StepSample {
    pub step: i64,
    pub ts: Ts,
    /// Restart epoch; steps are comparable only within one.
    pub attempt: u32,
    /// Steps since the previous sample: the logging interval. 0: a further report of the same step
    /// that carries only non-finite values.
    pub interval: i64,
    /// It only adds signals to a step that was judged before: those that a second source reports,
    /// perhaps minutes later. Every signal comes once a step, and in the order of the steps;
    /// two signals need not keep pace.
    pub adds: bool,
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
    /// Ratio, or what the framework reports in its place: to be compared with itself only.
    pub mfu: Option<f64>,
    /// Ratio, computed by the exporter's own formula.
    pub computed_mfu: Option<f64>,
    pub q: Quanta,
}

/// How finely the values of a sample were printed, in their own units; 0 of one that kept its
/// digits. A value cannot be out of place by less than a step of its printer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Quanta {
    pub loss: f64,
    pub grad_norm: f64,
    pub step_time: f64,
    pub tokens_per_second: f64,
    pub mfu: f64,
}

/// Reports of a run besides its samples.
#[derive(Debug, Clone, Copy)]
pub enum Extra<'a> {
    /// The other metrics of one report. Each occurs once a step at most, in the order of its steps.
    Readings(&'a [Reading<'a>]),
    Parts(Parts<'a>),
    Eval(Eval<'a>),
}

/// One number of a named series. Its step is where the run stood; a series that is not of a run's
/// steps counts its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading<'a> {
    /// The id of the name within the run.
    pub id: u16,
    pub name: &'a str,
    pub step: i64,
    pub ts: Ts,
    pub attempt: u32,
    pub value: f64,
    /// The unit in which it was printed.
    pub quantum: f64,
}

/// The parts of a step's time on one rank.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    pub step: i64,
    pub ts: Ts,
    pub attempt: u32,
    pub rank: u32,
    pub step_time: Option<f64>,
    /// Seconds of each part; parts may lie within one another.
    pub seconds: &'a Metrics,
}

/// The loss on one evaluation set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Eval<'a> {
    pub id: u16,
    pub set: &'a str,
    pub step: i64,
    pub ts: Ts,
    pub attempt: u32,
    pub loss: f64,
    pub quantum: f64,
}

/// Standard deviation of a value that was rounded to a multiple of `quantum`, from the rounding
/// alone.
pub fn rounding(quantum: f64) -> f64 {
    quantum / 12f64.sqrt()
}
