//! Recordings with injected faults, as files that any detector can read.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::base::Clean;
use crate::faults::{self, EventLines, Fault, Make};
use crate::label::{self, Injected, Label, Truth, Truths};
use crate::random::Random;

/// Rows between the earliest and the latest onset, as shares of the series.
const ONSET: std::ops::Range<f64> = 0.35..0.45;

/// Writes a recording for every fault, size and seed, with their labels; the same seeds write the
/// same bytes. Gives the files.
pub fn write(dir: &Path, clean: &Clean, seeds: u64) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut truths = Truths::new();
    let mut files = Vec::new();
    for fault in faults::all() {
        for size in fault.sizes {
            for seed in 0..seeds {
                let (file, truth) = one(dir, clean, &fault, *size, seed)?;
                truths.insert(crate::replay::name(&file), truth);
                files.push(file);
            }
        }
    }
    label::write(&dir.join(label::FILE), &truths)?;
    Ok(files)
}

fn one(dir: &Path, clean: &Clean, fault: &Fault, size: f64, seed: u64) -> anyhow::Result<(PathBuf, Truth)> {
    let name = format!("{}-{size}-{seed:02}", fault.name);
    // The clean series of a seed is the same at every size: what differs along a curve is the size
    // alone.
    let random = &mut Random::for_name(fault.name, seed);
    let label = |start, end| Label { class: fault.class.into(), start, end, severity: fault.urgency(size) };
    let injected = |base| Some(Injected { fault: fault.name.into(), size, seed, base });
    match fault.make {
        Make::Table { signals, rows, inject } => {
            let base = clean.draw(signals, rows, seed, random);
            let mut recording = base.recording;
            let onset = (random.between(ONSET.start, ONSET.end) * recording.len() as f64) as usize;
            let wrong = inject(&mut recording, onset, size, random);
            let last = wrong.end.min(recording.len()) - 1;
            let event = label(recording.steps[wrong.start], recording.steps[last]);
            let path = dir.join(format!("{name}.csv"));
            recording.write(&path)?;
            Ok((path, Truth { events: vec![event], injected: injected(base.name) }))
        }
        Make::Events(make) => {
            let EventLines { lines, start, end } = make(size, random);
            let path = dir.join(format!("{name}.jsonl"));
            fs::write(&path, lines.join("\n") + "\n")
                .with_context(|| format!("cannot write {}", path.display()))?;
            Ok((path, Truth { events: vec![label(start, end)], injected: injected("synthetic".into()) }))
        }
    }
}

/// Every recording of a directory that has labels.
pub fn files(dir: &Path, truths: &Truths) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        let table = path.extension().is_some_and(|e| e == "csv" || e == "jsonl");
        if table && truths.contains_key(&crate::replay::name(&path)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording;

    #[test]
    fn the_same_seeds_write_the_same_bytes_and_every_label_is_within_its_run() {
        let clean = Clean::read(&crate::real_runs()).unwrap();
        let [a, b] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let files = write(a.path(), &clean, 1).unwrap();
        write(b.path(), &clean, 1).unwrap();
        let truths = label::read(&a.path().join(label::FILE)).unwrap();
        assert_eq!(files.len(), truths.len());
        for file in &files {
            let other = b.path().join(file.file_name().unwrap());
            assert_eq!(fs::read(file).unwrap(), fs::read(other).unwrap(), "{}", file.display());
            let steps = recording::steps(file).unwrap();
            let event = &truths[&crate::replay::name(file)].events[0];
            assert!(steps[0] <= event.start && event.start <= event.end, "{}", file.display());
            assert!(event.end <= steps[steps.len() - 1], "{}", file.display());
        }
    }
}
