//! The database of the alerter: incidents, their history, the outbox, the engine's state and the
//! stream cursors.
//!
//! The store is one SQLite file in WAL mode with one writing connection, so that related changes
//! are one transaction: an incident, the messages about it, the detector state that it came from
//! and the cursor up to which the stream was read. After a crash, all or none of them are there
//! (principle 3). Readers have small pools of their own and never wait for the writer; lookups of
//! one incident do not queue behind lists of all. The engine's loop waits for at most one other
//! writer, because people wait for their answers to be durable.
//!
//! The store makes no decisions: the engine decides what an incident means, and the outbox when a
//! message is sent. [`Store::open`] refuses a second alerter on the file and a file on a network
//! filesystem, because both corrupt it without an error.

mod alert_rows;
mod alerts;
mod audit;
pub(crate) mod busy;
mod callbacks;
mod charts;
mod commit;
mod confirmed;
mod contents;
mod delivery;
mod error;
mod filesystem;
mod handle;
mod held;
mod hours;
mod identity;
mod index;
mod lease;
mod lists;
mod lock;
mod migrate;
mod open;
mod outcome;
mod overrides;
mod plan;
mod postgres;
mod read;
mod receivers;
mod report_schedules;
mod reports;
mod rings;
mod roster;
mod rows;
mod sending;
mod series;
mod sql;
mod standing;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod unrecorded;
mod write;
mod writer;

pub use audit::{AuditFilter, Audited, Door, Entry, Outcome};
pub(crate) use callbacks::Counterpart;
pub(crate) use charts::{DuePicture, PictureRow};
pub use commit::Commit;
pub(crate) use delivery::Claim;
pub use error::{Result, StoreError};
pub use handle::Store;
pub use hours::RunTotals;
pub(crate) use identity::hidden_beside;
pub(crate) use lease::Leader;
pub(crate) use migrate::{CopiedTable, copy_to_postgres};
pub(crate) use open::resolved;
pub(crate) use outcome::DeliveryOutcome;
pub use postgres::{Announced, Postgres, PostgresPlan, Replica};
pub use read::{Delivery, DeliveryState, Filter, Order};
pub use receivers::ReceiverState;
pub(crate) use report_schedules::DueReport;
pub(crate) use reports::{REPORT, is_report};
pub(crate) use rings::Means;
pub(crate) use roster::{Roster, Seen};
pub use series::SeriesPart;
pub(crate) use writer::FAIL_OPEN_AFTER;
