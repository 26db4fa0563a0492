//! A directory of the textfile collector with 200,000 series.

use std::fmt::Write as _;

use crate::attack::{Attack, Target};

pub(crate) const ATTACK: Attack = Attack {
    exporter: |dir| format!("collectors: {{textfile: {{directories: ['{}']}}}}\n", dir.display()),
    ..Attack::new("textfile-series", act)
};

const FILES: usize = 4;
const SERIES: usize = 50_000;

fn act(target: &Target) -> anyhow::Result<()> {
    for file in 0..FILES {
        let mut text = String::new();
        for series in 0..SERIES {
            writeln!(text, "site_metric{{file=\"{file}\",series=\"{series}\"}} 1")?;
        }
        std::fs::write(target.dir.join(format!("{file}.prom")), text)?;
    }
    Ok(())
}
