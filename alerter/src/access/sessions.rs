//! Sessions of people in a browser. The browser has a random value in a cookie; this program has
//! its hash.
//!
//! A session depends on the credential that began it: it names the token or the user by a hash, and
//! every request checks that this still exists. Sessions are only in memory, so a restart ends them
//! all.

use core::fmt;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};
use stepwatch_model::time::{Span, Ts};
use subtle::ConstantTimeEq as _;

/// The maximum idle time of a session, and its maximum age.
const IDLE: Span = Span::secs(7 * 86_400);
pub(crate) const LONGEST: Span = Span::secs(30 * 86_400);
/// The most sessions at once; a further one ends the one that was idle for longest.
const MAX_SESSIONS: usize = 10_000;
/// The number of random bytes of a session.
const BYTES: usize = 32;

/// The most refused logins of one kind from one address within [`WITHIN`]; further ones are refused
/// unchecked.
const MAX_REFUSED: u32 = 10;
const WITHIN: Span = Span::secs(60);
/// The most addresses whose refused logins are counted; with more, the oldest are dropped.
const MAX_ADDRESSES: usize = 4096;

/// The bits by which IPv6 addresses are counted: each client has a network of 64 bits.
const NETWORK: u128 = !0 << 64;

type Hash = [u8; 32];

/// The credential that began a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Credential {
    /// The hash of a token.
    Token(Hash),
    /// A user of the web configuration, with a hash that identifies the password.
    User { name: String, mark: Hash },
    /// A person for whom an OpenID Connect provider vouched.
    Person {
        issuer: String,
        client_id: String,
        /// The provider's own identifier of the person.
        subject: String,
        name: String,
        groups: Vec<String>,
    },
}

/// How somebody logs in. Each kind is counted apart: behind a proxy all people have one address,
/// and whoever guesses passwords must not keep them from their provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LoginKind {
    /// A token, or a name with a password.
    Password,
    /// The code of an OpenID Connect provider.
    Code,
}

/// The value of a session cookie, which is a secret: it gives access to the session.
pub(crate) struct SessionId(String);

#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    begun: BTreeMap<Hash, Session>,
    refused: BTreeMap<(LoginKind, Option<IpAddr>), Refused>,
}

#[derive(Debug)]
struct Session {
    of: Credential,
    begun: Ts,
    used: Ts,
    /// The maximum age.
    longest: Span,
}

/// The refused logins from one address.
#[derive(Debug, Clone, Copy)]
struct Refused {
    since: Ts,
    count: u32,
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

impl SessionId {
    /// Parses the value of a cookie; `None` if it is invalid.
    pub(crate) fn parse(value: &str) -> Option<Self> {
        let hex = value.len() == 2 * BYTES && value.bytes().all(|b| b.is_ascii_hexdigit());
        hex.then(|| Self(value.to_owned()))
    }

    /// The secret value, only for the cookie.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// The token in forms against cross-site request forgery. It reveals nothing about the session.
    pub(crate) fn csrf(&self) -> String {
        hex::encode(digest("csrf", &self.0))
    }

    /// Whether the token of a form belongs to this session.
    pub(crate) fn made(&self, csrf: &str) -> bool {
        self.csrf().as_bytes().ct_eq(csrf.as_bytes()).into()
    }

    fn hash(&self) -> Hash {
        digest("session", &self.0)
    }
}

impl Sessions {
    /// Begins a session. `None` if the system has no randomness.
    pub(crate) fn begin(&self, of: Credential, now: Ts) -> Option<SessionId> {
        self.begin_for(of, LONGEST, now)
    }

    /// Begins a session of a limited age.
    pub(crate) fn begin_for(&self, of: Credential, longest: Span, now: Ts) -> Option<SessionId> {
        let mut random = [0; BYTES];
        getrandom::fill(&mut random).ok()?;
        let id = SessionId(hex::encode(random));
        let mut inner = self.inner();
        inner.begun.retain(|_, session| session.lives(now));
        if inner.begun.len() >= MAX_SESSIONS
            && let Some(oldest) = inner.begun.iter().min_by_key(|(_, s)| s.used).map(|(hash, _)| *hash)
        {
            inner.begun.remove(&oldest);
        }
        inner.begun.insert(id.hash(), Session { of, begun: now, used: now, longest });
        Some(id)
    }

    /// The credential of a session that has not ended. The lookup is by a hash, so its duration
    /// reveals nothing about the value.
    pub(crate) fn find(&self, id: &SessionId, now: Ts) -> Option<Credential> {
        let mut inner = self.inner();
        let session = inner.begun.get_mut(&id.hash()).filter(|session| session.lives(now))?;
        session.used = session.used.max(now);
        Some(session.of.clone())
    }

    /// When a session began.
    pub(crate) fn begun(&self, id: &SessionId) -> Option<Ts> {
        self.inner().begun.get(&id.hash()).map(|session| session.begun)
    }

    pub(crate) fn end(&self, id: &SessionId) {
        self.inner().begun.remove(&id.hash());
    }

    /// Ends the sessions for which `keep` returns false.
    pub(crate) fn retain(&self, keep: impl Fn(&Credential) -> bool) {
        self.inner().begun.retain(|_, session| keep(&session.of));
    }

    /// Whether a login from this address is checked; otherwise the seconds until one is.
    pub(crate) fn admits_login(&self, kind: LoginKind, from: Option<IpAddr>, now: Ts) -> Result<(), i64> {
        let inner = self.inner();
        let refused = inner
            .refused
            .get(&(kind, from.map(network)))
            .filter(|r| r.count >= MAX_REFUSED && now - r.since < WITHIN);
        refused.map_or(Ok(()), |r| Err((WITHIN.0 - (now - r.since).0.max(0)).max(1) / 1000 + 1))
    }

    pub(crate) fn refused_login(&self, kind: LoginKind, from: Option<IpAddr>, now: Ts) {
        let from = (kind, from.map(network));
        let mut inner = self.inner();
        if inner.refused.len() >= MAX_ADDRESSES && !inner.refused.contains_key(&from) {
            inner.refused.retain(|_, r| now - r.since < WITHIN);
            if let Some(oldest) = inner.refused.iter().min_by_key(|(_, r)| r.since).map(|(from, _)| *from)
                && inner.refused.len() >= MAX_ADDRESSES
            {
                inner.refused.remove(&oldest);
            }
        }
        let refused = inner.refused.entry(from).or_insert(Refused { since: now, count: 0 });
        if now - refused.since >= WITHIN {
            *refused = Refused { since: now, count: 0 };
        }
        refused.count += 1;
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address by which a client is counted.
fn network(of: IpAddr) -> IpAddr {
    match of {
        IpAddr::V4(_) => of,
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from(u128::from(ip) & NETWORK)),
    }
}

impl Session {
    fn lives(&self, now: Ts) -> bool {
        now - self.used < IDLE && now - self.begun < self.longest
    }
}

/// Hashes a value. The purpose separates the hashes of one value.
fn digest(purpose: &str, value: &str) -> Hash {
    let mut digest = Sha256::new();
    digest.update(b"stepwatch ");
    digest.update(purpose);
    digest.update(b"\0");
    digest.update(value);
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Ts = Ts(1_795_227_416_980);

    fn user(name: &str) -> Credential {
        Credential::User { name: name.into(), mark: [7; 32] }
    }

    #[test]
    fn a_session_is_found_by_its_value_until_it_ends() {
        let sessions = Sessions::default();
        let id = sessions.begin(user("ann"), NOW).unwrap();
        let other = sessions.begin(user("bob"), NOW).unwrap();
        assert_ne!(id.expose(), other.expose());
        let read = SessionId::parse(id.expose()).unwrap();
        assert_eq!(sessions.find(&read, NOW), Some(user("ann")));
        assert_eq!(sessions.begun(&read), Some(NOW));
        assert_eq!(sessions.find(&SessionId::parse(&"0".repeat(64)).unwrap(), NOW), None);
        sessions.end(&id);
        assert_eq!(sessions.find(&id, NOW), None);
        assert_eq!(sessions.begun(&id), None);
        assert_eq!(sessions.find(&other, NOW), Some(user("bob")));
        sessions.retain(|of| *of != user("bob"));
        assert_eq!(sessions.find(&other, NOW), None);
        for bad in ["", "abc", &"g".repeat(64), &"0".repeat(65)] {
            assert!(SessionId::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn it_ends_when_nobody_uses_it_and_in_any_case_some_day() {
        let sessions = Sessions::default();
        let id = sessions.begin(user("ann"), NOW).unwrap();
        let mut now = NOW;
        while now - NOW < Span(LONGEST.0 - IDLE.0) {
            now = now + Span(IDLE.0 - 1);
            assert!(sessions.find(&id, now).is_some());
        }
        assert!(sessions.find(&id, NOW + LONGEST).is_none(), "however often it is used");
        let id = sessions.begin(user("ann"), NOW).unwrap();
        assert!(sessions.find(&id, NOW + IDLE).is_none());
        let id = sessions.begin_for(user("ann"), Span::secs(60), NOW).unwrap();
        assert!(sessions.find(&id, NOW + Span::secs(59)).is_some());
        assert!(sessions.find(&id, NOW + Span::secs(60)).is_none());
    }

    #[test]
    fn the_value_in_forms_is_of_one_session_and_reveals_none() {
        let sessions = Sessions::default();
        let [a, b] = [(); 2].map(|()| sessions.begin(user("ann"), NOW).unwrap());
        assert!(a.made(&a.csrf()) && !a.made(&b.csrf()) && !a.made(""));
        assert!(!a.csrf().contains(a.expose()));
        assert_eq!(format!("{a:?}"), "<secret>");
    }

    #[test]
    fn the_oldest_gives_way() {
        let sessions = Sessions::default();
        let first = sessions.begin(user("ann"), NOW).unwrap();
        for i in 1..=MAX_SESSIONS {
            sessions.begin(user("bob"), NOW + Span(i as i64)).unwrap();
        }
        assert!(sessions.find(&first, NOW + Span(1)).is_none());
        assert_eq!(sessions.inner().begun.len(), MAX_SESSIONS);
    }

    #[test]
    fn logins_that_are_refused_are_limited_by_address() {
        let sessions = Sessions::default();
        let from = |n: u8| Some(IpAddr::from([10, 0, 0, n]));
        for _ in 0..MAX_REFUSED {
            assert!(sessions.admits_login(LoginKind::Password, from(1), NOW).is_ok());
            sessions.refused_login(LoginKind::Password, from(1), NOW);
        }
        assert_eq!(sessions.admits_login(LoginKind::Password, from(1), NOW), Err(61));
        assert_eq!(sessions.admits_login(LoginKind::Password, from(1), NOW + Span::secs(59)), Err(2));
        assert!(sessions.admits_login(LoginKind::Password, from(2), NOW).is_ok(), "not of others");
        assert!(sessions.admits_login(LoginKind::Code, from(1), NOW).is_ok(), "nor of the provider");
        assert!(sessions.admits_login(LoginKind::Password, from(1), NOW + WITHIN).is_ok());
        let of = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        for n in 0..MAX_REFUSED {
            sessions.refused_login(LoginKind::Password, of(&format!("2001:db8::{n}")), NOW);
        }
        assert!(sessions.admits_login(LoginKind::Password, of("2001:db8::ffff"), NOW).is_err());
        assert!(sessions.admits_login(LoginKind::Password, of("2001:db8:0:1::"), NOW).is_ok());
        for n in 0..=MAX_ADDRESSES as u32 {
            sessions.refused_login(LoginKind::Password, Some(IpAddr::from(n.to_be_bytes())), NOW);
        }
        assert!(sessions.inner().refused.len() <= MAX_ADDRESSES);
    }
}
