//! Authentication and authorisation: the gate that checks every request, and the caller that it
//! identifies.
//!
//! If the configuration has tokens or a provider of OpenID Connect, a request needs a token, a
//! session of a person who logged in there, or a user of the web configuration, who may do
//! everything. Exceptions are the health probes, the login, and the webhooks that Slack and
//! PagerDuty sign. Without either every request is allowed.

mod caller;
mod gate;
mod login;
mod oidc;
#[cfg(test)]
mod tests;

pub use caller::Caller;
pub(crate) use gate::CLI_AGENT;
pub use gate::Gate;
pub(crate) use gate::MAX_FORM;
pub(super) use gate::refusal;
pub(crate) use gate::require;
pub(crate) use login::Refused;
