//! How an incident ended: who reported its end, or since when its reports stopped.

use super::*;
use crate::effect::Tx;
use crate::external::{Alert, Limits, PostedAlert};
use crate::incident::{End, Ended};
use Severity::Page;
use stepwatch_model::{Sentence, clause};

const DISK: &[(&str, &str)] = &[("alertname", "DiskFull"), ("severity", "critical"), ("cluster", "a")];

fn post(w: &mut World, more: (&str, &str), lasts: Span) {
    let labels = DISK.iter().chain([&more]).map(|(n, v)| (Box::from(*n), Box::from(*v))).collect();
    let alert = Alert::new(labels, [].into_iter().collect(), w.now, "", &Limits::default()).unwrap();
    w.input(Input::Alerts { posted: &[PostedAlert { alert: alert.into(), ends_at: Some(w.now + lasts) }] });
}

/// The end of the only incident, and the title and the reason of the last message about it.
fn end(w: &World) -> (End, String, String) {
    let r = w.records.values().next().unwrap();
    assert_eq!((w.records.len(), r.state), (1, State::Resolved), "{:#?}", w.history);
    let m = &w.sent.last().unwrap().message;
    assert_eq!(m.ended, r.end.as_ref().map(|end| end.how));
    (r.end.clone().unwrap(), m.title.clone(), m.reason.clone())
}

#[test]
fn the_sender_said_that_it_is_over() {
    let mut w = World::new(two_levels());
    post(&mut w, ("pod", "x"), Span::secs(300));
    w.forward(Span::secs(30));
    post(&mut w, ("pod", "x"), Span::ZERO);
    w.restore();
    w.forward(Span::secs(60));
    let (end, title, reason) = end(&w);
    assert_eq!((end.how, end.silent_since), (Ended::Sender, None));
    assert_eq!(title, "RESOLVED: DiskFull");
    assert_eq!(reason, "resolved after 1m 30s: its sender said that it is over");
}

#[test]
fn the_sender_fell_silent() {
    let mut w = World::new(two_levels());
    post(&mut w, ("pod", "x"), Span::secs(300));
    w.forward(Span::secs(30));
    let last = w.now;
    post(&mut w, ("pod", "x"), Span::secs(300));
    w.forward(Span::secs(310));
    // After a restart, the last post is still known.
    w.restore();
    w.forward(Span::secs(60));
    let (end, title, reason) = end(&w);
    assert_eq!((end.how, end.silent_since), (Ended::Stale, Some(last)));
    assert_eq!(title, "STALE: DiskFull");
    assert_eq!(
        reason,
        format!("stale after 6m 30s: nothing has been heard of it since {last}; it may still hold")
    );
    assert!(w.has_said(&format!("Prometheus alert stale: nothing has been heard of it since {last}")));
    let summary = &w.sent.last().unwrap().message.summary;
    assert!(summary.starts_with("Nothing is heard of it any more; it was: "), "{summary}");
}

#[test]
fn one_of_several_that_fell_silent_makes_it_stale_unless_it_spoke_again() {
    for again in [false, true] {
        let mut w = World::new(two_levels());
        post(&mut w, ("pod", "y"), Span::secs(86_400));
        post(&mut w, ("pod", "x"), Span::secs(300));
        w.forward(Span::secs(600));
        if again {
            post(&mut w, ("pod", "x"), Span::secs(300));
            post(&mut w, ("pod", "x"), Span::ZERO);
        }
        post(&mut w, ("pod", "y"), Span::ZERO);
        w.forward(Span::secs(60));
        let want = if again { (Ended::Sender, None) } else { (Ended::Stale, Some(START)) };
        let (end, ..) = end(&w);
        assert_eq!((end.how, end.silent_since), want);
    }
}

#[test]
fn what_came_back_and_was_seen_to_end_is_not_stale() {
    let mut w = World::new(two_levels());
    w.raise("r", Kind::Hang, Page);
    w.said("r", Change::Lapse, Kind::Hang, Page);
    w.forward(Span::secs(10));
    w.said("r", Change::Raise, Kind::Hang, Page);
    w.said("r", Change::Clear, Kind::Hang, Page);
    w.forward(Span::secs(200));
    let (end, _, reason) = end(&w);
    assert_eq!((end.how, reason.as_str()), (Ended::Clear, "resolved by itself after 2m 10s"));
}

#[test]
fn a_run_that_was_never_heard_of_again_is_stale_and_one_that_ended_is_not() {
    let mut w = World::new(two_levels());
    w.raise("r", Kind::Hang, Page);
    let (heard, mut out) = (w.now, Vec::new());
    w.forward(Span::secs(7 * 86_400));
    w.engine.manager().forgotten(&mut Tx::new(w.now, &mut out), &Scope::Run("r".into()), heard);
    w.engine.reconsider(w.now, &mut out);
    w.absorb(out);
    let (end_, title, reason) = end(&w);
    assert_eq!((end_.how, end_.silent_since), (Ended::Stale, Some(heard)));
    assert!(title.starts_with("STALE r: hang"), "{title}");
    assert_eq!(reason, format!("stale: nothing has been heard of the run since {heard}; it may still hold"));
    let mut w = World::new(two_levels());
    w.raise("r", Kind::Hang, Page);
    let mut out = Vec::new();
    w.engine.manager().run_ended(&mut Tx::new(w.now, &mut out), "r", false, &BTreeMap::new());
    w.engine.reconsider(w.now, &mut out);
    w.absorb(out);
    w.forward(Span::secs(900));
    let (end, _, reason) = end(&w);
    assert_eq!(
        (end.how, reason.as_str()),
        (Ended::RunEnded, "resolved after 15m: the run ended and nobody answered")
    );
}

/// The consequences of a fault do not apply to a run that was stopped.
#[test]
fn what_a_run_that_ended_would_have_wasted_is_not_reported() {
    for by_hand in [true, false] {
        let mut w = World::new(two_levels());
        let id = w.raise("r", Kind::Nonfinite, Page);
        w.input(Input::Act { incident: &id, by: "sam", action: &IncidentAction::Ack });
        let record = &mut w.engine.manager().open.get_mut(&id).unwrap().record;
        record.summary = Sentence::from(clause!("loss is NaN")).and(clause!("every further step is wasted"));
        let mut out = Vec::new();
        w.engine.manager().run_ended(&mut Tx::new(w.now, &mut out), "r", by_hand, &BTreeMap::new());
        w.absorb(out);
        assert_eq!(end(&w).0.how, Ended::RunEnded);
        assert_eq!(w.sent.last().unwrap().message.summary, "Over with the run; it was: loss is NaN.");
    }
}
