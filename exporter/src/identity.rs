//! Which run a source belongs to, on this node: the rule of [`stepwatch_wire::run_name`] applied to
//! real processes, and the record of which process reports which run.

mod chain;
mod concurrent_runs;
pub(crate) mod peer;
mod registry;
mod sock_diag;

pub(crate) use chain::{ancestors, chain, chain_until, named, script_named, started};
pub(crate) use concurrent_runs::{Apart, Beside, is_other_training};
pub use registry::{Claim, Registry, Renamed, RunRow, SourceRow};
