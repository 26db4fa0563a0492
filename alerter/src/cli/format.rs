//! The output format of a command: a table for people, or JSON for programs.

use std::io::Write;

use clap::ValueEnum;
use serde::Serialize;

use super::error::CliError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Table,
    Json,
}

pub(super) fn json(out: &mut dyn Write, value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|e| CliError::Other(e.to_string()))?;
    Ok(writeln!(out, "{text}")?)
}
