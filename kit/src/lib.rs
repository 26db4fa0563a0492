//! What every service of Stepwatch offers to those who operate it: a configuration file whose
//! mistakes are pointed at with a caret, structured logs whose level changes at run time, signals,
//! hardened HTTP serving with TLS and authentication, the `/-/` endpoints, a metrics page in both
//! text formats, and completions and manual pages of its command line.
//!
//! It contains nothing specific to training, metrics families or alerts, and holds no global state
//! except the process's logger.

pub mod admin;
pub mod build_info;
pub mod config;
pub mod crash;
pub mod exposition;
pub mod log_throttle;
pub mod logging;
pub mod serve;
pub mod shell;
pub mod shutdown;
pub mod web_config;
