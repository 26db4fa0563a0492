//! Tests with real files in a temporary directory, virtual time, and a list in place of the hub.

mod directory;
mod endings;
mod lines;
mod records;
mod restart;
mod rotation;
mod settings;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stepwatch_wire::{Event, Kind};

use super::follow::DRAIN;
use super::framing::MAX_LINE_BYTES;
use super::open::MAX_ZEROS;
use super::*;
use crate::drops::Reason;
use crate::origin::Priority;
use crate::origin::{Origin, Outcome};
use crate::principal::Principal;
use crate::samples::Samples;
use crate::source::{DROPPED, LAG, NOT_OWNER, RESOLUTION, SKIPPED, Sources, UNMATCHED, UP};
use crate::stream::Mark;
use crate::unfinished::{LIMIT, Room};

const UNIX: f64 = 4_000_000_000.0;
const NO_MISTAKES: [&str; 0] = [];
const NONE: [i64; 0] = [];

#[derive(Clone, Default)]
struct List {
    events: Arc<Mutex<Vec<(Priority, Event)>>>,
    sources: Arc<Sources>,
    last: Arc<Mutex<Option<i64>>>,
    /// Whether there is no room for another run.
    full: Arc<Mutex<bool>>,
    /// The directory of positions, and its file at the last publish, as a crash right after it
    /// would leave it.
    saved: Arc<Mutex<(PathBuf, Option<Vec<u8>>)>>,
    /// The positions that the stream keeps, if it has a journal.
    marks: Arc<Mutex<Option<BTreeMap<String, String>>>>,
    /// The runs that were merged into others.
    joined: Arc<Mutex<Vec<(String, String)>>>,
    /// A run that was forgotten because it was idle.
    forgotten: Arc<Mutex<Option<String>>>,
    room: Room,
}

impl Sink for List {
    fn room(&self) -> Room {
        self.room.clone()
    }

    fn publish(&self, origin: Origin, event: Event) -> Outcome {
        if *self.full.lock().unwrap() {
            return Outcome::Dropped(Reason::Runs);
        }
        *self.last.lock().unwrap() = event.step;
        let mut saved = self.saved.lock().unwrap();
        saved.1 = saved_file(&saved.0).map(|file| fs::read(file).unwrap());
        self.events.lock().unwrap().push((origin.priority(), event));
        Outcome::Accepted
    }

    fn publish_all(&self, origin: &Origin, events: &mut Vec<Event>, mark: Mark<'_>) -> bool {
        while let Some(event) = events.first().cloned() {
            if self.publish(origin.clone(), event) != Outcome::Accepted {
                return false;
            }
            events.remove(0);
        }
        let mut marks = self.marks.lock().unwrap();
        marks.as_mut().map(|m| m.insert(mark.key.into(), mark.value.into())).is_some()
    }

    fn mark(&self, key: &str) -> Option<String> {
        self.marks.lock().unwrap().as_ref()?.get(key).cloned()
    }

    fn follows(&self, run: &str) -> bool {
        self.forgotten.lock().unwrap().as_deref() != Some(run)
    }

    fn last_step(&self, _: &str, _: u32) -> Option<i64> {
        *self.last.lock().unwrap()
    }

    fn join(&self, _: f64, _: Principal, from: &str, to: &str) {
        self.joined.lock().unwrap().push((from.into(), to.into()));
    }

    fn source(&self, name: &str, kind: &str) -> SourceHandle {
        self.sources.register(name, kind)
    }
}

/// The only file of positions.
fn saved_file(dir: &Path) -> Option<PathBuf> {
    Some(fs::read_dir(dir).ok()?.next()?.unwrap().path())
}

/// A tail with a virtual clock, which can be killed and restarted.
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
        let list = List::default();
        list.saved.lock().unwrap().0 = dir.path().join("state/tails");
        Self { dir, config, list, tail: None, now: Instant::now(), unix: UNIX }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("logs").join(name)
    }

    fn append(&self, name: &str, text: &str) {
        self.append_bytes(name, text.as_bytes());
    }

    fn append_bytes(&self, name: &str, bytes: &[u8]) {
        let mut file = OpenOptions::new().create(true).append(true).open(self.path(name)).unwrap();
        file.write_all(bytes).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs_f64(self.unix)).unwrap();
    }

    fn steps(&self, name: &str, steps: std::ops::Range<i64>) {
        self.append(name, &steps.map(step).collect::<String>());
    }

    /// Kills the exporter without saving; the next poll is of a new one.
    fn kill(&mut self) {
        self.tail = None;
    }

    /// Kills the exporter after it published and before it saved the position.
    fn kill_before_saving(&mut self) {
        self.kill();
        let mut saved = self.list.saved.lock().unwrap();
        if let Some(bytes) = saved.1.take() {
            fs::write(saved_file(&saved.0).unwrap(), bytes).unwrap();
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.unix += time.as_secs_f64();
    }

    /// Advances the clock by a quarter of a second and polls until there is no more.
    fn poll(&mut self) -> Vec<Event> {
        self.wait(Duration::from_millis(250));
        let state = self.dir.path().join("state");
        let tail = self.tail.get_or_insert_with(|| new_tail(&self.config, &self.list, &state));
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

fn new_tail(config: &TailConfig, list: &List, state: &Path) -> Tail {
    let tail = Tail::new(config.clone(), Box::new(list.clone()), state, Path::new("/proc"));
    // The real duration of a search does not count on the test's clock.
    Tail { scan_pause: 0, ..tail }
}

fn step(n: i64) -> String {
    format!(" iteration {n:8}/ 1000000 | elapsed time per iteration (ms): 10.0 | lm loss: 2.5E+00 |\n")
}

fn range(r: std::ops::Range<i64>) -> Vec<i64> {
    r.collect()
}
