//! The generated files, and every expression in them against a real Prometheus.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod committed;
mod lint;
mod prometheus;
mod rules;
