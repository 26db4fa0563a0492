//! `stepwatch-alerter`: see [`stepwatch_alerter::cli`].

use std::process::ExitCode;

use clap::Parser;
use stepwatch_alerter::cli::{self, Cli};
use stepwatch_kit::config::EXIT_CONFIG;

/// The number of malloc arenas: requests are read on any of hundreds of threads, but only on a few
/// at a time.
const HEAPS: u8 = 4;

fn main() -> ExitCode {
    stepwatch_heap::share(HEAPS);
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(err) => {
            // An invalid argument counts as an invalid configuration; the status 2 has another
            // meaning for `check`.
            let _ = err.print();
            return if err.use_stderr() { EXIT_CONFIG.into() } else { ExitCode::SUCCESS };
        }
    };
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => ExitCode::from(cli::to_its_end(runtime, cli.main())),
        Err(err) => {
            // Logging is not set up yet.
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("cannot start: {err}\n"));
            ExitCode::FAILURE
        }
    }
}
