//! One GPU, and the queries that have a function of their own.

use nvml_wrapper_sys::bindings as sys;

use super::{Error, Library, Nvml, call, string, text, versioned};

/// A GPU, or a compute instance of a partitioned one.
#[derive(Debug, Clone)]
pub struct Device {
    nvml: Nvml,
    handle: sys::nvmlDevice_t,
    /// The index of the GPU.
    index: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pci {
    /// The bus id as the driver writes it: `00000000:1B:00.0`.
    pub bus_id: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    pub reserved: u64,
    pub free: u64,
    pub used: u64,
}

/// The state of the GPU in its NVLink domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fabric {
    pub cluster: [u8; 16],
    pub clique: u32,
    /// One of `NVML_GPU_FABRIC_STATE_*`.
    pub state: u8,
    /// The result of the probe, valid in the state "completed"; 0 means success.
    pub status: u32,
    /// Bit fields, `NVML_GPU_FABRIC_HEALTH_MASK_*`; `None` if the driver does not report them.
    pub health: Option<u32>,
    /// One of `NVML_GPU_FABRIC_HEALTH_SUMMARY_*`; `None` if the driver does not report it.
    pub summary: Option<u8>,
}

/// Defines an enumeration over numbers of NVML.
macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident { $($(#[$what:meta])* $variant:ident = $number:expr),* $(,)? })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$what])* $variant),* }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            pub(super) fn number(self) -> std::ffi::c_uint {
                match self { $(Self::$variant => $number),* }
            }
        }
    )* };
}

numbers! {
    Clock {
        Graphics = sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS,
        Sm = sys::nvmlClockType_enum_NVML_CLOCK_SM,
        Memory = sys::nvmlClockType_enum_NVML_CLOCK_MEM,
        Video = sys::nvmlClockType_enum_NVML_CLOCK_VIDEO,
    }
    Threshold {
        Shutdown = sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
        Slowdown = sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        MemoryMax = sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
        GpuMax = sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
    }
}

pub(super) use numbers;

/// Defines methods that return one number.
macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident: $function:ident($($argument:expr),*) -> $type:ty;)*) => {
        impl Device { $(
            $(#[$doc])*
            pub fn $name(&self) -> Result<$type, Error> {
                let mut value: $type = 0;
                call!(self.library(), self.at(), $function(self.handle $(, $argument)*, &raw mut value))?;
                Ok(value)
            }
        )* }
    };
}

getters! {
    minor_number: nvmlDeviceGetMinorNumber() -> u32;
    /// Of the hottest sensor of the chip, in degrees Celsius.
    temperature: nvmlDeviceGetTemperature(sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU) -> u32;
    power_milliwatts: nvmlDeviceGetPowerUsage() -> u32;
    power_limit_milliwatts: nvmlDeviceGetEnforcedPowerLimit() -> u32;
    /// Since the driver was loaded.
    energy_millijoules: nvmlDeviceGetTotalEnergyConsumption() -> u64;
    /// Bits.
    clocks_event_reasons: nvmlDeviceGetCurrentClocksEventReasons() -> u64;
    /// The same under the name that it had before.
    throttle_reasons: nvmlDeviceGetCurrentClocksThrottleReasons() -> u64;
    performance_state: nvmlDeviceGetPerformanceState() -> u32;
    pcie_generation: nvmlDeviceGetCurrPcieLinkGeneration() -> u32;
    pcie_width: nvmlDeviceGetCurrPcieLinkWidth() -> u32;
    pcie_max_generation: nvmlDeviceGetMaxPcieLinkGeneration() -> u32;
    pcie_max_width: nvmlDeviceGetMaxPcieLinkWidth() -> u32;
    persistence_mode: nvmlDeviceGetPersistenceMode() -> u32;
    compute_mode: nvmlDeviceGetComputeMode() -> u32;
    retired_pages_pending: nvmlDeviceGetRetiredPagesPendingStatus() -> u32;
    /// `NVML_DEVICE_ARCH_*`: a later one is a larger number.
    architecture: nvmlDeviceGetArchitecture() -> u32;
}

/// Defines methods that return a string.
macro_rules! texts {
    ($($name:ident: $function:ident($($len:ident)?);)*) => {
        impl Device { $(
            pub fn $name(&self) -> Result<String, Error> {
                text(|buffer, _len| texts!(@ self $function buffer _len $($len)?))
            }
        )* }
    };
    (@ $self:ident $function:ident $buffer:ident $have:ident len) => {
        call!($self.library(), $self.at(), $function($self.handle, $buffer, $have))
    };
    (@ $self:ident $function:ident $buffer:ident $have:ident) => {
        call!($self.library(), $self.at(), $function($self.handle, $buffer))
    };
}

texts! {
    uuid: nvmlDeviceGetUUID(len);
    name: nvmlDeviceGetName(len);
    serial: nvmlDeviceGetSerial(len);
    vbios: nvmlDeviceGetVbiosVersion(len);
    gsp_firmware: nvmlDeviceGetGspFirmwareVersion();
}

impl Device {
    pub(super) fn new(nvml: Nvml, handle: sys::nvmlDevice_t, index: u32) -> Self {
        Self { nvml, handle, index }
    }

    pub(super) fn nvml(&self) -> &Nvml {
        &self.nvml
    }

    pub(super) fn library(&self) -> &Library {
        &self.nvml.0
    }

    pub(super) fn handle(&self) -> sys::nvmlDevice_t {
        self.handle
    }

    /// The index for the watch.
    pub(super) fn at(&self) -> Option<u32> {
        Some(self.index)
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    pub fn pci(&self) -> Result<Pci, Error> {
        let mut pci = sys::nvmlPciInfo_st {
            busIdLegacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            pciDeviceId: 0,
            pciSubSystemId: 0,
            busId: [0; 32],
        };
        call!(self.library(), self.at(), nvmlDeviceGetPciInfo_v3(self.handle, &raw mut pci))?;
        Ok(Pci { bus_id: string(&pci.busId) })
    }

    /// The utilization of the GPU and of its memory controller, in per cent.
    pub fn utilization(&self) -> Result<(u32, u32), Error> {
        let mut rates = sys::nvmlUtilization_st { gpu: 0, memory: 0 };
        call!(self.library(), self.at(), nvmlDeviceGetUtilizationRates(self.handle, &raw mut rates))?;
        Ok((rates.gpu, rates.memory))
    }

    pub fn memory(&self) -> Result<Memory, Error> {
        let version = versioned::<sys::nvmlMemory_v2_t>(2);
        let mut memory = sys::nvmlMemory_v2_st { version, total: 0, reserved: 0, free: 0, used: 0 };
        call!(self.library(), self.at(), nvmlDeviceGetMemoryInfo_v2(self.handle, &raw mut memory))?;
        let sys::nvmlMemory_v2_st { total, reserved, free, used, .. } = memory;
        Ok(Memory { total, reserved, free, used })
    }

    /// Degrees Celsius below the temperature at which the GPU slows down.
    pub fn temperature_margin(&self) -> Result<i32, Error> {
        let version = versioned::<sys::nvmlMarginTemperature_v1_t>(1);
        let mut margin = sys::nvmlMarginTemperature_v1_t { version, marginTemperature: 0 };
        call!(self.library(), self.at(), nvmlDeviceGetMarginTemperature(self.handle, &raw mut margin))?;
        Ok(margin.marginTemperature)
    }

    pub fn temperature_threshold(&self, which: Threshold) -> Result<u32, Error> {
        let mut value = 0;
        let which = which.number();
        call!(
            self.library(),
            self.at(),
            nvmlDeviceGetTemperatureThreshold(self.handle, which, &raw mut value)
        )?;
        Ok(value)
    }

    pub fn clock_megahertz(&self, clock: Clock) -> Result<u32, Error> {
        let mut value = 0;
        call!(
            self.library(),
            self.at(),
            nvmlDeviceGetClockInfo(self.handle, clock.number(), &raw mut value)
        )?;
        Ok(value)
    }

    pub fn max_clock_megahertz(&self, clock: Clock) -> Result<u32, Error> {
        let mut value = 0;
        call!(
            self.library(),
            self.at(),
            nvmlDeviceGetMaxClockInfo(self.handle, clock.number(), &raw mut value)
        )?;
        Ok(value)
    }

    /// The fabric state, by the newest structure that the library accepts.
    pub fn fabric(&self) -> Result<Fabric, Error> {
        let mut f = sys::nvmlGpuFabricInfo_v3_t {
            version: versioned::<sys::nvmlGpuFabricInfo_v3_t>(3),
            clusterUuid: [0; 16],
            status: 0,
            cliqueId: 0,
            state: 0,
            healthMask: 0,
            healthSummary: 0,
        };
        let mut known = 3;
        let mut asked =
            call!(self.library(), self.at(), nvmlDeviceGetGpuFabricInfoV(self.handle, &raw mut f));
        if asked.as_ref().is_err_and(Error::unsupported) {
            // The older structure is a prefix of the newer one.
            f.version = versioned::<sys::nvmlGpuFabricInfo_v2_t>(2);
            known = 2;
            asked = call!(self.library(), self.at(), nvmlDeviceGetGpuFabricInfoV(self.handle, &raw mut f));
        }
        match asked {
            Err(error) if error.missing() => return self.fabric_without_health(),
            asked => asked?,
        }
        Ok(Fabric {
            cluster: f.clusterUuid,
            clique: f.cliqueId,
            state: f.state,
            status: f.status,
            health: Some(f.healthMask),
            summary: (known >= 3).then_some(f.healthSummary),
        })
    }

    /// The fabric state that drivers before 550 report.
    fn fabric_without_health(&self) -> Result<Fabric, Error> {
        let mut f = sys::nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 };
        call!(self.library(), self.at(), nvmlDeviceGetGpuFabricInfo(self.handle, &raw mut f))?;
        Ok(Fabric {
            cluster: f.clusterUuid,
            clique: f.cliqueId,
            state: f.state,
            status: f.status,
            health: None,
            summary: None,
        })
    }

    /// The pids of processes that compute on the GPU, at most `limit` of them. For a partitioned
    /// GPU, ask its instances.
    pub fn compute_processes(&self, limit: u32) -> Result<Vec<u32>, Error> {
        let none =
            sys::nvmlProcessInfo_v2_st { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
        let mut list = vec![none; limit as usize];
        let mut count = limit;
        let listed = call!(
            self.library(),
            self.at(),
            nvmlDeviceGetComputeRunningProcesses_v3(self.handle, &raw mut count, list.as_mut_ptr())
        );
        match listed {
            Err(error) if !error.too_small() => return Err(error),
            Err(_) => {}
            Ok(()) => list.truncate(count as usize),
        }
        Ok(list.into_iter().map(|p| p.pid).filter(|pid| *pid != 0).collect())
    }
}

/// The newer structure of the fabric begins with the older one.
const _: () = assert!(
    std::mem::offset_of!(sys::nvmlGpuFabricInfo_v3_t, healthMask)
        == std::mem::offset_of!(sys::nvmlGpuFabricInfo_v2_t, healthMask)
);
