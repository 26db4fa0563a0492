//! GPU performance monitoring of Hopper and later: the activity of the units of a GPU between two
//! samples.

use nvml_wrapper_sys::bindings as sys;

use super::error::check;
use super::{Device, Error, Nvml, call, versioned};

/// The ids of the metrics.
pub mod metric {
    use nvml_wrapper_sys::bindings as sys;

    pub const GRAPHICS: u32 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_GRAPHICS_UTIL;
    pub const SM: u32 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL;
    pub const OCCUPANCY: u32 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_OCCUPANCY;
    pub const INTEGER: u32 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_INTEGER_UTIL;
    pub const TENSOR: u32 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_ANY_TENSOR_UTIL;
    pub const DRAM: u32 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL;
    pub const FP64: u32 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_FP64_UTIL;
    pub const FP32: u32 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_FP32_UTIL;
    pub const FP16: u32 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_FP16_UTIL;
    pub const PCIE_TX: u32 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_TX_PER_SEC;
    pub const PCIE_RX: u32 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_RX_PER_SEC;
    pub const NVLINK_RX: u32 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC;
    pub const NVLINK_TX: u32 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC;
}

const VERSION: u32 = 1;

/// The counters of a GPU or of a GPU instance at one time, in memory of the driver's library.
#[derive(Debug)]
pub struct GpmSample {
    nvml: Nvml,
    handle: sys::nvmlGpmSample_t,
}

impl Drop for GpmSample {
    fn drop(&mut self) {
        // A sample that cannot be freed now is freed by the shutdown.
        let _ = call!(&self.nvml.0, None, nvmlGpmSampleFree(self.handle));
    }
}

impl Device {
    /// Whether the GPU supports performance monitoring.
    pub fn gpm_supported(&self) -> Result<bool, Error> {
        let mut support = sys::nvmlGpmSupport_t { version: VERSION, isSupportedDevice: 0 };
        call!(self.library(), self.at(), nvmlGpmQueryDeviceSupport(self.handle(), &raw mut support))?;
        Ok(support.isSupportedDevice != 0)
    }

    /// Takes a sample, of the GPU or of one of its instances.
    pub fn gpm_sample(&self, gpu_instance: Option<u32>) -> Result<GpmSample, Error> {
        let mut handle = std::ptr::null_mut();
        call!(self.library(), self.at(), nvmlGpmSampleAlloc(&raw mut handle))?;
        let sample = GpmSample { nvml: self.nvml().clone(), handle };
        match gpu_instance {
            None => call!(self.library(), self.at(), nvmlGpmSampleGet(self.handle(), handle))?,
            Some(id) => call!(self.library(), self.at(), nvmlGpmMigSampleGet(self.handle(), id, handle))?,
        }
        Ok(sample)
    }

    /// Returns the metrics between two samples, in the order of `metrics`: in per cent, or in
    /// MiB/s.
    pub fn gpm_metrics(
        &self,
        before: &GpmSample,
        after: &GpmSample,
        metrics: &[u32],
    ) -> Result<Vec<Result<f64, Error>>, Error> {
        const NOTHING: sys::nvmlGpmMetric_t = sys::nvmlGpmMetric_t {
            metricId: 0,
            nvmlReturn: sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
            value: f64::NAN,
            metricInfo: sys::nvmlGpmMetric_t__bindgen_ty_1 {
                shortName: std::ptr::null_mut(),
                longName: std::ptr::null_mut(),
                unit: std::ptr::null_mut(),
            },
        };
        let mut request = Box::new(sys::nvmlGpmMetricsGet_t {
            version: VERSION,
            numMetrics: 0,
            sample1: before.handle,
            sample2: after.handle,
            metrics: [NOTHING; sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_MAX as usize],
        });
        let asked = request.metrics.iter_mut().zip(metrics).map(|(slot, id)| slot.metricId = *id).count();
        request.numMetrics = asked as u32;
        call!(self.library(), self.at(), nvmlGpmMetricsGet(&raw mut *request))?;
        let value = |m: &sys::nvmlGpmMetric_t| check("nvmlGpmMetricsGet", m.nvmlReturn).map(|()| m.value);
        Ok(request.metrics.iter().take(asked).map(value).collect())
    }
}

/// The bindings and the header must agree on the size of a metric.
const _: () = assert!(versioned::<sys::nvmlGpmMetric_t>(0) == 40);
