//! Authentication and authorisation: the gate that every request passes, and the caller that it
//! finds.
//!
//! With tokens in the configuration, a request needs one (or a user of the web configuration, who
//! may do everything). Exceptions are the probes of the process's health and the webhooks that
//! Slack and PagerDuty sign. Without tokens every request is allowed.

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
