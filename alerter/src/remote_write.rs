//! Prometheus remote write: the path of a request from its bytes to the runtime.
//!
//! `stepwatch-remote-write` decodes a request and decides the meaning of its series; this module
//! has the clock, the lock and the queue. A request is answered when the engine has evaluated it
//! and the resulting changes are durable, so that a 2xx is final.

pub(crate) mod negotiation;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use stepwatch_kit::log_throttle::LogThrottle;
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_remote_write::decode::{Decoder, Totals, Version, declared_len, decompress};
use stepwatch_remote_write::{Batch, Config, Registry};
use tokio::sync::{mpsc, oneshot};

use crate::clock::wall;
use crate::metrics::WriteMetrics;
use crate::runtime::WriteBatch;

/// The most requests that wait for the runtime.
pub const QUEUE_WRITES: usize = 4;
/// The time limit for a request to be evaluated and durable.
const JUDGED_WITHIN: Duration = Duration::from_secs(10);
/// The interval at which incomplete scrapes are checked.
const TICK: Duration = Duration::from_secs(1);
/// The most decoders that are kept, one for each request that is read at once.
const MAX_DECODERS: usize = 2;
/// The largest buffers that are kept; larger bodies are read one at a time. A request of Prometheus
/// needs less than one MiB, one of vmagent about three.
const MAX_KEPT_BYTES: usize = 4 << 20;

/// The receiver of requests. Clones share it.
#[derive(Debug, Clone)]
pub struct RemoteWrite(Arc<Door>);

#[derive(Debug)]
struct Door {
    /// It is also locked while a batch is queued, so that batches reach the runtime in the order of
    /// their samples.
    registry: Mutex<Registry>,
    decoders: Mutex<Vec<Buffers>>,
    /// Locked while a large body is read, which may need many times its size.
    large: Mutex<()>,
    seed: u64,
    out: mpsc::Sender<WriteBatch>,
    metrics: WriteMetrics,
    refused: LogThrottle,
}

/// The buffers of a request, which later requests reuse.
#[derive(Debug)]
struct Buffers {
    decoder: Decoder,
    body: Vec<u8>,
}

impl Buffers {
    fn held_bytes(&self) -> usize {
        self.body.capacity() + self.decoder.held_bytes()
    }
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) totals: Totals,
    /// The request has more samples than are taken at once.
    pub(crate) full: bool,
    /// The number of samples that are permanently refused, and the reason.
    pub(crate) refused: u64,
    pub(crate) why: Option<String>,
}

/// The reason why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The request is permanently refused.
    Malformed(String),
    /// The request may be repeated later.
    Later(&'static str),
}

impl RemoteWrite {
    /// Creates the receiver, which sends batches to `out`.
    pub fn new(config: Config, out: mpsc::Sender<WriteBatch>, metrics: WriteMetrics) -> Self {
        let seed = getrandom::u64().unwrap_or_else(|_| wall().0.unsigned_abs());
        let registry = Mutex::new(Registry::new(config, seed));
        let (decoders, large, refused) = (Mutex::default(), Mutex::default(), LogThrottle::default());
        Self(Arc::new(Door { registry, decoders, large, seed, out, metrics, refused }))
    }

    pub fn configure(&self, config: Config) {
        self.0.registry().configure(config);
    }

    /// Counts a response by its status.
    pub(crate) fn answered(&self, code: u16) {
        self.0.metrics.answered(code);
    }

    /// Checks once a second whether a scrape is complete or an instance silent.
    pub async fn tick(self, stopping: Shutdown) {
        loop {
            tokio::select! {
                () = stopping.wait() => return,
                () = tokio::time::sleep(TICK) => {}
            }
            let door = Arc::clone(&self.0);
            let _ = tokio::task::spawn_blocking(move || door.tick()).await;
        }
    }

    /// Takes a request; returns when it is evaluated and durable.
    pub(crate) async fn take(
        &self,
        version: Version,
        body: Bytes,
        tenant: String,
    ) -> Result<Written, Refusal> {
        let door = Arc::clone(&self.0);
        let read = tokio::task::spawn_blocking(move || door.read(version, &body, &tenant)).await;
        let (written, judged) = read.unwrap_or(Err(Refusal::Later("the request could not be read")))?;
        if let Some(judged) = judged {
            let judged = tokio::time::timeout(JUDGED_WITHIN, judged).await;
            judged
                .map_err(|_| Refusal::Later("judged, but not yet durable: the store is slow or refuses"))?
                .map_err(|_| Refusal::Later("the alerter is stopping"))?;
        }
        self.0.note(&written);
        if written.full {
            return Err(Refusal::Later("more samples mean something than are judged at once: send it again"));
        }
        Ok(written)
    }
}

type Judged = oneshot::Receiver<()>;

impl Door {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decoders(&self) -> MutexGuard<'_, Vec<Buffers>> {
        self.decoders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(
        &self,
        version: Version,
        body: &[u8],
        tenant: &str,
    ) -> Result<(Written, Option<Judged>), Refusal> {
        let is_large = declared_len(body) > MAX_KEPT_BYTES;
        let _alone = is_large.then(|| self.large.lock().unwrap_or_else(PoisonError::into_inner));
        let fresh = || Buffers { decoder: Decoder::new(self.seed), body: Vec::new() };
        let mut buffers = self.decoders().pop().unwrap_or_else(fresh);
        let read = self.read_with(&mut buffers, version, body, tenant);
        let mut kept = self.decoders();
        if kept.len() < MAX_DECODERS && buffers.held_bytes() <= MAX_KEPT_BYTES {
            kept.push(buffers);
        }
        read
    }

    fn read_with(
        &self,
        buffers: &mut Buffers,
        version: Version,
        body: &[u8],
        tenant: &str,
    ) -> Result<(Written, Option<Judged>), Refusal> {
        let Buffers { decoder, body: buffer } = buffers;
        let malformed = |e: stepwatch_remote_write::decode::Malformed| Refusal::Malformed(e.to_string());
        let text = decompress(body, buffer).map_err(malformed)?;
        let (now, mut batch) = (wall(), Batch::default());
        let mut registry = self.registry();
        let Some(tenant) = registry.tenant(tenant) else {
            let most = stepwatch_remote_write::MAX_TENANTS;
            return Err(Refusal::Malformed(format!(
                "there are {most} tenants already; no further one is taken"
            )));
        };
        // Samples before an error in the body are valid and are taken.
        let totals = decoder.decode(version, text, |series| registry.take(&series, tenant, now, &mut batch));
        registry.finish_request(&mut batch);
        let (full, refused, why) = (batch.full, batch.refused, batch.why.take());
        let judged = self.queue(batch)?;
        self.metrics.publish(&registry);
        drop(registry);
        let totals = totals.map_err(malformed)?;
        Ok((Written { totals, full, refused, why }, judged))
    }

    /// Sends a batch to the runtime, if it is not empty.
    fn queue(&self, batch: Batch) -> Result<Option<Judged>, Refusal> {
        let Batch { reports, readings, .. } = batch;
        if reports.is_empty() && readings.is_empty() {
            return Ok(None);
        }
        let (reply, judged) = oneshot::channel();
        let sent = self.out.blocking_send(WriteBatch { reports, readings, reply });
        sent.map_err(|_| Refusal::Later("the alerter is stopping"))?;
        Ok(Some(judged))
    }

    fn tick(&self) {
        let mut batch = Batch::default();
        let mut registry = self.registry();
        registry.tick(wall(), &mut batch);
        self.metrics.publish(&registry);
        // Nobody waits for this batch, and a stopped runtime does not need it.
        let _ = self.queue(batch);
    }

    fn note(&self, written: &Written) {
        if written.refused > 0
            && let Some(refused) = self.refused.count(written.refused)
        {
            let why = written.why.as_deref().unwrap_or_default();
            tracing::warn!(refused, why, "samples of remote write were refused: they are not judged");
        }
    }
}
