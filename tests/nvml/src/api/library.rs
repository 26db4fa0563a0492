//! Beginning, end, versions, and finding devices.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings as sys;

use super::{calls, returned};
use crate::handles::{Answer, Device, Out};
use crate::script::Code;
use crate::world::{World, enter};

fn init(call: &'static str) -> sys::nvmlReturn_t {
    let answer = || -> Answer { enter(call, None)?.world()?.init() };
    returned(answer())
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInit_v2() -> sys::nvmlReturn_t {
    init("nvmlInit_v2")
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> sys::nvmlReturn_t {
    init("nvmlInitWithFlags")
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlShutdown() -> sys::nvmlReturn_t {
    let answer = || -> Answer {
        let mut entered = enter("nvmlShutdown", None)?;
        entered.world()?.shutdown()?;
        entered.forget();
        Ok(())
    };
    returned(answer())
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlErrorString(code: sys::nvmlReturn_t) -> *const c_char {
    let text = match code {
        sys::nvmlReturn_enum_NVML_SUCCESS => c"Success",
        sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED => c"Uninitialized",
        sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT => c"Invalid Argument",
        sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => c"Not Supported",
        sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION => c"Insufficient Permissions",
        sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND => c"Not Found",
        sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED => c"Driver Not Loaded",
        sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT => c"Timeout",
        sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST => c"GPU is lost",
        sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED => c"GPU requires reset",
        sys::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH => c"Driver/library version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

/// Needs no initialisation, as `nvidia-smi` relies on when it cannot have it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlSystemGetNVMLVersion(text: Out<c_char>, room: c_uint) -> sys::nvmlReturn_t {
    let answer = || -> Answer {
        let mut entered = enter("nvmlSystemGetNVMLVersion", None)?;
        let world = entered.world()?;
        let major = world.script.fleet.cuda() / 1000;
        text.text(room, &format!("{major}.{}", world.driver()))
    };
    returned(answer())
}

fn cuda(world: &World, out: Out<c_int>) -> Answer {
    out.set(world.script.fleet.cuda())
}

fn count(world: &World, out: Out<c_uint>) -> Answer {
    out.set(world.listed.len() as c_uint)
}

/// The device whose quantity `name` is this text.
fn find(world: &World, name: &str, text: &str, out: Out<Device>) -> Answer {
    let said = |gpu: usize| match world.gpus[gpu].values.get(name) {
        Some(Some(crate::script::Quantity::Text(said))) => said.eq_ignore_ascii_case(text),
        _ => false,
    };
    let position = world.listed.iter().position(|gpu| *gpu < world.gpus.len() && said(*gpu));
    out.set(world.handle(position.ok_or(Code::NotFound)?)?)
}

calls! {
    fn nvmlSystemGetDriverVersion(world, text: Out<c_char>, room: c_uint) {
        text.text(room, world.driver())
    }

    fn nvmlSystemGetCudaDriverVersion(world, out: Out<c_int>) {
        cuda(world, out)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(world, out: Out<c_int>) {
        cuda(world, out)
    }

    fn nvmlSystemGetDriverBranch(world, out: Out<sys::nvmlSystemDriverBranchInfo_v1_t>, _room: c_uint) {
        let branch = format!("r{}_00", world.driver().split('.').next().unwrap_or_default());
        out.edit(|info| crate::handles::copy(&mut info.branch, &branch))
    }

    fn nvmlSystemGetProcessName(_world, pid: c_uint, name: Out<c_char>, room: c_uint) {
        name.text(room, &format!("/usr/bin/trainer-{pid}"))
    }

    fn nvmlDeviceGetCount_v2(world, out: Out<c_uint>) {
        count(world, out)
    }

    fn nvmlDeviceGetCount(world, out: Out<c_uint>) {
        count(world, out)
    }

    fn nvmlDeviceGetHandleByIndex_v2(world, index: c_uint, out: Out<Device>) {
        out.set(world.handle(index as usize)?)
    }

    fn nvmlDeviceGetHandleByUUID(world, uuid: Out<c_char>, out: Out<Device>) {
        find(world, "uuid", &uuid.read()?, out)
    }

    fn nvmlDeviceGetHandleBySerial(world, serial: Out<c_char>, out: Out<Device>) {
        find(world, "serial", &serial.read()?, out)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(world, pci: Out<c_char>, out: Out<Device>) {
        let pci = pci.read()?;
        // The domain has four digits or eight.
        let (domain, rest) = pci.split_once(':').ok_or(Code::InvalidArgument)?;
        let domain = u32::from_str_radix(domain, 16).map_err(|_| Code::InvalidArgument)?;
        find(world, "pci", &format!("{domain:04x}:{rest}"), out)
    }
}
