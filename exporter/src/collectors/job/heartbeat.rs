//! Heartbeat pages: 256 bytes of shared memory into which each training process writes its
//! progress. They can be read while it hangs, is stopped, or after it was killed, whereas the
//! ingest socket needs the process's cooperation.
//!
//! If a process dies while this exporter does not run, its heartbeat page is the only trace of the
//! death.

use std::collections::BTreeSet;
use std::fs::{File, ReadDir};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use stepwatch_kit::config::Period;
use stepwatch_wire::names::exporter_event;
use stepwatch_wire::{Event, Kind, Value, words};

use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::fair_share;
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::origin::Priority;
use crate::origin::{Origin, Via};
use crate::principal::Principal;
use crate::processes::stat::read_stat;
use crate::roots::Roots;
use crate::samples::Samples;

pub const ABOUT: &str = "heartbeat pages of training processes, in shared memory";
pub const NEEDS: &str = "/dev/shm/stepwatch; any user";
pub const COST: &str = "256 bytes a rank";

const RANK: &[&str] = &["run", "rank"];

pub static BEAT: Family = Family::gauge(
    "train_heartbeat_page_timestamp_seconds",
    "seconds",
    RANK,
    "Unix time at which the rank's reporting thread last ran, from shared memory: old while the interpreter is held, or the process stopped",
);
pub static STEP: Family =
    Family::gauge("train_heartbeat_page_step", "", RANK, "Last step of the rank, from shared memory");
pub static PHASE: Family = Family::gauge(
    "train_heartbeat_page_phase_seconds",
    "seconds",
    &["run", "rank", "phase"],
    "How long the rank has been in the phase that it is in, from shared memory",
);

pub static DROPPED: Family = Family::counter(
    "stepwatch_exporter_heartbeat_pages_dropped_total",
    "",
    &[],
    "Heartbeat pages that were not read because there are too many, added up over all passes; the log names their users",
);

pub static FAMILIES: &[&Family] = &[&BEAT, &STEP, &PHASE, &DROPPED];

/// The directory of the client's pages within shared memory.
const DIR: &str = "stepwatch";
const MAGIC: &[u8; 8] = b"STEPWHB1";
const SIZE: usize = 256;
/// The largest step that is an integer in JSON; before the first step, it is -1.
const MAX_STEP: i64 = 1 << 53;
/// The most pages of one node that are read; users share the limit.
const MAX_PAGES: usize = 1024;
/// The most names that are read in one pass.
const MAX_NAMES: usize = 262_144;
/// The time between two log lines about pages that are left out.
const LOG_EVERY: Duration = Duration::from_mins(1);
/// The most reads of a page, because one may coincide with a write.
const TRIES: usize = 8;
/// Seconds after which the death of a process is too old to be published.
const NEWS_SECONDS: f64 = 900.0;
/// Seconds after its last beat for which a page is exported if its process cannot be looked up.
const UNSEEN_SECONDS: f64 = 900.0;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().period("interval", self.interval)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, metrics: Metrics::default(), interval: Period::secs(1) }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(5) }
}

#[derive(Debug)]
pub struct HeartbeatReader {
    /// Deaths that were published and whose pages still exist.
    published: BTreeSet<Death>,
    /// The number of pages that were left out.
    dropped: u64,
    logged: Option<Instant>,
    name: Arc<str>,
}

/// The owner of the page, and the pid and start time of the process. Another user may claim the
/// same process.
type Death = (Principal, u32, u64);

/// A page to be read.
#[derive(Debug)]
struct Entry {
    path: PathBuf,
    uid: u32,
    written: (i64, i64),
}

/// The content of a page.
#[derive(Debug, Clone, PartialEq)]
struct Page {
    step: i64,
    step_at: f64,
    beat: f64,
    phase_at: f64,
    pid: u32,
    rank: u32,
    /// The process's start time in clock ticks after boot, which distinguishes reused pids.
    started: u64,
    /// The inode of the pid's namespace; 0 if unknown.
    namespace: u64,
    phase: String,
    run: String,
    /// The owner of the page.
    principal: Principal,
}

impl HeartbeatReader {
    pub fn new(_: &Config) -> Self {
        Self { published: BTreeSet::new(), dropped: 0, logged: None, name: "heartbeat".into() }
    }

    /// The pages that are read. Users alternate, and the latest pages of a user come first, because
    /// the page of a dead process stays until its user removes it.
    fn choose(&mut self, listing: ReadDir) -> Vec<Entry> {
        let (mut wanted, mut over) = (Vec::new(), Vec::new());
        let mut names = 0;
        let mut share = |wanted: Vec<Entry>| {
            let (kept, left) = fair_share::fair(wanted, MAX_PAGES, |e| e.uid, |e| e.written);
            over.extend(left.iter().map(|entry| entry.uid));
            kept
        };
        for entry in listing.flatten() {
            names += 1;
            if names > MAX_NAMES {
                self.dropped += 1;
                break;
            }
            wanted.extend(Entry::from_path(entry.path()));
            // The limit is applied early to save memory.
            if wanted.len() >= 4 * MAX_PAGES {
                wanted = share(wanted);
            }
        }
        let kept = share(wanted);
        self.dropped += over.len() as u64;
        let is_cut = !over.is_empty() || names > MAX_NAMES;
        if is_cut && self.logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            self.logged = Some(Instant::now());
            let whose = fair_share::by_user(over.into_iter());
            tracing::warn!(whose, names, "more heartbeat pages than are read");
        }
        kept
    }

    /// Publishes the death of an exited process whose end was not seen. `seen` collects the deaths
    /// for which no second event is needed.
    fn orphan(&self, cx: &Context<'_>, page: &Page, seen: &mut BTreeSet<Death>) {
        if unix_now() - page.beat >= NEWS_SECONDS {
            return;
        }
        let death = (page.principal, page.pid, page.started);
        let is_new = seen.insert(death) && !self.published.contains(&death);
        let run = cx.hub.run_of_process(page.pid, &page.run);
        if is_new && cx.hub.missed(&run, page.rank, page.pid, page.beat) {
            let origin = Origin::said_by(Via::Heartbeat, &self.name, Priority::Client, page.principal);
            cx.hub.publish(origin, Event { run: Some(run), ..page.death() });
        }
    }
}

impl Collector for HeartbeatReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let dir = cx.roots.shm(DIR);
        match std::fs::read_dir(&dir) {
            Ok(_) => Ok(Support::Supported(format!("pages in {}", dir.display()))),
            Err(_) => Ok(Support::Unsupported(format!("no process made {} yet", dir.display()))),
        }
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let dir = cx.roots.shm(DIR);
        let entries = std::fs::read_dir(&dir).map_err(|e| CollectError::read(&dir, e))?;
        let now = unix_now();
        let namespace = pid_namespace(cx.roots);
        let chosen = self.choose(entries);
        let mut deaths = BTreeSet::new();
        for page in chosen.iter().filter_map(|entry| Page::read(&entry.path)) {
            let seen = page.namespace == 0 || namespace.is_none_or(|ours| ours == page.namespace);
            if !seen {
                // The process is in a container, so only its beat shows whether it is alive.
                if now - page.beat > UNSEEN_SECONDS {
                    continue;
                }
            } else if read_stat(cx.roots, page.pid).is_none_or(|s| s.start_ticks() != page.started) {
                self.orphan(cx, &page, &mut deaths);
                continue;
            }
            if !cx.hub.hears(page.principal, &page.run) {
                continue;
            }
            let rank = page.rank.to_string();
            let run = if seen {
                cx.hub.run_of_process(page.pid, &page.run)
            } else {
                cx.hub.canonical(&page.run).into_owned()
            };
            let labels: &[&str] = &[&run, &rank];
            out.set(&BEAT, labels, page.beat);
            if let Some(step) = page.last_step() {
                out.set(&STEP, labels, step as f64);
            }
            if page.phase_at > 0.0 && !page.phase.is_empty() {
                out.set(&PHASE, &[&run, &rank, &page.phase], (now - page.phase_at).max(0.0));
            }
        }
        self.published = deaths;
        out.set(&DROPPED, &[], self.dropped);
        Ok(())
    }
}

impl Entry {
    fn from_path(path: PathBuf) -> Option<Self> {
        if path.extension()? != "hb" {
            return None;
        }
        let meta = std::fs::symlink_metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
        Some(Self { path, uid: meta.uid(), written: (meta.mtime(), meta.mtime_nsec()) })
    }
}

impl Page {
    /// Reads a page; `None` if it is not one, or is constantly being written. The file is opened
    /// once, so that its content and its owner belong together.
    fn read(path: &Path) -> Option<Self> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path).ok()?;
        let meta = file.metadata().ok().filter(|m| m.is_file() && m.len() == SIZE as u64)?;
        for _ in 0..TRIES {
            let bytes = bytes(&file)?;
            // Reads the counter before and after, and copies a page again that changed meanwhile.
            if word(&bytes, 8).is_multiple_of(2) && bytes == self::bytes(&file)? {
                return Some(Self {
                    principal: Principal::from_uid(Some(meta.uid())),
                    ..Self::parse(&bytes)?
                });
            }
        }
        None
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != SIZE || !bytes.starts_with(MAGIC) {
            return None;
        }
        let number = |at| f64::from_bits(word(bytes, at));
        let small = |at: usize| word(bytes, at) as u32;
        let page = Self {
            step: word(bytes, 16).cast_signed(),
            step_at: number(24),
            beat: number(32),
            phase_at: number(40),
            pid: small(48),
            rank: small(52),
            started: word(bytes, 56),
            namespace: word(bytes, 192),
            phase: text(&bytes[64..96]),
            run: text(&bytes[96..192]),
            principal: Principal::Unknown,
        };
        let times = [page.step_at, page.beat, page.phase_at];
        let is_sane = times.iter().all(|t| t.is_finite()) && (-1..=MAX_STEP).contains(&page.step);
        (is_sane && !page.run.is_empty()).then_some(page)
    }

    /// The last step; `None` before the first.
    fn last_step(&self) -> Option<i64> {
        (self.step >= 0 && self.step_at > 0.0).then_some(self.step)
    }

    fn death(&self) -> Event {
        let after = self
            .last_step()
            .map_or_else(|| "before its first step".to_owned(), |step| format!("after step {step}"));
        let within = if self.phase.is_empty() { String::new() } else { format!(", in phase {}", self.phase) };
        let mut event = Event {
            ts: Some(self.beat),
            run: Some(self.run.clone()),
            rank: Some(self.rank),
            step: self.last_step(),
            name: Some(exporter_event::RANK_DEAD.into()),
            level: Some("error".into()),
            text: Some(format!(
                "process {} of rank {} died {after}{within} while the exporter was not running; it left its heartbeat page behind",
                self.pid, self.rank
            )),
            ..Event::new(Kind::Event)
        };
        event.extra.insert("pid".into(), Value::Number(f64::from(self.pid)));
        event.extra.insert("process".into(), Value::Text("gone".into()));
        event
    }
}

/// The events of pages of dead processes: of the data as it is, and of the data with the size and
/// first bytes of a page, which a fuzzer seldom produces.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(data: &[u8]) -> Vec<Event> {
    let mut framed = data.to_vec();
    framed.resize(SIZE, 0);
    framed[..MAGIC.len()].copy_from_slice(MAGIC);
    [data, &framed].into_iter().filter_map(Page::parse).map(|page| page.death()).collect()
}

/// The pid namespace of the `/proc` in use: that of its process 1, or this process's own if that
/// may not be read.
fn pid_namespace(roots: &Roots) -> Option<u64> {
    let inode = |pid: &str| std::fs::metadata(roots.proc(pid).join("ns/pid")).ok().map(|m| m.ino());
    inode("1").or_else(|| inode("self"))
}

fn bytes(file: &File) -> Option<[u8; SIZE]> {
    let mut bytes = [0; SIZE];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}

/// The eight bytes at `at`, as a little-endian number; 0 past the end.
fn word(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    eight.map_or(0, u64::from_le_bytes)
}

/// The text before its padding, without characters that would break a label or a message.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    words::line(&String::from_utf8_lossy(&bytes[..end])).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const BEAT_AT: f64 = 1_795_227_420.5;

    fn page(pid: u32, started: u64, beat: f64) -> Vec<u8> {
        let mut b = Vec::from(*MAGIC);
        b.extend(4u64.to_le_bytes());
        b.extend(12_345i64.to_le_bytes());
        for time in [beat - 2.0, beat, beat - 1.5] {
            b.extend(time.to_le_bytes());
        }
        b.extend(pid.to_le_bytes());
        b.extend(7u32.to_le_bytes());
        b.extend(started.to_le_bytes());
        let text = |text: &str, len: usize| [text.as_bytes(), &vec![0; len - text.len()]].concat();
        b.extend(text("fwd_bwd", 32));
        b.extend(text("llama-70b", 96));
        b.resize(SIZE, 0);
        b
    }

    /// The pid and start time of this process.
    fn own() -> (u32, u64) {
        let pid = std::process::id();
        (pid, read_stat(&Roots::default(), pid).unwrap().start_ticks())
    }

    struct Shm(tempfile::TempDir);

    impl Shm {
        fn write(&self, name: &str, bytes: &[u8]) {
            std::fs::write(self.0.path().join(DIR).join(name), bytes).unwrap();
        }
    }

    fn bench() -> (Shm, HeartbeatReader, testing::Bench) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(DIR)).unwrap();
        let roots = Roots { shm: dir.path().into(), ..Roots::default() };
        (Shm(dir), HeartbeatReader::new(&Config::default()), testing::Bench::new(roots))
    }

    /// The number of series of pages.
    fn shown(out: &Samples) -> usize {
        out.iter().filter(|s| s.family != &DROPPED).count()
    }

    #[test]
    fn a_page_of_a_process_that_lives() {
        let (shm, mut reader, b) = bench();
        let (pid, started) = own();
        shm.write("1.hb", &page(pid, started, BEAT_AT));
        shm.write("2.hb", b"STEPWHB1 but short");
        shm.write("notes.txt", &page(pid, started, BEAT_AT));
        assert!(matches!(reader.probe(&b.context()).unwrap(), Support::Supported(_)));
        let out = b.collect(&mut reader);
        let labels = ["llama-70b", "7"];
        assert_eq!(out.get(&BEAT, &labels), Some(BEAT_AT));
        assert_eq!(out.get(&STEP, &labels), Some(12_345.0));
        let age = out.get(&PHASE, &["llama-70b", "7", "fwd_bwd"]).unwrap();
        assert!((age - (unix_now() - BEAT_AT + 1.5).max(0.0)).abs() < 60.0, "{age}");
        assert_eq!(shown(&out), 3);
        assert!(b.published().is_empty());
    }

    #[test]
    fn a_page_that_was_left_behind_reports_a_death_once() {
        let (shm, mut reader, b) = bench();
        let (pid, started) = own();
        // The pid exists, but belongs to another process.
        shm.write("1.hb", &page(pid, started + 1, unix_now()));
        for _ in 0..2 {
            assert_eq!(shown(&b.collect(&mut reader)), 0);
        }
        let published = b.published();
        let [death] = &published[..] else { panic!("{published:?}") };
        assert_eq!(
            (death.name.as_deref(), death.run.as_deref(), death.rank, death.step),
            (Some("rank_dead"), Some("llama-70b"), Some(7), Some(12_345))
        );
        assert!(death.text.as_deref().unwrap().contains("in phase fwd_bwd"), "{:?}", death.text);
    }

    #[test]
    fn a_pid_of_a_container_is_not_looked_up() {
        let (shm, mut reader, b) = bench();
        let (pid, started) = own();
        let mut page = page(pid, started + 1, unix_now());
        page[192..200].copy_from_slice(&1u64.to_le_bytes());
        shm.write("1.hb", &page);
        assert_eq!(b.collect(&mut reader).get(&STEP, &["llama-70b", "7"]), Some(12_345.0));
        assert!(b.published().is_empty());
    }

    #[test]
    fn an_old_death_is_no_news() {
        let (shm, mut reader, b) = bench();
        let (pid, started) = own();
        let beat = unix_now() - 2.0 * NEWS_SECONDS;
        shm.write("1.hb", &page(pid, started + 1, beat));
        assert!(shown(&b.collect(&mut reader)) == 0 && b.published().is_empty());
    }

    /// Changes the owner of a page, which only root can.
    fn give_away(shm: &Shm, name: &str) -> bool {
        let is_root = testing::is_root();
        let path = shm.0.path().join(DIR).join(name);
        is_root && std::os::unix::fs::lchown(path, Some(65_534), None).is_ok()
    }

    #[test]
    fn invented_dead_processes_do_not_silence_a_later_death() {
        let (shm, mut reader, b) = bench();
        let (pid, started) = own();
        let invented = |n: usize| page(pid, started + 2 + n as u64, unix_now() - 2.0 * NEWS_SECONDS);
        for n in 0..MAX_PAGES {
            shm.write(&format!("{n}.hb"), &invented(n));
        }
        b.collect(&mut reader);
        shm.write("0.hb", &page(pid, started + 1, unix_now()));
        b.collect(&mut reader);
        assert_eq!(b.published().len(), 1);
        for n in 0..MAX_PAGES {
            std::fs::remove_file(shm.0.path().join(DIR).join(format!("{n}.hb"))).unwrap();
        }
        b.collect(&mut reader);
        assert!(reader.published.is_empty(), "what is gone is forgotten");
    }

    #[test]
    fn pages_of_one_user_do_not_hide_those_of_another() {
        let (shm, mut reader, b) = bench();
        let (pid, started) = own();
        shm.write("genuine.hb", &page(pid, started, BEAT_AT));
        if !give_away(&shm, "genuine.hb") {
            return;
        }
        let old = page(pid, started + 1, 1.0);
        for n in 0..5 * MAX_PAGES {
            shm.write(&format!("{n}.hb"), &old);
        }
        let out = b.collect(&mut reader);
        assert_eq!(out.get(&BEAT, &["llama-70b", "7"]), Some(BEAT_AT));
        assert_eq!(out.get(&DROPPED, &[]), Some(4.0 * MAX_PAGES as f64 + 1.0));
    }

    #[test]
    fn a_link_is_no_page_and_a_pipe_is_not_waited_for() {
        use rustix::fs::{CWD, FileType, Mode};
        let (shm, mut reader, b) = bench();
        let (pid, started) = own();
        let dir = shm.0.path().join(DIR);
        shm.write("page", &page(pid, started, BEAT_AT));
        std::os::unix::fs::symlink(dir.join("page"), dir.join("link.hb")).unwrap();
        rustix::fs::mknodat(CWD, dir.join("pipe.hb"), FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
        assert_eq!(b.collect(&mut reader).get(&BEAT, &["llama-70b", "7"]), None);
        // As if they had been created after the directory was listed.
        assert!(Page::read(&dir.join("link.hb")).is_none() && Page::read(&dir.join("pipe.hb")).is_none());
    }

    #[test]
    fn no_directory_is_unsupported() {
        let (shm, mut reader, b) = bench();
        std::fs::remove_dir(shm.0.path().join(DIR)).unwrap();
        assert!(matches!(reader.probe(&b.context()).unwrap(), Support::Unsupported(_)));
    }

    /// Checks the corpus of the fuzzer.
    #[test]
    fn corpus_is_of_pages() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/heartbeat");
        let is_page = |name: &str| Page::parse(&std::fs::read(dir.join(name)).unwrap()).is_some();
        assert_eq!(["training", "starting", "moved"].map(is_page), [true; 3]);
        assert_eq!(["torn", "step_before_all"].map(is_page), [false; 2]);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_page_or_none(at in 0usize..SIZE, byte: u8, cut in 0usize..=SIZE) {
            let mut bytes = page(1, 2, BEAT_AT);
            bytes[at] = byte;
            let _ = Page::parse(&bytes);
            proptest::prop_assert!(Page::parse(&bytes[..cut.min(SIZE - 1)]).is_none());
        }
    }
}
