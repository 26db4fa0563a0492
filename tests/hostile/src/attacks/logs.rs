//! Files that a configured tail finds: 20,000 new ones, one with a hole of terabytes, and a
//! trainer's history of millions of steps.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

use crate::attack::{Attack, Target, hold};

pub(crate) const MANY: Attack = Attack { exporter: tail, ..Attack::new("many-logs", many) };
pub(crate) const SPARSE: Attack =
    Attack { exporter: tail, exporter_max_cpu: 0.25, ..Attack::new("sparse-log", sparse) };

pub(crate) const HISTORY: Attack = Attack { exporter: tail_state, ..Attack::new("long-history", history) };

const LOGS: usize = 20_000;
/// About 60 MB, below the limit of a whole file.
const STEPS: usize = 2_400_000;
/// The size of the hole. A file on ext4 has less than 16 TiB.
const HOLE: u64 = 10 << 40;
const LINE: &str = "{\"step\": 1, \"loss\": 2.5, \"learning_rate\": 0.0003, \"epoch\": 0.1}\n";

fn tail(dir: &std::path::Path) -> String {
    format!("sources:\n  - tail: {{path: \"{}/*.jsonl\", format: auto}}\n", dir.display())
}

fn tail_state(dir: &std::path::Path) -> String {
    format!("sources:\n  - tail: {{path: \"{}/trainer_state.json\", format: auto}}\n", dir.display())
}

fn history(target: &Target) -> anyhow::Result<()> {
    let steps: Vec<String> = (0..STEPS).map(|step| format!("{{\"step\":{step},\"loss\":2}}")).collect();
    let text = format!("{{\"log_history\":[{}]}}", steps.join(","));
    Ok(std::fs::write(target.dir.join("trainer_state.json"), text)?)
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
