//! `GET /v1/stream`: every event of this node, in order, resumable, as an endless response of JSON
//! lines.
//!
//! Prometheus sees the value of a gauge at each scrape and misses a spike of one step in between.
//! The stream has every event: a bounded [`Ring`] in memory that any number of readers follow by
//! cursor. It is not a log: records that fall off the ring are lost, and a reader that requests
//! them gets a gap record with their number. Each sender has a share of it, so that a flood of one
//! user costs no other a record. A journal beside it lets it survive this process.

mod http;
mod journal;
mod lanes;
mod reader_limit;
mod ring;

pub use http::{StreamConfig, StreamState, routes};
pub use journal::Mark;
pub use ring::{Gathered, Limits, Read, Ring, Start};

use crate::family::Family;

pub static READERS: Family =
    Family::gauge("stepwatch_exporter_stream_readers", "", &[], "Readers that follow the stream now");
pub static RECORDS: Family =
    Family::counter("stepwatch_exporter_stream_records_total", "", &[], "Records published to the stream");
pub static EVICTED: Family = Family::counter(
    "stepwatch_exporter_stream_evicted_total",
    "",
    &[],
    "Records that were given up to make room, of the sender with the most",
);
pub static RING_RECORDS: Family =
    Family::gauge("stepwatch_exporter_stream_ring_records", "", &[], "Records in the ring");
pub static RING_BYTES: Family =
    Family::gauge("stepwatch_exporter_stream_ring_bytes", "bytes", &[], "Bytes of the records in the ring");
pub static CUT: Family = Family::counter(
    "stepwatch_exporter_stream_cut_total",
    "",
    &["reason"],
    "Readers that were cut off: slow ones that did not drain in time, evicted ones that made room for a reader with a password, a certificate or an address that followed before, refused ones over the limit of all readers or of one address",
);
pub static GAPS: Family = Family::counter(
    "stepwatch_exporter_stream_gaps_total",
    "",
    &[],
    "Times that a reader got a gap record because records after its cursor are lost",
);
pub static JOURNAL_FAILURES: Family = Family::counter(
    "stepwatch_exporter_stream_journal_failures_total",
    "",
    &[],
    "Times that the stream could not be kept for after a crash of this exporter, which may lose or repeat events now",
);

pub static FAMILIES: &[&Family] =
    &[&READERS, &RECORDS, &EVICTED, &RING_RECORDS, &RING_BYTES, &CUT, &GAPS, &JOURNAL_FAILURES];
