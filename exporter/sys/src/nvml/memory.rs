//! Memory errors and memory repairs.

use nvml_wrapper_sys::bindings as sys;

use super::device::numbers;
use super::{Device, Error, call, versioned};

/// Rows of memory that were replaced by spare rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remapped {
    pub correctable: u32,
    pub uncorrectable: u32,
    /// Whether a remapping takes effect only after a reset of the GPU.
    pub pending: bool,
    /// Whether a remapping failed because no spare row was left.
    pub failed: bool,
}

/// The number of memory banks by how many spare rows they have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemapBanks {
    pub max: u32,
    pub high: u32,
    pub partial: u32,
    pub low: u32,
    pub none: u32,
}

/// Errors of the memory on the chip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sram {
    /// Parity, SEC-DED and corrected errors since the driver was loaded.
    pub volatile: [u64; 3],
    /// The same counts over the life of the GPU.
    pub aggregate: [u64; 3],
    /// Uncorrected errors over the life of the GPU: in L2, SM, PCIe, microcontrollers, elsewhere.
    pub units: [u64; 5],
    pub threshold_exceeded: bool,
}

numbers! {
    EccSeverity {
        Corrected = sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED,
        Uncorrected = sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    }
    EccLifetime {
        /// Since the driver was loaded.
        Volatile = sys::nvmlEccCounterType_enum_NVML_VOLATILE_ECC,
        /// Of the GPU.
        Aggregate = sys::nvmlEccCounterType_enum_NVML_AGGREGATE_ECC,
    }
    EccLocation {
        L1 = sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_L1_CACHE,
        L2 = sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_L2_CACHE,
        Dram = sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DRAM,
        RegisterFile = sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_REGISTER_FILE,
        Texture = sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_TEXTURE_MEMORY,
        TextureShared = sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_TEXTURE_SHM,
        Cbu = sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_CBU,
        Sram = sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_SRAM,
    }
}

impl Device {
    /// Whether ECC is on now, and whether it will be on after the next reset.
    pub fn ecc_mode(&self) -> Result<(bool, bool), Error> {
        let (mut current, mut pending) = (0, 0);
        call!(
            self.library(),
            self.at(),
            nvmlDeviceGetEccMode(self.handle(), &raw mut current, &raw mut pending)
        )?;
        Ok((current == 1, pending == 1))
    }

    pub fn ecc_total(&self, severity: EccSeverity, lifetime: EccLifetime) -> Result<u64, Error> {
        let mut count = 0;
        let (severity, lifetime) = (severity.number(), lifetime.number());
        call!(
            self.library(),
            self.at(),
            nvmlDeviceGetTotalEccErrors(self.handle(), severity, lifetime, &raw mut count)
        )?;
        Ok(count)
    }

    pub fn ecc_at(
        &self,
        severity: EccSeverity,
        lifetime: EccLifetime,
        location: EccLocation,
    ) -> Result<u64, Error> {
        let mut count = 0;
        let (severity, lifetime, location) = (severity.number(), lifetime.number(), location.number());
        call!(
            self.library(),
            self.at(),
            nvmlDeviceGetMemoryErrorCounter(self.handle(), severity, lifetime, location, &raw mut count)
        )?;
        Ok(count)
    }

    pub fn sram(&self) -> Result<Sram, Error> {
        let mut s = sys::nvmlEccSramErrorStatus_v1_t {
            version: versioned::<sys::nvmlEccSramErrorStatus_v1_t>(1),
            aggregateUncParity: 0,
            aggregateUncSecDed: 0,
            aggregateCor: 0,
            volatileUncParity: 0,
            volatileUncSecDed: 0,
            volatileCor: 0,
            aggregateUncBucketL2: 0,
            aggregateUncBucketSm: 0,
            aggregateUncBucketPcie: 0,
            aggregateUncBucketMcu: 0,
            aggregateUncBucketOther: 0,
            bThresholdExceeded: 0,
        };
        call!(self.library(), self.at(), nvmlDeviceGetSramEccErrorStatus(self.handle(), &raw mut s))?;
        Ok(Sram {
            volatile: [s.volatileUncParity, s.volatileUncSecDed, s.volatileCor],
            aggregate: [s.aggregateUncParity, s.aggregateUncSecDed, s.aggregateCor],
            units: [
                s.aggregateUncBucketL2,
                s.aggregateUncBucketSm,
                s.aggregateUncBucketPcie,
                s.aggregateUncBucketMcu,
                s.aggregateUncBucketOther,
            ],
            threshold_exceeded: s.bThresholdExceeded != 0,
        })
    }

    /// The remapped rows; not supported for an instance of a partitioned GPU.
    pub fn remapped_rows(&self) -> Result<Remapped, Error> {
        let (mut correctable, mut uncorrectable, mut pending, mut failed) = (0, 0, 0, 0);
        call!(
            self.library(),
            self.at(),
            nvmlDeviceGetRemappedRows(
                self.handle(),
                &raw mut correctable,
                &raw mut uncorrectable,
                &raw mut pending,
                &raw mut failed
            )
        )?;
        Ok(Remapped { correctable, uncorrectable, pending: pending != 0, failed: failed != 0 })
    }

    pub fn remap_banks(&self) -> Result<RemapBanks, Error> {
        let mut h = sys::nvmlRowRemapperHistogramValues_st { max: 0, high: 0, partial: 0, low: 0, none: 0 };
        call!(self.library(), self.at(), nvmlDeviceGetRowRemapperHistogram(self.handle(), &raw mut h))?;
        Ok(RemapBanks { max: h.max, high: h.high, partial: h.partial, low: h.low, none: h.none })
    }

    /// The number of pages that were retired because of double bit errors, or because of too many
    /// single bit errors.
    pub fn retired_pages(&self, double_bit: bool) -> Result<u32, Error> {
        let cause = if double_bit {
            sys::nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR
        } else {
            sys::nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS
        };
        let mut count = 0;
        // Without room for addresses the call returns the count and an error about the size.
        let counted = call!(
            self.library(),
            self.at(),
            nvmlDeviceGetRetiredPages(self.handle(), cause, &raw mut count, std::ptr::null_mut())
        );
        match counted {
            Err(error) if !error.too_small() => Err(error),
            _ => Ok(count),
        }
    }
}
