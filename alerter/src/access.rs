//! Tokens of the API: which token a request presents, what it may do, and which runs and teams it
//! is limited to. The configuration makes them; the gate of the API asks them.

mod keyring;
mod scope;
mod token_scope;

pub(crate) use keyring::presented;
pub use keyring::{Grant, Keyring};
pub use scope::{Scope, Scopes};
pub use token_scope::{Glob, TokenScope};
