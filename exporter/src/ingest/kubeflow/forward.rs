//! Forwards reports to a real Kubeflow Trainer, one after the other. They have a queue of their
//! own, because that server may be slow or down.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Certificate, Client, Url, redirect};
use stepwatch_kit::shutdown::Shutdown;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{Health, Report};

/// The most reports that wait to be forwarded.
const MAX_QUEUED: usize = 16;
/// The callback itself would wait as long.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The placeholder of the run in the URL.
const RUN: &str = "{run}";

#[derive(Debug)]
pub(super) struct Forward {
    client: Client,
    url: String,
}

/// Checks the URL; the error says what is wrong with it.
pub(super) fn check(url: &str) -> Result<(), String> {
    let url: Url = url.replace(RUN, "run").parse().map_err(|e| format!("is not a URL: {e}"))?;
    match url.scheme() {
        "http" | "https" => Ok(()),
        other => Err(format!("must be http or https, not {other}")),
    }
}

impl Forward {
    pub(super) fn new(url: &str, ca_file: Option<&Path>) -> anyhow::Result<Self> {
        // The bearer token must reach only the configured server.
        let mut client = Client::builder().no_proxy().timeout(TIMEOUT).redirect(redirect::Policy::none());
        if let Some(file) = ca_file {
            let place = || format!("ingest.kubeflow.ca_file: {}", file.display());
            let pem = std::fs::read(file).with_context(place)?;
            for certificate in Certificate::from_pem_bundle(&pem).with_context(place)? {
                client = client.add_root_certificate(certificate);
            }
        }
        Ok(Self { client: client.build().context("ingest.kubeflow.forward")?, url: url.to_owned() })
    }

    pub(super) fn start(self, health: Health, shutdown: Shutdown) -> Sender<Report> {
        let (queue, reports) = channel(MAX_QUEUED);
        tokio::spawn(self.run(reports, health, shutdown));
        queue
    }

    async fn run(self, mut reports: Receiver<Report>, health: Health, shutdown: Shutdown) {
        let mut failing = false;
        loop {
            let report = tokio::select! {
                () = shutdown.wait() => return,
                report = reports.recv() => report,
            };
            let Some(report) = report else { return };
            let outcome = self.send(report).await;
            if let Err(why) = &outcome {
                health.get().dropped("forward_failed", 1);
                if !failing {
                    tracing::warn!(%why, "cannot pass a report on to Kubeflow; trying with the next");
                }
            }
            failing = outcome.is_err();
        }
    }

    async fn send(&self, report: Report) -> Result<(), String> {
        let url = self.url.replace(RUN, &encode(&report.run));
        let mut request = self.client.post(url).header(CONTENT_TYPE, "application/json").body(report.body);
        if let Some(authorization) = report.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let response = request.send().await.map_err(|e| e.without_url().to_string())?;
        let status = response.status();
        if status.is_success() { Ok(()) } else { Err(format!("the server answered {status}")) }
    }
}

/// Encodes a run's name as one segment of a path.
fn encode(run: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    run.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        assert!(check("https://kubeflow/apis/trainjobs/{run}/status").is_ok());
        assert!(check("ftp://x").is_err() && check("kubeflow").is_err());
        assert_eq!(encode("a/b c-1.é"), "a%2Fb%20c-1.%C3%A9");
    }
}
