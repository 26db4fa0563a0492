//! Valid steps of valid size, as fast as two threads can send them, so that no reader of the stream
//! can keep up.

use std::fmt::Write as _;

use crate::attack::{Attack, Packets, Target};

pub(crate) const ATTACK: Attack = Attack::new("stream-flood", act);

const SENDERS: usize = 2;
const RUNS: usize = 40;
const METRICS: usize = 60;

fn act(target: &Target) -> anyhow::Result<()> {
    std::thread::scope(|threads| {
        let senders: Vec<_> =
            (0..SENDERS).map(|sender| threads.spawn(move || flood(target, sender))).collect();
        senders.into_iter().try_for_each(|sender| {
            sender.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a sender panicked")))
        })
    })
}

fn flood(target: &Target, sender: usize) -> anyhow::Result<()> {
    let mut metrics = String::from(r#""loss":2.0"#);
    for n in 0..METRICS {
        write!(metrics, r#","k{n:03}":{n}"#)?;
    }
    let runs = (0..RUNS).map(|n| {
        let socket = target.packets()?;
        let run = format!("flood-{sender}-{n}");
        socket.send(&format!(r#"{{"v":1,"k":"hello","run":"{run}","rank":0,"world":1}}"#))?;
        Ok((run, socket))
    });
    let mut runs: Vec<(String, Packets)> = runs.collect::<anyhow::Result<_>>()?;
    for step in 1_u64.. {
        for (run, socket) in &mut runs {
            let event = format!(
                r#"{{"v":1,"k":"step","run":"{run}","rank":0,"world":1,"step":{step},"m":{{{metrics}}}}}"#
            );
            if socket.send(&event).is_err() {
                *socket = target.packets()?;
            }
        }
    }
    Ok(())
}
