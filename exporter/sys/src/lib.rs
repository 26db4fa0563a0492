//! A safe layer over the exporter's calls into the kernel and drivers that the compiler cannot
//! check, and nothing else. Only this crate and `stepwatch-heap` contain `unsafe`.

pub mod adjtimex;
pub mod code;
pub mod credentials;
pub mod death;
pub mod ethtool;
pub mod module_eeprom;
pub mod nvme;
pub mod nvml;
