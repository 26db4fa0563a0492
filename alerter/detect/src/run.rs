//! What is known of one training run: its ranks aligned by step, its pace, its checkpoints, and
//! the reports about it. Detectors are not here, but in [`crate::detectors`].

pub(crate) mod align;
mod attempts;
mod behind;
mod checkpoints;
mod config_groups;
mod durable;
mod evals;
mod exposure;
mod failure_rate;
pub(crate) mod failures;
mod fleet;
mod gpus;
mod known_setup;
mod ledger;
mod loads;
mod lost_source;
mod on_disk;
mod pace;
mod peers;
mod phase_names;
mod phases;
pub mod rank_compute_time;
pub mod rank_loss;
mod reporters;
mod reports;
mod save_nodes;
mod save_stairs;
mod save_windows;
mod setup_groups;
pub(crate) mod signals;
mod since_good;
mod sizes;
mod sources;
mod stages;
mod startup;
mod state;
mod summary;
mod trust;
mod values;

pub(crate) use attempts::PLANNED_RESTART;
pub use attempts::{
    Aspect, Attempt, AttemptEnd, AttemptSetup, Attempts, Difference, Differences, Ends, LastWords, SinceGood,
};
pub(crate) use checkpoints::SaveReport;
pub(crate) use checkpoints::median;
pub use checkpoints::{Checkpoints, Outcome, Save, Written};
pub use config_groups::{ConfigGroups, Setup, Variant};
pub(crate) use durable::AttemptBounds;
pub(crate) use evals::EvalSet;
pub use exposure::Exposure;
pub(crate) use fleet::Fleet;
pub use known_setup::KnownSetup;
pub(crate) use known_setup::look_is_due;
pub(crate) use ledger::{Accounts, Declared, KeptAccounts, Size, Steps};
pub use ledger::{Counts, Energy, EnergyConfig, HOUR, HourTotals, Ledger, RunHour, TimeState, Totals};
pub(crate) use loads::{Loads, Moment};
pub use lost_source::Lost;
pub(crate) use on_disk::is_gone;
pub use pace::Pace;
pub use peers::{Peers, Usual};
pub(crate) use phase_names::{declared, phase_class};
pub(crate) use reporters::Reporters;
pub use reports::{Report, Topic};
pub(crate) use save_nodes::{SavingNodes, Spell};
pub(crate) use save_windows::{SaveWindows, Slowing};
pub(crate) use setup_groups::SlowerSetup;
pub(crate) use sizes::{ENDS_KEPT, Judged, Room, Sort, are_alike};
pub use stages::{CheckpointStages, Stage, StageTimes};
pub(crate) use stages::{StageReport, Staged};
pub(crate) use startup::{Greeter, Greeting, Placed, plausible};
pub use startup::{StartPart, StartPhase, StartUp, StartUsual, Starting};
pub use state::{Death, Ended, Phase, Rank, RunState};
pub(crate) use summary::summary;

use stepwatch_model::time::{Span, Ts};

/// Ranks kept a run; a larger job is judged by the first that report.
pub(crate) const MAX_RANKS: usize = 65_536;

/// A run without any report for this long counts as over: its `bye` will not come any more.
pub const FORGET_AFTER: Span = Span::secs(7 * 86_400);

/// A step time that was worked out, and how finely it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Derived {
    pub(crate) step_time: f64,
    pub(crate) quantum: f64,
}

/// Shortest time, in seconds, that a clock of whole seconds measures well enough: to 2 %.
const COARSE: f64 = 50.0;

/// How a sample without its own step time gets one: from the times of the lines, where those are
/// exact enough.
pub(crate) fn derived_step_time(previous: Ts, at: Ts, steps: i64) -> Option<Derived> {
    let secs = (at - previous).as_secs_f64();
    let coarse = previous.0 % 1000 == 0 && at.0 % 1000 == 0;
    let exact_enough = secs > 0.0 && (!coarse || secs >= COARSE);
    (exact_enough && steps > 0).then(|| {
        let quantum = if coarse { 1.0 / steps as f64 } else { 0.0 };
        Derived { step_time: secs / steps as f64, quantum }
    })
}
