//! Queries the connections of the Lustre client while the log says that one is down.
//!
//! Lustre prints one of many similar lines, so when a hundred targets return, the log may name only
//! one. The client itself has the state of each.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::aside::Aside;
use super::tracker::{LUSTRE, Tracker};
use crate::collectors::storage::mounts::lustre;
use crate::roots::Roots;

/// How often the client is queried.
const ASK_EVERY: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub(super) struct Imports {
    looking: Aside<BTreeMap<String, bool>>,
    /// When the client was last queried, by both clocks.
    asked: Option<(Instant, f64)>,
}

impl Imports {
    /// Starts a query if it is due, waits at most `most` for the answer, and applies it. A
    /// connection that is being made or given up blocks its reader, so a separate thread reads.
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
