//! MIG: a GPU in parts, each a device of its own.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::{calls, device_calls};
use crate::handles::{Answer, Device, Out};
use crate::model::Instance;
use crate::script::Code;
use crate::world::{View, World};

/// The part that a handle is of.
fn part<'v>(view: &'v View<'_>) -> Answer<&'v Instance> {
    let instance = view.instance.ok_or(Code::NotSupported)?;
    Ok(&view.world.gpus[view.gpu].instances[instance])
}

/// The GPU instance of a handle.
fn gpu_instance(world: &mut World, instance: Device) -> Answer<(usize, u32)> {
    let view = world.view(instance)?;
    let id = part(&view)?.gi;
    Ok((view.gpu, id))
}

device_calls! {
    fn nvmlDeviceGetMigMode(view, current: Out<c_uint>, pending: Out<c_uint>) {
        current.set(view.u32("mig.mode")?)?;
        pending.set(view.u32("mig.pending")?)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(view, out: Out<c_uint>) {
        view.whole()?;
        out.set(view.u32("mig.max").unwrap_or(0))
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(view, index: c_uint, out: Out<Device>) {
        view.whole()?;
        if view.u32("mig.mode")? == 0 {
            return Err(Code::NotSupported);
        }
        if index >= view.u32("mig.max")? {
            return Err(Code::InvalidArgument);
        }
        if index as usize >= view.world.gpus[view.gpu].instances.len() {
            return Err(Code::NotFound);
        }
        out.set(Device::new(view.world.generation, view.gpu, Some(index as usize)))
    }

    fn nvmlDeviceIsMigDeviceHandle(view, out: Out<c_uint>) {
        out.set(view.instance.is_some().into())
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(view, out: Out<Device>) {
        part(&view)?;
        out.set(Device::new(view.world.generation, view.gpu, None))
    }

    fn nvmlDeviceGetGpuInstanceId(view, out: Out<c_uint>) {
        out.set(part(&view)?.gi)
    }

    fn nvmlDeviceGetComputeInstanceId(view, out: Out<c_uint>) {
        out.set(part(&view)?.ci)
    }

    fn nvmlDeviceGetAttributes_v2(view, out: Out<sys::nvmlDeviceAttributes_t>) {
        part(&view)?;
        let slices = view.u32("slices")?;
        out.set(sys::nvmlDeviceAttributes_t {
            multiprocessorCount: view.u32("multiprocessors")?,
            sharedCopyEngineCount: 1,
            sharedDecoderCount: 1,
            sharedEncoderCount: 0,
            sharedJpegCount: 1,
            sharedOfaCount: 0,
            gpuInstanceSliceCount: slices,
            computeInstanceSliceCount: slices,
            memorySizeMB: view.u64("memory.mib")?,
        })
    }

    fn nvmlDeviceGetGpuInstanceById(view, id: c_uint, out: Out<Device>) {
        view.whole()?;
        let there = view.world.gpus[view.gpu].instances.iter().position(|i| i.gi == id);
        out.set(Device::new(view.world.generation, view.gpu, Some(there.ok_or(Code::NotFound)?)))
    }
}

calls! {
    fn nvmlGpuInstanceGetInfo(world, instance: Device, out: Out<sys::nvmlGpuInstanceInfo_t>) {
        let (gpu, id) = gpu_instance(world, instance)?;
        let slices = world.view(instance)?.u32("slices")?;
        out.set(sys::nvmlGpuInstanceInfo_t {
            device: Device::new(world.generation, gpu, None).pointer(),
            id,
            profileId: 19,
            placement: sys::nvmlGpuInstancePlacement_t { start: 0, size: slices },
        })
    }
}
