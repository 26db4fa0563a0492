//! Detects the HTTP version by the first bytes of a connection. HTTP/2 with prior knowledge, which
//! gRPC uses, begins with bytes that no HTTP/1 request begins with.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// The first bytes of every HTTP/2 connection (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that yields the bytes again that were read to detect its protocol.
#[derive(Debug)]
pub(super) struct Sniffed<IO> {
    io: IO,
    head: [u8; PREFACE.len()],
    given: usize,
    read: usize,
}

impl<IO: AsyncRead + Unpin> Sniffed<IO> {
    /// A connection of which nothing has been read.
    pub(super) fn unread(io: IO) -> Self {
        Self { io, head: [0; PREFACE.len()], given: 0, read: 0 }
    }

    /// Reads until it is certain whether this is HTTP/2. Blocks for as long as the client sends
    /// nothing.
    pub(super) async fn is_http2(&mut self) -> io::Result<bool> {
        while self.read < PREFACE.len() {
            let n = self.io.read(&mut self.head[self.read..]).await?;
            self.read += n;
            if n == 0 || self.head[..self.read] != PREFACE[..self.read] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Sniffed<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.given == this.read {
            return Pin::new(&mut this.io).poll_read(cx, buf);
        }
        let n = buf.remaining().min(this.read - this.given);
        buf.put_slice(&this.head[this.given..this.given + n]);
        this.given += n;
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Sniffed<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    async fn sniff(pieces: &[&[u8]]) -> (bool, Vec<u8>) {
        let (mut client, server) = tokio::io::duplex(1024);
        let pieces: Vec<Vec<u8>> = pieces.iter().map(|p| p.to_vec()).collect();
        let writer = tokio::spawn(async move {
            for piece in pieces {
                client.write_all(&piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let mut sniffed = Sniffed::unread(server);
        let http2 = sniffed.is_http2().await.unwrap();
        let mut all = Vec::new();
        sniffed.read_to_end(&mut all).await.unwrap();
        writer.await.unwrap();
        (http2, all)
    }

    #[tokio::test]
    async fn nothing_is_lost_whatever_it_is() {
        for (pieces, http2) in [
            (vec![&PREFACE[..], b"frames"], true),
            (vec![&PREFACE[..3], &PREFACE[3..20], &PREFACE[20..], b"frames"], true),
            (vec![b"GET / HTTP/1.1\r\n\r\n"], false),
            (vec![b"PRI ", b"is not it"], false),
            (vec![b"P"], false),
            (vec![], false),
        ] {
            let whole: Vec<u8> = pieces.concat();
            assert_eq!(sniff(&pieces).await, (http2, whole), "{pieces:?}");
        }
    }
}
