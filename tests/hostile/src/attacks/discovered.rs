//! A process that seems to train, and that the exporter discovers: its error file is readable only
//! by root, its log becomes a link to such a file, and its directory is full of logs.

use std::ffi::OsString;
use std::fs::{File, create_dir_all, rename, write};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::attack::{Attack, Target, get, open};

pub(crate) const LINKS: Attack =
    Attack { exporter: discover, args: own_sysfs, ..Attack::new("discovered-links", links) };
pub(crate) const LOGS: Attack =
    Attack { exporter: discover, args: own_sysfs, ..Attack::new("discovered-logs", logs) };

/// The time limit for the discovery of the process: well before the genuine run breaks.
const FOUND_WITHIN: Duration = Duration::from_secs(8);
const MANY: usize = 20_000;
const LINE: &str = "{\"step\": 1, \"loss\": 2.5}\n";

fn discover(_: &Path) -> String {
    "sources:\n  - discover: {interval: 100ms, cgroups: ['jobs/*']}\n".to_owned()
}

/// An empty sysfs, so that the control groups of the machine are not changed.
fn own_sysfs(dir: &Path) -> Vec<OsString> {
    vec!["--path.sysfs".into(), dir.join("sys").into()]
}

fn links(target: &Target) -> anyhow::Result<()> {
    let work = directory(target)?;
    let _trainer = trainer(target, &work)?;
    let mut stream = stream(target)?;
    let mut published = String::new();
    let (log, draft) = (work.join("metrics.jsonl"), work.join("draft"));
    for round in 0.. {
        if round % 2 == 0 {
            symlink(&target.private.log, &draft)?;
        } else {
            writeln!(File::create(&draft)?, "{{\"step\": {round}, \"loss\": 2.5}}")?;
        }
        rename(&draft, &log)?;
        let mut piece = vec![0; 65_536];
        // Later bytes are read in the next round. A reader that is cut off reconnects.
        let length = stream.read(&mut piece).unwrap_or(usize::MAX);
        if length == 0 {
            stream = self::stream(target)?;
        }
        published.push_str(&String::from_utf8_lossy(piece.get(..length).unwrap_or_default()));
        let page = get(target.exporter, "/metrics").unwrap_or_default();
        let shown = [&page, &published].iter().any(|text| text.contains(&target.private.loss));
        anyhow::ensure!(!shown, "the loss of a private log is on the page or the stream");
    }
    Ok(())
}

fn stream(target: &Target) -> anyhow::Result<TcpStream> {
    let mut stream = open(target.exporter)?;
    stream.set_read_timeout(Some(Duration::from_millis(10)))?;
    write!(stream, "GET /v1/stream HTTP/1.1\r\nhost: {}\r\n\r\n", target.exporter)?;
    Ok(stream)
}

fn logs(target: &Target) -> anyhow::Result<()> {
    let work = directory(target)?;
    for log in 0..MANY {
        write(work.join(format!("{log}.jsonl")), LINE)?;
    }
    let _trainer = trainer(target, &work)?;
    let began = Instant::now();
    while followed(target) < 100.0 {
        anyhow::ensure!(began.elapsed() < FOUND_WITHIN, "the exporter follows {} logs", followed(target));
    }
    loop {
        for log in 0..MANY {
            let file = File::options().append(true).open(work.join(format!("{log}.jsonl")));
            file?.write_all(LINE.as_bytes())?;
        }
    }
}

/// The number of files that discovery follows.
fn followed(target: &Target) -> f64 {
    let page = get(target.exporter, "/metrics").unwrap_or_default();
    let files = page.lines().find_map(|line| line.strip_prefix("job_discovered_files ")?.parse().ok());
    files.unwrap_or(0.0)
}

fn directory(target: &Target) -> anyhow::Result<PathBuf> {
    let work = target.dir.join("work");
    create_dir_all(&work)?;
    create_dir_all(target.dir.join("sys/fs/cgroup/jobs/7"))?;
    Ok(work)
}

/// Starts a process that waits until this one ends, and which the exporter has discovered.
fn trainer(target: &Target, work: &Path) -> anyhow::Result<Child> {
    let script = "exec 7>>metrics.jsonl 2>>err.log; echo '{\"step\":5,\"loss\":1.5}' >&7; read -r _";
    let child = Command::new("sh")
        .args(["-c", script])
        .current_dir(work)
        .envs([("RANK", "0"), ("WORLD_SIZE", "1"), ("STEPWATCH_RUN", "discovered")])
        .env("TORCHELASTIC_ERROR_FILE", &target.private.log)
        .stdin(Stdio::piped())
        .spawn()?;
    write(target.dir.join("sys/fs/cgroup/jobs/7/cgroup.procs"), format!("{}\n", child.id()))?;
    let began = Instant::now();
    while !get(target.exporter, "/metrics").unwrap_or_default().contains("run=\"discovered\"") {
        anyhow::ensure!(began.elapsed() < FOUND_WITHIN, "the exporter does not find the process");
    }
    Ok(child)
}
