//! XID errors as NVML reports them, for nodes whose kernel log cannot be read.

use nvml_wrapper_sys::bindings as sys;

use super::{Device, Error, Nvml, call};

/// Subscribes to the XID errors of GPUs.
#[derive(Debug)]
pub struct XidEvents {
    nvml: Nvml,
    set: sys::nvmlEventSet_t,
    /// The handles of the watched GPUs, with their indices.
    watched: Vec<(sys::nvmlDevice_t, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XidEvent {
    /// The index of the GPU, if it is watched.
    pub gpu: Option<u32>,
    pub xid: u64,
    /// The GPU instance, on a partitioned GPU.
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
}

impl XidEvents {
    pub fn new(nvml: &Nvml) -> Result<Self, Error> {
        let mut set = std::ptr::null_mut();
        call!(&nvml.0, None, nvmlEventSetCreate(&raw mut set))?;
        Ok(Self { nvml: nvml.clone(), set, watched: Vec::new() })
    }

    pub fn watch(&mut self, device: &Device) -> Result<(), Error> {
        let kinds = u64::from(sys::nvmlEventTypeXidCriticalError);
        call!(device.library(), device.at(), nvmlDeviceRegisterEvents(device.handle(), kinds, self.set))?;
        self.watched.push((device.handle(), device.index()));
        Ok(())
    }

    /// Returns an event that has already arrived; never waits.
    pub fn poll(&mut self) -> Result<Option<XidEvent>, Error> {
        let mut data = sys::nvmlEventData_st {
            device: std::ptr::null_mut(),
            eventType: 0,
            eventData: 0,
            gpuInstanceId: u32::MAX,
            computeInstanceId: u32::MAX,
        };
        match call!(&self.nvml.0, None, nvmlEventSetWait_v2(self.set, &raw mut data, 0)) {
            Err(error) if error.timed_out() => return Ok(None),
            answer => answer?,
        }
        let instance = |id: u32| (id != u32::MAX).then_some(id);
        Ok(Some(XidEvent {
            gpu: self.watched.iter().find(|(handle, _)| *handle == data.device).map(|(_, index)| *index),
            xid: data.eventData,
            gpu_instance: instance(data.gpuInstanceId),
            compute_instance: instance(data.computeInstanceId),
        }))
    }
}

impl Drop for XidEvents {
    fn drop(&mut self) {
        let _ = call!(&self.nvml.0, None, nvmlEventSetFree(self.set));
    }
}
