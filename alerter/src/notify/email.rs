//! E-mail by SMTP: one thread an incident, in plain text and HTML.
//!
//! The `Message-ID` of a message follows from its idempotency key, so that a copy is recognised by whoever stores mail, and
//! every later message names the first one in `References`: a mailbox shows one conversation. The subject stays that of the
//! first message, because some mailboxes take another subject for another conversation; how things stand is the first line.
//!
//! One connection a message: incidents are rare, and a relay that closed an idle connection costs a retry.

mod html;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Mailbox, MultiPart, SinglePart};
use lettre::transport::smtp::Error as SmtpError;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::{AsyncSmtpTransport, AsyncTransport as _, Message as Mail, Tokio1Executor};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use stepwatch_engine::effect::{Action, Notification};
use stepwatch_engine::message::{Message, Status};
use stepwatch_kit::config::Secret;

use super::text::{clean, hex, line, shorten};
use super::{Attempt, Failure, FailureClass, Notifier, Pace, Receipt, SecretSource};

/// One command and its answer; a relay that scans for viruses takes its time over the last one.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);
/// A relay that is flooded starts to refuse.
const PACE: Pace = Pace { per_second: 2.0, burst: 10.0 };
const RECIPIENTS_MAX: usize = 50;
const SUBJECT_MAX: usize = 180;
const TEXT_MAX: usize = 4000;
const ERROR_MAX: usize = 400;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `name@example.com` or `Name <name@example.com>`.
    pub to: Vec<String>,
    pub from: String,
    /// The relay: `host:port`; without a port the usual one of `tls`.
    pub smarthost: String,
    pub tls: TlsMode,
    /// Certificates, in PEM, that the relay's is checked against, beside those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_env: Option<String>,
    /// What we call ourselves to the relay; the machine's name if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hello: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// Plain at first, then encrypted or not at all; port 587.
    #[default]
    Starttls,
    /// Encrypted from the first byte; port 465.
    Tls,
    /// Never encrypted; port 25. For a relay on this machine.
    None,
}

pub struct Email {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
    to: Vec<Mailbox>,
    /// After the `@` of our message ids.
    domain: String,
    password: Option<Secret>,
}

/// What is kept for a lane: the conversation.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Thread {
    first: String,
    subject: String,
}

impl std::fmt::Debug for Email {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Email").field("from", &self.from).field("to", &self.to).finish_non_exhaustive()
    }
}

impl Config {
    pub(super) fn build(&self) -> Result<Email, String> {
        let mailbox =
            |key: &str, text: &str| text.parse::<Mailbox>().map_err(|err| format!("{key}: {text:?}: {err}"));
        if self.to.is_empty() || self.to.len() > RECIPIENTS_MAX {
            return Err(format!("to: needs 1 to {RECIPIENTS_MAX} addresses"));
        }
        let to: Vec<Mailbox> = self.to.iter().map(|t| mailbox("to", t)).collect::<Result<_, _>>()?;
        let from = mailbox("from", &self.from)?;
        let password = SecretSource::of("password", self.password_file.as_ref(), self.password_env.as_ref())?;
        let password = password.map(|source| source.read()).transpose()?;
        let credentials = match (&self.username, &password) {
            (Some(user), Some(password)) => {
                Some(Credentials::new(user.clone(), password.expose().to_owned()))
            }
            (None, None) => None,
            _ => return Err("username and password_file (or password_env) go together".into()),
        };
        let mut transport = self.transport()?;
        if let Some(credentials) = credentials {
            transport = transport.credentials(credentials);
        }
        if let Some(hello) = &self.hello {
            transport = transport.hello_name(ClientId::Domain(line(hello, 255)));
        }
        let domain = from.email.domain().to_owned();
        Ok(Email { transport: transport.build(), from, to, domain, password })
    }

    fn transport(&self) -> Result<lettre::transport::smtp::AsyncSmtpTransportBuilder, String> {
        let usual = match self.tls {
            TlsMode::Starttls => 587,
            TlsMode::Tls => 465,
            TlsMode::None => 25,
        };
        // A URL's rules for hosts and ports, IPv6 in brackets included.
        let url = url::Url::parse(&format!("smtp://{}", self.smarthost)).ok();
        let host = url.as_ref().and_then(|u| u.host_str()).map(|h| h.trim_matches(['[', ']']).to_owned());
        let (Some(url), Some(host)) = (url, host) else {
            return Err(format!("smarthost: {:?} must be host:port", self.smarthost));
        };
        let tls = match self.tls {
            TlsMode::None => Tls::None,
            TlsMode::Starttls => Tls::Required(self.tls_parameters(&host)?),
            TlsMode::Tls => Tls::Wrapper(self.tls_parameters(&host)?),
        };
        let builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(host);
        Ok(builder.port(url.port().unwrap_or(usual)).timeout(Some(COMMAND_TIMEOUT)).tls(tls))
    }

    fn tls_parameters(&self, host: &str) -> Result<TlsParameters, String> {
        let mut builder = TlsParameters::builder(host.to_owned());
        if let Some(path) = &self.ca_file {
            let cannot = |why: &dyn std::fmt::Display| {
                format!("cannot read the certificates in {}: {why}", path.display())
            };
            let pem = std::fs::read(path).map_err(|err| cannot(&err))?;
            builder = builder.add_root_certificate(Certificate::from_pem(&pem).map_err(|err| cannot(&err))?);
        }
        builder.build_rustls().map_err(|err| format!("TLS: {err}"))
    }
}

impl Notifier for Email {
    fn kind(&self) -> &'static str {
        "email"
    }

    fn send<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Receipt, Failure>> {
        self.tell(attempt).boxed()
    }

    fn wakes(&self) -> bool {
        true
    }

    fn pace(&self) -> Option<Pace> {
        Some(PACE)
    }
}

impl Email {
    async fn tell(&self, attempt: Attempt<'_>) -> Result<Receipt, Failure> {
        let n = attempt.notification;
        let known = attempt.memory.and_then(|m| serde_json::from_str::<Thread>(m).ok());
        let mail =
            self.compose(n, known.as_ref()).map_err(|err| Failure::permanent(format!("email: {err}")))?;
        let thread = known
            .unwrap_or_else(|| Thread { first: self.message_id(&n.idem_key), subject: subject(&n.message) });
        let receipt = Receipt { memory: serde_json::to_string(&thread).ok() };
        match self.transport.send(mail.clone()).await {
            Ok(_) => Ok(receipt),
            // One address that the relay refuses must not keep the others from being told.
            Err(err) if err.is_permanent() && self.to.len() > 1 => {
                self.one_by_one(&mail, &err).await.map(|()| receipt)
            }
            Err(err) => Err(self.judge(&err)),
        }
    }

    /// Succeeds if anybody was told. All headers stay, so that everybody sees to whom it went.
    async fn one_by_one(&self, mail: &Mail, refusal: &SmtpError) -> Result<(), Failure> {
        let mut worst = self.judge(refusal);
        let mut told = false;
        for to in &self.to {
            let envelope =
                lettre::address::Envelope::new(Some(self.from.email.clone()), vec![to.email.clone()]);
            let Ok(envelope) = envelope else { continue };
            match self.transport.send_raw(&envelope, &mail.formatted()).await {
                Ok(_) => told = true,
                Err(err) => {
                    worst = self.judge(&err);
                    tracing::error!(to = %to.email, error = worst.error, "the relay refuses an address of a receiver");
                }
            }
        }
        if told { Ok(()) } else { Err(worst) }
    }

    fn compose(&self, n: &Notification, thread: Option<&Thread>) -> Result<Mail, lettre::error::Error> {
        let (m, own) = (&n.message, self.message_id(&n.idem_key));
        let mut builder = Mail::builder().from(self.from.clone()).message_id(Some(own)).date_now();
        for to in &self.to {
            builder = builder.to(to.clone());
        }
        // Answering machines stay silent.
        builder = builder.raw_header(header("Auto-Submitted", "auto-generated"));
        builder = builder.raw_header(header("X-Stepwatch-Incident", &line(&n.incident, 128)));
        if m.status == Status::Firing && n.page {
            builder = builder.raw_header(header("X-Priority", "1")).raw_header(header("Importance", "high"));
        }
        builder = match thread {
            None => builder.subject(subject(m)),
            Some(t) => builder
                .subject(format!("Re: {}", t.subject))
                .in_reply_to(t.first.clone())
                .references(t.first.clone()),
        };
        builder.multipart(
            MultiPart::alternative()
                .singlepart(SinglePart::builder().header(ContentType::TEXT_PLAIN).body(plain(n)))
                .singlepart(SinglePart::builder().header(ContentType::TEXT_HTML).body(html::render(n))),
        )
    }

    /// `<hash@domain>`: the key may hold characters that have no place there.
    fn message_id(&self, key: &str) -> String {
        format!("<{}@{}>", &hex(&Sha256::digest(key.as_bytes()))[..32], self.domain)
    }

    fn judge(&self, err: &SmtpError) -> Failure {
        let mut text = err.to_string();
        let mut cause = std::error::Error::source(err);
        while let Some(c) = cause {
            text = format!("{text}: {c}");
            cause = c.source();
        }
        if let Some(password) = &self.password {
            text = text.replace(password.expose(), "<secret>");
        }
        let error = format!("email: {}", line(&text, ERROR_MAX));
        if err.is_permanent() {
            return Failure { class: FailureClass::Permanent, error, ambiguous: false, memory: None };
        }
        // A relay that says "later" has not taken it; neither has one that was never reached, or never trusted.
        let untold = err.is_tls() || err.is_client() || text.to_lowercase().contains("connection error");
        let refused = err.is_transient() || untold;
        Failure::transient(error, !refused)
    }
}

/// All values are ours or cleaned: there is no line break in them.
fn header(name: &'static str, value: &str) -> HeaderValue {
    HeaderValue::new(HeaderName::new_from_ascii_str(name), value.to_owned())
}

fn subject(m: &Message) -> String {
    line(&m.title, SUBJECT_MAX)
}

/// Why this message came, in the words of a headline.
fn standing(n: &Notification) -> &'static str {
    match (n.message.status, n.action) {
        (Status::Resolved, _) => "RESOLVED",
        (Status::Acknowledged, _) => "ACKNOWLEDGED",
        (Status::Firing, Action::Update) => "NEWS",
        (Status::Firing, _) if n.page => "PAGE",
        (Status::Firing, _) => "TICKET",
    }
}

fn plain(n: &Notification) -> String {
    let m = &n.message;
    let tidy = |text: &str| shorten(clean(text).trim(), TEXT_MAX);
    let mut out = format!("{}: {}\n\n{}\n\n", standing(n), tidy(&m.reason), tidy(&m.summary));
    for fact in m.facts.iter().filter(|fact| !fact.text.trim().is_empty()) {
        let label = line(&fact.label, SUBJECT_MAX);
        let _ = writeln!(out, "{label}: {}", tidy(&fact.text).replace('\n', "\n    "));
    }
    out += "\n";
    for link in &m.links {
        if let Some(href) = super::text::web_link(&link.href, 2000) {
            let _ = writeln!(out, "{}: {href}", line(&link.text, SUBJECT_MAX));
        }
    }
    let _ = writeln!(out, "\nIncident {}, since {}", line(&m.incident, SUBJECT_MAX), m.started_at);
    out
}
