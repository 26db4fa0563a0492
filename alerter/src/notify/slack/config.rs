//! The configuration of a `slack` receiver.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::people::Answers;

pub(super) const API_URL: &str = "https://slack.com/api";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The channel as `#name` or id (`C0123ABCD`). The bot must have been invited to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// A file with a bot token (`xoxb-...`) with the scope chat:write. With channels:history and
    /// channels:read (groups:history and groups:read in a private channel), a message that may have
    /// arrived is looked up and not sent twice. With files:write, the thread of an incident has its
    /// chart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_env: Option<String>,
    pub api_url: String,
    /// A file with the app's signing secret. With it, messages have buttons, whose clicks Slack
    /// posts to `/slack/interactions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_secret_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_secret_env: Option<String>,
    /// A file with an app-level token (`xapp-...`) with the scope connections:write. With it,
    /// messages have buttons, whose clicks arrive through a socket that the alerter opens, so that
    /// this machine needs no reachable address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_token_env: Option<String>,
    /// Whose clicks are accepted. Receivers of one app share an endpoint, which uses the strictest
    /// of their settings.
    pub answers: Answers,
    /// A file with the address of an incoming webhook, in place of all the above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_url_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_url_env: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            channel: None,
            token_file: None,
            token_env: None,
            api_url: API_URL.to_owned(),
            signing_secret_file: None,
            signing_secret_env: None,
            app_token_file: None,
            app_token_env: None,
            answers: Answers::default(),
            webhook_url_file: None,
            webhook_url_env: None,
        }
    }
}
