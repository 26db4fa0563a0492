//! The vocabulary of the alerter: what a detector can report of a run or a node, as data.
//!
//! Code uses these types and never parses a sentence. Text is made in one place, `render`, when a
//! message or another output is made. Everything here can be stored and sent: in JSON for people
//! and the API, in postcard for the engine's own state.
//!
//! This crate is pure: it uses no clock, socket, thread, file or randomness.

mod checkpoint;
mod clause;
mod context;
mod detected;
mod elsewhere;
mod evidence;
mod fault;
mod finding;
mod fingerprint;
mod kind;
pub mod need;
mod number;
mod remedy;
mod render;
mod save_interval;
mod scope;
pub mod sentence;
mod signal;
pub mod stored;
mod suspect;
mod target;
pub mod time;
pub mod timers;

pub use checkpoint::{Flaw, PassedOver, Spoiler, Spoilt};
pub use clause::{Clause, Fact};
pub use context::{
    Context, LINKS_AT_ONCE, Labels, MAX_NODES_AT_ONCE, OldestRun, RunSummary, SHARED_NODES, Saves,
};
pub use detected::{Detected, Directory, RunIncidents};
pub use elsewhere::Elsewhere;
pub use evidence::{
    Course, Evidence, LastGood, MasterLink, Measure, Observation, ReadingUnit, SavePart, SaveStage,
    SettingChange, Slowed,
};
pub use fault::{Fault, Said, Topic};
pub use finding::{Change, Finding, slow_down};
pub use fingerprint::{fingerprint, hash_byte, hash_label};
pub use kind::{Advice, Cause, Class, Kind, Mark, Severity};
pub use need::{Action, FirstFailure, Need, Needs};
pub use number::{Num, number};
pub use remedy::{Forecast, Plan, PlanCost, Remedy, When};
pub use render::{names, out_of_line, place, short};
pub use save_interval::{
    ASSUMED_FAILURES_A_NODE_DAY, FLEET_RATE_BAND, FailureRate, FailureSource, FailuresSeen, IntervalBound,
    SaveCost, SaveInterval,
};
pub use scope::{AlertScope, NO_RUN, Origin, Reporter, Scope, Subject};
pub use sentence::Sentence;
pub use signal::{Signal, SignalUnit};
pub use suspect::Suspect;
pub use target::{Place, Storage, Target, Unit};
pub use time::{Span, Ts};
