//! The throughput of configured directories, such as that of the checkpoints, by `fio`: one file of
//! a limited size is written past the page cache, read back, and removed.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::bench::{Bench, missing};
use super::reading::Reading;
use super::runner::Output;

const TOOL: &str = "fio";
/// A file system that does not answer within this time is not tested.
const ANSWERS: Duration = Duration::from_secs(5);
/// The most seconds of writing, and of reading.
const MOST_SECONDS: u64 = 30;
/// This many times the size of the file must be free.
const ROOM: u64 = 2;

/// The file that is written and read; it is removed on drop.
#[derive(Debug)]
struct Scratch {
    path: PathBuf,
    name: String,
}

pub(super) async fn test(bench: &mut Bench<'_>) -> Reading {
    let dirs = bench.config.disk.clone();
    if dirs.is_empty() {
        return Reading::not_run("no directory is named in check.active.disk");
    }
    if bench.runner.find(TOOL).is_none() {
        return missing(TOOL);
    }
    let mut all = Reading::default();
    for dir in dirs {
        match output(bench, &dir).await {
            Ok(output) => all.absorb(read(&output, &dir)),
            Err(reading) => all.absorb(reading),
        }
    }
    all
}

async fn output(bench: &mut Bench<'_>, dir: &Path) -> Result<Output, Reading> {
    let size = bench.config.disk_bytes;
    let place = dir.to_owned();
    let made = timeout(ANSWERS, spawn_blocking(move || Scratch::new(&place, size))).await;
    let Ok(made) = made else {
        return Err(Reading::unknown(format!("{} does not answer", dir.display())));
    };
    let scratch = match made {
        Ok(Ok(scratch)) => scratch,
        Ok(Err(why)) => return Err(Reading::unknown(format!("not run in {}: {why}", dir.display()))),
        Err(error) => return Err(Reading::unknown(format!("not run in {}: {error}", dir.display()))),
    };
    let seconds = (bench.runner.left().as_secs() / 3).clamp(1, MOST_SECONDS);
    let args = [
        "--output-format=json".to_owned(),
        "--eta=never".to_owned(),
        // Without it, fio starts processes.
        "--thread".to_owned(),
        "--ioengine=libaio".to_owned(),
        "--direct=1".to_owned(),
        "--iodepth=16".to_owned(),
        "--bs=1m".to_owned(),
        format!("--filename={}", scratch.name),
        format!("--size={size}"),
        format!("--runtime={seconds}"),
        "--name=write".to_owned(),
        "--rw=write".to_owned(),
        "--end_fsync=1".to_owned(),
        "--name=read".to_owned(),
        "--rw=read".to_owned(),
        "--stonewall".to_owned(),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = bench.output(TOOL, &args, Some(dir)).await;
    // The file system may have stopped to answer meanwhile.
    let _ = timeout(ANSWERS, spawn_blocking(move || drop(scratch))).await;
    output
}

impl Scratch {
    fn new(dir: &Path, size: u64) -> Result<Self, String> {
        let stat = rustix::fs::statvfs(dir).map_err(|error| error.to_string())?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < size.saturating_mul(ROOM) {
            return Err(format!("{} MiB are free, and {} MiB are needed", free >> 20, (ROOM * size) >> 20));
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| error.to_string())?;
        let name = format!(".stepwatch-check-{}", hex::encode(random));
        let path = dir.join(&name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(&path).map_err(|error| error.to_string())?;
        Ok(Self { path, name })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Reads the JSON of fio, which names each job and its mean bandwidth.
fn read(output: &Output, dir: &Path) -> Reading {
    let mut reading = Reading::default();
    let unreadable =
        || Reading::unknown(format!("fio gave no result in {}: {}", dir.display(), output.why()));
    let Some(document) = output.json() else { return unreadable() };
    let jobs = document.get("jobs").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for (name, measure) in [("write", "disk_write"), ("read", "disk_read")] {
        let job = jobs.iter().find(|job| job.get("jobname").and_then(Value::as_str) == Some(name));
        let failed = job.and_then(|job| job.get("error")).and_then(Value::as_i64).unwrap_or(0) != 0;
        let rate = job.and_then(|job| job.get(name)?.get("bw_bytes")?.as_f64());
        match rate.filter(|rate| *rate > 0.0 && !failed) {
            Some(rate) => reading.measure(measure, dir.to_string_lossy(), rate),
            None => return unreadable(),
        }
    }
    reading
}

#[cfg(test)]
mod tests {
    use super::super::tests::{bench_of, says};
    use super::*;
    use crate::node_tests::ActiveConfig;

    fn output(stdout: &str) -> Output {
        Output { stdout: stdout.to_owned(), ..Output::default() }
    }

    const CAPTURED: &str = include_str!("../../../../tests/data/active/fio_nvme.json");

    #[test]
    fn captured_results_and_damaged_ones() {
        let dir = Path::new("/ckpt");
        // The captured job reads and writes at once; here there is one job for each.
        let mut document: Value = serde_json::from_str(CAPTURED).unwrap();
        let job = document["jobs"][0].clone();
        document["jobs"] = Value::Array(
            ["write", "read"]
                .map(|name| {
                    let mut job = job.clone();
                    job["jobname"] = name.into();
                    job
                })
                .into(),
        );
        let text = format!("note: both iodepth >= 1\n{document}\n");
        assert_eq!(says(read(&output(&text), dir)), "ok disk_read is 0.3 GB/s\nok disk_write is 0.3 GB/s\n");
        let values: Vec<f64> =
            read(&output(&text), dir).measurements.iter().map(|m| m.bytes_per_second).collect();
        assert_eq!(values, [348_450_387.0, 348_743_777.0]);
        document["jobs"][1]["error"] = 22.into();
        let failed = document.to_string();
        for broken in [failed.as_str(), &text[..text.len() / 2], "", CAPTURED, "{}", "{\"jobs\":[{}]}"] {
            let said = says(read(&output(broken), dir));
            assert!(said.starts_with("unknown fio gave no result in /ckpt"), "{said}");
        }
    }

    #[test]
    fn a_file_is_left_nowhere_and_only_where_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(dir.path(), 1 << 20).unwrap();
        assert!(dir.path().join(&scratch.name).exists());
        drop(scratch);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(Scratch::new(dir.path(), u64::MAX / 4).unwrap_err().contains("are needed"));
        assert!(Scratch::new(&dir.path().join("none"), 1).is_err());
    }

    /// With fio this measures; without it the result has to say so.
    #[tokio::test]
    async fn this_machine() {
        let dir = tempfile::tempdir().unwrap();
        let config =
            ActiveConfig { disk: vec![dir.path().into()], disk_bytes: 4 << 20, ..ActiveConfig::default() };
        let mut bench = bench_of(&config);
        let reading = test(&mut bench).await;
        let said = says(reading);
        if bench.runner.find(TOOL).is_some() {
            // A file system without direct I/O is no node's checkpoint directory.
            assert!(
                said.contains("ok disk_write is") || said.contains("unknown fio gave no result"),
                "{said}"
            );
        } else {
            assert_eq!(
                said,
                "not run fio is not installed: it is neither on PATH nor in check.active.tools\n"
            );
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the file is removed");
        let nothing = ActiveConfig::default();
        let said = says(test(&mut bench_of(&nothing)).await);
        assert_eq!(said, "not run no directory is named in check.active.disk\n");
    }
}
