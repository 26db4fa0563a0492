//! Prometheus remote write: what becomes of a request, from its bytes to the runtime.
//!
//! `stepwatch-remote-write` decodes it and decides what its series mean; here are the clock, the
//! lock and the queue. A request is answered when the engine has judged it, and when what it led to
//! is durable: what was answered with 2xx is owed nothing more.

mod metrics;
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
use crate::runtime::WriteBatch;
pub use metrics::WriteMetrics;

/// Requests that may wait for the runtime.
pub const QUEUE_WRITES: usize = 4;
/// How long a request waits until it is judged and durable.
const JUDGED_WITHIN: Duration = Duration::from_secs(10);
/// How often scrapes that are not complete are looked at.
const TICK: Duration = Duration::from_secs(1);
/// Decoders that are kept: one for each request that is read at a time.
const MAX_DECODERS: usize = 2;
/// Buffers that have grown larger are not kept, and larger bodies are read one at a time. A request
/// of Prometheus takes less than one MiB, one of vmagent about three.
const MAX_KEPT_BYTES: usize = 4 << 20;

/// Where requests are taken; clones share it.
#[derive(Debug, Clone)]
pub struct RemoteWrite(Arc<Door>);

#[derive(Debug)]
struct Door {
    /// Also held while a batch is queued: batches reach the runtime in the order in which their
    /// samples were taken.
    registry: Mutex<Registry>,
    decoders: Mutex<Vec<Buffers>>,
    /// Held while a large body is read: it may need many times what it was sent as.
    large: Mutex<()>,
    seed: u64,
    out: mpsc::Sender<WriteBatch>,
    metrics: WriteMetrics,
    refused: LogThrottle,
}

/// What one request needs and the next can have.
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

/// What a request came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) totals: Totals,
    /// There is more in it than is taken at once.
    pub(crate) full: bool,
    /// Samples that are refused for good, and why.
    pub(crate) refused: u64,
    pub(crate) why: Option<String>,
}

/// Why a request is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It will never be.
    Malformed(String),
    /// It may be later.
    Later(&'static str),
}

impl RemoteWrite {
    /// Batches go to `out`.
    pub fn new(config: Config, out: mpsc::Sender<WriteBatch>, metrics: WriteMetrics) -> Self {
        let seed = getrandom::u64().unwrap_or_else(|_| wall().0.unsigned_abs());
        let registry = Mutex::new(Registry::new(config, seed));
        let (decoders, large, refused) = (Mutex::default(), Mutex::default(), LogThrottle::default());
        Self(Arc::new(Door { registry, decoders, large, seed, out, metrics, refused }))
    }

    pub fn configure(&self, config: Config) {
        self.0.registry().configure(config);
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, code: u16) {
        self.0.metrics.answered(code);
    }

    /// Looks once a second whether a scrape is complete, or an instance silent.
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

    /// Takes a request; returns when it is judged and durable.
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
        // Whatever stands before a fault in the body is taken: it is as good as any other sample.
        let totals = decoder.decode(version, text, |series| registry.take(&series, tenant, now, &mut batch));
        registry.finish_request(&mut batch);
        let (full, refused, why) = (batch.full, batch.refused, batch.why.take());
        let judged = self.queue(batch)?;
        self.metrics.publish(&registry);
        drop(registry);
        let totals = totals.map_err(malformed)?;
        Ok((Written { totals, full, refused, why }, judged))
    }

    /// Hands a batch to the runtime, if there is anything in it.
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
        // Nobody waits for it; a runtime that is gone needs no more.
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
