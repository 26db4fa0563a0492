//! Text without an end, in 256 launcher streams and in 256 logs, and endless launcher streams.

use std::fs::File;
use std::io::Write as _;

use crate::attack::{Attack, Target, hold};

pub(crate) const STREAMS: Attack = Attack::new("unfinished-streams", |target| streams(target, 256));
pub(crate) const NAMES: Attack = Attack::new("endless-streams", |target| streams(target, usize::MAX));
pub(crate) const LOGS: Attack = Attack { exporter: tail, ..Attack::new("unfinished-logs", logs) };

const PIECE: &str = "2026-11-27T07:52:45.118201123Z stdout P ";
const FILES: usize = 256;

fn tail(dir: &std::path::Path) -> String {
    format!("sources:\n  - tail: {{path: \"{}/*.log\", format: auto}}\n", dir.display())
}

fn streams(target: &Target, names: usize) -> anyhow::Result<()> {
    let packets = target.packets()?;
    let text = "x".repeat(7_800);
    for n in (0..).map(|n: usize| n % names) {
        packets.send(&format!(
            r#"{{"v":1,"k":"event","name":"output","run":"mine","rank":0,"stream":"s{n}","lines":["{PIECE}{text}"]}}"#
        ))?;
    }
    Ok(())
}

fn logs(target: &Target) -> anyhow::Result<()> {
    let piece = format!("{PIECE}{}\n", "x".repeat(16_000));
    let mut files = Vec::new();
    for n in 0..FILES {
        let mut file = File::create(target.dir.join(format!("{n}.log")))?;
        file.write_all(piece.repeat(18).as_bytes())?;
        files.push(file);
    }
    hold(files)
}
