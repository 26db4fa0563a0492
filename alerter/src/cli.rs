//! The command line: its commands, and the exit status of each.
//!
//! | status | means |
//! |---|---|
//! | 0 | done |
//! | 1 | it failed, or what was asked for is not so |
//! | 64 | the command line or the configuration is wrong |
//!
//! `run`, `config check`, `notify test`, `simulate` and `oncall --config` read the configuration;
//! `backtest` and `fabric report` read recordings. `store` works on a database. `openapi`,
//! `completions` and `man` describe the program itself. The other commands query a running alerter
//! over HTTP.

mod audit;
mod client;
mod error;
mod explain;
mod fabric;
mod format;
mod incidents;
mod notify;
mod oncall;
mod report;
mod runs;
mod runs_diff;
mod screen;
mod silences;
mod simulate;
mod state;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod top;
mod watch;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use serde::Serialize;
use stepwatch_kit::build_info;
use stepwatch_kit::config::{EXIT_CONFIG, Mistake};
use stepwatch_kit::logging::{self, LogControl};
use stepwatch_kit::serve::ListenAddr;
use stepwatch_kit::shell;
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_wire::words;
use tokio::runtime::Runtime;

use crate::app::{App, Ended, Options, StartError, survive_limits};
use crate::backtest::{self, BacktestError};
use crate::clock::wall;
use crate::config::Config;
use crate::errors::chain;
use crate::openapi;
use crate::replica::STAND_BACK;
use error::CliError;
use format::{Format, json};

/// All state has been stored before this begins.
const THREADS_END_WITHIN: Duration = Duration::from_secs(1);

/// Watches training runs through their exporters, and notifies people when something is wrong.
#[derive(Debug, Parser)]
#[command(
    name = "stepwatch-alerter",
    version = build_info::VERSION,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the alerter (also without a command)
    Run(RunArgs),
    /// Replay recorded runs and print what would have been reported about them
    Backtest(backtest::Args),
    /// Work on configuration files
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Work on receivers
    #[command(subcommand)]
    Notify(NotifyCommand),
    /// See and answer incidents of a running alerter
    #[command(subcommand)]
    Incidents(incidents::IncidentsCommand),
    /// Keep incidents quiet for a while, on purpose and with a reason
    #[command(subcommand)]
    Silences(silences::SilencesCommand),
    /// Explain an incident: what was seen, decided and sent, and why
    Explain(incidents::ExplainArgs),
    /// List who changed what, or tried to, and through which interface
    Audit(audit::AuditArgs),
    /// Show who is on call, and when who is
    #[command(name = "oncall")]
    OnCall(Box<oncall::OnCallArgs>),
    /// Show who would be notified of what, when and why, without notifying anybody
    Simulate(simulate::SimulateArgs),
    /// The runs that a running alerter watches
    Runs(runs::RunsArgs),
    /// Report where the GPU time of a period went, what it cost, and what interrupted it
    Report(report::ReportArgs),
    /// Plan measurements of pairs of nodes, and find what is slow in their results
    #[command(subcommand)]
    Fabric(fabric::FabricCommand),
    /// The fleet on one screen, drawn anew every two seconds: incidents, runs, nodes
    Top(top::TopArgs),
    /// The exporters that a running alerter reads
    Sources(state::StateArgs),
    /// How a running alerter is
    Status(state::StateArgs),
    /// Work on the database of an alerter that does not run
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Print the OpenAPI document of what a running alerter serves
    #[command(name = "openapi")]
    OpenApi,
    /// Print the script with which a shell completes this command line
    #[command(after_help = COMPLETION_EXAMPLES)]
    Completions { shell: Shell },
    /// Write the manual page of every command to a directory
    #[command(after_help = MANUAL_EXAMPLES)]
    Man { directory: PathBuf },
}

const COMPLETION_EXAMPLES: &str = "\
Examples:
  source <(stepwatch-alerter completions bash)
  stepwatch-alerter completions zsh > \"${fpath[1]}/_stepwatch-alerter\"
  stepwatch-alerter completions fish > ~/.config/fish/completions/stepwatch-alerter.fish";

const MANUAL_EXAMPLES: &str = "\
Examples:
  stepwatch-alerter man /usr/local/share/man/man1
  man stepwatch-alerter-incidents";

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter run --config /etc/stepwatch/alerter.yml --web.config.file /etc/stepwatch/web.yml")]
pub struct RunArgs {
    /// The configuration
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// Listen here instead of where the configuration says
    #[arg(long, value_name = "ADDR")]
    listen: Option<ListenAddr>,
    /// TLS and authentication, in the format of Prometheus' exporters
    #[arg(long = "web.config.file", value_name = "FILE")]
    web_config: Option<PathBuf>,
    /// Begin with the database as it is, although it is empty or not the one that was here before
    #[arg(long)]
    new_store: bool,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Check a configuration and print what was understood
    Check(CheckArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter config check alerter.yml
  stepwatch-alerter config check alerter.yml --format json")]
struct CheckArgs {
    file: PathBuf,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// The output of `config check` for programs.
#[derive(Debug, Serialize)]
struct Checked<'a> {
    file: String,
    good: bool,
    /// The mistakes, each with its line and column if it has a place.
    mistakes: Vec<Mistake>,
    warnings: &'a [String],
    /// Upcoming times in which nobody is on call.
    gaps: &'a [String],
    understood: BTreeMap<&'static str, Vec<String>>,
}

#[derive(Debug, Subcommand)]
enum NotifyCommand {
    /// Send a message that says it is a test to every receiver, or to one
    Test(notify::TestArgs),
}

impl Cli {
    /// Runs the command, and returns the exit status.
    pub async fn main(self) -> u8 {
        let log = || logging::init(words::clean);
        self.run_with(log, &mut screen::stdout(), &mut io::stderr()).await
    }

    /// Runs the command. `log` starts the logging of a service; other commands do not log.
    async fn run_with(self, log: fn() -> LogControl, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
        match self.dispatch(log, out, err).await {
            Ok(()) => 0,
            Err(CliError::Write(e)) if e.kind() == io::ErrorKind::BrokenPipe => 0,
            Err(e) => {
                if !matches!(e, CliError::Said(_)) {
                    // The error may contain names of files and lines of them.
                    let _ = writeln!(err, "{}", words::clean(&chain(&e)));
                }
                e.status()
            }
        }
    }

    async fn dispatch(
        self,
        log: fn() -> LogControl,
        out: &mut dyn Write,
        err: &mut dyn Write,
    ) -> Result<(), CliError> {
        match self.command.unwrap_or(Command::Run(self.run)) {
            Command::Run(args) => Box::pin(run(args, log())).await,
            Command::Backtest(args) => replay(&args, out, err),
            Command::Config(ConfigCommand::Check(args)) => check(&args, out),
            Command::Notify(NotifyCommand::Test(args)) => notify::test(args, out).await,
            Command::Incidents(command) => incidents::run(command, out).await,
            Command::Silences(command) => silences::run(command, out).await,
            Command::Explain(args) => incidents::explain(args, out).await,
            Command::Audit(args) => audit::run(args, out).await,
            Command::OnCall(args) => oncall::run(*args, out, err).await,
            Command::Simulate(args) => simulate::run(args, out),
            Command::Runs(args) => runs::run(args, out).await,
            Command::Report(args) => report::run(args, out).await,
            Command::Fabric(command) => fabric::run(&command, out),
            Command::Sources(args) => state::sources(args, out).await,
            Command::Status(args) => state::status(args, out).await,
            Command::Top(args) => top::run(args, out).await,
            Command::Store(command) => Box::pin(store::run(command, out)).await,
            Command::OpenApi => document(out),
            Command::Completions { shell } => Ok(shell::completions(Cli::command(), shell, out)?),
            Command::Man { directory } => manual(&directory, out),
        }
    }
}

/// Runs a command, and waits only briefly for its threads: a read of an unresponsive file system
/// may never end.
pub fn to_its_end<T>(runtime: Runtime, command: impl Future<Output = T>) -> T {
    let done = runtime.block_on(command);
    runtime.shutdown_timeout(THREADS_END_WITHIN);
    done
}

/// Prints the interpreted configuration, and the upcoming times in which nobody is on call.
fn check(args: &CheckArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let file = words::into_line(args.file.display().to_string());
    let config = match Config::load(&args.file) {
        Err(e) if args.format == Format::Json => {
            let (mistakes, understood) = (e.mistakes(), BTreeMap::new());
            json(out, &Checked { file, good: false, mistakes, warnings: &[], gaps: &[], understood })?;
            return Err(CliError::Said(EXIT_CONFIG));
        }
        loaded => loaded?,
    };
    let gaps = config.file.gaps(wall());
    if args.format == Format::Json {
        let (warnings, understood) = (&config.warnings, config.sections().into_iter().collect());
        return json(
            out,
            &Checked { file, good: true, mistakes: Vec::new(), warnings, gaps: &gaps, understood },
        );
    }
    write!(out, "{config}")?;
    for (i, gap) in gaps.iter().enumerate() {
        writeln!(out, "{:10} {}", if i == 0 { "on call" } else { "" }, table::plain(gap))?;
    }
    Ok(())
}

fn document(out: &mut dyn Write) -> Result<(), CliError> {
    let text = openapi::text().map_err(|e| CliError::Other(e.to_string()))?;
    Ok(out.write_all(text.as_bytes())?)
}

fn manual(directory: &Path, out: &mut dyn Write) -> Result<(), CliError> {
    let written = shell::manual(Cli::command(), directory);
    let written = written.map_err(|e| CliError::Other(format!("{}: {e}", directory.display())))?;
    written.iter().try_for_each(|page| writeln!(out, "{}", page.display())).map_err(CliError::Write)
}

fn replay(args: &backtest::Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), CliError> {
    match backtest::run(args, out, err) {
        Ok(true) => Ok(()),
        Ok(false) => Err(CliError::Said(1)),
        Err(BacktestError::Config(e)) => Err(CliError::Config(e)),
        Err(BacktestError::Write(e)) => Err(CliError::Write(e)),
        Err(e) => Err(CliError::Other(chain(&e))),
    }
}

async fn run(args: RunArgs, log: LogControl) -> Result<(), CliError> {
    // The parser requires the file, except with a subcommand.
    let config = args.config.ok_or_else(|| CliError::Other("--config FILE is required".into()))?;
    tracing::info!(version = build_info::VERSION, revision = build_info::GIT_SHA, "stepwatch-alerter");
    let shutdown = Shutdown::on_signals();
    survive_limits().map_err(|e| CliError::Start(e.into()))?;
    let RunArgs { listen, web_config, new_store, .. } = args;
    let mut options = Options { config, listen, web_config, new_store, stand_back: Duration::ZERO };
    loop {
        let started = App::start_unless(options.clone(), log.clone(), &shutdown);
        let started = Box::pin(started).await.map_err(|e| match e {
            StartError::Config(e) => CliError::Config(e),
            e => CliError::Start(e),
        })?;
        let Some(app) = started else { return Ok(()) };
        match app.run(shutdown.clone()).await? {
            Ended::Stopped => return Ok(()),
            Ended::HandedOver => options.stand_back = STAND_BACK,
        }
    }
}
