//! `emit`: sends one event from a shell, a prolog or a cron job.
//!
//! By default it sends to the packet socket of this node, which proves to the exporter who sends.
//! It says that it is a command, because the end of its connection would count as the death of a
//! rank.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};
use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Value};

use crate::ingest::IngestConfig;
use crate::training::needs_run;

const TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of an answer.
const MAX_ANSWER_BYTES: u64 = 64 * 1024;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  stepwatch-exporter emit step run=demo step=5 loss=2.3
  stepwatch-exporter emit '{\"k\": \"checkpoint\", \"run\": \"demo\", \"step\": 500}' --url http://node001:9765")]
pub struct Emit {
    /// The event: one JSON object, or its kind followed by KEY=VALUE pairs, such as `step run=demo
    /// step=5 loss=2.3`
    #[arg(required = true, value_name = "EVENT")]
    event: Vec<String>,
    /// Packet socket of the exporter [default: STEPWATCH_SOCKET or /run/stepwatch/ingest.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "url")]
    socket: Option<PathBuf>,
    /// Exporter to send to over HTTP, such as http://node001:9765
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

impl Emit {
    pub fn run(&self) -> anyhow::Result<()> {
        let text = event_text(&self.event)?;
        let mut event = Event::parse(text.as_bytes()).context("this is not an event")?;
        if event.run.is_none() && needs_run(event.kind) {
            bail!("a {} event needs its run: add run=NAME", event.kind.as_str());
        }
        event.extra.entry(hello::ROLE.into()).or_insert_with(|| Value::Text(hello::COMMAND.into()));
        let text = event.to_json();
        match &self.url {
            Some(url) => post(url, &text),
            None => send_packet(self.socket.clone(), &text),
        }
    }
}

/// The event's JSON from the arguments.
fn event_text(words: &[String]) -> anyhow::Result<String> {
    let [first, rest @ ..] = words else { bail!("an event is needed") };
    if first.trim_start().starts_with('{') {
        return Ok(words.join(" "));
    }
    let mut fields = serde_json::Map::new();
    fields.insert("k".into(), first.as_str().into());
    for pair in rest {
        let (key, value) = pair.split_once('=').with_context(|| format!("{pair:?} is not KEY=VALUE"))?;
        // A number if the text is one; words for numbers stay text, which the exporter parses.
        let value = serde_json::from_str(value)
            .ok()
            .filter(|v: &serde_json::Value| !v.is_string())
            .unwrap_or_else(|| value.into());
        fields.insert(key.into(), value);
    }
    Ok(serde_json::Value::Object(fields).to_string())
}

fn send_packet(socket: Option<PathBuf>, text: &str) -> anyhow::Result<()> {
    let path = socket.unwrap_or_else(|| IngestConfig::default().path());
    let failed = || format!("cannot send to {}", path.display());
    let flags = SocketFlags::CLOEXEC;
    let sender = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    set_socket_timeout(&sender, Timeout::Send, Some(TIMEOUT))?;
    let address = SocketAddrUnix::new(&path).with_context(failed)?;
    connect(&sender, &address).with_context(failed)?;
    send(&sender, text.as_bytes(), SendFlags::NOSIGNAL).with_context(failed)?;
    Ok(())
}

/// One HTTP request without a client library: a body of known length and a connection that closes.
fn post(url: &str, text: &str) -> anyhow::Result<()> {
    let Some(rest) = url.strip_prefix("http://") else {
        bail!("{url:?} is not an http:// URL; over TLS, send the event with curl")
    };
    let host = rest.split('/').next().unwrap_or(rest);
    let address = if host.contains(':') { host.to_owned() } else { format!("{host}:9765") };
    let mut stream = TcpStream::connect(&address).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(
        stream,
        "POST /v1/events HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{text}",
        text.len()
    )?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER_BYTES).read_to_string(&mut answer)?;
    let status = answer.split_whitespace().nth(1).unwrap_or_default();
    if !status.starts_with('2') {
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).trim();
        bail!("the exporter answered {status}: {body}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_an_event() {
        let event = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            event_text(&words).and_then(|t| Ok(Event::parse(t.as_bytes())?.to_json()))
        };
        assert_eq!(
            event(&["step", "run=demo", "step=5", "loss=2.3", "grad_norm=NaN"]).unwrap(),
            r#"{"v":1,"k":"step","run":"demo","step":5,"m":{"grad_norm":"NaN","loss":2.3}}"#
        );
        assert_eq!(
            event(&["event", "run=42", "text=swapped a cable"]).unwrap(),
            r#"{"v":1,"k":"event","run":"42","text":"swapped a cable"}"#
        );
        assert_eq!(event(&[r#"{"k":"hb","run":"r"}"#]).unwrap(), r#"{"v":1,"k":"hb","run":"r"}"#);
        let emit = |words: &[&str]| Emit {
            event: words.iter().map(|w| (*w).to_owned()).collect(),
            socket: Some("/nowhere/at/all".into()),
            url: None,
        };
        let why = |words: &[&str]| emit(words).run().unwrap_err().to_string();
        assert_eq!(why(&["ckpt", "phase=failed"]), "a ckpt event needs its run: add run=NAME");
        assert!(why(&["event", "text=x"]).starts_with("cannot send"), "free text needs none");
        assert!(event(&["step", "run"]).unwrap_err().to_string().contains("KEY=VALUE"));
        assert!(event(&["stepp"]).unwrap_err().to_string().contains("one of hello step"));
    }
}
