//! Repeated events of one user's own runs, each of which may be expensive to process.

use crate::attack::{Attack, Packets, Target};

pub(crate) const MODELS: Attack = Attack::new("model-hellos", |target| repeat(target, model));
pub(crate) const LINES: Attack = Attack::new("launcher-lines", lines);
pub(crate) const RESTARTS: Attack = Attack::new("planned-restarts", |target| repeat(target, restart));
pub(crate) const FLAPS: Attack = Attack { pages: PAGES, ..Attack::new("flapping", |t| repeat(t, flap)) };

/// The most pages of one user about new runs: docs/incidents.md.
const PAGES: usize = 15;
const RUNS: usize = 12;
/// The size of a packet in bytes.
const PACKET: usize = 8192;
/// The number of steps with a finite loss, followed by as many without.
const FLAP: u64 = 20;

fn repeat(target: &Target, event: fn(&str, u64) -> String) -> anyhow::Result<()> {
    let runs: Vec<String> = (0..RUNS).map(|run| format!("dear-{run}")).collect();
    let open = |run: &str| -> anyhow::Result<Packets> {
        let packets = target.packets()?;
        packets.send(&format!(r#"{{"v":1,"k":"hello","run":"{run}","rank":0,"world":1}}"#))?;
        Ok(packets)
    };
    let mut ranks = runs.iter().map(|run| open(run)).collect::<anyhow::Result<Vec<_>>>()?;
    for n in 0.. {
        for (run, rank) in runs.iter().zip(&mut ranks) {
            // A connection that was closed for another one is opened again.
            while rank.send(&event(run, n)).is_err() {
                *rank = open(run)?;
            }
        }
    }
    Ok(())
}

/// The most lines of a packet, which is the most values of an event.
const LINES_OF_PACKET: u64 = 240;
const CONNECTIONS: usize = 100;

/// Packets with lines of logs, each of which is a step.
fn lines(target: &Target) -> anyhow::Result<()> {
    let launchers = (0..CONNECTIONS).map(|_| target.packets());
    let mut launchers = launchers.collect::<anyhow::Result<Vec<_>>>()?;
    for n in 0.. {
        for (run, packets) in launchers.iter_mut().enumerate() {
            let steps = n * LINES_OF_PACKET..(n + 1) * LINES_OF_PACKET;
            let lines: Vec<_> = steps.map(|step| format!(r#""step {step} loss 2.3""#)).collect();
            let packet = format!(
                r#"{{"v":1,"k":"event","name":"output","run":"lines-{}","rank":0,"stream":"s{run}","lines":[{}]}}"#,
                run % RUNS,
                lines.join(",")
            );
            while packets.send(&packet).is_err() {
                *packets = target.packets()?;
            }
        }
    }
    Ok(())
}

/// The most layers, and the most numbers of layers.
fn model(run: &str, _: u64) -> String {
    let head = format!(
        r#"{{"v":1,"k":"hello","run":"{run}","rank":0,"model":{{"num_hidden_layers":4096,"hidden_size":64,"attn_layer_indices":[9"#
    );
    let more = (PACKET - head.len() - 3) / 2;
    format!("{head}{}]}}}}", ",9".repeat(more))
}

fn restart(run: &str, n: u64) -> String {
    format!(
        r#"{{"v":1,"k":"event","run":"{run}","rank":0,"name":"maintenance","seconds":{},"text":"t{n}"}}"#,
        n % 3600
    )
}

fn flap(run: &str, n: u64) -> String {
    let loss = if (n / FLAP).is_multiple_of(2) { "2.0" } else { "NaN" };
    format!(r#"{{"v":1,"k":"step","run":"{run}","rank":0,"step":{n},"m":{{"loss":{loss},"grad_norm":0.2}}}}"#)
}
