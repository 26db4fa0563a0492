//! The throughput of configured directories, such as that of the checkpoints, by `fio`: one file of
//! a limited size is written past the page cache, read back, and removed.
//!
//! The check may run as root, and fio opens the file by its name. So nobody else may be able to put
//! a link in its place (`guard`).

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::bench::Bench;
use super::guard::guarded;
use super::reading::Reading;
use super::runner::Output;

const TOOL: &str = "fio";
/// A file system that does not answer within this time is not tested.
const ANSWERS: Duration = Duration::from_secs(5);
/// The time in which a file is removed when the budget is used up.
const REMOVES: Duration = Duration::from_secs(1);
/// The most seconds of writing, and of reading.
const MOST_SECONDS: u64 = 30;
/// This many times the size of the file must be free.
const ROOM: u64 = 2;
/// The size of a block. That of a file is a multiple of it.
const BLOCK: u64 = 1 << 20;
/// A file of this node that is older was left by a test that was killed, and so was any that is
/// much older: a pod has another name each time. The most names of a directory among which they
/// are looked for.
const OLD: Duration = Duration::from_mins(10);
const ABANDONED: Duration = Duration::from_hours(24);
const MAX_NAMES: usize = 65_536;
/// The parts of the test, one after the other, as fio names them.
const WRITE: &str = "write";
const READ: &str = "read";
/// The beginning of the names of files.
const START: &str = ".stepwatch-check-";
/// The random digits at their end.
const RANDOM: usize = 16;

/// What a part of the test did.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Done {
    bytes_per_second: f64,
    bytes: u64,
}

/// The file that is written and read; it is removed on drop.
#[derive(Debug)]
struct Scratch {
    dir: PathBuf,
    path: PathBuf,
    name: String,
}

pub(super) async fn test(bench: &mut Bench<'_>) -> Reading {
    let dirs = bench.config.disk.clone();
    if dirs.is_empty() {
        return Reading::not_run("no directory is named in check.active.disk");
    }
    if let Err(why) = bench.runner.find(TOOL) {
        return Reading::not_run(why);
    }
    let mut all = Reading::default();
    let size = bench.config.disk_bytes / dirs.len() as u64 / BLOCK * BLOCK;
    for dir in dirs {
        all.absorb(of_directory(bench, &dir, size.max(BLOCK)).await);
    }
    all
}

async fn of_directory(bench: &mut Bench<'_>, dir: &Path, size: u64) -> Reading {
    if bench.runner.left().is_zero() {
        return Reading::unknown(format!("not run in {}: the budget of time is used up", dir.display()));
    }
    let place = dir.to_owned();
    let answers = ANSWERS.min(bench.runner.left());
    let made = timeout(answers, spawn_blocking(move || Scratch::new(&place, size))).await;
    let Ok(made) = made else {
        return Reading::unknown(format!("{} does not answer", dir.display()));
    };
    let scratch = match made {
        Ok(Ok(scratch)) => scratch,
        Ok(Err(why)) => return Reading::unknown(format!("not run in {}: {why}", dir.display())),
        Err(error) => return Reading::unknown(format!("not run in {}: {error}", dir.display())),
    };
    let all = both(bench, dir, &scratch, size).await.unwrap_or_else(|reading| reading);
    // The file system may have stopped to answer meanwhile.
    let answers = ANSWERS.min(bench.runner.left()).max(REMOVES);
    let _ = timeout(answers, spawn_blocking(move || drop(scratch))).await;
    all
}

/// Writes the file, and reads it.
async fn both(bench: &mut Bench<'_>, dir: &Path, scratch: &Scratch, size: u64) -> Result<Reading, Reading> {
    let mut all = Reading::default();
    let device = dir.to_string_lossy();
    let written = part(bench, dir, scratch, size, WRITE).await?;
    all.measure("disk_write", &*device, written.bytes_per_second);
    // What could be written in the time may be less. The file is as long as it should have become,
    // because fio reserves its blocks, and those that nobody has written are read without the disk.
    let bytes = written.bytes.min(size) / BLOCK * BLOCK;
    if bytes == 0 {
        all.absorb(Reading::unknown(format!("nothing was written in {}", dir.display())));
        return Ok(all);
    }
    match part(bench, dir, scratch, bytes, READ).await {
        Ok(read) => all.measure("disk_read", &*device, read.bytes_per_second),
        Err(reading) => all.absorb(reading),
    }
    Ok(all)
}

/// Writes the file, or reads it.
async fn part(
    bench: &mut Bench<'_>,
    dir: &Path,
    scratch: &Scratch,
    size: u64,
    name: &str,
) -> Result<Done, Reading> {
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
        format!("--name={name}"),
        format!("--rw={name}"),
        "--end_fsync=1".to_owned(),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = bench.output(TOOL, &args, Some(&scratch.dir)).await?;
    read(&output, name).ok_or_else(|| {
        Reading::unknown(format!("fio gave no result of {name} in {}: {}", dir.display(), output.why()))
    })
}

impl Scratch {
    fn new(dir: &Path, size: u64) -> Result<Self, String> {
        let dir = fs::canonicalize(dir).map_err(|error| error.to_string())?;
        guarded(&dir)?;
        let start = format!("{START}{}-", node());
        remove_old(&dir, &start);
        let stat = rustix::fs::statvfs(&dir).map_err(|error| error.to_string())?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < size.saturating_mul(ROOM) {
            return Err(format!("{} MiB are free, and {} MiB are needed", free >> 20, (ROOM * size) >> 20));
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| error.to_string())?;
        let name = format!("{start}{}", hex::encode(random));
        let path = dir.join(&name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(&path).map_err(|error| error.to_string())?;
        Ok(Self { dir, path, name })
    }
}

/// The name of this node as a part of the name of a file: others may use the directory too.
fn node() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

/// Removes the files that tests have left which were killed. Those of this node begin with `start`.
fn remove_old(dir: &Path, start: &str) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten().take(MAX_NAMES) {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| is_scratch(name)) else { continue };
        let ours = name.len() == start.len() + RANDOM && name.starts_with(start);
        let least = if ours { OLD } else { ABANDONED };
        let modified = entry.metadata().ok().filter(|meta| meta.is_file()).and_then(|m| m.modified().ok());
        if modified.and_then(|at| at.elapsed().ok()).is_some_and(|age| age >= least) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether a test of some node gave this name to its file.
fn is_scratch(name: &str) -> bool {
    let rest = name.strip_prefix(START).and_then(|rest| rest.rsplit_once('-'));
    rest.is_some_and(|(_, random)| random.len() == RANDOM && random.bytes().all(|b| b.is_ascii_hexdigit()))
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Reads the JSON of fio, which names the job, its mean bandwidth and its bytes.
fn read(output: &Output, name: &str) -> Option<Done> {
    let document = output.json();
    let jobs = document.as_ref().and_then(|document| document.get("jobs")).and_then(Value::as_array);
    let mut jobs = jobs.into_iter().flatten();
    let job = jobs.find(|job| job.get("jobname").and_then(Value::as_str) == Some(name));
    let failed = job.and_then(|job| job.get("error")).and_then(Value::as_i64).unwrap_or(0) != 0;
    let part = job?.get(name)?;
    // Versions without the first write the second in another unit.
    let bytes_per_second = part.get("bw_bytes")?.as_f64().filter(|rate| *rate > 0.0 && !failed)?;
    Some(Done { bytes_per_second, bytes: part.get("io_bytes")?.as_u64()? })
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
        // The captured job reads and writes at once.
        for (part, bytes_per_second, bytes) in
            [(WRITE, 348_450_387.0, 10_454_208_512), (READ, 348_743_777.0, 10_463_010_816)]
        {
            let mut document: Value = serde_json::from_str(CAPTURED).unwrap();
            document["jobs"][0]["jobname"] = part.into();
            let text = format!("note: both iodepth >= 1\n{document}\n");
            assert_eq!(read(&output(&text), part), Some(Done { bytes_per_second, bytes }));
            document["jobs"][0]["error"] = 22.into();
            let failed = document.to_string();
            for broken in [failed.as_str(), &text[..text.len() / 2], "", CAPTURED, "{}", "{\"jobs\":[{}]}"] {
                assert_eq!(read(&output(broken), part), None, "{broken}");
            }
        }
    }

    /// A tool that reserves all blocks of its file, writes a quarter of them, and notes how much it
    /// was asked to read.
    const SHORT: &str = r#"#!/bin/sh
PATH=/usr/bin:/bin
for arg in "$@"; do case $arg in
--filename=*) file=${arg#*=} ;; --size=*) size=${arg#*=} ;; --rw=*) rw=${arg#*=} ;;
esac; done
echo "$rw $size" >>asked
truncate -s "$size" "$file"
printf '{"jobs": [{"jobname": "%s", "error": 0, ' "$rw"
printf '"%s": {"bw_bytes": 1000000000, "io_bytes": %s}}]}' "$rw" $((size / 4))
"#;

    #[tokio::test]
    async fn only_what_was_written_is_read() {
        let (dir, tools) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (text, tool) = (tools.path().join("text"), tools.path().join("fio"));
        fs::write(&text, SHORT).unwrap();
        let made =
            std::process::Command::new("install").args(["-m", "755"]).args([&text, &tool]).status().unwrap();
        assert!(made.success());
        let config = ActiveConfig {
            disk: vec![dir.path().into()],
            disk_bytes: 8 << 20,
            tools: [(TOOL.to_owned(), tool)].into(),
            ..ActiveConfig::default()
        };
        let said = says(test(&mut bench_of(&config)).await);
        assert_eq!(said, "measured disk_read is 1.0 GB/s\nmeasured disk_write is 1.0 GB/s\n");
        let asked = fs::read_to_string(dir.path().join("asked")).unwrap();
        assert_eq!(asked, "write 8388608\nread 2097152\n");
    }

    #[tokio::test]
    async fn a_directory_for_which_no_time_is_left_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let config = ActiveConfig { disk: vec![dir.path().into()], ..ActiveConfig::default() };
        let mut bench = bench_of(&config);
        bench.runner =
            super::super::runner::Runner::with(&config, Vec::new(), Duration::ZERO, Duration::ZERO);
        let said = says(of_directory(&mut bench, dir.path(), BLOCK).await);
        assert!(said.ends_with("the budget of time is used up\n"), "{said}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused_and_old_files_are_removed() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let dir = tempfile::tempdir().unwrap();
        let (open, within) = (dir.path().join("open"), dir.path().join("open/ours"));
        fs::create_dir_all(&within).unwrap();
        let mode = |at: &Path, mode| fs::set_permissions(at, fs::Permissions::from_mode(mode)).unwrap();
        mode(&within, 0o755);
        for (of_open, right) in [(0o777, [false, false]), (0o770, [false, false]), (0o1777, [false, true])] {
            mode(&open, of_open);
            let made = [&open, &within].map(|at| Scratch::new(at, 1 << 20).is_ok());
            assert_eq!(made, right, "{of_open:o}");
        }
        let link = dir.path().join("link");
        symlink(&open, &link).unwrap();
        assert!(Scratch::new(&link, 1 << 20).unwrap_err().contains("another user can change"));
        let left = |node: &str, hours: u64| {
            let path = within.join(format!(".stepwatch-check-{node}-0123456789abcdef"));
            let at = std::time::SystemTime::now() - Duration::from_secs(3600 * hours);
            fs::File::create(&path).unwrap().set_modified(at).unwrap();
            path
        };
        let (old, of_another) = (left(&node(), 5), left("another", 5));
        drop(Scratch::new(&within, 1 << 20).unwrap());
        let longer = left(&format!("{}-2", node()), 5);
        drop(Scratch::new(&within, 1 << 20).unwrap());
        assert!(!old.exists() && of_another.exists() && longer.exists());
        let abandoned = left("a-pod-with-another-name", 25);
        drop(Scratch::new(&within, 1 << 20).unwrap());
        assert!(!abandoned.exists() && of_another.exists());
        let new = left(&node(), 0);
        drop(Scratch::new(&within, 1 << 20).unwrap());
        assert!(new.exists(), "it may be in use");
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
        if bench.runner.find(TOOL).is_ok() {
            // A file system without direct I/O is no node's checkpoint directory.
            assert!(
                said.contains("measured disk_write is") || said.contains("unknown fio gave no result"),
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
