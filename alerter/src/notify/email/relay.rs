//! One SMTP session with the relay. The relay answers for each recipient separately: the accepted
//! ones get the message even if others are refused.

use std::time::Duration;

use lettre::Address;
use lettre::transport::smtp::Error as SmtpError;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, TlsParameters};
use lettre::transport::smtp::commands::{Data, Mail, Rcpt};
use lettre::transport::smtp::extension::{ClientId, Extension, MailBodyParameter, MailParameter};
use stepwatch_kit::config::Secret;

use super::ERROR_MAX;
use crate::notify::attempt::{Failure, FailureClass};
use crate::notify::line;

/// The time limit for a command and its answer; the last one is slow if the relay scans for
/// viruses.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);
/// The time limit for QUIT: a missing answer must not affect a message that was accepted.
const GOODBYE: Duration = Duration::from_secs(1);
/// `Service not available, closing transmission channel`: this is about the connection and not
/// about a recipient.
const CLOSING: u16 = 421;

pub(super) struct Relay {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) encryption: Encryption,
    pub(super) hello: ClientId,
    pub(super) credentials: Option<Credentials>,
    /// A secret that must not appear in errors.
    pub(super) password: Option<Secret>,
}

pub(super) enum Encryption {
    Never,
    Required(TlsParameters),
    Wrapper(TlsParameters),
}

/// The relay's answers by recipient.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The recipients that have the message.
    pub(super) accepted: Vec<Address>,
    /// The recipients that permanently refuse it, and why.
    pub(super) refused: Vec<(Address, String)>,
    /// The recipients that may accept it later, and why.
    pub(super) deferred: Vec<(Address, String)>,
}

impl Relay {
    /// Sends one message to the recipients that the relay accepts. An error applies to all of them.
    pub(super) async fn send(&self, from: &Address, to: &[Address], mail: &[u8]) -> Result<Answers, Failure> {
        let mut connection = self.connect().await.map_err(|err| self.judge(&err, false))?;
        let answers = self.converse(&mut connection, from, to, mail).await;
        let _ = tokio::time::timeout(GOODBYE, connection.abort()).await;
        answers
    }

    async fn connect(&self) -> Result<AsyncSmtpConnection, SmtpError> {
        let wrapper = match &self.encryption {
            Encryption::Wrapper(tls) => Some(tls.clone()),
            Encryption::Never | Encryption::Required(_) => None,
        };
        let server = (self.host.as_str(), self.port);
        let mut connection =
            AsyncSmtpConnection::connect_tokio1(server, Some(COMMAND_TIMEOUT), &self.hello, wrapper, None)
                .await?;
        if let Encryption::Required(tls) = &self.encryption {
            connection.starttls(tls.clone(), &self.hello).await?;
        }
        if let Some(credentials) = &self.credentials {
            connection.auth(DEFAULT_MECHANISMS, credentials).await?;
        }
        Ok(connection)
    }

    async fn converse(
        &self,
        connection: &mut AsyncSmtpConnection,
        from: &Address,
        to: &[Address],
        mail: &[u8],
    ) -> Result<Answers, Failure> {
        let unsent = |err: SmtpError| self.judge(&err, false);
        let options = options(connection, from, to, mail)?;
        connection.command(Mail::new(Some(from.clone()), options)).await.map_err(unsent)?;
        let mut answers = Answers::default();
        for address in to {
            match connection.command(Rcpt::new(address.clone(), Vec::new())).await {
                Ok(_) => answers.accepted.push(address.clone()),
                Err(err) if err.status().is_none_or(|code| u16::from(code) == CLOSING) => {
                    return Err(unsent(err));
                }
                Err(err) => {
                    let kind = if err.is_permanent() { &mut answers.refused } else { &mut answers.deferred };
                    kind.push((address.clone(), self.judge(&err, false).error));
                }
            }
        }
        if answers.accepted.is_empty() {
            return Ok(answers);
        }
        connection.command(Data).await.map_err(unsent)?;
        connection.message(mail).await.map_err(|err| self.judge(&err, true))?;
        Ok(answers)
    }

    /// Classifies an error. `sent`: the whole message was sent, so that a relay without an answer
    /// may have it.
    fn judge(&self, err: &SmtpError, sent: bool) -> Failure {
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
        // A relay with a temporary error has not accepted the message.
        Failure::transient(error, sent && !err.is_transient())
    }
}

impl Answers {
    /// Applies a failure of the whole message to each recipient.
    pub(super) fn to_all(to: Vec<Address>, failure: &Failure) -> Self {
        let all = to.into_iter().map(|to| (to, failure.error.clone())).collect();
        if failure.class == FailureClass::Permanent {
            return Self { refused: all, ..Self::default() };
        }
        Self { deferred: all, ..Self::default() }
    }

    pub(super) fn extend(&mut self, more: Self) {
        self.accepted.extend(more.accepted);
        self.refused.extend(more.refused);
        self.deferred.extend(more.deferred);
    }
}

/// The SMTP extensions that the message needs.
fn options(
    connection: &AsyncSmtpConnection,
    from: &Address,
    to: &[Address],
    mail: &[u8],
) -> Result<Vec<MailParameter>, Failure> {
    let needs = |what: &str, feature: Extension, option: MailParameter| {
        if connection.server_info().supports_feature(feature) {
            return Ok(option);
        }
        Err(Failure::permanent(format!("email: {what}, and the relay understands only ASCII")))
    };
    let mut options = Vec::new();
    let plain = |address: &Address| AsRef::<str>::as_ref(address).is_ascii();
    if !plain(from) || !to.iter().all(plain) {
        let option = MailParameter::SmtpUtfEight;
        options.push(needs("an address is not plain ASCII", Extension::SmtpUtfEight, option)?);
    }
    if !mail.is_ascii() {
        let option = MailParameter::Body(MailBodyParameter::EightBitMime);
        options.push(needs("the message is not plain ASCII", Extension::EightBitMime, option)?);
    }
    Ok(options)
}
