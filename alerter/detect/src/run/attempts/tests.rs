use stepwatch_model::time::Ts;
use stepwatch_wire::Event;

use super::*;
use crate::{Input, Monitor};

struct Scene {
    monitor: Monitor,
    now: i64,
}

impl Scene {
    fn new() -> Self {
        Self { monitor: Monitor::default(), now: 1_795_227_416_000 }
    }

    fn say(&mut self, line: &str) {
        self.now += 1000;
        let event = Event::parse(line.as_bytes()).unwrap();
        // The exporter of each node reports for that node.
        let source = format!("{}:9765", event.node.as_deref().unwrap_or("n1"));
        self.monitor.handle(Ts(self.now), Input::Event { source: &source, event: &event }, &mut Vec::new());
    }

    fn step(&mut self, attempt: u32, rank: u32, node: &str, step: i64) {
        self.say(&format!(
            r#"{{"k":"step","run":"r","rank":{rank},"node":"{node}","attempt":{attempt},"step":{step},"m":{{"loss":2.5}}}}"#
        ));
    }

    fn driver(&mut self, node: &str, version: &str) {
        self.say(&format!(
            r#"{{"k":"health","name":"config","node":"{node}","fingerprint":"{version}","driver":"{version}"}}"#
        ));
    }

    fn attempts(&self) -> &Attempts {
        &self.monitor.run("r").unwrap().state.attempts
    }
}

fn texts(changes: &Differences) -> Vec<String> {
    let text = |d: &Difference| format!("{:?} {}: {:?} -> {:?}", d.of, d.name, d.before, d.after);
    changes.list.iter().map(text).collect()
}

#[test]
fn each_attempt_has_its_steps_its_end_and_what_changed() {
    let mut s = Scene::new();
    s.driver("n1", "550.54");
    s.say(r#"{"k":"hello","run":"r","rank":0,"node":"n1","world":2,"model":"llama","attempt":0}"#);
    s.say(r#"{"k":"hello","run":"r","rank":1,"node":"n2","world":2,"attempt":0}"#);
    for step in 100..108 {
        s.step(0, 0, "n1", step);
        s.step(0, 1, "n2", step);
    }
    s.say(r#"{"k":"bye","run":"r","rank":1,"node":"n2","code":1,"text":"CUDA out of memory","attempt":0}"#);
    s.say(r#"{"k":"bye","run":"r","rank":0,"node":"n1","code":-15,"text":"SIGTERM","attempt":0}"#);
    s.driver("n1", "560.28");
    s.say(r#"{"k":"hello","run":"r","rank":0,"node":"n1","world":1,"model":"llama","lr_schedule":"cosine","attempt":1}"#);
    for step in 104..112 {
        s.step(1, 0, "n1", step);
    }
    let a = s.attempts();
    let first = &a.past[0];
    assert_eq!((first.number, first.first_step, first.last_step), (0, Some(100), Some(107)));
    let AttemptEnd::Failed { place, text } = &first.end else { panic!("{first:?}") };
    assert!(place.to_string().contains("rank 1") && text.contains("CUDA out of memory"), "{first:?}");
    assert!(first.began < first.ended && first.changes.list.is_empty(), "{first:?}");
    assert_eq!(a.first_step, Some(104));
    assert_eq!(
        texts(&a.changes()),
        [
            r#"Size nodes: Some("2") -> Some("1")"#,
            r#"Size processes: Some("2") -> Some("1")"#,
            r#"Node node: Some("n2") -> None"#,
            r#"Declared lr_schedule: None -> Some("cosine")"#,
            r#"Host driver: Some("550.54") -> Some("560.28")"#,
        ]
    );
}

#[test]
fn an_end_that_nobody_explains_is_said_to_be_one() {
    let mut s = Scene::new();
    for (attempt, from) in [(0, 10), (1, 5)] {
        for step in from..from + 4 {
            s.step(attempt, 0, "n1", step);
        }
    }
    s.say(r#"{"k":"bye","run":"r","rank":0,"node":"n1","code":143,"attempt":1}"#);
    s.say(r#"{"k":"hello","run":"r","rank":0,"node":"n7","world":1,"attempt":2}"#);
    s.step(2, 0, "n7", 8);
    s.step(2, 0, "n7", 9);
    let a = s.attempts();
    let ends: Vec<&AttemptEnd> = a.past.iter().map(|one| &one.end).collect();
    assert_eq!(ends, [&AttemptEnd::Unreported, &AttemptEnd::Exited { code: 143, text: None }]);
    let moved = [r#"Node node: Some("n1") -> None"#, r#"Node node: None -> Some("n7")"#];
    assert_eq!(texts(&a.changes()), moved);
}

#[test]
fn what_is_kept_is_bounded() {
    let mut s = Scene::new();
    for attempt in 0..40 {
        let words: Vec<String> = (0..31).map(|i| format!(r#""w{i}":"{}""#, 100 * i + attempt)).collect();
        s.say(&format!(r#"{{"k":"hello","run":"r","rank":0,"attempt":{attempt},{}}}"#, words.join(",")));
        s.step(attempt, 0, "n1", 10);
        s.step(attempt, 0, "n1", 11);
    }
    let a = s.attempts();
    assert_eq!((a.past.len(), a.past[0].number), (MAX_ATTEMPTS, 39 - MAX_ATTEMPTS as u32));
    let last = &a.past[15].changes;
    assert_eq!((last.list.len(), last.more), (MAX_DIFFERENCES, 7));
}
