//! Holds back hellos of users in runs that root opened. Such a run becomes that of the first other
//! user who reports a step in it. That user's earlier hellos are published then; those of others
//! change nothing.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stepwatch_wire::{Event, Kind};

use super::{Hub, Judged, without_workers};
use crate::drops::Reason;
use crate::lock::Locked as _;
use crate::origin::{Origin, Peer};
use crate::principal::Principal;

/// The most hellos that wait; above it, the oldest of the user with the most is dropped. A node has
/// some ranks of a few runs.
const MAX_HELD: usize = 128;
/// Seconds after which a hello is dropped: a trainer has made its first step by then.
const KEEP_SECONDS: f64 = 3600.0;
/// How long the hellos of one step may be compared with other trainings.
const MAX_JUDGING: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Held {
    hellos: Mutex<Vec<Hello>>,
    any: AtomicBool,
}

#[derive(Debug)]
struct Hello {
    at: f64,
    origin: Origin,
    event: Event,
}

impl Hello {
    fn is_of(&self, principal: Principal, run: &str) -> bool {
        self.origin.principal() == principal && self.event.run.as_deref() == Some(run)
    }
}

impl Held {
    /// The run of a step, if any hello waits for one.
    pub(super) fn waits_for(&self, event: &Event) -> Option<String> {
        (event.kind == Kind::Step && self.any.load(Ordering::Acquire)).then(|| event.run.clone()).flatten()
    }

    /// Keeps a hello, in place of an earlier one of the same rank. Returns how many others were
    /// dropped.
    fn keep(&self, now: f64, origin: &Origin, event: &Event) -> u64 {
        let mut hellos = self.hellos.locked();
        let principal = origin.principal();
        hellos.retain(|h| {
            let again = event.run.as_deref().is_some_and(|run| h.is_of(principal, run));
            now - h.at < KEEP_SECONDS && !(again && h.event.rank == event.rank)
        });
        let full = hellos.len() >= MAX_HELD;
        if full {
            let mut of_user = BTreeMap::<Principal, usize>::new();
            hellos.iter().for_each(|h| *of_user.entry(h.origin.principal()).or_default() += 1);
            let most = of_user.into_iter().max_by_key(|(_, count)| *count).map(|(principal, _)| principal);
            if let Some(at) = hellos.iter().position(|h| Some(h.origin.principal()) == most) {
                hellos.remove(at);
            }
        }
        hellos.push(Hello { at: now, origin: origin.clone(), event: event.clone() });
        self.any.store(true, Ordering::Release);
        u64::from(full)
    }

    fn take(&self, principal: Principal, run: &str) -> Vec<Hello> {
        let mut hellos = self.hellos.locked();
        let taken = hellos.extract_if(.., |h| h.is_of(principal, run)).collect();
        self.any.store(!hellos.is_empty(), Ordering::Release);
        taken
    }

    /// Drops the hellos of a closed connection: its process makes no further step.
    pub(super) fn closed(&self, connection: u64) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut hellos = self.hellos.locked();
        hellos.retain(|h| !matches!(h.origin, Origin::Peer(Peer { connection: of, .. }) if of == connection));
        self.any.store(!hellos.is_empty(), Ordering::Release);
    }
}

impl Hub {
    /// Keeps the hello of a user who would own the run with a step; false if it need not wait.
    pub(super) fn hold(&self, now: f64, origin: &Origin, event: &mut Event) -> bool {
        let principal = origin.principal();
        self.rename(principal, event);
        let Some(run) = event.run.as_deref() else { return false };
        if !self.0.training.locked().waits_for_step(run, principal, now) {
            return false;
        }
        self.0.drops.add(Reason::NotOwner, self.0.held.keep(now, origin, event));
        true
    }

    /// Publishes the hellos of `principal`, to whom the run belongs since a step. Files of their
    /// processes are read only for a moment, because others may wait behind the step.
    pub(super) fn hear_held(&self, now: f64, principal: Principal, run: &str) {
        let began = Instant::now();
        without_workers(|| {
            for Hello { origin, event, .. } in self.0.held.take(principal, run) {
                let has_time = began.elapsed() < MAX_JUDGING;
                self.take_in(now, &origin, event, if has_time { Judged::Yes } else { Judged::No });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Outcome;
    use crate::testing;

    const ANN: u32 = 4_000_001;
    const BOB: u32 = 4_000_002;

    fn say(hub: &Hub, uid: u32, line: &str) -> Outcome {
        let peer = Peer { connection: u64::from(uid), pid: None, uid };
        hub.publish(Origin::Peer(peer), Event::parse(line.as_bytes()).unwrap())
    }

    fn hellos(hub: &Hub) -> Vec<(Option<u32>, Option<String>)> {
        let all = testing::published(hub).into_iter().filter(|event| event.kind == Kind::Hello);
        let framework = |event: &Event| event.extra.get("framework")?.as_str().map(str::to_owned);
        all.map(|event| (event.uid, framework(&event))).collect()
    }

    #[test]
    fn what_a_worker_said_before_its_first_step_counts_from_then_on() {
        let hub = testing::hub();
        say(&hub, 0, r#"{"k":"hello","run":"job","rank":0,"source":"launcher"}"#);
        say(&hub, BOB, r#"{"k":"hello","run":"job","rank":0,"framework":"evil"}"#);
        say(&hub, BOB, r#"{"k":"hb","run":"job","rank":0}"#);
        say(&hub, ANN, r#"{"k":"hello","run":"job","rank":0,"framework":"megatron"}"#);
        assert_eq!(hellos(&hub), [(Some(0), None)]);
        let step = r#"{"k":"step","run":"job","rank":0,"step":1,"m":{"loss":2.5}}"#;
        assert_eq!(say(&hub, ANN, step), Outcome::Accepted);
        assert_eq!(hellos(&hub).last(), Some(&(Some(ANN), Some("megatron".into()))));
        assert_eq!(say(&hub, BOB, step), Outcome::Dropped(Reason::NotOwner));
        let row = &hub.runs()[0];
        assert!(row.uid == Some(ANN) && row.sources.iter().any(|s| s.kind == "client"), "{row:?}");
        assert!(!testing::published(&hub).iter().any(|e| format!("{e:?}").contains("evil")));
    }

    #[test]
    fn hellos_that_wait_are_few_and_those_of_one_user_push_out_no_other() {
        let held = Held::default();
        let hello = |rank| Event { rank: Some(rank), run: Some("job".into()), ..Event::new(Kind::Hello) };
        let (ann, bob) = (Origin::Http(Principal::User(ANN)), Origin::Http(Principal::User(BOB)));
        (0..8).for_each(|rank| assert_eq!(held.keep(1.0, &ann, &hello(rank)), 0));
        let over: u64 = (0..1000).map(|rank| held.keep(2.0, &bob, &hello(rank))).sum();
        assert_eq!((held.take(ann.principal(), "job").len(), over), (8, 1008 - MAX_HELD as u64));
        held.keep(3.0 + KEEP_SECONDS, &ann, &hello(0));
        assert_eq!(held.take(bob.principal(), "job").len(), 0, "after so long");
    }
}
