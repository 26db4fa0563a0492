//! The reason why a login by OpenID Connect begins no session.

use core::fmt;

/// Two readers: [`fmt::Display`] is for the person at the browser, and `Provider` carries what only
/// the log should say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoginError {
    /// This browser has begun no login, or too long ago.
    Stale,
    /// The provider refused the login, with this code: the person cancelled it, or may not use the
    /// application.
    Denied(String),
    /// The answer of the provider, or its ID token, is not valid for this login.
    Refused(String),
    /// The provider does not answer, or not as it should. The text is for the log.
    Provider(String),
    /// None of the person's groups has a role.
    NoRole {
        name: String,
        /// The provider's own identifier of the person.
        subject: String,
        /// The number of groups that the provider listed.
        listed: usize,
        /// The provider says that it left out the groups.
        unlisted: bool,
    },
    /// Too many logins are in progress.
    Busy,
    /// Too many logins from this address were refused; further ones are refused for this many
    /// seconds.
    TooOften(i64),
    NoRandomness,
}

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale => {
                f.write_str("This browser has begun no login, or more than ten minutes ago. Log in again.")
            }
            Self::Denied(code) => write!(f, "The identity provider refused the login: {code}."),
            Self::Refused(_) => f.write_str("The identity provider's answer is not valid. Log in again."),
            Self::Provider(_) => {
                f.write_str("The identity provider does not answer as it should; see the alerter's log.")
            }
            Self::NoRole { name, unlisted: true, .. } => write!(
                f,
                "You are {name}, and the identity provider left out your groups, because there are too many. It has to \
                 send fewer, or others (docs/security.md)."
            ),
            Self::NoRole { name, listed, .. } => write!(
                f,
                "You are {name}, and none of your groups has a role here; the identity provider listed {listed}."
            ),
            Self::Busy => f.write_str("Too many people are logging in. Try again in a moment."),
            Self::TooOften(seconds) => write!(f, "Too many logins were refused. Try again in {seconds} s."),
            Self::NoRandomness => f.write_str("The system has no randomness for a session."),
        }
    }
}
