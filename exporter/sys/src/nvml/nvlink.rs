//! NVLink by functions of its own, of drivers that have no fields for it.

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
