//! Event sets: what the driver reports of its own accord, to whoever waits.

use std::ffi::c_uint;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings as sys;

use super::{calls, device_calls, returned};
use crate::calls as counts;
use crate::handles::{Answer, Device, Out};
use crate::script::Code;
use crate::world::{World, enter};

/// How often a waiter looks.
const LOOK: Duration = Duration::from_millis(1);

/// A set that the program has created: which events of which GPUs, and how many of the script's it
/// has seen.
#[derive(Debug, Default)]
pub(crate) struct Set {
    wanted: Vec<(usize, u64)>,
    seen: usize,
}

calls! {
    fn nvmlEventSetCreate(world, out: Out<usize>) {
        let set = world.object();
        world.sets.insert(set, Set::default());
        world.counters.one(counts::SETS);
        out.set(set)
    }

    fn nvmlEventSetFree(world, set: usize) {
        if world.sets.remove(&set).is_none() {
            return world.misuse(Code::InvalidArgument);
        }
        world.counters.count(counts::SETS).fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

device_calls! {
    fn nvmlDeviceGetSupportedEventTypes(view, out: Out<u64>) {
        view.whole()?;
        out.set(sys::nvmlEventTypeAll.into())
    }

    fn nvmlDeviceRegisterEvents(view, kinds: u64, set: usize) {
        view.whole()?;
        let (gpu, reported) = (view.gpu, view.world.script.events.len());
        match view.world.sets.get_mut(&set) {
            Some(set) => {
                set.wanted.push((gpu, kinds));
                set.seen = reported;
                Ok(())
            }
            None => view.world.misuse(Code::InvalidArgument),
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetWait_v2(
    set: usize,
    out: Out<sys::nvmlEventData_t>,
    timeout_ms: c_uint,
) -> sys::nvmlReturn_t {
    returned(wait(set, out, Duration::from_millis(timeout_ms.into())))
}

fn wait(set: usize, out: Out<sys::nvmlEventData_t>, timeout: Duration) -> Answer {
    let mut entered = enter("nvmlEventSetWait_v2", None)?;
    let began = Instant::now();
    loop {
        let world = entered.world()?;
        world.ready()?;
        if let Some(event) = next(world, set)? {
            return out.set(event);
        }
        // Whichever GPU it is of: nobody is notified of the others any more.
        if world.sets.get(&set).is_some_and(|set| set.wanted.iter().any(|(gpu, _)| world.is_lost(*gpu))) {
            return Err(Code::GpuIsLost);
        }
        if began.elapsed() >= timeout {
            return Err(Code::Timeout);
        }
        // Others may call meanwhile.
        drop(entered);
        crate::world::pause(LOOK.min(timeout));
        entered = crate::world::look();
    }
}

/// One after the other, as on Linux.
fn next(world: &mut World, set: usize) -> Answer<Option<sys::nvmlEventData_t>> {
    let reported = world.script.events.clone();
    let Some(set) = world.sets.get_mut(&set) else { return world.misuse(Code::InvalidArgument) };
    let seen = set.seen.min(reported.len());
    let wanted = |gpu: usize, kind: u64| set.wanted.iter().any(|(g, kinds)| *g == gpu && kinds & kind != 0);
    let event = reported[seen..].iter().position(|event| wanted(event.gpu, event.kind));
    set.seen = event.map_or(reported.len(), |at| seen + at + 1);
    let event = event.map(|at| &reported[seen + at]);
    let generation = world.generation;
    Ok(event.map(|event| {
        let (gi, ci) = event.instance.unwrap_or((u32::MAX, u32::MAX));
        sys::nvmlEventData_t {
            device: Device::new(generation, event.gpu, None).pointer(),
            eventType: event.kind,
            eventData: event.data,
            gpuInstanceId: gi,
            computeInstanceId: ci,
        }
    }))
}
