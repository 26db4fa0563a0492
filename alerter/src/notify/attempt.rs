//! One attempt to send a message, and its result.

use std::time::Duration;

use bytes::Bytes;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::Notification;

use super::report::ScheduledReport;

/// One attempt at delivery.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    pub notification: &'a Notification,
    /// An earlier attempt may have arrived. The notifier checks before sending, or sends such that
    /// a copy is recognised.
    pub ambiguous: bool,
    /// The memory that this notifier last returned for this incident and receiver.
    pub memory: Option<&'a str>,
    /// The memory that it last returned for any other incident of this receiver.
    pub neighbour: Option<&'a str>,
    /// The number of the call within its incident, if this is a call to a receiver with numbered
    /// calls ([`super::Notifier::rings`]).
    pub ring: Option<Ring>,
    /// Earlier calls to this receiver that may or may not have arrived.
    pub unsure: &'a [Ring],
    /// The chart of the incident, for a receiver that embeds it
    /// ([`super::Notifier::embeds_chart`]); `None` if it was not ready in time.
    pub chart: Option<&'a Picture>,
    /// The report, if the message is a report and not about an incident.
    pub(crate) report: Option<&'a ScheduledReport>,
    pub at: Ts,
}

/// A call of an incident. Its number and class are unique within the incident, across all
/// receivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// The number, from 1.
    pub number: u32,
    /// Whether the call is for a page and not for a ticket.
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

/// The receiver has the message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The memory for the next message of the lane; `None` keeps the old one.
    pub memory: Option<String>,
}

/// The receiver does not have the message, or it is unknown whether it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub class: FailureClass,
    /// The error for people, without secrets.
    pub error: String,
    /// The message may have arrived.
    pub ambiguous: bool,
    pub memory: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// A retry cannot succeed: the service refuses the configuration or the message.
    Permanent,
    /// The receiver fails or is unreachable.
    Transient,
    /// The receiver works, and some recipients have the message; the memory lists them. The others
    /// are retried.
    Partly,
    /// The receiver works and asks for a pause, possibly of a given length.
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

/// An image for a message.
#[derive(Debug, Clone)]
pub struct Picture {
    /// The file name.
    pub name: String,
    /// The text alternative.
    pub alt: String,
    pub png: Bytes,
}
