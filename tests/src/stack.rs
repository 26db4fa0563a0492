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

/// Disables detectors of node faults, because faults of the test machine are not under test.
const QUIET_MACHINE: &str = "detectors: {node_fault: {enabled: false}, link_fault: {enabled: false}}\n";

/// The differences of a [`Stack`] from the smallest one.
#[derive(Debug, Clone, Default)]
pub struct StackOptions {
    /// Text that is appended to the exporter's configuration.
    pub exporter: String,
    /// Text that is appended to the alerter's configuration.
    pub alerter: String,
    /// The address of the alerter, so that its messages can link to it.
    pub alerter_listen: Option<SocketAddr>,
    /// The `storage` section of the alerter, in place of SQLite.
    pub storage: Option<String>,
    /// The crash point at which the alerter kills itself.
    pub crash_point: Option<String>,
    /// Whether the alerter reads no exporter.
    pub blind: bool,
    /// Whether a webhook is notified too.
    pub webhook: bool,
    /// More keys of the Slack receiver, each after a comma.
    pub slack_keys: String,
    /// More keys of the PagerDuty receiver, and whether there is another receiver of its service,
    /// `twin`.
    pub pagerduty_keys: String,
    pub twin: bool,
    /// The enabled callbacks: clicks in Slack by HTTP or by socket, and answers in PagerDuty.
    pub inbound: Vec<Inbound>,
    /// More receivers as lines of YAML, and their names.
    pub receivers: String,
    pub also: Vec<String>,
    /// The levels of a page as lines of YAML, in place of the sample's levels.
    pub levels: Option<String>,
    /// The libc fake with which the alerter runs.
    pub libc: Option<FakeLibc>,
    /// The machine that the exporter sees.
    pub machine: Machine,
}

/// A kind of callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inbound {
    Slack,
    SlackSocket,
    PagerDuty,
    /// No callbacks, but changes of runs are sent.
    PagerDutyChanges,
}

// Fields are dropped in this order: readers before what they read.
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
            at: None,
            storage: options.storage,
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
