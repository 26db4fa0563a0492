//! The contract between trainer, exporter and alerter: the event, its lenient JSON, the stream
//! cursor, the few metric names both programs must agree on, and what an XID means. No I/O, no
//! clock; serde is the only dependency.
//!
//! An event is one JSON object: a packet on the ingest socket, a line of a file, a record of the
//! stream. Reading is lenient where trainers are sloppy (`NaN` bare or as a string, unknown keys)
//! and strict where a mistake would be silently wrong (a step that is not an integer, a packet over
//! the limit): an error names the field.

pub mod conditions;
mod cursor;
mod event;
mod json;
mod metrics;
pub mod names;
pub mod num;
pub mod run_name;
pub mod words;
pub mod xid;

pub use cursor::{Cursor, CursorError};
pub use event::{
    CkptPhase, Edge, Event, EventError, Kind, MAX_EVENT_BYTES, MAX_EXTRA, MAX_RECORD_BYTES, MAX_TEXT,
};
pub use json::{JsonError, Value};
pub use metrics::{MAX_METRICS, MAX_NAME_BYTES, Metrics, clip_name};
