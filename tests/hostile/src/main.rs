//! Attacks the two real programs, one attack after another, and measures what each costs: the
//! memory of both programs, how old a genuine step is when it is on the page, and how long it takes
//! until a genuine NaN pages.
//!
//! `cargo run --release -p stepwatch-hostile [ATTACK...]`; `cargo verify --full` runs all of them.
//! As root, what a neighbour on the node does is done by another user. It ends with 1 if a bound of
//! docs/security.md does not hold.

#![expect(clippy::print_stdout, reason = "it is a terminal program")]

mod attack;
mod attacks;
mod stage;

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
}

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    if let Some(Act::Act { attack, target }) = cli.act {
        let attack = attacks::named(&attack)?;
        (attack.act)(&serde_json::from_str::<Target>(&target)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let chosen: Vec<&Attack> = if cli.attacks.is_empty() {
        attacks::ALL.iter().collect()
    } else {
        cli.attacks.iter().map(|name| attacks::named(name)).collect::<anyhow::Result<_>>()?
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
