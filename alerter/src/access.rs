//! Tokens of the API and sessions of browsers: which token a request has, what the token may do,
//! and the runs and teams to which it is limited. The configuration creates tokens, and the gate of
//! the API checks both.

mod keyring;
mod scope;
pub(crate) mod sessions;
mod token_scope;

pub use keyring::{Grant, Keyring};
pub(crate) use keyring::{presented, token_hash};
pub use scope::{Scope, Scopes};
pub use token_scope::{Glob, TokenScope};
