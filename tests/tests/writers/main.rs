//! What the real loggers write, read by the real exporter: values, order, nothing lost and nothing
//! doubled.
//!
//! A module is one package. Its writer is a script beside it that does in Python what a trainer
//! does, and goes on at each line on its standard input. Where a package is not installed the test
//! reports it loudly; `cargo verify` installs it and then insists.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod seen;
mod writer;

mod dcp;
mod identity;
mod kubeflow;
mod launch;
mod lightning;
mod loops;
mod otlp;
mod scrape;
mod statsd;
mod tensorboard;
mod tensorboardx;
mod torch;
mod transformers;
mod wandb;
