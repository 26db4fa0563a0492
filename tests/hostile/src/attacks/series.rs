//! Runs with as many metrics and ranks as are accepted, under names that sort before others.

use crate::attack::{Attack, Target, hold};

pub(crate) const ATTACK: Attack = Attack::new("page-series", act);

const RUNS: usize = 60;
/// The number of runs of a connection, which may report 64 ranks.
const RUNS_OF_CONNECTION: usize = 2;
const METRICS: usize = 250;
const RANKS: usize = 32;
const STEPS: usize = 5;

fn act(target: &Target) -> anyhow::Result<()> {
    let connect = |_| target.packets();
    let sockets: Vec<_> = (0..RUNS / RUNS_OF_CONNECTION).map(connect).collect::<anyhow::Result<_>>()?;
    let metrics: Vec<_> = (0..METRICS).map(|i| format!(r#""m{i}":{i}.5"#)).collect();
    let (many, few) = (metrics.join(","), r#""loss":2.0"#.to_owned());
    for step in 1..=STEPS {
        for (nth, socket) in sockets.iter().enumerate() {
            let first = nth * RUNS_OF_CONNECTION;
            for (run, rank) in
                (first..first + RUNS_OF_CONNECTION).flat_map(|run| (0..RANKS).map(move |rank| (run, rank)))
            {
                let m = if rank == 0 { &many } else { &few };
                socket.send(&format!(
                    r#"{{"v":1,"k":"step","run":"a-{run}","rank":{rank},"step":{step},"m":{{{m}}}}}"#
                ))?;
            }
        }
    }
    hold(sockets)
}
