//! Runs with as many metrics and ranks as are taken, under names that come before others.

use crate::attack::{Attack, Target, hold};

pub(crate) const ATTACK: Attack = Attack::new("page-series", act);

const RUNS: usize = 60;
const METRICS: usize = 250;
const RANKS: usize = 32;
const STEPS: usize = 5;

fn act(target: &Target) -> anyhow::Result<()> {
    let socket = target.packets()?;
    let metrics: Vec<_> = (0..METRICS).map(|i| format!(r#""m{i}":{i}.5"#)).collect();
    let (many, few) = (metrics.join(","), r#""loss":2.0"#.to_owned());
    for step in 1..=STEPS {
        for run in 0..RUNS {
            for rank in 0..RANKS {
                let m = if rank == 0 { &many } else { &few };
                socket.send(&format!(
                    r#"{{"v":1,"k":"step","run":"a-{run}","rank":{rank},"step":{step},"m":{{{m}}}}}"#
                ))?;
            }
        }
    }
    hold(socket)
}
