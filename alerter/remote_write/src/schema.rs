//! The two schemas for prost, which is the oracle of the tests.
//!
//! Histograms, exemplars and metadata are bytes here, because our decoder does not read them
//! either. So are symbols: only those that a series refers to must be text.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) timeseries: Vec<TimeSeries>,
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub(crate) metadata: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TimeSeries {
    #[prost(message, repeated, tag = "1")]
    pub(crate) labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) samples: Vec<Sample>,
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub(crate) exemplars: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "4")]
    pub(crate) histograms: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Label {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// A sample, the same in both versions.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sample {
    #[prost(double, tag = "1")]
    pub(crate) value: f64,
    #[prost(int64, tag = "2")]
    pub(crate) timestamp: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(bytes = "vec", repeated, tag = "4")]
    pub(crate) symbols: Vec<Vec<u8>>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) timeseries: Vec<TimeSeries2>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TimeSeries2 {
    #[prost(uint32, repeated, tag = "1")]
    pub(crate) labels_refs: Vec<u32>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) samples: Vec<Sample>,
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub(crate) histograms: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "4")]
    pub(crate) exemplars: Vec<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "5")]
    pub(crate) metadata: Option<Vec<u8>>,
}
