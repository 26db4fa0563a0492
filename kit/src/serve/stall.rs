//! A connection whose peer stopped reading ends: the kernel alone would hold its memory for hours.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Fails a write that made no progress for `limit`. Reads pass through.
#[derive(Debug)]
pub(super) struct StallGuard<IO> {
    io: IO,
    limit: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<IO> StallGuard<IO> {
    pub(super) fn new(io: IO, limit: Duration) -> Self {
        Self { io, limit, waiting: None }
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
        Pin::new(&mut self.io).poll_read(cx, buf)
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
        let mut guarded = StallGuard::new(near, Duration::from_secs(30));
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
        let mut guarded = StallGuard::new(near, Duration::from_secs(30));
        let err = guarded.write_all(&[7; 64]).await.unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::TimedOut);
    }
}
