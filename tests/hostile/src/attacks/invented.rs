//! NaN and a goodbye for runs that do not exist.

use crate::attack::{Attack, Target};

pub(crate) const ATTACK: Attack =
    Attack { pages: PAGES, ..Attack::new("invented-runs", |target| invent(target, 120)) };
pub(crate) const MANY: Attack =
    Attack { pages: PAGES, ..Attack::new("million-runs", |target| invent(target, RUNS)) };
pub(crate) const DATAGRAMS: Attack = Attack { pages: PAGES, ..Attack::new("million-datagrams", datagrams) };

const RUNS: usize = 1_000_000;

/// A connection may report 64 runs.
const RUNS_OF_CONNECTION: usize = 64;
/// Of one user, of runs that are new: docs/incidents.md.
const PAGES: usize = 15;

fn invent(target: &Target, runs: usize) -> anyhow::Result<()> {
    let mut socket = target.packets()?;
    for run in 0..runs {
        if run % RUNS_OF_CONNECTION == 0 {
            socket = target.packets()?;
        }
        for event in life(run) {
            // A connection that gave way to another's is opened again.
            while socket.send(&event).is_err() {
                socket = target.packets()?;
            }
        }
    }
    Ok(())
}

/// By datagrams, which need no connection.
fn datagrams(target: &Target) -> anyhow::Result<()> {
    let socket = target.datagrams()?;
    (0..RUNS).flat_map(life).try_for_each(|event| socket.send(&event))
}

fn life(run: usize) -> [String; 4] {
    [
        format!(r#"{{"v":1,"k":"hello","run":"invented-{run}","rank":0,"world":1}}"#),
        format!(r#"{{"v":1,"k":"step","run":"invented-{run}","rank":0,"step":1,"m":{{"loss":2.0}}}}"#),
        format!(r#"{{"v":1,"k":"step","run":"invented-{run}","rank":0,"step":2,"m":{{"loss":NaN}}}}"#),
        format!(r#"{{"v":1,"k":"bye","run":"invented-{run}","rank":0,"code":1}}"#),
    ]
}
