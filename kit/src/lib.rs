//! The operating features that all services of Stepwatch share: a configuration file whose mistakes
//! are shown with a caret, structured logs whose level changes at run time, signals, hardened HTTP
//! serving with TLS and authentication, the `/-/` endpoints, a metrics page in both text formats,
//! and shell completions and manual pages.
//!
//! Nothing here is specific to training, metric families or alerts. The only global state is the
//! logger of the process.

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
