//! Errors of NVML.

use nvml_wrapper_sys::bindings as sys;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("cannot load NVML: {0}")]
    Load(String),
    #[error("this version of NVML has no {0}")]
    Missing(&'static str),
    #[error("{function}: {}", describe(*code))]
    Code { function: &'static str, code: u32 },
    /// No new process can use a GPU: the driver was replaced on disk but not in the kernel, or the
    /// other way round.
    #[error("{}, {library}", describe(sys::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH))]
    Mismatch { library: String },
}

const UNSUPPORTED: &[u32] = &[
    // Returned for a memory type, a link or a sensor that this GPU does not have.
    sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT,
    sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
    sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION,
    sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND,
    sys::nvmlReturn_enum_NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    sys::nvmlReturn_enum_NVML_ERROR_DEPRECATED,
];

/// The codes that an unusable GPU may return, with the names that NVML gives them.
const NAMES: &[(u32, &str)] = &[
    (sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED, "uninitialized"),
    (sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT, "invalid_argument"),
    (sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED, "not_supported"),
    (sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION, "no_permission"),
    (sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND, "not_found"),
    (sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_POWER, "insufficient_power"),
    (sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED, "driver_not_loaded"),
    (sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT, "timeout"),
    (sys::nvmlReturn_enum_NVML_ERROR_IRQ_ISSUE, "irq_issue"),
    (sys::nvmlReturn_enum_NVML_ERROR_CORRUPTED_INFOROM, "corrupted_inforom"),
    (sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST, "gpu_is_lost"),
    (sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED, "reset_required"),
    (sys::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM, "operating_system"),
    (sys::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH, "lib_rm_version_mismatch"),
    (sys::nvmlReturn_enum_NVML_ERROR_IN_USE, "in_use"),
    (sys::nvmlReturn_enum_NVML_ERROR_MEMORY, "memory"),
    (sys::nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND, "gpu_not_found"),
    (sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN, "unknown"),
];

impl Error {
    /// The driver, the GPU or its mode does not support this, and a retry does not help.
    pub fn unsupported(&self) -> bool {
        match self {
            Self::Missing(_) => true,
            Self::Load(_) | Self::Mismatch { .. } => false,
            Self::Code { .. } => self.is(UNSUPPORTED),
        }
    }

    /// The library does not export the function; no call was made.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing(_))
    }

    /// The GPU no longer answers on its bus.
    pub fn lost(&self) -> bool {
        self.is(&[sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST, sys::nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND])
    }

    /// This version of the library does not have the function.
    pub(super) fn missing(&self) -> bool {
        matches!(self, Self::Missing(_)) || self.is(&[sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND])
    }

    /// The function, if the driver denies its answer to this user.
    pub fn no_permission(&self) -> Option<&'static str> {
        match self {
            Self::Code { function, code: sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION } => Some(*function),
            _ => None,
        }
    }

    /// The GPU exists but belongs to others: this container or control group may not open its
    /// device.
    pub fn not_ours(&self) -> bool {
        self.is(&[
            sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION,
            sys::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM,
        ])
    }

    /// The name of the error, in lower case: `reset_required`.
    pub fn name(&self) -> String {
        match self {
            Self::Load(_) => "library_not_found".into(),
            Self::Missing(_) => "function_not_found".into(),
            Self::Mismatch { .. } => "lib_rm_version_mismatch".into(),
            Self::Code { code, .. } => {
                let known = NAMES.iter().find(|(number, _)| number == code);
                known.map_or_else(|| format!("error_{code}"), |(_, name)| (*name).to_owned())
            }
        }
    }

    /// The GPU does nothing until it is reset.
    pub fn needs_reset(&self) -> bool {
        self.is(&[sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED])
    }

    /// NVML has to be opened again: the driver was unloaded or replaced.
    pub fn down(&self) -> bool {
        self.is(&[
            sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED,
            sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED,
            sys::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        ])
    }

    pub fn driver_not_loaded(&self) -> bool {
        self.is(&[sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED])
    }

    pub(super) fn mismatch(&self) -> bool {
        self.is(&[sys::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH])
    }

    pub(super) fn not_found(&self) -> bool {
        self.is(&[sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND])
    }

    pub(super) fn timed_out(&self) -> bool {
        self.is(&[sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT])
    }

    pub(super) fn too_small(&self) -> bool {
        self.is(&[sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE])
    }

    fn is(&self, codes: &[u32]) -> bool {
        matches!(self, Self::Code { code, .. } if codes.contains(code))
    }
}

pub(super) fn check(function: &'static str, code: u32) -> Result<(), Error> {
    if code == sys::nvmlReturn_enum_NVML_SUCCESS { Ok(()) } else { Err(Error::Code { function, code }) }
}

fn describe(code: u32) -> String {
    let known = match code {
        sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED => "NVML is not initialised",
        sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT => "invalid argument",
        sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => "not supported",
        sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION => "no permission",
        sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND => "not found",
        sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE => "more than there is room for",
        sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_POWER => "a power cable is missing",
        sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED => "the NVIDIA driver is not loaded",
        sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT => "timed out",
        sys::nvmlReturn_enum_NVML_ERROR_IRQ_ISSUE => "the kernel found an interrupt problem with a GPU",
        sys::nvmlReturn_enum_NVML_ERROR_CORRUPTED_INFOROM => "the infoROM is corrupted",
        sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST => {
            "the GPU is lost: it fell off the bus or is inaccessible"
        }
        sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED => "the GPU needs a reset before it can be used again",
        sys::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM => "the operating system refuses the GPU",
        sys::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH => {
            "the driver that is loaded is of another version than its library"
        }
        sys::nvmlReturn_enum_NVML_ERROR_IN_USE => "the GPU is in use",
        sys::nvmlReturn_enum_NVML_ERROR_MEMORY => "out of memory",
        sys::nvmlReturn_enum_NVML_ERROR_NO_DATA => "no data",
        sys::nvmlReturn_enum_NVML_ERROR_NOT_READY => "not ready",
        sys::nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND => "no such GPU",
        sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN => "unknown error of the driver",
        code => return format!("error {code}"),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_one_consequence() {
        for code in (1..40).chain([999]) {
            let error = Error::Code { function: "nvmlDeviceGetUUID", code };
            let consequences = [error.unsupported(), error.lost(), error.needs_reset(), error.down()];
            assert!(consequences.iter().filter(|c| **c).count() <= 1, "{code}: {consequences:?}");
        }
        assert!(Error::Missing("nvmlDeviceGetUUID").unsupported());
    }

    #[test]
    fn it_reads_well() {
        let error = Error::Code { function: "nvmlInit_v2", code: 9 };
        assert_eq!(error.to_string(), "nvmlInit_v2: the NVIDIA driver is not loaded");
        let error = Error::Code { function: "nvmlInit_v2", code: 77 };
        assert_eq!(error.to_string(), "nvmlInit_v2: error 77");
        let error = Error::Mismatch { library: "550.54.15".into() };
        let text = "the driver that is loaded is of another version than its library, 550.54.15";
        assert_eq!((error.to_string().as_str(), error.unsupported(), error.down()), (text, false, false));
    }
}
