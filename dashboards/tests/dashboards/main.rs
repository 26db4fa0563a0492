//! The generated files, and every expression in them against a real Prometheus.

mod committed;
mod prometheus;
