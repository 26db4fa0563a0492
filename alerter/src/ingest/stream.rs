//! Reads the stream of one exporter, for as long as it is a target.
//!
//! Every record counts once: the next connection resumes after the cursor of the last queued
//! record. No record is dropped here: if the engine is behind, the queue is full, this task stops
//! reading, TCP stops the exporter, and the exporter's ring keeps the unread records.

use core::time::Duration;
use std::sync::Arc;

use futures_util::StreamExt;
use stepwatch_kit::log_throttle::LogThrottle;
use stepwatch_wire::{Cursor, Event, Kind, MAX_RECORD_BYTES, words};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::exporters::{CONNECT_TIMEOUT, Connection};
use super::lines::{LineSplitter, TooLong};
use super::status::SourceStatus;
use super::target::Target;
use crate::backoff::{self, Backoff};
use crate::errors::innermost;
use crate::metrics::{IngestMetrics, Name, ReasonLabel, SourceLabel, Word};
use crate::notify::http::redact;
use crate::runtime::{Feed, News, PART_BYTES, Share, Taken};

/// The interval of heartbeats on an idle stream.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// The most characters kept of the answer of a peer that is not an exporter.
const MAX_REASON: usize = 200;

#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamLimits {
    /// The longest time without data: three missed heartbeats and one second of grace.
    pub silence: Duration,
    pub head: Duration,
    pub backoff: Backoff,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self {
            silence: 3 * HEARTBEAT + Duration::from_secs(1),
            head: 2 * CONNECT_TIMEOUT,
            backoff: Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(15) },
        }
    }
}

/// The task of one target.
pub(crate) struct Puller {
    pub target: Target,
    pub connection: Arc<arc_swap::ArcSwap<Connection>>,
    pub status: Arc<SourceStatus>,
    pub limits: StreamLimits,
    pub out: mpsc::Sender<Feed>,
    pub share: Share,
    pub metrics: IngestMetrics,
    /// Throttles the log lines about records that the exporter no longer had.
    pub gaps: LogThrottle,
}

/// The reason why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("cannot connect: {0}")]
    Connect(String),
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
    #[error("answered {0}")]
    Status(String),
    #[error("answered with content type {0:?}: not a Stepwatch exporter")]
    NotAStream(String),
    #[error("silent for {0:?}, without a heartbeat")]
    Silent(Duration),
    #[error("the connection broke: {0}")]
    Broken(String),
    #[error("the exporter ended the stream")]
    Closed,
    /// The runtime has stopped, so nothing takes the events.
    #[error("stopping")]
    Stopping,
}

impl Puller {
    /// Reads until `stop`; returns only then. The state of the source is reported as it changes.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let (mut failures, mut reported_down) = (0_u32, false);
        loop {
            let ended = tokio::select! {
                () = stop.cancelled() => break,
                ended = self.connection(&mut failures, &mut reported_down) => ended,
            };
            if matches!(ended, Ended::Stopping) {
                break;
            }
            let was_up = self.status.set_up(false, Some(ended.to_string()));
            self.gauge(0);
            if was_up {
                self.metrics.disconnects.inc();
                tracing::warn!(source = %self.target, reason = %ended, "lost the exporter; reconnecting");
            } else if !reported_down {
                tracing::warn!(source = %self.target, reason = %ended, "cannot read the exporter; retrying");
            } else {
                tracing::debug!(source = %self.target, reason = %ended, "still cannot read the exporter");
            }
            failures = failures.saturating_add(1);
            let pause = self.limits.backoff.after(failures, backoff::random());
            let report = async {
                // This is reported once per change: the engine keeps the time of the first failure.
                if !core::mem::replace(&mut reported_down, true) {
                    self.send(News::Down { reason: ended.to_string() }).await;
                }
                tokio::time::sleep(pause).await;
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = report => {}
            }
        }
        self.status.set_up(false, Some("no longer read".into()));
        self.gauge(0);
    }

    /// One connection, from request to its end.
    async fn connection(&self, failures: &mut u32, reported_down: &mut bool) -> Ended {
        let response = match self.request().await {
            Ok(response) => response,
            Err(ended) => return ended,
        };
        self.metrics.connects.inc();
        self.gauge(1);
        if self.status.set_up(true, None) {
            tracing::info!(source = %self.target, "reading the exporter");
        }
        *reported_down = false;
        if !self.send(News::Up { many_nodes: self.connection.load().many_nodes }).await {
            return Ended::Stopping;
        }
        let mut splitter = LineSplitter::new(MAX_RECORD_BYTES);
        let mut chunks = response.bytes_stream();
        loop {
            let chunk = match tokio::time::timeout(self.limits.silence, chunks.next()).await {
                Err(_) => return Ended::Silent(self.limits.silence),
                Ok(None) => return Ended::Closed,
                Ok(Some(Err(e))) => return Ended::Broken(innermost(&e)),
                Ok(Some(Ok(chunk))) => chunk,
            };
            // A chunk is the content of the socket buffer, up to a few hundred kilobytes. The room
            // for its events is reserved in the queue before parsing.
            for part in chunk.chunks(PART_BYTES) {
                let room = self.room_for(part).await;
                let mut events = Vec::new();
                splitter.feed(part, |line| events.extend(self.record(line)));
                if events.is_empty() {
                    continue;
                }
                *failures = 0;
                if !self.hand_on(events, room).await {
                    return Ended::Stopping;
                }
            }
        }
    }

    async fn request(&self) -> Result<reqwest::Response, Ended> {
        let path = match self.status.cursor() {
            Some(cursor) => format!("/v1/stream?after={cursor}"),
            None => "/v1/stream".to_owned(),
        };
        let request = self.connection.load().get(&self.target, &path).send();
        let response = tokio::time::timeout(self.limits.head, request)
            .await
            .map_err(|_| Ended::NoAnswer(self.limits.head))?
            .map_err(|e| Ended::Connect(innermost(&e)))?;
        if response.status() != reqwest::StatusCode::OK {
            return Err(Ended::Status(self.refusal(response).await));
        }
        let content_type = response.headers().get(reqwest::header::CONTENT_TYPE);
        let content_type = content_type.and_then(|v| v.to_str().ok()).unwrap_or_default();
        if !content_type.contains("ndjson") {
            return Err(Ended::NotAStream(words::line(content_type).chars().take(MAX_REASON).collect()));
        }
        Ok(response)
    }

    /// The status, and the beginning of the peer's error message.
    async fn refusal(&self, mut response: reqwest::Response) -> String {
        let status = response.status();
        let body = tokio::time::timeout(self.limits.head, response.chunk()).await;
        let body = body.ok().and_then(Result::ok).flatten().unwrap_or_default();
        // A peer that echoes the request also echoes our credentials.
        let text: String = words::into_clean(redact(&String::from_utf8_lossy(&body), &[]))
            .chars()
            .take(MAX_REASON)
            .collect();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if text.is_empty() { status.to_string() } else { format!("{status}: {text}") }
    }

    /// Parses one line of the stream; `None` if it is blank, or not a record, which is counted.
    fn record(&self, line: Result<&[u8], TooLong>) -> Option<Event> {
        let parsed = match line {
            Ok(line) if line.trim_ascii().is_empty() => return None,
            Ok(line) => Event::parse_record(line).map_err(|e| ("syntax", e.to_string())),
            Err(TooLong) => Err(("too_long", format!("longer than {MAX_RECORD_BYTES} bytes"))),
        };
        match parsed {
            Ok(mut event) => {
                // The peer may be an older exporter, or another program.
                event.clean();
                Some(event)
            }
            Err((reason, why)) => {
                self.metrics.malformed.get_or_create(&ReasonLabel { reason: Word(reason) }).inc();
                let mut view = self.status.lock();
                view.malformed += 1;
                // The first one shows the reason; logging all of them would fill the disk.
                if view.malformed == 1 {
                    tracing::warn!(source = %self.target, %why, "malformed record in the stream");
                }
                None
            }
        }
    }

    /// Queues the events, then records the cursor. In this order, a stop in between causes a
    /// repetition and never a loss.
    async fn hand_on(&self, events: Vec<Event>, room: Taken) -> bool {
        let cursor: Option<Cursor> = events.iter().rev().find_map(|e| e.cursor.clone());
        let records = events.len() as u64;
        let (mut gaps, mut lost) = (0, 0);
        for gap in events.iter().filter(|e| e.kind == Kind::Gap) {
            gaps += 1;
            lost += gap.lost.unwrap_or(0);
        }
        if !self.send_in(News::Events(events), room).await {
            return false;
        }
        self.metrics.gaps.inc_by(gaps);
        self.metrics.lost.inc_by(lost);
        if let Some(count) = self.gaps.count(gaps) {
            tracing::warn!(source = %self.target, count, lost, "the exporter no longer had what came next");
        }
        let mut view = self.status.lock();
        view.cursor = cursor.or(view.cursor.take());
        view.last_record = Some(crate::clock::wall());
        view.records += records;
        view.gaps += gaps;
        view.lost += lost;
        true
    }

    async fn room_for(&self, part: &[u8]) -> Taken {
        if let Some(room) = self.share.try_take(part) {
            return room;
        }
        self.metrics.backpressure.inc();
        self.share.take(part).await
    }

    async fn send(&self, news: News) -> bool {
        self.send_in(news, Taken::default()).await
    }

    /// Sends within reserved room; false if the runtime has stopped.
    async fn send_in(&self, news: News, room: Taken) -> bool {
        let feed = Feed { source: Arc::clone(self.target.name()), news, room };
        match self.out.try_send(feed) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(feed)) => {
                self.metrics.backpressure.inc();
                self.out.send(feed).await.is_ok()
            }
        }
    }

    fn gauge(&self, up: i64) {
        let label = SourceLabel { source: Name(Arc::clone(self.target.name())) };
        self.metrics.source_up.get_or_create(&label).set(up);
    }
}
