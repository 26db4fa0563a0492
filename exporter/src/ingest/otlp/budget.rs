//! Limits what a request may contain, before any of it is decoded.
//!
//! An empty metric takes two bytes of protobuf and a hundred times as much once decoded; compressed
//! it takes almost nothing. So the messages are counted in the encoded body, and a request with too
//! many is refused as a whole.

use stepwatch_formats::protobuf::Message;

use super::{Refused, Signal};

/// The most messages of one request: metrics, points, attributes and their containers. A rank that
/// pushes a hundred metrics of ten points with three attributes each sends about four thousand.
const MAX_MESSAGES: usize = 32_768;
/// The most objects, lists, keys and values of one request in JSON.
const MAX_VALUES: usize = 262_144;

/// A message whose fields hold messages that are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageKind {
    Request(Signal),
    ResourceMetrics,
    ScopeMetrics,
    Metric,
    /// A gauge, sum, histogram or summary. The number is the field of its points' attributes.
    Data(u32),
    Point(u32),
    ResourceSpans,
    ScopeSpans,
    Span,
    Resource,
    SpanEvent,
    Attribute,
}

impl MessageKind {
    /// The kind of message in field `tag`, by opentelemetry-proto 1.x; `None` if it is not a
    /// message, or is skipped.
    fn child(self, tag: u32) -> Option<Self> {
        Some(match (self, tag) {
            (Self::Request(Signal::Metrics), 1) => Self::ResourceMetrics,
            (Self::Request(Signal::Traces), 1) => Self::ResourceSpans,
            (Self::ResourceMetrics | Self::ResourceSpans, 1) => Self::Resource,
            (Self::ResourceMetrics, 2) => Self::ScopeMetrics,
            (Self::ScopeMetrics, 2) => Self::Metric,
            (Self::Metric, 5 | 7 | 11) => Self::Data(7),
            (Self::Metric, 9) => Self::Data(9),
            (Self::Metric, 10) => Self::Data(1),
            (Self::Data(attributes), 1) => Self::Point(attributes),
            (Self::ResourceSpans, 2) => Self::ScopeSpans,
            (Self::ScopeSpans, 2) => Self::Span,
            (Self::Span, 11) => Self::SpanEvent,
            (Self::Resource, 1) | (Self::SpanEvent, 3) => Self::Attribute,
            (Self::Point(attributes), tag) if tag == attributes => Self::Attribute,
            _ => return None,
        })
    }
}

pub(super) fn of_protobuf(signal: Signal, body: &[u8]) -> Result<(), Refused> {
    let mut left = MAX_MESSAGES;
    count(MessageKind::Request(signal), body, &mut left)
}

/// Subtracts the messages below `body` from `left`. The recursion is as deep as the kinds are
/// nested.
fn count(kind: MessageKind, body: &[u8], left: &mut usize) -> Result<(), Refused> {
    for field in Message::new(body) {
        let (tag, value) = field.map_err(|_| Refused::Malformed("not protobuf of OTLP".to_owned()))?;
        let Some((child, bytes)) = kind.child(tag).zip(value.bytes()) else { continue };
        *left = left.checked_sub(1).ok_or_else(|| {
            Refused::TooLarge(format!("a request has at most {MAX_MESSAGES} metrics, points and attributes"))
        })?;
        if child != MessageKind::Attribute {
            count(child, bytes, left)?;
        }
    }
    Ok(())
}

/// Counts values: each one but the first follows one of these characters, outside of text.
pub(super) fn of_json(body: &[u8]) -> Result<(), Refused> {
    let mut left = MAX_VALUES;
    let (mut text, mut escaped) = (false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if text => escaped = true,
            b'"' => text = !text,
            b'{' | b'[' | b',' | b':' if !text => {
                left = left.checked_sub(1).ok_or_else(|| {
                    Refused::TooLarge(format!("a request has at most {MAX_VALUES} keys and values"))
                })?;
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::super::proto::{
        AnyValue, Exponential, ExponentialPoint, Gauge, Histogram, HistogramPoint, KeyValue, Metric,
        MetricsRequest, NumberPoint, Resource, ResourceMetrics, ResourceSpans, ScopeMetrics, ScopeSpans,
        Span, SpanEvent, Sum, Summary, SummaryPoint, TraceRequest,
    };
    use super::*;

    fn used(signal: Signal, body: &[u8]) -> usize {
        let mut left = MAX_MESSAGES;
        count(MessageKind::Request(signal), body, &mut left).unwrap();
        MAX_MESSAGES - left
    }

    fn attributes(n: usize) -> Vec<KeyValue> {
        vec![KeyValue { key: "rank".into(), value: Some(AnyValue::default()) }; n]
    }

    #[test]
    fn every_message_that_is_decoded_is_counted() {
        let metric = Metric {
            gauge: Some(Gauge {
                data_points: vec![NumberPoint { attributes: attributes(2), ..Default::default() }],
            }),
            sum: Some(Sum { data_points: vec![NumberPoint::default()], ..Default::default() }),
            histogram: Some(Histogram {
                data_points: vec![HistogramPoint { attributes: attributes(3), ..Default::default() }],
                ..Default::default()
            }),
            exponential: Some(Exponential {
                data_points: vec![ExponentialPoint { attributes: attributes(4), ..Default::default() }],
                ..Default::default()
            }),
            summary: Some(Summary {
                data_points: vec![SummaryPoint { attributes: attributes(5), ..Default::default() }],
            }),
            ..Default::default()
        };
        let scope_metrics = vec![ScopeMetrics { metrics: vec![metric] }];
        let resource = Some(Resource { attributes: attributes(6) });
        let request = MetricsRequest { resource_metrics: vec![ResourceMetrics { resource, scope_metrics }] };
        // Request's child, resource, scope, metric; five kinds of data with a point each;
        // attributes.
        assert_eq!(used(Signal::Metrics, &request.encode_to_vec()), 4 + 2 * 5 + (2 + 3 + 4 + 5 + 6));

        let events = vec![SpanEvent { attributes: attributes(7), ..Default::default() }];
        let scope_spans = vec![ScopeSpans { spans: vec![Span { events }] }];
        let resource = Some(Resource { attributes: attributes(1) });
        let request = TraceRequest { resource_spans: vec![ResourceSpans { resource, scope_spans }] };
        assert_eq!(used(Signal::Traces, &request.encode_to_vec()), 5 + 7 + 1);
    }

    #[test]
    fn too_many_are_refused_before_they_take_memory() {
        let empty = |n: usize| {
            let metrics = [0x12, 0x00].repeat(n);
            let scope = [&[0x12][..], &varint(metrics.len()), &metrics].concat();
            [&[0x0a][..], &varint(scope.len()), &scope].concat()
        };
        assert_eq!(of_protobuf(Signal::Metrics, &empty(MAX_MESSAGES - 2)), Ok(()));
        let refused = of_protobuf(Signal::Metrics, &empty(MAX_MESSAGES - 1));
        assert!(matches!(refused, Err(Refused::TooLarge(_))), "{refused:?}");
        let list = format!("[{}]", "{},".repeat(MAX_VALUES));
        assert!(matches!(of_json(list.as_bytes()), Err(Refused::TooLarge(_))));
        let text = format!(r#"{{"a":"{}\"{}"}}"#, "{[,:".repeat(MAX_VALUES), ",".repeat(MAX_VALUES));
        assert_eq!(of_json(text.as_bytes()), Ok(()), "what stands in text is no value");
    }

    fn varint(mut n: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while n >= 0x80 {
            out.push(n as u8 | 0x80);
            n >>= 7;
        }
        out.push(n as u8);
        out
    }

    proptest! {
        #[test]
        fn whatever_comes_is_counted_or_refused(body in proptest::collection::vec(any::<u8>(), 0..256)) {
            for signal in [Signal::Metrics, Signal::Traces] {
                let counted = of_protobuf(signal, &body);
                prop_assert!(!matches!(counted, Err(Refused::TooLarge(_))));
            }
            prop_assert_eq!(of_json(&body), Ok(()));
        }
    }
}
