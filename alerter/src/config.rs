//! The configuration file: strict YAML, checked completely before anything starts.
//!
//! Every key has a default. A mistake within one value is shown with a caret at its position;
//! mistakes between values (a route to a receiver that does not exist) are reported together, each
//! with its position. A valid configuration is ready to use: secrets are read, certificates loaded,
//! receivers built. So a reload either applies everything or changes nothing.

mod api;
mod check;
mod describe;
mod expect;
mod fallback;
mod file;
mod grant;
mod incidents;
mod matchers;
mod names;
mod oidc;
pub mod oncall;
mod redact;
mod reports;
mod schedule;
pub mod sensitivity;
mod shadowed;
mod silences;
mod storage;
mod teams;
#[cfg(test)]
mod tests;
mod thresholds;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepwatch_engine::EngineConfig;
use stepwatch_kit::config::ConfigError;
use stepwatch_respond::config::ResponderConfig;

use crate::access::Keyring;
use crate::calendars;
use crate::ingest::{Exporters, Plan};
use crate::oidc::Oidc;
use crate::outbox::Receivers;
use crate::store::PostgresPlan;
use crate::templates::Templates;
use crate::watchdog::Watchdog;
pub use api::{Api, Token};
pub(crate) use fallback::wakes_not;
pub use file::{DEFAULT_PORT, File, Incidents, Source};
pub use schedule::{Ical, Schedule};
pub use storage::{PostgresConfig, Storage};

pub use crate::report::schedule::{Every, Schedule as ReportSchedule, TimeOfDay, Weekday};

/// A file that passed the checks, and what was built from it.
#[derive(Debug)]
pub struct Config {
    pub path: PathBuf,
    pub file: File,
    pub engine: EngineConfig,
    pub receivers: Receivers,
    pub templates: Arc<Templates>,
    pub watchdog: Arc<Watchdog>,
    pub plan: Plan,
    pub calendars: Vec<calendars::Source>,
    pub keyring: Keyring,
    pub oidc: Option<Arc<Oidc>>,
    /// The database of replicas; `None` on SQLite.
    pub postgres: Option<PostgresPlan>,
    /// The file without secrets.
    pub shown: String,
    /// Warnings about allowed but probably unintended settings.
    pub warnings: Vec<String>,
}

impl Config {
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(path, &stepwatch_kit::config::read(path)?)
    }

    /// Parses a file. `path` is its name in errors, and relative paths start in its directory.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let file: File = stepwatch_kit::config::parse(&path.display().to_string(), text)?;
        Self::check(path, text, file)
    }

    /// The part of a file that a replay of recorded runs needs.
    pub fn for_replay(path: &Path) -> Result<EngineConfig, ConfigError> {
        let EngineConfig { detectors, responder } = Self::unarmed(path)?.engine();
        // Incidents of a replay have no page to link to.
        Ok(EngineConfig { detectors, responder: ResponderConfig { external_url: None, ..responder } })
    }

    /// Parses a file from which no message is sent, so that no secret is read and no source is
    /// resolved.
    pub fn unarmed(path: &Path) -> Result<File, ConfigError> {
        let text = stepwatch_kit::config::read(path)?;
        let mut file: File = stepwatch_kit::config::parse(&path.display().to_string(), &text)?;
        let mut errors = Vec::new();
        if let Err(e) = file.anchor(path.parent().unwrap_or(Path::new(""))) {
            errors.push(e);
        }
        check::values(&file, &mut errors);
        check::references(&file, &mut errors);
        silences::check(&file, &mut errors);
        oncall::check(&file, &mut errors);
        reports::check(&file, &mut errors);
        thresholds::check(&file.detectors, &mut errors);
        api::check(&file, &mut errors);
        oidc::check(&file, &mut errors);
        drop(file.templates(&mut errors));
        if !errors.is_empty() {
            return Err(ConfigError::at_paths(path.display().to_string(), &text, errors));
        }
        Ok(file)
    }

    fn check(path: &Path, text: &str, mut file: File) -> Result<Self, ConfigError> {
        let mut errors = Vec::new();
        if let Err(e) = file.anchor(path.parent().unwrap_or(Path::new(""))) {
            errors.push(e);
        }
        check::values(&file, &mut errors);
        check::references(&file, &mut errors);
        silences::check(&file, &mut errors);
        oncall::check(&file, &mut errors);
        reports::check(&file, &mut errors);
        thresholds::check(&file.detectors, &mut errors);
        api::check(&file, &mut errors);
        oidc::check(&file, &mut errors);
        let keyring = api::keyring(&file, &mut errors);
        let oidc = oidc::build(&file, &mut errors);
        let postgres = file.storage.build(&mut errors);
        let receivers = check::receivers(&file.receivers, &mut errors);
        let templates = Arc::new(file.templates(&mut errors));
        let calendars = oncall::calendars(&file, &mut errors);
        let exporters: Vec<Exporters> = file.sources.iter().map(|Source::Exporters(e)| e.clone()).collect();
        let plan = Plan::new(&exporters).map_err(|wrong| errors.extend(wrong));
        let watchdog = file.watchdog.build().map_err(|e| errors.push(e)).unwrap_or_default();
        match plan {
            Ok(plan) if errors.is_empty() => {
                let (engine, warnings) = (file.engine(), check::warnings(&file));
                let watchdog = Arc::new(watchdog);
                let (path, shown) = (path.to_owned(), redact::shown(text));
                Ok(Self {
                    path,
                    file,
                    engine,
                    receivers,
                    templates,
                    watchdog,
                    plan,
                    calendars,
                    keyring,
                    oidc,
                    postgres,
                    shown,
                    warnings,
                })
            }
            _ => Err(ConfigError::at_paths(path.display().to_string(), text, errors)),
        }
    }
}
