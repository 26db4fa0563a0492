//! Tokens of the API: which token a request presents, what it may do, and which runs and teams it
//! is limited to; and sessions of browsers. The configuration makes tokens, and the gate of the API
//! asks for both.

mod keyring;
mod scope;
pub(crate) mod sessions;
mod token_scope;

pub use keyring::{Grant, Keyring};
pub(crate) use keyring::{presented, token_hash};
pub use scope::{Scope, Scopes};
pub use token_scope::{Glob, TokenScope};
