//! The memory of the alerter: incidents, their history, the outbox, the engine's state and the
//! stream cursors.
//!
//! One file of SQLite in WAL mode, written by one connection, so that whatever belongs together is
//! one transaction: an incident, the messages about it, the detector state it came from and the
//! cursor up to which the stream was read. After a crash all of them are there or none is
//! (principle 3). Readers have their own small pools and never wait for the writer; those who look
//! for one incident do not stand in line with those who list all. Of those who write, the engine's
//! loop waits for at most one other, because whoever acknowledges something waits for it.
//!
//! It decides nothing: what an incident means is the engine's matter, when a message is sent the
//! outbox's. Two alerters on one file, or a file on a network filesystem, are refused at
//! [`Store::open`] because both corrupt quietly.

mod alert_rows;
mod alerts;
mod audit;
pub(crate) mod busy;
mod callbacks;
mod commit;
mod delivery;
mod error;
mod filesystem;
mod handle;
mod held;
mod identity;
mod index;
mod lock;
mod open;
mod outcome;
mod read;
mod rings;
mod rows;
mod standing;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod unrecorded;
mod write;
mod writer;

pub use audit::{AuditFilter, Audited};
pub(crate) use callbacks::Counterpart;
pub use commit::Commit;
pub(crate) use delivery::Claim;
pub use error::{Result, StoreError};
pub use handle::Store;
pub(crate) use identity::hidden_beside;
pub(crate) use outcome::DeliveryOutcome;
pub use read::{Delivery, DeliveryState, Filter};
pub(crate) use rings::Means;
pub(crate) use writer::FAIL_OPEN_AFTER;
