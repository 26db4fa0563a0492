//! Incidents of external alerts.

use super::*;
use crate::external::{Alert, Limits, PostedAlert};
use crate::message;

/// An alert that fires for a day.
fn alert(w: &World, labels: &[(&str, &str)]) -> PostedAlert {
    let labels = labels.iter().map(|(n, v)| (Box::from(*n), Box::from(*v))).collect();
    let alert = Alert::new(labels, [].into_iter().collect(), w.now, "", &Limits::default()).unwrap();
    PostedAlert { alert: alert.into(), ends_at: Some(w.now + Span::secs(86_400)) }
}

fn fires(w: &mut World, labels: &[(&str, &str)]) {
    let posted = [alert(w, labels)];
    w.input(Input::Alerts { posted: &posted });
}

/// A Prometheus that gets a new Alertmanager sends alerts that have fired for hours.
#[test]
fn an_alert_stands_since_its_own_start() {
    let mut w = World::new(two_levels());
    let labels = [("alertname", "NodeDown"), ("severity", "critical"), ("node", "n1")];
    let mut posted = alert(&w, &labels);
    let earlier = Alert { starts_at: Ts(w.now.0 - 7_200_000), ..(*posted.alert).clone() };
    posted.alert = earlier.into();
    w.input(Input::Alerts { posted: &[posted] });
    let facts = &w.sent[0].message.facts;
    assert!(facts.iter().any(|f| f.label == "Since" && f.text == "2h ago"), "{facts:?}");
}

/// Receivers know its calls by the earlier keys, although nothing of it was stored.
#[test]
fn an_alert_that_is_posted_again_after_a_crash_is_the_same_incident() {
    let labels = [("alertname", "NodeDown"), ("severity", "critical"), ("node", "n1")];
    let mut w = World::new(two_levels());
    let began = w.now;
    let post = |w: &mut World, ends_at: Ts| {
        let mut posted = alert(w, &labels);
        posted.alert = Alert { starts_at: began, ..(*posted.alert).clone() }.into();
        posted.ends_at = Some(ends_at);
        w.input(Input::Alerts { posted: &[posted] });
        w.sent.last().unwrap().incident.clone()
    };
    w.forward(Span::secs(90));
    let ends_at = w.now + Span::secs(86_400);
    let id = post(&mut w, ends_at);
    let mut crashed = World::new(two_levels());
    crashed.forward(Span::secs(600));
    fires(&mut crashed, &[("alertname", "DiskFull"), ("severity", "critical")]);
    assert_eq!(post(&mut crashed, ends_at), id);
    // An alerter whose state could not be read does not know which ids were used.
    let mut upgraded = World::new(two_levels());
    let damaged = [("flap_history".to_owned(), vec![0])];
    let (engine, unusable) = Responder::restore(two_levels(), damaged);
    assert_eq!(unusable, ["flap_history"]);
    upgraded.engine = engine;
    upgraded.forward(Span::secs(600));
    assert_ne!(post(&mut upgraded, ends_at), id);
    // An alert that was over in between is another incident, with keys that were never used.
    let over = w.now;
    post(&mut w, over);
    w.forward(Span::secs(1800));
    assert!(w.records[&id].resolved_at.is_some());
    let again = post(&mut w, ends_at);
    assert_ne!(again, id);
    // An alert that began long ago does not get the id of an incident that was forgotten.
    w.forward(Span::secs(40_000));
    let over = w.now;
    post(&mut w, over);
    w.forward(Span::secs(7200));
    let ends_at = w.now + Span::secs(86_400);
    let third = post(&mut w, ends_at);
    assert!(third != id && third != again);
}

/// The titles of the notifications, and whether a fact or a title contains steps.
fn titles(w: &mut World) -> Vec<(String, bool)> {
    let of = |n: Notification| {
        let steps = n.message.facts.iter().any(|f| f.label.contains("step"))
            || n.message.details.evidence.step.is_some()
            || n.message.title.contains("step");
        (n.message.title, steps)
    };
    core::mem::take(&mut w.sent).into_iter().map(of).collect()
}

#[test]
fn an_alert_is_called_by_its_name_and_has_no_step() {
    for (labels, title) in [
        (&[("alertname", "DiskFull")] as &[_], "PAGE: DiskFull"),
        (&[("alertname", "DiskFull"), ("node", "n1")], "PAGE n1: DiskFull"),
        (&[("alertname", "Disk\n\tfull"), ("run", "r")], "PAGE r: Disk full"),
        (&[("node", "n1")], "PAGE n1: Prometheus alert"),
        (&[("cluster", "a")], "PAGE: Prometheus alert"),
        (&[("alertname", "NoStep"), ("kind", "hang"), ("run", "r")], "PAGE r: hang"),
    ] {
        let mut w = World::new(two_levels());
        fires(&mut w, &[labels, &[("severity", "critical")]].concat());
        assert_eq!(titles(&mut w), [(title.to_owned(), false)], "{labels:?}");
    }
}

/// Only the author of the alerting rule knows what it is about, and what that costs.
#[test]
fn an_alert_says_nothing_of_gpus_checkpoints_and_cost() {
    let mut w = World::new(ResponderConfig { cost_per_gpu_hour: Some(2.5), ..two_levels() });
    fires(&mut w, &[("alertname", "DiskFull"), ("severity", "critical"), ("run", "r")]);
    let m = w.sent.remove(0).message;
    let labels: Vec<_> = m.facts.iter().map(|f| f.label.as_str()).collect();
    assert!(m.facts.iter().all(|f| !f.text.contains("GPU")), "{:?}", m.facts);
    assert!(!labels.contains(&"Cost") && !labels.contains(&"Last good checkpoint"), "{labels:?}");
    assert_eq!((m.details.cost, m.details.checkpoint), (None, None));
}

#[test]
fn an_alert_is_notified_with_the_text_of_its_rule() {
    let said = |w: &World, labels: &[(&str, &str)], annotations: &[(&str, &str)]| {
        let set =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(n, v)| (Box::from(*n), Box::from(*v))).collect();
        let alert = Alert::new(set(labels), set(annotations), w.now, "", &Limits::default()).unwrap();
        PostedAlert { alert: alert.into(), ends_at: Some(w.now + Span::secs(86_400)) }
    };
    let rule = [
        ("summary", "/data is 98 % full"),
        ("description", "It fills up within the hour.\nMove the checkpoints."),
        ("runbook_url", " https://wiki.example.com/disk "),
    ];
    let of = |labels: &[(&str, &str)], annotations: &[(&str, &str)]| {
        let mut w = World::new(two_levels());
        let posted = [said(&w, &[labels, &[("severity", "critical")]].concat(), annotations)];
        w.input(Input::Alerts { posted: &posted });
        let m = w.sent.remove(0).message;
        let fact = m.facts.iter().find(|f| f.label == message::DESCRIPTION).map(|f| f.text.clone());
        let runbook = m.links.iter().find(|l| l.text == message::RUNBOOK).map(|l| l.href.clone());
        let expected = m.facts.iter().any(|f| f.text.contains("expected"));
        (m.summary, fact.unwrap_or_default(), runbook.unwrap_or_default(), expected)
    };
    let disk = [("alertname", "DiskFull"), ("node", "n1")];
    let (summary, description, runbook, expected) = of(&disk, &rule);
    assert_eq!((summary.as_str(), expected), ("DiskFull: /data is 98 % full.", false));
    assert_eq!(description, rule[1].1);
    assert_eq!(runbook, "https://wiki.example.com/disk");
    // A repeated text is left out, a long text is cut, and only web addresses pass.
    let (summary, description, runbook, _) = of(&disk, &[rule[1], ("runbook_url", "javascript:alert(1)")]);
    assert!(summary.contains("fills up") && description.is_empty(), "{summary} {description}");
    assert!(runbook.ends_with("/prometheus_alert.md"), "{runbook}");
    let long = "x".repeat(4000);
    let (_, description, _, _) = of(&disk, &[rule[0], ("description", &long)]);
    assert_eq!(description.chars().count(), 1001);
    // An alert about what Stepwatch detects itself has Stepwatch's runbook.
    let (_, description, runbook, _) = of(&[("alertname", "Stuck"), ("kind", "hang"), ("run", "r")], &rule);
    assert!(description.is_empty() && runbook.ends_with("/hang.md"), "{description} {runbook}");
}

/// Posts an alert with a token that is limited to this run.
fn fires_within(w: &mut World, labels: &[(&str, &str)], run: &str) {
    let mut posted = alert(w, labels);
    let within = [(Box::from("run"), Box::from(run))].into_iter().collect();
    posted.alert = Alert::clone(&posted.alert).within(within).into();
    w.input(Input::Alerts { posted: &[posted] });
}

fn is_suppressed(w: &World, run: &str, kind: Kind) -> bool {
    w.records[&w.id(run, kind)].suppression.is_some()
}

const DEAD: &[(&str, &str)] =
    &[("alertname", "Dead"), ("kind", "node_fault"), ("severity", "critical"), ("node", "n5")];
const LOST: &[(&str, &str)] =
    &[("alertname", "Lost"), ("kind", "gpu_fault"), ("severity", "warning"), ("node", "n5")];

#[test]
fn a_token_limited_to_some_runs_suppresses_no_other() {
    let mut w = World::new(two_levels());
    fires_within(&mut w, &[DEAD, &[("run", "llama-9")]].concat(), "llama-9");
    fires(&mut w, &[LOST, &[("run", "mistral")]].concat());
    fires(&mut w, &[LOST, &[("run", "llama-9")]].concat());
    let suppressed = |w: &World| ["mistral", "llama-9"].map(|run| is_suppressed(w, run, Kind::GpuFault));
    assert_eq!(suppressed(&w), [false, true]);
    w.restore();
    w.reload();
    assert_eq!(suppressed(&w), [false, true]);
    // Posted without limits, it explains faults of the whole node.
    fires(&mut w, &[DEAD, &[("run", "llama-9")]].concat());
    assert_eq!(suppressed(&w), [true; 2]);
}

#[test]
fn what_is_posted_within_limits_becomes_one_with_nothing_beyond_them() {
    let mut w = World::new(two_levels());
    w.said_of(Scope::Node("n5".into()), "mistral", Change::Raise, Kind::NodeFault, Severity::Ticket);
    fires_within(&mut w, &[DEAD, &[("run", "llama-9")]].concat(), "llama-9");
    assert_eq!(w.records.len(), 2, "{:#?}", w.history);
    assert_eq!(w.records[&w.id("mistral", Kind::NodeFault)].severity, Severity::Ticket);
    fires_within(&mut w, &[LOST, &[("run", "llama-9")]].concat(), "llama-9");
    w.said_of(Scope::Node("n5".into()), "", Change::Raise, Kind::GpuFault, Severity::Ticket);
    assert!(!is_suppressed(&w, "", Kind::GpuFault), "{:#?}", w.history);
}

#[test]
fn the_same_labels_posted_with_and_without_limits_are_two_alerts() {
    let mut w = World::new(two_levels());
    let labels = [DEAD, &[("run", "llama-9")]].concat();
    let free = alert(&w, &labels).alert;
    let within = |value: &str| {
        let within = [(Box::from("run"), Box::from(value))].into_iter().collect();
        Alert::clone(&free).within(within).fingerprint
    };
    assert!(free.fingerprint != within("llama-9") && within("llama-9") != within("llama-8"));
    fires_within(&mut w, &labels, "llama-9");
    fires(&mut w, &labels);
    assert_eq!(w.engine.alerts().count(), 2);
}

const DOWN: &[(&str, &str)] = &[("alertname", "NodeDown"), ("severity", "critical")];

fn down(w: &mut World, node: &str) {
    fires(w, &[DOWN, &[("node", node)]].concat());
}

/// The actions and reasons of the notifications.
fn words(w: &mut World) -> Vec<(Action, String)> {
    core::mem::take(&mut w.sent).into_iter().map(|n| (n.action, n.message.reason)).collect()
}

#[test]
fn another_node_in_a_group_is_notified_and_pages_those_who_knew_of_the_first_only() {
    let mut w = World::new(two_levels());
    down(&mut w, "n1");
    assert_eq!(words(&mut w).len(), 1);
    w.forward(Span::secs(60));
    let id = w.records.keys().next().unwrap().clone();
    down(&mut w, "n2");
    w.forward(Span::secs(60));
    let notified = words(&mut w);
    assert!(notified[0].0 == Action::Update && notified[0].1.starts_with("also NodeDown"), "{notified:?}");
    assert_eq!(w.records[&id].suspects.len(), 2, "{:?}", w.records[&id].suspects);
    w.input(Input::Act { incident: &id, by: "sam", action: &IncidentAction::Ack });
    w.forward(Span::secs(60));
    words(&mut w);
    // The same alert again, also when it is posted with a higher severity.
    down(&mut w, "n2");
    fires(&mut w, &[("alertname", "NodeDown"), ("severity", "page"), ("node", "n2")]);
    w.forward(Span::secs(60));
    assert_eq!(calls(&mut w), 0, "{:#?}", w.history);
    down(&mut w, "n3");
    let notified = words(&mut w);
    assert!(
        notified[0].0 == Action::Trigger && notified[0].1.starts_with("after it was acknowledged: NodeDown"),
        "{notified:?}"
    );
}

#[test]
fn what_is_restored_is_no_news() {
    let mut w = World::new(two_levels());
    down(&mut w, "n1");
    down(&mut w, "n2");
    let id = w.records.keys().next().unwrap().clone();
    w.input(Input::Act { incident: &id, by: "sam", action: &IncidentAction::Ack });
    let stored: Vec<_> = w.engine.alerts().all().cloned().collect();
    w.restore();
    w.engine.restore_alerts(w.now, stored, &NoDirectory);
    w.forward(Span::secs(600));
    words(&mut w);
    for node in ["n1", "n2"] {
        up(&mut w, node);
        w.forward(Span::secs(20));
        down(&mut w, node);
    }
    assert_eq!(calls(&mut w), 0, "{:#?}", w.history);
    fires(&mut w, &[DOWN, &[("node", "n2"), ("device", "sda")]].concat());
    assert_eq!(calls(&mut w), 1, "{:#?}", w.history);
}

fn up(w: &mut World, node: &str) {
    let mut posted = alert(w, &[DOWN, &[("node", node)]].concat());
    posted.ends_at = Some(w.now);
    w.input(Input::Alerts { posted: &[posted] });
}

fn calls(w: &mut World) -> usize {
    words(w).iter().filter(|(action, _)| *action == Action::Trigger).count()
}

#[test]
fn an_alert_that_comes_back_is_not_another() {
    let mut w = World::new(two_levels());
    down(&mut w, "n1");
    let id = w.records.keys().next().unwrap().clone();
    w.input(Input::Act { incident: &id, by: "sam", action: &IncidentAction::Ack });
    assert_eq!(calls(&mut w), 1);
    for _ in 0..9 {
        up(&mut w, "n1");
        w.forward(Span::secs(20));
        down(&mut w, "n1");
        w.forward(Span::secs(20));
    }
    assert_eq!((calls(&mut w), w.records.len(), w.records[&id].state), (0, 1, State::Acknowledged));
    down(&mut w, "n2");
    assert_eq!(calls(&mut w), 1);
}

#[test]
fn an_alert_about_what_is_known_calls_nobody() {
    let mut w = World::new(two_levels());
    w.said_of(Scope::Node("n5".into()), "", Change::Raise, Kind::NodeFault, Severity::Page);
    let id = w.records.keys().next().unwrap().clone();
    w.input(Input::Act { incident: &id, by: "sam", action: &IncidentAction::Ack });
    assert_eq!(calls(&mut w), 1);
    fires(&mut w, DEAD);
    w.forward(Span::secs(600));
    assert_eq!((calls(&mut w), w.records.len()), (0, 1), "{:#?}", w.history);
}

const FULL: &[(&str, &str)] = &[("alertname", "DiskFull"), ("cluster", "a"), ("severity", "critical")];

/// All alerts of a cluster are one incident.
fn by(labels: &[&str]) -> World {
    let mut config = two_levels();
    config.alerts.group_by = labels.iter().map(|l| (*l).to_owned()).collect();
    World::new(config)
}

fn only(w: &World) -> IncidentRecord {
    assert_eq!(w.records.len(), 1, "{:#?}", w.history);
    w.records.values().next().unwrap().clone()
}

fn acked(w: &mut World) -> String {
    let id = only(w).id;
    w.input(Input::Act { incident: &id, by: "sam", action: &IncidentAction::Ack });
    w.forward(Span::secs(60));
    words(w);
    id
}

#[test]
fn another_outage_in_an_acknowledged_group_rings_whatever_sets_it_apart() {
    for other in [("instance", "b"), ("service", "pay"), ("device", "sdb")] {
        let mut w = by(&["alertname", "cluster"]);
        fires(&mut w, &[FULL, &[("service", "checkout")]].concat());
        acked(&mut w);
        fires(&mut w, &[FULL, &[other]].concat());
        let notified = core::mem::take(&mut w.sent);
        assert_eq!(notified.len(), 1, "{:#?}", w.history);
        let (n, m) = (&notified[0], &notified[0].message);
        assert_eq!((n.action, n.page, m.because), (Action::Trigger, true, Reason::News));
        let apart = format!("{}={}", other.0, other.1);
        assert!(
            m.reason.starts_with("after it was acknowledged: DiskFull") && m.reason.contains(&apart),
            "{}",
            m.reason
        );
        assert!(m.title.starts_with("PAGE") && m.title.ends_with("DiskFull +1 new"), "{}", m.title);
        assert_eq!(only(&w).state, State::Open);
    }
}

#[test]
fn another_outage_in_an_acknowledged_group_escalates_anew() {
    let mut w = by(&["alertname", "cluster"]);
    fires(&mut w, FULL);
    w.forward(Span::secs(400));
    assert_eq!(only(&w).level, 2);
    acked(&mut w);
    fires(&mut w, &[FULL, &[("device", "sdb")]].concat());
    words(&mut w);
    w.forward(Span::secs(301));
    let notified = words(&mut w);
    assert_eq!(notified[0].1, "escalated to level 2: no answer for 5m", "{notified:?}");
}

#[test]
fn what_was_acknowledged_keeps_its_name() {
    let mut w = by(&["cluster"]);
    fires(&mut w, FULL);
    let id = acked(&mut w);
    // A ticket beside it calls nobody and does not change the title either.
    fires(&mut w, &[("alertname", "Slow"), ("cluster", "a"), ("severity", "warning")]);
    w.forward(Span::secs(60));
    assert_eq!((calls(&mut w), only(&w).title()), (0, "DiskFull +1 new".to_owned()));
    fires(&mut w, &[("alertname", "NetDown"), ("cluster", "a"), ("severity", "critical")]);
    let notified = words(&mut w);
    assert_eq!((notified[0].0, only(&w).title()), (Action::Trigger, "DiskFull +2 new".to_owned()));
    assert!(notified[0].1.starts_with("after it was acknowledged: NetDown"), "{notified:?}");
    w.input(Input::Act { incident: &id, by: "sam", action: &IncidentAction::Ack });
    assert_eq!(only(&w).title(), "DiskFull and 2 more");
    w.restore();
    w.input(Input::Act { incident: &id, by: "sam", action: &IncidentAction::Note("x".into()) });
    fires(&mut w, &[("alertname", "Oom"), ("cluster", "a"), ("severity", "critical")]);
    assert_eq!(only(&w).title(), "DiskFull and 2 more +1 new");
}

#[test]
fn an_alert_without_a_node_that_comes_and_goes_rings_once() {
    let mut w = by(&["alertname", "cluster"]);
    let pay = [FULL, &[("service", "pay")]].concat();
    fires(&mut w, &pay);
    acked(&mut w);
    for _ in 0..5 {
        let mut over = alert(&w, &pay);
        over.ends_at = Some(w.now);
        w.input(Input::Alerts { posted: &[over] });
        w.forward(Span::secs(20));
        fires(&mut w, &pay);
        w.forward(Span::secs(20));
    }
    assert_eq!((calls(&mut w), only(&w).title()), (0, "DiskFull".to_owned()), "{:#?}", w.history);
}

/// Findings of Stepwatch's own detectors are grouped by their labels, and absorb as little.
#[test]
fn another_fault_in_an_acknowledged_group_rings() {
    let mut w = World::new(ResponderConfig { group_by: vec!["run".into()], ..two_levels() });
    let id = w.raise("r", Kind::LossSpike, Severity::Page);
    w.input(Input::Act { incident: &id, by: "sam", action: &IncidentAction::Ack });
    w.forward(Span::secs(60));
    words(&mut w);
    w.said("r", Change::Raise, Kind::Hang, Severity::Page);
    let notified = core::mem::take(&mut w.sent);
    assert_eq!(notified.iter().filter(|n| n.action == Action::Trigger).count(), 1, "{:#?}", w.history);
    let m = &notified.last().unwrap().message;
    assert!(m.title.contains("loss spike +1 new"), "{}", m.title);
    assert_eq!(m.reason, "after it was acknowledged: why");
    // The fault is known now.
    w.input(Input::Act { incident: &id, by: "sam", action: &IncidentAction::Ack });
    w.said("r", Change::Clear, Kind::Hang, Severity::Page);
    w.said("r", Change::Raise, Kind::Hang, Severity::Page);
    w.forward(Span::secs(60));
    assert_eq!((calls(&mut w), w.records.len()), (0, 1), "{:#?}", w.history);
}

/// The labels that a run declares come from its user, and must not absorb another user's page.
#[test]
fn runs_of_two_users_are_never_one_group() {
    let mut w = World::new(ResponderConfig { group_by: vec!["owner".into()], ..two_levels() });
    let mut breaks = |run: &str, uid: u32| {
        let labels = [("owner".to_owned(), "ann".to_owned())].into();
        let summary = RunSummary { name: run.into(), gpus: Some(8), labels, ..RunSummary::default() };
        let context = Context {
            origin: Some(stepwatch_model::Origin::of_exporter("n1".into(), Some(uid))),
            ..Context::new(Scope::Run(run.into()), summary, BTreeSet::new(), w.now)
        };
        w.said_by(&context, Change::Raise, Kind::Hang, Severity::Page);
        let of: BTreeSet<_> = w.records.values().map(|r| r.run.clone()).collect();
        of.into_iter().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(breaks("evil", 1001), "evil");
    assert_eq!(breaks("hers", 1000), "evil hers");
    assert_eq!(breaks("hers-too", 1000), "evil hers", "her own are one");
}

#[test]
fn an_alert_that_joins_by_its_labels_counts_once() {
    let mut w = World::new(ResponderConfig { group_by: vec!["cluster".into()], ..two_levels() });
    fires(&mut w, FULL);
    acked(&mut w);
    fires(&mut w, &[("alertname", "NetDown"), ("cluster", "a"), ("severity", "critical")]);
    assert_eq!((calls(&mut w), only(&w).title()), (1, "DiskFull +1 new".to_owned()));
}

/// Two teams have alerts of one name, by which alerts are grouped.
#[test]
fn alerts_of_two_teams_are_two_incidents() {
    let team = |name: &str| crate::config::Team {
        name: name.into(),
        matchers: vec![format!("namespace=\"{name}\"")],
        notify: vec![format!("{name}-chat")],
        ..crate::config::Team::default()
    };
    let receivers = vec!["a-chat".to_owned(), "b-chat".to_owned()];
    let plain = ResponderConfig { receivers, policies: Vec::new(), routes: Vec::new(), ..two_levels() };
    let full = |team: &'static str, label: &'static str| {
        [("alertname", "DiskFull"), ("severity", "critical"), (label, team)]
    };
    // By the configuration for a label, and by the label `team` itself.
    for label in ["namespace", "team"] {
        let mut w = World::new(ResponderConfig { teams: vec![team("a"), team("b")], ..plain.clone() });
        for name in ["a", "b"] {
            fires(&mut w, &full(name, label));
        }
        let notified: Vec<_> = w.news().into_iter().map(|(to, _, _)| to).collect();
        assert_eq!(
            (notified, w.records.len()),
            (vec!["a-chat".to_owned(), "b-chat".to_owned()], 2),
            "{label}"
        );
    }
}

fn full(w: &mut World, instance: &str, severity: &str) {
    fires(w, &[("alertname", "DiskFull"), ("severity", severity), ("instance", instance)]);
}

fn ends(w: &mut World, instance: &str, severity: &str) {
    let labels = [("alertname", "DiskFull"), ("severity", severity), ("instance", instance)];
    let mut posted = alert(w, &labels);
    posted.ends_at = Some(w.now);
    w.input(Input::Alerts { posted: &[posted] });
}

/// A rule warns before it pages. The person who has the page of another node knows nothing of this
/// one.
#[test]
fn a_warning_that_becomes_a_page_in_an_acknowledged_group_rings() {
    let mut w = World::new(two_levels());
    full(&mut w, "a:1", "critical");
    acked(&mut w);
    full(&mut w, "b:1", "warning");
    w.forward(Span::secs(60));
    assert_eq!(calls(&mut w), 0, "{:#?}", w.history);
    full(&mut w, "b:1", "critical");
    assert_eq!(calls(&mut w), 1, "{:#?}", w.history);
    acked(&mut w);
    // The page ends, its warning still fires, and the page returns before it counts as over.
    ends(&mut w, "b:1", "critical");
    w.forward(Span::secs(20));
    full(&mut w, "b:1", "critical");
    assert_eq!(calls(&mut w), 0, "{:#?}", w.history);
}

/// The page resolves although a warning fires for weeks, and the next page rings.
#[test]
fn a_warning_that_stands_keeps_no_page_open() {
    let mut w = World::new(two_levels());
    full(&mut w, "a:1", "warning");
    full(&mut w, "a:1", "critical");
    let id = acked(&mut w);
    ends(&mut w, "a:1", "critical");
    w.forward(Span::secs(7200));
    assert_eq!(w.records[&id].state, State::Resolved, "{:#?}", w.history);
    let left = w.records.values().find(|r| r.state != State::Resolved).unwrap();
    assert_eq!((left.severity, left.kind), (Severity::Ticket, Kind::PrometheusAlert));
    words(&mut w);
    full(&mut w, "a:1", "critical");
    assert_eq!(calls(&mut w), 1, "{:#?}", w.history);
}

/// One alert keeps a group open for weeks: another alert that was over for hours is news again.
#[test]
fn an_alert_that_was_over_for_long_is_another() {
    let mut w = World::new(two_levels());
    full(&mut w, "a:1", "critical");
    full(&mut w, "b:1", "critical");
    acked(&mut w);
    ends(&mut w, "b:1", "critical");
    w.forward(Span::secs(20));
    full(&mut w, "b:1", "critical");
    assert_eq!(calls(&mut w), 0, "it is back within the hold");
    ends(&mut w, "b:1", "critical");
    w.forward(Span::secs(7200));
    words(&mut w);
    full(&mut w, "b:1", "critical");
    assert_eq!(calls(&mut w), 1, "{:#?}", w.history);
}

#[test]
fn each_node_of_a_group_is_suspected_for_its_own_alert() {
    let mut w = by(&["cluster"]);
    fires(&mut w, &[FULL, &[("node", "n1")]].concat());
    fires(
        &mut w,
        &[("alertname", "RaidDegraded"), ("cluster", "a"), ("node", "n7"), ("severity", "critical")],
    );
    let suspects: Vec<_> = only(&w).suspects.iter().map(|s| format!("{}: {}", s.what(), s.why())).collect();
    assert_eq!(suspects, ["node n1: DiskFull fires for it", "node n7: RaidDegraded fires for it"]);
}
