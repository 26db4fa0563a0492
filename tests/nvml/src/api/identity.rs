//! What a device is.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings as sys;

use super::device_calls;
use crate::handles::{Answer, Out, copy, version};
use crate::script::Code;
use crate::world::View;

/// An address, `0000:1b:00.0`, in its parts.
fn address(pci: &str) -> Answer<[u32; 3]> {
    let mut parts = pci.split([':', '.']).map(|part| u32::from_str_radix(part, 16));
    let mut next = || parts.next().and_then(Result::ok).ok_or(Code::Unknown);
    Ok([next()?, next()?, next()?])
}

fn pci_info(view: &View<'_>, out: Out<sys::nvmlPciInfo_t>) -> Answer {
    view.whole()?;
    let [domain, bus, device] = address(&view.text("pci")?)?;
    out.edit(|info| {
        copy(&mut info.busIdLegacy, &format!("{domain:04X}:{bus:02X}:{device:02X}.0"));
        copy(&mut info.busId, &format!("{domain:08X}:{bus:02X}:{device:02X}.0"));
        (info.domain, info.bus, info.device) = (domain, bus, device);
        (info.pciDeviceId, info.pciSubSystemId) = (0x2330_10de, 0x16c1_10de);
    })
}

device_calls! {
    fn nvmlDeviceGetName(view, text: Out<c_char>, room: c_uint) {
        text.text(room, &view.text("name")?)
    }

    fn nvmlDeviceGetUUID(view, text: Out<c_char>, room: c_uint) {
        text.text(room, &view.text("uuid")?)
    }

    fn nvmlDeviceGetSerial(view, text: Out<c_char>, room: c_uint) {
        text.text(room, &view.text("serial")?)
    }

    fn nvmlDeviceGetVbiosVersion(view, text: Out<c_char>, room: c_uint) {
        text.text(room, &view.text("vbios")?)
    }

    fn nvmlDeviceGetBoardPartNumber(view, text: Out<c_char>, room: c_uint) {
        text.text(room, &view.text("part")?)
    }

    fn nvmlDeviceGetInforomImageVersion(view, text: Out<c_char>, room: c_uint) {
        text.text(room, &view.text("inforom")?)
    }

    fn nvmlDeviceGetGspFirmwareVersion(view, text: Out<c_char>) {
        text.text(sys::NVML_GSP_FIRMWARE_VERSION_BUF_SIZE, &view.text("gsp.firmware")?)
    }

    fn nvmlDeviceGetGspFirmwareMode(view, enabled: Out<c_uint>, default: Out<c_uint>) {
        let absent = view.text("gsp.firmware")?.is_empty();
        enabled.set(u32::from(!absent))?;
        default.set(1)
    }

    fn nvmlDeviceGetIndex(view, out: Out<c_uint>) {
        let gpu = view.gpu;
        let position = view.world.listed.iter().position(|listed| *listed == gpu);
        out.set(position.ok_or(Code::NotFound)? as c_uint)
    }

    fn nvmlDeviceGetMinorNumber(view, out: Out<c_uint>) {
        out.set(view.u32("minor")?)
    }

    fn nvmlDeviceGetModuleId(view, out: Out<c_uint>) {
        out.set(view.u32("module")?)
    }

    fn nvmlDeviceGetPlatformInfo(view, out: Out<sys::nvmlPlatformInfo_v2_t>) {
        view.whole()?;
        let chassis = view.text("platform.chassis")?;
        if out.get()?.version != version::<sys::nvmlPlatformInfo_v2_t>(2) {
            return view.world.misuse(Code::ArgumentVersionMismatch);
        }
        let guid = view.text("platform.ib_guid")?;
        let place = ["slot", "tray", "host", "peer", "module"];
        let mut numbers = [0; 5];
        for (number, name) in numbers.iter_mut().zip(place) {
            *number = view.u32(&format!("platform.{name}"))? as u8;
        }
        out.edit(|info| {
            info.chassisSerialNumber.iter_mut().zip(chassis.bytes()).for_each(|(to, byte)| *to = byte);
            let digits = |at: usize| guid.get(2 * at..2 * at + 2).and_then(|d| u8::from_str_radix(d, 16).ok());
            info.ibGuid.iter_mut().zip((0..).map_while(digits)).for_each(|(to, byte)| *to = byte);
            [info.slotNumber, info.trayIndex, info.hostId, info.peerType, info.moduleId] = numbers;
        })
    }

    fn nvmlDeviceGetNumaNodeId(view, out: Out<c_uint>) {
        out.set(view.u32("numa")?)
    }

    fn nvmlDeviceGetPciInfo_v3(view, out: Out<sys::nvmlPciInfo_t>) {
        pci_info(&view, out)
    }

    fn nvmlDeviceGetPciInfo_v2(view, out: Out<sys::nvmlPciInfo_t>) {
        pci_info(&view, out)
    }

    fn nvmlDeviceGetPciInfoExt(view, out: Out<sys::nvmlPciInfoExt_v1_t>) {
        view.whole()?;
        if out.get()?.version != version::<sys::nvmlPciInfoExt_v1_t>(1) {
            return view.world.misuse(Code::ArgumentVersionMismatch);
        }
        let [domain, bus, device] = address(&view.text("pci")?)?;
        out.edit(|info| {
            copy(&mut info.busId, &format!("{domain:08X}:{bus:02X}:{device:02X}.0"));
            (info.domain, info.bus, info.device) = (domain, bus, device);
            (info.pciDeviceId, info.pciSubSystemId) = (0x2330_10de, 0x16c1_10de);
            (info.baseClass, info.subClass) = (3, 2);
        })
    }

    fn nvmlDeviceGetBrand(view, out: Out<c_uint>) {
        out.set(view.u32("brand")?)
    }

    fn nvmlDeviceGetArchitecture(view, out: Out<c_uint>) {
        out.set(view.u32("architecture")?)
    }

    fn nvmlDeviceGetNumGpuCores(view, out: Out<c_uint>) {
        out.set(view.u32("cores")?)
    }

    fn nvmlDeviceGetCudaComputeCapability(view, major: Out<c_int>, minor: Out<c_int>) {
        major.set(view.i32("capability.major")?)?;
        minor.set(view.i32("capability.minor")?)
    }

    fn nvmlDeviceGetPersistenceMode(view, out: Out<c_uint>) {
        out.set(view.u32("persistence")?)
    }

    fn nvmlDeviceGetComputeMode(view, out: Out<c_uint>) {
        out.set(view.u32("compute_mode")?)
    }
}
