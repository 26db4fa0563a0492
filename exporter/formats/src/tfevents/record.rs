//! The messages in an event file: `Event`, `Summary`, `TensorProto`, as much of them as makes a
//! scalar.

use crate::protobuf::{self, Malformed, Message, Value};

/// `tensorflow.Event`.
#[derive(Debug)]
pub(super) struct Event<'a> {
    pub(super) step: i64,
    pub(super) wall_time: Option<f64>,
    pub(super) content: Content<'a>,
}

#[derive(Debug)]
pub(super) enum Content<'a> {
    /// `tensorflow.Summary`.
    Summary(&'a [u8]),
    /// A writer began anew.
    SessionStart,
    /// Version, graph, profile: nothing of a step.
    Other,
}

/// `Summary.Value`, if it may be a scalar.
#[derive(Debug, PartialEq)]
pub(super) struct Scalar<'a> {
    pub(super) tag: &'a str,
    pub(super) value: Option<f64>,
    /// By its metadata it is a histogram, a text or the like, whatever the value looks like.
    pub(super) other_plugin: bool,
}

const SESSION_START: i64 = 1;

pub(super) fn event(data: &[u8]) -> Result<Event<'_>, Malformed> {
    let mut event = Event { step: 0, wall_time: None, content: Content::Other };
    for field in Message::new(data) {
        match field? {
            (1, v) => event.wall_time = v.double().filter(|t| t.is_finite() && *t > 0.0),
            (2, v) => event.step = v.integer().ok_or(Malformed)?,
            (5, v) => event.content = Content::Summary(v.bytes().ok_or(Malformed)?),
            (7, v) => {
                for field in Message::new(v.bytes().ok_or(Malformed)?) {
                    if let (1, Value::Varint(status)) = field? {
                        if status as i64 == SESSION_START {
                            event.content = Content::SessionStart;
                        }
                    }
                }
            }
            _ => {}
        }
    }
    Ok(event)
}

/// The values of a summary.
pub(super) fn values(summary: &[u8]) -> impl Iterator<Item = Result<&[u8], Malformed>> {
    Message::new(summary).filter_map(|field| match field {
        Ok((1, v)) => Some(v.bytes().ok_or(Malformed)),
        Ok(_) => None,
        Err(e) => Some(Err(e)),
    })
}

/// `None` for images, histograms and what else is at once known to be no scalar.
pub(super) fn scalar(value: &[u8]) -> Result<Option<Scalar<'_>>, Malformed> {
    let mut tag = None;
    let mut number = None;
    let mut plugin = None;
    for field in Message::new(value) {
        match field? {
            (1, v) => tag = v.text(),
            (2, v) => number = v.float().map(shortest),
            (8, v) => number = tensor(v.bytes().ok_or(Malformed)?)?,
            (9, v) => plugin = plugin_name(v.bytes().ok_or(Malformed)?)?,
            _ => {}
        }
    }
    let Some(tag) = tag else { return Ok(None) };
    let other_plugin = plugin.is_some_and(|p| p != "scalars");
    Ok((number.is_some() || other_plugin).then_some(Scalar { tag, value: number, other_plugin }))
}

/// `SummaryMetadata.plugin_data.plugin_name`, if it has one.
fn plugin_name(metadata: &[u8]) -> Result<Option<&str>, Malformed> {
    let mut name = None;
    for field in Message::new(metadata) {
        if let (1, Value::Bytes(data)) = field? {
            for field in Message::new(data) {
                if let (1, v) = field? {
                    name = v.text().filter(|n| !n.is_empty());
                }
            }
        }
    }
    Ok(name)
}

/// `DataType` of TensorFlow.
const DT_FLOAT: i64 = 1;
const DT_DOUBLE: i64 = 2;
const DT_INT32: i64 = 3;
const DT_INT64: i64 = 9;
const DT_BFLOAT16: i64 = 14;
const DT_HALF: i64 = 19;

/// The number in a tensor that holds exactly one.
fn tensor(data: &[u8]) -> Result<Option<f64>, Malformed> {
    let mut dtype = 0;
    let mut single = true;
    let mut content: &[u8] = &[];
    let mut element = None;
    for field in Message::new(data) {
        match field? {
            (1, v) => dtype = v.integer().ok_or(Malformed)?,
            (2, v) => single = is_single(v.bytes().ok_or(Malformed)?)?,
            (4, v) => content = v.bytes().ok_or(Malformed)?,
            (number @ (5..=7 | 10 | 13), v) => {
                // A second element of any kind: not one number.
                single &= element.replace((number, v)).is_none();
            }
            _ => {}
        }
    }
    if !single {
        return Ok(None);
    }
    Ok(match element {
        Some((number, v)) => listed(dtype, number, v),
        None => packed(dtype, content),
    })
}

/// Whether a `TensorShapeProto` is of one element: no dimensions, or all of them 1.
fn is_single(shape: &[u8]) -> Result<bool, Malformed> {
    for field in Message::new(shape) {
        match field? {
            (2, v) => {
                let mut size = 0;
                for field in Message::new(v.bytes().ok_or(Malformed)?) {
                    if let (1, v) = field? {
                        size = v.integer().ok_or(Malformed)?;
                    }
                }
                if size != 1 {
                    return Ok(false);
                }
            }
            (3, v) if v.integer() == Some(1) => return Ok(false),
            _ => {}
        }
    }
    Ok(true)
}

/// One element of `float_val`, `double_val` and so on: alone, or as a packed list of one.
fn listed(dtype: i64, field: u32, v: Value<'_>) -> Option<f64> {
    let list = v.bytes();
    let varint = || list.map_or_else(|| v.integer(), protobuf::sole_varint);
    match (dtype, field) {
        (DT_FLOAT | DT_DOUBLE, 5 | 6) => list.map_or_else(|| unpacked(v), |list| packed(dtype, list)),
        (DT_INT32, 7) | (DT_INT64, 10) => varint().map(|n| n as f64),
        (DT_HALF | DT_BFLOAT16, 13) => {
            let bits = u16::try_from(varint()?).ok()?;
            packed(dtype, &bits.to_le_bytes())
        }
        _ => None,
    }
}

fn unpacked(v: Value<'_>) -> Option<f64> {
    v.float().map(shortest).or_else(|| v.double())
}

/// One number as it is in memory, little-endian.
fn packed(dtype: i64, b: &[u8]) -> Option<f64> {
    Some(match dtype {
        DT_FLOAT => shortest(f32::from_le_bytes(b.try_into().ok()?)),
        DT_DOUBLE => f64::from_le_bytes(b.try_into().ok()?),
        DT_INT32 => f64::from(i32::from_le_bytes(b.try_into().ok()?)),
        DT_INT64 => i64::from_le_bytes(b.try_into().ok()?) as f64,
        DT_HALF => half(u16::from_le_bytes(b.try_into().ok()?)),
        DT_BFLOAT16 => f64::from(f32::from_bits(u32::from(u16::from_le_bytes(b.try_into().ok()?)) << 16)),
        _ => return None,
    })
}

/// IEEE binary16.
fn half(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(bits >> 10 & 0x1f);
    let fraction = f64::from(bits & 0x3ff);
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        0x1f if fraction == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        e => (1024.0 + fraction) * 2f64.powi(e - 25),
    }
}

/// The decimal that a 32-bit float is printed as: `2.3` and not `2.299999952316284`.
fn shortest(v: f32) -> f64 {
    if v.fract() == 0.0 || !v.is_finite() {
        return f64::from(v);
    }
    v.to_string().parse().unwrap_or(f64::from(v))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves() {
        for (bits, want) in [(0x3c00, 1.0), (0xc000, -2.0), (0x0001, 2f64.powi(-24)), (0x7bff, 65504.0)] {
            assert_eq!(half(bits), want);
        }
        assert_eq!(half(0xfc00), f64::NEG_INFINITY);
        assert!(half(0x7e00).is_nan());
    }

    #[test]
    fn floats_are_the_decimal_that_was_logged() {
        for v in [2.3f32, 1e-7, 6.02e23, -0.1, 3.0, f32::MIN_POSITIVE] {
            assert_eq!(shortest(v) as f32, v);
        }
        assert_eq!((shortest(2.3), shortest(0.1)), (2.3, 0.1));
        assert!(shortest(f32::NAN).is_nan());
    }

    /// A tensor of one element in every way that it may be written.
    #[test]
    fn tensors_of_one_number() {
        let one = |dtype: u8, field: &[u8]| tensor(&[&[0x08, dtype], field].concat()).unwrap();
        let float = 2.5f32.to_le_bytes();
        let double = 2.5f64.to_le_bytes();
        assert_eq!(one(1, &[&[0x2a, 4], &float[..]].concat()), Some(2.5), "float_val, packed");
        assert_eq!(one(1, &[&[0x2d], &float[..]].concat()), Some(2.5), "float_val");
        assert_eq!(one(1, &[&[0x22, 4], &float[..]].concat()), Some(2.5), "tensor_content");
        assert_eq!(one(2, &[&[0x32, 8], &double[..]].concat()), Some(2.5), "double_val, packed");
        assert_eq!(one(2, &[&[0x31], &double[..]].concat()), Some(2.5), "double_val");
        assert_eq!(one(2, &[&[0x22, 8], &double[..]].concat()), Some(2.5), "tensor_content of doubles");
        assert_eq!(one(19, &[0x6a, 2, 0x80, 0x78]), Some(1.0), "half_val, packed");
        assert_eq!(one(14, &[0x22, 2, 0x80, 0x3f]), Some(1.0), "tensor_content of bfloat16");
        assert_eq!(one(3, &[0x3a, 1, 7]), Some(7.0), "int_val, packed");
        assert_eq!(one(9, &[0x50, 7]), Some(7.0), "int64_val");
        assert_eq!(one(1, &[&[0x2a, 8], &float[..], &float].concat()), None, "two of them");
        assert_eq!(one(3, &[0x3a, 2, 7, 7]), None);
        assert_eq!(one(1, &[]), None, "none");
        let shaped = |size: u8| one(1, &[&[0x12, 4, 0x12, 2, 0x08, size, 0x2a, 4], &float[..]].concat());
        assert_eq!((shaped(1), shaped(2), shaped(0)), (Some(2.5), None, None));
        assert_eq!(one(7, &[0x42, 2, b'h', b'i']), None, "text");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>) {
            let _ = event(&bytes);
            let _ = scalar(&bytes);
            let _ = tensor(&bytes);
        }
    }
}
