//! Field values: many numbers of one GPU in one call, each with its own scope, type and error.

use nvml_wrapper_sys::bindings as sys;

use super::error::check;
use super::{Device, Error, call};

/// The scope of a link field that means the sum over all links.
pub const ALL_LINKS: u32 = u32::MAX;

/// The numbers of the fields, as in the header of NVML 12.
pub mod field {
    pub use nvml_wrapper_sys::bindings::field_id::*;
}

/// A request for one field, with a link or sensor as its scope if the field has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ask {
    pub field: u32,
    pub scope: u32,
}

/// A value by its type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    Unsigned(u64),
    Signed(i64),
    Real(f64),
    /// A value type that this program does not know.
    Unknown(u32),
}

/// The most fields of one call, which limits how long the driver holds its lock.
const MAX_FIELDS: usize = 256;

const FUNCTION: &str = "nvmlDeviceGetFieldValues";

impl Ask {
    pub const fn unscoped(field: u32) -> Self {
        Self { field, scope: 0 }
    }

    pub const fn scoped(field: u32, scope: u32) -> Self {
        Self { field, scope }
    }

    fn request(self) -> sys::nvmlFieldValue_t {
        sys::nvmlFieldValue_st {
            fieldId: self.field,
            scopeId: self.scope,
            timestamp: 0,
            latencyUsec: 0,
            valueType: 0,
            // Kept until the driver overwrites it, so that an entry that the driver skips does not
            // read as zero.
            nvmlReturn: sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
            value: sys::nvmlValue_st { ullVal: 0 },
        }
    }
}

impl Device {
    /// Returns the values in the order of `asked`. Only the position counts, because a driver may
    /// change the field id in its answer.
    pub fn fields(&self, asked: &[Ask]) -> Result<Vec<Result<Number, Error>>, Error> {
        let mut values = Vec::with_capacity(asked.len());
        for asked in asked.chunks(MAX_FIELDS) {
            let mut entries: Vec<_> = asked.iter().map(|a| a.request()).collect();
            let count = entries.len() as i32;
            call!(
                self.library(),
                self.at(),
                nvmlDeviceGetFieldValues(self.handle(), count, entries.as_mut_ptr())
            )?;
            values.extend(entries.iter().map(|entry| {
                check(FUNCTION, entry.nvmlReturn)?;
                Ok(number(entry))
            }));
        }
        Ok(values)
    }
}

#[expect(unsafe_code, reason = "the type beside a union says which of its members is meant")]
fn number(entry: &sys::nvmlFieldValue_t) -> Number {
    // SAFETY: every member is a plain number, for which any bits are a value, and the union was
    // initialised whole before the call.
    let bits = unsafe { entry.value.ullVal };
    match entry.valueType {
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE => Number::Real(f64::from_bits(bits)),
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => Number::Unsigned((bits as u32).into()),
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG
        | sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => Number::Unsigned(bits),
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG => Number::Signed(bits.cast_signed()),
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => {
            Number::Signed((bits as u32).cast_signed().into())
        }
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => Number::Unsigned((bits as u16).into()),
        other => Number::Unknown(other),
    }
}

// The members of the union occupy its low bytes, and `unsigned long` is as long as `unsigned long
// long`.
const _: () = assert!(cfg!(all(target_endian = "little", target_pointer_width = "64")));

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: u32, value: sys::nvmlValue_t) -> sys::nvmlFieldValue_t {
        sys::nvmlFieldValue_st { valueType: kind, value, ..Ask::unscoped(0).request() }
    }

    #[test]
    fn each_type_is_read_as_what_it_is() {
        let union = |write: &dyn Fn(&mut sys::nvmlValue_t)| {
            let mut value = sys::nvmlValue_st { ullVal: u64::MAX };
            write(&mut value);
            value
        };
        for (kind, value, want) in [
            (0, union(&|v| v.dVal = -2.5), Number::Real(-2.5)),
            (1, union(&|v| v.uiVal = 7), Number::Unsigned(7)),
            (2, union(&|v| v.ulVal = 0x1_FFFF_FFFF), Number::Unsigned(0x1_FFFF_FFFF)),
            (3, union(&|v| v.ullVal = 1 << 40), Number::Unsigned(1 << 40)),
            (4, union(&|v| v.sllVal = -3), Number::Signed(-3)),
            (5, union(&|v| v.siVal = -8), Number::Signed(-8)),
            (6, union(&|v| v.usVal = 9), Number::Unsigned(9)),
            (7, union(&|v| v.ullVal = 9), Number::Unknown(7)),
        ] {
            assert_eq!(number(&entry(kind, value)), want);
        }
    }
}
