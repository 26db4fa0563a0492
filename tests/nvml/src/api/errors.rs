//! What went wrong with a device's memory and its link to the host.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::device_calls;
use crate::handles::{Answer, Out, version};
use crate::script::Code;
use crate::world::View;

const LOCATIONS: [&str; 8] =
    ["l1_cache", "l2_cache", "dram", "register_file", "texture", "texture_shm", "cbu", "sram"];

/// `ecc.corrected.volatile` of the numbers for it.
fn ecc(severity: c_uint, lifetime: c_uint) -> Answer<String> {
    let severity = ["corrected", "uncorrected"].get(severity as usize).ok_or(Code::InvalidArgument)?;
    let lifetime = ["volatile", "aggregate"].get(lifetime as usize).ok_or(Code::InvalidArgument)?;
    Ok(format!("ecc.{severity}.{lifetime}"))
}

/// Pages that were retired for `cause`: as many as there are, at made-up addresses.
fn retired(view: &mut View<'_>, cause: c_uint, count: Out<c_uint>, addresses: Out<u64>) -> Answer {
    let there = view.u32(if cause == 0 { "retired.single" } else { "retired.double" })?;
    let room = count.get()?;
    count.set(there)?;
    if there > room {
        return Err(Code::InsufficientSize);
    }
    if there > 0 && !addresses.is_null() {
        addresses.slice(there as usize)?.iter_mut().zip(1..).for_each(|(place, page)| *place = page << 16);
    }
    Ok(())
}

device_calls! {
    fn nvmlDeviceGetEccMode(view, current: Out<c_uint>, pending: Out<c_uint>) {
        let mode = view.u32("ecc.mode")?;
        current.set(mode)?;
        pending.set(mode)
    }

    fn nvmlDeviceGetTotalEccErrors(view, severity: c_uint, lifetime: c_uint, out: Out<u64>) {
        out.set(view.u64(&ecc(severity, lifetime)?)?)
    }

    fn nvmlDeviceGetMemoryErrorCounter(
        view,
        severity: c_uint,
        lifetime: c_uint,
        location: c_uint,
        out: Out<u64>,
    ) {
        let location = LOCATIONS.get(location as usize).ok_or(Code::InvalidArgument)?;
        out.set(view.u64(&format!("{}.{location}", ecc(severity, lifetime)?))?)
    }

    fn nvmlDeviceGetSramEccErrorStatus(view, out: Out<sys::nvmlEccSramErrorStatus_v1_t>) {
        let expected = version::<sys::nvmlEccSramErrorStatus_v1_t>(1);
        if out.get()?.version != expected {
            return view.world.misuse(Code::ArgumentVersionMismatch);
        }
        out.set(sys::nvmlEccSramErrorStatus_v1_t {
            version: expected,
            aggregateUncParity: view.u64("sram.aggregate.parity")?,
            aggregateUncSecDed: view.u64("sram.aggregate.secded")?,
            aggregateCor: view.u64("sram.aggregate.corrected")?,
            volatileUncParity: view.u64("sram.volatile.parity")?,
            volatileUncSecDed: view.u64("sram.volatile.secded")?,
            volatileCor: view.u64("sram.volatile.corrected")?,
            aggregateUncBucketL2: view.u64("sram.bucket.l2")?,
            aggregateUncBucketSm: view.u64("sram.bucket.sm")?,
            aggregateUncBucketPcie: view.u64("sram.bucket.pcie")?,
            aggregateUncBucketMcu: view.u64("sram.bucket.mcu")?,
            aggregateUncBucketOther: view.u64("sram.bucket.other")?,
            bThresholdExceeded: view.u32("sram.threshold")?,
        })
    }

    fn nvmlDeviceGetRemappedRows(
        view,
        correctable: Out<c_uint>,
        uncorrectable: Out<c_uint>,
        pending: Out<c_uint>,
        failed: Out<c_uint>,
    ) {
        correctable.set(view.u32("remapped.correctable")?)?;
        uncorrectable.set(view.u32("remapped.uncorrectable")?)?;
        pending.set(view.u32("remapped.pending")?)?;
        failed.set(view.u32("remapped.failed")?)
    }

    fn nvmlDeviceGetRowRemapperHistogram(view, out: Out<sys::nvmlRowRemapperHistogramValues_t>) {
        out.set(sys::nvmlRowRemapperHistogramValues_t {
            max: view.u32("banks.max")?,
            high: view.u32("banks.high")?,
            partial: view.u32("banks.partial")?,
            low: view.u32("banks.low")?,
            none: view.u32("banks.none")?,
        })
    }

    fn nvmlDeviceGetRetiredPages(view, cause: c_uint, count: Out<c_uint>, addresses: Out<u64>) {
        retired(&mut view, cause, count, addresses)
    }

    fn nvmlDeviceGetRetiredPages_v2(
        view,
        cause: c_uint,
        count: Out<c_uint>,
        addresses: Out<u64>,
        timestamps: Out<u64>,
    ) {
        retired(&mut view, cause, count, addresses)?;
        if !timestamps.is_null() {
            timestamps.slice(count.get()? as usize)?.fill(1_700_000_000);
        }
        Ok(())
    }

    fn nvmlDeviceGetRetiredPagesPendingStatus(view, out: Out<c_uint>) {
        out.set(view.u32("retired.pending")?)
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(view, out: Out<c_uint>) {
        out.set(view.u32("pcie.generation")?)
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration(view, out: Out<c_uint>) {
        out.set(view.u32("pcie.generation.max")?)
    }

    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(view, out: Out<c_uint>) {
        out.set(view.u32("pcie.generation.gpu_max")?)
    }

    fn nvmlDeviceGetCurrPcieLinkWidth(view, out: Out<c_uint>) {
        out.set(view.u32("pcie.width")?)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(view, out: Out<c_uint>) {
        out.set(view.u32("pcie.width.max")?)
    }

    fn nvmlDeviceGetPcieSpeed(view, out: Out<c_uint>) {
        out.set(view.u32("pcie.speed")?)
    }

    fn nvmlDeviceGetPcieReplayCounter(view, out: Out<c_uint>) {
        out.set(view.u32("pcie.replay")?)
    }
}
