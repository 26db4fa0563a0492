//! OpenTelemetry metrics that a trainer pushes by OTLP, over HTTP (`POST /v1/metrics`) and gRPC.
//!
//! They are taken on the exporter's own port, and on the ports of `ingest.otlp`, where SDKs look
//! for a collector by default. Spans are taken too, because newer Megatrons report losses and their
//! steps as events of spans; nothing else of a span is kept. Run and rank come from the attributes
//! of the resource, steps from the points.
//!
//! An SDK of OpenTelemetry drops a value that is not finite, and its gauges repeat the last one. So
//! a NaN loss looks like one that was not set again. A repeated loss is published as repeated. Only
//! the training state, which measures how often the loss usually changes, treats one that stays for
//! too long as missing.

mod budget;
mod grpc;
mod http;
mod owner;
mod points;
mod proto;
mod resource;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Read as _;
use std::sync::{Arc, Mutex, OnceLock};

use axum::body::Bytes;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use prost::Message;
use serde::de::DeserializeOwned;
use stepwatch_kit::serve::{BodyShare, Client, Ends};
use stepwatch_wire::Event;

use crate::clock::unix_now;
use crate::drops::Reason;
use crate::hub::Hub;
use crate::identity::peer;
use crate::lock::Locked as _;
use crate::origin::Priority;
use crate::origin::{Origin, Outcome, Via};
use crate::principal::Principal;
use crate::readings::{Names, Readings, Report, Who};
use crate::roots::Roots;
use crate::source::SourceHandle;

pub use http::routes;
use owner::{Asked, Owners};
use points::OwnedReport;
use proto::{MetricsRequest, PartialSuccess, Response, TraceRequest};
use turns::Turns;

/// The most bytes of a request as it arrives.
const MAX_BODY_BYTES: usize = 4 << 20;
/// The most bytes of a decompressed request: the default limit of gRPC.
const MAX_INFLATED_BYTES: u64 = 4 << 20;
/// The most ranks of one request whose owner has to be looked up. The points of the rest are
/// rejected; fewer ranks are new in the next request.
const MAX_NEW_SENDERS: usize = 1024;

/// The receiver of telemetry. Clones share it.
#[derive(Debug, Clone)]
pub struct Otlp(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    hub: Hub,
    names: Names,
    name: Arc<str>,
    turns: Turns,
    /// The `/proc` in which processes are looked up.
    roots: Roots,
    state: Mutex<State>,
    /// Registered at the first request. It is outside of the state, because tasks that count
    /// refusals must not wait for that.
    health: OnceLock<SourceHandle>,
}

#[derive(Debug)]
struct State {
    readings: Readings,
    owners: Owners,
}

/// The encoding of the messages of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Protobuf,
    Json,
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Metrics,
    Traces,
}

/// Why a request is refused. A client must not repeat it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("{0}")]
    Malformed(String),
    #[error("{0}")]
    TooLarge(String),
}

/// A request that has not been read yet.
#[derive(Debug)]
struct Posted {
    signal: Signal,
    encoding: Encoding,
    gzip: bool,
    body: Bytes,
    from: Arrival,
}

/// The ends of the connection, its client, and the body's share of the memory for bodies.
#[derive(Debug, Clone, Default)]
struct Arrival {
    ends: Option<Ends>,
    client: Option<Client>,
    _share: Option<BodyShare>,
}

impl<S: Sync> FromRequestParts<S> for Arrival {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let known = &parts.extensions;
        Ok(Self { ends: known.get().copied(), client: known.get().copied(), _share: known.get().cloned() })
    }
}

enum Request {
    Metrics(MetricsRequest),
    Traces(TraceRequest),
}

impl Otlp {
    /// `metrics` maps their names to ours.
    pub fn new(hub: Hub, metrics: &BTreeMap<String, String>, roots: Roots) -> Self {
        let state = Mutex::new(State { readings: Readings::new(unix_now()), owners: Owners::default() });
        let (names, health) = (Names::new(metrics), OnceLock::new());
        let turns = Turns::default();
        Self(Arc::new(Inner { hub, names, name: "otlp".into(), turns, roots, state, health }))
    }

    /// Accepts a request; the response gives the number of rejected points.
    fn take(
        &self,
        signal: Signal,
        encoding: Encoding,
        body: &[u8],
        ends: Option<Ends>,
    ) -> Result<Response, Refused> {
        let inner = &*self.0;
        let request = Request::read(signal, encoding, body).inspect_err(|refused| self.refused(refused))?;
        let now = unix_now();
        let mut tally = Tally::default();
        let mut reports = request.reports(&inner.names);
        let (principal, holder) =
            ends.map_or((Principal::Unknown, None), |ends| peer::sender(&inner.roots, ends));
        let mut asked =
            Asked { hub: &inner.hub, ends, process: None, named: BTreeMap::new(), principal, now };
        // A program that does not train has no run.
        let trains = |who: &Who, report: &Report<'_>| who.certain || report.is_training();
        let mut state = inner.state.locked();
        let unknown =
            reports.iter().filter(|(who, report)| trains(who, report) && !state.owners.knows(who, &asked));
        let unknown: Vec<Who> = unknown.map(|(who, _)| who.clone()).collect();
        if !unknown.is_empty() {
            // The search takes long on a node with many processes, so the lock is released.
            drop(state);
            asked.process = holder.and_then(|holder| owner::process(&inner.roots, holder));
            if asked.process.is_none() {
                asked.named = owner::named(&inner.roots, inner.hub.node(), unknown.iter());
            }
            state = inner.state.locked();
        }
        let mut left = MAX_NEW_SENDERS;
        // The owner is settled before the readings are taken as those of its run.
        reports.retain_mut(|(who, report)| {
            who.principal = principal;
            let heard = !trains(who, report)
                || state.owners.settle(who, &asked, &mut left) && inner.hub.hears(principal, &who.run);
            tally.rejected += if heard { 0 } else { report.readings.len() as u64 };
            heard
        });
        let reports = state.readings.sift(reports, |who| inner.hub.last_step(&who.run, who.rank));
        for (who, report) in reports {
            if !(who.certain || report.is_training()) {
                tally.unmatched += report.readings.len() as u64;
                continue;
            }
            tally.time = points::later(tally.time, report.time);
            let known = inner.hub.last_step(&who.run, who.rank);
            let taken = state.readings.take(&who, report, known, now);
            tally.dropped += taken.dropped;
            for event in taken.events {
                let points = event.m.len() as u64;
                let origin = Origin::said_by(Via::Otlp, &inner.name, Priority::Telemetry, principal);
                if let Outcome::Dropped(Reason::Runs | Reason::Ranks | Reason::NewRuns | Reason::NotOwner) =
                    inner.hub.publish(origin, event)
                {
                    tally.rejected += points;
                }
            }
        }
        drop(state);
        self.count(&tally, now);
        Ok(tally.response())
    }

    /// Records in the health of this source what became of a request.
    fn count(&self, tally: &Tally, now: f64) {
        let health = self.health();
        health.up(true);
        health.unmatched_lines(tally.unmatched);
        if let Some(time) = tally.time {
            health.lag_seconds(now - time);
        }
        if tally.dropped > 0 {
            health.dropped("series_limit", tally.dropped);
        }
    }

    /// As [`Self::take`], on a blocking thread, so that a large request delays no others.
    async fn take_apart(&self, posted: Posted) -> Result<Response, Refused> {
        let turn = self.0.turns.take(posted.from.client).await;
        let otlp = self.clone();
        let work = move || {
            // If the client disconnects, the request ends but this work goes on. So its turn and
            // the memory of its body are kept here.
            let _turn = turn;
            let Posted { signal, encoding, gzip, body, from } = posted;
            if !gzip {
                return otlp.take(signal, encoding, &body, from.ends);
            }
            let body = gunzip(&body).inspect_err(|refused| otlp.refused(refused))?;
            otlp.take(signal, encoding, &body, from.ends)
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|_| Err(Refused::Malformed("the request could not be read".to_owned())))
    }

    fn refused(&self, why: &Refused) {
        tracing::debug!(%why, "telemetry refused");
        let reason = match why {
            Refused::Malformed(_) => "malformed",
            Refused::TooLarge(_) => "too_large",
        };
        self.health().dropped(reason, 1);
    }

    fn health(&self) -> &SourceHandle {
        self.0.health.get_or_init(|| self.0.hub.source("otlp", "otlp"))
    }
}

#[derive(Default)]
struct Tally {
    time: Option<f64>,
    unmatched: u64,
    /// The number of series over a limit.
    dropped: u64,
    /// The number of points of runs and ranks without room, or of another user's.
    rejected: u64,
}

impl Tally {
    /// The response. Partial success must not be set if everything was taken.
    fn response(&self) -> Response {
        let rejected = self.dropped + self.rejected;
        let partial_success = (rejected > 0).then(|| PartialSuccess {
            rejected: i64::try_from(rejected).unwrap_or(i64::MAX),
            error_message: "over a limit of the exporter: see train_source_dropped_total and \
                            stepwatch_exporter_ingest_dropped_total"
                .to_owned(),
        });
        Response { partial_success }
    }
}

impl Request {
    fn read(signal: Signal, encoding: Encoding, body: &[u8]) -> Result<Self, Refused> {
        match encoding {
            Encoding::Protobuf => budget::of_protobuf(signal, body)?,
            Encoding::Json => budget::of_json(body)?,
        }
        Ok(match signal {
            Signal::Metrics => Self::Metrics(message(encoding, body)?),
            Signal::Traces => Self::Traces(message(encoding, body)?),
        })
    }

    fn reports<'a>(&'a self, names: &'a Names) -> Vec<OwnedReport<'a>> {
        match self {
            Self::Metrics(request) => points::of_metrics(request, names),
            Self::Traces(request) => points::of_spans(request, names),
        }
    }
}

fn message<M: Message + Default + DeserializeOwned>(encoding: Encoding, body: &[u8]) -> Result<M, Refused> {
    match encoding {
        Encoding::Protobuf => M::decode(body).map_err(|e| Refused::Malformed(e.to_string())),
        Encoding::Json => serde_json::from_slice(body).map_err(|e| Refused::Malformed(e.to_string())),
    }
}

fn gunzip(body: &[u8]) -> Result<Vec<u8>, Refused> {
    // A gzip body ends with its uncompressed size. If a vector had to grow, it would briefly hold
    // the data twice.
    let size = body.last_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)));
    let mut inflated = Vec::with_capacity(size.min(MAX_INFLATED_BYTES + 1) as usize);
    let mut gzip = flate2::read::MultiGzDecoder::new(body).take(MAX_INFLATED_BYTES + 1);
    gzip.read_to_end(&mut inflated).map_err(|e| Refused::Malformed(format!("not gzip: {e}")))?;
    if inflated.len() as u64 > MAX_INFLATED_BYTES {
        return Err(Refused::TooLarge(format!(
            "decompressed, a request has at most {MAX_INFLATED_BYTES} bytes"
        )));
    }
    Ok(inflated)
}

/// The events of a single request, for the fuzzer and the tests.
pub fn events(signal: Signal, encoding: Encoding, body: &[u8]) -> Result<Vec<Event>, Refused> {
    let (names, mut readings) = (Names::default(), Readings::new(0.0));
    let request = Request::read(signal, encoding, body)?;
    let reports = request.reports(&names);
    Ok(reports.into_iter().flat_map(|(who, report)| readings.take(&who, report, None, 0.0).events).collect())
}
