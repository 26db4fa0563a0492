//! The settings for callbacks from Slack, and the hosts to which an answer may go.
//!
//! Slack sends the address for the answer to a click, and the address of a socket. Both are
//! external input, so only Slack's own hosts are accepted. If the API has another address (a proxy,
//! a test), its host is accepted instead.

use serde_json::{Value, json};
use stepwatch_kit::config::Secret;
use tokio::sync::OnceCell;
use url::Url;

use super::answer;
use super::config::{API_URL, Config};
use super::people::{Answers, Home};
use crate::notify::http::Http;
use crate::notify::mistake::Mistake;
use crate::notify::secret::SecretSource;

/// The host for answers to clicks.
const RESPONSE_HOST: &str = "hooks.slack.com";
/// The domain of hosts for sockets and uploads.
pub(super) const SLACK_DOMAIN: &str = ".slack.com";

/// A Slack app that receives callbacks.
#[derive(Debug)]
pub struct App {
    http: Http,
    api_url: String,
    /// If it is set, clicks by HTTP are accepted.
    signing_secret: Option<Secret>,
    /// If it is set, clicks arrive through a socket that the alerter opens.
    app_token: Option<Secret>,
    /// The bot's token.
    token: Secret,
    answers: Answers,
    /// The home workspace, once Slack has answered.
    home: OnceCell<Home>,
}

impl App {
    /// `None` if clicks cannot be received, so that no buttons are shown.
    pub(super) fn from_config(
        config: &Config,
        api_url: &str,
        token: &Secret,
    ) -> Result<Option<Self>, Mistake> {
        let (file, env) = (config.signing_secret_file.as_ref(), config.signing_secret_env.as_ref());
        let is_token = |text: &str| text.starts_with("xox") || text.starts_with("xapp-");
        let signing_secret = match SecretSource::from_keys("signing_secret", file, env)? {
            None => None,
            Some(source) => {
                let secret = source.read()?;
                if is_token(secret.expose()) {
                    let why = format!("{source} holds a token, expected the app's signing secret");
                    return Err(source.mistake(why));
                }
                Some(secret)
            }
        };
        let (file, env) = (config.app_token_file.as_ref(), config.app_token_env.as_ref());
        let app_token = match SecretSource::from_keys("app_token", file, env)? {
            None => None,
            Some(source) => {
                let token = source.read()?;
                if !token.expose().starts_with("xapp-") {
                    let why = format!("{source} must hold an app-level token (xapp-...), not a bot token");
                    return Err(source.mistake(why));
                }
                Some(token)
            }
        };
        if signing_secret.is_none() && app_token.is_none() {
            return Ok(None);
        }
        let secrets = [&signing_secret, &app_token].into_iter().flatten().chain([token]).cloned().collect();
        let http = Http::new("slack", secrets)?;
        let (api_url, token, answers) = (api_url.to_owned(), token.clone(), config.answers);
        Ok(Some(Self { http, api_url, signing_secret, app_token, token, answers, home: OnceCell::new() }))
    }

    pub(crate) fn signing_secret(&self) -> Option<&Secret> {
        self.signing_secret.as_ref()
    }

    /// The token that identifies the app: receivers of one app share its socket.
    pub(crate) fn app_token(&self) -> Option<&Secret> {
        self.app_token.as_ref()
    }

    pub(crate) fn answers(&self) -> Answers {
        self.answers
    }

    /// The bot's home workspace. It is requested until Slack has answered once.
    pub(crate) async fn home(&self) -> Result<&Home, String> {
        let ask = || async {
            let url = format!("{}/auth.test", self.api_url);
            let request = self.http.client().post(url).bearer_auth(self.token.expose());
            let request = request.header("Content-Type", "application/x-www-form-urlencoded").body("");
            let reply = answer::read(&self.http, "auth.test", self.http.send(request).await);
            let reply = reply.map_err(|refusal| refusal.failure.error)?;
            Home::from_auth_test(&reply).ok_or_else(|| "auth.test: the answer names no team".to_owned())
        };
        self.home.get_or_try_init(ask).await
    }

    /// Shows `text` only to the person who clicked.
    pub(crate) async fn whisper(&self, response_url: &str, text: &str) -> Result<(), String> {
        let url = self.response_address(response_url)?;
        let body = json!({"response_type": "ephemeral", "replace_original": false, "text": text});
        let answer = self.http.send(self.http.client().post(url).json(&body)).await;
        let answer = answer.map_err(|failure| failure.error)?;
        if answer.status.is_success() { Ok(()) } else { Err(self.http.refused(&answer).error) }
    }

    /// The address of a new socket.
    pub(crate) async fn open_socket(&self) -> Result<Url, String> {
        let Some(token) = &self.app_token else { return Err("no app_token".into()) };
        let url = format!("{}/apps.connections.open", self.api_url);
        let request = self.http.client().post(url).bearer_auth(token.expose());
        let request = request.header("Content-Type", "application/x-www-form-urlencoded").body("");
        let reply: Value = answer::read(&self.http, "apps.connections.open", self.http.send(request).await)
            .map_err(|refusal| refusal.failure.error)?;
        let url = reply["url"].as_str().ok_or("apps.connections.open: the answer names no url")?;
        self.socket_address(url)
    }

    fn response_address(&self, url: &str) -> Result<Url, String> {
        let parsed = Url::parse(url).map_err(|err| format!("response_url: {err}"))?;
        let good = if self.is_slack() {
            parsed.scheme() == "https" && parsed.host_str() == Some(RESPONSE_HOST) && own_port(&parsed)
        } else {
            self.same_place(&parsed) && matches!(parsed.scheme(), "http" | "https")
        };
        if good { Ok(parsed) } else { Err("response_url: is not Slack's, nothing is sent there".into()) }
    }

    fn socket_address(&self, url: &str) -> Result<Url, String> {
        let parsed = Url::parse(url).map_err(|err| format!("apps.connections.open: url: {err}"))?;
        let good = if self.is_slack() {
            let host = parsed.host_str().unwrap_or_default();
            parsed.scheme() == "wss" && host.ends_with(SLACK_DOMAIN) && own_port(&parsed)
        } else {
            self.same_host(&parsed) && matches!(parsed.scheme(), "ws" | "wss")
        };
        if good { Ok(parsed) } else { Err("apps.connections.open: the url is not Slack's".into()) }
    }

    fn is_slack(&self) -> bool {
        self.api_url == API_URL
    }

    fn same_host(&self, url: &Url) -> bool {
        Url::parse(&self.api_url)
            .is_ok_and(|api| api.host_str().is_some() && api.host_str() == url.host_str())
    }

    fn same_place(&self, url: &Url) -> bool {
        let port = Url::parse(&self.api_url).ok().and_then(|api| api.port_or_known_default());
        self.same_host(url) && port == url.port_or_known_default()
    }
}

/// Whether the URL has the default port and no user.
pub(super) fn own_port(url: &Url) -> bool {
    url.port().is_none() && url.username().is_empty() && url.password().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app(api_url: &str) -> App {
        let secret = Some(Secret::new("xapp-1".into()));
        App {
            http: Http::new("slack", Vec::new()).unwrap(),
            api_url: api_url.into(),
            signing_secret: None,
            app_token: secret,
            token: Secret::new("xoxb-1".into()),
            answers: Answers::default(),
            home: OnceCell::new(),
        }
    }

    #[test]
    fn answers_go_to_slack_and_nowhere_else() {
        let slack = app(API_URL);
        assert!(slack.response_address("https://hooks.slack.com/actions/T0/1/x").is_ok());
        for bad in [
            "http://hooks.slack.com/actions/T0/1/x",
            "https://hooks.slack.com.evil.org/x",
            "https://hooks.slack.com@evil.org/x",
            "https://me@hooks.slack.com/x",
            "https://hooks.slack.com:8443/x",
            "https://169.254.169.254/latest/meta-data",
            "http://127.0.0.1:9766/-/quit",
            "file:///etc/passwd",
            "",
        ] {
            assert!(slack.response_address(bad).is_err(), "{bad}");
        }
        assert!(slack.socket_address("wss://wss-primary.slack.com/link/?ticket=1").is_ok());
        for bad in [
            "ws://wss-primary.slack.com/",
            "wss://evil.org/",
            "wss://slack.com.evil.org/",
            "wss://x.slack.com:1/",
        ] {
            assert!(slack.socket_address(bad).is_err(), "{bad}");
        }
        let proxy = app("http://127.0.0.1:8080/api");
        assert!(proxy.response_address("http://127.0.0.1:8080/response/1").is_ok());
        assert!(proxy.response_address("http://127.0.0.1:8081/response/1").is_err());
        assert!(proxy.socket_address("ws://127.0.0.1:8081/socket").is_ok());
        assert!(proxy.socket_address("ws://localhost:8080/socket").is_err());
    }
}
