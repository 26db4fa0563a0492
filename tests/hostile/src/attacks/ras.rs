//! A server at the address of NCCL's RAS, with long answers that blame other nodes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use crate::attack::{Attack, Target};

pub(crate) const ATTACK: Attack = Attack { exporter, ..Attack::new("ras-server", act) };

/// The file with the port on which the server listens.
const PORT: &str = "port";
/// The size of an answer in bytes.
const BYTES: usize = 64 << 20;

/// The port is released before the attacker takes it, as the default one is free on a node without
/// a job.
fn exporter(dir: &Path) -> String {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = free.map_or(0, |addr| addr.port());
    // An attacker without a port reports an error.
    let _ = std::fs::write(dir.join(PORT), port.to_string());
    format!("collectors: {{ras: {{addresses: ['127.0.0.1:{port}'], interval: 1s, stuck_after: 1s}}}}\n")
}

fn act(target: &Target) -> anyhow::Result<()> {
    let port: u16 = std::fs::read_to_string(target.dir.join(PORT))?.parse()?;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let answers = [collectives, long_text, ranks, communicators];
    for (turn, stream) in listener.incoming().enumerate() {
        let kind = turn % answers.len();
        // The client closes the connection when it has read enough. Only the first kind is text.
        let _ = serve(stream?, kind > 0, &answers[kind](turn));
    }
    Ok(())
}

fn serve(stream: TcpStream, json: bool, answer: &str) -> std::io::Result<()> {
    let mut out = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line.starts_with("CLIENT PROTOCOL") {
            out.write_all(b"SERVER PROTOCOL 2\n")?;
        } else if line.ends_with("STATUS") {
            return out.write_all(answer.as_bytes());
        } else {
            let known = json || !line.starts_with("SET FORMAT");
            out.write_all(if known { b"OK\n" } else { b"ERROR: unknown\n" })?;
        }
    }
    Ok(())
}

fn until_long(head: String, tail: &str, one: impl Fn(usize) -> String) -> String {
    let mut text = head;
    for i in 0.. {
        if text.len() > BYTES {
            break;
        }
        text += &one(i);
    }
    text + tail
}

/// A text in which each line names another collective.
fn collectives(_: usize) -> String {
    until_long("Communicators... (1s)\n\n#0-0 (a) MISMATCH\n".to_owned(), "", |i| {
        format!(
            "  Communicator ranks have different C{i} operation counts\n  9 ranks have launched up to operation {i}\n"
        )
    })
}

fn long_text(_: usize) -> String {
    format!(r#"{{"nccl_version":"{}","communicators":[]}}"#, "x".repeat(BYTES))
}

/// One communicator with endless ranks on other hosts, each with many collectives.
fn ranks(turn: usize) -> String {
    let counts =
        |rank: usize| (0..16).map(|c| format!(r#""c{c}":{}"#, rank % 2)).collect::<Vec<_>>().join(",");
    let head =
        format!(r#"{{"nccl_version":"2","communicators":[{{"hash":"{turn}","size":9,"ranks":[{{"rank":0}}"#);
    until_long(head, "]}]}", |i| {
        format!(r#",{{"rank":{i},"host":"10.0.0.{i}","collective_counts":{{{}}}}}"#, counts(i))
    })
}

/// As many communicators as are read, each time of another job, with one rank that lags behind.
fn communicators(turn: usize) -> String {
    let one = |i: usize| {
        let rank = |n: usize| {
            format!(
                r#"{{"rank":{n},"host":"victim","pid":{n},"collective_counts":{{"AllReduce":{}}}}}"#,
                n % 2
            )
        };
        let ranks: Vec<_> = (0..32).map(rank).collect();
        format!(r#"{{"hash":"{turn}-{i}","size":32,"ranks":[{}]}}"#, ranks.join(","))
    };
    let all: Vec<_> = (0..8_000).map(one).collect();
    format!(r#"{{"nccl_version":"2","communicators":[{}]}}"#, all.join(","))
}
