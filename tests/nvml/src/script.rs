//! The file: which GPUs, what of them is different from a healthy one, and what goes wrong.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings as sys;
use serde::{Deserialize, Serialize};

use crate::fleets::Fleet;

/// Key of [`Script::gpus`] for all of them.
pub const ALL: &str = "*";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    pub fleet: Fleet,
    /// The file will not change: it is not looked at before each call, which costs more than most
    /// of the calls.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// How many GPUs, where not as many as the fleet has.
    pub count: Option<usize>,
    /// Version of the driver, where not the fleet's.
    pub driver: Option<String>,
    /// Seconds since the beginning, where the time is fixed.
    pub time: Option<f64>,
    /// By index or [`ALL`], then by name, what is different; `None` is what the GPU does not
    /// support.
    pub gpus: BTreeMap<String, BTreeMap<String, Option<Quantity>>>,
    /// Indices of GPUs that still have a number and answer nothing.
    pub lost: Vec<usize>,
    /// Indices of GPUs that are counted and have no handle, and why.
    pub unusable: BTreeMap<usize, Code>,
    /// Indices of GPUs that the driver no longer lists; those behind them move up.
    pub fallen: Vec<usize>,
    pub faults: Vec<Fault>,
    /// What waits in event sets, oldest first. A set sees what is added after a GPU was registered
    /// with it.
    pub events: Vec<NvmlEvent>,
}

/// The answer of one GPU to one query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Quantity {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    /// Grows with time or with each time it is read.
    Growing {
        at: f64,
        #[serde(default)]
        per_second: f64,
        #[serde(default)]
        per_read: f64,
    },
}

/// What goes wrong with a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// A function, or the beginning of its name and a `*`.
    pub call: String,
    /// Only on this GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<usize>,
    /// Only this field of `nvmlDeviceGetFieldValues`; the others are answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<u32>,
    /// Only from the call with this number on: of the function, or of all where `call` is `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    pub effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The call does not return while this is in the file.
    Hang,
    /// It takes this long, as a call does that waits for a lock of the driver.
    DelayMs(u64),
    Fail(Code),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmlEvent {
    pub gpu: usize,
    /// Bit of `nvmlEventType`; an XID is 8.
    #[serde(default = "xid")]
    pub kind: u64,
    /// The number of an XID.
    pub data: u64,
    /// Instances under MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<(u32, u32)>,
}

fn xid() -> u64 {
    sys::nvmlEventTypeXidCriticalError.into()
}

macro_rules! codes {
    ($($name:ident = $value:ident),* $(,)?) => {
        /// What a call returns.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Code {
            $($name),*
        }

        impl Code {
            pub fn value(self) -> sys::nvmlReturn_t {
                match self {
                    $(Self::$name => sys::$value),*
                }
            }
        }
    };
}

codes! {
    Uninitialized = nvmlReturn_enum_NVML_ERROR_UNINITIALIZED,
    InvalidArgument = nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT,
    NotSupported = nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
    NoPermission = nvmlReturn_enum_NVML_ERROR_NO_PERMISSION,
    NotFound = nvmlReturn_enum_NVML_ERROR_NOT_FOUND,
    InsufficientSize = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
    DriverNotLoaded = nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED,
    Timeout = nvmlReturn_enum_NVML_ERROR_TIMEOUT,
    GpuIsLost = nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST,
    ResetRequired = nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED,
    OperatingSystem = nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM,
    LibRmVersionMismatch = nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    InUse = nvmlReturn_enum_NVML_ERROR_IN_USE,
    NoData = nvmlReturn_enum_NVML_ERROR_NO_DATA,
    ArgumentVersionMismatch = nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    Unknown = nvmlReturn_enum_NVML_ERROR_UNKNOWN,
}

impl Script {
    pub fn for_fleet(fleet: Fleet) -> Self {
        Self { fleet, ..Self::default() }
    }

    /// Fixes the time at this second, so that every counter is known.
    pub fn at(mut self, seconds: f64) -> Self {
        self.time = Some(seconds);
        self
    }

    /// On all GPUs, `name` is this.
    pub fn all(self, name: &str, quantity: impl Into<Quantity>) -> Self {
        self.with(ALL, name, Some(quantity.into()))
    }

    /// On one GPU, `name` is this.
    pub fn one(self, gpu: usize, name: &str, quantity: impl Into<Quantity>) -> Self {
        self.with(&gpu.to_string(), name, Some(quantity.into()))
    }

    /// One GPU does not support `name`.
    pub fn absent(self, gpu: usize, name: &str) -> Self {
        self.with(&gpu.to_string(), name, None)
    }

    /// No GPU supports `name`.
    pub fn without(self, name: &str) -> Self {
        self.with(ALL, name, None)
    }

    fn with(mut self, gpu: &str, name: &str, quantity: Option<Quantity>) -> Self {
        self.gpus.entry(gpu.to_owned()).or_default().insert(name.to_owned(), quantity);
        self
    }

    pub fn fault(mut self, call: &str, effect: Effect) -> Self {
        self.faults.push(Fault::new(call, effect));
        self
    }
}

impl Fault {
    pub fn new(call: &str, effect: Effect) -> Self {
        Self { call: call.to_owned(), gpu: None, field: None, from: None, effect }
    }

    pub fn on(mut self, gpu: usize) -> Self {
        self.gpu = Some(gpu);
        self
    }

    pub fn field(field: u32, effect: Effect) -> Self {
        Self { field: Some(field), ..Self::new(crate::api::FIELD_VALUES, effect) }
    }

    pub fn from(mut self, call: u64) -> Self {
        self.from = Some(call);
        self
    }

    /// Whether this is a call that it is about, whatever its number.
    pub(crate) fn concerns(&self, call: &str, gpu: Option<usize>) -> bool {
        let named = match self.call.strip_suffix('*') {
            Some(beginning) => call.starts_with(beginning),
            None => call == self.call,
        };
        named && (self.gpu.is_none() || self.gpu == gpu)
    }
}

impl NvmlEvent {
    pub fn xid(gpu: usize, number: u64) -> Self {
        Self { gpu, kind: xid(), data: number, instance: None }
    }
}

impl From<u64> for Quantity {
    fn from(value: u64) -> Self {
        Self::Unsigned(value)
    }
}

impl From<i64> for Quantity {
    fn from(value: i64) -> Self {
        Self::Signed(value)
    }
}

impl From<f64> for Quantity {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Quantity {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl Quantity {
    /// A counter that grows with time.
    pub fn growing(at: f64, per_second: f64) -> Self {
        Self::Growing { at, per_second, per_read: 0.0 }
    }

    /// Its number `seconds` after the beginning, when it has been read `reads` times before; whole
    /// numbers stay exact.
    pub(crate) fn number(&self, seconds: f64, reads: u64) -> Option<Number> {
        Some(match *self {
            Self::Unsigned(n) => Number::Unsigned(n),
            Self::Signed(n) => Number::Signed(n),
            Self::Float(n) => Number::Float(n),
            Self::Growing { at, per_second, per_read } => {
                Number::Float(at + per_second * seconds + per_read * reads as f64)
            }
            Self::Text(_) => return None,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
}

impl Number {
    pub(crate) fn unsigned(self) -> u64 {
        match self {
            Self::Unsigned(n) => n,
            Self::Signed(n) => n as u64,
            Self::Float(n) => n as u64,
        }
    }

    pub(crate) fn signed(self) -> i64 {
        match self {
            Self::Unsigned(n) => n as i64,
            Self::Signed(n) => n,
            Self::Float(n) => n as i64,
        }
    }

    pub(crate) fn float(self) -> f64 {
        match self {
            Self::Unsigned(n) => n as f64,
            Self::Signed(n) => n as f64,
            Self::Float(n) => n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_by_hand() {
        let text = r#"{"fleet": "h100", "count": 2, "driver": "550.54.15",
            "gpus": {"*": {"temperature": 90, "power.usage": null, "ecc.corrected.volatile": {"at": 5, "per_second": 5000}},
                     "1": {"name": "NVIDIA X", "temperature.margin": -3, "energy": 18446744073709551615}},
            "faults": [{"call": "*", "gpu": 1, "from": 100, "effect": "hang"},
                       {"call": "nvmlInit*", "effect": {"fail": "driver_not_loaded"}},
                       {"call": "nvmlDeviceGetName", "effect": {"delay_ms": 5}}],
            "events": [{"gpu": 0, "data": 79}]}"#;
        let script: Script = serde_json::from_str(text).unwrap();
        assert_eq!(
            script.gpus["1"]["energy"].as_ref().and_then(|q| q.number(9.0, 9)),
            Some(Number::Unsigned(u64::MAX))
        );
        assert_eq!(script.gpus["*"]["power.usage"], None);
        let growing = script.gpus["*"]["ecc.corrected.volatile"].clone().unwrap();
        assert_eq!(growing.number(2.0, 0).unwrap().unsigned(), 10_005);
        assert_eq!(script.gpus["1"]["temperature.margin"], Some(Quantity::Signed(-3)));
        assert_eq!(script.events, [NvmlEvent::xid(0, 79)]);
        assert!(script.faults[0].concerns("nvmlDeviceGetName", Some(1)));
        assert!(!script.faults[0].concerns("nvmlDeviceGetName", Some(0)));
        assert!(!script.faults[0].concerns("nvmlDeviceGetCount_v2", None));
        assert!(script.faults[1].concerns("nvmlInitWithFlags", None));
        let again: Script = serde_json::from_str(&serde_json::to_string(&script).unwrap()).unwrap();
        assert_eq!(again, script);
    }

    #[test]
    fn a_misspelt_key_is_a_mistake() {
        assert!(serde_json::from_str::<Script>(r#"{"gpu": {}}"#).is_err());
    }
}
