//! NVLink by functions of its own, for drivers that have no fields for it.

use nvml_wrapper_sys::bindings as sys;

use super::device::numbers;
use super::{Device, Error, call};

numbers! {
    /// What is counted of links up to the fourth generation.
    LinkError {
        Replay = sys::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_REPLAY,
        Recovery = sys::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_RECOVERY,
        CrcFlit = sys::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_CRC_FLIT,
        CrcData = sys::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_CRC_DATA,
    }
}

impl Device {
    pub fn nvlink_active(&self, link: u32) -> Result<bool, Error> {
        let mut active = 0;
        call!(self.library(), self.at(), nvmlDeviceGetNvLinkState(self.handle(), link, &raw mut active))?;
        Ok(active == 1)
    }

    /// Whether a link leads to an NVSwitch; [`None`] if the driver cannot identify the other end.
    pub fn nvlink_to_switch(&self, link: u32) -> Result<Option<bool>, Error> {
        let mut kind = sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
        call!(
            self.library(),
            self.at(),
            nvmlDeviceGetNvLinkRemoteDeviceType(self.handle(), link, &raw mut kind)
        )?;
        Ok(match kind {
            sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH => Some(true),
            sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN => None,
            _ => Some(false),
        })
    }

    pub fn nvlink_errors(&self, link: u32, error: LinkError) -> Result<u64, Error> {
        let mut count = 0;
        call!(
            self.library(),
            self.at(),
            nvmlDeviceGetNvLinkErrorCounter(self.handle(), link, error.number(), &raw mut count)
        )?;
        Ok(count)
    }
}
