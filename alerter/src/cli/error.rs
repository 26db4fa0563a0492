//! The errors of commands, and their exit status.

use std::io;

use stepwatch_kit::config::{ConfigError, EXIT_CONFIG};

use super::client::ClientError;
use crate::app::{RunError, StartError};

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the alerter does not start")]
    Start(#[source] StartError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{0}")]
    Other(String),
    /// Standard output is closed, because its reader has ended.
    #[error("cannot write")]
    Write(#[from] io::Error),
    /// The command has already printed the error.
    #[error("")]
    Said(u8),
}

impl CliError {
    pub(super) fn status(&self) -> u8 {
        match self {
            Self::Config(_) => EXIT_CONFIG,
            Self::Said(status) => *status,
            _ => 1,
        }
    }
}
