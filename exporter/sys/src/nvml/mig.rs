//! Instances of a partitioned GPU (MIG).

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

    /// The most compute instances that the GPU can have; fewer may exist.
    pub fn mig_slots(&self) -> Result<u32, Error> {
        let mut count = 0;
        call!(self.library(), self.at(), nvmlDeviceGetMaxMigDeviceCount(self.handle(), &raw mut count))?;
        Ok(count)
    }

    /// Returns a compute instance; [`None`] if the slot is empty.
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

    /// The id of the GPU instance that a MIG device belongs to.
    pub fn gpu_instance(&self) -> Result<u32, Error> {
        let mut id = 0;
        call!(self.library(), self.at(), nvmlDeviceGetGpuInstanceId(self.handle(), &raw mut id))?;
        Ok(id)
    }

    /// The id of a MIG device in its GPU instance.
    pub fn compute_instance(&self) -> Result<u32, Error> {
        let mut id = 0;
        call!(self.library(), self.at(), nvmlDeviceGetComputeInstanceId(self.handle(), &raw mut id))?;
        Ok(id)
    }
}
