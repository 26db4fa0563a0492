//! What can go wrong at a receiver, queued per endpoint.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// One misbehaviour, for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// 429 with `Retry-After`; nothing is taken.
    TooMany(Duration),
    /// This HTTP status; nothing is taken.
    Status(u16),
    /// The message is taken, and the answer is this HTTP status all the same.
    TakenThenStatus(u16),
    /// The request is read and never answered; nothing is taken.
    Hang,
    /// The message is taken and never answered: for the sender the outcome is unknown.
    TakenThenHang,
    /// The connection is reset after the request was read; nothing is taken.
    Reset,
    /// The message is taken and the connection reset before the answer: for the sender the outcome
    /// is unknown.
    TakenThenReset,
    /// The service's own way of saying no: 200 with `ok: false` and this error at Slack, 400
    /// elsewhere.
    NotOk(String),
}

impl Fault {
    /// Whether the service acts on the request in spite of the fault.
    pub(crate) fn taken(&self) -> bool {
        matches!(self, Self::TakenThenStatus(_) | Self::TakenThenHang | Self::TakenThenReset)
    }
}

#[derive(Debug, Default)]
struct Plan {
    next: VecDeque<Fault>,
    always: Option<Fault>,
}

/// The faults to come, by endpoint: `chat.postMessage`, `enqueue`, ... as
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

    /// From now on every request to `endpoint` fails like this, once the queue is used up.
    pub fn always(&self, endpoint: &str, fault: Fault) -> &Self {
        self.with(|plans| plans.entry(endpoint.to_owned()).or_default().always = Some(fault));
        self
    }

    /// All is well again.
    pub fn clear(&self) {
        self.with(BTreeMap::clear);
    }

    /// Faults still queued.
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
