use super::*;
use crate::origin::Peer;
use crate::samples::Samples;
use crate::source::{DROPPED, UNMATCHED, UP};
use crate::testing::{hub, published};

const NOW: f64 = 1_795_227_416.0;
const PEER: Origin = Origin::Peer(Peer { connection: 1, pid: None, uid: 0 });

fn intake() -> Intake {
    Intake::new(hub())
}

fn send(intake: &Intake, text: &str) -> Outcome {
    send_at(intake, NOW, &PEER, text)
}

fn send_at(intake: &Intake, now: f64, from: &Origin, text: &str) -> Outcome {
    let mut event = Event::parse(text.as_bytes()).unwrap();
    event.ts = event.ts.or(Some(now));
    intake.publish_at(now, from, event)
}

fn output(intake: &Intake, stream: &str, lines: &[&str]) {
    output_at(intake, NOW, &PEER, "r", stream, lines);
}

fn output_at(intake: &Intake, now: f64, from: &Origin, run: &str, stream: &str, lines: &[&str]) {
    let lines = serde_json::to_string(lines).unwrap();
    let text = format!(
        r#"{{"k":"event","name":"output","role":"launcher","run":"{run}","rank":0,"world":8,"stream":"{stream}","lines":{lines}}}"#
    );
    assert_eq!(send_at(intake, now, from, &text), Outcome::Accepted);
}

fn user(uid: u32, connection: u64) -> Origin {
    Origin::Peer(Peer { connection, pid: None, uid })
}

const HELLO: &str = r#"{"k":"hello","role":"launcher","run":"r","rank":0,"command":"torchrun"}"#;
const BYE: &str = r#"{"k":"bye","role":"launcher","run":"r","rank":0,"code":1,"text":"ValueError: no"}"#;

fn line(step: u32, loss: f64) -> String {
    format!("iteration {step}/ 100 | elapsed time per iteration (ms): 1500.0 | lm loss: {loss:.2E} |")
}

#[test]
fn lines_become_events_and_go_no_further() {
    let intake = intake();
    send(&intake, HELLO);
    output(&intake, "stdout", &["hello", &line(7, 2.5)]);
    output(&intake, "stderr", &["a warning"]);
    output(&intake, "stdout", &[&line(8, 2.25)]);
    let events = published(&intake.hub);
    assert_eq!(events.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Hello, Kind::Step, Kind::Step]);
    let step = &events[2];
    assert_eq!((step.run.as_deref(), step.rank, step.world), (Some("r"), Some(0), Some(8)));
    assert_eq!((step.step, step.m.get("loss"), step.ts), (Some(8), Some(2.25), Some(NOW)));
    let mut page = Samples::default();
    intake.hub.write(&mut page);
    assert_eq!(page.get(&UP, &["r/0/stdout", "launcher"]), Some(1.0));
    assert_eq!(page.get(&UNMATCHED, &["r/0/stderr", "launcher"]), Some(1.0));
}

#[test]
fn a_client_in_the_script_is_believed_before_its_output() {
    let intake = intake();
    send(&intake, r#"{"k":"step","run":"r","rank":0,"step":7,"m":{"loss":2.4999}}"#);
    output(&intake, "stdout", &[&line(7, 2.5)]);
    let losses: Vec<_> = published(&intake.hub).iter().filter_map(|e| e.m.get("loss")).collect();
    assert_eq!(losses, [2.4999]);
}

#[test]
fn zones_are_found_out() {
    let intake = intake();
    // The stamp is two hours ahead of UTC.
    output(&intake, "stdout", &[&format!(" [2026-11-21 04:16:55.5] {}", line(7, 2.5))]);
    assert_eq!(published(&intake.hub)[0].ts, Some(1_795_227_415.5));
}

#[test]
fn the_end_is_that_of_every_rank_that_was_heard_through_it() {
    let intake = intake();
    send(&intake, HELLO);
    output(
        &intake,
        "stdout",
        &[&format!("[rank3]: {}", line(7, 2.5)), &format!("[rank0]: {}", line(7, 2.5))],
    );
    send(&intake, BYE);
    let events = published(&intake.hub);
    let byes: Vec<_> = events.iter().filter(|e| e.kind == Kind::Bye).map(|e| (e.rank, e.code)).collect();
    assert_eq!(byes, [(Some(3), Some(1)), (Some(0), Some(1))]);
    assert_eq!(events.last().unwrap().text.as_deref(), Some("ValueError: no"));
    let mut page = Samples::default();
    intake.hub.write(&mut page);
    assert_eq!(page.get(&UP, &["r/0/stdout", "launcher"]), None, "its streams are over");
}

#[test]
fn what_was_lost_on_the_way_is_counted() {
    let intake = intake();
    let text = r#"{"k":"event","name":"output","run":"r","rank":0,"stream":"stdout","lines":["x"],"cut":2,"lost_bytes":500}"#;
    send(&intake, text);
    let mut page = Samples::default();
    intake.hub.write(&mut page);
    assert_eq!(page.get(&DROPPED, &["r/0/stdout", "launcher", "line_cut"]), Some(2.0));
    assert_eq!(page.get(&DROPPED, &["r/0/stdout", "launcher", "launcher_bytes"]), Some(500.0));
}

#[test]
fn streams_are_bounded() {
    let intake = intake();
    for i in 0..MAX_STREAMS + 10 {
        output(&intake, &i.to_string(), &["x"]);
    }
    let mut page = Samples::default();
    intake.hub.write(&mut page);
    assert_eq!(page.iter().filter(|s| s.family == &UP).count(), MAX_STREAMS);
    assert_eq!(intake.hub.drops().get(Reason::Streams), 10);
}

/// A new reader would not know the format of a line that no grammar matches.
#[test]
fn streams_of_one_user_take_none_of_anothers() {
    let intake = intake();
    let (ann, bob) = (user(4_000_001, 1), user(4_000_002, 2));
    let line = |step: usize| format!("step {step} | loss 2.5 | grad_norm 0.25 | lr 3.0e-04");
    for step in 1..=10 {
        output_at(&intake, NOW, &ann, "ann", "stdout", &[&line(step)]);
    }
    for i in 0..3 * MAX_STREAMS {
        let now = NOW + 1.0 + i as f64;
        output_at(&intake, now, &bob, "bob", &i.to_string(), &["x"]);
        if i % 100 == 0 {
            // A stream of the same user also replaces another one.
            output_at(&intake, now, &ann, "ann", &format!("more-{i}"), &["x"]);
        }
    }
    assert_eq!(intake.hub.drops().get(Reason::StreamsShare), 5, "of bob, for ann's last ones");
    let (all, _) = published(&intake.hub).into_iter().partition::<Vec<_>, _>(|e| e.kind == Kind::Step);
    output_at(&intake, NOW + 2e3, &ann, "ann", "stdout", &[&line(11)]);
    let now: Vec<_> = published(&intake.hub).into_iter().filter(|e| e.kind == Kind::Step).collect();
    assert_eq!(now.len(), all.len() + 1);
    assert_eq!(now.last().unwrap().step, Some(11));
}

#[test]
fn streams_of_one_connection_take_none_of_anothers() {
    let intake = intake();
    let (quiet, loud) = (user(4_000_001, 1), user(4_000_001, 2));
    for stream in ["stdout", "stderr"] {
        output_at(&intake, NOW, &quiet, "quiet", stream, &["x"]);
    }
    for i in 0..2 * MAX_STREAMS {
        output_at(&intake, NOW + 1.0 + i as f64, &loud, "loud", &i.to_string(), &["x"]);
    }
    let mut page = Samples::default();
    intake.hub.write(&mut page);
    for stream in ["quiet/0/stdout", "quiet/0/stderr"] {
        assert_eq!(page.get(&UP, &[stream, "launcher"]), Some(1.0), "{stream}");
    }
}

#[test]
fn pieces_of_lines_have_a_budget() {
    let intake = intake();
    let (ann, bob) = (user(4_000_001, 1), user(4_000_002, 2));
    let piece = format!("2026-11-27T07:52:45.118201123Z stdout P {}", "x".repeat(7800));
    for stream in 0..MAX_STREAMS - 1 {
        for _ in 0..10 {
            output_at(&intake, NOW, &bob, "bob", &stream.to_string(), &[&piece]);
        }
    }
    let held: usize =
        intake.outputs.0.locked().all.values().map(|e| e.stream.locked().reader.pending_bytes()).sum();
    assert!(held < 10 << 20, "{held} bytes of one user");
    let mut page = Samples::default();
    intake.hub.write(&mut page);
    let lost =
        page.iter().filter(|s| s.family == &DROPPED && format!("{:?}", s.labels).contains(unfinished::LIMIT));
    assert!(lost.count() > 100);
    // A line in pieces is still read for another user.
    let whole = format!("{} {}", line(7, 2.5), "y".repeat(6_000));
    let (first, last) = whole.split_at(5_000);
    for (flag, text) in [("P", first), ("F", last)] {
        let text = format!("2026-11-27T07:52:45.118201123Z stdout {flag} {text}");
        output_at(&intake, NOW, &ann, "ann", "stdout", &[&text]);
    }
    assert_eq!(published(&intake.hub).last().unwrap().step, Some(7));
}

proptest::proptest! {
    #[test]
    fn never_panics(lines: Vec<String>, stream: String) {
        let intake = intake();
        let extra = [
            ("lines".to_owned(), Value::List(lines.into_iter().map(Value::Text).collect())),
            ("stream".to_owned(), Value::Text(stream)),
        ];
        let name = Some(OUTPUT.to_owned());
        let event = Event { run: Some("r".into()), name, extra: extra.into(), ..Event::new(Kind::Event) };
        intake.publish_at(NOW, &PEER, event);
        send(&intake, BYE);
    }
}
