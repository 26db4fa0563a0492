//! One process that sends a hello for many runs and then nothing.

use crate::attack::{Attack, Target, hold};

pub(crate) const ATTACK: Attack = Attack::new("silent-hellos", act);

const RUNS: usize = 200;

fn act(target: &Target) -> anyhow::Result<()> {
    let silent = target.packets()?;
    for run in 0..RUNS {
        silent.send(&format!(r#"{{"v":1,"k":"hello","run":"silent-{run}","rank":0,"world":1}}"#))?;
    }
    hold(silent)
}
