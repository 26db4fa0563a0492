//! Files that discovery or a configured tail finds: 20,000 that are fresh, and one with a hole of
//! terabytes.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

use crate::attack::{Attack, Target, hold};

pub(crate) const MANY: Attack = Attack { exporter: tail, ..Attack::new("many-logs", many) };
pub(crate) const SPARSE: Attack = Attack { exporter: tail, ..Attack::new("sparse-log", sparse) };

const LOGS: usize = 20_000;
/// ext4 holds less than 16 TiB in a file.
const HOLE: u64 = 10 << 40;
const LINE: &str = "{\"step\": 1, \"loss\": 2.5, \"learning_rate\": 0.0003, \"epoch\": 0.1}\n";

fn tail(dir: &std::path::Path) -> String {
    format!("sources:\n  - tail: {{path: \"{}/*.jsonl\", format: auto}}\n", dir.display())
}

fn many(target: &Target) -> anyhow::Result<()> {
    for log in 0..LOGS {
        File::create(target.dir.join(format!("{log}.jsonl")))?.write_all(LINE.as_bytes())?;
    }
    loop {
        for log in 0..LOGS {
            let path = target.dir.join(format!("{log}.jsonl"));
            File::options().append(true).open(path)?.write_all(LINE.as_bytes())?;
        }
    }
}

fn sparse(target: &Target) -> anyhow::Result<()> {
    let log = File::create(target.dir.join("sparse.jsonl"))?;
    log.write_all_at(LINE.as_bytes(), HOLE)?;
    hold(log)
}
