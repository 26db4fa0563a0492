//! When a storm begins and ends.

use super::*;
use crate::config::Storm;
use crate::external::{Alert, Limits, PostedAlert};
use Action::{Resolve, Trigger, Update};
use Change::Clear;
use Severity::Page;
use stepwatch_model::{OldestRun, Origin};

/// A world in which more than two incidents within a minute are a storm.
fn storms() -> World {
    let storm = Storm { incidents: 2, within: Span::secs(60), ..Storm::default() };
    World::new(ResponderConfig { storm, update_min_interval: Span::secs(30), ..two_levels() })
}

fn storm(w: &World) -> Option<&IncidentRecord> {
    w.records.values().find(|r| r.kind == Kind::AlertStorm)
}

fn burst(w: &mut World, runs: &[&str]) {
    for run in runs {
        w.raise(run, Kind::Hang, Page);
    }
}

#[test]
fn incidents_that_come_slowly_are_no_storm() {
    for (apart, is_storm) in [(30_000, true), (30_001, false)] {
        let mut w = storms();
        for run in ["a", "b", "c"] {
            burst(&mut w, &[run]);
            w.forward(Span::millis(apart));
        }
        assert_eq!(storm(&w).is_some(), is_storm, "{apart}: {:#?}", w.history);
    }
}

#[test]
fn a_storm_says_why_it_takes_its_way() {
    let storm_at = Storm { incidents: 2, within: Span::secs(60), ..Storm::default() };
    let mut config = ResponderConfig { storm: storm_at, ..two_levels() };
    // No label of the storm matches that route.
    config.routes[0].matchers = vec!["kind=\"hang\"".into()];
    let mut w = World::new(config);
    burst(&mut w, &["a", "b", "c"]);
    let id = storm(&w).unwrap().id.clone();
    let path = w.sent.iter().find(|n| n.incident == id).and_then(|n| n.path.clone()).unwrap();
    assert_eq!((path.route.as_str(), path.matched.as_str()), ("routes[0]", "that of the incidents in it"));
    assert!(storm(&w).unwrap().summary.to_string().ends_with(": 1 × hang"), "{:?}", storm(&w));
}

#[test]
fn one_incident_that_is_looked_at_again_and_again_is_no_storm() {
    let mut w = storms();
    burst(&mut w, &["a"]);
    for _ in 0..5 {
        w.reload();
        w.silence("run=\"other\"", Span::secs(3600));
    }
    w.expect(&[("chat", Trigger, Reason::First)]);
    assert_eq!(w.records.len(), 1, "{:#?}", w.history);
}

#[test]
fn a_storm_that_was_taken_and_still_grows_does_not_ring_again() {
    let mut w = storms();
    burst(&mut w, &["a", "b", "c", "d"]);
    let id = storm(&w).unwrap().id.clone();
    w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Ack });
    w.news();
    w.forward(Span::secs(30));
    burst(&mut w, &["e"]);
    w.expect(&[("chat", Update, Reason::StormGrew)]);
    assert_eq!(w.records[&id].state, State::Acknowledged);
}

/// A storm that grows steadily must ring again. Otherwise it would absorb an outage many times
/// larger than what the person knew of.
#[test]
fn a_storm_that_has_doubled_since_it_was_taken_rings() {
    let mut w = storms();
    burst(&mut w, &["a", "b", "c", "d"]);
    let id = storm(&w).unwrap().id.clone();
    for joined in [2, 4, 8] {
        w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Ack });
        w.news();
        for n in 1..=joined {
            assert_eq!(w.records[&id].state, State::Acknowledged, "{n} after {joined}");
            assert!(w.news().iter().all(|(_, action, _)| *action == Update), "{n} after {joined}");
            w.forward(Span::secs(20));
            burst(&mut w, &[&format!("r{joined}-{n}")]);
        }
        assert_eq!(w.records[&id].state, State::Open, "twice {joined}");
        w.restore();
    }
    let words = "the storm that was acknowledged has doubled: 16 incidents";
    assert!(w.sent.iter().any(|n| n.action == Trigger && n.message.reason == words), "{:#?}", w.history);
}

#[test]
fn a_storm_that_was_over_and_grows_again_stays() {
    let mut w = storms();
    burst(&mut w, &["a", "b", "c", "d"]);
    let id = storm(&w).unwrap().id.clone();
    for run in ["c", "d"] {
        w.said(run, Clear, Kind::Hang, Page);
    }
    w.forward(Span::secs(61));
    burst(&mut w, &["e", "f", "g"]);
    w.news();
    w.forward(Span::secs(200));
    assert_eq!(w.records[&id].state, State::Open);
    let left = |n: &Notification| n.message.reason.contains("left the storm");
    assert!(!w.sent.iter().any(left), "{:#?}", w.history);
    // The last member is over as well.
    w.said("g", Clear, Kind::Hang, Page);
    w.forward(Span::secs(121));
    assert_eq!(w.records[&id].state, State::Resolved);
}

#[test]
fn whoever_closes_a_storm_is_not_notified_of_what_is_in_it() {
    let mut w = storms();
    burst(&mut w, &["a", "b", "c", "d"]);
    let id = storm(&w).unwrap().id.clone();
    let members = ["c", "d"].map(|run| w.id(run, Kind::Hang));
    w.news();
    w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Resolve });
    w.expect(&[("chat", Resolve, Reason::Resolved)]);
    for id in members {
        assert_eq!(w.records[&id].state, State::Resolved, "{:#?}", w.history);
        assert!(w.records[&id].reopens_at().is_some(), "{:#?}", w.history);
    }
}

/// A directory that has known the run `genuine` for an hour.
struct Followed;

impl stepwatch_model::Directory for Followed {
    fn knows_node(&self, _: &str) -> bool {
        false
    }

    fn run_on(&self, _: &str) -> Option<String> {
        None
    }

    fn run_of_job(&self, _: &str) -> Option<String> {
        None
    }

    fn summary(&self, _: Ts, _: &str) -> Option<RunSummary> {
        None
    }

    fn first_seen(&self, run: &str) -> Option<Ts> {
        (run == "genuine").then_some(Ts(0))
    }
}

/// A flood of 130 pages of ten exporters, of which a hundred are notified one by one.
fn flood() -> World {
    let mut w = World::new(two_levels());
    for n in 0..130 {
        let run = format!("flood-{n}");
        let origin = Origin::of_exporter(format!("n{}:9765", n / 13), None).since(w.now);
        let summary = RunSummary { name: run.clone(), ..RunSummary::default() };
        let context = Context {
            origin: Some(origin),
            ..Context::new(Scope::Run(run), summary, BTreeSet::new(), w.now)
        };
        w.said_by(&context, Change::Raise, Kind::Nonfinite, Page);
    }
    let rang = rang(&mut w);
    assert_eq!(rang.iter().filter(|title| title.contains("flood-")).count(), 100, "{rang:?}");
    w
}

/// Feeds a fault of a node that runs of several users use, of which `run` has been known for
/// `known`. If a single run used it, simultaneous faults of its nodes would be one incident.
fn falls(w: &mut World, node: &str, exporter: &str, (run, known): (&str, Span)) {
    let context = Context {
        shared: true,
        origin: Some(Origin::of_exporter(exporter.into(), None)),
        oldest: Some(OldestRun { name: run.into(), since: Ts(w.now.0 - known.0) }),
        ..Context::new(Scope::Node(node.into()), RunSummary::default(), [node.to_owned()].into(), w.now)
    };
    w.said_by(&context, Change::Raise, Kind::GpuFault, Page);
}

#[test]
fn a_page_of_the_node_of_a_known_run_rings_by_its_name_in_a_flood_of_others() {
    let mut w = flood();
    falls(&mut w, "young", "young:9765", ("new", Span::secs(600)));
    assert!(rang(&mut w).iter().all(|title| title.contains("alert storm")));
    // The node's exporter takes part in the flood.
    for (node, exporter) in [("good", "good:9765"), ("n0", "n0:9765")] {
        falls(&mut w, node, exporter, ("genuine", Span::secs(601)));
        let rang = rang(&mut w);
        assert!(
            matches!(&rang[..], [title] if title.contains(node) && title.contains("GPU fault")),
            "{rang:?}"
        );
    }
}

/// The exporter joined a known run, or kept a run of its own alive.
#[test]
fn nodes_of_one_exporter_are_a_storm_of_their_own() {
    let mut w = World::new(two_levels());
    for n in 0..50 {
        falls(&mut w, &format!("x{n}"), "evil:9765", ("genuine", Span::secs(86_400)));
    }
    let evil = rang(&mut w);
    assert_eq!(evil.len(), 11, "{evil:?}");
    assert_eq!(evil.last().map(String::as_str), Some("PAGE nodes of exporter evil:9765: alert storm"));
    falls(&mut w, "good", "good:9765", ("genuine", Span::secs(86_400)));
    assert!(rang(&mut w)[0].contains("GPU fault"));
    // An outage of a hundred nodes of a run is notified as one.
    for n in 0..150 {
        falls(&mut w, &format!("g{n}"), &format!("g{n}:9765"), ("genuine", Span::secs(86_400)));
    }
    let outage = rang(&mut w);
    assert_eq!(
        outage.last().map(String::as_str),
        Some("PAGE nodes of run genuine: alert storm"),
        "{outage:?}"
    );
    assert_eq!(outage.len(), 90, "eleven were told before: {outage:?}");
}

/// Posts a critical alert, with a token of this name if that is limited.
fn posts(w: &mut World, token: &str, labels: &[(&str, &str)]) {
    let labels = [labels, &[("severity", "critical")]].concat();
    let labels = labels.into_iter().map(|(n, v)| (Box::from(n), Box::from(v))).collect();
    let alert = Alert::new(labels, [].into_iter().collect(), w.now, "", &Limits::default()).unwrap();
    let posted = [PostedAlert { alert: alert.sent_by(token).into(), ends_at: None }];
    let mut out = Vec::new();
    w.engine.handle(w.now, Input::Alerts { posted: &posted }, &Followed, &mut out);
    w.absorb(out);
}

/// The titles of the calls.
fn rang(w: &mut World) -> Vec<String> {
    let triggers = core::mem::take(&mut w.sent).into_iter().filter(|n| n.action == Trigger);
    triggers.map(|n| n.message.title).collect()
}

#[test]
fn a_flood_of_one_limited_token_is_a_storm_of_its_own() {
    let mut w = World::new(two_levels());
    for n in 0..150 {
        posts(&mut w, "llama", &[("alertname", &format!("X{n}")), ("run", "llama-7")]);
    }
    let flood = rang(&mut w);
    assert_eq!((flood.len(), flood.last().map(String::as_str)), (11, Some("PAGE token llama: alert storm")));
    posts(&mut w, "", &[("alertname", "CoolingFailed"), ("rack", "r7")]);
    assert_eq!(rang(&mut w), ["PAGE: CoolingFailed"]);
}

#[test]
fn an_alert_of_a_known_run_rings_by_its_name() {
    let mut w = storms();
    for n in 0..9 {
        posts(&mut w, "", &[("alertname", &format!("X{n}"))]);
    }
    assert_eq!(rang(&mut w).len(), 3, "two, and their storm");
    posts(&mut w, "", &[("alertname", "GPUTooHot"), ("run", "genuine")]);
    posts(&mut w, "", &[("alertname", "GPUTooHot"), ("run", "new")]);
    posts(&mut w, "llama", &[("alertname", "Other"), ("run", "genuine")]);
    assert_eq!(rang(&mut w), ["PAGE genuine: GPUTooHot", "PAGE genuine: Other"], "a token has its own count");
}

/// The person who acknowledged the storm does not have this incident: it was notified by itself
/// before, and so are its updates.
#[test]
fn what_rang_by_its_name_rings_by_its_name_again_during_a_storm() {
    for resolved in [false, true] {
        let mut w = storms();
        // An alert that is not posted again goes stale.
        let others = |w: &mut World, of: &str| {
            for name in (0..6).map(|n| format!("{of}{n}")) {
                if resolved {
                    drop(w.raise(&name, Kind::Hang, Page))
                } else {
                    posts(w, "", &[("alertname", &name)])
                }
            }
        };
        if resolved {
            w.raise("a", Kind::Hang, Page);
        } else {
            posts(&mut w, "", &[("alertname", "Down"), ("device", "a")]);
        }
        let id = w.sent[0].incident.clone();
        others(&mut w, "X");
        let of_it = |w: &mut World| -> Vec<_> {
            let sent = core::mem::take(&mut w.sent).into_iter();
            let called = sent.filter(|n| n.incident == id && n.action == Trigger);
            called.map(|n| (n.receiver, n.message.reason)).collect()
        };
        w.forward(Span::secs(300));
        assert_eq!(w.records[&id].level, 2);
        let storm = storm(&w).unwrap().id.clone();
        w.input(Input::Act { incident: &storm, by: "alice", action: &IncidentAction::Ack });
        of_it(&mut w);
        if resolved {
            w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Resolve });
            w.forward(Span::secs(590));
            others(&mut w, "Y");
            w.forward(Span::secs(10));
        } else {
            w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Ack });
            others(&mut w, "Y");
            posts(&mut w, "", &[("alertname", "Down"), ("device", "b")]);
        }
        let rang = of_it(&mut w);
        assert_eq!(rang.first().map(|(to, _)| to.as_str()), Some("chat"), "{:#?}", w.history);
        assert_eq!(w.records[&id].state, State::Open, "{:#?}", w.history);
        w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Escalate });
        let words = ("phone".to_owned(), "escalated to level 2 by alice".to_owned());
        assert_eq!(of_it(&mut w), [words], "level 2 is next once more");
    }
}
