//! The state of one source, for the API and for a reader that resumes after an earlier one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepwatch_model::time::Ts;
use stepwatch_wire::Cursor;

use crate::clock::wall;

/// A copy of the state of a source.
#[derive(Debug, Clone)]
pub struct SourceSnapshot {
    pub source: Arc<str>,
    pub up: bool,
    /// When the source entered this state.
    pub since: Ts,
    /// Why the source is down.
    pub error: Option<String>,
    pub cursor: Option<Cursor>,
    pub last_record: Option<Ts>,
    pub records: u64,
    pub malformed: u64,
    pub gaps: u64,
    pub lost: u64,
}

#[derive(Debug)]
pub(crate) struct SourceStatus(Mutex<SourceSnapshot>);

/// All sources of the configuration and the discovery, by name.
#[derive(Debug, Clone, Default)]
pub struct SourceTable(Arc<Mutex<BTreeMap<Arc<str>, Arc<SourceStatus>>>>);

impl SourceStatus {
    pub(crate) fn new(source: Arc<str>, cursor: Option<Cursor>) -> Self {
        Self(Mutex::new(SourceSnapshot {
            source,
            up: false,
            since: wall(),
            error: None,
            cursor,
            last_record: None,
            records: 0,
            malformed: 0,
            gaps: 0,
            lost: 0,
        }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, SourceSnapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn cursor(&self) -> Option<Cursor> {
        self.lock().cursor.clone()
    }

    /// Records a change of `up`; false if it is unchanged.
    pub(crate) fn set_up(&self, up: bool, error: Option<String>) -> bool {
        let mut view = self.lock();
        let changed = view.up != up;
        if changed {
            view.since = wall();
        }
        view.up = up;
        view.error = error;
        changed
    }
}

impl SourceTable {
    pub fn views(&self) -> Vec<SourceSnapshot> {
        self.lock().values().map(|s| s.lock().clone()).collect()
    }

    pub(crate) fn is_up(&self, source: &str) -> bool {
        self.lock().get(source).is_some_and(|s| s.lock().up)
    }

    /// Whether the source was tried and does not send. The state of an untried target is unknown.
    pub(crate) fn is_down(&self, source: &str) -> bool {
        let is_down = |view: &SourceSnapshot| !view.up && view.error.is_some();
        self.lock().get(source).is_some_and(|s| is_down(&s.lock()))
    }

    pub(crate) fn insert(&self, source: Arc<str>, status: Arc<SourceStatus>) {
        self.lock().insert(source, status);
    }

    pub(crate) fn remove(&self, source: &str) {
        self.lock().remove(source);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Arc<SourceStatus>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
