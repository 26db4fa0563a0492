//! The state of the connections of the Lustre client, asked while one is down according to the log.
//!
//! Lustre prints one of many lines that are alike, so of a hundred targets that are back the log
//! may name one. The client itself has the state of each.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::aside::Aside;
use super::tracker::{LUSTRE, Tracker};
use crate::collectors::storage::mounts::lustre;
use crate::roots::Roots;

/// How often the client is asked.
const ASK_EVERY: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub(super) struct Imports {
    looking: Aside<BTreeMap<String, bool>>,
    /// When the client was last asked, by both clocks.
    asked: Option<(Instant, f64)>,
}

impl Imports {
    /// Asks if it is time, waits at most `most` for the answer, and takes in what has come. A
    /// connection that is being made or given up blocks the reader, so a separate thread reads.
    pub(super) fn ask(&mut self, tracker: &mut Tracker, roots: &Roots, now: f64, most: Duration) {
        let due = self.asked.is_none_or(|(at, _)| at.elapsed() >= ASK_EVERY);
        if due && !self.looking.busy() && tracker.counts.held.iter().any(|held| held.name == LUSTRE) {
            let roots = roots.clone();
            self.asked = Some((Instant::now(), now));
            self.looking.start("kernel-lustre", move || lustre::connections(&roots));
        }
        if let (Some((_, asked)), Some(up)) = (self.asked, self.looking.finished(most)) {
            tracker.imports(now, asked, &up);
        }
    }
}
