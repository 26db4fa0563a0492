//! One attempt to send a message, and what came of it.

use std::time::Duration;

use bytes::Bytes;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::Notification;

use super::report::ScheduledReport;

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
    /// calls ([`super::Notifier::rings`]).
    pub ring: Option<Ring>,
    /// Other calls to this receiver that were begun and may or may not have arrived.
    pub unsure: &'a [Ring],
    /// The chart of the incident, for a receiver that has it within its messages
    /// ([`super::Notifier::embeds_chart`]); none if there was none in time.
    pub chart: Option<&'a Picture>,
    /// The report, if the message is one and not about an incident.
    pub(crate) report: Option<&'a ScheduledReport>,
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
            report: None,
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

/// A picture to show.
#[derive(Debug, Clone)]
pub struct Picture {
    /// Of the file.
    pub name: String,
    /// For people who do not see it.
    pub alt: String,
    pub png: Bytes,
}
