//! Attacks the two real programs with one attack after another, and measures the cost of each: the
//! memory of both programs, the age of a genuine step when it is on the page, and the time until a
//! genuine NaN pages.
//!
//! `cargo run --release -p stepwatch-hostile [ATTACK...]`; `cargo verify --full` runs all of them.
//! As root, the attacks of a neighbour on the node run as another user. The exit status is 1 if a
//! bound of docs/security.md does not hold.

#![expect(clippy::print_stdout, reason = "it is a terminal program")]

mod attack;
mod attacks;
mod newcomer;
mod stage;
mod ways;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::attack::{Attack, Target};
use crate::stage::{Measured, measure};

#[derive(Debug, Parser)]
#[command(
    version,
    about = "Attacks both programs and measures what each attack costs",
    args_conflicts_with_subcommands = true
)]
struct Cli {
    /// Names of attacks; all of them if none is given
    attacks: Vec<String>,
    #[command(subcommand)]
    act: Option<Act>,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Carry one attack out until killed (the program starts itself in this way)
    #[command(hide = true)]
    Act { attack: String, target: String },
    /// Make steps of a run that is new until killed
    #[command(hide = true)]
    Train { target: String },
}

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    let target = |json: &str| serde_json::from_str::<Target>(json);
    match &cli.act {
        Some(Act::Act { attack, target: json }) => (attacks::named(attack)?.act)(&target(json)?)?,
        Some(Act::Train { target: json }) => newcomer::train(&target(json)?),
        None => return attack(&cli.attacks),
    }
    Ok(ExitCode::SUCCESS)
}

fn attack(names: &[String]) -> anyhow::Result<ExitCode> {
    let chosen: Vec<&Attack> = if names.is_empty() {
        attacks::ALL.iter().collect()
    } else {
        names.iter().map(|name| attacks::named(name)).collect::<anyhow::Result<_>>()?
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!("{}", Measured::HEADER);
    let mut all_held = true;
    for attack in chosen {
        let measured = runtime.block_on(measure(attack))?;
        println!("{}", measured.row(attack));
        for wrong in measured.wrong(attack) {
            all_held = false;
            println!("    {}: {wrong}", attack.name);
        }
    }
    Ok(if all_held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
