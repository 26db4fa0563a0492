//! Ends a connection whose peer stopped reading. The kernel would keep its memory for hours.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::connections::Busy;

/// Fails a write that made no progress for `limit`. Reads pass through; when no input is left,
/// `busy` is notified.
#[derive(Debug)]
pub(super) struct StallGuard<IO> {
    io: IO,
    limit: Duration,
    busy: Arc<Busy>,
    has_read: bool,
    /// The timer of a waiting write.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<IO> StallGuard<IO> {
    pub(super) fn new(io: IO, limit: Duration, busy: Arc<Busy>) -> Self {
        Self { io, limit, busy, has_read: false, waiting: None }
    }

    fn guard<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer stopped reading")))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for StallGuard<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        // A new socket has no input until the runtime has polled it.
        if read.is_ready() {
            self.has_read = true;
        } else if self.has_read {
            self.busy.was_heard();
        }
        read
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for StallGuard<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.guard(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.guard(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.guard(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.io).poll_shutdown(cx);
        self.guard(cx, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_slowly_is_served() {
        let (near, mut far) = tokio::io::duplex(8);
        let mut guarded = StallGuard::new(near, Duration::from_secs(30), Arc::default());
        let writer = tokio::spawn(async move { guarded.write_all(&[7; 64]).await });
        let mut got = Vec::new();
        while got.len() < 64 {
            sleep(Duration::from_secs(20)).await;
            let mut part = [0; 8];
            let n = far.read(&mut part).await.unwrap();
            got.extend_from_slice(&part[..n]);
        }
        writer.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_stopped_reading_is_not() {
        let (near, _far) = tokio::io::duplex(8);
        let mut guarded = StallGuard::new(near, Duration::from_secs(30), Arc::default());
        let err = guarded.write_all(&[7; 64]).await.unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::TimedOut);
    }
}
