//! The values that cross the border: numbers in place of devices, and places to write answers to.

use std::ffi::c_char;

use crate::script::Code;

/// What a function came to.
pub(crate) type Answer<T = ()> = Result<T, Code>;

/// A device: an opaque pointer to the program, here a number that identifies it, and since which
/// initialisation it is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Device(usize);

impl Device {
    const PART: u32 = 12;
    const MASK: usize = (1 << Self::PART) - 1;

    pub(crate) fn new(generation: u32, gpu: usize, instance: Option<usize>) -> Self {
        let instance = instance.map_or(0, |i| i + 1);
        Self((generation as usize) << (2 * Self::PART) | instance << Self::PART | (gpu + 1))
    }

    pub(crate) fn gpu(self) -> Option<usize> {
        (self.0 & Self::MASK).checked_sub(1)
    }

    pub(crate) fn instance(self) -> Option<usize> {
        (self.0 >> Self::PART & Self::MASK).checked_sub(1)
    }

    /// What the program takes it for.
    pub(crate) fn pointer(self) -> nvml_wrapper_sys::bindings::nvmlDevice_t {
        std::ptr::without_provenance_mut(self.0)
    }

    pub(crate) fn is_of(self, generation: u32) -> bool {
        self.0 >> (2 * Self::PART) == generation as usize
    }
}

/// A place of the program's for a `T`, or for an array of them.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The same place for a structure that begins the same.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    pub(crate) fn set(self, value: T) -> Answer {
        self.edit(|place| *place = value)
    }

    pub(crate) fn get(self) -> Answer<T> {
        let mut found = None;
        self.edit(|place| found = Some(*place))?;
        found.ok_or(Code::InvalidArgument)
    }

    pub(crate) fn edit(self, write: impl FnOnce(&mut T)) -> Answer {
        // SAFETY: a program that calls NVML promises that what it passes is null or points to a `T`
        // that is its own.
        let place = unsafe { self.0.as_mut() }.ok_or(Code::InvalidArgument)?;
        write(place);
        Ok(())
    }

    /// The first `len` of an array.
    pub(crate) fn slice<'a>(self, len: usize) -> Answer<&'a mut [T]> {
        if self.is_null() {
            return Err(Code::InvalidArgument);
        }
        // SAFETY: the program guarantees that there is room for so many, and that the array is its
        // own.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0, len) })
    }
}

impl Out<c_char> {
    /// A text with its end into `room` bytes.
    pub(crate) fn text(self, room: u32, text: &str) -> Answer {
        if text.len() >= room as usize {
            return Err(Code::InsufficientSize);
        }
        copy(self.slice(text.len() + 1)?, text);
        Ok(())
    }

    /// The text that the program passes.
    pub(crate) fn read(self) -> Answer<String> {
        if self.is_null() {
            return Err(Code::InvalidArgument);
        }
        // SAFETY: the program promises a text that ends with a zero.
        let text = unsafe { std::ffi::CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// As much of `text` as there is room for, and the end.
pub(crate) fn copy(room: &mut [c_char], text: &str) {
    let bytes = text.bytes().take(room.len().saturating_sub(1)).chain([0]);
    room.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte as c_char);
}

/// The `version` that a structure must bear.
pub(crate) const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}
