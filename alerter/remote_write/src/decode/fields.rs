//! Reads the protobuf wire format: the fields of one message.

use super::malformed::{Accepted, Malformed};

/// Iterates over the fields of one message, in the order of its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    whole: &'a [u8],
    rest: &'a [u8],
    /// The name of the message, for errors.
    message: &'static str,
}

/// A field and its value, by its wire type.
#[derive(Debug)]
pub(super) struct Field<'a> {
    pub(super) number: u32,
    value: Value<'a>,
    message: &'static str,
}

#[derive(Debug)]
enum Value<'a> {
    Varint(u64),
    Fixed64(&'a [u8; 8]),
    Bytes(&'a [u8]),
    Fixed32,
}

impl<'a> Fields<'a> {
    #[inline]
    pub(super) fn new(bytes: &'a [u8], message: &'static str) -> Self {
        Self { whole: bytes, rest: bytes, message }
    }

    /// The number of bytes read so far.
    #[inline]
    pub(super) fn position(&self) -> usize {
        self.whole.len() - self.rest.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Skips fields while their key is this byte and their length fits one byte, and returns their
    /// number. A field beyond the end is left for [`Self::next`], which returns the error.
    #[inline]
    pub(super) fn skip_short(&mut self, key: u8) -> usize {
        let mut skipped = 0;
        while let [first, length @ 0..=0x7f, tail @ ..] = self.rest
            && *first == key
            && let Some(rest) = tail.get(usize::from(*length)..)
        {
            self.rest = rest;
            skipped += 1;
        }
        skipped
    }

    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<Field<'a>>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        if key < 8 || key > u64::from(u32::MAX) {
            return Err(Malformed::FieldNumber { message: self.message, key });
        }
        let number = (key >> 3) as u32;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(self.fixed()?),
            2 => Value::Bytes(self.bytes()?),
            5 => {
                let _: &[u8; 4] = self.fixed()?;
                Value::Fixed32
            }
            found => return Err(wire_type(self.message, number, found as u8, Accepted::NoGroup)),
        };
        Ok(Some(Field { number, value, message: self.message }))
    }

    #[inline]
    pub(super) fn varint(&mut self) -> Result<u64, Malformed> {
        match self.rest {
            [byte @ 0..=0x7f, rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            // The lengths of series and most references to symbols take this path.
            [low, high @ 0..=0x7f, rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(low & 0x7f) | u64::from(*high) << 7)
            }
            _ => {
                let (value, rest) = long_varint(self.rest, self.message)?;
                self.rest = rest;
                Ok(value)
            }
        }
    }

    #[inline]
    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.varint()?;
        let split = usize::try_from(length).ok().and_then(|length| self.rest.split_at_checked(length));
        let Some((bytes, rest)) = split else {
            return Err(Malformed::Truncated { message: self.message });
        };
        self.rest = rest;
        Ok(bytes)
    }

    #[inline]
    fn fixed<const N: usize>(&mut self) -> Result<&'a [u8; N], Malformed> {
        let Some((bytes, rest)) = self.rest.split_first_chunk() else {
            return Err(Malformed::Truncated { message: self.message });
        };
        self.rest = rest;
        Ok(bytes)
    }
}

impl<'a> Field<'a> {
    #[inline]
    pub(super) fn varint(&self) -> Result<u64, Malformed> {
        match self.value {
            Value::Varint(value) => Ok(value),
            _ => Err(self.wrong(Accepted::Varint)),
        }
    }

    #[inline]
    pub(super) fn double(&self) -> Result<f64, Malformed> {
        match self.value {
            Value::Fixed64(bytes) => Ok(f64::from_le_bytes(*bytes)),
            _ => Err(self.wrong(Accepted::Double)),
        }
    }

    #[inline]
    pub(super) fn bytes(&self) -> Result<&'a [u8], Malformed> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(self.wrong(Accepted::Bytes)),
        }
    }

    pub(super) fn text(&self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?)
            .map_err(|_| Malformed::Utf8 { message: self.message, field: self.number })
    }

    /// Calls a function for each value of a repeated number: one varint, or many that are packed
    /// into bytes.
    #[inline]
    pub(super) fn each_varint(
        &self,
        mut each: impl FnMut(u64) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        match self.value {
            Value::Varint(value) => each(value),
            Value::Bytes(bytes) => {
                let mut packed = Fields::new(bytes, self.message);
                while !packed.is_empty() {
                    each(packed.varint()?)?;
                }
                Ok(())
            }
            _ => Err(self.wrong(Accepted::VarintOrBytes)),
        }
    }

    #[cold]
    fn wrong(&self, accepted: Accepted) -> Malformed {
        let found = match self.value {
            Value::Varint(_) => 0,
            Value::Fixed64(_) => 1,
            Value::Bytes(_) => 2,
            Value::Fixed32 => 5,
        };
        wire_type(self.message, self.number, found, accepted)
    }
}

/// Reads a varint of any length, and returns the rest. It borrows no reader, so that the reader
/// stays in registers.
fn long_varint<'a>(mut bytes: &'a [u8], message: &'static str) -> Result<(u64, &'a [u8]), Malformed> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let Some((byte, rest)) = bytes.split_first() else { return Err(Malformed::Truncated { message }) };
        // Nine bytes hold 63 bits, so the tenth can hold one bit.
        if shift == 63 && *byte > 1 {
            break;
        }
        bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Ok((value, bytes));
        }
    }
    Err(Malformed::Varint { message })
}

#[cold]
fn wire_type(message: &'static str, field: u32, found: u8, accepted: Accepted) -> Malformed {
    Malformed::WireType { message, field, found, accepted }
}
