//! Lists of all firing alerts, written in parts: a whole list would take as much memory as all
//! alerts.

use std::io::{self, Write};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// The size of a part in bytes.
const PART_BYTES: usize = 64 << 10;
/// The most parts that wait for the client, in addition to the one that is being written.
const WAITING: usize = 1;
/// The time limit for sending the whole list.
const WITHIN: Duration = Duration::from_secs(30);

type Part = io::Result<Bytes>;

/// The writer of a list, which sends it in parts.
pub(super) struct Parts {
    part: Vec<u8>,
    sender: mpsc::Sender<Part>,
    until: Instant,
    runtime: Handle,
}

/// Answers with the output of `write`. It runs on a thread of its own, because tens of thousands of
/// alerts would delay other requests.
pub(super) fn answer(write: impl FnOnce(&mut Parts) -> io::Result<()> + Send + 'static) -> Response {
    let (sender, receiver) = mpsc::channel(WAITING);
    let (part, until) = (Vec::with_capacity(PART_BYTES), Instant::now() + WITHIN);
    let mut parts = Parts { part, sender, until, runtime: Handle::current() };
    tokio::task::spawn_blocking(move || {
        if let Err(err) = write(&mut parts).and_then(|()| parts.flush()) {
            tracing::debug!(%err, "a list of alerts was not read to its end");
            // The error shows the client that the list is incomplete.
            _ = parts.sender.try_send(Err(err));
        }
    });
    let body = stream::unfold(receiver, async |mut parts| Some((parts.recv().await?, parts)));
    ([(CONTENT_TYPE, "application/json")], Body::from_stream(body)).into_response()
}

impl Write for Parts {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.part.extend_from_slice(bytes);
        if self.part.len() >= PART_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.part.is_empty() {
            return Ok(());
        }
        let part = std::mem::replace(&mut self.part, Vec::with_capacity(PART_BYTES));
        let sent = self.runtime.block_on(timeout_at(self.until, self.sender.send(Ok(part.into()))));
        sent.map_err(|_| io::ErrorKind::TimedOut)?.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
