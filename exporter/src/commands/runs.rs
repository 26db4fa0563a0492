//! `runs`: the runs that the exporter of this node follows, their sources, and why each source
//! belongs to its run.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use stepwatch_kit::serve::ListenAddr;

use crate::commands::format::Format;
use crate::identity::RunRow;
use crate::runs::RUNS;

const TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of an answer.
const MAX_ANSWER_BYTES: u64 = 16 << 20;

#[derive(Debug, clap::Args)]
pub struct Runs {
    /// Exporter to ask, such as http://node001:9765 [default: the one of this node, where it
    /// listens by the configuration]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    node: String,
    runs: Vec<RunRow>,
}

impl Runs {
    pub fn run(&self, listen: &ListenAddr) -> anyhow::Result<String> {
        let url = self.url.clone().unwrap_or_else(|| local(listen));
        let body = get(&url)?;
        let answer: Answer =
            serde_json::from_str(&body).with_context(|| format!("{url} is no exporter of this version"))?;
        Ok(match self.format {
            Format::Text => answer.text(),
            Format::Json => format!("{}\n", serde_json::to_string_pretty(&answer)?),
        })
    }
}

/// The URL of the exporter with this listen address, from this node.
fn local(listen: &ListenAddr) -> String {
    let text = listen.to_string();
    let host = text.rsplit_once(':').map_or("", |(host, _)| host);
    let host = if matches!(host, "" | "0.0.0.0" | "[::]") { "127.0.0.1" } else { host };
    format!("http://{host}:{}", listen.port())
}

impl Answer {
    fn text(&self) -> String {
        if self.runs.is_empty() {
            return format!("{}: no run is followed\n", self.node);
        }
        let mut out = String::new();
        for run in &self.runs {
            let mut head = run.run.clone();
            if let Some(attempt) = run.attempt {
                _ = write!(head, "  attempt {attempt}");
            }
            if let Some(step) = run.step {
                _ = write!(head, "  step {step}");
            }
            if let Some(uid) = run.uid {
                _ = write!(head, "  uid {uid}");
            }
            if !run.jobs.is_empty() {
                _ = write!(head, "  job {}", run.jobs.join(", "));
            }
            _ = writeln!(out, "{head}");
            let kind = run.sources.iter().map(|s| s.kind.len()).max().unwrap_or(0);
            let source = run.sources.iter().map(|s| s.source.chars().count()).max().unwrap_or(0);
            for s in &run.sources {
                _ = writeln!(out, "  {:kind$}  {:source$}  {}", s.kind, s.source, s.why);
            }
            if run.sources.is_empty() {
                _ = writeln!(
                    out,
                    "  no source of it is read now: its events named it, or its log goes on with another run"
                );
            }
            for note in &run.notes {
                _ = writeln!(out, "  note: {note}");
            }
        }
        out
    }
}

/// One HTTP request without a client library.
fn get(url: &str) -> anyhow::Result<String> {
    let Some(rest) = url.strip_prefix("http://") else {
        bail!("{url:?} is not an http:// URL; over TLS, ask {}{} with curl", url.trim_end_matches('/'), RUNS)
    };
    let host = rest.split('/').next().unwrap_or(rest);
    let address = if host.contains(':') { host.to_owned() } else { format!("{host}:9765") };
    let mut stream = TcpStream::connect(&address).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    // HTTP/1.0 gives the answer in one piece.
    write!(stream, "GET {RUNS} HTTP/1.0\r\nhost: {host}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER_BYTES).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status != "200" {
        bail!("the exporter answered {status}: {}", body.trim());
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::SourceRow;

    #[test]
    fn the_table_reads_well() {
        let source = |kind: &str, source: &str, pid, why: &str| SourceRow {
            kind: kind.into(),
            source: source.into(),
            pid,
            why: why.into(),
        };
        let job = "job 101 (SLURM_JOB_ID), named pretrain";
        let runs = vec![
            RunRow {
                run: "pretrain-101".into(),
                attempt: Some(2),
                step: Some(12_345),
                uid: Some(1000),
                jobs: vec!["101".into()],
                sources: vec![
                    source("client", "pid 4711, rank 0", Some(4711), job),
                    source("tail", "/logs/slurm-101.out", Some(4700), &format!("pid 4700 writes it: {job}")),
                ],
                notes: vec!["sources of pretrain-101 were given 2 names: a, b".into()],
            },
            RunRow {
                run: "curl".into(),
                attempt: Some(1),
                step: None,
                uid: None,
                jobs: vec![],
                sources: vec![],
                notes: vec![],
            },
        ];
        insta::assert_snapshot!(Answer { node: "node017".into(), runs }.text());
        let none = Answer { node: "node017".into(), runs: vec![] };
        assert_eq!(none.text(), "node017: no run is followed\n");
    }

    #[test]
    fn the_exporter_of_this_node_is_asked() {
        for (listen, url) in [
            (":9765", "http://127.0.0.1:9765"),
            ("0.0.0.0:1", "http://127.0.0.1:1"),
            ("[::1]:9", "http://[::1]:9"),
            ("node017:9765", "http://node017:9765"),
        ] {
            assert_eq!(local(&listen.parse().unwrap()), url);
        }
    }
}
