//! The throughput of configured directories, such as that of the checkpoints, by `fio`: one file of
//! a limited size is written past the page cache, read back, and removed.
//!
//! The check may run as root, and fio opens the file by its name. So nobody else may be able to put
//! a link in its place.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::geteuid;
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
/// The size of a block. That of a file is a multiple of it.
const BLOCK: u64 = 1 << 20;
/// A file of this node that is older was left by a test that was killed. The most names of a
/// directory among which they are looked for.
const OLD: Duration = Duration::from_mins(10);
const MAX_NAMES: usize = 65_536;
/// The parts of the test, one after the other, and what each measures.
const WRITE: (&str, &str) = ("write", "disk_write");
const READ: (&str, &str) = ("read", "disk_read");

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
    if bench.runner.find(TOOL).is_none() {
        return missing(TOOL);
    }
    let mut all = Reading::default();
    let size = bench.config.disk_bytes / dirs.len() as u64 / BLOCK * BLOCK;
    for dir in dirs {
        all.absorb(of_directory(bench, &dir, size.max(BLOCK)).await);
    }
    all
}

async fn of_directory(bench: &mut Bench<'_>, dir: &Path, size: u64) -> Reading {
    let place = dir.to_owned();
    let made = timeout(ANSWERS, spawn_blocking(move || Scratch::new(&place, size))).await;
    let Ok(made) = made else {
        return Reading::unknown(format!("{} does not answer", dir.display()));
    };
    let scratch = match made {
        Ok(Ok(scratch)) => scratch,
        Ok(Err(why)) => return Reading::unknown(format!("not run in {}: {why}", dir.display())),
        Err(error) => return Reading::unknown(format!("not run in {}: {error}", dir.display())),
    };
    let mut all = part(bench, dir, &scratch, size, WRITE).await;
    if !all.measurements.is_empty() {
        // What could be written in the time may be less. fio would write the rest.
        let path = scratch.path.clone();
        let written = timeout(ANSWERS, spawn_blocking(move || fs::symlink_metadata(path))).await;
        let written = if let Ok(Ok(Ok(meta))) = written { meta.len().min(size) / BLOCK * BLOCK } else { 0 };
        if written > 0 {
            all.absorb(part(bench, dir, &scratch, written, READ).await);
        } else {
            all.absorb(Reading::unknown(format!("nothing was written in {}", dir.display())));
        }
    }
    // The file system may have stopped to answer meanwhile.
    let _ = timeout(ANSWERS, spawn_blocking(move || drop(scratch))).await;
    all
}

/// Writes the file, or reads it.
async fn part(
    bench: &mut Bench<'_>,
    dir: &Path,
    scratch: &Scratch,
    size: u64,
    what: (&str, &str),
) -> Reading {
    let seconds = (bench.runner.left().as_secs() / 3).clamp(1, MOST_SECONDS);
    let (name, _) = what;
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
    match bench.output(TOOL, &args, Some(&scratch.dir)).await {
        Ok(output) => read(&output, dir, what),
        Err(reading) => reading,
    }
}

impl Scratch {
    fn new(dir: &Path, size: u64) -> Result<Self, String> {
        let dir = fs::canonicalize(dir).map_err(|error| error.to_string())?;
        guarded(&dir)?;
        let start = format!(".stepwatch-check-{}-", node());
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

/// Refuses a directory in which another user can put a link in the place of the file, or that
/// another user can move away.
fn guarded(dir: &Path) -> Result<(), String> {
    let own = geteuid().as_raw();
    for at in dir.ancestors() {
        let meta = fs::symlink_metadata(at).map_err(|error| error.to_string())?;
        let open = meta.mode() & 0o022 != 0;
        let sticky = meta.mode() & 0o1000 != 0;
        let right = if at == dir {
            meta.uid() == own && !open
        } else {
            [own, 0].contains(&meta.uid()) && (!open || sticky)
        };
        if !right {
            return Err(format!("another user can change what is in {}", at.display()));
        }
    }
    Ok(())
}

/// The name of this node as a part of the name of a file: others may use the directory too.
fn node() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

/// Removes the files of this node that tests have left which were killed.
fn remove_old(dir: &Path, start: &str) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten().take(MAX_NAMES) {
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(start));
        let ours = random.is_some_and(|rest| rest.len() == 16 && rest.bytes().all(|b| b.is_ascii_hexdigit()));
        let modified =
            entry.metadata().ok().filter(|meta| ours && meta.is_file()).and_then(|m| m.modified().ok());
        if modified.and_then(|at| at.elapsed().ok()).is_some_and(|age| age >= OLD) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Reads the JSON of fio, which names the job and its mean bandwidth.
fn read(output: &Output, dir: &Path, (name, measure): (&str, &str)) -> Reading {
    let mut reading = Reading::default();
    let document = output.json();
    let jobs = document.as_ref().and_then(|document| document.get("jobs")).and_then(Value::as_array);
    let mut jobs = jobs.into_iter().flatten();
    let job = jobs.find(|job| job.get("jobname").and_then(Value::as_str) == Some(name));
    let failed = job.and_then(|job| job.get("error")).and_then(Value::as_i64).unwrap_or(0) != 0;
    let rate = job.and_then(|job| job.get(name)?.get("bw_bytes")?.as_f64());
    let Some(rate) = rate.filter(|rate| *rate > 0.0 && !failed) else {
        let why = output.why();
        return Reading::unknown(format!("fio gave no result of {name} in {}: {why}", dir.display()));
    };
    reading.measure(measure, dir.to_string_lossy(), rate);
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
        // The captured job reads and writes at once.
        for (part, rate, said) in [
            (WRITE, 348_450_387.0, "measured disk_write is 0.3 GB/s\n"),
            (READ, 348_743_777.0, "measured disk_read is 0.3 GB/s\n"),
        ] {
            let mut document: Value = serde_json::from_str(CAPTURED).unwrap();
            document["jobs"][0]["jobname"] = part.0.into();
            let text = format!("note: both iodepth >= 1\n{document}\n");
            assert_eq!(read(&output(&text), dir, part).measurements[0].bytes_per_second, rate);
            assert_eq!(says(read(&output(&text), dir, part)), said);
            document["jobs"][0]["error"] = 22.into();
            let failed = document.to_string();
            for broken in [failed.as_str(), &text[..text.len() / 2], "", CAPTURED, "{}", "{\"jobs\":[{}]}"] {
                let said = says(read(&output(broken), dir, part));
                assert!(said.starts_with("unknown fio gave no result of"), "{said}");
            }
        }
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
        assert!(!old.exists() && of_another.exists());
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
        if bench.runner.find(TOOL).is_some() {
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
