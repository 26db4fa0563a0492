//! Tests the outbox with a scripted receiver in virtual time.

mod charts;
mod crash;
mod ended;
mod kill;
mod latency;
mod pauses;
mod reminders;
mod scenarios;
mod unconfirmed;
mod unrecorded;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use stepwatch_kit::config::Secret;
use stepwatch_kit::shutdown::{Shutdown, Trigger};
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::{Action, Effect, Notification};
use stepwatch_respond::incident::{IncidentRecord, State, Suppression, SuppressionReason};
use stepwatch_respond::message::Status;
use tempfile::TempDir;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use super::{DrawChart, Feedback, Options, Outbox, OutboxHandle, Outcome, Receivers, Reword};
use crate::notify::tests::page;
use crate::notify::{Attempt, Budget, Failure, Notifier, Pace, Receipt, Ring};
use crate::store::tests::{incident, reopen};
use crate::store::{Commit, DeliveryState, Store};

/// A limit in virtual time, which costs nothing and ends a hang.
const PATIENCE: Duration = Duration::from_hours(24);

/// The wall clock at the start of every test.
const START: Ts = Ts(1_795_227_416_000);

pub(crate) fn notification(receiver: &str, seq: u32, action: Action) -> Notification {
    page(receiver, seq, action)
}

/// The reaction of a receiver to one attempt.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Take,
    /// Accepts the message when notified.
    TakeAt(Arc<Notify>),
    /// Accepts the message and breaks the connection.
    TakeAndBreak,
    Fail(Failure),
    /// Does not answer. `taken`: it accepted the message.
    Hang {
        taken: bool,
    },
    Panic,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    pub(crate) key: String,
    pub(crate) action: Action,
    pub(crate) status: Status,
    pub(crate) title: String,
    pub(crate) at: Instant,
}

#[derive(Debug, Default)]
struct World {
    /// The messages that a person saw, in order.
    seen: Vec<Seen>,
    /// All attempts with any result.
    attempts: Vec<(String, Instant)>,
    concurrent: usize,
    concurrent_max: usize,
    /// The incidents of each portion of a reminder.
    portions: Vec<Vec<String>>,
}

type Script = dyn Fn(usize) -> Answer + Send + Sync;

/// A scripted receiver. Like a real one it recognises a known key, but only if the attempt asks for
/// it; a message that is repeated without asking is a second message.
#[derive(Clone)]
pub(crate) struct Scripted {
    pace: Option<Pace>,
    budget: Option<Budget>,
    wakes: bool,
    rings: bool,
    confirms: Option<&'static str>,
    /// Whether its messages embed charts.
    embeds: bool,
    account: &'static str,
    /// The interval of reminders; each portion is accepted when the gate opens.
    reminded: Option<(Duration, Arc<Notify>)>,
    script: Arc<Script>,
    world: Arc<Mutex<World>>,
    /// The number of attempts, updated after each.
    count: Arc<watch::Sender<usize>>,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl Scripted {
    /// Creates a receiver. `script` returns the answer to the nth attempt, from 0.
    pub(crate) fn new(script: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Self {
        Self::paced(None, script)
    }

    pub(crate) fn paced(
        pace: Option<Pace>,
        script: impl Fn(usize) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let count = Arc::new(watch::Sender::new(0));
        Self {
            pace,
            budget: None,
            wakes: false,
            rings: false,
            confirms: None,
            embeds: false,
            account: "",
            reminded: None,
            script: Arc::new(script),
            world: Arc::default(),
            count,
        }
    }

    fn within(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    fn waking(mut self) -> Self {
        self.wakes = true;
        self
    }

    /// A receiver that notifies people once per key.
    fn ringing(self) -> Self {
        Self { rings: true, ..self.waking() }
    }

    /// A receiver that confirms each call, with the account of this name.
    fn confirming(self, account: &'static str) -> Self {
        Self { confirms: Some("nobody was called"), account, ..self.ringing() }
    }

    fn embedding(mut self) -> Self {
        self.embeds = true;
        self
    }

    fn reminded(mut self, every: Duration, gate: &Arc<Notify>) -> Self {
        self.reminded = Some((every, Arc::clone(gate)));
        self
    }

    /// Waits for more than `more_than` portions of reminders, and returns all.
    async fn portions(&self, more_than: usize) -> Vec<Vec<String>> {
        let mut changes = self.count.subscribe();
        let portions = || self.world.lock().unwrap().portions.clone();
        let done = changes.wait_for(|_| portions().len() > more_than);
        tokio::time::timeout(PATIENCE, done).await.expect("reminders in time").unwrap();
        portions()
    }

    pub(crate) fn known_by(mut self, account: &'static str) -> Self {
        self.account = account;
        self
    }

    /// The same receiver with another behaviour.
    fn with_script(&self, script: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Self {
        Self { script: Arc::new(script), ..self.clone() }
    }

    fn seen(&self) -> Vec<Seen> {
        self.world.lock().unwrap().seen.clone()
    }

    fn keys(&self) -> Vec<String> {
        self.seen().into_iter().map(|s| s.key).collect()
    }

    fn attempts(&self) -> Vec<(String, Instant)> {
        self.world.lock().unwrap().attempts.clone()
    }

    fn concurrent_max(&self) -> usize {
        self.world.lock().unwrap().concurrent_max
    }

    async fn attempted(&self, count: usize) {
        let mut changes = self.count.subscribe();
        let done = changes.wait_for(|n| *n >= count);
        tokio::time::timeout(PATIENCE, done).await.expect("attempts in time").unwrap();
    }

    async fn answer(&self, attempt: Attempt<'_>) -> Result<Receipt, Failure> {
        let n = attempt.notification;
        let number = {
            let mut world = self.world.lock().unwrap();
            world.attempts.push((n.idem_key.clone(), Instant::now()));
            world.concurrent += 1;
            world.concurrent_max = world.concurrent_max.max(world.concurrent);
            world.attempts.len()
        };
        let _out = OnDrop(|| self.world.lock().unwrap().concurrent -= 1);
        self.count.send_replace(number);
        let answer = (self.script)(number - 1);
        if let Answer::TakeAt(gate) = &answer {
            gate.notified().await;
        }
        let taken = !matches!(answer, Answer::Fail(_) | Answer::Hang { taken: false } | Answer::Panic);
        if taken {
            let mut world = self.world.lock().unwrap();
            let again = attempt.ambiguous && world.seen.iter().any(|s| s.key == n.idem_key);
            if !again {
                let (status, title) = (n.message.status, n.message.title.clone());
                let (key, action) = (n.idem_key.clone(), n.action);
                world.seen.push(Seen { key, action, status, title, at: Instant::now() });
            }
        }
        match answer {
            Answer::Take | Answer::TakeAt(_) => Ok(Receipt { memory: Some(n.idem_key.clone()) }),
            Answer::TakeAndBreak => Err(Failure::transient("connection reset", true)),
            Answer::Fail(failure) => Err(failure),
            Answer::Hang { .. } => std::future::pending().await,
            Answer::Panic => panic!("the notifier has a bug"),
        }
    }
}

impl Notifier for Scripted {
    fn kind(&self) -> &'static str {
        "scripted"
    }

    fn send<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Receipt, Failure>> {
        self.answer(attempt).boxed()
    }

    fn wakes(&self) -> bool {
        self.wakes
    }

    fn rings(&self) -> bool {
        self.rings
    }

    fn confirms(&self) -> Option<&'static str> {
        self.confirms
    }

    fn embeds_chart(&self) -> bool {
        self.embeds
    }

    fn account(&self) -> Vec<Secret> {
        vec![Secret::new(self.account.to_owned())]
    }

    fn remind_every(&self) -> Option<Duration> {
        self.reminded.as_ref().map(|(every, _)| *every)
    }

    fn remind<'a>(&'a self, standing: &'a [Notification]) -> BoxFuture<'a, Result<(), Failure>> {
        let incidents = standing.iter().map(|n| n.incident.clone()).collect();
        self.world.lock().unwrap().portions.push(incidents);
        self.count.send_modify(|_| {});
        let gate = self.reminded.as_ref().map(|(_, gate)| Arc::clone(gate));
        async move {
            if let Some(gate) = gate {
                gate.notified().await;
            }
            Ok(())
        }
        .boxed()
    }

    fn budget(&self) -> Option<Budget> {
        self.budget
    }

    fn pace(&self) -> Option<Pace> {
        self.pace
    }
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A restartable alerter that consists only of store and outbox.
struct Bench {
    _dir: TempDir,
    path: PathBuf,
    receivers: BTreeMap<String, Scripted>,
    began: Instant,
    /// The offset of the wall clock in milliseconds.
    wall_ms: i64,
    /// Renders messages again, from the next start on.
    reword: Option<Reword>,
    life: Option<Life>,
}

struct Life {
    store: Store,
    handle: OutboxHandle,
    feedback: mpsc::Receiver<Feedback>,
    trigger: Trigger,
}

impl Bench {
    async fn new(receivers: &[(&str, &Scripted)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("alerter.db");
        let receivers = receivers.iter().map(|(name, r)| ((*name).to_owned(), (*r).clone())).collect();
        let (began, reword) = (Instant::now(), None);
        let mut bench = Self { _dir: dir, path, receivers, began, wall_ms: 0, reword, life: None };
        bench.start().await;
        bench
    }

    async fn start(&mut self) {
        let store = reopen(&self.path).await;
        let (sender, feedback) = mpsc::channel(64);
        let (trigger, shutdown) = Shutdown::manual();
        let (began, wall_ms) = (self.began, self.wall_ms);
        let clock = Arc::new(move || Ts(START.0 + wall_ms + began.elapsed().as_millis() as i64));
        // No chart is ever completed.
        let draw_chart: DrawChart = Arc::new(|_| Box::pin(std::future::pending()));
        let reword = self.reword.clone().unwrap_or(Options::default().reword);
        let options = Options { clock, random: || 0.5, draw_chart, reword, ..Options::default() };
        let handle = Outbox::start_with(store.clone(), self.notifiers(), sender, shutdown, options);
        self.life = Some(Life { store, handle, feedback, trigger });
    }

    fn notifiers(&self) -> Receivers {
        let each = self.receivers.iter();
        each.map(|(name, r)| (name.clone(), Arc::new(r.clone()) as Arc<dyn Notifier>)).collect()
    }

    fn life(&mut self) -> &mut Life {
        self.life.as_mut().unwrap()
    }

    /// Stops everything at once, as a kill does.
    async fn die(&mut self) {
        let life = self.life.take().unwrap();
        life.handle.task.abort();
        let _ = life.handle.task.await;
    }

    async fn commit(&mut self, effects: Vec<Effect>) {
        let at = Ts(START.0 + self.wall_ms + self.began.elapsed().as_millis() as i64);
        self.life().store.commit(&Commit { effects, at, ..Commit::default() }).await.unwrap();
    }

    async fn post(&mut self, notifications: impl IntoIterator<Item = Notification>) {
        self.commit(notifications.into_iter().map(|n| Effect::Notify(Box::new(n))).collect()).await;
    }

    async fn incident(&mut self, id: &str, state: State) {
        self.commit(vec![Effect::Incident(Box::new(incident(id, state)))]).await;
    }

    /// Commits an incident that is suppressed.
    async fn suppressed(&mut self, id: &str, state: State) {
        self.commit(vec![Effect::Incident(Box::new(suppressed(incident(id, state))))]).await;
    }

    /// The next outcome, recorded as the engine would.
    async fn feedback(&mut self) -> Feedback {
        loop {
            let feedback = self.any_feedback().await;
            if matches!(feedback.outcome, Outcome::Delivered | Outcome::Failed { .. }) {
                return feedback;
            }
        }
    }

    async fn any_feedback(&mut self) -> Feedback {
        let life = self.life();
        let feedback =
            tokio::time::timeout(PATIENCE, life.feedback.recv()).await.expect("feedback in time").unwrap();
        let reported = vec![feedback.idem_key.clone()];
        life.store.commit(&Commit { reported, ..Commit::default() }).await.unwrap();
        feedback
    }

    async fn states(&mut self, id: &str) -> Vec<DeliveryState> {
        self.life().store.deliveries(id).await.unwrap().into_iter().map(|d| d.state).collect()
    }
}

pub(crate) fn suppressed(record: IncidentRecord) -> IncidentRecord {
    let (why, by) = (SuppressionReason::Silenced, "01SILENCE".to_owned());
    IncidentRecord {
        suppression: Some(Suppression { why, by, until: None, words: "silenced".into() }),
        ..record
    }
}

fn transient() -> Answer {
    Answer::Fail(Failure::transient("503", false))
}

fn for_incident(mut n: Notification, incident: &str) -> Notification {
    n.idem_key = format!("{incident}/{}/{}", n.receiver, n.seq);
    incident.clone_into(&mut n.incident);
    incident.clone_into(&mut n.message.incident);
    n
}
