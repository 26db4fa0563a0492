//! Instances of a GPU that is partitioned (MIG).

use super::{Device, Error, call};

impl Device {
    /// Whether the GPU is partitioned now.
    pub fn mig_enabled(&self) -> Result<bool, Error> {
        let (mut current, mut pending) = (0, 0);
        call!(
            self.library(),
            self.at(),
            nvmlDeviceGetMigMode(self.handle(), &raw mut current, &raw mut pending)
        )?;
        Ok(current == 1)
    }

    /// How many compute instances the GPU can have; fewer may exist.
    pub fn mig_slots(&self) -> Result<u32, Error> {
        let mut count = 0;
        call!(self.library(), self.at(), nvmlDeviceGetMaxMigDeviceCount(self.handle(), &raw mut count))?;
        Ok(count)
    }

    /// A compute instance; [`None`] where a slot is empty.
    pub fn mig_device(&self, slot: u32) -> Result<Option<Device>, Error> {
        let mut handle = std::ptr::null_mut();
        let made = call!(
            self.library(),
            self.at(),
            nvmlDeviceGetMigDeviceHandleByIndex(self.handle(), slot, &raw mut handle)
        );
        match made {
            Ok(()) => Ok(Some(Device::new(self.nvml().clone(), handle, self.index()))),
            Err(error) if error.not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Of a MIG device: which GPU instance it belongs to.
    pub fn gpu_instance(&self) -> Result<u32, Error> {
        let mut id = 0;
        call!(self.library(), self.at(), nvmlDeviceGetGpuInstanceId(self.handle(), &raw mut id))?;
        Ok(id)
    }

    /// Of a MIG device: which compute instance of its GPU instance it is.
    pub fn compute_instance(&self) -> Result<u32, Error> {
        let mut id = 0;
        call!(self.library(), self.at(), nvmlDeviceGetComputeInstanceId(self.handle(), &raw mut id))?;
        Ok(id)
    }
}
