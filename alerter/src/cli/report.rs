//! `report`: how the GPU time of a period was used, and what interrupted it.

use std::io::Write;

use clap::{Args, ValueEnum};
use stepwatch_model::time::{Span, Ts};

use super::client::ClientArgs;
use super::error::CliError;
use super::format::json;
use crate::api::view::When;
use crate::clock::wall;
use crate::report::view::ReportView;
use crate::report::{html, markdown};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter report --since 30d --format html > report.html")]
pub(super) struct ReportArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Only this run
    #[arg(long)]
    run: Option<String>,
    /// Of so long: 12h, 7d, 30d; in whole hours
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = Span::parse)]
    since: Span,
    #[arg(long, value_enum, default_value_t = ReportFormat::Md)]
    format: ReportFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    /// Markdown
    Md,
    /// A page that is a file
    Html,
    Json,
}

pub(super) async fn run(args: ReportArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let since = serde_json::to_value(When(Ts(wall().0 - args.since.0))).unwrap_or_default();
    let mut query = vec![("since", since.as_str().unwrap_or_default())];
    query.extend(args.run.as_deref().map(|run| ("run", run)));
    let view: ReportView = args.client.client()?.get(&["report"], &query).await?;
    match args.format {
        ReportFormat::Md => write!(out, "{}", markdown::render(&view))?,
        ReportFormat::Html => write!(out, "{}", html::render(&view))?,
        ReportFormat::Json => json(out, &view)?,
    }
    Ok(())
}
