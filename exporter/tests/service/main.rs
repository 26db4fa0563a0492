//! Tests of the real binary from outside: its input, its output, and its operation.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod fabric;
mod frameworks;
mod hostile;
mod ingest;
mod mounts;
mod node;
mod owners;
mod page;
mod push;
mod rights;
mod sample_config;
mod stream;
mod support;
