//! A run of one rank that is restarted again and again.

use std::ops::RangeInclusive;
use std::sync::Arc;

use stepwatch_wire::Event;

use super::*;
use crate::Run;
use crate::detectors::DetectorsConfig;

/// A run of one rank, whose state is stored and read back after each event.
struct Scene {
    config: Arc<DetectorsConfig>,
    run: Run,
    now: Ts,
    found: Vec<Finding>,
}

const OUT_OF_MEMORY: &str = "CUDA out of memory. Tried to allocate";

impl Scene {
    fn new(config: Config) -> Self {
        let config = Arc::new(DetectorsConfig { restart_loop: config, ..DetectorsConfig::default() });
        let now = Ts(1_795_227_416_000);
        Self { run: Run::new("r", now, &config), config, now, found: Vec::new() }
    }

    /// A run that was at step 49 and has a checkpoint of step 40.
    fn failed_once() -> Self {
        Self::failed_once_with(Config::default())
    }

    fn failed_once_with(config: Config) -> Self {
        let mut s = Self::new(config);
        s.hello(0, 1);
        s.steps(0, 1..=49);
        s.say(r#"{"k":"ckpt","run":"r","rank":0,"node":"n1","step":40,"phase":"end"}"#);
        s.bye(1, "NCCL error");
        s
    }

    fn take(&mut self, out: Vec<Finding>) {
        self.found.extend(out.into_iter().filter(|v| v.kind == Kind::RestartLoop));
        let stored = postcard::to_stdvec(&self.run).unwrap();
        self.run = postcard::from_bytes(&stored).unwrap();
        self.run.configure(&self.config);
    }

    fn say(&mut self, line: &str) {
        self.now = self.now + Span::secs(1);
        let (event, mut out) = (Event::parse(line.as_bytes()).unwrap(), Vec::new());
        self.run.event(self.now, "n1:9765", &event, &mut out);
        self.take(out);
    }

    /// Lets the time pass after which a dead attempt counts as over.
    fn settle(&mut self) {
        assert!(self.run.deadline().is_some_and(|at| at <= self.now + SETTLED));
        self.now = self.now + SETTLED;
        let mut out = Vec::new();
        self.run.look(self.now, &mut out);
        self.take(out);
    }

    fn hello(&mut self, attempt: u32, world: u32) {
        self.say(&format!(
            r#"{{"k":"hello","run":"r","rank":0,"node":"n1","world":{world},"attempt":{attempt}}}"#
        ));
    }

    fn steps(&mut self, attempt: u32, steps: RangeInclusive<i64>) {
        for step in steps {
            self.say(&format!(
                r#"{{"k":"step","run":"r","rank":0,"node":"n1","attempt":{attempt},"step":{step},"m":{{"loss":2.5}}}}"#
            ));
        }
    }

    fn bye(&mut self, code: i64, text: &str) {
        self.say(&format!(r#"{{"k":"bye","run":"r","rank":0,"node":"n1","code":{code},"text":"{text}"}}"#));
    }

    fn dead(&mut self, pid: u32) {
        self.say(&format!(
            r#"{{"k":"event","name":"rank_dead","run":"r","rank":0,"node":"n1","text":"process {pid} of rank 0 is gone"}}"#
        ));
    }

    /// An attempt that begins after the checkpoint, gets to step `last`, and fails.
    fn attempt(&mut self, attempt: u32, last: i64, text: &str) {
        self.hello(attempt, 1);
        self.steps(attempt, 41..=last);
        self.bye(1, text);
    }

    fn announce(&mut self, seconds: u32) {
        self.say(&format!(r#"{{"k":"event","run":"r","name":"maintenance","seconds":{seconds}}}"#));
    }

    fn changes(&self) -> Vec<Change> {
        self.found.iter().map(|v| v.change).collect()
    }
}

#[test]
fn the_third_attempt_without_progress_pages_with_the_common_failure() {
    let mut s = Scene::failed_once();
    s.attempt(1, 47, &format!("{OUT_OF_MEMORY} 2.00 GiB"));
    s.attempt(2, 49, "no space left on device");
    assert!(s.found.is_empty(), "{:?}", s.found);
    s.attempt(3, 48, &format!("{OUT_OF_MEMORY} 4.50 GiB"));
    let [v] = s.found.as_slice() else { panic!("{:?}", s.found) };
    assert_eq!((v.change, v.severity, v.value, v.start_step), (Change::Raise, Severity::Page, 3.0, 49));
    let why = v.why.to_string();
    for part in [
        "3 attempts in a row ended without progress in ",
        ": none got beyond step 49; the newest checkpoint is of step 40; 2 of them failed alike, ",
        "rank 0 on n1 first: exited with code 1: CUDA out of memory. Tried to allocate 4.50 GiB",
    ] {
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(v.suspects.len(), 1);
    assert_eq!(v.suspects[0].target, Target::rank(0, Some("n1")));
    assert_eq!(v.why.statement().all_facts()[2], ("step", &Fact::Step(49)));
    (4..7).for_each(|attempt| s.attempt(attempt, 45, "no space left on device"));
    assert_eq!(s.changes(), [Change::Raise, Change::More], "an update at twice as many");
}

#[test]
fn progress_ends_it_and_begins_the_row_anew() {
    let mut s = Scene::failed_once();
    (1..3).for_each(|attempt| s.attempt(attempt, 47, "lost"));
    s.attempt(3, 60, "lost");
    (4..6).for_each(|attempt| s.attempt(attempt, 58, "lost"));
    assert!(s.found.is_empty(), "{:?}", s.found);
    s.attempt(6, 60, "lost");
    s.hello(7, 1);
    s.steps(7, 41..=60);
    assert_eq!(s.changes(), [Change::Raise], "it has not passed it yet");
    s.steps(7, 61..=90);
    assert_eq!(s.changes(), [Change::Raise, Change::Clear]);
    s.bye(1, "lost");
    (8..10).for_each(|attempt| s.attempt(attempt, 60, "lost"));
    assert_eq!(s.found.len(), 2, "{:?}", s.found);
}

#[test]
fn a_newer_checkpoint_is_progress() {
    let mut s = Scene::failed_once();
    for attempt in 1..6 {
        s.hello(attempt, 1);
        s.steps(attempt, 41..=48);
        let step = 41 + attempt;
        s.say(&format!(r#"{{"k":"ckpt","run":"r","rank":0,"node":"n1","step":{step},"phase":"end"}}"#));
        s.bye(1, "lost");
    }
    assert!(s.found.is_empty(), "{:?}", s.found);
}

/// A sweep in one job: each trial begins from scratch, and few fail.
#[test]
fn a_trial_that_completes_begins_the_row_anew() {
    let mut s = Scene::failed_once();
    for trial in 1..20 {
        s.attempt(trial, 47, "out of memory");
        if trial % 2 == 0 {
            s.hello(100 + trial, 1);
            s.steps(100 + trial, 1..=40);
            s.bye(0, "done");
        }
    }
    assert!(s.found.is_empty(), "{:?}", s.found);
}

/// A process that describes itself again is no new one.
#[test]
fn steps_that_begin_anew_in_one_process_are_no_attempts_that_failed() {
    let mut s = Scene::new(Config::default());
    let hello = r#"{"k":"hello","run":"r","rank":0,"node":"n1","world":1,"pid":7}"#;
    for fold in 0..8 {
        s.say(hello);
        s.steps(fold, 1..=40);
    }
    assert!(s.found.is_empty(), "{:?}", s.found);
}

#[test]
fn planned_ends_neither_count_nor_interrupt_the_row() {
    let mut s = Scene::failed_once();
    s.attempt(1, 47, "lost");
    let ends = [(143, None), (1, Some(600)), (130, None), (1, Some(600))];
    for (attempt, (code, announced)) in (2..).zip(ends) {
        s.hello(attempt, 1);
        s.steps(attempt, 41..=47);
        announced.into_iter().for_each(|seconds| s.announce(seconds));
        s.bye(code, "stopped");
    }
    for attempt in 6..8 {
        assert!(s.found.is_empty(), "{:?}", s.found);
        s.hello(attempt, 1);
        s.steps(attempt, 41..=47);
        s.announce(600);
        s.announce(0);
        s.bye(1, "lost");
    }
    assert_eq!(s.changes(), [Change::Raise], "what is taken back excuses nothing");
    assert_eq!(s.found[0].value, 3.0);
    s.hello(8, 1);
    s.bye(143, "stopped");
    assert_eq!(s.changes(), [Change::Raise, Change::Clear], "somebody looks after it");
}

#[test]
fn attempts_that_die_before_their_first_step_count() {
    let mut s = Scene::failed_once();
    for _ in 0..2 {
        s.hello(1, 1);
        s.bye(1, "cannot read the checkpoint");
    }
    assert!(s.found.is_empty(), "{:?}", s.found);
    s.hello(1, 1);
    s.bye(1, "cannot read the checkpoint");
    assert_eq!(s.changes(), [Change::Raise]);
    assert!(s.found[0].why.to_string().contains("3 of them failed alike, rank 0 on n1 first: exited"));
}

#[test]
fn an_end_without_a_goodbye_counts_when_the_next_begins_or_none_does() {
    let mut s = Scene::failed_once();
    for pid in 4001..4003 {
        s.hello(1, 1);
        s.dead(pid);
    }
    s.hello(1, 1);
    s.dead(4003);
    assert!(s.found.is_empty(), "the last may be about to begin again: {:?}", s.found);
    s.settle();
    assert_eq!(s.changes(), [Change::Raise]);
    let why = s.found[0].why.to_string();
    assert!(why.contains("3 of them failed alike") && why.contains("process 4003 of rank 0"), "{why}");
}

/// Attempts 1 to 4, of which nobody reports an end.
fn unreported(greets: bool, world: impl Fn(u32) -> u32) -> Vec<Finding> {
    let mut s = Scene::failed_once();
    for attempt in 1..5 {
        if greets {
            s.hello(attempt, world(attempt));
        }
        s.steps(attempt, 41..=47);
    }
    s.found
}

#[test]
fn what_was_replaced_counts_if_a_process_began_and_the_job_was_not_resized() {
    let found = unreported(true, |_| 1);
    assert_eq!(found.len(), 1, "as soon as the fourth makes a step: {found:?}");
    assert!(found[0].suspects.is_empty(), "{found:?}");
    assert!(unreported(true, |attempt| attempt).is_empty(), "an elastic job");
    assert!(unreported(false, |_| 1).is_empty(), "steps that are counted anew");
}

#[test]
fn a_new_run_that_never_makes_a_step_pages_at_the_third_death() {
    let mut s = Scene::new(Config::default());
    for _ in 0..2 {
        s.hello(0, 1);
        s.bye(1, "no such file: data.bin");
    }
    assert!(s.found.is_empty(), "{:?}", s.found);
    s.hello(0, 1);
    s.bye(1, "no such file: data.bin");
    let [v] = s.found.as_slice() else { panic!("{:?}", s.found) };
    assert_eq!((v.change, v.severity, v.value, v.start_step), (Change::Raise, Severity::Page, 3.0, 0));
    let why = v.why.to_string();
    for part in [": none made a step; no checkpoint of it is known; 3 of them failed alike", "data.bin"] {
        assert!(why.contains(part), "{why}");
    }
    s.hello(0, 1);
    s.steps(0, 1..=5);
    assert_eq!(s.changes(), [Change::Raise, Change::Clear], "the first step is progress");
}

#[test]
fn a_new_run_that_is_stopped_or_announced_before_its_first_step_is_no_loop() {
    let mut s = Scene::new(Config::default());
    for (code, is_announced) in [(143, false), (1, true), (130, false), (0, false), (1, true), (143, false)] {
        s.hello(0, 1);
        if is_announced {
            s.announce(600);
        }
        s.bye(code, "stopped");
    }
    assert!(s.found.is_empty(), "{:?}", s.found);
}

#[test]
fn the_number_of_attempts_is_a_setting_and_it_can_be_disabled() {
    for (enabled, attempts, found) in [(true, 0, 1), (true, 4, 0), (false, 2, 0)] {
        let mut s = Scene::failed_once_with(Config { enabled, attempts });
        (1..4).for_each(|attempt| s.attempt(attempt, 47, "lost"));
        assert_eq!(s.found.len(), found, "{enabled} {attempts}: {:?}", s.found);
    }
}

#[test]
fn failures_are_alike_whatever_their_numbers() {
    let failed = |text: &str| Failed::new(Target::rank(0, None), Ts(0), text, Course::Broke);
    let alike = |a: &str, b: &str| failed(a).is_like(&failed(b));
    assert!(alike("exited with code 1: pid 31337 at 0x7f3a", "exited with code 1: pid 9120 at 0x7f00"));
    assert!(!alike("exited with code 1", "exited with code 137"), "137 is no process id");
    assert!(!alike("exited with code 1: KeyError", "exited with code 1: IndexError"));
}

#[test]
fn a_place_is_named_where_all_failed_alike() {
    let failed = |rank: u32, node: &str, text: &str| {
        Failed::new(Target::rank(rank, Some(node)), Ts(0), text, Course::Broke)
    };
    let place = |all: &[Failed]| {
        let mut futile = Futile::new(Ts(0));
        all.iter().for_each(|one| futile.add(Some(one.clone())));
        let (_, common) = futile.common()?;
        futile.common_place(common)
    };
    assert_eq!(place(&[failed(3, "n1", "a"), failed(5, "n1", "a")]), Some(Target::node("n1")));
    assert_eq!(place(&[failed(3, "n1", "a"), failed(9, "n2", "a")]), None);
    assert_eq!(place(&[failed(3, "n1", "a"), failed(3, "n1", "b")]), None, "nothing is in common");
    let all = [failed(3, "n1", "a"), failed(8, "n2", "b"), failed(3, "n1", "a")];
    assert_eq!(place(&all), Some(Target::rank(3, Some("n1"))));
}
