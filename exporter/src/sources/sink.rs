//! The environment of a source, and the trait for publishing its events.

use std::path::PathBuf;

use stepwatch_wire::Event;

use crate::drops::Reason;
use crate::hub::Hub;
use crate::identity::Claim;
use crate::nvml::Nvml;
use crate::origin::{Origin, Outcome};
use crate::principal::Principal;
use crate::roots::Roots;
use crate::source::SourceHandle;
use crate::stream::Mark;
use crate::unfinished::Room;

/// The environment of a source.
#[derive(Debug, Clone)]
pub struct Surroundings {
    pub hub: Hub,
    /// The thread that makes all calls of NVML.
    pub nvml: Nvml,
    pub roots: Roots,
    /// The directory for state that must survive this process.
    pub state_dir: PathBuf,
}

/// The destination of a source's events, which is the hub.
pub trait Sink: Send {
    fn publish(&self, origin: Origin, event: Event) -> Outcome;

    /// Publishes the events of one read together with the position of the source. Returns true if
    /// the position is kept with them. Events that must wait for room among the runs stay in
    /// `events`.
    fn publish_all(&self, origin: &Origin, events: &mut Vec<Event>, mark: Mark<'_>) -> bool {
        let _ = mark;
        while let Some(event) = events.first().cloned() {
            if matches!(self.publish(origin.clone(), event), Outcome::Dropped(Reason::Runs | Reason::NewRuns))
            {
                break;
            }
            events.remove(0);
        }
        false
    }

    /// The mark last kept under this key, by this process or an earlier one.
    fn mark(&self, key: &str) -> Option<String> {
        let _ = key;
        None
    }

    /// Whether this run is known.
    fn follows(&self, run: &str) -> bool {
        let _ = run;
        true
    }

    /// Whether `principal` may report this run.
    fn hears(&self, principal: Principal, run: &str) -> bool {
        let _ = (principal, run);
        true
    }

    /// The last known step of a rank, by which steps that are read again after a crash are
    /// recognised.
    fn last_step(&self, run: &str, rank: u32) -> Option<i64>;

    fn source(&self, name: &str, kind: &str) -> SourceHandle;

    /// The memory that all sources share for text whose end has not arrived.
    fn room(&self) -> Room {
        Room::default()
    }

    /// Records which run a source belongs to, and returns the current name of the run.
    fn claim(&self, now: f64, claim: Claim) -> String {
        let _ = now;
        claim.run
    }

    /// Merges run `from` into run `to`, because `principal` claims that they are the same.
    fn join(&self, now: f64, principal: Principal, from: &str, to: &str) {
        let _ = (now, principal, from, to);
    }

    /// Jobs reported by senders that `principal` accepts, each with the run name that the rule
    /// gives it.
    fn jobs(&self, principal: Principal) -> Vec<(String, String)> {
        let _ = principal;
        Vec::new()
    }
}

impl Sink for Hub {
    fn room(&self) -> Room {
        Hub::room(self).clone()
    }

    fn claim(&self, now: f64, claim: Claim) -> String {
        Hub::claim(self, now, claim)
    }

    fn join(&self, now: f64, principal: Principal, from: &str, to: &str) {
        Hub::join(self, now, principal, from, to);
    }

    fn jobs(&self, principal: Principal) -> Vec<(String, String)> {
        Hub::jobs(self, principal)
    }

    fn publish(&self, origin: Origin, event: Event) -> Outcome {
        Hub::publish(self, origin, event)
    }

    fn publish_all(&self, origin: &Origin, events: &mut Vec<Event>, mark: Mark<'_>) -> bool {
        Hub::publish_all(self, origin, events, mark)
    }

    fn mark(&self, key: &str) -> Option<String> {
        Hub::mark(self, key)
    }

    fn follows(&self, run: &str) -> bool {
        Hub::follows(self, run)
    }

    fn hears(&self, principal: Principal, run: &str) -> bool {
        Hub::hears(self, principal, run)
    }

    fn last_step(&self, run: &str, rank: u32) -> Option<i64> {
        Hub::last_step(self, run, rank)
    }

    fn source(&self, name: &str, kind: &str) -> SourceHandle {
        Hub::source(self, name, kind)
    }
}
