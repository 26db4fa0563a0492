//! The node around its GPUs: processes and memory, PCIe, the clock, its setup, and the metrics of
//! the site's scripts.

pub mod clock;
pub mod config_drift;
pub mod edac;
pub mod fabric_manager;
pub mod memory;
pub mod pci;
pub mod process;
pub mod services;
pub mod textfile;
