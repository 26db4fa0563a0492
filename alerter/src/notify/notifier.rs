//! The interface of a receiver, with optional features such as charts and callbacks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use stepwatch_detect::changes::RunChange;
use stepwatch_kit::config::Secret;
use stepwatch_respond::effect::Notification;

use super::attempt::{Attempt, Failure, Picture, Receipt};
use super::budget::Budget;
use super::pagerduty::Hook;
use super::slack::App;

/// A configured receiver.
pub trait Notifier: fmt::Debug + Send + Sync {
    /// The name of the kind: `slack`, `pagerduty`, ...
    fn kind(&self) -> &'static str;

    /// Sends one message. If the future is dropped, the message may have arrived.
    fn send<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Receipt, Failure>>;

    /// Looks for a message that was just delivered, as after a lost answer. The error is the reason
    /// why it would not be found, and so would be sent twice. `Ok` if the service needs no lookup.
    fn look_back<'a>(&'a self, sent: &'a Notification) -> BoxFuture<'a, Result<(), String>> {
        let _ = sent;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Whether a trigger may wake a person, so that none is sent after an answer. A mailbox or a
    /// webhook may lead to a pager, so they count here, unlike in [`super::ReceiverConfig::wakes`].
    fn wakes(&self) -> bool {
        false
    }

    /// Whether the service notifies people once per key, so that each call needs its own number
    /// ([`Attempt::ring`]).
    fn rings(&self) -> bool {
        false
    }

    /// If the service confirms under the key of each call that it notified a person: the meaning of
    /// a missing confirmation.
    fn confirms(&self) -> Option<&'static str> {
        None
    }

    /// What a delivered test message does not prove.
    fn unproven(&self) -> Option<&'static str> {
        None
    }

    /// The identity of the account to which a pause applies: the address and the secrets of the
    /// receiver. A receiver with another account may send at once.
    fn account(&self) -> Vec<Secret> {
        Vec::new()
    }

    /// The interval at which open incidents must be sent again to a service whose alerts expire.
    fn remind_every(&self) -> Option<Duration> {
        None
    }

    /// Sends open incidents again, in portions: the last delivered message of each.
    fn remind<'a>(&'a self, standing: &'a [Notification]) -> BoxFuture<'a, Result<(), Failure>> {
        let _ = standing;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Whether the receiver accepts changes of runs.
    fn wants_changes(&self) -> bool {
        false
    }

    /// Sends a change of a run, which never pages a person.
    fn change<'a>(&'a self, change: &'a RunChange) -> BoxFuture<'a, Result<(), Failure>> {
        let _ = change;
        Box::pin(std::future::ready(Ok(())))
    }

    /// The endpoint of the service's callbacks, if its receiver is configured for them.
    fn callback_config(&self) -> Option<CallbackConfig> {
        None
    }

    /// The limit of messages that wake nobody; `None` for no limit.
    fn budget(&self) -> Option<Budget> {
        None
    }

    /// The rate limit of the service; `None` if it sets no relevant limit.
    fn pace(&self) -> Option<Pace> {
        None
    }

    /// Whether the receiver's messages embed the chart of their incident.
    fn embeds_chart(&self) -> bool {
        false
    }

    /// The place that shows charts after the message, if the service has one.
    fn gallery(&self) -> Option<&dyn Gallery> {
        None
    }
}

/// A place for the chart of an incident that is separate from its message.
///
/// Showing a chart takes two steps. The caller stores the file name in between, so that a file that
/// may have been shown can be removed.
pub trait Gallery: fmt::Debug + Send + Sync {
    /// Checks whether the account may show images, without showing one.
    fn permitted(&self) -> BoxFuture<'_, Result<(), PictureError>>;

    /// Uploads an image that is not yet visible; returns its name in the service.
    fn bring<'a>(&'a self, picture: &'a Picture) -> BoxFuture<'a, Result<String, PictureError>>;

    /// Shows the image below a message, which `memory` of [`Notifier::send`] identifies.
    fn show<'a>(
        &'a self,
        file: &'a str,
        title: &'a str,
        memory: &'a str,
    ) -> BoxFuture<'a, Result<(), PictureError>>;

    /// Removes the image; `Ok` if it does not exist.
    fn take_away<'a>(&'a self, file: &'a str) -> BoxFuture<'a, Result<(), PictureError>>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PictureError {
    /// The account must not show images. No retry before the configuration changes.
    Forbidden(String),
    Failed(Failure),
}

/// The way back from a service to us.
#[derive(Debug, Clone)]
pub enum CallbackConfig {
    Slack(Arc<App>),
    PagerDuty(Arc<Hook>),
}

/// The parameters of a token bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    pub per_second: f64,
    /// The number of messages that may be sent at once after a pause.
    pub burst: f64,
}
