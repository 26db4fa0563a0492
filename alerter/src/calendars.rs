//! Reads the calendars of schedules periodically, and passes them to the engine.
//!
//! If a calendar cannot be read or parsed, the last good copy stays in force: the engine keeps it
//! across restarts, records its age, and includes the age in messages that use it. Calendars are
//! untrusted bytes from a place that the configuration names; redirects are not followed, and an
//! answer has a size limit.

use core::time::Duration;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use reqwest::StatusCode;
use reqwest::header::{ETAG, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED};
use stepwatch_kit::config::Secret;
use stepwatch_model::Severity;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::oncall::Zone;
use stepwatch_respond::oncall::ical::Calendar;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::clock::wall;
use crate::errors::innermost;
use crate::files::read_regular;
use crate::ingest::client_builder;
use crate::metrics::{CalendarMetrics, Name, ScheduleLabel};
use crate::runtime::{Command, RuntimeHandle};

/// The most bytes of one calendar: about ten thousand events.
pub const MAX_BYTES: usize = 4 << 20;
/// The most bytes of all calendars, whose texts are kept. Each has an equal share.
const ALL_BYTES: usize = 16 << 20;
/// The time limit for a response.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The most calendars that are read at once, because a text and its events take several times its
/// bytes. A stuck one holds its place until it times out.
const READ_AT_ONCE: usize = 4;
/// The interval between two checks of a file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A calendar to read.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    pub schedule: String,
    pub zone: Zone,
    pub place: Place,
    pub refresh: Duration,
    pub stale_after: Span,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    File(PathBuf),
    /// A secret, because anybody with the address of a private calendar can read it.
    Url(Secret),
}

/// The readers, one per calendar.
#[derive(Debug)]
pub struct Calendars {
    tasks: Vec<(Source, JoinHandle<()>)>,
    room: Arc<Room>,
    runtime: RuntimeHandle,
    metrics: CalendarMetrics,
}

/// The state that all readers share.
#[derive(Debug)]
struct Room {
    /// The most bytes of each calendar.
    share: AtomicUsize,
    slots: Semaphore,
}

/// The result of a read.
enum News {
    Text(String),
    /// The calendar is unchanged.
    Same,
}

/// The source of a calendar, and its last version.
enum Reader {
    File {
        path: PathBuf,
        seen: Option<(SystemTime, u64)>,
    },
    Url {
        client: Result<reqwest::Client, String>,
        url: Secret,
        etag: Option<HeaderValue>,
        modified: Option<HeaderValue>,
    },
}

impl Calendars {
    pub fn start(sources: Vec<Source>, runtime: RuntimeHandle, metrics: CalendarMetrics) -> Self {
        let room = Room { share: AtomicUsize::new(MAX_BYTES), slots: Semaphore::new(READ_AT_ONCE) };
        let mut calendars = Self { tasks: Vec::new(), room: Arc::new(room), runtime, metrics };
        calendars.apply(sources);
        calendars
    }

    /// Keeps the readers of unchanged calendars, and starts or stops the others.
    pub fn apply(&mut self, mut sources: Vec<Source>) {
        let metrics = self.metrics.clone();
        self.room.share.store(share(sources.len()), Ordering::Relaxed);
        self.tasks.retain(|(source, task)| {
            let place = sources.iter().position(|s| s == source);
            if let Some(place) = place {
                sources.swap_remove(place);
            } else {
                task.abort();
                // A schedule that is no longer configured is not a fault. If the queue is full, the
                // ticket stays for a person to close.
                let _ = self.runtime.commands.try_send(own(&source.schedule, None));
                let label = label(&source.schedule);
                metrics.read_timestamp.remove(&label);
                metrics.failures.remove(&label);
                metrics.skipped.remove(&label);
            }
            place.is_some()
        });
        for source in sources {
            let room = Arc::clone(&self.room);
            let task = watch(source.clone(), room, self.runtime.clone(), self.metrics.clone());
            self.tasks.push((source, tokio::spawn(task)));
        }
    }

    pub fn stop(&mut self) {
        self.tasks.drain(..).for_each(|(_, task)| task.abort());
    }
}

/// The size limit of each calendar in bytes.
fn share(calendars: usize) -> usize {
    MAX_BYTES.min(ALL_BYTES / calendars.max(1))
}

fn label(schedule: &str) -> ScheduleLabel {
    ScheduleLabel { schedule: Name(Arc::from(schedule)) }
}

/// Reports whether a calendar is too old. It is a ticket, because the person on call by the copy is
/// still paged.
fn own(schedule: &str, fault: Option<String>) -> Command {
    Command::Own { check: format!("calendar of {schedule}"), severity: Severity::Ticket, fault }
}

/// Reads one calendar until it is cancelled.
async fn watch(source: Source, room: Arc<Room>, runtime: RuntimeHandle, metrics: CalendarMetrics) {
    let label = label(&source.schedule);
    let stored = runtime.views.get().oncall.calendar(&source.schedule).map(|c| c.read_at);
    let mut watched = Watched {
        source,
        runtime,
        since: stored.unwrap_or_else(wall),
        read_at: stored,
        reported: None,
        last: None,
        stale: None,
    };
    if let Some(at) = stored {
        metrics.read_timestamp.get_or_create(&label).set(at.as_secs_f64());
    }
    let mut reader = Reader::new(&watched.source.place);
    loop {
        let read = {
            // The semaphore is never closed.
            let _slot = room.slots.acquire().await;
            let news = reader.read(room.share.load(Ordering::Relaxed)).await;
            news.and_then(|news| watched.accept(news))
        };
        match read {
            Ok(Some(news)) => {
                metrics
                    .skipped
                    .get_or_create(&label)
                    .set(watched.last.as_ref().map_or(0, |(_, n)| *n as i64));
                if watched.bring(news).await.is_err() {
                    return;
                }
            }
            Ok(None) => {}
            Err(error) => {
                reader.forget();
                metrics.failures.get_or_create(&label).inc();
                if watched.complain(error).await.is_err() {
                    return;
                }
            }
        }
        if let Some(at) = watched.read_at {
            metrics.read_timestamp.get_or_create(&label).set(at.as_secs_f64());
        }
        tokio::time::sleep(reader.pause(watched.source.refresh)).await;
    }
}

struct Watched {
    source: Source,
    runtime: RuntimeHandle,
    /// When the contents that the engine has were last read.
    read_at: Option<Ts>,
    /// The time of the last successful read, or else of the first attempt.
    since: Ts,
    /// The last error that was logged.
    reported: Option<String>,
    /// The text that the engine has, and the number of its skipped events.
    last: Option<(String, usize)>,
    /// The last report to the engine about staleness; `None` before the first report.
    stale: Option<bool>,
}

impl Watched {
    /// The news for the engine: a calendar, or that it is unchanged. `None` if that was reported
    /// recently.
    fn accept(&mut self, news: News) -> Result<Option<News>, String> {
        let same = match &news {
            News::Same => true,
            News::Text(text) => self.last.as_ref().is_some_and(|(last, _)| last == text),
        };
        if same {
            let age = self.read_at.map(|at| wall() - at);
            let due =
                age.is_none_or(|age| age.0.unsigned_abs() >= self.source.refresh.as_millis() as u64 / 2);
            return Ok(due.then_some(News::Same));
        }
        let News::Text(text) = &news else { return Ok(None) };
        let calendar = Calendar::parse(text, &self.source.zone)?;
        for warning in &calendar.warnings {
            tracing::warn!(schedule = self.source.schedule, %warning, "calendar");
        }
        self.last = Some((text.clone(), calendar.skipped));
        Ok(Some(news))
    }

    /// Sends the news to the engine; an error if the engine has stopped.
    async fn bring(&mut self, news: News) -> Result<(), ()> {
        let text = match news {
            News::Text(text) => Some(text),
            News::Same => None,
        };
        let schedule = self.source.schedule.clone();
        self.runtime.commands.send(Command::Calendar { schedule, text }).await.map_err(drop)?;
        if self.reported.take().is_some() {
            tracing::info!(schedule = self.source.schedule, "the calendar is read again");
        }
        (self.read_at, self.since) = (Some(wall()), wall());
        // An alerter before this one may have reported the calendar as too old.
        if self.stale.replace(false) != Some(false) {
            self.runtime.commands.send(own(&self.source.schedule, None)).await.map_err(drop)?;
        }
        Ok(())
    }

    /// Logs each new error. If the copy in force is too old, reports a fault of the alerter.
    async fn complain(&mut self, error: String) -> Result<(), ()> {
        let schedule = &self.source.schedule;
        if self.reported.as_ref() != Some(&error) {
            let stays = if self.read_at.is_some() {
                "the last good copy stays in force"
            } else {
                "there is no earlier copy"
            };
            tracing::warn!(schedule, error, "the calendar does not read; {stays}");
            self.reported = Some(error.clone());
        }
        let age = wall() - self.since;
        if age <= self.source.stale_after || self.stale == Some(true) {
            return Ok(());
        }
        self.stale = Some(true);
        tracing::error!(
            schedule,
            error,
            "the calendar has not been read for long: shifts may be out of date"
        );
        let used = if self.read_at.is_some() { "pages go by the copy of then" } else { "there is no copy" };
        let fault =
            format!("the calendar of schedule {schedule} has not been read for {age}, {used}: {error}");
        self.runtime.commands.send(own(schedule, Some(fault))).await.map_err(drop)
    }
}

impl Reader {
    fn new(place: &Place) -> Self {
        match place {
            Place::File(path) => Self::File { path: path.clone(), seen: None },
            Place::Url(url) => {
                let mut client = client_builder().timeout(TIMEOUT);
                if url.expose().starts_with("http:") {
                    client = client.tls_certs_only([]);
                }
                let client = client.build().map_err(|e| innermost(&e));
                Self::Url { client, url: url.clone(), etag: None, modified: None }
            }
        }
    }

    fn pause(&self, refresh: Duration) -> Duration {
        match self {
            Self::File { .. } => LOOK_EVERY.min(refresh),
            Self::Url { .. } => refresh,
        }
    }

    /// Forgets the version, because the text was no calendar: the next read must not report it as
    /// unchanged.
    fn forget(&mut self) {
        match self {
            Self::File { seen, .. } => *seen = None,
            Self::Url { etag, modified, .. } => (*etag, *modified) = (None, None),
        }
    }

    /// Reads the contents, of at most `max` bytes.
    async fn read(&mut self, max: usize) -> Result<News, String> {
        match self {
            Self::File { path, seen } => {
                let meta =
                    std::fs::metadata(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
                let now = meta.modified().ok().map(|at| (at, meta.len()));
                if now.is_some() && *seen == now {
                    return Ok(News::Same);
                }
                let text = read_file(path, max)?;
                *seen = now;
                Ok(News::Text(text))
            }
            Self::Url { client, url, etag, modified } => {
                let client = client.as_ref().map_err(Clone::clone)?;
                let mut request = client.get(https(url.expose()));
                for (name, value) in [(IF_NONE_MATCH, &*etag), (IF_MODIFIED_SINCE, &*modified)] {
                    if let Some(value) = value {
                        request = request.header(name, value);
                    }
                }
                // The address may be a secret, so the error does not contain it.
                let response = request.send().await.map_err(|e| innermost(&e))?;
                if response.status() == StatusCode::NOT_MODIFIED && (etag.is_some() || modified.is_some()) {
                    return Ok(News::Same);
                }
                if response.status() != StatusCode::OK {
                    return Err(format!("the calendar's server answers {}", response.status()));
                }
                let said = |name| response.headers().get(name).cloned();
                let (new_etag, new_modified) = (said(ETAG), said(LAST_MODIFIED));
                let text = body(response, max).await?;
                (*etag, *modified) = (new_etag, new_modified);
                Ok(News::Text(text))
            }
        }
    }
}

async fn body(mut response: reqwest::Response, max: usize) -> Result<String, String> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|e| innermost(&e))? {
        body.extend_from_slice(&chunk);
        if body.len() > max {
            return Err(format!("the calendar has more than {max} bytes"));
        }
    }
    text(body)
}

fn text(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|_| "the calendar is not UTF-8".to_owned())
}

/// Reads a calendar file of at most `max` bytes.
pub fn read_file(path: &Path, max: usize) -> Result<String, String> {
    let bytes = read_regular(path, max).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    text(bytes)
}

/// Converts the `webcal:` address that calendar programs show.
fn https(url: &str) -> String {
    url.strip_prefix("webcal:").map_or_else(|| url.to_owned(), |rest| format!("https:{rest}"))
}

pub fn check_url(url: &str) -> Result<(), String> {
    let parsed = url::Url::parse(&https(url)).ok();
    let good = parsed.is_some_and(|u| matches!(u.scheme(), "http" | "https") && u.has_host());
    if good { Ok(()) } else { Err("is not an http://, https:// or webcal:// URL".into()) }
}

#[cfg(test)]
mod tests;
