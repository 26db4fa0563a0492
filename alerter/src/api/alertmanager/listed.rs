//! Lists of everything that fires, written part by part: whole, such a list takes as much memory as
//! all alerts that are kept.

use std::io::{self, Write};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// Bytes of a part.
const PART_BYTES: usize = 64 << 10;
/// Parts that wait for the client, beside the one that is written.
const WAITING: usize = 1;
/// How long a client may take for the whole.
const WITHIN: Duration = Duration::from_secs(30);

type Part = io::Result<Bytes>;

/// What a list is written into.
pub(super) struct Parts {
    part: Vec<u8>,
    sender: mpsc::Sender<Part>,
    until: Instant,
    runtime: Handle,
}

/// Answers with what `write` writes. Tens of thousands of alerts take so long that they would delay
/// other requests: it runs on a thread of its own.
pub(super) fn answer(write: impl FnOnce(&mut Parts) -> io::Result<()> + Send + 'static) -> Response {
    let (sender, receiver) = mpsc::channel(WAITING);
    let (part, until) = (Vec::with_capacity(PART_BYTES), Instant::now() + WITHIN);
    let mut parts = Parts { part, sender, until, runtime: Handle::current() };
    tokio::task::spawn_blocking(move || {
        if let Err(err) = write(&mut parts).and_then(|()| parts.flush()) {
            tracing::debug!(%err, "a list of alerts was not read to its end");
            // The client sees that it is not whole.
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
