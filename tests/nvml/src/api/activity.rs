//! What a device does: load, memory, heat, power, clocks and what holds them back, processes.

use std::ffi::c_uint;
use std::time::Duration;

use nvml_wrapper_sys::bindings as sys;

use super::device_calls;
use crate::handles::{Answer, Out, version};
use crate::script::Code;
use crate::world::View;

/// What the driver's own takes for one direction, with everybody else waiting.
const THROUGHPUT_TAKES: Duration = Duration::from_millis(20);

/// Kinds of clock, by their number.
const DOMAINS: [&str; 4] = ["graphics", "sm", "memory", "video"];
const THRESHOLDS: [&str; 4] = ["shutdown", "slowdown", "memory_max", "gpu_max"];

fn domain(kind: c_uint) -> Answer<&'static str> {
    DOMAINS.get(kind as usize).copied().ok_or(Code::InvalidArgument)
}

fn memory_v1(view: &mut View<'_>) -> Answer<sys::nvmlMemory_t> {
    let reserved = view.u64("memory.reserved").unwrap_or(0);
    // The first version does not distinguish what the driver keeps, and counts it as used.
    let used = view.u64("memory.used")?.saturating_add(reserved);
    Ok(sys::nvmlMemory_t { total: view.u64("memory.total")?, free: view.u64("memory.free")?, used })
}

/// Processes that are listed under `name`, made up from how many there are.
fn processes(
    view: &mut View<'_>,
    name: &str,
    count: Out<c_uint>,
    list: Out<sys::nvmlProcessInfo_t>,
) -> Answer {
    let there = view.u32(name)?;
    let room = count.get()?;
    count.set(there)?;
    if there > room || (there > 0 && list.is_null()) {
        return Err(Code::InsufficientSize);
    }
    let used = view.u64("memory.used").unwrap_or(0) / u64::from(there.max(1));
    let ids = view.instance.map(|i| &view.world.gpus[view.gpu].instances[i]).map(|i| (i.gi, i.ci));
    let (gi, ci) = ids.unwrap_or((u32::MAX, u32::MAX));
    // A test may set who it is, to be found among the processes that there are.
    let first = view.u32("processes.pid").unwrap_or(4200 + 100 * view.gpu as u32);
    if there > 0 {
        for (place, pid) in list.slice(there as usize)?.iter_mut().zip(first..) {
            *place =
                sys::nvmlProcessInfo_t { pid, usedGpuMemory: used, gpuInstanceId: gi, computeInstanceId: ci };
        }
    }
    Ok(())
}

device_calls! {
    fn nvmlDeviceGetUtilizationRates(view, out: Out<sys::nvmlUtilization_t>) {
        let (gpu, memory) = (view.u32("utilization.gpu")?, view.u32("utilization.memory")?);
        out.set(sys::nvmlUtilization_t { gpu, memory })
    }

    fn nvmlDeviceGetMemoryInfo_v2(view, out: Out<sys::nvmlMemory_v2_t>) {
        let expected = version::<sys::nvmlMemory_v2_t>(2);
        if out.get()?.version != expected {
            return view.world.misuse(Code::ArgumentVersionMismatch);
        }
        out.set(sys::nvmlMemory_v2_t {
            version: expected,
            total: view.u64("memory.total")?,
            reserved: view.u64("memory.reserved")?,
            free: view.u64("memory.free")?,
            used: view.u64("memory.used")?,
        })
    }

    fn nvmlDeviceGetMemoryInfo(view, out: Out<sys::nvmlMemory_t>) {
        out.set(memory_v1(&mut view)?)
    }

    fn nvmlDeviceGetBAR1MemoryInfo(view, out: Out<sys::nvmlBAR1Memory_t>) {
        out.set(sys::nvmlBAR1Memory_t {
            bar1Total: view.u64("bar1.total")?,
            bar1Free: view.u64("bar1.free")?,
            bar1Used: view.u64("bar1.used")?,
        })
    }

    fn nvmlDeviceGetTemperature(view, sensor: c_uint, out: Out<c_uint>) {
        if sensor != 0 {
            return Err(Code::InvalidArgument);
        }
        out.set(view.u32("temperature")?)
    }

    fn nvmlDeviceGetTemperatureV(view, out: Out<sys::nvmlTemperature_v1_t>) {
        let asked = out.get()?;
        if asked.version != version::<sys::nvmlTemperature_v1_t>(1) {
            return view.world.misuse(Code::ArgumentVersionMismatch);
        }
        if asked.sensorType != 0 {
            return Err(Code::InvalidArgument);
        }
        let temperature = view.i32("temperature")?;
        out.edit(|t| t.temperature = temperature)
    }

    fn nvmlDeviceGetMarginTemperature(view, out: Out<sys::nvmlMarginTemperature_v1_t>) {
        if out.get()?.version != version::<sys::nvmlMarginTemperature_v1_t>(1) {
            return view.world.misuse(Code::ArgumentVersionMismatch);
        }
        let margin = view.i32("temperature.margin")?;
        out.edit(|t| t.marginTemperature = margin)
    }

    fn nvmlDeviceGetTemperatureThreshold(view, kind: c_uint, out: Out<c_uint>) {
        let kind = THRESHOLDS.get(kind as usize).ok_or(Code::NotSupported)?;
        out.set(view.u32(&format!("temperature.threshold.{kind}"))?)
    }

    fn nvmlDeviceGetPowerUsage(view, out: Out<c_uint>) {
        out.set(view.u32("power.usage")?)
    }

    fn nvmlDeviceGetTotalEnergyConsumption(view, out: Out<u64>) {
        out.set(view.u64("energy")?)
    }

    fn nvmlDeviceGetEnforcedPowerLimit(view, out: Out<c_uint>) {
        out.set(view.u32("power.limit")?)
    }

    fn nvmlDeviceGetPowerManagementLimit(view, out: Out<c_uint>) {
        out.set(view.u32("power.limit")?)
    }

    fn nvmlDeviceGetPowerManagementDefaultLimit(view, out: Out<c_uint>) {
        out.set(view.u32("power.limit.default")?)
    }

    fn nvmlDeviceGetPowerManagementLimitConstraints(view, min: Out<c_uint>, max: Out<c_uint>) {
        min.set(view.u32("power.limit.min")?)?;
        max.set(view.u32("power.limit.max")?)
    }

    fn nvmlDeviceGetClockInfo(view, kind: c_uint, out: Out<c_uint>) {
        out.set(view.u32(&format!("clock.{}", domain(kind)?))?)
    }

    fn nvmlDeviceGetMaxClockInfo(view, kind: c_uint, out: Out<c_uint>) {
        out.set(view.u32(&format!("clock.max.{}", domain(kind)?))?)
    }

    fn nvmlDeviceGetClock(view, kind: c_uint, id: c_uint, out: Out<c_uint>) {
        let which = match id {
            sys::nvmlClockId_enum_NVML_CLOCK_ID_CURRENT => "clock",
            _ => "clock.max",
        };
        out.set(view.u32(&format!("{which}.{}", domain(kind)?))?)
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons(view, out: Out<u64>) {
        out.set(view.u64("throttle.reasons")?)
    }

    fn nvmlDeviceGetCurrentClocksEventReasons(view, out: Out<u64>) {
        out.set(view.u64("throttle.reasons")?)
    }

    fn nvmlDeviceGetSupportedClocksThrottleReasons(view, out: Out<u64>) {
        out.set(view.u64("throttle.supported")?)
    }

    fn nvmlDeviceGetSupportedClocksEventReasons(view, out: Out<u64>) {
        out.set(view.u64("throttle.supported")?)
    }

    fn nvmlDeviceGetViolationStatus(view, policy: c_uint, out: Out<sys::nvmlViolationTime_t>) {
        let policies = ["power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability"];
        let policy = policies.get(policy as usize).ok_or(Code::InvalidArgument)?;
        let violation = view.u64(&format!("throttled.{policy}"))?;
        // Microseconds, beside nanoseconds.
        let reference = (view.world.seconds() * 1e6) as u64;
        out.set(sys::nvmlViolationTime_t { referenceTime: reference, violationTime: violation })
    }

    fn nvmlDeviceGetPerformanceState(view, out: Out<c_uint>) {
        out.set(view.u32("pstate")?)
    }

    fn nvmlDeviceGetPcieThroughput(view, counter: c_uint, out: Out<c_uint>) {
        crate::world::pause(THROUGHPUT_TAKES);
        out.set(view.u32(if counter == 0 { "gpm.20" } else { "gpm.21" })?.saturating_mul(1024))
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(view, count: Out<c_uint>, list: Out<sys::nvmlProcessInfo_t>) {
        processes(&mut view, "processes", count, list)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(view, count: Out<c_uint>, list: Out<sys::nvmlProcessInfo_t>) {
        processes(&mut view, "processes", count, list)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(view, count: Out<c_uint>, list: Out<sys::nvmlProcessInfo_t>) {
        processes(&mut view, "processes.graphics", count, list)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(view, count: Out<c_uint>, list: Out<sys::nvmlProcessInfo_t>) {
        processes(&mut view, "processes.mps", count, list)
    }
}
