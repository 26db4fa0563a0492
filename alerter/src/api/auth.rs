//! Authentication and authorisation: the gate that checks every request, and the caller that it
//! identifies.
//!
//! If the configuration has tokens, a request needs one, or a user of the web configuration, who
//! may do everything. Exceptions are the health probes and the webhooks that Slack and PagerDuty
//! sign. Without tokens every request is allowed.

mod caller;
mod gate;
mod login;
#[cfg(test)]
mod tests;

pub use caller::Caller;
pub(crate) use gate::CLI_AGENT;
pub use gate::Gate;
pub(crate) use gate::MAX_FORM;
pub(super) use gate::refusal;
pub(crate) use gate::require;
pub(crate) use login::Refused;
