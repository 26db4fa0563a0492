//! What every kind of receiver can do, and what only some of them can: take a picture, report back.

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
    /// [`super::ReceiverConfig::wakes`].
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PictureError {
    /// The account may show no picture at all: not tried again until the configuration changes.
    Forbidden(String),
    Failed(Failure),
}

/// The way back from a service to us.
#[derive(Debug, Clone)]
pub enum Ear {
    Slack(Arc<App>),
    PagerDuty(Arc<Hook>),
}

/// The parameters of a token bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    pub per_second: f64,
    /// The number of messages at once after a pause.
    pub burst: f64,
}
