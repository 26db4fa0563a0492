//! Receivers: from a message to somebody's screen, phone or program.
//!
//! A notifier sends one message once and says what came of it. It does not retry, wait, or keep
//! anything between calls except what it hands back as memory: all of that is the outbox's, which
//! alone knows what survived a crash.
//!
//! One file a kind of receiver, holding its configuration, rendering, sending and judging of
//! answers; and one line in `notifiers!` below.

pub mod alertmanager;
mod budget;
pub mod email;
pub(crate) mod http;
pub mod pagerduty;
mod sample;
mod secret;
pub mod slack;
pub mod stdout;
pub(crate) mod text;
pub mod webhook;

#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use stepwatch_detect::changes::RunChange;
use stepwatch_kit::config::Secret;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::Notification;

pub use budget::Budget;
pub use sample::test_notification;
pub use secret::SecretSource;
pub(crate) use secret::url_of;
pub(crate) use text::{hex, line};

/// One kind of receiver, configured.
pub trait Notifier: fmt::Debug + Send + Sync {
    /// `slack`, `pagerduty`, ...
    fn kind(&self) -> &'static str;

    /// Sends one message. A dropped future counts as an attempt that may have arrived.
    fn send<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Receipt, Failure>>;

    /// Looks for a message that was just delivered, as is done where the answer to one is lost; why
    /// it would not be found and be sent twice. Where nothing is looked for, nothing stands
    /// against it.
    fn look_back<'a>(&'a self, sent: &'a Notification) -> BoxFuture<'a, Result<(), String>> {
        let _ = sent;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Whether a trigger may rouse a person, so that none may be sent once somebody answered.
    /// Behind a mailbox or a webhook may be anything that rings, so that these are taken to do
    /// so here, unlike in [`ReceiverConfig::wakes`].
    fn wakes(&self) -> bool {
        false
    }

    /// Whether it rings once a key, so that each call needs a number of its own
    /// ([`Attempt::ring`]).
    fn rings(&self) -> bool {
        false
    }

    /// What a pause that the service asked for is about: its address, and by which secrets it knows
    /// us. Whoever is another there may begin at once.
    fn account(&self) -> Vec<Secret> {
        Vec::new()
    }

    /// How often the service must be told again what stands, where it forgets what it is not told.
    fn remind_every(&self) -> Option<Duration> {
        None
    }

    /// Tells again what stands, a portion at a time: the last message that was delivered of each
    /// incident that is not over.
    fn remind<'a>(&'a self, standing: &'a [Notification]) -> BoxFuture<'a, Result<(), Failure>> {
        let _ = standing;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Whether it shows changes of runs beside incidents.
    fn wants_changes(&self) -> bool {
        false
    }

    /// Tells of a change of a run. Nobody is called for it.
    fn change<'a>(&'a self, change: &'a RunChange) -> BoxFuture<'a, Result<(), Failure>> {
        let _ = change;
        Box::pin(std::future::ready(Ok(())))
    }

    /// What the service may say back, if its receiver is configured to hear it.
    fn ear(&self) -> Option<Ear> {
        None
    }

    /// How much its readers want to be told of what wakes nobody; `None` is everything.
    fn budget(&self) -> Option<Budget> {
        None
    }

    /// How many messages the service takes; `None` where it sets no limit that matters here.
    fn pace(&self) -> Option<Pace> {
        None
    }
}

/// The way back from a service to us.
#[derive(Debug, Clone)]
pub enum Ear {
    Slack(Arc<slack::App>),
    PagerDuty(Arc<pagerduty::Hook>),
}

/// One try to deliver.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    pub notification: &'a Notification,
    /// An earlier attempt may have arrived: look before sending, or make sure that a second copy is
    /// recognised.
    pub ambiguous: bool,
    /// What this notifier returned last for this incident and receiver.
    pub memory: Option<&'a str>,
    /// What it returned last for any other incident of this receiver.
    pub neighbour: Option<&'a str>,
    /// Which call of its incident it is, where it calls somebody by a receiver that
    /// [rings](Notifier::rings).
    pub ring: Option<Ring>,
    /// Other calls to this receiver that were begun and are not known to have arrived.
    pub unsure: &'a [Ring],
    pub at: Ts,
}

/// A call of an incident. No other call of that incident, by whichever receiver, has its number and
/// class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// From 1.
    pub number: u32,
    /// Not of a ticket.
    pub page: bool,
}

impl<'a> Attempt<'a> {
    pub fn first(notification: &'a Notification) -> Self {
        Self {
            notification,
            ambiguous: false,
            memory: None,
            neighbour: None,
            ring: None,
            unsure: &[],
            at: notification.message.at,
        }
    }
}

/// The receiver has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Receipt {
    /// To be kept for the next message of the lane; `None` keeps what there is.
    pub memory: Option<String>,
}

/// The receiver does not have it, or nobody knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub class: FailureClass,
    /// For people. Never holds a secret.
    pub error: String,
    /// It may have arrived all the same.
    pub ambiguous: bool,
    pub memory: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// Trying again cannot help: the configuration or the message is refused.
    Permanent,
    /// The receiver is unwell or out of reach.
    Transient,
    /// The receiver is well and some of those whom it is for have it; what is kept as memory says
    /// who. The others are tried again.
    Partly,
    /// The receiver is well and wants to be left alone, perhaps for so long.
    RateLimited { retry_after: Option<Duration> },
}

impl Failure {
    pub fn permanent(error: impl Into<String>) -> Self {
        Self { class: FailureClass::Permanent, error: error.into(), ambiguous: false, memory: None }
    }

    pub fn transient(error: impl Into<String>, ambiguous: bool) -> Self {
        Self { class: FailureClass::Transient, error: error.into(), ambiguous, memory: None }
    }

    pub fn rate_limited(error: impl Into<String>, retry_after: Option<Duration>) -> Self {
        let class = FailureClass::RateLimited { retry_after };
        Self { class, error: error.into(), ambiguous: false, memory: None }
    }
}

/// A token bucket's measures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    pub per_second: f64,
    /// So many may go at once after a pause.
    pub burst: f64,
}

macro_rules! notifiers {
    ($($module:ident,)*) => {
        /// An entry of `receivers:`: a name and exactly one kind.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct ReceiverConfig {
            pub name: String,
            /// Whether its messages may wake somebody: what is not a page never falls back to it.
            /// Only PagerDuty, unless it is said.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub wakes: Option<bool>,
            /// At most so much of what wakes nobody.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub budget: Option<Budget>,
            /// Words of its own, in place of the common ones.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub templates: Option<crate::templates::Config>,
            $(#[serde(default, skip_serializing_if = "Option::is_none")] pub $module: Option<$module::Config>,)*
        }

        impl ReceiverConfig {
            /// Whether somebody may be woken by it: at each call, unless something else goes on
            /// about it ([`Self::repeated_by`]).
            pub fn wakes(&self) -> bool {
                self.wakes.unwrap_or(self.pagerduty.is_some())
            }

            /// Keys of the kinds of receivers there are.
            pub const KINDS: &[&str] = &[$(stringify!($module)),*];

            /// What goes on about a call that was made, in words, where calling again rings nobody.
            pub fn repeated_by(&self) -> Option<&'static str> {
                let by_service = |c: &pagerduty::Config| c.repeats == pagerduty::Repeats::Service;
                match (&self.pagerduty, &self.alertmanager) {
                    (Some(config), _) if by_service(config) => Some("PagerDuty's own escalation policy"),
                    (_, Some(_)) => Some("the Alertmanager's own route"),
                    _ => None,
                }
            }

            /// Whether it shows what becomes of an incident beside its first message.
            pub fn is_thread(&self) -> bool {
                self.slack.as_ref().is_some_and(slack::Config::has_threads)
            }

            /// Reads the secrets and prepares to send. The error is for the reader of the
            /// configuration file.
            pub fn build(&self) -> Result<Arc<dyn Notifier>, String> {
                let mut built: Vec<Result<Arc<dyn Notifier>, String>> = Vec::new();
                $(if let Some(config) = &self.$module {
                    built.push(config.build().map(|n| Arc::new(n) as Arc<dyn Notifier>));
                })*
                match (built.len(), built.pop()) {
                    (1, Some(one)) => one.and_then(|n| budget::within(self.budget, n)).map_err(|err| format!("receiver {:?}: {err}", self.name)),
                    (n, _) => Err(format!(
                        "receiver {:?} has {} kinds, needs exactly one of: {}",
                        self.name, n, Self::KINDS.join(", ")
                    )),
                }
            }
        }
    };
}

notifiers! { slack, pagerduty, email, webhook, alertmanager, stdout, }
