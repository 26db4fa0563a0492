//! GPU performance monitoring: samples that the program owns, and metrics of the time between two
//! of them.

use std::ffi::c_uint;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings as sys;

use super::{calls, device_calls};
use crate::calls as counts;
use crate::handles::{Answer, Device, Out, version};
use crate::script::Code;
use crate::world::{View, World};

/// Samples that are closer together have no result.
const APART: Duration = Duration::from_millis(100);

/// A sample that the program has allocated.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    taken: Option<(Device, Instant)>,
}

fn gpm(view: &mut View<'_>) -> Answer {
    view.whole()?;
    view.number("gpm").map(drop)
}

fn take(view: View<'_>, sample: usize, of: Device) -> Answer {
    match view.world.samples.get_mut(&sample) {
        Some(sample) => {
            sample.taken = Some((of, Instant::now()));
            Ok(())
        }
        None => view.world.misuse(Code::InvalidArgument),
    }
}

/// The device that two samples are of, if there is something between them.
fn between(world: &mut World, first: usize, second: usize) -> Answer<Device> {
    let taken = |sample| world.samples.get(&sample).map(|s| s.taken);
    let (Some(first), Some(second)) = (taken(first), taken(second)) else {
        return world.misuse(Code::InvalidArgument);
    };
    let (Some((of, from)), Some((same, to))) = (first, second) else { return Err(Code::InvalidArgument) };
    if of != same {
        return world.misuse(Code::InvalidArgument);
    }
    if to.saturating_duration_since(from) < APART { Err(Code::NoData) } else { Ok(of) }
}

calls! {
    fn nvmlGpmSampleAlloc(world, out: Out<usize>) {
        let sample = world.object();
        world.samples.insert(sample, Sample::default());
        world.counters.one(counts::SAMPLES);
        out.set(sample)
    }

    fn nvmlGpmSampleFree(world, sample: usize) {
        if world.samples.remove(&sample).is_none() {
            return world.misuse(Code::InvalidArgument);
        }
        world.counters.count(counts::SAMPLES).fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn nvmlGpmMetricsGet(world, request: Out<sys::nvmlGpmMetricsGet_t>) {
        let version: Out<c_uint> = request.cast();
        if version.get()? != sys::NVML_GPM_METRICS_GET_VERSION {
            return world.misuse(Code::ArgumentVersionMismatch);
        }
        let mut metrics = Err(Code::InvalidArgument);
        request.edit(|request| metrics = answer(world, request))?;
        metrics
    }
}

fn answer(world: &mut World, request: &mut sys::nvmlGpmMetricsGet_t) -> Answer {
    let device = between(world, request.sample1 as usize, request.sample2 as usize)?;
    let mut view = world.view(device)?;
    let asked = request.metrics.get_mut(..request.numMetrics as usize).ok_or(Code::InvalidArgument)?;
    for metric in asked {
        metric.metricInfo = sys::nvmlGpmMetric_t__bindgen_ty_1 {
            shortName: c"metric".as_ptr().cast_mut(),
            longName: c"a metric".as_ptr().cast_mut(),
            unit: c"%".as_ptr().cast_mut(),
        };
        match view.number(&format!("gpm.{}", metric.metricId)) {
            Ok(number) => {
                metric.nvmlReturn = sys::nvmlReturn_enum_NVML_SUCCESS;
                metric.value = number.float();
            }
            Err(code) => metric.nvmlReturn = code.value(),
        }
    }
    Ok(())
}

device_calls! {
    fn nvmlGpmQueryDeviceSupport(view, out: Out<sys::nvmlGpmSupport_t>) {
        if out.get()?.version != sys::NVML_GPM_SUPPORT_VERSION {
            return view.world.misuse(Code::ArgumentVersionMismatch);
        }
        let supported = view.instance.is_none() && view.number("gpm").is_ok();
        out.edit(|support| support.isSupportedDevice = supported.into())
    }

    fn nvmlGpmSampleGet(view, sample: usize) {
        gpm(&mut view)?;
        let of = Device::new(view.world.generation, view.gpu, None);
        take(view, sample, of)
    }

    fn nvmlGpmMigSampleGet(view, instance: c_uint, sample: usize) {
        gpm(&mut view)?;
        let there = view.world.gpus[view.gpu].instances.iter().position(|i| i.gi == instance);
        let of = Device::new(view.world.generation, view.gpu, Some(there.ok_or(Code::NotFound)?));
        take(view, sample, of)
    }

    fn nvmlGpmQueryIfStreamingEnabled(view, out: Out<c_uint>) {
        gpm(&mut view)?;
        out.set(0)
    }

    fn nvmlGpmSetStreamingEnabled(view, _state: c_uint) {
        gpm(&mut view)
    }
}

const _: () = assert!(version::<sys::nvmlGpmSupport_t>(1) != sys::NVML_GPM_SUPPORT_VERSION);
