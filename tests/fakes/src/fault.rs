//! Faults of receivers, queued per endpoint.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A fault for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// 429 with `Retry-After`; the message is not accepted.
    TooMany(Duration),
    /// This HTTP status; the message is not accepted.
    Status(u16),
    /// The message is accepted, but the answer is this HTTP status.
    TakenThenStatus(u16),
    /// The request is read and never answered; the message is not accepted.
    Hang,
    /// The message is accepted, but the request is never answered, so that the sender does not know
    /// the outcome.
    TakenThenHang,
    /// The connection is reset after the request was read; the message is not accepted.
    Reset,
    /// The message is accepted and the connection reset before the answer, so that the sender does
    /// not know the outcome.
    TakenThenReset,
    /// The service's own form of a refusal: 200 with `ok: false` and this error for Slack, 400 for
    /// others.
    NotOk(String),
}

impl Fault {
    /// Whether the service accepts the message in spite of the fault.
    pub(crate) fn taken(&self) -> bool {
        matches!(self, Self::TakenThenStatus(_) | Self::TakenThenHang | Self::TakenThenReset)
    }
}

#[derive(Debug, Default)]
struct Plan {
    next: VecDeque<Fault>,
    always: Option<Fault>,
}

/// The queued faults by endpoint, such as `chat.postMessage` or `enqueue`, as
/// [`crate::Service::endpoint`] names them.
#[derive(Debug, Clone, Default)]
pub struct Script(Arc<Mutex<BTreeMap<String, Plan>>>);

impl Script {
    /// Queues `fault` for one more request to `endpoint`.
    pub fn push(&self, endpoint: &str, fault: Fault) -> &Self {
        self.repeat(endpoint, fault, 1)
    }

    pub fn repeat(&self, endpoint: &str, fault: Fault, times: usize) -> &Self {
        self.with(|plans| {
            let plan = plans.entry(endpoint.to_owned()).or_default();
            plan.next.extend(std::iter::repeat_n(fault, times));
        });
        self
    }

    /// Makes every request to `endpoint` fail like this, once the queue is empty.
    pub fn always(&self, endpoint: &str, fault: Fault) -> &Self {
        self.with(|plans| plans.entry(endpoint.to_owned()).or_default().always = Some(fault));
        self
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.with(BTreeMap::clear);
    }

    /// The number of queued faults.
    pub fn pending(&self) -> usize {
        self.with(|plans| plans.values().map(|p| p.next.len()).sum())
    }

    pub(crate) fn take(&self, endpoint: &str) -> Option<Fault> {
        self.with(|plans| {
            let plan = plans.get_mut(endpoint)?;
            plan.next.pop_front().or_else(|| plan.always.clone())
        })
    }

    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<String, Plan>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
