//! `stepwatch-alerter`: see [`stepwatch_alerter::cli`].

use std::process::ExitCode;

use clap::Parser;
use stepwatch_alerter::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => ExitCode::from(runtime.block_on(cli.main())),
        Err(err) => {
            // Nothing is set up yet that could take it.
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("cannot start: {err}\n"));
            ExitCode::FAILURE
        }
    }
}
