//! Finds exporters in target files, HTTP lists and the DNS.
//!
//! A provider that cannot answer keeps its last good answer: a partly written file or a restarting
//! name server must not remove a fleet. An answer that omits most targets is not accepted at once
//! either (`loss.rs`).

use core::time::Duration;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use futures_util::StreamExt as _;
use stepwatch_kit::config::Secret;
use stepwatch_model::Severity;
use stepwatch_model::time::Span;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::client_builder;
use super::groups::{MAX_TARGETS, Targets};
use super::kept::KeptLists;
use super::loss::{BELIEVED_ANSWERS, Listed, Notice, Sending};
use super::name::Name;
use super::status::SourceTable;
use super::target::{Target, shown_url};
use crate::errors::innermost;
use crate::files::read_regular;
use crate::metrics::{IngestMetrics, MechanismLabel, Word};
use crate::notify::http::{redact, url_secrets};
use crate::notify::line;
use crate::runtime::Command;

/// The most bytes of one target file or list: 200 bytes for each allowed target, an address with
/// some labels.
const MAX_LIST_BYTES: usize = 4 << 20;
/// The most files that one pattern may match.
const MAX_FILES: usize = 1000;
/// The most characters of an error.
const MAX_ERROR: usize = 300;
/// The most characters of the name of a list in a ticket.
const MAX_CHECK: usize = 200;
/// The time limit for a list to arrive, or all files of a pattern to be read.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Provider {
    /// A glob of target files.
    FileSd(String),
    /// A URL.
    HttpSd(String),
    /// A DNS name, `name` or `name:port`.
    Dns(String),
}

/// The targets that a provider found.
#[derive(Debug)]
pub(crate) struct Found {
    pub provider: Provider,
    pub targets: BTreeSet<Target>,
    /// Whether the list is complete, so that a source that is not in it was removed.
    pub complete: bool,
}

/// The state of a provider between two queries.
enum Asker {
    Files(Scan),
    List { client: Result<reqwest::Client, String>, url: String, period: Duration },
    Name(Name),
}

/// The settings for watching a provider.
#[derive(Debug)]
pub(crate) struct Watch {
    pub period: Duration,
    /// The time after which a loss is accepted.
    pub believed_after: Duration,
    /// The name under which the list is kept, and its targets from before this process.
    pub list: String,
    pub kept: Option<BTreeSet<Target>>,
}

/// The destinations of a provider's results.
#[derive(Debug, Clone)]
pub(crate) struct Hearers {
    pub found: mpsc::Sender<Found>,
    /// The commands for faults about lists that lose many targets that still send.
    pub commands: mpsc::Sender<Command>,
    pub table: SourceTable,
    pub metrics: IngestMetrics,
    pub keeper: KeptLists,
}

impl Provider {
    fn mechanism(&self) -> &'static str {
        match self {
            Self::FileSd(_) => "file_sd",
            Self::HttpSd(_) => "http_sd",
            Self::Dns(_) => "dns",
        }
    }

    fn subject(&self) -> Cow<'_, str> {
        match self {
            Self::FileSd(s) | Self::Dns(s) => s.into(),
            Self::HttpSd(url) => shown_url(url).into(),
        }
    }

    fn asker(&self, period: Duration) -> Asker {
        match self {
            Self::FileSd(pattern) => Asker::Files(Scan { files: Files::new(pattern.clone()), running: None }),
            Self::HttpSd(url) => {
                let mut client = client_builder().timeout(ANSWER_TIMEOUT);
                if url.starts_with("http:") {
                    client = client.tls_certs_only([]);
                }
                let client = client.build().map_err(|e| innermost(&e));
                Asker::List { client, url: url.clone(), period }
            }
            Self::Dns(name) => Asker::Name(Name::new(name)),
        }
    }

    /// Queries every `period`, and sends every change. A loss is accepted after `believed_after`.
    /// Until the provider answers, its targets from before this process are in force. Runs until
    /// dropped or until a receiver is closed.
    pub(crate) async fn watch(self, watch: Watch, hearers: Hearers) {
        let Watch { period, believed_after, list, mut kept } = watch;
        let mut asker = self.asker(period);
        let mut listed = Listed::new(believed_after, kept.clone());
        let mut last_sent: Option<(BTreeSet<Target>, bool)> = None;
        let mut last_errors = Vec::new();
        if let Some(targets) = kept.clone() {
            last_sent = Some((targets.clone(), false));
            if hearers.found.send(Found { provider: self.clone(), targets, complete: false }).await.is_err() {
                return;
            }
        }
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (targets, errors) = asker.ask().await;
            self.report(&errors, &last_errors, &hearers.metrics);
            let complete = errors.is_empty();
            last_errors = errors;
            // Without an answer, the last targets stay in force.
            let Some(targets) = targets else { continue };
            let restored = listed.is_restored();
            let sends = |target: &Target| {
                hearers.table.is_up(target.name()) || restored && !hearers.table.is_down(target.name())
            };
            let (targets, notice) = listed.take(Instant::now(), targets, sends);
            if let Some(command) = notice.and_then(|notice| self.note(notice, believed_after))
                && hearers.commands.send(command).await.is_err()
            {
                return;
            }
            let news = (targets, complete);
            if last_sent.as_ref() != Some(&news) {
                let (targets, complete) = news.clone();
                last_sent = Some(news);
                if hearers.found.send(Found { provider: self.clone(), targets, complete }).await.is_err() {
                    return;
                }
            }
            if let Some(named) = listed.named().filter(|named| kept.as_ref() != Some(named))
                && hearers.keeper.keep(&list, named).await
            {
                kept = Some(named.clone());
            }
        }
    }

    /// The fault to report for a loss, or its end.
    fn note(&self, notice: Notice, believed_after: Duration) -> Option<Command> {
        let (mechanism, subject) = (self.mechanism(), self.subject());
        let after = Span(believed_after.as_millis() as i64);
        match notice {
            Notice::Lost { lost, all, sending } => {
                let of = match sending {
                    Sending::Known(sending) => format!("its {all} targets, of which {sending} still send"),
                    Sending::Restarted => {
                        format!("the {all} targets that it named before the alerter was started")
                    }
                };
                let what = format!("{mechanism} {subject} leaves out {lost} of {of}");
                let then = format!(
                    "they are watched until it has left them out for {after} and in {BELIEVED_ANSWERS} answers in a row"
                );
                tracing::warn!(mechanism, %subject, lost, all, ?sending, "a list lost targets that still send; {then}");
                Some(self.own(Some(format!("{what}; {then}, and then no more; reload if that is meant"))))
            }
            Notice::Believed => {
                tracing::warn!(mechanism, %subject, "the targets that the list leaves out are no longer watched");
                None
            }
            Notice::Settled => Some(self.own(None)),
        }
    }

    /// The name under which the provider's targets are kept. It is unique among providers that
    /// differ only in secrets.
    pub(super) fn list_name(&self, taken: &BTreeMap<Self, String>) -> String {
        let name = format!("{} {}", self.mechanism(), self.subject());
        let alike = taken
            .keys()
            .filter(|other| (other.mechanism(), other.subject()) == (self.mechanism(), self.subject()));
        match alike.count() {
            0 => name,
            others => format!("{name} ({})", others + 1),
        }
    }

    /// The command that reports a fault of the list, or its end.
    pub(super) fn own(&self, fault: Option<String>) -> Command {
        let check = format!("targets of {} {}", self.mechanism(), self.subject());
        Command::Own { check: line(&check, MAX_CHECK), severity: Severity::Ticket, fault }
    }

    /// Logs each new error, and counts every error.
    fn report(&self, errors: &[String], before: &[String], metrics: &IngestMetrics) {
        let label = MechanismLabel { mechanism: Word(self.mechanism()) };
        metrics.discovery_failures.get_or_create(&label).inc_by(errors.len() as u64);
        for error in errors.iter().filter(|e| !before.contains(e)) {
            tracing::warn!(mechanism = self.mechanism(), subject = %self.subject(), %error,
                "discovery failed; the last good targets stay in force");
        }
    }
}

impl Asker {
    /// The targets, if the provider answered, and the errors.
    async fn ask(&mut self) -> (Option<BTreeSet<Target>>, Vec<String>) {
        let answer = match self {
            Self::Files(scan) => return scan.ask().await,
            Self::Name(name) => return name.ask().await,
            Self::List { client, url, period } => ask_list(client, url, *period).await,
        };
        match answer {
            Ok(targets) => (Some(targets), Vec::new()),
            Err(e) => (None, vec![e]),
        }
    }
}

/// Reads the files of a pattern on another thread, because a file system may block forever.
struct Scan {
    /// The files of the last completed scan.
    files: Files,
    running: Option<JoinHandle<(Files, Vec<String>)>>,
}

impl Scan {
    async fn ask(&mut self) -> (Option<BTreeSet<Target>>, Vec<String>) {
        // A running scan is awaited again, and no second one starts.
        let running = self.running.get_or_insert_with(|| {
            let mut files = core::mem::take(&mut self.files);
            tokio::task::spawn_blocking(move || {
                let errors = files.scan();
                (files, errors)
            })
        });
        let Ok(scanned) = tokio::time::timeout(ANSWER_TIMEOUT, running).await else {
            return (None, vec![format!("the files are not read within {ANSWER_TIMEOUT:?}")]);
        };
        self.running = None;
        match scanned {
            Ok((files, errors)) => {
                self.files = files;
                (Some(self.files.targets()), errors)
            }
            Err(e) => (None, vec![format!("the scan failed: {e}")]),
        }
    }
}

async fn ask_list(
    client: &Result<reqwest::Client, String>,
    url: &str,
    period: Duration,
) -> Result<BTreeSet<Target>, String> {
    let request = client
        .as_ref()
        .map_err(Clone::clone)?
        .get(url)
        .header(reqwest::header::ACCEPT, "application/json")
        .header("X-Prometheus-Refresh-Interval-Seconds", period.as_secs().to_string());
    let response = request.send().await.map_err(|e| innermost(&e))?;
    if response.status() != reqwest::StatusCode::OK {
        return Err(format!("answered {}", response.status()));
    }
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        body.extend_from_slice(&chunk.map_err(|e| innermost(&e))?);
        if body.len() > MAX_LIST_BYTES {
            return Err(format!("the list is larger than {MAX_LIST_BYTES} bytes"));
        }
    }
    // The response may contain the secrets of the request.
    let secrets = url_secrets(&Secret::new(url.to_owned()));
    let targets = serde_json::from_slice(&body).map_err(|e| {
        let why = format!("does not read as a JSON list of target groups: {e}");
        line(&redact(&why, &secrets), MAX_ERROR)
    });
    targets.map(|Targets(list)| BTreeSet::from_iter(list))
}

/// The files of one pattern, each with its last good content.
#[derive(Debug, Default)]
struct Files {
    pattern: String,
    files: BTreeMap<PathBuf, File>,
}

#[derive(Debug, Default)]
struct File {
    /// The modification time and size of the file that was read; a file with the same stamp is not
    /// read again.
    stamp: Option<(SystemTime, u64)>,
    targets: Vec<Target>,
    error: Option<String>,
}

impl Files {
    fn new(pattern: String) -> Self {
        Self { pattern, files: BTreeMap::new() }
    }

    fn targets(&self) -> BTreeSet<Target> {
        self.files.values().flat_map(|f| &f.targets).cloned().collect()
    }

    /// Reads the changed files; returns all present errors, new or not.
    fn scan(&mut self) -> Vec<String> {
        let mut errors = Vec::new();
        let mut seen = BTreeSet::new();
        match glob::glob(&self.pattern) {
            Err(e) => return vec![format!("not a glob: {e}")],
            Ok(paths) => {
                for path in paths {
                    match path {
                        Ok(path) => drop(seen.insert(path)),
                        Err(e) => errors.push(e.to_string()),
                    }
                }
            }
        }
        if seen.len() > MAX_FILES {
            errors.push(format!("matches {} files, the limit is {MAX_FILES}", seen.len()));
        }
        // A directory that cannot be listed hides its files; they may still exist.
        if errors.is_empty() {
            self.files.retain(|path, _| seen.contains(path));
        }
        for path in seen.into_iter().take(MAX_FILES) {
            let others = self.files.iter().filter(|(other, _)| **other != path);
            let others: usize = others.map(|(_, f)| f.targets.len()).sum();
            let file = self.files.entry(path.clone()).or_default();
            file.refresh(&path, others);
            errors.extend(file.error.as_ref().map(|e| format!("{}: {e}", path.display())));
        }
        errors
    }
}

impl File {
    /// Reads the file if it changed. The files of a pattern share the target limit of one list;
    /// `others` is the number of targets in the other files.
    fn refresh(&mut self, path: &Path, others: usize) {
        let stamp = std::fs::metadata(path).and_then(|m| Ok((m.modified()?, m.len())));
        let stamp = match stamp {
            Ok(stamp) if self.stamp == Some(stamp) => return,
            Ok(stamp) => stamp,
            Err(e) => {
                self.error = Some(e.to_string());
                return;
            }
        };
        self.stamp = Some(stamp);
        match read_groups(path) {
            Ok(targets) if others + targets.len() > MAX_TARGETS => {
                let count = targets.len();
                self.error = Some(format!(
                    "{count} targets beside {others} of the other files, the limit is {MAX_TARGETS}"
                ));
            }
            Ok(targets) => {
                self.targets = targets;
                self.error = None;
            }
            Err(e) => self.error = Some(e),
        }
    }
}

/// Reads target groups: a `.json` file as JSON, any other as YAML.
fn read_groups(path: &Path) -> Result<Vec<Target>, String> {
    let bytes = read_regular(path, MAX_LIST_BYTES)?;
    let text = String::from_utf8(bytes).map_err(|e| e.to_string())?;
    let Targets(list) = if path.extension().is_some_and(|e| e == "json") {
        serde_json::from_str(&text)
            .map_err(|e| format!("does not read as a JSON list of target groups: {e}"))?
    } else {
        stepwatch_kit::config::parse(&path.display().to_string(), &text).map_err(|e| e.to_string())?
    };
    Ok(list)
}

#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(text: &str) {
    let json: Option<Targets> = serde_json::from_str(text).ok();
    let yaml: Option<Targets> = stepwatch_kit::config::parse("targets.yml", text).ok();
    for Targets(list) in json.into_iter().chain(yaml) {
        // The text form of a target parses to the same target.
        list.iter().for_each(|t| assert_eq!(Target::discovered(&t.to_string()).as_ref(), Ok(t)));
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn names(files: &Files) -> Vec<String> {
        files.targets().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn files_are_reread_and_a_broken_one_keeps_its_targets() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("a.json", r#"[{"targets": ["n1:1", "n2"], "labels": {"rack": "r1"}}, {"targets": []}]"#);
        write("b.yml", "- targets: [n3:9765]\n");
        write("ignored.txt", "nonsense");
        let mut files = Files::new(format!("{}/*.[jy]*", dir.path().display()));
        assert_eq!(files.scan(), Vec::<String>::new());
        assert_eq!(names(&files), ["n1:1", "n2:9765", "n3:9765"]);

        write("a.json", r#"[{"targets": ["n1:1""#);
        let errors = files.scan();
        assert!(errors[0].contains("a.json") && errors[0].contains("target groups"), "{errors:?}");
        assert_eq!(names(&files), ["n1:1", "n2:9765", "n3:9765"]);
        // An invalid file is reported again without being read again.
        assert_eq!(files.scan(), errors);

        write("a.json", r#"[{"targets": ["n4"]}]"#);
        std::fs::remove_file(dir.path().join("b.yml")).unwrap();
        assert_eq!(files.scan(), Vec::<String>::new());
        assert_eq!(names(&files), ["n4:9765"]);
    }

    #[test]
    fn the_files_of_a_pattern_have_the_targets_of_one_list() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, n: usize| {
            let list: Vec<String> = (0..n).map(|i| format!("\"{name}{i}\"")).collect();
            let text = format!("[{{\"targets\":[{}]}}]", list.join(","));
            std::fs::write(dir.path().join(format!("{name}.json")), text).unwrap();
        };
        write("a", MAX_TARGETS - 10);
        write("b", 11);
        let mut files = Files::new(format!("{}/*.json", dir.path().display()));
        let errors = files.scan();
        assert!(errors[0].contains("11 targets beside 19990 of the other files"), "{errors:?}");
        assert_eq!(files.targets().len(), MAX_TARGETS - 10);
        write("b", 9);
        assert_eq!(files.scan(), Vec::<String>::new());
        assert_eq!(files.targets().len(), MAX_TARGETS - 1);
    }

    #[test]
    fn wrong_files_say_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text, part) in [
            ("a.json", r#"[{"target": ["n1"]}]"#, "unknown field"),
            ("b.json", r#"[{"targets": ["http://n1"]}]"#, "no scheme"),
            ("c.yml", "- targets: [n1\n", "c.yml"),
            ("d.json", r#"{"targets": []}"#, "target groups"),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            let why = read_groups(&path).unwrap_err();
            assert!(why.contains(part), "{name}: {why}");
        }
    }

    #[test]
    fn a_pipe_is_an_error_and_keeps_nobody_from_the_other_files() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.yml"), "- targets: [n1]\n").unwrap();
        let fifo = dir.path().join("c.yml");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let mut files = Files::new(format!("{}/*.yml", dir.path().display()));
        // A blocked scan must fail the test instead of blocking it.
        let (sender, scanned) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send((files.scan(), names(&files))));
        let (errors, names) = scanned.recv_timeout(crate::testing::DEADLINE).unwrap();
        assert_eq!(errors, [format!("{}: is not a regular file", fifo.display())]);
        assert_eq!(names, ["n1:9765"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_scan_that_does_not_end_is_an_error_and_goes_on() {
        let (end, ended) = tokio::sync::oneshot::channel();
        let stuck = tokio::spawn(async { (ended.await.unwrap(), Vec::new()) });
        let mut scan = Scan { files: Files::default(), running: Some(stuck) };
        for _ in 0..2 {
            let (targets, errors) = scan.ask().await;
            assert_eq!((targets, errors), (None, vec!["the files are not read within 10s".to_owned()]));
        }
        end.send(Files::default()).unwrap();
        assert_eq!(scan.ask().await, (Some(BTreeSet::new()), Vec::new()));
    }
}
