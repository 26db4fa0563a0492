//! The library as a program meets it: loaded at run time, called through a wrapper that is not
//! written for it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::structs::device::FieldId;
use stepwatch_fake_nvml::{
    Code, Effect, Fault, Fleet, NvmlEvent, Quantity, SCRIPT, Script, Stage, calls, library, library_without,
};

/// A process has one environment, and the library one script.
static ONE: Mutex<()> = Mutex::new(());

const PATIENCE: Duration = Duration::from_secs(10);

/// A test that has the library to itself.
struct Alone {
    dir: tempfile::TempDir,
    stage: Stage,
    _one: MutexGuard<'static, ()>,
}

impl Alone {
    fn with(script: &Script) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let stage = Stage::new(dir.path(), script).unwrap();
        #[expect(
            clippy::disallowed_methods,
            reason = "the library is configured by its environment, as in a program"
        )]
        // SAFETY: the lock keeps the other tests away, and nothing else in this process changes or
        // reads the environment.
        unsafe {
            std::env::set_var(SCRIPT, stage.path())
        };
        Self { dir, stage, _one: one }
    }

    fn open(&self) -> Nvml {
        open_as(&library().unwrap()).unwrap()
    }

    fn count(&self, name: &str) -> u64 {
        self.stage.calls().unwrap().count(name)
    }

    /// Nothing was done that no program should do.
    fn decent(&self) {
        assert_eq!(self.count(calls::MISUSE), 0);
    }
}

fn open_as(library: &Path) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(library.as_os_str()).init()
}

fn wait_for(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn eight_h100() {
    let alone = Alone::with(&Script::for_fleet(Fleet::H100).at(100.0));
    let nvml = alone.open();
    assert_eq!(
        (nvml.device_count().unwrap(), nvml.sys_driver_version().unwrap().as_str()),
        (8, "570.172.08")
    );
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 12080);
    let gpu = nvml.device_by_index(3).unwrap();
    assert_eq!((gpu.name().unwrap().as_str(), gpu.minor_number().unwrap()), ("NVIDIA H100 80GB HBM3", 3));
    let pci = gpu.pci_info().unwrap();
    assert_eq!((pci.bus_id.as_str(), pci.domain, pci.bus), ("00000000:61:00.0", 0, 0x61));
    let same = nvml.device_by_uuid(gpu.uuid().unwrap()).unwrap();
    assert_eq!(same.index().unwrap(), 3);
    assert_eq!(nvml.device_by_pci_bus_id("0000:61:00.0").unwrap().index().unwrap(), 3);
    assert_eq!(gpu.temperature(TemperatureSensor::Gpu).unwrap(), 43);
    assert_eq!((gpu.utilization_rates().unwrap().gpu, gpu.power_usage().unwrap()), (93, 503_000));
    assert_eq!(gpu.clock_info(Clock::SM).unwrap(), 1752);
    let memory = gpu.memory_info().unwrap();
    assert_eq!((memory.total, memory.used), (81_559 << 20, 63 << 30));
    assert_eq!(memory.used + memory.free + memory.reserved, memory.total);
    // A hundred seconds at half a kilowatt.
    assert_eq!(gpu.total_energy_consumption().unwrap(), 1_000_050_300_000);
    assert_eq!(gpu.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile).unwrap(), 0);
    assert_eq!(gpu.link_wrapper_for(17).error_counter(ErrorCounter::DlReplay).unwrap(), 0);
    assert!(matches!(gpu.link_wrapper_for(18).is_active(), Err(NvmlError::InvalidArg)));
    assert_eq!(gpu.running_compute_processes().unwrap().len(), 1);
    drop(nvml);
    assert_eq!(
        (alone.count("nvmlInit_v2"), alone.count("nvmlShutdown"), alone.count(calls::OPEN)),
        (1, 1, 0)
    );
    alone.decent();
}

#[test]
fn fields_have_types_and_fates_of_their_own() {
    let script = Script::for_fleet(Fleet::H100)
        .without("temperature.memory")
        .all("power.instant", u64::from(u32::MAX));
    let mut script = script.one(1, "energy", u64::MAX);
    script.faults.push(Fault::field(230, Effect::Fail(Code::Unknown)));
    let alone = Alone::with(&script);
    let nvml = alone.open();
    let gpu = nvml.device_by_index(1).unwrap();
    let ids = [82, 186, 83, 230, 142].map(FieldId);
    let values: Vec<_> = gpu.field_values_for(&ids).unwrap().into_iter().map(|v| v.unwrap().value).collect();
    assert!(matches!(values[0], Err(NvmlError::NotSupported)));
    assert!(matches!(values[1], Ok(SampleValue::U32(u32::MAX))), "{values:?}");
    assert!(matches!(values[2], Ok(SampleValue::U64(u64::MAX))));
    assert!(matches!(values[3], Err(NvmlError::Unknown)));
    assert!(matches!(values[4], Ok(SampleValue::U32(0))));
    alone.decent();
}

/// "PCIe transmit bytes. Value can be wrapped" (nvml.h, NVML_FI_DEV_PCIE_COUNT_TX_BYTES).
#[test]
fn counters_of_pcie_bytes_wrap_at_32_bits() {
    let alone = Alone::with(&Script::for_fleet(Fleet::H100).at(100.0));
    let nvml = alone.open();
    let values = nvml.device_by_index(0).unwrap().field_values_for(&[197, 198].map(FieldId)).unwrap();
    let values: Vec<_> = values.into_iter().map(|v| v.unwrap().value.unwrap()).collect();
    let [SampleValue::U64(sent), SampleValue::U64(received)] = values[..] else { panic!("{values:?}") };
    assert_eq!((sent, received), (201_000_000_000 % (1 << 32), 302_000_000_000 % (1 << 32)));
    alone.decent();
}

#[test]
fn a_field_keeps_its_meaning_when_its_number_changes() {
    // Before 575 it means something else.
    for (driver, throttling) in [("570.172.08", false), ("575.57.08", true), ("580.95.05", true)] {
        let script = Script { driver: Some(driver.to_owned()), ..Script::for_fleet(Fleet::H100) };
        let alone = Alone::with(&script.all("throttled.sw_thermal", 7u64));
        let nvml = alone.open();
        let values = nvml.device_by_index(0).unwrap().field_values_for(&[FieldId(251)]).unwrap();
        let value = values.into_iter().next().unwrap().unwrap().value;
        assert_eq!(matches!(value, Ok(SampleValue::U64(7))), throttling, "{driver}: {value:?}");
    }
}

#[test]
fn profiling_takes_two_samples_with_time_between() {
    let alone = Alone::with(&Script::for_fleet(Fleet::H200Mig));
    let nvml = alone.open();
    let metrics = [GpmMetricId::SmUtil, GpmMetricId::AnyTensorUtil, GpmMetricId::Nvdec0Util];
    let gpu = nvml.device_by_index(2).unwrap();
    assert!(gpu.gpm_support().unwrap());
    let (first, at) = (gpu.gpm_sample().unwrap(), Instant::now());
    let early = gpm_metrics_get(&nvml, &first, &gpu.gpm_sample().unwrap(), &metrics);
    assert!(matches!(early, Err(NvmlError::NoData)), "{early:?}");
    wait_for("time passes", || at.elapsed() > Duration::from_millis(110));
    let second = gpu.gpm_sample().unwrap();
    let got = gpm_metrics_get(&nvml, &first, &second, &metrics).unwrap();
    let values: Vec<_> = got.into_iter().map(|m| m.map(|m| m.value).ok()).collect();
    assert_eq!(values, [Some(90.25), Some(63.75), None]);
    assert_eq!(alone.count(calls::SAMPLES), 2);
    drop((first, second));
    assert_eq!(alone.count(calls::SAMPLES), 0);
    alone.decent();
}

#[test]
fn parts_of_a_gpu() {
    let alone = Alone::with(&Script::for_fleet(Fleet::H200Mig));
    let nvml = alone.open();
    let whole = nvml.device_by_index(0).unwrap();
    assert_eq!((whole.mig_mode().unwrap().current, whole.mig_device_count().unwrap()), (1, 7));
    assert!(matches!(whole.utilization_rates(), Err(NvmlError::NotSupported)));
    let part = whole.mig_device_by_index(1).unwrap();
    assert!(matches!(whole.mig_device_by_index(2), Err(NvmlError::NotFound)));
    assert_eq!(part.name().unwrap(), "NVIDIA H200 MIG 3g.71gb");
    assert_eq!(part.memory_info().unwrap().total, 71_424 << 20);
    assert_eq!(part.attributes().unwrap().gpu_instance_slice_count, 3);
    assert!(part.uuid().unwrap().starts_with("MIG-"));
    assert_eq!(part.mig_parent_device().unwrap().index().unwrap(), 0);
    assert!(matches!(nvml.device_by_index(5).unwrap().mig_device_by_index(0), Err(NvmlError::NotSupported)));
    alone.decent();
}

#[test]
fn an_xid_reaches_who_waits() {
    let mut script = Script::for_fleet(Fleet::H100);
    script.events.push(NvmlEvent::xid(2, 13));
    let alone = Alone::with(&script);
    let nvml = alone.open();
    let set = nvml.create_event_set().unwrap();
    let set = nvml.device_by_index(2).unwrap().register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    assert!(matches!(set.wait(0), Err(NvmlError::Timeout)), "what was before does not count");
    script.events.extend([NvmlEvent::xid(2, 48), NvmlEvent::xid(5, 31), NvmlEvent::xid(2, 79)]);
    let set = std::thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let event = set.wait(10_000).unwrap();
            assert_eq!(event.device.index().unwrap(), 2);
            assert!(format!("{:?}", event.event_data).contains("48"), "{event:?}");
            // Two came at once: each is reported.
            let event = set.wait(0).unwrap();
            assert!(format!("{:?}", event.event_data).contains("79"), "{event:?}");
            set
        });
        alone.stage.set(&script).unwrap();
        waiter.join().unwrap()
    });
    assert!(matches!(set.wait(0), Err(NvmlError::Timeout)));
    drop(set);
    assert_eq!(alone.count(calls::SETS), 0);
}

#[test]
fn a_gpu_that_is_lost_and_one_that_fell_off_the_bus() {
    let alone = Alone::with(&Script::for_fleet(Fleet::H100));
    let nvml = alone.open();
    let (third, fourth) = (nvml.device_by_index(3).unwrap(), nvml.device_by_index(4).unwrap());
    let bad = Script { lost: vec![3], fallen: vec![4], ..Script::for_fleet(Fleet::H100) };
    alone.stage.set(&bad).unwrap();
    assert!(matches!(third.temperature(TemperatureSensor::Gpu), Err(NvmlError::GpuLost)));
    assert!(matches!(fourth.name(), Err(NvmlError::GpuLost)));
    assert_eq!(nvml.device_count().unwrap(), 8, "known until the library is initialised again");
    drop(nvml);
    let nvml = alone.open();
    assert_eq!(nvml.device_count().unwrap(), 7);
    assert!(matches!(nvml.device_by_index(3), Err(NvmlError::GpuLost)));
    assert_eq!(nvml.device_by_index(4).unwrap().minor_number().unwrap(), 5, "the others move up");
    alone.decent();
}

#[test]
fn a_call_hangs_until_the_file_says_otherwise() {
    let alone = Alone::with(&Script::for_fleet(Fleet::H100));
    let nvml = alone.open();
    let gpu = nvml.device_by_index(0).unwrap();
    assert!(gpu.power_usage().is_ok());
    let stuck = Fault::new("nvmlDeviceGetPowerUsage", Effect::Hang).on(0).from(3);
    alone.stage.set(&Script { faults: vec![stuck], ..Script::for_fleet(Fleet::H100) }).unwrap();
    assert!(gpu.power_usage().is_ok(), "only the second");
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| gpu.power_usage());
        wait_for("the call hangs", || alone.count(calls::HANGING) == 1);
        assert!(gpu.temperature(TemperatureSensor::Gpu).is_ok(), "others come through");
        assert!(!caller.is_finished());
        alone.stage.set(&Script::for_fleet(Fleet::H100)).unwrap();
        assert_eq!(caller.join().unwrap().unwrap(), 500_000);
    });
    assert_eq!(alone.count(calls::HANGING), 0);
}

#[test]
fn a_driver_that_is_unloaded_and_another_that_comes() {
    let gone = Script::for_fleet(Fleet::H100).fault("nvmlInit*", Effect::Fail(Code::DriverNotLoaded));
    let alone = Alone::with(&gone);
    let library = library().unwrap();
    assert!(matches!(open_as(&library), Err(NvmlError::DriverNotLoaded)));
    alone.stage.set(&Script { driver: Some("580.95.05".into()), ..Script::for_fleet(Fleet::H100) }).unwrap();
    let nvml = open_as(&library).unwrap();
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.95.05");
    let held = || {
        std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .flatten()
            .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == alone.stage.device()))
    };
    assert!(held());
    drop(nvml);
    assert!(!held(), "what a reset of the GPU waits for");
}

#[test]
fn counters_that_grow_with_each_look_and_with_time() {
    let look = Quantity::Growing { at: 5.0, per_second: 0.0, per_read: 2.0 };
    let script = Script::for_fleet(Fleet::H100)
        .all("pcie.replay", look)
        .all("energy", Quantity::growing(10.0, 5000.0))
        .at(2.0);
    let alone = Alone::with(&script);
    let nvml = alone.open();
    let gpu = nvml.device_by_index(0).unwrap();
    assert_eq!([(); 3].map(|()| gpu.pcie_replay_counter().unwrap()), [5, 7, 9]);
    assert_eq!(gpu.total_energy_consumption().unwrap(), 10_010);
}

#[test]
fn a_function_that_an_older_driver_lacks() {
    let alone = Alone::with(&Script::for_fleet(Fleet::A100));
    let old = library_without(alone.dir.path(), &["nvmlDeviceGetMemoryInfo_v2", "nvmlGpmQueryDeviceSupport"])
        .unwrap();
    let nvml = open_as(&old).unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    assert!(matches!(gpu.memory_info(), Err(NvmlError::FailedToLoadSymbol(_))));
    assert!(matches!(gpu.gpm_support(), Err(NvmlError::FailedToLoadSymbol(_))));
    assert_eq!(gpu.name().unwrap(), "NVIDIA A100-SXM4-80GB");
    assert!(library_without(alone.dir.path(), &["nvmlNone"]).is_err());
}

#[test]
fn what_no_program_should_do_is_counted() {
    let alone = Alone::with(&Script::for_fleet(Fleet::H100));
    let first = alone.open();
    // SAFETY: the number is only compared.
    let stale = unsafe { first.device_by_index(0).unwrap().handle() };
    drop(first);
    let second = alone.open();
    // SAFETY: a handle of the stand-in is a number, and this one is out of date.
    let gpu = unsafe { nvml_wrapper::Device::new(stale, &second) };
    assert!(matches!(gpu.name(), Err(NvmlError::InvalidArg)));
    assert_eq!(alone.count(calls::MISUSE), 1);
}

#[test]
fn a_machine_without_a_gpu() {
    let alone = Alone::with(&Script::default());
    let nvml = alone.open();
    assert_eq!(nvml.device_count().unwrap(), 0);
    assert!(matches!(nvml.device_by_index(0), Err(NvmlError::InvalidArg)));
    alone.decent();
}
