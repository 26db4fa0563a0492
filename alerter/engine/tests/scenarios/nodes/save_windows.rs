//! Uploads of checkpoints that slow the steps of a run, through the whole engine.

use stepwatch_model::Kind;
use stepwatch_wire::{CkptPhase, Event, Kind as EventKind, Value};

use super::bench::Bench;

const NODES: [&str; 4] = ["n0", "n1", "n2", "n3"];
/// Bytes a second of an interface.
const SPEED: f64 = 12.5e9;

/// A run whose nodes publish what their interfaces send.
struct Uploads {
    b: Bench,
    step: i64,
    /// Bytes, and when they were published last.
    sent: f64,
    ago: i64,
}

impl Uploads {
    fn new() -> Self {
        Self { b: Bench::new(), step: 0, sent: 1e9, ago: 0 }
    }

    /// Steps of so many seconds, during which each interface sends at this share of its speed.
    fn steps(&mut self, n: i64, secs: i64, share: f64) {
        for _ in 0..n {
            self.step += 1;
            self.b.wait(secs);
            (self.sent, self.ago) = (self.sent + share * SPEED * secs as f64, self.ago + secs);
            for (rank, node) in NODES.iter().enumerate() {
                let mut e = Event::step("llama", self.step);
                (e.rank, e.attempt, e.node) = (Some(rank as u32), Some(0), Some((*node).to_owned()));
                e.m.set("loss", 2.0 + 0.01 * ((self.step * 7) % 11) as f64);
                e.m.set("step_time", secs as f64 * (1.0 + 0.0002 * ((self.step * 7) % 11) as f64));
                self.b.feed(e);
            }
            if self.ago >= 30 {
                self.ago = 0;
                NODES.iter().for_each(|node| self.b.feed(interface(node, self.sent)));
            }
        }
    }

    fn report(&mut self, phase: CkptPhase, step: i64) {
        for (rank, node) in NODES.iter().enumerate() {
            let mut e = Event { ckpt: Some(phase), ..Event::new(EventKind::Ckpt) };
            (e.run, e.rank, e.step) = (Some("llama".into()), Some(rank as u32), Some(step));
            e.node = Some((*node).to_owned());
            e.extra.insert("stage".into(), Value::Text("upload".into()));
            self.b.feed(e);
        }
    }

    fn uploads(&mut self, n: i64, secs: i64, share: f64) {
        let step = self.step;
        self.report(CkptPhase::Start, step);
        self.steps(n, secs, share);
        self.report(CkptPhase::End, step);
    }
}

fn interface(node: &str, sent: f64) -> Event {
    let mut e = Event { node: Some(node.into()), name: Some("nic".into()), ..Event::new(EventKind::Health) };
    e.extra.insert("device".into(), Value::Text("eth0".into()));
    e.m.set("rate_bytes_per_second", SPEED);
    e.m.set("transmit_bytes", sent);
    e
}

#[test]
fn a_long_upload_that_fills_the_interfaces_is_the_first_suspect_of_the_drop() {
    let mut u = Uploads::new();
    for _ in 0..6 {
        u.steps(60, 10, 0.1);
        u.uploads(10, 12, 0.95);
    }
    u.steps(60, 10, 0.1);
    u.uploads(80, 12, 0.95);
    let speed = [Kind::ThroughputDrop, Kind::MfuDroop];
    let found = u.b.incidents.iter().rfind(|i| speed.contains(&i.kind));
    let incident = found.unwrap_or_else(|| panic!("no drop in {:#?}", u.b.incidents));
    let first = &incident.suspects[0];
    assert_eq!(first.what(), "storage of the checkpoints", "{:#?}", incident.suspects);
    let why = first.why();
    assert!(why.contains(" s while a checkpoint is uploaded, otherwise 10"), "{why}");
    assert!(why.contains("an interface of 4 of 4 nodes sends at 95 % of its speed"), "{why}");
    assert!(why.contains("while 4 nodes save at once"), "{why}");
    let advised = u.b.notifications.iter().filter_map(|n| n.message.details.advice.as_deref());
    let said: Vec<&str> = advised.collect();
    let want = "limit the bandwidth of uploads and writes, or give them an interface of their own, then let the nodes save";
    assert!(said.iter().any(|said| said.starts_with(want)), "{said:?}");
}

#[test]
fn uploads_that_do_not_slow_the_steps_are_no_suspect_of_another_drop() {
    let mut u = Uploads::new();
    for _ in 0..6 {
        u.steps(60, 10, 0.1);
        u.uploads(10, 10, 0.95);
    }
    u.steps(80, 12, 0.1);
    let speed = [Kind::ThroughputDrop, Kind::MfuDroop];
    let incident = u.b.incidents.iter().rfind(|i| speed.contains(&i.kind)).expect("it is slower");
    assert!(incident.suspects.iter().all(|s| s.what() != "storage of the checkpoints"), "{incident:#?}");
}
