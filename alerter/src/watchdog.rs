//! A dead man's switch: a heartbeat to an external service that calls a person when the heartbeat
//! stops.
//!
//! The outbox drives it, after a successful pass over the store and a write that is on disk, and
//! only while the engine's loop responds. So whatever prevents pages (a hanging loop, a full disk,
//! a lost machine) also stops the heartbeat; nothing here runs independently. The same
//! configuration section has the age from which a page that no receiver accepted is sent to all
//! others.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stepwatch_kit::config::Secret;
use stepwatch_model::time::Span;

use crate::notify::http::{Http, url_secrets};
use crate::notify::url_of;

const INTERVAL_MIN: Span = Span::secs(5);
const INTERVAL_MAX: Span = Span::secs(3600);
const PAGE_AGE_MIN: Span = Span::secs(10);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The address for the POST request. Most services put the secret into the address: then use
    /// `url_file`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_env: Option<String>,
    pub interval: Span,
    /// The age from which a page that its receiver has not accepted is sent to every other
    /// receiver.
    pub page_age: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { url: None, url_file: None, url_env: None, interval: Span::secs(60), page_age: Span::secs(120) }
    }
}

/// The watchdog, ready to use.
#[derive(Debug)]
pub struct Watchdog {
    heart: Option<Heart>,
    interval: Duration,
    page_age: Span,
}

#[derive(Debug)]
struct Heart {
    http: Http,
    url: Secret,
}

impl Config {
    /// Reads the secret. The error is for the person who edits the configuration file.
    pub fn build(&self) -> Result<Watchdog, String> {
        let url = url_of(self.url.as_ref(), self.url_file.as_ref(), self.url_env.as_ref())
            .map_err(|mistake| mistake.under("watchdog").to_string())?;
        if self.interval < INTERVAL_MIN || self.interval > INTERVAL_MAX {
            return Err(format!("watchdog.interval: must be from {INTERVAL_MIN} to {INTERVAL_MAX}"));
        }
        if self.page_age < PAGE_AGE_MIN {
            return Err(format!("watchdog.page_age: must be at least {PAGE_AGE_MIN}"));
        }
        let heart = url.map(|url| {
            let http = Http::new("watchdog", url_secrets(&url))?;
            Ok::<_, String>(Heart { http, url })
        });
        let interval = Duration::from_millis(self.interval.0.unsigned_abs());
        Ok(Watchdog { heart: heart.transpose()?, interval, page_age: self.page_age })
    }
}

impl Default for Watchdog {
    fn default() -> Self {
        let config = Config::default();
        let interval = Duration::from_millis(config.interval.0.unsigned_abs());
        Self { heart: None, interval, page_age: config.page_age }
    }
}

impl Watchdog {
    /// The interval of heartbeats to the store and to the external service.
    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    pub(crate) fn beats(&self) -> bool {
        self.heart.is_some()
    }

    pub(crate) fn page_age(&self) -> Span {
        self.page_age
    }

    pub(crate) async fn beat(&self) -> Result<(), String> {
        let Some(Heart { http, url }) = &self.heart else { return Ok(()) };
        let answer = http.send(http.client().post(url.expose())).await.map_err(|failure| failure.error)?;
        if answer.status.is_success() { Ok(()) } else { Err(http.refused(&answer).error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_configuration_says_what_is_wrong() {
        let error = |config: Config| config.build().unwrap_err();
        let url = |url: &str| Config { url: Some(url.into()), ..Config::default() };
        assert!(!Config::default().build().unwrap().beats());
        assert!(url("https://hc.example.com/ping/1").build().unwrap().beats());
        assert!(error(url("hc.example.com")).contains("https://"));
        assert!(error(Config { interval: Span::secs(1), ..url("http://x") }).contains("interval"));
        assert!(error(Config { page_age: Span::ZERO, ..Config::default() }).contains("page_age"));
        assert!(error(Config { url_env: Some("PATH".into()), ..url("http://x") }).contains("both set"));
        let debug = format!("{:?}", url("https://hc.example.com/canary").build().unwrap());
        assert!(!debug.contains("canary"), "{debug}");
    }
}
