//! The exporter as a process, on machines that are not there: a library that stands in for NVML,
//! and trees of files that stand in for the kernel's.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod active;
mod bench;
mod check;
mod dashboard;
mod deploy;
mod energy;
mod gpu;
mod incidents;
mod job;
mod kernel;
mod kubernetes;
mod leak;
mod mfu;
mod node;
mod series;
mod tree;
