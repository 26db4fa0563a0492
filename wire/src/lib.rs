//! The contract between trainer, exporter and alerter: the event, its lenient JSON, the stream
//! cursor, the metric names that both programs use, and the meaning of XIDs. There is no I/O and no
//! clock; serde is the only dependency.
//!
//! An event is one JSON object: a packet on the ingest socket, a line of a file, or a record of the
//! stream. Parsing is lenient where trainers are imprecise (bare or quoted `NaN`, unknown keys). It
//! is strict where a mistake would go unnoticed (a step that is not an integer, a packet over the
//! limit): an error names the field.

pub mod conditions;
mod cursor;
mod event;
mod json;
mod metrics;
pub mod names;
pub mod num;
pub mod run_name;
pub mod secrets;
pub mod setting;
pub mod words;
pub mod xid;

pub use cursor::{Cursor, CursorError};
pub use event::{
    CkptPhase, Edge, Event, EventError, Kind, MAX_EVENT_BYTES, MAX_EXTRA, MAX_RECORD_BYTES, MAX_TEXT,
};
pub use json::{JsonError, Value};
pub use metrics::{MAX_METRICS, MAX_NAME_BYTES, Metrics, clip_name};
