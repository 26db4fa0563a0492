//! Who may do what: tokens, what each is for and about, and the gate that every request passes.
//!
//! With tokens in the configuration, a request needs one (or a user of the web configuration, who
//! may do everything), except to ask whether the process is well and to post what Slack and
//! PagerDuty sign. Without tokens nobody is asked.

mod caller;
mod gate;
mod keyring;
mod scope;
#[cfg(test)]
mod tests;
mod token_scope;

pub use caller::Caller;
pub(crate) use gate::CLI_AGENT;
pub use gate::{Gate, GateMetrics};
pub(super) use gate::{refusal, require};
pub use keyring::{Grant, Keyring};
pub use scope::{Scope, Scopes};
pub use token_scope::{Glob, TokenScope};
