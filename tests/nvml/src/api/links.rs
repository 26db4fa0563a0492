//! NVLink and the fabric that it makes.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::device_calls;
use crate::handles::{Answer, Out, copy, version};
use crate::script::Code;
use crate::world::View;

const ERRORS: [&str; 5] = ["replay", "recovery", "crc_flit", "crc_data", "ecc_data"];

/// The switch at the other end, by default.
const SWITCH: c_uint = 2;

fn cluster(view: &View<'_>) -> Answer<[u8; 16]> {
    let digits: String = view.text("fabric.cluster")?.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(|_| Code::Unknown)?;
    Ok(number.to_be_bytes())
}

device_calls! {
    fn nvmlDeviceGetNvLinkState(view, link: c_uint, out: Out<c_uint>) {
        out.set(view.link("state", link)?.unsigned() as c_uint)
    }

    fn nvmlDeviceGetNvLinkVersion(view, link: c_uint, out: Out<c_uint>) {
        out.set(view.link("version", link)?.unsigned() as c_uint)
    }

    fn nvmlDeviceGetNvLinkCapability(view, link: c_uint, _capability: c_uint, out: Out<c_uint>) {
        view.link("state", link)?;
        out.set(1)
    }

    fn nvmlDeviceGetNvLinkErrorCounter(view, link: c_uint, counter: c_uint, out: Out<u64>) {
        let kind = ERRORS.get(counter as usize).ok_or(Code::InvalidArgument)?;
        out.set(view.link(kind, link)?.unsigned())
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(view, link: c_uint, out: Out<c_uint>) {
        view.link("state", link)?;
        out.set(view.link("remote", link).map_or(SWITCH, |kind| kind.unsigned() as c_uint))
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(view, link: c_uint, out: Out<sys::nvmlPciInfo_t>) {
        view.link("state", link)?;
        let bus = 5 + link % 4;
        out.edit(|info| {
            copy(&mut info.busIdLegacy, &format!("0000:{bus:02X}:00.0"));
            copy(&mut info.busId, &format!("00000000:{bus:02X}:00.0"));
            (info.domain, info.bus, info.device, info.pciDeviceId) = (0, bus, 0, 0x22a3_10de);
        })
    }

    fn nvmlDeviceGetGpuFabricInfo(view, out: Out<sys::nvmlGpuFabricInfo_t>) {
        out.set(sys::nvmlGpuFabricInfo_t {
            clusterUuid: cluster(&view)?,
            status: view.u32("fabric.status")?,
            cliqueId: view.u32("fabric.clique")?,
            state: view.u32("fabric.state")? as u8,
        })
    }

    fn nvmlDeviceGetGpuFabricInfoV(view, out: Out<sys::nvmlGpuFabricInfo_v3_t>) {
        // An older program has room for the second version only; its fields are the first of the
        // third.
        let second: Out<sys::nvmlGpuFabricInfo_v2_t> = out.cast();
        let asked = second.get()?.version;
        let v2 = sys::nvmlGpuFabricInfo_v2_t {
            version: asked,
            clusterUuid: cluster(&view)?,
            status: view.u32("fabric.status")?,
            cliqueId: view.u32("fabric.clique")?,
            state: view.u32("fabric.state")? as u8,
            healthMask: view.u32("fabric.health")?,
        };
        if asked == version::<sys::nvmlGpuFabricInfo_v2_t>(2) {
            return second.set(v2);
        }
        if asked != version::<sys::nvmlGpuFabricInfo_v3_t>(3) {
            return view.world.misuse(Code::ArgumentVersionMismatch);
        }
        let summary = view.u32("fabric.summary")? as u8;
        out.set(sys::nvmlGpuFabricInfo_v3_t {
            version: asked,
            clusterUuid: v2.clusterUuid,
            status: v2.status,
            cliqueId: v2.cliqueId,
            state: v2.state,
            healthMask: v2.healthMask,
            healthSummary: summary,
        })
    }
}
