//! Links to a log that only its owner may read, in the place of a configured pattern: some are
//! permanent, and others replace a readable file.

use std::fs::{File, rename};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::attack::{Attack, Target, get};

pub(crate) const ATTACK: Attack = Attack { exporter: tail, ..Attack::new("private-links", act) };

const LINKS: usize = 50;

fn tail(dir: &Path) -> String {
    format!("sources:\n  - tail: {{path: \"{}/*.jsonl\", format: auto}}\n", dir.display())
}

fn act(target: &Target) -> anyhow::Result<()> {
    let (log, name) = (&target.private.log, |n: usize, kind: &str| target.dir.join(format!("{n}.{kind}")));
    for n in 0..LINKS {
        symlink(log, name(n, "jsonl"))?;
    }
    anyhow::ensure!(File::open(log).is_err(), "the attacker may read the log itself");
    for round in 0.. {
        for n in LINKS..LINKS * 2 {
            let draft = name(n, "draft");
            if round % 2 == 0 {
                writeln!(File::create(&draft)?, "{{\"step\": {round}, \"loss\": 2.5}}")?;
            } else {
                symlink(log, &draft)?;
            }
            rename(&draft, name(n, "jsonl"))?;
        }
        let page = get(target.exporter, "/metrics").unwrap_or_default();
        anyhow::ensure!(!page.contains(&target.private.loss), "the page shows the loss of a private log");
    }
    Ok(())
}
