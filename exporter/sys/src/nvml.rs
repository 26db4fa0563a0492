//! NVML, the management library of the NVIDIA driver. It is loaded at run time, every call is
//! reported to a watch, and every answer is returned as the driver gave it.
//!
//! The exporter calls the library directly rather than through a wrapper, for three reasons. Each
//! call must be seen while it runs, because none has a time limit. Values of fields have scopes and
//! signed types. An older or newer driver lacks functions, which must cost only their own values.
//! The caller interprets an answer, and recognises numbers that mean "no value".
//!
//! Nothing here is `Send`: one thread opens the library, calls it, and closes it by dropping all
//! values of it.

mod device;
mod error;
mod fields;
mod gpm;
mod memory;
mod mig;
mod nvlink;
mod platform;
mod xid;

use std::ffi::{OsStr, c_char};
use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use nvml_wrapper_sys::bindings::NvmlLib;

pub use device::{Clock, Device, Fabric, Memory, Pci, Threshold};
pub use error::Error;
pub use fields::{ALL_LINKS, Ask, Number, field};
pub use gpm::{GpmSample, metric};
pub use memory::{EccLifetime, EccLocation, EccSeverity, RemapBanks, Remapped, Sram};
pub use nvlink::LinkError;
pub use platform::Platform;
pub use xid::{XidEvent, XidEvents};

/// The file name that the driver's package installs; the name without the number belongs to
/// development files.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Notified before and after every call, so that a call that never returns can be named.
pub trait Watch: fmt::Debug + Send + Sync {
    /// `function` is about to be called, for the GPU with this index if it concerns one GPU.
    fn begins(&self, function: &'static str, gpu: Option<u32>);
    /// The call has returned.
    fn ends(&self);
}

/// NVML, initialised. It is shut down and unloaded when this and every device and sample of it are
/// dropped.
#[derive(Debug, Clone)]
pub struct Nvml(Rc<Library>);

/// The loaded library.
struct Library {
    raw: NvmlLib,
    watch: Arc<dyn Watch>,
    initialised: bool,
}

/// Calls a function of the library, and notifies the watch before and after.
///
/// The arguments are those of the function that the bindings declare. Pointers must be to live
/// values of the declared types, and a handle must come from this library.
macro_rules! call {
    ($library:expr, $gpu:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let library: &$crate::nvml::Library = $library;
        match &library.raw.$function {
            Err(_) => Err($crate::nvml::Error::Missing(stringify!($function))),
            Ok(function) => {
                library.watch.begins(stringify!($function), $gpu);
                // SAFETY: the library exports the function with the signature of NVIDIA's header.
                // Handles belong to this library, which stays loaded and initialised while one
                // exists. Pointers are to values that live on.
                #[expect(unsafe_code, reason = "a function of a library that is loaded at run time")]
                let code = unsafe { function($($argument),*) };
                library.watch.ends();
                $crate::nvml::error::check(stringify!($function), code)
            }
        }
    }};
}
use call;

impl Nvml {
    /// Loads the library, from `path` or where the loader finds it, and initialises it. It does not
    /// touch a GPU.
    pub fn open(path: Option<&Path>, watch: Arc<dyn Watch>) -> Result<Self, Error> {
        let name: &OsStr = path.map_or(LIBRARY.as_ref(), Path::as_os_str);
        watch.begins("dlopen", None);
        // SAFETY: the operator names the library, or the loader finds the one of the driver; its
        // initialisers are the driver's.
        #[expect(unsafe_code, reason = "loads a library")]
        let raw = unsafe { NvmlLib::new(name) };
        watch.ends();
        let raw = raw.map_err(|e| Error::Load(e.to_string()))?;
        let mut library = Library { raw, watch, initialised: false };
        match call!(&library, None, nvmlInit_v2()) {
            Err(error) if error.mismatch() => return Err(Error::Mismatch { library: library.version() }),
            opened => opened?,
        }
        library.initialised = true;
        Ok(Self(Rc::new(library)))
    }

    pub fn driver_version(&self) -> Result<String, Error> {
        text(|buffer, len| call!(&self.0, None, nvmlSystemGetDriverVersion(buffer, len)))
    }

    /// The CUDA version of the driver: 1000 x major + 10 x minor.
    pub fn cuda_version(&self) -> Result<i32, Error> {
        let mut version = 0;
        call!(&self.0, None, nvmlSystemGetCudaDriverVersion_v2(&raw mut version))?;
        Ok(version)
    }

    pub fn device_count(&self) -> Result<u32, Error> {
        let mut count = 0;
        call!(&self.0, None, nvmlDeviceGetCount_v2(&raw mut count))?;
        Ok(count)
    }

    /// Opens a GPU. It initialises the GPU if no other process uses it, which takes seconds.
    pub fn device(&self, index: u32) -> Result<Device, Error> {
        let mut handle = std::ptr::null_mut();
        call!(&self.0, Some(index), nvmlDeviceGetHandleByIndex_v2(index, &raw mut handle))?;
        Ok(Device::new(self.clone(), handle, index))
    }
}

impl Library {
    /// The driver version of the library: the only query that works before initialisation.
    fn version(&self) -> String {
        let version = text(|buffer, len| call!(self, None, nvmlSystemGetNVMLVersion(buffer, len)));
        let version = version.unwrap_or_else(|_| "of unknown version".into());
        // The version of the interface precedes the driver version.
        version
            .split_once('.')
            .filter(|(_, rest)| rest.contains('.'))
            .map_or(version.clone(), |(_, rest)| rest.into())
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("initialised", &self.initialised).finish_non_exhaustive()
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if self.initialised {
            // The driver may be unloaded already, and nothing can handle the error.
            let _ = call!(self, None, nvmlShutdown());
        }
    }
}

/// The size of a string buffer in bytes; no string of NVML is longer.
const TEXT: usize = 96;

/// The string that `fill` writes into a buffer.
fn text(fill: impl FnOnce(*mut c_char, u32) -> Result<(), Error>) -> Result<String, Error> {
    let mut buffer = [0 as c_char; TEXT];
    // One byte less than the buffer has, so that the string always ends with a NUL.
    fill(buffer.as_mut_ptr(), TEXT as u32 - 1)?;
    Ok(string(&buffer))
}

/// The characters before the first NUL, without surrounding blanks.
fn string(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().take_while(|c| **c != 0).map(|c| c.cast_unsigned()).collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// The version word of a structure: its size, with the version number in the top byte.
const fn versioned<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | (number << 24)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvml_wrapper_sys::bindings as sys;

    #[derive(Debug)]
    struct Quiet;

    impl Watch for Quiet {
        fn begins(&self, _: &'static str, _: Option<u32>) {}
        fn ends(&self) {}
    }

    #[test]
    fn a_library_that_is_not_there_is_an_error_that_names_it() {
        let error = Nvml::open(Some(Path::new("/nonexistent/libnvidia-ml.so")), Arc::new(Quiet)).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/libnvidia-ml.so"), "{error}");
        assert!(!error.unsupported() && !error.lost() && !error.down());
    }

    #[test]
    fn structures_have_the_sizes_that_the_driver_checks() {
        for (version, size) in [
            (versioned::<sys::nvmlMemory_v2_t>(2), 40),
            (versioned::<sys::nvmlEccSramErrorStatus_v1_t>(1), 104),
            (versioned::<sys::nvmlGpuFabricInfo_v3_t>(3), 40),
            (versioned::<sys::nvmlMarginTemperature_v1_t>(1), 8),
            (versioned::<sys::nvmlPlatformInfo_v2_t>(2), 44),
        ] {
            assert_eq!(version & 0xff_ffff, size);
        }
        assert_eq!(versioned::<sys::nvmlMemory_v2_t>(2), 0x0200_0028);
    }

    #[test]
    fn text_ends_at_its_nul_or_with_the_buffer() {
        let with = |s: &str| s.bytes().map(|b| b as c_char).collect::<Vec<_>>();
        assert_eq!(string(&with("H100\0 rubbish")), "H100");
        assert_eq!(string(&with("no end")), "no end");
        assert_eq!(string(&[]), "");
    }
}
