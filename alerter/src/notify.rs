//! Receivers: from a message to somebody's screen, phone or program.
//!
//! A notifier sends one message once and returns the result. It does not retry, wait, or keep
//! anything between calls except the memory that it returns: all of that is the outbox's task,
//! which alone has the state that survives a crash.
//!
//! One file a kind of receiver, with its configuration, rendering, sending and evaluation of
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
mod templates;
pub(crate) mod text;
pub(crate) mod trial;
pub mod webhook;

#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
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
pub use templates::{FactTemplate, LinkTemplate, TemplatesConfig};
pub(crate) use text::{hex, line};

/// One kind of receiver, configured.
pub trait Notifier: fmt::Debug + Send + Sync {
    /// `slack`, `pagerduty`, ...
    fn kind(&self) -> &'static str;

    /// Sends one message. A dropped future counts as an attempt that may have arrived.
    fn send<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Receipt, Failure>>;

    /// Looks for a message that was just delivered, in the same way as after a lost answer. The
    /// error is why it would not be found, and so would be sent twice. `Ok` where the service needs
    /// no lookup.
    fn look_back<'a>(&'a self, sent: &'a Notification) -> BoxFuture<'a, Result<(), String>> {
        let _ = sent;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Whether a trigger may wake a person, so that none may be sent once somebody answered. A
    /// mailbox or a webhook may lead to any pager, so they count here, unlike in
    /// [`ReceiverConfig::wakes`].
    fn wakes(&self) -> bool {
        false
    }

    /// Whether the service notifies people once a key, so that each call needs a number of its own
    /// ([`Attempt::ring`]).
    fn rings(&self) -> bool {
        false
    }

    /// Whether the service reports of each call, under its own key, that it notified somebody; then
    /// what it means if it does not.
    fn confirms(&self) -> Option<&'static str> {
        None
    }

    /// What the delivery of a message does not prove, for whoever tries the receiver out.
    fn unproven(&self) -> Option<&'static str> {
        None
    }

    /// What identifies the account that a pause of the service is about: its address, and the
    /// secrets of the receiver. A receiver with another account may send at once.
    fn account(&self) -> Vec<Secret> {
        Vec::new()
    }

    /// How often the open incidents must be sent again to a service that forgets what is not
    /// repeated.
    fn remind_every(&self) -> Option<Duration> {
        None
    }

    /// Sends the open incidents again, a portion at a time: the last delivered message of each
    /// incident that is not over.
    fn remind<'a>(&'a self, standing: &'a [Notification]) -> BoxFuture<'a, Result<(), Failure>> {
        let _ = standing;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Whether it takes changes of runs.
    fn wants_changes(&self) -> bool {
        false
    }

    /// Sends a change of a run. It never pages anybody.
    fn change<'a>(&'a self, change: &'a RunChange) -> BoxFuture<'a, Result<(), Failure>> {
        let _ = change;
        Box::pin(std::future::ready(Ok(())))
    }

    /// The endpoint of the service's callbacks, if its receiver is configured for them.
    fn ear(&self) -> Option<Ear> {
        None
    }

    /// The limit of messages to this receiver that wake nobody; `None` is no limit.
    fn budget(&self) -> Option<Budget> {
        None
    }

    /// How many messages the service takes; `None` where it sets no limit that matters here.
    fn pace(&self) -> Option<Pace> {
        None
    }

    /// Whether its messages have the chart of their incident in them.
    fn embeds_chart(&self) -> bool {
        false
    }

    /// Where charts are shown after the message, if the service has such a place.
    fn gallery(&self) -> Option<&dyn Gallery> {
        None
    }
}

/// A place for the chart of an incident, beside its message.
///
/// Showing one takes two steps, so that whoever keeps the state can store the name of a file before
/// anybody sees it: a file that may or may not have been shown can then be taken away.
pub trait Gallery: fmt::Debug + Send + Sync {
    /// Whether the account may show pictures, without showing one.
    fn permitted(&self) -> BoxFuture<'_, Result<(), PictureError>>;

    /// Brings a picture to the service, where nobody sees it yet; returns its name there.
    fn bring<'a>(&'a self, picture: &'a Picture) -> BoxFuture<'a, Result<String, PictureError>>;

    /// Shows it below the message that `memory` is of: what [`Notifier::send`] returned.
    fn show<'a>(
        &'a self,
        file: &'a str,
        title: &'a str,
        memory: &'a str,
    ) -> BoxFuture<'a, Result<(), PictureError>>;

    /// Takes it away; `Ok` of one that is not there.
    fn take_away<'a>(&'a self, file: &'a str) -> BoxFuture<'a, Result<(), PictureError>>;
}

/// A picture to show.
#[derive(Debug, Clone)]
pub struct Picture {
    /// Of the file.
    pub name: String,
    /// For people who do not see it.
    pub alt: String,
    pub png: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PictureError {
    /// The account may show no picture at all: not tried again until the configuration changes.
    Forbidden(String),
    Failed(Failure),
}

/// The way back from a service to us.
#[derive(Debug, Clone)]
pub enum Ear {
    Slack(Arc<slack::App>),
    PagerDuty(Arc<pagerduty::Hook>),
}

/// One attempt at delivery.
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
    /// The number of the call within its incident, if it calls somebody by a receiver with numbered
    /// calls ([`Notifier::rings`]).
    pub ring: Option<Ring>,
    /// Other calls to this receiver that were begun and may or may not have arrived.
    pub unsure: &'a [Ring],
    /// The chart of the incident, for a receiver that has it within its messages
    /// ([`Notifier::embeds_chart`]); none if there was none in time.
    pub chart: Option<&'a Picture>,
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
            chart: None,
            at: notification.message.at,
        }
    }
}

/// The receiver has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The memory for the next message of the lane; `None` keeps the old one.
    pub memory: Option<String>,
}

/// The receiver does not have it, or it is unknown whether it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub class: FailureClass,
    /// The error for people. Never contains a secret.
    pub error: String,
    /// It may have arrived nevertheless.
    pub ambiguous: bool,
    pub memory: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// Trying again cannot help: the service refuses the configuration or the message.
    Permanent,
    /// The receiver fails or is unreachable.
    Transient,
    /// The receiver works and some of its recipients have the message; the memory lists them. The
    /// others are tried again.
    Partly,
    /// The receiver works and asks for a pause, perhaps of a given length.
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

/// The parameters of a token bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    pub per_second: f64,
    /// The number of messages at once after a pause.
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
            /// By default only PagerDuty's do.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub wakes: Option<bool>,
            /// The limit of messages that wake nobody.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub budget: Option<Budget>,
            /// Templates of its own, in place of the common ones.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub templates: Option<templates::TemplatesConfig>,
            $(#[serde(default, skip_serializing_if = "Option::is_none")] pub $module: Option<$module::Config>,)*
        }

        impl ReceiverConfig {
            /// Whether it may wake somebody: at each call, unless something else repeats the call
            /// ([`Self::repeated_by`]).
            pub fn wakes(&self) -> bool {
                self.wakes.unwrap_or(self.pagerduty.is_some())
            }

            /// Keys of the kinds of receivers there are.
            pub const KINDS: &[&str] = &[$(stringify!($module)),*];

            /// What repeats a call that was made, in words, where calling again does nothing.
            pub fn repeated_by(&self) -> Option<&'static str> {
                let by_service = |c: &pagerduty::Config| c.repeats == pagerduty::Repeats::Service;
                match (&self.pagerduty, &self.alertmanager) {
                    (Some(config), _) if by_service(config) => Some("PagerDuty's own escalation policy"),
                    (_, Some(_)) => Some("the Alertmanager's own route"),
                    _ => None,
                }
            }

            /// Whether it shows later changes of an incident besides its first message.
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
