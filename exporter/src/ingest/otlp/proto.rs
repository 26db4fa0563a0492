//! The messages of OpenTelemetry, as far as they are read: metrics, and the events of spans.
//!
//! Field numbers are those of opentelemetry-proto 1.x, whose compatibility promise covers them.
//! Fields that are not listed are skipped. The same types read the JSON form, whose names are the
//! protobuf ones in camel case.

use std::fmt;

use prost::{Message, Oneof};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MetricsRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
pub(super) struct ScopeMetrics {
    #[prost(message, repeated, tag = "2")]
    pub(super) metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
pub(super) struct Metric {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "3")]
    pub(super) unit: String,
    #[prost(message, optional, tag = "5")]
    pub(super) gauge: Option<Gauge>,
    #[prost(message, optional, tag = "7")]
    pub(super) sum: Option<Sum>,
    #[prost(message, optional, tag = "9")]
    pub(super) histogram: Option<Histogram>,
    #[prost(message, optional, tag = "10")]
    #[serde(rename = "exponentialHistogram")]
    pub(super) exponential: Option<Exponential>,
    #[prost(message, optional, tag = "11")]
    pub(super) summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Gauge {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<NumberPoint>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Sum {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<NumberPoint>,
    #[prost(int32, tag = "2")]
    pub(super) aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    pub(super) is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Histogram {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<HistogramPoint>,
    #[prost(int32, tag = "2")]
    pub(super) aggregation_temporality: i32,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Exponential {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<ExponentialPoint>,
    #[prost(int32, tag = "2")]
    pub(super) aggregation_temporality: i32,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<SummaryPoint>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NumberPoint {
    #[prost(message, repeated, tag = "7")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    #[serde(deserialize_with = "u64_of_text")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    #[serde(deserialize_with = "u64_of_text")]
    pub(super) time_unix_nano: u64,
    #[prost(double, optional, tag = "4")]
    #[serde(deserialize_with = "f64_of_text")]
    pub(super) as_double: Option<f64>,
    #[prost(sfixed64, optional, tag = "6")]
    #[serde(deserialize_with = "i64_of_text")]
    pub(super) as_int: Option<i64>,
    #[prost(uint32, tag = "8")]
    pub(super) flags: u32,
}

/// A point of a histogram, without its buckets.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct HistogramPoint {
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    #[serde(deserialize_with = "u64_of_text")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    #[serde(deserialize_with = "u64_of_text")]
    pub(super) time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    #[serde(deserialize_with = "u64_of_text")]
    pub(super) count: u64,
    #[prost(double, optional, tag = "5")]
    #[serde(deserialize_with = "f64_of_text")]
    pub(super) sum: Option<f64>,
    #[prost(uint32, tag = "10")]
    pub(super) flags: u32,
}

/// A point of an exponential histogram, without its buckets.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ExponentialPoint {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    #[serde(deserialize_with = "u64_of_text")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    #[serde(deserialize_with = "u64_of_text")]
    pub(super) time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    #[serde(deserialize_with = "u64_of_text")]
    pub(super) count: u64,
    #[prost(double, optional, tag = "5")]
    #[serde(deserialize_with = "f64_of_text")]
    pub(super) sum: Option<f64>,
    #[prost(uint32, tag = "10")]
    pub(super) flags: u32,
}

/// A point of a summary, without its quantiles.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SummaryPoint {
    #[prost(message, repeated, tag = "7")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    #[serde(deserialize_with = "u64_of_text")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    #[serde(deserialize_with = "u64_of_text")]
    pub(super) time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    #[serde(deserialize_with = "u64_of_text")]
    pub(super) count: u64,
    #[prost(double, optional, tag = "5")]
    #[serde(deserialize_with = "f64_of_text")]
    pub(super) sum: Option<f64>,
    #[prost(uint32, tag = "8")]
    pub(super) flags: u32,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
pub(super) struct AnyValue {
    #[prost(oneof = "Any", tags = "1, 2, 3, 4")]
    #[serde(flatten)]
    pub(super) value: Option<Any>,
}

#[derive(Clone, PartialEq, Oneof, Deserialize)]
pub(super) enum Any {
    #[prost(string, tag = "1")]
    #[serde(rename = "stringValue")]
    Text(String),
    #[prost(bool, tag = "2")]
    #[serde(rename = "boolValue")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    #[serde(rename = "intValue", deserialize_with = "integer")]
    Int(i64),
    #[prost(double, tag = "4")]
    #[serde(rename = "doubleValue", deserialize_with = "stepwatch_wire::num::any::deserialize")]
    Double(f64),
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct TraceRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
pub(super) struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    pub(super) spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
pub(super) struct Span {
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<SpanEvent>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SpanEvent {
    #[prost(fixed64, tag = "1")]
    #[serde(deserialize_with = "u64_of_text")]
    pub(super) time_unix_nano: u64,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) attributes: Vec<KeyValue>,
}

/// The response to both requests. It is empty if nothing was rejected.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

/// `google.rpc.Status`, the body of an error.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

/// The aggregation temporality of a point that covers only the time since the previous one.
pub(super) const DELTA: i32 = 1;
/// The flag of a point without a value.
pub(super) const NO_RECORDED_VALUE: u32 = 1;

/// The value of an attribute.
pub(super) fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Any> {
    attributes.iter().find(|a| a.key == key)?.value.as_ref()?.value.as_ref()
}

impl Any {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text.trim()).filter(|t| !t.is_empty()),
            _ => None,
        }
    }

    /// The value as a number. Attributes from the environment can only be text.
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Int(n) => Some(*n as f64),
            Self::Double(v) => Some(*v),
            Self::Text(text) => stepwatch_wire::num::parse(text),
            Self::Bool(_) => None,
        }
    }
}

impl fmt::Display for Any {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Bool(b) => b.fmt(f),
            Self::Int(n) => n.fmt(f),
            Self::Double(v) => v.fmt(f),
        }
    }
}

/// An integer in protobuf's JSON, which writes 64-bit ones as text and reads both forms.
struct Integer;

impl Visitor<'_> for Integer {
    type Value = i128;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer, or one as text")
    }

    fn visit_i64<E: Error>(self, v: i64) -> Result<i128, E> {
        Ok(v.into())
    }

    fn visit_u64<E: Error>(self, v: u64) -> Result<i128, E> {
        Ok(v.into())
    }

    fn visit_str<E: Error>(self, v: &str) -> Result<i128, E> {
        v.parse().map_err(|_| E::invalid_value(serde::de::Unexpected::Str(v), &self))
    }
}

fn wide<'de, D: Deserializer<'de>, T: TryFrom<i128>>(d: D) -> Result<T, D::Error> {
    let wide = d.deserialize_any(Integer)?;
    T::try_from(wide).map_err(|_| D::Error::custom("an integer out of range"))
}

fn integer<'de, D: Deserializer<'de>>(d: D) -> Result<i64, D::Error> {
    wide(d)
}

fn u64_of_text<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    wide(d)
}

fn i64_of_text<'de, D: Deserializer<'de>>(d: D) -> Result<Option<i64>, D::Error> {
    wide(d).map(Some)
}

fn f64_of_text<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    stepwatch_wire::num::any::deserialize(d).map(Some)
}
