//! Live events for readers: incidents, steps, nodes.
//!
//! Events have rising numbers and are kept in a bounded ring, which every reader walks at its own
//! pace: there is no queue per reader, and a slow one costs nothing. A reader that falls behind the
//! ring is asked to read everything again. Only the last step event of a run is kept, and only the
//! last state of a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepwatch_detect::node::Level;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::effect::Effect;
use stepwatch_respond::incident::{IncidentRecord, State};
use stepwatch_respond::matcher::Labels;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::series::Latest;

/// The most incident changes that are kept for readers that reconnect.
pub const MAX_KEPT: usize = 1_024;
/// The most simultaneous readers.
pub const MAX_READERS: usize = 256;
/// The shortest interval between two step events of a run.
pub const STEP_EVERY: Span = Span::secs(1);
/// The most runs and nodes whose last event is kept.
const MAX_STATES: usize = 20_000;

/// An event.
#[derive(Debug)]
pub struct Happened {
    /// The number rises, with gaps, because a later event may have replaced an earlier one.
    pub number: u64,
    pub what: What,
}

#[derive(Debug)]
pub enum What {
    Incident { change: Change, record: Box<IncidentRecord> },
    Step(StepNews),
    Node(NodeNews),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Opened,
    Changed,
    Resolved,
}

/// A run made a step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepNews {
    pub run: String,
    pub labels: Labels,
    pub attempt: u32,
    pub step: i64,
    pub at: Option<Ts>,
    pub signals: Vec<Latest>,
}

/// The state of a node, or the runs on it, changed.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeNews {
    pub node: String,
    /// The worst level of the present conditions.
    pub worst: Option<Level>,
    pub silent: bool,
    pub runs: Vec<String>,
    /// The labels of these runs.
    pub labels: Vec<Labels>,
}

/// The events and their readers.
#[derive(Debug)]
pub struct Events {
    /// The start time of this process: numbers of another process are not comparable.
    pub boot: u64,
    inner: Mutex<Inner>,
    last: watch::Sender<u64>,
    readers: Arc<Semaphore>,
    /// The number of readers that were refused for lack of room, and of readers that were too slow.
    pub refused: AtomicU64,
    pub dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    kept: BTreeMap<u64, Arc<Happened>>,
    next: u64,
    /// Events up to this number may have been dropped.
    forgotten: u64,
    incidents: usize,
    /// The number of the last event of each run and node.
    states: BTreeMap<Subject, u64>,
    /// The incidents known as open.
    open: BTreeSet<String>,
    closed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Run(String),
    Node(String),
}

/// The result for a reader.
#[derive(Debug)]
pub enum Next {
    Event(Arc<Happened>),
    /// There is no new event yet.
    Wait,
    /// Events that the reader has not read were dropped.
    Lagged,
    /// The process is stopping.
    Closed,
}

impl Default for Events {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Events {
    pub fn new(boot: u64) -> Self {
        Self {
            boot,
            inner: Mutex::default(),
            last: watch::Sender::new(0),
            readers: Arc::new(Semaphore::new(MAX_READERS)),
            refused: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Records the incidents that are open at the start, so that their next change is not published
    /// as an opening.
    pub fn know_open(&self, incidents: impl Iterator<Item = String>) {
        self.lock().open.extend(incidents);
    }

    /// Publishes the incidents among effects that have just become durable.
    pub fn apply<'a>(&self, effects: impl IntoIterator<Item = &'a Effect>) {
        for effect in effects {
            let Effect::Incident(record) = effect else { continue };
            let mut inner = self.lock();
            let change = if record.state == State::Resolved {
                inner.open.remove(&record.id);
                Change::Resolved
            } else if inner.open.insert(record.id.clone()) {
                Change::Opened
            } else {
                Change::Changed
            };
            inner.add(None, What::Incident { change, record: record.clone() });
            self.last.send_replace(inner.next);
        }
    }

    pub fn step(&self, news: StepNews) {
        let subject = Subject::Run(news.run.clone());
        self.state(subject, What::Step(news));
    }

    pub fn node(&self, news: NodeNews) {
        let subject = Subject::Node(news.node.clone());
        self.state(subject, What::Node(news));
    }

    fn state(&self, subject: Subject, what: What) {
        let mut inner = self.lock();
        inner.add(Some(subject), what);
        self.last.send_replace(inner.next);
    }

    /// Reserves a place for a reader; `None` if all are taken.
    pub fn admit(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.readers).try_acquire_owned().ok();
        if place.is_none() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        place
    }

    pub fn has_readers(&self) -> bool {
        self.readers.available_permits() < MAX_READERS
    }

    /// The number of the last event.
    pub fn last(&self) -> u64 {
        self.lock().next
    }

    /// Whether a reader that has read up to `number` can continue from there.
    pub fn can_resume(&self, number: u64) -> bool {
        let inner = self.lock();
        (inner.forgotten..=inner.next).contains(&number)
    }

    /// The event after `number`.
    pub fn after(&self, number: u64) -> Next {
        let inner = self.lock();
        if inner.closed {
            return Next::Closed;
        }
        if number < inner.forgotten {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return Next::Lagged;
        }
        let next = inner.kept.range(number + 1..).next();
        next.map_or(Next::Wait, |(_, event)| Next::Event(Arc::clone(event)))
    }

    /// A receiver that changes with every event, and at the end.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// Ends all readers.
    pub fn close(&self) {
        self.lock().closed = true;
        self.last.send_modify(|_| ());
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Adds an event. It replaces the last event of its `subject`.
    fn add(&mut self, subject: Option<Subject>, what: What) {
        self.next += 1;
        let number = self.next;
        match subject {
            None => self.incidents += 1,
            Some(subject) => {
                if self.states.len() >= MAX_STATES && !self.states.contains_key(&subject) {
                    self.forget_oldest_state();
                }
                if let Some(before) = self.states.insert(subject, number) {
                    self.kept.remove(&before);
                }
            }
        }
        self.kept.insert(number, Arc::new(Happened { number, what }));
        if self.incidents > MAX_KEPT {
            let oldest = self.kept.iter().find(|(_, e)| matches!(e.what, What::Incident { .. }));
            let Some(oldest) = oldest.map(|(number, _)| *number) else { return };
            self.kept.remove(&oldest);
            self.incidents -= 1;
            self.forgotten = oldest;
        }
    }

    fn forget_oldest_state(&mut self) {
        let oldest = self.states.iter().min_by_key(|(_, number)| **number);
        if let Some((subject, number)) = oldest.map(|(subject, number)| (subject.clone(), *number)) {
            self.states.remove(&subject);
            self.kept.remove(&number);
            self.forgotten = self.forgotten.max(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(run: &str, step: i64) -> StepNews {
        let (labels, signals) = (Labels::new(), Vec::new());
        StepNews { run: run.to_owned(), labels, attempt: 0, step, at: None, signals }
    }

    /// The numbers of the events after `number`.
    fn after(events: &Events, mut number: u64) -> Vec<u64> {
        let mut all = Vec::new();
        while let Next::Event(event) = events.after(number) {
            number = event.number;
            all.push(number);
        }
        all
    }

    #[test]
    fn a_later_step_replaces_an_earlier_one_of_the_run() {
        let events = Events::new(1);
        for i in 0..10 {
            events.step(step("a", i));
            events.step(step("b", i));
        }
        assert_eq!(after(&events, 0), [19, 20]);
        assert_eq!(after(&events, 19), [20]);
        assert!(events.can_resume(0) && events.can_resume(20) && !events.can_resume(21));
    }

    #[test]
    fn readers_have_places_and_a_slow_one_is_told() {
        let events = Events::new(1);
        let places: Vec<_> = (0..MAX_READERS).map(|_| events.admit().unwrap()).collect();
        assert!(events.admit().is_none() && events.has_readers());
        assert_eq!(events.refused.load(Ordering::Relaxed), 1);
        drop(places);
        assert!(events.admit().is_some());
        for i in 0..MAX_STATES + 2 {
            events.step(step(&i.to_string(), 0));
        }
        assert!(matches!(events.after(0), Next::Lagged));
        assert!(!events.can_resume(1) && events.can_resume(2));
        events.close();
        assert!(matches!(events.after(2), Next::Closed));
    }
}
