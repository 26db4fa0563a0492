//! A fake mail relay: accepts messages by SMTP, checks what relays and mailboxes check, and stores
//! them by conversation.
//!
//! It refuses bare line feeds, long lines, missing or duplicate headers, and replies to unknown
//! messages; a message with a known id is counted and not stored again. It encrypts from the first
//! byte, on request, or not at all, and may simulate an attacker who removes the offer of
//! encryption.

mod mail;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::server::TimedOut;

pub use mail::Mail;

/// A fault that occurs once, by default at the end of `DATA`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmtpFault {
    /// This reply to `MAIL`.
    Mail(u16),
    /// This reply after the message, which is not accepted.
    Data(u16),
    /// The connection breaks after the message, which is not accepted.
    Reset,
    /// The message is accepted, and the connection breaks before the reply.
    TakenThenReset,
    /// The message is read, and nothing more is answered.
    Hang,
}

/// How the relay encrypts.
#[derive(Debug, Clone, Default)]
pub enum Encryption {
    #[default]
    Never,
    /// From the first byte.
    Always(Arc<ServerConfig>),
    /// On request, which the relay offers.
    OnRequest(Arc<ServerConfig>),
    /// On request, but an attacker removes the offer from the greeting.
    Stripped,
    /// On request, but an attacker refuses the request.
    Refused,
}

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}
type Stream = BufReader<Box<dyn Io>>;

#[derive(Debug, Clone, Default)]
pub struct Smtp {
    /// The accounts that may send; anybody may if there are none.
    pub accounts: BTreeMap<String, String>,
    /// Addresses that do not exist.
    pub unknown: BTreeSet<String>,
    /// Addresses that are temporarily refused.
    pub later: BTreeSet<String>,
    pub mails: Vec<Mail>,
    /// The number of copies of messages that had arrived.
    pub duplicates: usize,
    /// The reasons for refusals.
    pub refused: Vec<String>,
    pub connections: usize,
    /// The first word of each line that was sent unencrypted.
    pub in_the_clear: Vec<String>,
    pub faults: VecDeque<SmtpFault>,
}

/// A running relay, which stops on drop.
#[derive(Debug)]
pub struct FakeSmtp {
    addr: SocketAddr,
    state: Arc<watch::Sender<Smtp>>,
    _stop: DropGuard,
}

impl FakeSmtp {
    pub const USER: &str = "stepwatch";
    pub const PASSWORD: &str = "canary-of-the-fake-relay";

    pub async fn start() -> Self {
        Self::start_with(Encryption::Never).await
    }

    pub async fn start_with(encryption: Encryption) -> Self {
        let listener =
            TcpListener::bind("127.0.0.1:0").await.expect("the loopback interface has a free port");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let accounts = BTreeMap::from([(Self::USER.to_owned(), Self::PASSWORD.to_owned())]);
        let state = Arc::new(watch::Sender::new(Smtp { accounts, ..Smtp::default() }));
        let stop = CancellationToken::new();
        let (shared, ended) = (Arc::clone(&state), stop.clone());
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = ended.cancelled() => return,
                    accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                        let (state, ended) = (Arc::clone(&shared), ended.clone());
                        let session = Session::new(encryption.clone());
                        tokio::spawn(async move {
                            tokio::select! {
                                _ = session.run(stream, &state) => {}
                                () = ended.cancelled() => {}
                            }
                        });
                    },
                }
            }
        });
        Self { addr, state, _stop: stop.drop_guard() }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn with<T>(&self, f: impl FnOnce(&Smtp) -> T) -> T {
        f(&self.state.borrow())
    }

    pub fn change(&self, f: impl FnOnce(&mut Smtp)) {
        self.state.send_modify(f);
    }

    pub async fn wait_for(
        &self,
        cond: impl FnMut(&Smtp) -> bool,
        timeout: Duration,
    ) -> Result<Smtp, TimedOut> {
        let mut state = self.state.subscribe();
        match tokio::time::timeout(timeout, state.wait_for(cond)).await {
            Ok(Ok(state)) => Ok(state.clone()),
            _ => Err(TimedOut(timeout)),
        }
    }
}

#[derive(Debug)]
struct Session {
    encryption: Encryption,
    encrypted: bool,
    authorized: bool,
    from: Option<String>,
    to: Vec<String>,
}

impl Session {
    fn new(encryption: Encryption) -> Self {
        Self { encryption, encrypted: false, authorized: false, from: None, to: Vec::new() }
    }

    async fn run(mut self, stream: TcpStream, state: &watch::Sender<Smtp>) -> std::io::Result<()> {
        state.send_modify(|s| s.connections += 1);
        self.authorized = state.borrow().accounts.is_empty();
        let mut stream: Box<dyn Io> = Box::new(stream);
        if let Encryption::Always(config) = &self.encryption {
            stream = Box::new(TlsAcceptor::from(Arc::clone(config)).accept(stream).await?);
            self.encrypted = true;
        }
        let mut lines: Stream = BufReader::new(stream);
        lines.write_all(b"220 relay.example ESMTP fake\r\n").await?;
        lines.flush().await?;
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let line = line.trim_end();
            let verb = line.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
            if !self.encrypted {
                state.send_modify(|s| s.in_the_clear.push(verb.clone()));
            }
            if let (Encryption::OnRequest(config), "STARTTLS") = (&self.encryption, verb.as_str()) {
                lines.write_all(b"220 2.0.0 Ready to start TLS\r\n").await?;
                lines.flush().await?;
                let acceptor = TlsAcceptor::from(Arc::clone(config));
                let stream: Box<dyn Io> = Box::new(acceptor.accept(lines.into_inner()).await?);
                lines = BufReader::new(stream);
                self.encrypted = true;
                continue;
            }
            let reply = match verb.as_str() {
                "EHLO" => {
                    let offers = matches!(self.encryption, Encryption::OnRequest(_) | Encryption::Refused);
                    let starttls = if offers && !self.encrypted { "250-STARTTLS\r\n" } else { "" };
                    format!(
                        "250-relay.example\r\n250-8BITMIME\r\n{starttls}250-SIZE 10485760\r\n250 AUTH PLAIN LOGIN"
                    )
                }
                "STARTTLS" => "454 4.7.0 TLS not available due to temporary reason".into(),
                "AUTH" => self.auth(line, state),
                "MAIL" if !self.authorized => "530 5.7.0 Authentication required".into(),
                "MAIL" => self.mail(line, state),
                "RCPT" => self.rcpt(line, state),
                "DATA" if self.to.is_empty() => "503 5.5.1 No recipients".into(),
                "DATA" => {
                    lines.write_all(b"354 End data with <CR><LF>.<CR><LF>\r\n").await?;
                    lines.flush().await?;
                    let raw = data(&mut lines).await?;
                    match self.take(&raw, state) {
                        Some(reply) => reply,
                        None => return Ok(()),
                    }
                }
                "RSET" => {
                    (self.from, self.to) = (None, Vec::new());
                    "250 2.0.0 Ok".into()
                }
                "NOOP" => "250 2.0.0 Ok".into(),
                "QUIT" => {
                    lines.write_all(b"221 2.0.0 Bye\r\n").await?;
                    return lines.flush().await;
                }
                _ => "502 5.5.2 Unknown command".into(),
            };
            if reply == HANG {
                std::future::pending::<()>().await;
            }
            lines.write_all(format!("{reply}\r\n").as_bytes()).await?;
            lines.flush().await?;
        }
    }

    fn auth(&mut self, line: &str, state: &watch::Sender<Smtp>) -> String {
        let given =
            line.strip_prefix("AUTH PLAIN ").and_then(|b| STANDARD.decode(b).ok()).unwrap_or_default();
        let text = String::from_utf8_lossy(&given).into_owned();
        let mut parts = text.split('\0').skip(1);
        let (user, password) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        self.authorized = state.borrow().accounts.get(user).is_some_and(|p| p == password);
        if self.authorized {
            return "235 2.7.0 Authentication successful".into();
        }
        // Some relays expose secrets like this.
        format!("535 5.7.8 Authentication credentials invalid: {user} {password}")
    }

    fn mail(&mut self, line: &str, state: &watch::Sender<Smtp>) -> String {
        let mut fault = None;
        state.send_if_modified(|s| match s.faults.front() {
            Some(SmtpFault::Mail(code)) => {
                fault = Some(*code);
                s.faults.pop_front();
                true
            }
            _ => false,
        });
        if let Some(code) = fault {
            return format!("{code} the relay says no");
        }
        self.from = address(line);
        "250 2.1.0 Ok".into()
    }

    fn rcpt(&mut self, line: &str, state: &watch::Sender<Smtp>) -> String {
        let Some(to) = address(line).filter(|_| self.from.is_some()) else {
            return "503 5.5.1 MAIL first".into();
        };
        if state.borrow().unknown.contains(&to) {
            return format!("550 5.1.1 <{to}>: Recipient address rejected: User unknown");
        }
        if state.borrow().later.contains(&to) {
            return format!("450 4.2.0 <{to}>: Recipient address rejected: Greylisted");
        }
        self.to.push(to);
        "250 2.1.5 Ok".into()
    }

    /// The reply; `None` if the connection breaks.
    fn take(&mut self, raw: &str, state: &watch::Sender<Smtp>) -> Option<String> {
        let mut reply = Some("250 2.0.0 Ok: queued".to_owned());
        let (from, to) = (self.from.take().unwrap_or_default(), std::mem::take(&mut self.to));
        state.send_modify(|s| {
            let fault = s.faults.pop_front();
            reply = match fault {
                Some(SmtpFault::Data(code) | SmtpFault::Mail(code)) => {
                    Some(format!("{code} the relay says no"))
                }
                Some(SmtpFault::Reset | SmtpFault::TakenThenReset) => None,
                Some(SmtpFault::Hang) => Some(HANG.to_owned()),
                None => reply.take(),
            };
            if !matches!(fault, None | Some(SmtpFault::TakenThenReset)) {
                return;
            }
            match Mail::read(from, to, raw, &s.mails) {
                Ok(mail) if s.mails.iter().any(|m| m.id() == mail.id() && m.to == mail.to) => {
                    s.duplicates += 1
                }
                Ok(mail) => s.mails.push(mail),
                Err(why) => {
                    reply = Some(format!("554 5.6.0 {why}"));
                    s.refused.push(why);
                }
            }
        });
        reply
    }
}

const HANG: &str = "hang";

fn address(line: &str) -> Option<String> {
    let start = line.find('<')?;
    let end = line[start..].find('>')? + start;
    Some(line[start + 1..end].to_ascii_lowercase())
}

/// The message as it was sent, without SMTP's doubled dots.
async fn data(lines: &mut Stream) -> std::io::Result<String> {
    let mut raw = String::new();
    loop {
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if line == b".\r\n" {
            return Ok(raw);
        }
        let line = if line.starts_with(b"..") { &line[1..] } else { &line[..] };
        raw += &String::from_utf8_lossy(line);
    }
}
