//! `cargo verify`: everything that a change must pass, in one command, on a machine that has only
//! Rust and Python 3.
//!
//! It installs what the tests need and lacks (as root by itself, otherwise it prints the one
//! command), then runs every check and goes on after a failure, so that one run shows all failures.
//! Output goes to `target/verify/*.log`; the terminal shows each step, its time, the test runners'
//! own closing lines, and of a failure the end of its log.
//!
//! Not a build system: no dependency, no state, and each step is a command that a person can type.

#![expect(clippy::print_stdout, reason = "it is a terminal program")]

mod circles;
mod dependencies;
mod extend;
mod facts;
mod fixtures;
mod fuzz;
mod house;
mod install;
mod postgres;
mod real;
mod report;
mod rust_source;
mod shell;
mod steps;
mod test;
mod widths;

use std::process::ExitCode;

use crate::report::{Phase, Report, Step};
use crate::shell::Workspace;

const USAGE: &str = "\
cargo verify [--full] [--verbose] [--list] [STEP...]

Runs every check of the project; with names, only the steps whose name contains one of them.

  --full      also what takes long: training loops of the frameworks themselves, and the Python adapters against them (some 8 GB
              under target/verify/real); every fuzz target; every attack of tests/hostile; the tail at 1,000 lines a second; the end-to-end and kill
              tests 20 times in a row, 500 rounds of blows to one alerter and to three replicas, and a fuzzer against every route of the alerter.
              Nothing may be left out: what was not run fails its step
  --verbose   show the whole output of every step, not only in target/verify/*.log
  --list      print the names of the steps and exit
";

#[derive(Debug, Default)]
struct Options {
    full: bool,
    verbose: bool,
    list: bool,
    only: Vec<String>,
}

fn parse(args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut o = Options::default();
    for arg in args {
        match arg.as_str() {
            "--full" => o.full = true,
            "--verbose" | "-v" => o.verbose = true,
            "--list" => o.list = true,
            "--help" | "-h" => return Err(USAGE.into()),
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}\n\n{USAGE}")),
            name => o.only.push(name.to_owned()),
        }
    }
    Ok(o)
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(text) => {
            println!("{text}");
            return ExitCode::from(2);
        }
    };
    let mut steps = steps::all();
    steps.retain(|s| options.full || !s.long);
    if !options.only.is_empty() {
        steps.retain(|s| options.only.iter().any(|want| s.name.contains(want)));
    }
    if options.list || steps.is_empty() {
        steps.iter().for_each(|s| println!("{:<18} {}", s.name, s.about));
        return if steps.is_empty() { ExitCode::from(2) } else { ExitCode::SUCCESS };
    }
    let workspace = match Workspace::find(options.full, options.verbose) {
        Ok(workspace) => workspace,
        Err(why) => {
            println!("{why}");
            return ExitCode::FAILURE;
        }
    };
    let mut report = Report::new(options.full);
    run(&steps, &workspace, &mut report);
    report.summary();
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the phases. A person who has to install something by hand learns so after the step that was
/// under way.
fn run(steps: &[Step], workspace: &Workspace, report: &mut Report) {
    let of = |phase| steps.iter().filter(move |step| step.phase == phase);
    let installed = std::thread::scope(|threads| {
        let mut installing = of(Phase::Install).next().map(|step| threads.spawn(|| step.run(workspace)));
        for step in of(Phase::Static) {
            report.run(step, workspace);
            if let Some(thread) = installing.take_if(|thread| thread.is_finished())
                && !report.add(thread.join())
            {
                return false;
            }
        }
        installing.is_none_or(|thread| report.add(thread.join()))
    });
    // Without its tools every later failure would be noise.
    if !installed {
        return;
    }
    std::thread::scope(|threads| {
        let beside: Vec<_> = of(Phase::BesideTests).collect();
        let beside = threads.spawn(|| beside.into_iter().map(|step| step.run(workspace)).collect::<Vec<_>>());
        of(Phase::Tests).for_each(|step| _ = report.run(step, workspace));
        match beside.join() {
            Ok(done) => done.into_iter().for_each(|done| _ = report.add(Ok(done))),
            Err(panic) => _ = report.add(Err(panic)),
        }
    });
    of(Phase::Alone).for_each(|step| _ = report.run(step, workspace));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options() {
        let args = |list: &[&str]| parse(list.iter().map(|s| (*s).to_owned()));
        let o = args(&["--full", "clippy"]).unwrap();
        assert!(o.full && !o.verbose && o.only == ["clippy"]);
        assert!(args(&["--ful"]).unwrap_err().contains("unknown option --ful"));
        assert!(args(&["--help"]).is_err());
    }
}
