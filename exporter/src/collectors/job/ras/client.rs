//! The line protocol of NCCL's RAS: a few commands, an answer, and the end of the connection.
//!
//! The answer to `CLIENT PROTOCOL n` is `SERVER PROTOCOL n`, and to `TIMEOUT s` and `SET FORMAT
//! json` it is `OK`. NCCL before 2.28.7 only supports text, and answers the last with an error. The
//! server may hang, or be another user's program: every byte is counted, the whole exchange has one
//! deadline, and the kernel gives the owner of the program.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use stepwatch_kit::serve::Ends;

use super::status::{Format, Status};
use super::{json, places, text};
use crate::identity::peer;
use crate::principal::Principal;
use crate::roots::Roots;

/// The most bytes of an answer: about ten thousand ranks, each in a few communicators.
const MAX_BYTES: u64 = if cfg!(test) { 1 << 20 } else { 64 << 20 };
/// The most bytes of an answer in text, which lists only differences.
const MAX_TEXT_BYTES: u64 = MAX_BYTES / 16;
const MAX_LINE: u64 = 1024;
/// The protocol's version in NCCL 2.24, the first with it; servers ignore it.
const PROTOCOL: u32 = 2;
const CONNECT: Duration = Duration::from_secs(1);
/// The time that an answer may take beyond the timeout given to RAS.
const BEYOND: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub(super) enum PollError {
    #[error("no server listens")]
    Refused,
    #[error("the network namespace of the job may not be entered: that needs CAP_SYS_ADMIN")]
    Denied,
    #[error("no answer in time")]
    Timeout,
    #[error("the answer is longer than {MAX_BYTES} bytes")]
    TooLong,
    #[error("that is no RAS: {0}")]
    Protocol(String),
    #[error("{0}")]
    Io(io::Error),
}

impl PollError {
    /// The reason as the value of a label.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Denied => "denied",
            Self::Timeout => "timeout",
            Self::TooLong => "too_long",
            Self::Protocol(_) => "protocol",
            Self::Io(_) => "io",
        }
    }
}

impl From<io::Error> for PollError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::Timeout,
            io::ErrorKind::FileTooLarge => Self::TooLong,
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => Self::Protocol(error.to_string()),
            _ => Self::Io(error),
        }
    }
}

/// A connection with a deadline and a limit of bytes.
struct Bounded {
    stream: TcpStream,
    deadline: Instant,
    left: u64,
}

impl Bounded {
    fn remaining(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.remaining()?;
        self.stream.set_read_timeout(Some(left))?;
        let read = self.stream.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(read)
    }
}

/// An answer of RAS.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: Status,
    /// The user of the program that answered.
    pub(super) principal: Principal,
    /// Whether the first rank of the job is on the polled node; `None` if the answer does not
    /// contain its address.
    pub(super) first_is_here: Option<bool>,
}

/// Polls once. `timeout` is the time that RAS may take to collect the answers of all processes of
/// the job. `principal` must be given if the kernel's lists of connections are not those of this
/// network namespace.
pub(super) fn poll(
    roots: &Roots,
    addresses: &[SocketAddr],
    timeout: Duration,
    principal: Option<Principal>,
) -> Result<Answer, PollError> {
    let connected = addresses.iter().map(|address| TcpStream::connect_timeout(address, CONNECT));
    let stream = connected.reduce(Result::or).ok_or(PollError::Refused)??;
    let ends = Ends::new(stream.peer_addr()?, stream.local_addr()?);
    let deadline = Instant::now() + timeout + BEYOND;
    let mut lines = BufReader::new(Bounded { stream, deadline, left: MAX_BYTES });
    let hello = command(&mut lines, &format!("CLIENT PROTOCOL {PROTOCOL}"))?;
    if !hello.starts_with("SERVER PROTOCOL ") {
        return Err(PollError::Protocol(format!("it greets with {:?}", clip(&hello))));
    }
    let seconds = timeout.as_secs().max(1);
    let agreed = command(&mut lines, &format!("TIMEOUT {seconds}"))?;
    if agreed != "OK" {
        return Err(PollError::Protocol(format!("it answers a timeout with {:?}", clip(&agreed))));
    }
    let format = if command(&mut lines, "SET FORMAT json")? == "OK" { Format::Json } else { Format::Text };
    // The answering process has accepted the connection, and holds it until the status is sent.
    let principal = if let Some(principal) = principal {
        principal
    } else if peer::is_here(ends.peer.ip()) {
        Principal::from_uid(peer::holder_of(roots, ends).map(|holder| holder.uid))
    } else {
        // Only the configuration can name another machine.
        Principal::Exporter
    };
    // The verbose text names more of the lagging ranks; JSON always names all of them.
    send(&mut lines, if format == Format::Json { "STATUS" } else { "VERBOSE STATUS" })?;
    let status = match format {
        Format::Json => json::parse(lines).map_err(|error| match error.io_error_kind() {
            Some(kind) => PollError::from(io::Error::from(kind)),
            None => PollError::Protocol(error.to_string()),
        })?,
        Format::Text => {
            let left = &mut lines.get_mut().left;
            *left = MAX_TEXT_BYTES.min(*left);
            text::parse(lines)?
                .ok_or_else(|| PollError::Protocol("its answer contains no communicators".into()))?
        }
    };
    let first_is_here = places::first_is_here(&status);
    Ok(Answer { status, principal, first_is_here })
}

fn send(lines: &mut BufReader<Bounded>, command: &str) -> Result<(), PollError> {
    let bounded = lines.get_mut();
    let left = bounded.remaining()?;
    bounded.stream.set_write_timeout(Some(left))?;
    bounded.stream.write_all(format!("{command}\n").as_bytes())?;
    Ok(())
}

fn command(lines: &mut BufReader<Bounded>, command: &str) -> Result<String, PollError> {
    send(lines, command)?;
    let mut line = Vec::new();
    lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(PollError::Protocol("its answer is no line".into()));
    }
    Ok(String::from_utf8_lossy(&line).trim().to_owned())
}

fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(80)]
}
