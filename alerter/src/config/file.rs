//! The keys of the file and their defaults, and the resulting settings of the engine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use stepwatch_detect::detectors::DetectorsConfig;
use stepwatch_detect::detectors::below_expectation::Expect;
use stepwatch_detect::run::EnergyConfig;
use stepwatch_engine::EngineConfig;
use stepwatch_kit::serve::{ListenAddr, WebHosts};
use stepwatch_model::time::Span;
use stepwatch_respond::config::{InhibitRule, Policy, ResponderConfig, Route, Storm, Team};
use stepwatch_respond::external::AlertsConfig;
use stepwatch_respond::oncall::{OnCallConfig, TimeInterval, User};
use stepwatch_respond::silence::{Maintenance, SilenceConfig};

use super::ReportSchedule;
use super::api::Api;
use super::schedule::Schedule;
use super::storage::Storage;
use crate::audit::AuditConfig;
use crate::ingest::Exporters;
use crate::notify::{ReceiverConfig, TemplatesConfig};
use crate::reporter;
use crate::templates::Templates;
use crate::watchdog;

/// The digits of a digest of the configuration.
const DIGEST_DIGITS: usize = 12;

/// The default port of an alerter.
pub const DEFAULT_PORT: u16 = 9766;

/// The configuration file as written.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    pub listen: ListenAddr,
    pub storage: Storage,
    pub api: Api,
    pub audit: AuditConfig,
    pub cost_per_gpu_hour: Option<f64>,
    pub energy: EnergyConfig,
    pub web: WebHosts,
    /// The address of this alerter for people, used in links.
    pub external_url: Option<String>,
    /// Runbooks are linked as `<runbook_url>/<kind>`. The default is the copy that the alerter
    /// serves under `external_url`, or else the one of this project on the Internet.
    pub runbook_url: Option<String>,
    /// How long a condition must stay clear before its incident resolves.
    pub resolve_after: Span,
    pub incidents: Incidents,
    /// How long the first message of a ticket waits for further findings; a page never waits.
    pub batch_window: Span,
    /// The shortest time between two update messages about one incident.
    pub update_min_interval: Span,
    /// How often a page that reached its last level without an answer is sent again.
    pub remind_every: Span,
    /// The time after which people are notified again of an acknowledged incident that is still
    /// open.
    pub ack_timeout: Option<Span>,
    pub flapping_after: u32,
    pub group_by: Vec<String>,
    /// Labels that runs declare or alerts have, and that matchers may use in addition to the
    /// built-in ones.
    pub labels: Vec<String>,
    pub storm: Storm,
    pub inhibit_rules: Vec<InhibitRule>,
    pub inhibit_off: Vec<String>,
    pub teams: Vec<Team>,
    pub silences: SilenceConfig,
    pub maintenance: Vec<Maintenance>,
    pub alerts: AlertsConfig,
    pub sources: Vec<Source>,
    pub remote_write: stepwatch_remote_write::Config,
    pub receivers: Vec<ReceiverConfig>,
    /// Receivers of last resort: for any team's notification that no other receiver gets, and for
    /// faults of the alerter itself.
    pub fallback: Vec<String>,
    /// The templates of messages for all receivers.
    pub templates: TemplatesConfig,
    pub policies: Vec<Policy>,
    pub routes: Vec<Route>,
    /// Named hours and days, in Alertmanager's format.
    pub time_intervals: Vec<TimeInterval>,
    pub users: Vec<User>,
    pub schedules: Vec<Schedule>,
    /// Scheduled reports.
    pub reports: Vec<ReportSchedule>,
    /// What is expected of runs, by name.
    pub expect: Vec<Expect>,
    pub detectors: DetectorsConfig,
    pub watchdog: watchdog::Config,
}

/// The `incidents` section.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Incidents {
    /// The time after which an incident that a person resolved and that still fires is reopened.
    pub reopen_after: Span,
}

/// A kind of source, one key each.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Exporters(Exporters),
}

impl Default for File {
    fn default() -> Self {
        let engine = ResponderConfig::default();
        Self {
            listen: ListenAddr::all(DEFAULT_PORT),
            storage: Storage::default(),
            api: Api::default(),
            audit: AuditConfig::default(),
            cost_per_gpu_hour: None,
            energy: EnergyConfig::default(),
            web: WebHosts::default(),
            external_url: None,
            runbook_url: None,
            resolve_after: engine.resolve_after,
            incidents: Incidents::default(),
            batch_window: engine.batch_window,
            update_min_interval: engine.update_min_interval,
            remind_every: engine.remind_every,
            ack_timeout: engine.ack_timeout,
            flapping_after: engine.flapping_after,
            group_by: engine.group_by,
            labels: Vec::new(),
            storm: engine.storm,
            inhibit_rules: engine.inhibit_rules,
            inhibit_off: engine.inhibit_off,
            teams: engine.teams,
            silences: engine.silences,
            maintenance: engine.maintenance,
            alerts: engine.alerts,
            sources: Vec::new(),
            remote_write: stepwatch_remote_write::Config::default(),
            receivers: Vec::new(),
            fallback: engine.fallback,
            templates: TemplatesConfig::default(),
            policies: Vec::new(),
            routes: Vec::new(),
            time_intervals: Vec::new(),
            users: Vec::new(),
            schedules: Vec::new(),
            reports: Vec::new(),
            expect: Vec::new(),
            detectors: DetectorsConfig::default(),
            watchdog: watchdog::Config::default(),
        }
    }
}

impl Default for Incidents {
    fn default() -> Self {
        Self { reopen_after: ResponderConfig::default().reopen_after }
    }
}

impl File {
    /// A digest of what must be the same on all replicas.
    pub fn digest(&self) -> String {
        let mut same = self.clone();
        same.listen = ListenAddr::all(DEFAULT_PORT);
        if let Some(postgres) = &mut same.storage.postgres {
            (postgres.advertise_url, postgres.advertise_url_env, postgres.pool) = (None, None, 0);
            (postgres.url, postgres.url_file, postgres.url_env) = (None, None, None);
        }
        let mut digest = hex::encode(Sha256::digest(format!("{same:?}")));
        digest.truncate(DIGEST_DIGITS);
        digest
    }
}

impl File {
    /// Resolves the paths in the file, which are relative to its directory.
    pub(super) fn anchor(&mut self, base: &Path) -> Result<(), String> {
        self.storage.anchor(base);
        self.api.anchor(base);
        for Source::Exporters(e) in &mut self.sources {
            e.anchor(base);
        }
        for schedule in &mut self.schedules {
            schedule.anchor(base);
        }
        if let Some(path) = &mut self.watchdog.url_file {
            *path = base.join(&*path);
        }
        for (i, receiver) in self.receivers.iter_mut().enumerate() {
            *receiver = anchor_files(receiver, base).map_err(|e| format!("receivers[{i}]: {e}"))?;
        }
        Ok(())
    }

    pub(crate) fn templates(&self, errors: &mut Vec<String>) -> Templates {
        Templates::build(&self.templates, &self.receivers, errors)
    }

    /// Whether a receiver's messages use the operator's templates.
    pub(crate) fn has_templates(&self, receiver: &str) -> bool {
        let own = self.receivers.iter().find(|r| r.name == receiver).and_then(|r| r.templates.as_ref());
        self.templates != TemplatesConfig::default() || own.is_some()
    }

    /// The schedules of the reports.
    pub(crate) fn reports(&self) -> reporter::Plan {
        reporter::Plan { schedules: self.reports.clone(), external_url: self.external_url.clone() }
    }

    /// Receivers that notify people once per call, and the service that repeats the call.
    fn repeated_by(&self) -> BTreeMap<String, String> {
        self.receivers.iter().filter_map(|r| Some((r.name.clone(), r.repeated_by()?.to_owned()))).collect()
    }

    /// The schedules and users of the engine.
    pub(super) fn oncall_config(&self) -> OnCallConfig {
        OnCallConfig {
            time_intervals: self.time_intervals.clone(),
            users: self.users.clone(),
            schedules: self.schedules.iter().map(Schedule::engine).collect(),
        }
    }

    pub(crate) fn engine(&self) -> EngineConfig {
        let mut detectors = self.detectors.clone();
        detectors.cost_per_gpu_hour = self.cost_per_gpu_hour;
        detectors.energy = self.energy;
        detectors.below_expectation.expect.clone_from(&self.expect);
        EngineConfig { detectors: Arc::new(detectors), responder: self.responder() }
    }

    pub(crate) fn responder(&self) -> ResponderConfig {
        let defaults = ResponderConfig::default();
        let no_slash = |url: &String| url.trim_end_matches('/').to_owned();
        // The alerter serves the runbooks at its external address.
        let own = self.external_url.as_ref().map(|url| format!("{}/runbooks", no_slash(url)));
        let own_runbooks = || own.unwrap_or(defaults.runbook_url);
        ResponderConfig {
            receivers: self.receivers.iter().map(|r| r.name.clone()).collect(),
            repeated_by: self.repeated_by(),
            threads: self.receivers.iter().filter(|r| r.is_thread()).map(|r| r.name.clone()).collect(),
            waking: self.receivers.iter().filter(|r| r.wakes()).map(|r| r.name.clone()).collect(),
            fallback: self.fallback.clone(),
            policies: self.policies.clone(),
            routes: self.routes.clone(),
            labels: self.labels.clone(),
            cost_per_gpu_hour: self.cost_per_gpu_hour,
            runbook_url: self.runbook_url.as_ref().map(no_slash).unwrap_or_else(own_runbooks),
            external_url: self.external_url.as_ref().map(no_slash),
            resolve_after: self.resolve_after,
            reopen_after: self.incidents.reopen_after,
            oncall: self.oncall_config(),
            batch_window: self.batch_window,
            update_min_interval: self.update_min_interval,
            remind_every: self.remind_every,
            ack_timeout: self.ack_timeout,
            flapping_after: self.flapping_after,
            group_by: self.group_by.clone(),
            storm: self.storm.clone(),
            inhibit_rules: self.inhibit_rules.clone(),
            inhibit_off: self.inhibit_off.clone(),
            teams: self.teams.clone(),
            silences: self.silences.clone(),
            maintenance: self.maintenance.clone(),
            alerts: self.alerts.clone(),
        }
    }
}

/// Makes the secret files of a receiver absolute: every one is a key that ends in `_file`.
fn anchor_files(receiver: &ReceiverConfig, base: &Path) -> serde_json::Result<ReceiverConfig> {
    fn walk(value: &mut Value, base: &Path) {
        let Value::Object(map) = value else { return };
        for (key, value) in map {
            match value {
                Value::String(path) if key.ends_with("_file") => {
                    *path = base.join(&*path).to_string_lossy().into_owned();
                }
                value => walk(value, base),
            }
        }
    }
    let mut value = serde_json::to_value(receiver)?;
    walk(&mut value, base);
    serde_json::from_value(value)
}
