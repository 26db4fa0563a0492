//! The hub: the only way in for events, from any source and any thread, and the owner of the state
//! that they change.
//!
//! A publish locks the training state for the microseconds that bookkeeping and one line of JSON
//! take, and never waits for a reader of the stream, a scrape or a disk.

mod held;
mod rank_conflict;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use stepwatch_wire::names::hello;
use stepwatch_wire::run_name::By;
use stepwatch_wire::{Event, Kind, Value, words};

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::clock::unix_now;
use crate::drops::{Drops, Reason};
use crate::family::Family;
use crate::identity::{self, Apart, Claim, Registry, RunRow};
use crate::lock::Locked as _;
use crate::origin::{Origin, Outcome, Peer, Via};
use crate::principal::Principal;
use crate::processes;
use crate::roots::Roots;
use crate::samples::Samples;
use crate::source::{SourceHandle, Sources};
use crate::stream::{Limits, Mark, Ring};
use crate::training::{Archive, CheckpointPlace, Options, ProcessFate, Training, TrainingProcess};
use crate::unfinished::Room;
use held::Held;

pub static EVENTS: Family =
    Family::counter("stepwatch_exporter_ingest_events_total", "", &["via"], "Events taken in");

pub static SAVE_FAILURES: Family = Family::counter(
    "stepwatch_exporter_state_save_failures_total",
    "",
    &[],
    "Times that what must survive a restart could not be saved: attempts and file positions are forgotten by one now",
);

pub static FAMILIES: &[&Family] = &[&EVENTS, &SAVE_FAILURES];

/// The most characters of a host's name in the description of a source.
const MAX_HOST_CHARS: usize = 64;

/// The hub. Clones share one state.
#[derive(Debug, Clone)]
pub struct Hub(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    node: String,
    training: Mutex<Training>,
    ring: Arc<Ring>,
    sources: Sources,
    /// Which process reports which run.
    identity: Registry,
    /// Processes and sources that belong to a run beside that of their job.
    apart: Apart,
    /// Hellos that wait for the first step of their user.
    held: Held,
    drops: Arc<Drops>,
    /// Memory for text whose end has not arrived.
    room: Room,
    taken: [AtomicU64; Via::ALL.len()],
    connections: AtomicU64,
    save_failures: AtomicU64,
    /// Wakes the task that saves the state.
    urgent: tokio::sync::Notify,
}

/// The parts that a hub is built from.
#[derive(Debug)]
pub struct Parts {
    /// The name of this host, which is set in every event.
    pub node: String,
    pub boot: String,
    pub ring: Limits,
    pub training: Options,
    pub archive: Archive,
    /// Where the stream is kept, so that a crash of this exporter neither loses nor repeats events.
    pub keep: Option<Keep>,
}

#[derive(Debug)]
pub struct Keep {
    pub journal: PathBuf,
    /// The boot id of the kernel.
    pub kernel_boot: String,
}

/// Whether a `hello` is compared with other trainings that may have its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judged {
    Yes,
    No,
}

/// Runs `long`, which may block. On a worker of the runtime, other threads take over its tasks
/// meanwhile.
fn without_workers<T>(long: impl FnOnce() -> T) -> T {
    let is_worker =
        Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_worker { tokio::task::block_in_place(long) } else { long() }
}

/// The pid that a sender says, if the process with it is of the same user: any sender can say any,
/// and that of another node or container means another process here.
fn said_pid(origin: &Origin, event: &Event) -> Option<u32> {
    let said = event.extra.get("pid").and_then(Value::as_f64)? as u32;
    let user = processes::user(&Roots::default(), said)?;
    (origin.principal() == Principal::User(user)).then_some(said)
}

/// Sets when the process of a `hello` began. The kernel knows it of a peer, whatever the peer says.
fn began(origin: &Origin, event: &mut Event) {
    if event.extra.contains_key(hello::ROLE) {
        return;
    }
    let pid = origin.pid().or_else(|| said_pid(origin, event));
    if let Some(started) = pid.and_then(|pid| identity::started(&Roots::default(), pid)) {
        event.extra.insert(hello::STARTED.into(), Value::Number(started));
    }
}

/// The ring with a journal on disk: it continues the journal of an earlier process, if there is
/// one.
fn keep(parts: &Parts) -> Option<Ring> {
    let Keep { journal, kernel_boot } = parts.keep.as_ref()?;
    Ring::kept(parts.boot.clone(), parts.ring, journal, kernel_boot)
        .inspect_err(|error| {
            tracing::warn!(
                journal = %journal.display(),
                %error,
                "cannot keep the stream: a crash of this exporter may lose or repeat events"
            );
        })
        .ok()
}

impl Hub {
    pub fn new(parts: Parts) -> Self {
        let drops = Arc::new(Drops::default());
        let ring = keep(&parts).unwrap_or_else(|| Ring::new(parts.boot, parts.ring));
        let training = Training::new(parts.training, parts.archive, Arc::clone(&drops));
        Self(Arc::new(Inner {
            node: parts.node,
            training: Mutex::new(training),
            ring: Arc::new(ring),
            sources: Sources::default(),
            identity: Registry::default(),
            apart: Apart::default(),
            held: Held::default(),
            drops,
            room: Room::default(),
            taken: Default::default(),
            connections: AtomicU64::new(0),
            save_failures: AtomicU64::new(0),
            urgent: tokio::sync::Notify::new(),
        }))
    }

    /// Takes an event in: updates the training state and publishes it to the stream.
    pub fn publish(&self, origin: Origin, event: Event) -> Outcome {
        self.publish_at(unix_now(), &origin, event)
    }

    pub fn publish_at(&self, now: f64, origin: &Origin, event: Event) -> Outcome {
        if event.kind == Kind::Hello {
            // A hello may read files of its process, and those of a hung process answer late.
            return without_workers(|| self.take_in(now, origin, event, Judged::Yes));
        }
        self.take_in(now, origin, event, Judged::Yes)
    }

    fn take_in(&self, now: f64, origin: &Origin, mut event: Event, judged: Judged) -> Outcome {
        let principal = origin.principal();
        self.receive(origin, &mut event);
        let is_hello = event.kind == Kind::Hello;
        let is_judged = is_hello && judged == Judged::Yes;
        let _turn = if is_judged { self.greet(now, origin, &mut event) } else { None };
        self.set_apart(origin, &mut event);
        if is_hello {
            began(origin, &mut event);
            if self.hold(now, origin, &mut event) {
                return Outcome::Accepted;
            }
            if let Some(outcome) = self.stranger(now, principal, Kind::Hello, &mut event) {
                return outcome;
            }
            self.introduce(now, origin, &event);
        }
        self.rename(principal, &mut event);
        let stepped = self.0.held.waits_for(&event);
        let mut out = Vec::with_capacity(1);
        let mut training = self.0.training.locked();
        let outcome = training.apply(now, origin, event, &mut out);
        // The lock is still held, so that the stream has the events of a run in the order in which
        // its state changed.
        self.emit(principal, out);
        let urgent = training.is_urgent();
        drop(training);
        match &outcome {
            Outcome::Accepted => {
                self.0.taken[origin.via() as usize].fetch_add(1, Ordering::Relaxed);
            }
            Outcome::Rejected(_) => self.0.drops.count(Reason::Malformed),
            Outcome::Dropped(_) => {}
        }
        if urgent {
            self.0.urgent.notify_one();
        }
        if let Some(run) = stepped.filter(|_| outcome == Outcome::Accepted) {
            self.hear_held(now, principal, &run);
        }
        outcome
    }

    /// Checks an incoming event. Afterwards its texts are safe to show, and the fields that only
    /// this exporter may set are its own.
    fn receive(&self, origin: &Origin, event: &mut Event) {
        event.cursor = None;
        event.uid.take_if(|_| *origin != Origin::Node);
        event.clean();
        self.0.drops.add(Reason::Secret, event.hide_secrets());
        let ours = self.0.node.as_str();
        let foreign = event.node.as_deref().is_some_and(|node| node != ours);
        // The configuration may name another node for tailed logs and for scraped targets.
        if foreign && !matches!(origin, Origin::Node | Origin::Source { via: Via::Tail | Via::Scrape, .. }) {
            self.0.drops.count(Reason::Node);
            event.node = None;
        }
        event.node.get_or_insert_with(|| ours.to_owned());
        self.0.drops.add(Reason::Entries, u64::from(event.dropped));
    }

    /// The outcome for an event whose sender may not report its run, before any state changes.
    /// `kind` is the kind of the events that will be published.
    pub(crate) fn stranger(
        &self,
        now: f64,
        principal: Principal,
        kind: Kind,
        event: &mut Event,
    ) -> Option<Outcome> {
        self.rename(principal, event);
        let run = event.run.as_deref()?;
        let mut training = self.0.training.locked();
        let owner = training.not_theirs(run, principal, kind, now)?;
        training.refuse(run, owner, principal, now);
        Some(Outcome::Dropped(Reason::NotOwner))
    }

    /// Takes in the events that one source read at a time, in their order, together with the
    /// position that it has read to: after a crash, the stream has all of them and [`Self::mark`]
    /// returns the position, or neither. Leaves in `events` those that must wait, from the first
    /// run without room on. Returns whether the mark is kept.
    pub fn publish_all(&self, origin: &Origin, events: &mut Vec<Event>, mark: Mark<'_>) -> bool {
        let (now, principal) = (unix_now(), origin.principal());
        let mut training = self.0.training.locked();
        let mut records = self.0.ring.batch(events.len());
        let (mut out, mut waiting, mut taken) = (Vec::with_capacity(1), Vec::new(), 0);
        let mut admitted: Option<String> = None;
        let mut stepped = BTreeSet::new();
        let mut reading = events.drain(..);
        for mut event in reading.by_ref() {
            self.receive(origin, &mut event);
            self.set_apart(origin, &mut event);
            self.rename(principal, &mut event);
            if let Some(run) = event.run.as_deref().filter(|run| Some(*run) != admitted.as_deref()) {
                // A refused event is counted below. An event whose run finds no room waits.
                if matches!(
                    training.admit(run, event.kind, principal, now),
                    Err(Reason::Runs | Reason::NewRuns)
                ) {
                    waiting.push(event);
                    break;
                }
                admitted = Some(run.to_owned());
            }
            stepped.extend(self.0.held.waits_for(&event));
            match training.apply(now, origin, event, &mut out) {
                Outcome::Accepted => taken += 1,
                Outcome::Rejected(_) => self.0.drops.count(Reason::Malformed),
                Outcome::Dropped(_) => {}
            }
            for mut event in out.drain(..) {
                event.node.get_or_insert_with(|| self.0.node.clone());
                records.add(principal, &event);
            }
        }
        waiting.extend(reading);
        let kept = records.publish(waiting.is_empty().then_some(mark));
        events.append(&mut waiting);
        let urgent = training.is_urgent();
        drop(training);
        self.0.taken[origin.via() as usize].fetch_add(taken, Ordering::Relaxed);
        if urgent {
            self.0.urgent.notify_one();
        }
        stepped.iter().for_each(|run| self.hear_held(now, principal, run));
        kept
    }

    /// Whether the run has series on the metrics page.
    pub fn follows(&self, run: &str) -> bool {
        let run = self.canonical(run);
        self.0.training.locked().follows(&run)
    }

    /// The current name of a run that a source of this exporter calls `run`.
    pub fn canonical<'a>(&self, run: &'a str) -> Cow<'a, str> {
        self.called(Principal::Exporter, run)
    }

    /// The current name of a run that `principal` calls `run`.
    fn called<'a>(&self, principal: Principal, run: &'a str) -> Cow<'a, str> {
        match words::line(run) {
            Cow::Borrowed(run) => self.0.identity.canonical(principal, run),
            Cow::Owned(run) => Cow::Owned(self.0.identity.canonical(principal, &run).into_owned()),
        }
    }

    fn rename(&self, principal: Principal, event: &mut Event) {
        let renamed = event.run.as_deref().map(|run| self.called(principal, run));
        if let Some(Cow::Owned(renamed)) = renamed {
            event.run = Some(renamed);
        }
    }

    /// Records which run a source belongs to, and returns the current name of the run.
    pub fn claim(&self, now: f64, claim: Claim) -> String {
        let principal = claim.principal;
        let mut claim = claim.clean();
        self.claimed_apart(&mut claim);
        // A sender that claims another user's run for its job can rename that run only as far as it
        // may report it.
        claim.unnamed.take_if(|unnamed| !self.may(principal, unnamed, Kind::Hello));
        let (run, renamed) = self.0.identity.claim(now, claim);
        for whose in self.0.identity.forgotten() {
            self.0.training.locked().forgot_sources(whose, principal, now);
        }
        for renamed in renamed {
            self.join(now, principal, &renamed.from, &renamed.to);
        }
        run
    }

    /// Merges run `from` into run `to`, because `principal` claims that they are the same.
    pub fn join(&self, now: f64, principal: Principal, from: &str, to: &str) {
        let mut training = self.0.training.locked();
        self.emit(principal, training.join(now, principal, &words::line(from), &words::line(to)));
    }

    /// Whether `principal` may report steps of a run of this name. A refusal is counted.
    pub fn hears(&self, principal: Principal, run: &str) -> bool {
        self.may(principal, run, Kind::Step)
    }

    fn may(&self, principal: Principal, run: &str, kind: Kind) -> bool {
        let (run, now) = (self.called(principal, run), unix_now());
        let mut training = self.0.training.locked();
        let owner = training.not_theirs(&run, principal, kind, now);
        if let Some(owner) = owner {
            training.refuse(&run, owner, principal, now);
        }
        owner.is_none()
    }

    /// The runs that `principal` may report.
    pub fn runs_of(&self, principal: Principal) -> Vec<String> {
        self.0.training.locked().runs_of(principal, unix_now())
    }

    /// Jobs reported by senders that `principal` accepts, each with the run name that the rule
    /// gives it.
    pub fn jobs(&self, principal: Principal) -> Vec<(String, String)> {
        self.0.identity.jobs(principal)
    }

    /// The run of a job of which a process has been seen.
    pub fn run_of_job(&self, id: &str) -> Option<String> {
        self.0.identity.of_job(id)
    }

    /// Every run that is followed, with its sources.
    pub fn runs(&self) -> Vec<RunRow> {
        let known = self.0.training.locked().lives();
        let mut rows = self.0.identity.rows(&known);
        for row in &mut rows {
            row.notes.extend(self.0.apart.note(&row.run));
        }
        rows
    }

    /// Records the run that a process or source names in its `hello`.
    fn introduce(&self, now: f64, origin: &Origin, event: &Event) {
        let Some(run) = event.run.clone() else { return };
        let text = |key: &str| event.extra.get(key).and_then(Value::as_str).map(str::to_owned);
        let job = text(hello::JOB);
        let claim = match origin {
            Origin::Peer(_) | Origin::Datagram(_) | Origin::Http(_) => {
                let pid = origin.pid().or_else(|| said_pid(origin, event));
                let host = text("hostname").filter(|_| origin.pid().is_none());
                let host = host.map(|host| host.chars().take(MAX_HOST_CHARS).collect::<String>());
                let process = pid.map_or_else(|| "a process".to_owned(), |pid| format!("pid {pid}"));
                let place = host.map(|host| format!(" on {host}")).unwrap_or_default();
                let rank = event.rank.unwrap_or(0);
                let by = text(hello::RUN_BY).and_then(|by| By::parse(&by)).unwrap_or(By::Name);
                Claim {
                    kind: text(hello::ROLE).unwrap_or_else(|| "client".to_owned()),
                    source: format!("{process}{place}, rank {rank}"),
                    pid,
                    job,
                    run,
                    by: Some(by),
                    why: text(hello::RUN_WHY).unwrap_or_else(|| "named by its sender".to_owned()),
                    unnamed: text(hello::RUN_UNNAMED),
                    principal: origin.principal(),
                }
            }
            // These sources find out more, and make their own claim.
            Origin::Source { via: Via::Tail | Via::Discover | Via::Otlp, .. } | Origin::Node => return,
            Origin::Source { via, name, .. } => Claim {
                kind: via.as_str().to_owned(),
                source: name.to_string(),
                pid: None,
                job,
                run,
                by: None,
                why: "named by its sender".to_owned(),
                unnamed: None,
                principal: origin.principal(),
            },
        };
        self.claim(now, claim);
    }

    /// The mark last kept under this key, by this process or an earlier one.
    pub fn mark(&self, key: &str) -> Option<String> {
        self.0.ring.mark(key)
    }

    fn emit(&self, sender: Principal, events: Vec<Event>) {
        for mut event in events {
            event.node.get_or_insert_with(|| self.0.node.clone());
            self.0.ring.push(sender, &event);
        }
    }

    /// A number for a new connection of the ingest socket.
    pub fn connection(&self) -> u64 {
        self.0.connections.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts a connection of the ingest socket that is over a limit.
    pub fn refuse_connection(&self, peer: Peer, reason: Reason) {
        self.0.training.locked().refuse_connection(peer, reason, unix_now());
    }

    /// Records that this exporter closed the peer's connection to make room; its ranks still live.
    pub fn left(&self, peer: Peer) {
        self.0.held.closed(peer.connection);
        self.0.training.locked().left(peer.connection);
    }

    /// Records that the peer closed its connection: its ranks that sent no `bye` are dead.
    pub fn closed(&self, peer: Peer, process: ProcessFate) {
        self.0.held.closed(peer.connection);
        let mut out = Vec::new();
        let mut training = self.0.training.locked();
        training.closed(unix_now(), peer.connection, process, &mut out);
        self.emit(Principal::from_uid(Some(peer.uid)), out);
    }

    /// Registers a source of training metrics. Its series are exported while a clone of the handle
    /// lives.
    pub fn source(&self, name: &str, kind: &str) -> SourceHandle {
        self.0.sources.register(name, kind)
    }

    /// The last known step of a rank, which may be from before this exporter was restarted.
    pub fn last_step(&self, run: &str, rank: u32) -> Option<i64> {
        let run = self.canonical(run);
        self.0.training.locked().last_step(&run, rank)
    }

    pub fn ring(&self) -> &Arc<Ring> {
        &self.0.ring
    }

    pub fn node(&self) -> &str {
        &self.0.node
    }

    /// The memory that all sources share for text whose end has not arrived.
    pub fn room(&self) -> &Room {
        &self.0.room
    }

    pub fn drops(&self) -> &Drops {
        &self.0.drops
    }

    /// The connected training processes of this node, without those whose pid has gone to another
    /// user: a child may keep the connection of a process that has ended.
    pub fn processes(&self, roots: &Roots) -> Vec<TrainingProcess> {
        let mut all = self.0.training.locked().processes();
        all.retain(|process| processes::may_be_of(roots, process.pid, process.uid));
        all
    }

    /// The directory into which each run writes its checkpoints.
    pub fn checkpoints(&self) -> Vec<CheckpointPlace> {
        self.0.training.locked().checkpoints()
    }

    /// The names of the running sources of one kind.
    pub fn source_names(&self, kind: &str) -> Vec<String> {
        self.0.sources.names(kind)
    }

    /// Whether a process that was alive at `beat` may have died without notice.
    pub fn missed(&self, run: &str, rank: u32, pid: u32, beat: f64) -> bool {
        let run = self.canonical(run);
        self.0.training.locked().missed(&run, rank, pid, beat)
    }

    pub fn set_detected_gpu(&self, gpu: Option<String>) {
        self.0.training.locked().set_detected_gpu(gpu);
    }

    pub fn set_options(&self, options: Options) {
        self.0.training.locked().set_options(options);
    }

    /// The part of the training state that has to be saved now.
    pub fn archive(&self) -> Archive {
        self.0.training.locked().archive(unix_now())
    }

    /// Counts that the state could not be saved.
    pub fn state_not_saved(&self) {
        self.0.save_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns when something happened that has to be saved at once.
    pub async fn urgent(&self) {
        self.0.urgent.notified().await;
    }

    /// Writes the state of the hub to the metrics page.
    pub fn write(&self, out: &mut Samples) {
        self.0.sources.write(out);
        self.0.drops.write(out);
        out.set(&SAVE_FAILURES, &[], self.0.save_failures.load(Ordering::Relaxed));
        for (via, taken) in Via::ALL.iter().zip(&self.0.taken) {
            out.set(&EVENTS, &[via.as_str()], taken.load(Ordering::Relaxed));
        }
        // The training state is last, because users' events may use up the room for series.
        let now = unix_now();
        let mut training = self.0.training.locked();
        training.expire(now);
        training.write(now, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_kernel_says_when_a_peer_began() {
        let hub = testing::hub();
        let uid = rustix::process::getuid().as_raw();
        let peer = Peer { connection: 1, pid: Some(std::process::id()), uid };
        let said = br#"{"k":"hello","run":"r","rank":0,"pid":1,"started":5}"#;
        hub.publish(Origin::Peer(peer), Event::parse(said).unwrap());
        let published = testing::published(&hub);
        let hello = published.iter().find(|event| event.kind == Kind::Hello).unwrap();
        let started = hello.extra.get("started").and_then(Value::as_f64).unwrap();
        // This test began less than a day ago.
        assert!((0.0..86_400.0).contains(&(unix_now() - started)), "{started}");
    }
}
