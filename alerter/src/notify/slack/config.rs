//! The keys of a `slack:` receiver.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::people::Answers;

pub(super) const API_URL: &str = "https://slack.com/api";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `#name` or id (`C0123ABCD`). The bot must have been invited to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Holds a bot token (`xoxb-...`) with the scope chat:write. With channels:history and
    /// channels:read too (groups:history and groups:read in a private channel), a message that may
    /// have arrived is looked up instead of being sent twice. With files:write, the thread of an
    /// incident has its chart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_env: Option<String>,
    pub api_url: String,
    /// Holds the app's signing secret. With it the messages have buttons, whose clicks Slack posts
    /// to `/slack/interactions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_secret_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_secret_env: Option<String>,
    /// Holds an app-level token (`xapp-...`) with the scope connections:write. With it the messages
    /// have buttons, whose clicks arrive through a socket that the alerter opens: this machine
    /// needs no address that can be reached from outside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_token_env: Option<String>,
    /// Whose clicks count. Receivers of one app share an endpoint, which is as strict as the
    /// strictest of them.
    pub answers: Answers,
    /// In place of all the above: holds the address of an incoming webhook.
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
