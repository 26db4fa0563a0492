//! The node around its GPUs: processes and memory, PCIe, the clock, its setup, and what scripts say
//! of it.

pub mod clock;
pub mod config_drift;
pub mod edac;
pub mod pci;
pub mod process;
pub mod textfile;
