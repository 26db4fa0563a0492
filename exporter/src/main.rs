//! The program: parses its command line and runs the command.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser as _};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stepwatch_exporter::app::{self, App, Setup};
use stepwatch_exporter::cli::{Cli, Command, ConfigCommand, ReferenceFormat};
use stepwatch_exporter::commands::format::Format;
use stepwatch_exporter::commands::{check, reference};
use stepwatch_exporter::config::Config;
use stepwatch_kit::config::{ConfigError, EXIT_CONFIG};
use stepwatch_kit::shell;
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_wire::words;

/// Serving takes little time; a second thread keeps a slow request from delaying the ingest.
const WORKERS: usize = 2;
/// The number of heaps, each of which keeps its free memory. With sixteen, three attacks at once
/// took 73 to 76 MiB, with two 64 to 70. Tails allocate little, and seldom wait for each other.
const HEAPS: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(err) => {
            // A wrong argument is a configuration error; 2 has another meaning for `check`.
            let _ = err.print();
            return if err.use_stderr() { EXIT_CONFIG.into() } else { ExitCode::SUCCESS };
        }
    };
    match run(&cli) {
        Ok(code) => code,
        Err(error) if error.is::<ConfigError>() => {
            // The error contains the name of the file and lines of it, so it is cleaned.
            let _ = writeln!(std::io::stderr(), "{}", words::clean(&error.to_string()));
            EXIT_CONFIG.into()
        }
        Err(error) => {
            let error = format!("{error:#}");
            let _ = writeln!(std::io::stderr(), "stepwatch-exporter: {}", words::clean(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let setup = cli.options.setup();
    match &cli.command {
        None | Some(Command::Run) if cli.once => print(&app::once(&setup, &setup.config()?)?),
        None | Some(Command::Run) => serve(setup),
        Some(Command::Check(options)) => check_node(&setup, options),
        Some(Command::Config(ConfigCommand::Check { file, format })) => check_config(file, *format),
        Some(Command::Emit(emit)) => emit.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Runs(runs)) => print(&runs.run(&setup.config()?.listen)?),
        Some(Command::Metrics { format }) => print(&match format {
            ReferenceFormat::Text => reference::text(),
            ReferenceFormat::Json => reference::json(),
            ReferenceFormat::Markdown => reference::markdown(),
        }),
        Some(Command::Completions { shell: wanted }) => {
            let mut script = Vec::new();
            shell::completions(Cli::command(), *wanted, &mut script)?;
            print(&String::from_utf8(script)?)
        }
        Some(Command::Man { directory }) => {
            let written = shell::manual(Cli::command(), directory);
            let written = written.with_context(|| directory.display().to_string())?;
            let pages: Vec<_> = written.iter().map(|page| page.display().to_string()).collect();
            print(&(pages.join("\n") + "\n"))
        }
    }
}

fn check_config(file: &Path, format: Format) -> anyhow::Result<ExitCode> {
    let (loaded, name) = (Config::load(file), words::into_line(file.display().to_string()));
    if format == Format::Text {
        loaded?;
        return print(&format!("{name}: ok\n"));
    }
    let (good, error) = (loaded.is_ok(), loaded.err());
    let mistakes = error.map(|error| error.mistakes()).unwrap_or_default();
    let checked = serde_json::json!({"file": name, "good": good, "mistakes": mistakes});
    print(&format!("{checked:#}\n"))?;
    Ok(if good { ExitCode::SUCCESS } else { EXIT_CONFIG.into() })
}

fn check_node(setup: &Setup, options: &check::Options) -> anyhow::Result<ExitCode> {
    let config = setup.config()?;
    if options.inner {
        return print(&check::answer(&config, &setup.roots, options));
    }
    let args = std::env::args_os().skip(1).collect();
    if options.tester {
        return print(&check::test_answer(&config, &setup.roots, options, args));
    }
    let report = check::supervised(&config, &setup.roots, options, args);
    print(&match options.format {
        Format::Text => report.text(options.quiet),
        Format::Json => report.json(options.quiet),
    })?;
    if let Some(path) = &options.write_reference {
        check::Reference::write(&report, path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(report.exit.into())
}

fn serve(setup: Setup) -> anyhow::Result<ExitCode> {
    stepwatch_heap::share(HEAPS);
    let config = setup.config()?;
    let log = stepwatch_kit::logging::init(words::clean);
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    runtime.block_on(async {
        let shutdown = Shutdown::on_signals();
        App::bind(setup, config).await?.run(log, shutdown).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Raises this process's limit of open files to the allowed maximum. The usual limit is for
/// programs that use `select`. Without it, hundreds of tailed logs could keep the metrics page from
/// being served.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// Prints text. A reader that closes the pipe early is no error.
fn print(text: &str) -> anyhow::Result<ExitCode> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}
