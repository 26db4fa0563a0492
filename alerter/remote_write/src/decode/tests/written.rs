//! Bodies that are encoded field by field, for cases that prost never writes.

use proptest::prelude::*;

/// A field: its number and its value.
#[derive(Debug, Clone)]
pub(super) enum Wire {
    Varint(u32, u64),
    Fixed64(u32, u64),
    Bytes(u32, Vec<u8>),
    Fixed32(u32, u32),
    Message(u32, Vec<Wire>),
    Group(u32),
}

pub(super) fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn write(fields: &[Wire]) -> Vec<u8> {
    let mut out = Vec::new();
    for field in fields {
        let key = |number: &u32, kind: u64, out: &mut Vec<u8>| varint(u64::from(*number) << 3 | kind, out);
        let mut bytes = |number: &u32, bytes: &[u8]| {
            key(number, 2, &mut out);
            varint(bytes.len() as u64, &mut out);
            out.extend_from_slice(bytes);
        };
        match field {
            Wire::Bytes(number, held) => bytes(number, held),
            Wire::Message(number, held) => bytes(number, &write(held)),
            Wire::Varint(number, value) => {
                key(number, 0, &mut out);
                varint(*value, &mut out);
            }
            Wire::Fixed64(number, value) => {
                key(number, 1, &mut out);
                out.extend_from_slice(&value.to_le_bytes());
            }
            Wire::Fixed32(number, value) => {
                key(number, 5, &mut out);
                out.extend_from_slice(&value.to_le_bytes());
            }
            Wire::Group(number) => {
                key(number, 3, &mut out);
                key(number, 4, &mut out);
            }
        }
    }
    out
}

/// Fields with small numbers that are mostly messages, so that many match a schema by chance.
pub(super) fn fields() -> impl Strategy<Value = Vec<Wire>> {
    let number = || prop_oneof![6 => 1u32..7, 1 => 7u32..40];
    let small = || prop_oneof![0u64..4, any::<u64>()];
    let leaf = prop_oneof![
        2 => (number(), small()).prop_map(|(number, value)| Wire::Varint(number, value)),
        2 => (number(), any::<u64>()).prop_map(|(number, value)| Wire::Fixed64(number, value)),
        3 => (number(), "[a-c]{0,3}").prop_map(|(number, text)| Wire::Bytes(number, text.into_bytes())),
        1 => (number(), proptest::collection::vec(0u8..4, 0..5)).prop_map(|(n, b)| Wire::Bytes(n, b)),
        1 => (number(), any::<u32>()).prop_map(|(number, value)| Wire::Fixed32(number, value)),
        1 => (7u32..40).prop_map(Wire::Group),
    ];
    let field = leaf.prop_recursive(3, 40, 5, move |inner| {
        (number(), proptest::collection::vec(inner, 0..5))
            .prop_map(|(number, fields)| Wire::Message(number, fields))
    });
    proptest::collection::vec(field, 0..6)
}
