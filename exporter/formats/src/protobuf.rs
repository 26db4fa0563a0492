//! The protobuf wire format, as far as the records of TensorBoard and W&B need it: fields of a
//! message, borrowed from the bytes.
//!
//! The few messages are read by field number where they are used. What is not asked for is passed
//! over by its length and never copied, so an image costs no more than its header.

/// The bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The content of a field; its meaning depends on the message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// Iterates over the fields of a message in the order they were written. Ends after the first
/// error.
#[derive(Debug, Clone)]
pub struct Message<'a> {
    rest: &'a [u8],
}

impl<'a> Message<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn field(&mut self) -> Option<(u32, Value<'a>)> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|n| *n > 0)?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(*self.take(8)?.first_chunk()?)),
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(len)?)
            }
            5 => Value::Fixed32(u32::from_le_bytes(*self.take(4)?.first_chunk()?)),
            // Groups were given up before the oldest file that can be met.
            _ => return None,
        };
        Some((number, value))
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for (i, byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[i + 1..];
                return Some(value);
            }
        }
        None
    }
}

impl<'a> Iterator for Message<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or(Malformed))
    }
}

impl<'a> Value<'a> {
    pub fn bytes(self) -> Option<&'a [u8]> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    pub fn text(self) -> Option<&'a str> {
        core::str::from_utf8(self.bytes()?).ok()
    }

    /// An `int32`, `int64` or enum: negative numbers are written as the varint of their two's
    /// complement.
    pub fn integer(self) -> Option<i64> {
        if let Self::Varint(v) = self { Some(v as i64) } else { None }
    }

    /// A `sint64`: the sign is in the last bit.
    pub fn zigzag(self) -> Option<i64> {
        if let Self::Varint(v) = self { Some((v >> 1) as i64 ^ -((v & 1) as i64)) } else { None }
    }

    pub fn double(self) -> Option<f64> {
        if let Self::Fixed64(v) = self { Some(f64::from_bits(v)) } else { None }
    }

    pub fn float(self) -> Option<f32> {
        if let Self::Fixed32(v) = self { Some(f32::from_bits(v)) } else { None }
    }
}

/// The element of a packed list that has exactly one.
pub fn sole_varint(list: &[u8]) -> Option<i64> {
    let mut list = Message::new(list);
    let v = list.varint()?;
    list.rest.is_empty().then_some(v as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Result<(u32, Value<'_>), Malformed>> {
        Message::new(bytes).collect()
    }

    #[test]
    fn every_wire_type() {
        let bytes = [
            0x08, 0x96, 0x01, // 1: 150
            0x11, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f, // 2: 1.5
            0x1a, 0x02, b'h', b'i', // 3: "hi"
            0x25, 0, 0, 0, 0x40, // 4: 2.0
            0x28, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, // 5: -1
        ];
        let fields: Vec<_> = read(&bytes).into_iter().map(Result::unwrap).collect();
        assert_eq!(fields[0], (1, Value::Varint(150)));
        assert_eq!(fields[1].1.double(), Some(1.5));
        assert_eq!(fields[2].1.text(), Some("hi"));
        assert_eq!(fields[3].1.float(), Some(2.0));
        assert_eq!(fields[4].1.integer(), Some(-1));
        assert_eq!([0, 1, 2, 3].map(|v| Value::Varint(v).zigzag().unwrap()), [0, -1, 1, -2]);
    }

    #[test]
    fn ends_at_the_first_mistake() {
        let endless = [0xff; 20];
        for bytes in [&[0x08][..], &[0x1a, 5, b'h'], &[0x0b], &[0x00, 0x01], &endless, &[0x11, 1, 2]] {
            assert_eq!(read(bytes), [Err(Malformed)], "{bytes:?}");
        }
        assert_eq!(read(&[0x08, 0x01, 0x0c]), [Ok((1, Value::Varint(1))), Err(Malformed)]);
        assert_eq!(read(&[]), []);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>) {
            let fields = read(&bytes);
            proptest::prop_assert!(fields.len() <= bytes.len());
        }
    }
}
