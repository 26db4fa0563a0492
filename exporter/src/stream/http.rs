//! Serves the stream over HTTP: one task a reader moves records from the ring to a channel of one
//! chunk, which the connection drains.
//!
//! A record is sent when it is published, without buffering. A reader that the ring overtakes gets
//! a gap record and continues. A reader that does not take its chunk for too long is disconnected,
//! and returns with its cursor. Meanwhile it holds no memory but that chunk.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use bytes::Bytes;
use stepwatch_kit::log_throttle::LogThrottle;
use stepwatch_kit::serve::{Authenticated, Client, Ends};
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_wire::{Cursor, Event, Kind};
use tokio::sync::mpsc;

use super::reader_limit::{KNOWN_AFTER, Seat, Seats};
use super::ring::{Gap, Read, Ring, Start};
use crate::clock::unix_now;
use crate::identity::peer;
use crate::lock::Locked as _;
use crate::persisted_state;
use crate::reply;
use crate::samples::Samples;

/// The name of the saved state of readers.
const STATE_NAME: &str = "stream-readers";

#[derive(Debug, Clone)]
pub struct StreamConfig {
    /// A reader that reads nothing for this long is disconnected.
    pub slow_after: Duration,
    /// The interval of heartbeat records on an idle stream.
    pub heartbeat: Duration,
    pub max_readers: usize,
    /// The most readers of one address.
    pub max_readers_per_address: usize,
}

#[derive(Debug, Clone)]
pub struct StreamState {
    ring: Arc<Ring>,
    node: String,
    config: StreamConfig,
    shutdown: Shutdown,
    readers: Arc<Readers>,
}

#[derive(Debug, Default)]
struct Readers {
    seats: Seats,
    slow: AtomicU64,
    evicted: AtomicU64,
    refused: AtomicU64,
    gaps: AtomicU64,
    /// Limits log lines about refused readers, because a refused one returns at once.
    log_refused: LogThrottle,
    log_cut: LogThrottle,
    log_gaps: LogThrottle,
    /// The directory in which long-term readers are saved.
    state_dir: Option<PathBuf>,
    saving: Mutex<()>,
}

impl Readers {
    fn new(state_dir: Option<PathBuf>) -> Self {
        let known = persisted_state::load(state_dir.as_deref(), STATE_NAME);
        Self { seats: Seats::knowing(known), state_dir, ..Self::default() }
    }

    /// Saves a reader across a restart, once it has followed for a while.
    async fn remember(self: &Arc<Self>) -> Infallible {
        tokio::time::sleep(KNOWN_AFTER).await;
        let readers = Arc::clone(self);
        let saved = tokio::task::spawn_blocking(move || readers.save()).await;
        if let Err(error) = saved.map_err(std::io::Error::other).flatten() {
            tracing::warn!(%error, "cannot save who follows the stream: after a restart its readers are strangers");
        }
        std::future::pending().await
    }

    fn save(&self) -> std::io::Result<()> {
        // Only one at a time, so that the last write has the last state.
        let _saving = self.saving.locked();
        persisted_state::save(self.state_dir.as_deref(), STATE_NAME, &self.seats.known())
    }

    /// Counts a reader that finds no place.
    fn refuse(&self, client: Option<Client>) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let Some(count) = self.log_refused.count(1) else { return };
        let client = client.map(|client| client.to_string());
        tracing::warn!(
            count,
            client,
            "refused a reader of the stream: too many follow it (stream.max_readers, stream.max_readers_per_address)"
        );
    }
}

#[derive(Debug, serde::Deserialize)]
struct Params {
    after: Option<String>,
}

/// The reason why a reader is no longer served.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Left,
    Slow,
    /// A reader with a better claim has taken the place.
    Evicted,
    Shutdown,
}

impl StreamState {
    pub fn new(
        ring: Arc<Ring>,
        node: String,
        config: StreamConfig,
        state_dir: Option<PathBuf>,
        shutdown: Shutdown,
    ) -> Self {
        Self { ring, node, config, shutdown, readers: Arc::new(Readers::new(state_dir)) }
    }

    /// The gap record for a reader.
    fn gap(&self, gap: &Gap, after: u64) -> Bytes {
        self.readers.gaps.fetch_add(1, Ordering::Relaxed);
        if let Some(records) = self.readers.log_gaps.count(gap.lost) {
            // The gap covers the records before `after`.
            let whose = self.ring.given_up_after(after.saturating_sub(gap.lost));
            tracing::warn!(
                records,
                whose,
                "a reader of the stream misses records, which made room for later ones before it read them"
            );
        }
        let event = Event { node: Some(self.node.clone()), ..gap.event() };
        self.ring.aside(after, &event)
    }

    pub fn write(&self, out: &mut Samples) {
        let (stats, readers) = (self.ring.stats(), &self.readers);
        out.set(&super::READERS, &[], readers.seats.taken());
        out.set(&super::RECORDS, &[], stats.published);
        out.set(&super::EVICTED, &[], stats.evicted);
        out.set(&super::RING_RECORDS, &[], stats.records);
        out.set(&super::RING_BYTES, &[], stats.bytes);
        for (reason, count) in
            [("slow", &readers.slow), ("evicted", &readers.evicted), ("refused", &readers.refused)]
        {
            out.set(&super::CUT, &[reason], count.load(Ordering::Relaxed));
        }
        out.set(&super::GAPS, &[], readers.gaps.load(Ordering::Relaxed));
        out.set(&super::JOURNAL_FAILURES, &[], stats.journal_failures);
    }
}

pub fn routes(state: StreamState) -> Router {
    Router::new().route("/v1/stream", get(stream)).with_state(state)
}

async fn stream(
    State(state): State<StreamState>,
    ends: Option<Extension<Ends>>,
    client: Option<Extension<Client>>,
    authenticated: Option<Extension<Authenticated>>,
    Query(params): Query<Params>,
) -> Response {
    let cursor = match params.after.as_deref().filter(|c| !c.is_empty()).map(str::parse::<Cursor>) {
        None => None,
        Some(Ok(cursor)) => Some(cursor),
        Some(Err(error)) => return reply::error(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let client = client.map(|Extension(client)| client.of_any_user());
    let user = peer::voice_at_our_port(ends.map(|Extension(ends)| ends)).await.uid();
    let limits = (state.config.max_readers, state.config.max_readers_per_address);
    let Some(seat) = state.readers.seats.take((client, user), authenticated.is_some(), limits) else {
        state.readers.refuse(client);
        let text = "too many readers follow the stream (stream.max_readers, stream.max_readers_per_address)";
        let again = [(RETRY_AFTER, HeaderValue::from_static("5"))];
        return (again, reply::error(StatusCode::SERVICE_UNAVAILABLE, text)).into_response();
    };
    let start = state.ring.start(cursor.as_ref());
    let (chunks, body) = mpsc::channel(1);
    tokio::spawn(serve(state, start, chunks, seat, client));
    let body = futures_util::stream::unfold(body, |mut body| async {
        let chunk = body.recv().await?;
        Some((Ok::<Bytes, Infallible>(chunk), body))
    });
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, Body::from_stream(body)).into_response()
}

async fn serve(
    state: StreamState,
    start: Start,
    chunks: mpsc::Sender<Bytes>,
    seat: Seat,
    client: Option<Client>,
) {
    let end = tokio::select! {
        end = follow(&state, start, &chunks) => end,
        () = seat.evicted() => End::Evicted,
        never = state.readers.remember() => match never {},
    };
    match end {
        End::Slow => state.readers.slow.fetch_add(1, Ordering::Relaxed),
        End::Evicted => state.readers.evicted.fetch_add(1, Ordering::Relaxed),
        End::Left | End::Shutdown => 0,
    };
    let is_cut = matches!(end, End::Slow | End::Evicted);
    if is_cut && let Some(count) = state.readers.log_cut.count(1) {
        let client = client.map(|client| client.to_string());
        tracing::warn!(count, reason = ?end, client, "cut off a reader of the stream; it may come back with its cursor");
    }
    drop(seat);
}

async fn follow(state: &StreamState, start: Start, chunks: &mpsc::Sender<Bytes>) -> End {
    let ring = &state.ring;
    let mut head = ring.watch();
    let mut after = start.after;
    if let Some(gap) = start.gap {
        if let Err(end) = send(state, chunks, state.gap(&gap, after)).await {
            return end;
        }
    }
    loop {
        head.mark_unchanged();
        let chunk = match ring.read(after) {
            Read::Records { chunk, last } => {
                after = last;
                chunk
            }
            Read::Lost { gap, after: next } => {
                after = next;
                state.gap(&gap, after)
            }
            Read::Nothing => {
                tokio::select! {
                    _ = head.changed() => continue,
                    () = state.shutdown.wait() => return End::Shutdown,
                    () = chunks.closed() => return End::Left,
                    () = tokio::time::sleep(state.config.heartbeat) => {
                        ring.aside(after, &heartbeat(&state.node))
                    }
                }
            }
        };
        if let Err(end) = send(state, chunks, chunk).await {
            return end;
        }
    }
}

/// A heartbeat record of the exporter itself, for readers of an idle stream.
fn heartbeat(node: &str) -> Event {
    Event { ts: Some(unix_now()), node: Some(node.to_owned()), ..Event::new(Kind::Hb) }
}

async fn send(state: &StreamState, chunks: &mpsc::Sender<Bytes>, chunk: Bytes) -> Result<(), End> {
    match tokio::time::timeout(state.config.slow_after, chunks.send(chunk)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(End::Left),
        Err(_) => Err(End::Slow),
    }
}
