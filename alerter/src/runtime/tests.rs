use stepwatch_kit::shutdown::Trigger;
use stepwatch_model::Severity;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::effect::Action;
use stepwatch_respond::external::{Alert, LabelSet, Limits, PostedAlert};
use stepwatch_respond::matcher::Matcher;
use stepwatch_respond::silence::Wanted;
use stepwatch_wire::Event;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;
use crate::clock::wall;
use crate::store::DeliveryState;
use crate::store::tests::by_hand_at;
use crate::testing::{DEADLINE, rank_dead, step, wait_for};
use stepwatch_respond::config::ResponderConfig;

/// A runtime with a real store, driven by the test.
struct Rig {
    dir: TempDir,
    store: Store,
    handle: RuntimeHandle,
    cursors: BTreeMap<String, Cursor>,
    feeds: mpsc::Sender<Feed>,
    feedback: mpsc::Sender<Feedback>,
    metrics: RuntimeMetrics,
    stop: Trigger,
    task: JoinHandle<()>,
}

fn config(page_after_ms: i64) -> EngineConfig {
    let responder = ResponderConfig { receivers: vec!["chat".into()], ..ResponderConfig::default() };
    let mut config = EngineConfig::from(responder);
    // Incidents are examined individually here.
    config.responder.storm.enabled = false;
    Arc::make_mut(&mut config.detectors).rank_dead.page_after = Span::millis(page_after_ms);
    config
}

impl Rig {
    async fn start() -> Self {
        Self::on(tempfile::tempdir().unwrap(), config(0)).await
    }

    async fn on(dir: TempDir, config: EngineConfig) -> Self {
        Box::pin(Self::with_room(dir, config, MAX_PENDING_EFFECTS)).await
    }

    async fn with_room(dir: TempDir, config: EngineConfig, max_pending: usize) -> Self {
        Self::saying(dir, config, max_pending, Templates::default()).await
    }

    async fn saying(dir: TempDir, config: EngineConfig, max_pending: usize, templates: Templates) -> Self {
        let store = Store::open(dir.path().join("alerter.db")).await.unwrap();
        let metrics = RuntimeMetrics::default();
        let (feeds, feed_queue) = mpsc::channel(QUEUE);
        let (feedback, feedback_queue) = mpsc::channel(4);
        let inputs = Inputs {
            feeds: feed_queue,
            writes: mpsc::channel(1).1,
            feedback: feedback_queue,
            changes: mpsc::channel(1).0,
            templates: Arc::new(templates),
        };
        let (mut runtime, handle, cursors) =
            Runtime::restore(store.clone(), config, inputs, metrics.clone()).await.unwrap();
        runtime.max_pending = max_pending;
        let (stop, stopping) = Shutdown::manual();
        let task = tokio::spawn(runtime.run(stopping));
        Self { dir, store, handle, cursors, feeds, feedback, metrics, stop, task }
    }

    /// Stops the runtime in order, and starts another with the same store.
    async fn restart(self) -> Self {
        self.stop.fire();
        self.task.await.unwrap();
        self.store.close().await;
        Self::on(self.dir, config(0)).await
    }

    async fn feed(&self, lines: &[String]) {
        let events = lines.iter().map(|l| Event::parse(l.trim().as_bytes()).unwrap()).collect();
        let feed = Feed { source: "node1:9765".into(), news: News::Events(events), room: Taken::default() };
        tokio::time::timeout(DEADLINE, self.feeds.send(feed)).await.expect("room in time").unwrap();
    }

    async fn incident(&self) -> IncidentRecord {
        wait_for("an incident in the store", async || {
            self.store.incidents(&Filter::default()).await.unwrap().pop()
        })
        .await
    }

    async fn ask(&self, command: impl FnOnce(oneshot::Sender<Answer>) -> Command) -> Answer {
        let (reply, answer) = oneshot::channel();
        self.handle.commands.send(command(reply)).await.unwrap();
        tokio::time::timeout(DEADLINE, answer).await.expect("an answer in time").unwrap()
    }

    async fn ack(&self, incident: &str, by: &str) -> Answer {
        self.ask(|reply| Command::Act {
            incident: incident.into(),
            by: by.into(),
            action: IncidentAction::Ack,
            reply,
        })
        .await
    }

    /// Runs SQL from outside, to simulate a full disk or a broken table.
    async fn sql(&self, sql: &'static str) {
        let _busy = store::busy::Busy::now();
        by_hand_at(self.store.path(), sql).await.unwrap();
    }
}

/// The most batches that wait for the runtime here.
const QUEUE: usize = 4;

const BREAK: &str = "ALTER TABLE timeline RENAME TO away";
const MEND: &str = "ALTER TABLE away RENAME TO timeline";

/// Such a commit may wait: a run whose incidents change constantly must not occupy the loop.
#[test]
fn what_notifies_nobody_is_not_urgent() {
    let mut pending = Pending::default();
    let line = TimelineEntry::new("i", Ts(0), "alerter", "came back".into());
    pending.effects.push(Effect::Timeline(line));
    assert!(!pending.is_urgent());
    pending.effects.push(Effect::AlertOver(7));
    assert!(pending.is_urgent());
}

#[test]
fn kinds_are_numbered_as_they_are_listed() {
    assert!(Kind::ALL.iter().enumerate().all(|(i, kind)| *kind as usize == i));
}

#[tokio::test]
async fn nobody_is_woken_before_it_is_durable() {
    let rig = Rig::start().await;
    rig.feed(&[step(1, "r", 1), rank_dead(2, "r", 3)]).await;
    tokio::time::timeout(DEADLINE, rig.store.posted()).await.expect("the outbox to be woken");
    // All parts of the transaction are visible at that moment.
    let incidents = rig.store.incidents(&Filter::default()).await.unwrap();
    let [incident] = incidents.as_slice() else { panic!("{incidents:?}") };
    assert_eq!((incident.severity, incident.state), (Severity::Page, State::Open));
    let deliveries = rig.store.deliveries(&incident.id).await.unwrap();
    assert_eq!(deliveries.len(), 1);
    assert_eq!((deliveries[0].receiver.as_str(), deliveries[0].state), ("chat", DeliveryState::Pending));
    assert!(!rig.store.timeline(&incident.id).await.unwrap().is_empty());
    let cursors = rig.store.load_cursors().await.unwrap();
    assert_eq!(cursors, [("node1:9765".to_owned(), "b1:2".parse().unwrap())]);
    assert!(rig.store.load_state().await.unwrap().iter().any(|(key, _)| key == "run/r"));
    assert_eq!(rig.metrics.steps.get(), 1);
}

/// The templates of a receiver.
fn templates(receiver: &str, yaml: &str) -> Templates {
    let own = stepwatch_kit::config::parse("templates.yml", yaml).unwrap();
    let receiver = crate::notify::ReceiverConfig {
        name: receiver.into(),
        templates: Some(own),
        ..crate::notify::ReceiverConfig::default()
    };
    let mut errors = Vec::new();
    let templates = Templates::build(&crate::notify::TemplatesConfig::default(), &[receiver], &mut errors);
    assert_eq!(errors, Vec::<String>::new());
    templates
}

#[tokio::test]
async fn a_template_that_fails_costs_no_message_and_is_reported_once() {
    let words = "title: '{{ 1 // (run.name == \"test-run\")|int }}'\nsummary: 'own words: {{ run.name }}'\n";
    let templates = templates("chat", words);
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::saying(dir, config(0), MAX_PENDING_EFFECTS, templates).await;
    // A store that refuses the first commit gets the same message afterwards.
    rig.sql(BREAK).await;
    rig.feed(&[step(1, "r", 1), rank_dead(2, "r", 3)]).await;
    wait_for("a refusal", async || (rig.metrics.commit_failures.get() > 0).then_some(())).await;
    rig.sql(MEND).await;
    let incident = rig.incident().await;
    let deliveries = rig.store.deliveries(&incident.id).await.unwrap();
    let message = deliveries[0].message.clone().unwrap();
    assert!(message.title.starts_with("PAGE r: "), "the built-in title: {}", message.title);
    assert_eq!(message.summary, "own words: r");
    let timeline = rig.store.timeline(&incident.id).await.unwrap();
    let failures: Vec<_> = timeline.iter().filter(|e| e.what.contains("template")).collect();
    assert_eq!(failures.len(), 1, "{timeline:?}");
    assert_eq!(
        (failures[0].actor.as_str(), failures[0].what.as_str()),
        (
            "chat",
            "template receivers[0].templates.title failed, so that the built-in text is sent: line 1 of the template: \
             invalid operation: unable to calculate 1 // 0"
        )
    );
    let label = crate::metrics::ReceiverLabel { receiver: crate::metrics::Name("chat".into()) };
    assert_eq!(rig.metrics.template_failures.get_or_create(&label).get(), 1);
}

#[tokio::test]
async fn an_incident_whose_state_is_lost_does_not_stay_open_for_ever() {
    let rig = Rig::start().await;
    rig.feed(&[step(1, "r", 1), rank_dead(2, "r", 3)]).await;
    let before = rig.incident().await;
    // After an upgrade, the stored parts have another version.
    rig.sql("UPDATE engine_state SET value = X'00'").await;
    rig.stop.fire();
    rig.task.await.unwrap();
    rig.store.close().await;
    let rig = Rig::on(rig.dir, config(0)).await;
    let closed = wait_for("it to be closed", async || {
        rig.store.incidents(&Filter::default()).await.unwrap().pop().filter(|i| i.state == State::Resolved)
    })
    .await;
    assert_eq!(closed.id, before.id);
    let last = rig.store.timeline(&before.id).await.unwrap().pop().unwrap();
    assert!(last.what.contains("people are notified anew"), "{}", last.what);
}

#[tokio::test]
async fn a_restart_knows_what_was_known() {
    let rig = Rig::start().await;
    let lines = [step(1, "r", 1), rank_dead(2, "r", 3)];
    rig.feed(&lines).await;
    let before = rig.incident().await;
    // Without effects, only the periodic commit or the stop stores the step.
    rig.feed(&[step(3, "other", 1)]).await;
    wait_for("the step to be judged", async || (rig.metrics.steps.get() == 2).then_some(())).await;

    let rig = Box::pin(rig.restart()).await;
    assert_eq!(rig.cursors["node1:9765"].to_string(), "b1:3");
    let view = rig.handle.views.get();
    assert_eq!(view.open_incidents, 1);
    assert_eq!(view.runs.iter().map(|r| r.run.as_str()).collect::<Vec<_>>(), ["other", "r"]);
    // The same records again, as after a power failure that lost the cursor, change nothing.
    rig.feed(&lines).await;
    rig.ack(&before.id, "alice").await.expect("still open");
    assert_eq!(rig.store.incidents(&Filter::default()).await.unwrap().len(), 1);
    let triggers = rig.store.deliveries(&before.id).await.unwrap();
    assert_eq!(triggers.iter().filter(|d| d.action == Action::Trigger).count(), 1);
}

#[tokio::test]
async fn a_kill_leaves_state_and_cursor_together() {
    let rig = Rig::start().await;
    rig.feed(&[step(1, "r", 1)]).await;
    wait_for("the step to be judged", async || (rig.metrics.steps.get() == 1).then_some(())).await;
    rig.task.abort();
    let (state, cursors) = (rig.store.load_state().await.unwrap(), rig.store.load_cursors().await.unwrap());
    assert_eq!(state.iter().any(|(key, _)| key == "run/r"), !cursors.is_empty(), "{cursors:?}");
}

#[tokio::test]
async fn what_leads_to_nothing_is_kept_before_long() {
    let rig = Rig::start().await;
    rig.feed(&[step(7, "r", 1)]).await;
    let cursors = wait_for("the periodic commit", async || {
        Some(rig.store.load_cursors().await.unwrap()).filter(|c| !c.is_empty())
    })
    .await;
    assert_eq!(cursors[0].1.to_string(), "b1:7");
    let view = rig.handle.views.get();
    assert_eq!((view.runs[0].last_step, view.runs[0].world), (Some(1), Some(8)));
    assert_eq!(view.runs[0].sources, ["node1:9765"]);
}

#[tokio::test]
async fn a_persons_word_is_durable_when_it_is_answered_and_the_first_one_counts() {
    let rig = Rig::start().await;
    rig.feed(&[step(1, "r", 1), rank_dead(2, "r", 3)]).await;
    let id = rig.incident().await.id;

    let acked = rig.ack(&id, "alice").await.expect("open");
    let stored = rig.store.incident(&id).await.unwrap().unwrap();
    assert_eq!((stored.state, stored.acked_by.as_deref()), (State::Acknowledged, Some("alice")));
    assert_eq!(*acked, stored);

    let again = rig.ack(&id, "bob").await.expect("still open");
    assert_eq!(again.acked_by.as_deref(), Some("alice"));

    let resolve = |reply| Command::Act {
        incident: id.clone(),
        by: "bob".into(),
        action: IncidentAction::Resolve,
        reply,
    };
    assert_eq!(rig.ask(resolve).await.expect("open").state, State::Resolved);
    assert_eq!(rig.store.incident(&id).await.unwrap().unwrap().state, State::Resolved);
    assert_eq!(rig.ack(&id, "carol").await, None);
    assert_eq!(rig.ack("no such incident", "carol").await, None);
}

#[tokio::test]
async fn people_are_heard_after_the_last_reader_has_gone() {
    let mut rig = Rig::start().await;
    rig.feed(&[step(1, "r", 1), rank_dead(2, "r", 3)]).await;
    let id = rig.incident().await.id;
    (rig.feeds, _) = mpsc::channel(1);
    for _ in 0..3 {
        assert!(rig.ack(&id, "alice").await.is_some());
    }
    assert!(!rig.task.is_finished());
}

#[tokio::test]
async fn time_alone_raises_an_incident() {
    let rig = Rig::on(tempfile::tempdir().unwrap(), config(150)).await;
    rig.feed(&[step(1, "r", 1), rank_dead(2, "r", 3)]).await;
    let id = rig.incident().await.id;
    wait_for("the page", async || {
        let record = rig.store.incident(&id).await.unwrap().unwrap();
        (record.severity == Severity::Page).then_some(())
    })
    .await;
}

#[tokio::test]
async fn outcomes_of_messages_come_back() {
    let rig = Rig::start().await;
    rig.feed(&[step(1, "r", 1), rank_dead(2, "r", 3)]).await;
    let id = rig.incident().await.id;
    let idem_key = rig.store.deliveries(&id).await.unwrap().remove(0).idem_key;
    let (incident, receiver) = (id.clone(), "chat".to_owned());
    let outcome = Outcome::Delivered;
    rig.feedback
        .send(Feedback { idem_key, incident, receiver, action: Action::Trigger, outcome })
        .await
        .unwrap();
    wait_for("the line in the timeline", async || {
        let timeline = rig.store.timeline(&id).await.unwrap();
        timeline.iter().any(|t| t.actor == "chat" && t.what.contains("delivered")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_store_that_refuses_is_asked_again_and_nothing_is_lost() {
    let rig = Rig::start().await;
    rig.sql(BREAK).await;
    rig.feed(&[step(1, "r", 1), rank_dead(2, "r", 3)]).await;
    wait_for("refusals", async || (rig.metrics.commit_failures.get() >= 2).then_some(())).await;
    assert!(rig.metrics.pending_effects.get() > 0);
    assert_eq!(rig.store.incidents(&Filter::default()).await.unwrap(), []);
    assert_eq!(rig.store.load_cursors().await.unwrap(), []);

    rig.sql(MEND).await;
    let incident = rig.incident().await;
    assert_eq!(rig.store.deliveries(&incident.id).await.unwrap().len(), 1);
    wait_for("the end of the alarm", async || (rig.metrics.pending_effects.get() == 0).then_some(())).await;
}

#[tokio::test]
async fn an_acknowledgement_that_is_not_durable_is_not_answered() {
    let rig = Rig::start().await;
    rig.feed(&[step(1, "r", 1), rank_dead(2, "r", 3)]).await;
    let id = rig.incident().await.id;
    rig.sql(BREAK).await;
    let (reply, mut answer) = oneshot::channel();
    rig.handle
        .commands
        .send(Command::Act { incident: id, by: "alice".into(), action: IncidentAction::Ack, reply })
        .await
        .unwrap();
    wait_for("refusals", async || (rig.metrics.commit_failures.get() >= 2).then_some(())).await;
    assert!(answer.try_recv().is_err());
    rig.sql(MEND).await;
    let record = tokio::time::timeout(DEADLINE, answer).await.expect("in time").unwrap().unwrap();
    assert_eq!(record.acked_by.as_deref(), Some("alice"));
}

#[tokio::test]
async fn too_much_undecided_stops_the_intake_until_the_store_takes_it() {
    let rig = Rig::with_room(tempfile::tempdir().unwrap(), config(0), 50).await;
    rig.sql(BREAK).await;
    // Each run opens an incident with a few effects.
    let many = (0..50).flat_map(|i| {
        let run = format!("run-{i:02}");
        [step(2 * i + 1, &run, 1), rank_dead(2 * i + 2, &run, 3)]
    });
    rig.feed(&many.collect::<Vec<_>>()).await;
    wait_for("a refusal", async || (rig.metrics.commit_failures.get() >= 1).then_some(())).await;
    for i in 0..QUEUE {
        rig.feed(&[step(101 + i as u64, "late", 1 + i as i64)]).await;
    }
    let refusals = rig.metrics.commit_failures.get();
    wait_for("more", async || (rig.metrics.commit_failures.get() >= refusals + 2).then_some(())).await;
    // The loop continues, and leaves the rest in the queue.
    assert_eq!((rig.metrics.steps.get(), rig.feeds.capacity()), (50, 0));

    rig.sql(MEND).await;
    wait_for("the rest to be judged", async || (rig.metrics.steps.get() == 50 + QUEUE as u64).then_some(()))
        .await;
    assert_eq!(rig.store.incidents(&Filter::default()).await.unwrap().len(), 50);
}

/// The audit entry is in the transaction of its change, so that both or neither are stored.
#[tokio::test]
async fn what_somebody_did_and_that_they_did_it_are_kept_together() {
    use crate::audit::{Door, Outcome};
    let rig = Rig::start().await;
    rig.feed(&[step(1, "r", 1), rank_dead(2, "r", 3)]).await;
    let incident = rig.incident().await.id;
    let log = async || {
        let entries = rig.store.audit(&store::AuditFilter::default()).await.unwrap();
        entries.into_iter().map(|a| (a.entry.action, a.entry.outcome)).collect::<Vec<_>>()
    };
    let ack = |id: &str, reply| {
        let command = Box::new(Command::Act {
            incident: id.into(),
            by: "api:ops".into(),
            action: IncidentAction::Ack,
            reply,
        });
        Command::Audited { entry: Box::new(Entry::new(Door::Api, "api:ops", "ack", id)), command }
    };
    rig.sql(BREAK).await;
    let (reply, answer) = oneshot::channel();
    rig.handle.commands.send(ack(&incident, reply)).await.unwrap();
    wait_for("the refusal", async || (rig.metrics.commit_failures.get() > 0).then_some(())).await;
    assert_eq!(log().await, []);
    assert_eq!(rig.incident().await.state, State::Open);
    rig.sql(MEND).await;
    assert!(tokio::time::timeout(DEADLINE, answer).await.unwrap().unwrap().is_some());
    assert_eq!(rig.incident().await.state, State::Acknowledged);
    assert_eq!(log().await, [("ack".to_owned(), Outcome::Done)]);
    // A repeated request is recorded as one that changed nothing.
    rig.ask(|reply| ack("nonsense", reply)).await;
    wait_for("the entry", async || (log().await.len() == 2).then_some(())).await;
    assert_eq!(log().await[0].1, Outcome::Unchanged);
}

/// The wall clock was set back by an hour, and the process was restarted.
#[tokio::test]
async fn a_clock_that_is_set_back_takes_no_time_back_and_outsiders_are_understood() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("alerter.db")).await.unwrap();
    let hour = Span::secs(3600);
    let touched_at = wall() + hour;
    store.touch(touched_at).await.unwrap();
    store.close().await;
    let rig = Rig::on(dir, config(0)).await;
    assert!(rig.handle.clock.now() >= touched_at, "what was due in a minute is due in a minute");

    // An alert that fires for five more minutes, and a silence of half an hour, by the wall clock.
    let (ends, quiet_until) = (wall() + Span::secs(300), wall() + Span::secs(1800));
    let labels =
        |name: &str| [("alertname", name), ("severity", "critical")].map(|(n, v)| (n.into(), v.into()));
    let alert = |name: &str| {
        Alert::new(labels(name).into_iter().collect(), LabelSet::default(), wall(), "", &Limits::default())
            .unwrap()
    };
    let wanted = Box::new(Wanted {
        id: None,
        matchers: vec![Matcher::parse("alertname=\"Quiet\"").unwrap()],
        starts_at: Some(wall()),
        ends_at: quiet_until,
        created_by: "ann".into(),
        comment: "new disks".into(),
        expire_on_resolve: false,
    });
    let (reply, silenced) = oneshot::channel();
    let command = Outside::Silence { wanted, fresh: "s".into(), reply };
    rig.handle.commands.send(Command::Outside(command)).await.unwrap();
    let silence = silenced.await.unwrap().unwrap();
    let near = |at: Ts, want: Ts| (at - want).0.abs() < 60_000;
    assert!(
        near(silence.ends_at, quiet_until),
        "answered in the wall's time: {} {quiet_until}",
        silence.ends_at
    );
    let alerts =
        ["Loud", "Quiet"].map(|name| PostedAlert { alert: alert(name).into(), ends_at: Some(ends) }).to_vec();
    let (reply, heard) = oneshot::channel();
    rig.handle.alerts.send(AlertBatch { alerts, entry: None, reply }).await.unwrap();
    heard.await.unwrap();

    let open = rig.store.incidents(&Filter::default()).await.unwrap();
    let states: Vec<_> = open.iter().map(|r| (r.signal.as_str(), r.state, r.suppression.is_some())).collect();
    assert_eq!(states.len(), 2, "{states:?}");
    assert!(states.contains(&("Loud", State::Open, false)), "{states:?}");
    assert!(states.contains(&("Quiet", State::Open, true)), "{states:?}");
    let read_model = &rig.handle.read_model;
    assert!(near(read_model.active(wall())[0].ends_at, quiet_until));
    assert!(
        read_model.alerts(wall()).iter().all(|f| near(f.ends_at, ends)),
        "{:?}",
        read_model.alerts(wall())
    );
    assert_eq!(read_model.alerts(wall()).len(), 2);
}

/// A page that the store refuses is sent from memory after ten seconds, with a note about that, and
/// recorded as sent.
#[tokio::test(start_paused = true)]
async fn a_page_that_the_store_refuses_is_handed_over_and_recorded_as_sent() {
    let rig = Rig::start().await;
    rig.sql(BREAK).await;
    rig.feed(&[step(1, "r", 1), rank_dead(2, "r", 3)]).await;
    wait_for("a refusal", async || rig.store.refused_for()).await;
    let due = || rig.store.unrecorded_due(Ts(i64::MAX)).0;
    assert_eq!(due(), []);
    // The pages about the rank and about the store itself.
    let lanes = wait_for("both pages", async || Some(due()).filter(|lanes| lanes.len() == 2)).await;
    let waited = rig.store.refused_for().unwrap();
    assert!(waited >= FAIL_OPEN_AFTER && waited < FAIL_OPEN_AFTER + Duration::from_secs(1), "{waited:?}");
    let sent = Ts(wall().0 + 3_600_000);
    let mut created = BTreeMap::new();
    let means = store::Means { wakes: true, numbered: false };
    for lane in &lanes {
        let held = rig.store.begin_unrecorded(lane, means, Ts(i64::MAX)).await.unwrap().held;
        let n = held.notification;
        assert_eq!(held.created_at, n.message.at, "when it was decided, not when it was handed over");
        created.insert(n.incident.clone(), held.created_at);
        let summary = &n.message.summary;
        assert!(summary.contains("Not recorded: the store refuses writes since 20"), "{summary}");
        let key = format!("{}/chat/1", n.incident);
        assert_eq!(
            (n.action, n.receiver.as_str(), n.idem_key.as_str()),
            (Action::Trigger, "chat", key.as_str())
        );
        rig.store.end_unrecorded(&n, &store::DeliveryOutcome::Delivered, None, sent);
    }

    rig.sql(MEND).await;
    rig.incident().await;
    let incidents = rig.store.incidents(&Filter::default()).await.unwrap();
    let incident = incidents.iter().find(|i| i.run == "r").unwrap();
    assert!(lanes.iter().any(|(_, id)| *id == incident.id));
    let deliveries = rig.store.deliveries(&incident.id).await.unwrap();
    assert_eq!(deliveries.iter().map(|d| d.state).collect::<Vec<_>>(), [DeliveryState::Delivered]);
    assert_eq!(deliveries[0].created_at, created[&incident.id]);
    let done: jiff::Timestamp = deliveries[0].done_at.as_ref().unwrap().parse().unwrap();
    assert_eq!(done.as_millisecond(), sent.0);
    let timeline = rig.store.timeline(&incident.id).await.unwrap();
    assert!(
        timeline.iter().any(|e| e.what.starts_with("trigger sent from memory, not recorded")),
        "{timeline:?}"
    );
}

#[test]
fn what_waits_is_made_fewer_at_the_cost_of_history_and_of_nothing_else() {
    use crate::store::tests::{incident, said};
    let mut pending = Pending::default();
    let n = |seq, action| Effect::Notify(Box::new(crate::notify::tests::page("chat", seq, action)));
    for step in 0..10 {
        pending.effects.push(Effect::Incident(Box::new(incident("01", State::Open))));
        pending.effects.push(said("01", step, "more of it"));
        pending.effects.push(n(2 + step as u32, Action::Update));
    }
    pending.effects.push(n(1, Action::Trigger));
    assert_eq!(pending.compact(8), 5);
    let count = |is: fn(&Effect) -> bool| pending.effects.iter().filter(|e| is(e)).count();
    assert_eq!(count(|e| matches!(e, Effect::Incident(_))), 1);
    assert_eq!(count(|e| matches!(e, Effect::Notify(_))), 2, "the call, and the newest news");
    assert_eq!(count(|e| matches!(e, Effect::Timeline(_))), 5);
    assert_eq!(pending.compact(0), 5, "no more than there are");
}
