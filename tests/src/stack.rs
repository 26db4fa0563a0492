//! The whole path: an exporter, an alerter that reads it, and the services that the alerter
//! notifies.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use stepwatch_fakes::{FakePagerDuty, FakeSlack, FakeWebhook, PagerDuty, Slack, SlackSocket, WebhookSink};
use tempfile::TempDir;

use crate::fake_libc::FakeLibc;
use crate::programs::{Alerter, AlerterOptions, Exporter, Machine};
use crate::trainer::{self, Rank};

/// Faults of the machine that the tests run on are not what they test.
const QUIET_MACHINE: &str = "detectors: {node_fault: {enabled: false}, link_fault: {enabled: false}}\n";

/// Where a [`Stack`] differs from the smallest one.
#[derive(Debug, Clone, Default)]
pub struct StackOptions {
    /// Appended to the exporter's configuration.
    pub exporter: String,
    /// Appended to the alerter's configuration.
    pub alerter: String,
    /// Where the alerter listens, so that its messages can link to it.
    pub alerter_listen: Option<SocketAddr>,
    /// Where the alerter is to kill itself.
    pub crash_point: Option<String>,
    /// The alerter reads no exporter.
    pub blind: bool,
    /// Also notify a webhook.
    pub webhook: bool,
    /// More keys of the Slack receiver, each after a comma.
    pub slack_keys: String,
    /// The same of the PagerDuty receiver, and whether there is another receiver of its service,
    /// `twin`.
    pub pagerduty_keys: String,
    pub twin: bool,
    /// Receive clicks in Slack by HTTP, by a socket, and answers in PagerDuty.
    pub inbound: Vec<Inbound>,
    /// More receivers, as lines of YAML, and their names.
    pub receivers: String,
    pub also: Vec<String>,
    /// Who is notified of a page after how long, as lines of YAML, instead of the sample's levels.
    pub levels: Option<String>,
    /// The stand-in of libc that the alerter runs with.
    pub libc: Option<FakeLibc>,
    /// What the exporter looks at.
    pub machine: Machine,
}

/// A way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inbound {
    Slack,
    SlackSocket,
    PagerDuty,
    /// Nothing is received, but changes of runs are shown.
    PagerDutyChanges,
}

// The order of the fields is the order in which they end: readers before what they read.
#[derive(Debug)]
pub struct Stack {
    pub alerter: Alerter,
    pub exporter: Exporter,
    pub slack: FakeSlack,
    pub sockets: Option<SlackSocket>,
    pub pagerduty: FakePagerDuty,
    pub webhook: FakeWebhook,
    pub dir: TempDir,
}

impl Stack {
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_with(StackOptions::default()).await
    }

    pub async fn start_with(options: StackOptions) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("stepwatch").tempdir().context("no temporary directory")?;
        let (slack, pagerduty, webhook) =
            (FakeSlack::start().await, FakePagerDuty::start().await, FakeWebhook::start().await);
        let home = dir.path().join("exporter");
        let exporter = Exporter::start_on(options.machine, &home, "", &options.exporter).await?;
        let keys = |wanted: Inbound, key: &str, text: &str| {
            options.inbound.contains(&wanted).then(|| (key.to_owned(), text.to_owned()))
        };
        let slack_secrets = [
            keys(Inbound::Slack, "signing_secret_file", Slack::SIGNING_SECRET),
            keys(Inbound::SlackSocket, "app_token_file", Slack::APP_TOKEN),
        ];
        let pagerduty_secrets = [keys(Inbound::PagerDuty, "webhook_secret_file", PagerDuty::WEBHOOK_SECRET)];
        let sockets = if options.inbound.contains(&Inbound::SlackSocket) {
            Some(SlackSocket::start(&slack).await)
        } else {
            None
        };
        let alerter_options = AlerterOptions {
            slack_secrets: slack_secrets.into_iter().flatten().collect(),
            slack_keys: options.slack_keys,
            pagerduty_secrets: pagerduty_secrets.into_iter().flatten().collect(),
            pagerduty_keys: options.pagerduty_keys,
            twin: options.twin,
            pagerduty_changes: options.inbound.contains(&Inbound::PagerDutyChanges),
            receivers: options.receivers,
            also: options.also,
            levels: options.levels,
            env: options.libc.map(|libc| libc.env()).transpose()?.unwrap_or_default(),
            exporters: if options.blind { Vec::new() } else { vec![exporter.addr] },
            slack_api: format!("{}/api", slack.url()),
            slack_token: Slack::TOKEN.into(),
            pagerduty: pagerduty.url(),
            routing_key: PagerDuty::ROUTING_KEY.into(),
            listen: options.alerter_listen,
            webhook: options.webhook.then(|| (webhook.url(), WebhookSink::SECRET.into())),
            extra: if options.alerter.contains("detectors:") {
                options.alerter
            } else {
                options.alerter + QUIET_MACHINE
            },
        };
        let crash_point = options.crash_point.as_deref();
        let mut alerter = Alerter::start(&dir.path().join("alerter"), &alerter_options, crash_point).await?;
        if crash_point.is_none() {
            alerter.ready().await?;
        }
        Ok(Self { alerter, exporter, slack, sockets, pagerduty, webhook, dir })
    }

    pub fn ingest(&self) -> PathBuf {
        self.exporter.ingest()
    }

    /// A run of one rank that has made `steps` healthy steps, as fast as they can be sent.
    pub fn warm_run(&self, name: &str, steps: i64) -> anyhow::Result<Rank> {
        trainer::warm_run(&self.ingest(), name, steps)
    }
}
