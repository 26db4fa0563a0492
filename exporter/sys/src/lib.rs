//! Calls of the exporter into the kernel and drivers that the compiler cannot check: a thin, safe
//! layer over each foreign call, and nothing else. Only this crate and `stepwatch-heap` have
//! `unsafe` in them.

pub mod adjtimex;
pub mod code;
pub mod credentials;
pub mod ethtool;
pub mod module_eeprom;
pub mod nvme;
pub mod nvml;
