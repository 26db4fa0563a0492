//! `cargo run --release -p stepwatch-tests --bin fleet -- --nodes 2048 --hours 2 --seed 1`: a
//! simulated fleet, watched by the engine.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use stepwatch_model::time::Ts;
use stepwatch_tests::fleet::{self, Listener, Mix, Options};
use stepwatch_wire::Event;

/// The clock ticks per second of Linux's processor times.
const TICKS: f64 = 100.0;

/// How well the engine names who did it, on a fleet whose faults are known
#[derive(Debug, Parser)]
#[command(name = "fleet")]
struct Args {
    /// Nodes with 8 ranks each
    #[arg(long, default_value_t = 256)]
    nodes: usize,
    /// Virtual hours
    #[arg(long, default_value_t = 2.0)]
    hours: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Fleets with this seed and the next ones, their results together
    #[arg(long, default_value_t = 1)]
    fleets: u64,
    #[arg(long, default_value_t = 1.0)]
    step_seconds: f64,
    /// Minutes from one fault of a run to the next
    #[arg(long, default_value_t = 15.0)]
    fault_minutes: f64,
    #[arg(long, value_enum, default_value_t = Faults::Llama3)]
    mix: Faults,
    /// Show wrong answers
    #[arg(long)]
    mistakes: bool,
    /// Serve the fleet in real time, as so many exporters that each carry a share of the nodes, to
    /// a real stepwatch-alerter that is started for it, for `--hours`
    #[arg(long, value_name = "EXPORTERS")]
    live: Option<usize>,
    /// Generate only: what the simulator itself costs
    #[arg(long)]
    deaf: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Faults {
    /// As often as they were seen to come
    Llama3,
    /// Every kind equally often
    Even,
    /// None: every page is false
    Quiet,
}

/// Ignores every event.
struct Discard;

impl Listener for Discard {
    fn receive(&mut self, _: Ts, _: &str, _: &Event) {}
    fn lost(&mut self, _: Ts, _: &str, _: &str) {}
    fn found(&mut self, _: Ts, _: &str) {}
    fn mended(&mut self, _: Ts, _: &str) {}
    fn pass(&mut self, _: Ts) {}
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            stepwatch_tests::say::line(&format!("fleet: {why}"));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> std::io::Result<()> {
    let mix = match args.mix {
        Faults::Llama3 => Mix::Llama3,
        Faults::Even => Mix::Even,
        Faults::Quiet => Mix::Quiet,
    };
    let options = |seed| Options {
        nodes: args.nodes,
        hours: args.hours,
        seed,
        step_seconds: args.step_seconds,
        fault_minutes: args.fault_minutes,
        mix,
    };
    if let Some(exporters) = args.live {
        let report = fleet::live(&options(args.seed), exporters).map_err(std::io::Error::other)?;
        return writeln!(std::io::stdout().lock(), "{report}");
    }
    let seeds = args.seed..args.seed + args.fleets.max(1);
    if args.deaf {
        let events: u64 = seeds.map(|seed| fleet::simulate(&options(seed), &mut Discard).1.events).sum();
        return pace(events, args.hours * args.fleets as f64);
    }
    let Some(score) = seeds.map(|seed| fleet::score(&options(seed))).reduce(fleet::Score::merge) else {
        return Ok(());
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{score}")?;
    if args.mistakes {
        writeln!(out, "{}", score.mistakes())?;
    }
    pace(score.volume.events, args.hours * args.fleets as f64)
}

/// Prints the cost on standard error, because it differs every time.
fn pace(events: u64, hours: f64) -> std::io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or(" unknown").trim();
    let secs = processor_seconds().unwrap_or(f64::NAN);
    writeln!(
        std::io::stderr().lock(),
        "{events} events in {secs:.1} s of one core: {:.0} a second, {:.0} times real time; peak memory {peak}",
        events as f64 / secs,
        3600.0 * hours / secs
    )
}

/// The processor time in seconds, because the wall clock measures nothing on a shared machine.
fn processor_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = stat.rsplit(") ").next()?.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS)
}
