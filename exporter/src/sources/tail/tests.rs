//! Real files in a temporary directory, virtual time, and a list in place of the hub.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stepwatch_wire::{Event, Kind};

use super::follow::{DRAIN, MAX_LINE_BYTES};
use super::*;
use crate::hub::Origin;
use crate::samples::Samples;
use crate::source::{DROPPED, LAG, Sources, UNMATCHED, UP};
use crate::training::Priority;

const UNIX: f64 = 4_000_000_000.0;
const NO_MISTAKES: [&str; 0] = [];
const NONE: [i64; 0] = [];

#[derive(Clone, Default)]
struct List {
    events: Arc<Mutex<Vec<(Priority, Event)>>>,
    sources: Arc<Sources>,
    last: Arc<Mutex<Option<i64>>>,
}

impl Sink for List {
    fn publish(&self, origin: Origin, event: Event) {
        *self.last.lock().unwrap() = event.step;
        self.events.lock().unwrap().push((origin.priority(), event));
    }

    fn last_step(&self, _: &str, _: u32) -> Option<i64> {
        *self.last.lock().unwrap()
    }

    fn source(&self, name: &str, kind: &str) -> SourceHandle {
        self.sources.register(name, kind)
    }
}

/// A tail whose clock the test turns, and which can be killed and started again.
struct Bench {
    dir: tempfile::TempDir,
    config: TailConfig,
    list: List,
    tail: Option<Tail>,
    now: Instant,
    unix: f64,
}

impl Bench {
    fn new(path: &str) -> Self {
        Self::with(path, |_| {})
    }

    fn with(path: &str, change: impl FnOnce(&mut TailConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("logs")).unwrap();
        let path = dir.path().join("logs").join(path);
        let mut config: TailConfig =
            stepwatch_kit::config::parse("c", &format!("path: {}\nfrom: start", path.display())).unwrap();
        change(&mut config);
        assert_eq!(config.check(), NO_MISTAKES);
        Self { dir, config, list: List::default(), tail: None, now: Instant::now(), unix: UNIX }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("logs").join(name)
    }

    fn append(&self, name: &str, text: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(self.path(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn steps(&self, name: &str, steps: std::ops::Range<i64>) {
        self.append(name, &steps.map(step).collect::<String>());
    }

    /// The exporter dies without a word; the next poll is of a new one.
    fn kill(&mut self) {
        self.tail = None;
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.unix += time.as_secs_f64();
    }

    /// Polls until there is nothing more at once, a quarter of a second later.
    fn poll(&mut self) -> Vec<Event> {
        self.wait(Duration::from_millis(250));
        let state = self.dir.path().join("state");
        let tail = self
            .tail
            .get_or_insert_with(|| Tail::new(self.config.clone(), Box::new(self.list.clone()), &state));
        for _ in 0..1000 {
            if !tail.poll(self.now, self.unix) {
                return self.list.events.lock().unwrap().drain(..).map(|(_, e)| e).collect();
            }
        }
        panic!("the tail never comes to rest");
    }

    fn poll_steps(&mut self) -> Vec<i64> {
        self.poll().into_iter().filter(|e| e.kind == Kind::Step).map(|e| e.step.unwrap()).collect()
    }

    fn page(&self) -> Samples {
        let mut out = Samples::default();
        self.list.sources.write(&mut out);
        out
    }

    fn dropped(&self, reason: &str) -> Option<f64> {
        self.page().get(&DROPPED, &[&self.config.path, "tail", reason])
    }
}

fn step(n: i64) -> String {
    format!(" iteration {n:8}/ 1000000 | elapsed time per iteration (ms): 10.0 | lm loss: 2.5E+00 |\n")
}

fn range(r: std::ops::Range<i64>) -> Vec<i64> {
    r.collect()
}

#[test]
fn follows_a_growing_file() {
    let mut b = Bench::new("run.log");
    assert_eq!(b.poll_steps(), NONE);
    assert_eq!(b.page().get(&UP, &[&b.config.path, "tail"]), Some(0.0), "the file is not there");
    b.steps("run.log", 1..4);
    assert_eq!(b.poll_steps(), [1, 2, 3]);
    assert_eq!(b.page().get(&UP, &[&b.config.path, "tail"]), Some(1.0));
    b.append("run.log", "noise\n");
    b.steps("run.log", 4..5);
    assert_eq!(b.poll_steps(), [4]);
    assert_eq!(b.page().get(&UNMATCHED, &[&b.config.path, "tail"]), Some(1.0));
    assert_eq!(b.poll_steps(), NONE);
}

#[test]
fn a_partial_line_waits_for_its_end() {
    let mut b = Bench::new("run.log");
    let line = step(7);
    for (i, c) in line.char_indices() {
        assert_eq!(b.poll_steps(), NONE, "{i}");
        b.append("run.log", &c.to_string());
    }
    assert_eq!(b.poll_steps(), [7]);
}

#[test]
fn a_partial_line_survives_a_restart() {
    let mut b = Bench::new("run.log");
    b.append("run.log", &step(7)[..40]);
    assert_eq!(b.poll_steps(), NONE);
    b.kill();
    b.append("run.log", &step(7)[40..]);
    assert_eq!(b.poll_steps(), [7]);
}

#[test]
fn rename_and_create_finishes_the_old_file_first() {
    let mut b = Bench::new("run.log");
    b.steps("run.log", 1..3);
    assert_eq!(b.poll_steps(), [1, 2]);
    b.steps("run.log", 3..5);
    fs::rename(b.path("run.log"), b.path("run.log.1")).unwrap();
    b.steps("run.log", 6..8);
    b.append("run.log.1", &step(5));
    assert_eq!(b.poll_steps(), [3, 4, 5, 6, 7]);
}

#[test]
fn a_writer_that_keeps_the_renamed_file_open_is_heard() {
    let mut b = Bench::new("run.log");
    b.steps("run.log", 1..3);
    b.poll();
    fs::rename(b.path("run.log"), b.path("run.log.1")).unwrap();
    b.append("run.log", "");
    assert_eq!(b.poll_steps(), NONE);
    b.wait(Duration::from_mins(5));
    b.append("run.log.1", &step(3));
    assert_eq!(b.poll_steps(), [3]);
    // Its last line has no end; when nothing comes for long it is taken as it is.
    b.append("run.log.1", step(4).trim_end());
    assert_eq!(b.poll_steps(), NONE);
    b.wait(DRAIN);
    assert_eq!(b.poll_steps(), [4]);
}

#[test]
fn copytruncate_and_truncation() {
    let mut b = Bench::new("run.log");
    b.steps("run.log", 1..100);
    assert_eq!(b.poll_steps().len(), 99);
    fs::copy(b.path("run.log"), b.path("run.log.1")).unwrap();
    fs::write(b.path("run.log"), "").unwrap();
    b.steps("run.log", 100..102);
    assert_eq!(b.poll_steps(), [100, 101]);
    assert_eq!(b.dropped("truncated"), Some(1.0));
    assert_eq!(b.poll_steps(), NONE);
    // Cut, and longer than before when next looked at.
    fs::write(b.path("run.log"), "").unwrap();
    b.steps("run.log", 200..205);
    assert_eq!(b.poll_steps(), range(200..205));
    assert_eq!(b.dropped("truncated"), Some(2.0));
}

#[test]
fn copytruncate_under_a_writer_that_does_not_append_leaves_a_hole() {
    let mut b = Bench::new("run.log");
    let mut writer = fs::File::create(b.path("run.log")).unwrap();
    for n in 1..50_000 {
        writer.write_all(step(n).as_bytes()).unwrap();
    }
    assert_eq!(b.poll_steps().len(), 49_999);
    OpenOptions::new().write(true).open(b.path("run.log")).unwrap().set_len(0).unwrap();
    assert_eq!(b.poll_steps(), NONE);
    writer.write_all(step(50_000).as_bytes()).unwrap();
    writer.write_all(step(50_001).as_bytes()).unwrap();
    assert_eq!(b.poll_steps(), [50_000, 50_001]);
}

#[test]
fn deletion_and_creation() {
    let mut b = Bench::new("run.log");
    b.steps("run.log", 1..3);
    assert_eq!(b.poll_steps(), [1, 2]);
    fs::remove_file(b.path("run.log")).unwrap();
    assert_eq!(b.poll_steps(), NONE);
    assert_eq!(b.page().get(&UP, &[&b.config.path, "tail"]), Some(0.0));
    b.steps("run.log", 1..4);
    assert_eq!(b.poll_steps(), [1, 2, 3]);
}

#[test]
fn goes_on_after_a_kill_without_loss_or_repetition() {
    let mut b = Bench::new("run.log");
    let mut seen = Vec::new();
    for n in 0..40 {
        b.steps("run.log", n * 3..n * 3 + 3);
        if n % 4 == 1 {
            b.append("run.log", "half a l");
        } else if n % 4 == 2 {
            b.append("run.log", "ine\n");
        }
        seen.extend(b.poll_steps());
        if n % 3 == 0 {
            b.kill();
        }
    }
    // `half a l` swallows the step line that follows it, as it would for a reader who never stopped.
    let swallowed: Vec<i64> = (0..40).filter(|n| n % 4 == 2).map(|n| n * 3).collect();
    assert_eq!(seen, (0..120).filter(|s| !swallowed.contains(s)).collect::<Vec<_>>());
}

#[test]
fn what_was_published_before_a_crash_is_not_published_again() {
    let mut b = Bench::new("run.log");
    b.steps("run.log", 1..3);
    b.poll();
    let state = b.dir.path().join("state/tails");
    let file = fs::read_dir(&state).unwrap().next().unwrap().unwrap().path();
    let before = fs::read(&file).unwrap();
    b.steps("run.log", 3..6);
    assert_eq!(b.poll_steps(), [3, 4, 5]);
    b.kill();
    fs::write(&file, before).unwrap(); // as if it had died before the position was saved
    b.steps("run.log", 6..8);
    assert_eq!(b.poll_steps(), [6, 7]);
    assert_eq!(b.dropped("read_again"), Some(3.0));
}

#[test]
fn rotation_while_the_exporter_is_down() {
    let mut b = Bench::new("run.log");
    b.steps("run.log", 1..3);
    assert_eq!(b.poll_steps(), [1, 2]);
    b.kill();
    b.steps("run.log", 3..5);
    fs::rename(b.path("run.log"), b.path("run.log.1")).unwrap();
    b.steps("run.log", 5..7);
    assert_eq!(b.poll_steps(), [3, 4, 5, 6]);
    b.kill();
    b.append("run.log.1", &step(7));
    b.steps("run.log", 8..9);
    assert_eq!(b.poll_steps(), [7, 8], "the drain goes on after a second restart");
    b.kill();
    fs::write(b.path("run.log"), step(100)).unwrap();
    assert_eq!(b.poll_steps(), [100], "cut while nobody looked");
}

#[test]
fn a_file_system_that_is_mounted_late_or_lost_for_a_while() {
    let mut b = Bench::new("mount/run.log");
    let (mount, away) = (b.path("mount"), b.path("away"));
    fs::create_dir(&mount).unwrap();
    b.steps("mount/run.log", 1..4);
    assert_eq!(b.poll_steps(), [1, 2, 3]);
    b.kill();
    b.steps("mount/run.log", 4..5);
    fs::rename(&mount, &away).unwrap();
    assert_eq!(b.poll_steps(), NONE);
    b.kill();
    assert_eq!(b.poll_steps(), NONE, "the position outlives a second start without the file");
    fs::rename(&away, &mount).unwrap();
    assert_eq!(b.poll_steps(), [4]);
}

#[test]
fn a_parser_goes_on_knowing_what_it_knew() {
    let mut b = Bench::new("run.log");
    let line = |n: i64, rest: &str| format!(" iteration {n}/ 1000 | consumed tokens: {} |{rest}\n", n * 500);
    b.append("run.log", &line(100, " lm loss: 2.0 |"));
    b.poll();
    b.kill();
    // All 100 iterations since the last line were skipped, or 99 of them: only who knows the last line can tell.
    b.append("run.log", &line(200, " number of skipped iterations: 99 |"));
    let e = b.poll();
    assert_eq!(
        (e[0].m.get("tokens"), e[0].missing.as_slice()),
        (Some(500.0), ["loss".to_owned()].as_slice())
    );
    // Steps that are counted go on, too.
    let mut b = Bench::new("hf.log");
    let dict = "{'loss': 2.0, 'learning_rate': 0.1, 'epoch': 0.1}\n";
    b.append("hf.log", &dict.repeat(3));
    assert_eq!(b.poll_steps(), [1, 2, 3]);
    b.kill();
    b.append("hf.log", dict);
    assert_eq!(b.poll_steps(), [4]);
}

#[test]
fn where_to_begin() {
    let begins = |from: From, age: f64| {
        let mut b = Bench::with("run.log", |c| c.from = from);
        b.steps("run.log", 1..3);
        let written = std::time::UNIX_EPOCH + Duration::from_secs_f64(UNIX - age);
        OpenOptions::new().append(true).open(b.path("run.log")).unwrap().set_modified(written).unwrap();
        let first = b.poll_steps();
        b.steps("run.log", 3..4);
        assert_eq!(b.poll_steps(), [3]);
        first
    };
    assert_eq!(begins(From::Start, 1e6), [1, 2]);
    assert_eq!(begins(From::End, 0.0), NONE);
    assert_eq!(begins(From::Auto, 3600.0), [1, 2]);
    assert_eq!(begins(From::Auto, 1e6), NONE, "the log of a job that is over");
    // What comes later is new, wherever we begin.
    let mut b = Bench::with("run.log", |c| c.from = From::End);
    b.poll();
    b.steps("run.log", 1..3);
    assert_eq!(b.poll_steps(), [1, 2]);
    // Inside a line, the rest of it alone means nothing.
    let mut b = Bench::with("run.log", |c| c.from = From::End);
    b.append("run.log", &step(1)[..5]);
    b.poll();
    b.append("run.log", &step(1)[5..]);
    b.steps("run.log", 2..3);
    assert_eq!(b.poll_steps(), [2]);
}

#[test]
fn a_line_without_end_is_cut_and_counted() {
    let mut b = Bench::new("run.log");
    b.append("run.log", step(1).trim_end());
    b.append("run.log", &"x".repeat(3 * MAX_LINE_BYTES));
    assert_eq!(b.poll_steps(), NONE);
    assert_eq!(b.dropped("line_too_long"), Some(1.0));
    b.kill();
    b.append("run.log", &format!("{}\n{}", step(2).trim_end(), step(3)));
    assert_eq!(b.poll_steps(), [3], "the rest of the long line is no line");
}

#[test]
fn progress_bars_that_never_end_a_line() {
    let mut b = Bench::new("hf.log");
    for n in 1..=2000 {
        b.append("hf.log", &format!("\r  1%|▏         | {n}/5000 [00:10<08:10,  1.00s/it]"));
    }
    b.append("hf.log", "\r          \r{'loss': 2.5, 'epoch': 0.1}\n");
    assert_eq!(b.poll_steps(), [2000]);
    assert_eq!(b.dropped("line_too_long"), None);
}

#[test]
fn patterns_find_new_files_and_leave_rotated_ones() {
    let mut b = Bench::new("*/out.log");
    for job in ["a", "b"] {
        fs::create_dir(b.path(job)).unwrap();
        b.append(&format!("{job}/out.log"), &step(1));
    }
    b.append("a/out.log.1", &step(99));
    let runs = |events: Vec<Event>| events.into_iter().map(|e| e.run.unwrap()).collect::<Vec<_>>();
    assert_eq!(runs(b.poll()), ["a", "b"], "named after their directories");
    fs::create_dir(b.path("c")).unwrap();
    b.append("c/out.log", &step(1));
    assert_eq!(runs(b.poll()), [""; 0]);
    b.wait(SCAN_EVERY);
    assert_eq!(runs(b.poll()), ["c"]);
    fs::remove_file(b.path("a/out.log")).unwrap();
    b.poll();
    b.wait(DRAIN);
    b.poll();
    assert_eq!(b.tail.as_ref().unwrap().files.len(), 2, "a deleted file is forgotten after a while");
}

#[test]
fn too_many_files_are_counted() {
    let mut b = Bench::new("*.log");
    for n in 0..MAX_FILES + 3 {
        b.append(&format!("{n}.log"), "");
    }
    b.poll();
    b.wait(SCAN_EVERY);
    b.poll();
    assert_eq!(b.dropped("too_many_files"), Some(3.0));
}

#[test]
fn labels_of_the_configuration() {
    let mut b = Bench::with("run.log", |c| {
        (c.run, c.rank, c.node) = (Some("llama".into()), Some(7), Some("node9".into()));
    });
    b.steps("run.log", 1..2);
    let e = b.poll().remove(0);
    assert_eq!((e.run.as_deref(), e.rank, e.node.as_deref()), (Some("llama"), Some(7), Some("node9")));
    let mut b = Bench::new("mine.jsonl");
    b.append("mine.jsonl", "{\"k\":\"step\",\"run\":\"theirs\",\"rank\":3,\"step\":1,\"m\":{\"loss\":NaN}}\n{\"step\":2,\"loss\":1}\n");
    b.wait(Duration::ZERO);
    let events = b.poll();
    assert_eq!((events[0].run.as_deref(), events[0].rank), (Some("theirs"), Some(3)));
    assert!(events[0].m.get("loss").unwrap().is_nan());
    assert_eq!((events[1].run.as_deref(), events[1].rank), (Some("mine"), None));
}

#[test]
fn records_are_more_exact_than_logs() {
    for (name, text, priority) in [
        ("a.jsonl", "{\"step\":2,\"loss\":1}\n".to_owned(), Priority::Jsonl),
        ("a.log", step(1), Priority::Log),
    ] {
        let mut b = Bench::new(name);
        b.append(name, &text);
        b.wait(Duration::from_millis(1));
        let state = b.dir.path().join("state");
        let mut tail = Tail::new(b.config.clone(), Box::new(b.list.clone()), &state);
        tail.poll(b.now, b.unix);
        assert_eq!(b.list.events.lock().unwrap()[0].0, priority, "{name}");
    }
}

#[test]
fn keys_of_the_configuration() {
    let mut b = Bench::with("x.jsonl", |c| {
        c.keys = [("step", "it"), ("loss", "a.b")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    });
    b.append("x.jsonl", "{\"it\":5,\"a\":{\"b\":2.5}}\n");
    let e = b.poll().remove(0);
    assert_eq!((e.step, e.m.get("loss")), (Some(5), Some(2.5)));
}

/// Noon of a day, as a logger five hours behind UTC prints it.
const STAMP: &str = "[2030-01-01 07:00:00]";
const NOON: f64 = 1_893_499_200.0;

#[test]
fn the_time_of_a_line() {
    let mut b = Bench::new("run.log");
    b.unix = NOON - 0.25;
    b.append("run.log", "start\n");
    b.poll();
    b.append("run.log", &format!("{STAMP}{}", step(1)));
    b.unix = NOON + 1.0;
    assert_eq!(b.poll()[0].ts, Some(NOON), "a fresh line tells its zone");
    b.append("run.log", &format!("[2030-01-01 07:00:10]{}", step(2)));
    b.unix = NOON + 400.0;
    assert_eq!(b.poll()[0].ts, Some(NOON + 10.0));
    assert_eq!(b.page().get(&LAG, &[&b.config.path, "tail"]), Some(390.25));
    b.append("run.log", &step(3));
    assert_eq!(b.poll()[0].ts, Some(b.unix), "without a stamp, when it came");
    b.append("run.log", &format!("[2031-01-01 07:00:00]{}", step(4)));
    assert_eq!(b.poll()[0].ts, Some(b.unix), "the future is a wrong clock");
}

#[test]
fn the_time_of_lines_that_were_there_before() {
    let written = std::time::UNIX_EPOCH + Duration::from_secs_f64(NOON + 5.0);
    let mut b = Bench::new("run.log");
    b.unix = NOON + 7200.0;
    b.append("run.log", &format!("{}{STAMP}{}", step(1), step(2)));
    OpenOptions::new().append(true).open(b.path("run.log")).unwrap().set_modified(written).unwrap();
    let ts: Vec<_> = b.poll().iter().map(|e| e.ts.unwrap()).collect();
    assert_eq!(
        ts,
        [NOON + 5.0, NOON],
        "not later than the file was written; in the zone that its last line tells"
    );
}

#[test]
fn what_is_not_a_file() {
    let mut b = Bench::new("dir");
    fs::create_dir(b.path("dir")).unwrap();
    assert_eq!(b.poll_steps(), NONE);
    assert_eq!(b.page().get(&UP, &[&b.config.path, "tail"]), Some(0.0));
}

#[test]
fn a_state_directory_that_cannot_be_written_stops_nothing() {
    let mut b = Bench::new("run.log");
    fs::write(b.dir.path().join("state"), "in the way").unwrap();
    b.steps("run.log", 1..3);
    assert_eq!(b.poll_steps(), [1, 2]);
    assert_eq!(b.dropped("position_not_saved"), Some(1.0));
}

#[test]
fn mistakes_of_the_configuration_are_named() {
    let config = |yaml: &str| stepwatch_kit::config::parse::<Vec<crate::sources::SourceConfig>>("c", yaml);
    let good = config("- tail: {path: /logs/run.log, format: auto, run: llama-70b}").unwrap();
    assert_eq!(crate::sources::check(&good), NO_MISTAKES);
    let bad = config(
        "- tail: {path: '', format: megatorn}\n- tail: {path: '/a/***', keys: {loss: x}, format: llmc, poll_interval: 1ms}",
    );
    insta::assert_snapshot!(crate::sources::check(&bad.unwrap()).join("\n"), @r#"
    sources[0].tail.path: must not be empty
    sources[0].tail.format: unknown log format "megatorn"; known are auto, megatron, jsonl, huggingface, torchtitan, maxtext, verl, nanochat, nanogpt, modded-nanogpt, llmc, composer
    sources[1].tail.path: Pattern syntax error near position 5: wildcards are either regular `*` or recursive `**`
    sources[1].tail.keys: must tell where the step stands (step: ...)
    sources[1].tail.keys: are for JSON lines, but the format is llmc
    sources[1].tail.poll_interval: must be at least 10ms
    "#);
    assert!(config("- tail: {path: /a, fromat: x}").is_err());
    assert!(config("- tial: {path: /a}").is_err());
}

#[tokio::test]
async fn the_thread_stops_when_asked() {
    let mut b = Bench::with("run.log", |c| c.poll_interval = Period::millis(10));
    b.steps("run.log", 1..3);
    let (trigger, shutdown) = Shutdown::manual();
    start(b.config.clone(), Box::new(b.list.clone()), b.dir.path(), shutdown);
    let deadline = Instant::now() + Duration::from_secs(20);
    let until = async |condition: &dyn Fn() -> bool| {
        while !condition() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(condition());
    };
    until(&|| b.list.events.lock().unwrap().len() == 2).await;
    trigger.fire();
    until(&|| b.page().is_empty()).await;
    assert!(Path::new(&b.config.path).exists());
    b.now += Duration::ZERO;
}
