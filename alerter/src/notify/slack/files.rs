//! Shows the chart of an incident in its thread.
//!
//! There are three requests: for an upload address, with the bytes, and for the message that shows
//! them. The file is invisible until the last one, and Slack drops a file that is never shown. A
//! file cannot be replaced, so another chart is another file, and the old one is deleted.

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use reqwest::header::CONTENT_TYPE;
use serde_json::json;

use super::answer::{self, Refusal};
use super::{Bot, Slack, Top, Way};
use crate::notify::attempt::{Failure, FailureClass, Picture};
use crate::notify::notifier::{Gallery, PictureError};
use crate::notify::text::line;

/// Slack's limit of a description, in characters.
const ALT_MAX: usize = 1000;
const TITLE_MAX: usize = 150;
const FORM: &str = "application/x-www-form-urlencoded";
/// Errors if the app or its workspace allows no files.
const NO_FILES: &[&str] = &[
    "missing_scope",
    "file_uploads_disabled",
    "file_uploads_except_images_disabled",
    "file_type_not_allowed",
];
/// Errors if the file no longer exists.
const GONE: &[&str] = &["file_not_found", "file_deleted"];

impl Slack {
    fn bot(&self) -> Result<Bot<'_>, PictureError> {
        match &self.way {
            Way::Bot { api_url, token, channel } => {
                Ok(Bot { http: &self.http, api_url, token, channel, deeds: self.app.is_some() })
            }
            Way::Webhook { .. } => {
                Err(PictureError::Forbidden("an incoming webhook takes no files: it needs a bot".into()))
            }
        }
    }
}

impl Gallery for Slack {
    fn permitted(&self) -> BoxFuture<'_, Result<(), PictureError>> {
        // An unused upload address shows nothing.
        async move { self.bot()?.announce("chart.png", 1, "").await.map(drop) }.boxed()
    }

    fn bring<'a>(&'a self, picture: &'a Picture) -> BoxFuture<'a, Result<String, PictureError>> {
        async move {
            let bot = self.bot()?;
            let (url, id) = bot.announce(&picture.name, picture.png.len(), &picture.alt).await?;
            bot.upload(&url, picture.png.clone()).await?;
            Ok(id)
        }
        .boxed()
    }

    fn show<'a>(
        &'a self,
        file: &'a str,
        title: &'a str,
        memory: &'a str,
    ) -> BoxFuture<'a, Result<(), PictureError>> {
        async move { self.bot()?.share(file, title, memory).await }.boxed()
    }

    fn take_away<'a>(&'a self, file: &'a str) -> BoxFuture<'a, Result<(), PictureError>> {
        async move {
            match self.bot()?.call("files.delete", &json!({ "file": file })).await {
                Err(refusal) if !GONE.contains(&refusal.error.as_str()) => Err(refusal.into()),
                _ => Ok(()),
            }
        }
        .boxed()
    }
}

impl Bot<'_> {
    /// Requests an upload address; returns it and the file's id.
    async fn announce(&self, name: &str, length: usize, alt: &str) -> Result<(String, String), PictureError> {
        const METHOD: &str = "files.getUploadURLExternal";
        let (length, alt) = (length.to_string(), line(alt, ALT_MAX));
        let described = (!alt.is_empty()).then_some(("alt_txt", alt.as_str()));
        let fields = [("filename", name), ("length", length.as_str())].into_iter().chain(described);
        let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self.http.client().post(format!("{}/{METHOD}", self.api_url));
        let request = request.bearer_auth(self.token.expose()).header(CONTENT_TYPE, FORM).body(form);
        let reply = answer::read(self.http, METHOD, self.http.send(request).await)?;
        let text = |key: &str| reply[key].as_str().map(str::to_owned);
        match (text("upload_url"), text("file_id")) {
            (Some(url), Some(id)) => Ok((url, id)),
            _ => Err(self.broken(METHOD, "the answer names no upload_url and file_id")),
        }
    }

    /// Uploads the bytes. The address is the permission, so the token is not sent.
    async fn upload(&self, url: &str, png: Bytes) -> Result<(), PictureError> {
        let url = self.upload_address(url).map_err(|why| self.broken("the upload", &why))?;
        let request = self.http.client().post(url).header(CONTENT_TYPE, "image/png").body(png);
        let answer = self.http.send(request).await.map_err(PictureError::Failed)?;
        if answer.status.is_success() {
            return Ok(());
        }
        // The address may have expired: the next attempt requests another.
        let failure = self.http.refused(&answer);
        let class = match failure.class {
            FailureClass::Permanent => FailureClass::Transient,
            class => class,
        };
        Err(PictureError::Failed(Failure { class, ..failure }))
    }

    async fn share(&self, file: &str, title: &str, memory: &str) -> Result<(), PictureError> {
        let top: Top = serde_json::from_str(memory)
            .map_err(|_| PictureError::Failed(Failure::permanent("slack: the message is not known")))?;
        let body = json!({
            "files": [{"id": file, "title": line(title, TITLE_MAX)}],
            "channel_id": top.channel, "thread_ts": top.ts,
        });
        self.call("files.completeUploadExternal", &body).await.map(drop).map_err(PictureError::from)
    }

    /// Checks the upload host: it must be Slack's, or in a test or behind a proxy that of the API.
    fn upload_address(&self, url: &str) -> Result<url::Url, String> {
        let parsed = url::Url::parse(url).map_err(|err| format!("upload_url: {err}"))?;
        let api = url::Url::parse(self.api_url).map_err(|err| format!("api_url: {err}"))?;
        let good = if self.api_url == super::config::API_URL {
            let host = parsed.host_str().unwrap_or_default();
            parsed.scheme() == "https"
                && host.ends_with(super::app::SLACK_DOMAIN)
                && super::app::own_port(&parsed)
        } else {
            let place = |url: &url::Url| (url.host_str().map(str::to_owned), url.port_or_known_default());
            place(&api) == place(&parsed) && matches!(parsed.scheme(), "http" | "https")
        };
        if good { Ok(parsed) } else { Err("upload_url is not Slack's: nothing is sent there".into()) }
    }

    fn broken(&self, method: &str, why: &str) -> PictureError {
        PictureError::Failed(self.http.failure(FailureClass::Transient, true, &format!("{method}: {why}")))
    }
}

impl From<Refusal> for PictureError {
    fn from(refusal: Refusal) -> Self {
        let Refusal { error, failure } = refusal;
        if NO_FILES.contains(&error.as_str()) {
            Self::Forbidden(failure.error)
        } else {
            Self::Failed(failure)
        }
    }
}
