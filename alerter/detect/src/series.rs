//! Series of other programs that are watched by their names alone, as a Prometheus sends them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Ts;

/// The name of a series, and what it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesName {
    /// Its selector: `nfs_read_seconds{instance="a:9100",job="node"}`.
    pub text: Arc<str>,
    pub metric: Box<str>,
    /// Labels that say whose it is, as its sender gave them; empty where there is none.
    pub job: Box<str>,
    pub tenant: Box<str>,
    pub run: Box<str>,
    pub node: Box<str>,
}

/// One value of a series.
#[derive(Debug, Clone)]
pub struct SeriesReading {
    /// Its id at the receiver. The id is given to another series after this one is forgotten.
    pub id: u32,
    pub name: Arc<SeriesName>,
    pub ts: Ts,
    pub value: f64,
}
