//! The real binary from outside: what goes in, what comes out, what operators do with it.
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
mod sample_config;
mod stream;
mod support;
