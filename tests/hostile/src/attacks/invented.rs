//! NaN and goodbye events for runs that do not exist.

use crate::attack::{Attack, Target};

pub(crate) const ATTACK: Attack =
    Attack { pages: PAGES, ..Attack::new("invented-runs", |target| invent(target, 120)) };
pub(crate) const MANY: Attack =
    Attack { pages: PAGES, ..Attack::new("million-runs", |target| invent(target, RUNS)) };
pub(crate) const DATAGRAMS: Attack = Attack { pages: PAGES, ..Attack::new("million-datagrams", datagrams) };

const RUNS: usize = 1_000_000;

/// The most runs of a connection.
const RUNS_OF_CONNECTION: usize = 64;
/// The most pages of one user about new runs: docs/incidents.md.
const PAGES: usize = 15;

fn invent(target: &Target, runs: usize) -> anyhow::Result<()> {
    let mut socket = target.packets()?;
    for run in 0..runs {
        if run % RUNS_OF_CONNECTION == 0 {
            socket = target.packets()?;
        }
        for event in life(run) {
            // A connection that was closed for another one is opened again.
            while socket.send(&event).is_err() {
                socket = target.packets()?;
            }
        }
    }
    Ok(())
}

/// Sends datagrams, which need no connection.
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
