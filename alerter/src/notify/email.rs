//! The e-mail receiver, by SMTP: one thread per incident, as plain text and HTML.
//!
//! The `Message-ID` of a message follows from its idempotency key, so that mail servers recognise a
//! copy, and every later message names the first one in `References`: mailboxes then show one
//! conversation. The subject stays that of the first message, because some mailboxes treat another
//! subject as another conversation; the present state is in the first line.
//!
//! Each message uses a new connection: incidents are rare, and an idle connection that the relay
//! closed costs a retry.
//!
//! The relay answers for each recipient separately (`relay`). The recipients that have the message
//! are kept in the memory, and only the others are retried.

mod html;
mod relay;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::path::PathBuf;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Attachment, Mailbox, MultiPart, SinglePart};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::{Address, Message as Mail};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use stepwatch_respond::effect::{Action, Notification};
use stepwatch_respond::incident::Ended;
use stepwatch_respond::message::{Message, Status};

use self::relay::{Answers, Encryption, Relay};
use super::attempt::{Attempt, Failure, FailureClass, Receipt};
use super::kind::ReceiverKind;
use super::mistake::Mistake;
use super::notifier::{Notifier, Pace};
use super::secret::SecretSource;
use super::text::{clean, hex, line, shorten};

/// The rate limit: a relay refuses a flood of messages.
const PACE: Pace = Pace { per_second: 2.0, burst: 10.0 };
const RECIPIENTS_MAX: usize = 50;
const SUBJECT_MAX: usize = 180;
const TEXT_MAX: usize = 4000;
const ERROR_MAX: usize = 400;
/// The most bytes of a chart in a mail.
const CHART_MAX: usize = 512 * 1024;
/// The most tries for the remaining recipients if others have the message: about ten minutes.
const PARTLY_MAX: u32 = 12;
/// The most tries for a page: about one minute. The next message must not wait for a mailbox that
/// asks for five minutes, because it goes to all recipients again. A page that one recipient has
/// must not count as undelivered.
const PARTLY_PAGE_MAX: u32 = 7;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Recipients: `name@example.com` or `Name <name@example.com>`.
    pub to: Vec<String>,
    pub from: String,
    /// The relay as `host:port`; the default port depends on `tls`.
    pub smarthost: String,
    pub tls: TlsMode,
    /// PEM certificates to verify the relay's, in addition to the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_env: Option<String>,
    /// The host name for the greeting of the relay; the default is the machine's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hello: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// STARTTLS, which is required; port 587.
    #[default]
    Starttls,
    /// TLS from the first byte; port 465.
    Tls,
    /// No encryption; port 25. For a relay on this machine.
    None,
}

pub struct Email {
    relay: Relay,
    from: Mailbox,
    to: Vec<Mailbox>,
    /// The domain of message ids.
    domain: String,
}

/// The memory of a lane: the mail thread.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Thread {
    first: String,
    subject: String,
    /// A message that some recipients do not have yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<Part>,
}

/// The progress of a message.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Part {
    /// The idempotency key of the message.
    key: String,
    /// Recipients that have the message, and those that permanently refuse it.
    done: Vec<String>,
    tries: u32,
}

impl std::fmt::Debug for Email {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Email").field("from", &self.from).field("to", &self.to).finish_non_exhaustive()
    }
}

impl ReceiverKind for Config {}

impl Config {
    pub(super) fn build(&self) -> Result<Email, Mistake> {
        let mailbox = |key: &str, text: &str| {
            text.parse::<Mailbox>().map_err(|err| Mistake::at(key, format!("{text:?}: {err}")))
        };
        if self.to.is_empty() || self.to.len() > RECIPIENTS_MAX {
            return Err(Mistake::at("to", format!("needs 1 to {RECIPIENTS_MAX} addresses")));
        }
        let to: Vec<Mailbox> = self.to.iter().map(|t| mailbox("to", t)).collect::<Result<_, _>>()?;
        let from = mailbox("from", &self.from)?;
        let password =
            SecretSource::from_keys("password", self.password_file.as_ref(), self.password_env.as_ref())?;
        let password = password.map(|source| source.read()).transpose()?;
        let credentials = match (&self.username, &password) {
            (Some(user), Some(password)) => {
                Some(Credentials::new(user.clone(), password.expose().to_owned()))
            }
            (None, None) => None,
            _ => return Err("username and password_file (or password_env) go together".into()),
        };
        let hello = self.hello.as_ref().map_or_else(ClientId::default, |h| ClientId::Domain(line(h, 255)));
        let (host, port, encryption) = self.relay()?;
        let domain = from.email.domain().to_owned();
        let relay = Relay { host, port, encryption, hello, credentials, password };
        Ok(Email { relay, from, to, domain })
    }

    fn relay(&self) -> Result<(String, u16, Encryption), Mistake> {
        let usual = match self.tls {
            TlsMode::Starttls => 587,
            TlsMode::Tls => 465,
            TlsMode::None => 25,
        };
        // The rules are those of hosts and ports in a URL, including IPv6 in brackets.
        let url = url::Url::parse(&format!("smtp://{}", self.smarthost)).ok();
        let host = url.as_ref().and_then(|u| u.host_str()).map(|h| h.trim_matches(['[', ']']).to_owned());
        let (Some(url), Some(host)) = (url, host) else {
            return Err(Mistake::at("smarthost", format!("{:?} must be host:port", self.smarthost)));
        };
        let encryption = match self.tls {
            TlsMode::None => Encryption::Never,
            TlsMode::Starttls => Encryption::Required(self.tls_parameters(&host)?),
            TlsMode::Tls => Encryption::Wrapper(self.tls_parameters(&host)?),
        };
        Ok((host, url.port().unwrap_or(usual), encryption))
    }

    fn tls_parameters(&self, host: &str) -> Result<TlsParameters, Mistake> {
        let mut builder = TlsParameters::builder(host.to_owned());
        if let Some(path) = &self.ca_file {
            let cannot = |why: &dyn std::fmt::Display| {
                let why = format!("cannot read the certificates in {}: {why}", path.display());
                Mistake::at("ca_file", why)
            };
            let pem = std::fs::read(path).map_err(|err| cannot(&err))?;
            builder = builder.add_root_certificate(Certificate::from_pem(&pem).map_err(|err| cannot(&err))?);
        }
        builder.build_rustls().map_err(|err| Mistake::at("tls", err.to_string()))
    }
}

impl Notifier for Email {
    fn kind(&self) -> &'static str {
        "email"
    }

    fn send<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Receipt, Failure>> {
        self.send_mail(attempt).boxed()
    }

    fn wakes(&self) -> bool {
        true
    }

    fn pace(&self) -> Option<Pace> {
        Some(PACE)
    }

    fn embeds_chart(&self) -> bool {
        true
    }
}

impl Email {
    async fn send_mail(&self, attempt: Attempt<'_>) -> Result<Receipt, Failure> {
        let n = attempt.notification;
        let own = self.message_id(&n.idem_key);
        let known = attempt.memory.and_then(|m| serde_json::from_str::<Thread>(m).ok());
        // A recipient that gets the first message late gets the same message as the others.
        let before = known.as_ref().filter(|thread| thread.first != own);
        let mail =
            self.compose(attempt, before).map_err(|err| Failure::permanent(format!("email: {err}")))?;
        let thread = known.unwrap_or_else(|| Thread { first: own, subject: subject(&n.message), part: None });
        let part = thread.part.clone().filter(|part| part.key == n.idem_key);
        let done = part.as_ref().map(|part| part.done.as_slice()).unwrap_or_default();
        let to = self.to.iter().map(|to| to.email.clone());
        let to: Vec<Address> = to.filter(|to| !done.contains(&to.to_string())).collect();
        let whole =
            if to.is_empty() { Ok(Answers::default()) } else { self.deliver(&to, &mail.formatted()).await };
        let (answers, unwell) = match whole {
            Ok(answers) => (answers, None),
            Err(failure) if part.is_none() => return Err(failure),
            // The failure is about the remaining recipients, because the others have the message.
            Err(failure) => (Answers::to_all(to, &failure), Some(failure)),
        };
        for (to, error) in &answers.refused {
            tracing::error!(%to, error, "the relay refuses an address of a receiver");
        }
        Self::weigh(n, thread, part, answers).map_err(|partly| match unwell {
            // A relay that is down is retried as such, even if some recipients have the message.
            Some(Failure { class, ambiguous, .. }) => Failure { class, ambiguous, ..partly },
            None => partly,
        })
    }

    /// Whether the message is delivered: at least one recipient has it, and all others permanently
    /// refuse it.
    fn weigh(
        n: &Notification,
        thread: Thread,
        part: Option<Part>,
        answers: Answers,
    ) -> Result<Receipt, Failure> {
        let Answers { accepted, refused, deferred } = answers;
        let memory = |part| serde_json::to_string(&Thread { part, ..thread }).ok();
        let delivered = part.is_some() || !accepted.is_empty();
        let Some((late, error)) = deferred.first() else {
            return match refused.into_iter().next() {
                Some((_, error)) if !delivered => Err(Failure::permanent(error)),
                _ => Ok(Receipt { memory: memory(None) }),
            };
        };
        if !delivered {
            return Err(Failure::transient(error.clone(), false));
        }
        let mut part = part.unwrap_or_else(|| Part { key: n.idem_key.clone(), done: Vec::new(), tries: 0 });
        let done = accepted.iter().chain(refused.iter().map(|(address, _)| address));
        part.done.extend(done.map(ToString::to_string));
        part.tries += 1;
        let most = if n.page { PARTLY_PAGE_MAX } else { PARTLY_MAX };
        if part.tries >= most {
            for (to, error) in &deferred {
                tracing::error!(%to, error, "an address of a receiver does not take a message that others have: given up");
            }
            return Ok(Receipt { memory: memory(None) });
        }
        let error = format!("others have it, {late} does not yet: {error}");
        Err(Failure { class: FailureClass::Partly, error, ambiguous: false, memory: memory(Some(part)) })
    }

    /// Sends a message. If it is refused as a whole, it is sent to each recipient separately,
    /// because the rules of one mailbox may be the cause.
    async fn deliver(&self, to: &[Address], mail: &[u8]) -> Result<Answers, Failure> {
        let from = &self.from.email;
        let whole = self.relay.send(from, to, mail).await;
        let Err(failure) = &whole else { return whole };
        if failure.class != FailureClass::Permanent || to.len() == 1 {
            return whole;
        }
        let mut all = Answers::default();
        for one in to {
            match self.relay.send(from, std::slice::from_ref(one), mail).await {
                Ok(answers) => all.extend(answers),
                Err(f) if f.class == FailureClass::Permanent => all.refused.push((one.clone(), f.error)),
                Err(f) => all.deferred.push((one.clone(), f.error)),
            }
        }
        Ok(all)
    }

    fn compose(&self, attempt: Attempt<'_>, thread: Option<&Thread>) -> Result<Mail, lettre::error::Error> {
        let Attempt { notification: n, chart, .. } = attempt;
        let (m, own) = (&n.message, self.message_id(&n.idem_key));
        let mut builder = Mail::builder().from(self.from.clone()).message_id(Some(own)).date_now();
        for to in &self.to {
            builder = builder.to(to.clone());
        }
        // This header prevents automatic replies.
        builder = builder.raw_header(header("Auto-Submitted", "auto-generated"));
        if let Some(report) = attempt.report {
            let id = header("X-Stepwatch-Report", &line(&n.incident, 128));
            let part = |kind, text: &String| SinglePart::builder().header(kind).body(text.clone());
            let plain = part(ContentType::TEXT_PLAIN, &report.markdown);
            let html = part(ContentType::TEXT_HTML, &report.html);
            let both = MultiPart::alternative().singlepart(plain).singlepart(html);
            return builder.subject(subject(m)).raw_header(id).multipart(both);
        }
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
        let plain = SinglePart::builder().header(ContentType::TEXT_PLAIN).body(plain(n));
        let chart = chart.filter(|chart| chart.png.len() <= CHART_MAX);
        let html = html::render(n, chart.map(|chart| chart.alt.as_str()));
        let html = SinglePart::builder().header(ContentType::TEXT_HTML).body(html);
        let both = MultiPart::alternative().singlepart(plain);
        builder.multipart(match chart.zip(ContentType::parse("image/png").ok()) {
            None => both.singlepart(html),
            // The image is part of the mail, so nothing is fetched to show it.
            Some((chart, kind)) => {
                let picture = Attachment::new_inline(html::CHART.to_owned()).body(chart.png.to_vec(), kind);
                both.multipart(MultiPart::related().singlepart(html).singlepart(picture))
            }
        })
    }

    /// The id `<hash@domain>`. The key is hashed, because it may contain characters that are
    /// invalid in an id.
    fn message_id(&self, key: &str) -> String {
        format!("<{}@{}>", &hex(&Sha256::digest(key.as_bytes()))[..32], self.domain)
    }
}

/// Creates a header. All values are ours or cleaned, so they contain no line break.
fn header(name: &'static str, value: &str) -> HeaderValue {
    HeaderValue::new(HeaderName::new_from_ascii_str(name), value.to_owned())
}

fn subject(m: &Message) -> String {
    line(&m.title, SUBJECT_MAX)
}

/// The reason for this message, as a headline.
fn standing(n: &Notification) -> &'static str {
    match (n.message.status, n.action) {
        (Status::Resolved, _) if n.message.ended == Some(Ended::Stale) => "STALE",
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
