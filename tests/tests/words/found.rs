//! What the exporter finds and reads by itself: logs, binary files, checkpoints, pages in shared
//! memory, and the environment and error file of a process that trains.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::hostile;

/// What is read at once, by the names under which its texts are found again in what the exporter
/// says. The tags and the last words of a log, and the name of a job, come later or not at all.
pub(crate) const FOUND: &[&str] = &["beat", "breath", "trains", "error", "saved"];

/// A process that trains, and all that is read without being sent.
pub(crate) struct Found {
    dir: PathBuf,
    trainer: Child,
}

impl Drop for Found {
    fn drop(&mut self) {
        // One that has ended already was found all the same.
        let _ = self.trainer.kill();
        let _ = self.trainer.wait();
    }
}

impl Found {
    /// Everything is there before the exporter starts.
    pub(crate) fn new(dir: &Path) -> Self {
        let dir = dir.join("found");
        let group = dir.join("sys/fs/cgroup/jobs/7");
        for made in
            [&dir.join("shm/stepwatch"), &dir.join("work"), &group, &dir.join(saved()).join("step-10")]
        {
            fs::create_dir_all(made).unwrap();
        }
        fs::write(dir.join(saved()).join("step-10/model.bin"), "x").unwrap();
        fs::write(dir.join("plain.log"), plain()).unwrap();
        fs::create_dir(dir.join("named")).unwrap();
        let named = hostile("named").replace('/', "") + ".jsonl";
        fs::write(dir.join("named").join(named), "{\"step\":1,\"loss\":2.5}\n").unwrap();
        fs::write(dir.join("events.out.tfevents.1780026765.n1.7.0"), tfevents()).unwrap();
        fs::write(dir.join("shm/stepwatch/victim.hb"), heartbeat()).unwrap();
        let message = json!({"message": hostile("error"), "extraInfo": {"py_callstack": hostile("error"), "timestamp": "1"}});
        fs::write(dir.join("work/error.json"), json!({"message": message}).to_string()).unwrap();
        let trainer = trains(&dir);
        fs::write(group.join("cgroup.procs"), format!("{}\n", trainer.id())).unwrap();
        Self { dir, trainer }
    }

    /// As arguments of the exporter.
    pub(crate) fn args(&self) -> [std::ffi::OsString; 4] {
        let path = |name: &str| self.dir.join(name).into_os_string();
        ["--path.sysfs".into(), path("sys"), "--path.shm".into(), path("shm")]
    }

    /// As entries of `sources`.
    pub(crate) fn sources(&self) -> String {
        let path = |name: &str| json!(self.dir.join(name)).to_string();
        let tail =
            |name: &str, run: &str| format!("  - tail: {{path: {}, run: {run}, from: start}}\n", path(name));
        [
            tail("plain.log", "plain"),
            tail("events.out.tfevents.1780026765.n1.7.0", "tensorboard"),
            format!("  - tail: {{path: {}, from: start}}\n", path("named/*.jsonl")),
            format!("  - checkpoints: {{path: {}, interval: 100ms, settle: 100ms}}\n", path(&saved())),
            "  - discover: {interval: 100ms, cgroups: ['jobs/*']}\n".to_owned(),
        ]
        .concat()
    }
}

/// The name of a directory.
fn saved() -> String {
    hostile("saved").replace('/', "")
}

/// It has made steps and then failed.
fn plain() -> String {
    let line = |name| hostile(name).replace(['\r', '\n'], " ");
    let steps: String = (1..=5).flat_map(|step| [format!("step {step} loss 2.5"), "\n".into()]).collect();
    let frame = format!("  File \"{}\", line 1, in <module>\n    {0}\n", line("traceback"));
    format!("{steps}Traceback (most recent call last):\n{frame}RuntimeError: {}\n", line("last"))
}

/// The process waits until it is killed.
fn trains(dir: &Path) -> Child {
    let (run, job) = (hostile("trains"), hostile("scheduler"));
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "exec 7>>metrics.jsonl 2>>err.log; echo '{\"step\":5,\"loss\":1.5}' >&7; echo ready; read -r _",
        ])
        .current_dir(dir.join("work"))
        .envs([
            ("RANK", "0"),
            ("WORLD_SIZE", "1"),
            ("STEPWATCH_RUN", run.as_str()),
            ("WANDB_NAME", run.as_str()),
        ])
        .envs([("SLURM_JOB_ID", "4711"), ("SLURM_PROCID", "0"), ("SLURM_JOB_NAME", job.as_str())])
        .env("TORCHELASTIC_ERROR_FILE", dir.join("work/error.json"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut ready = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    child
}

/// A page as the client writes it, of this very process: one that is gone would be a death.
fn heartbeat() -> Vec<u8> {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let started: u64 = stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap();
    let now = jiff::Timestamp::now().as_millisecond() as f64 / 1e3;
    let mut page = b"STEPWHB1".to_vec();
    page.extend(2_u64.to_le_bytes());
    page.extend(7_i64.to_le_bytes());
    page.extend([now, now, now].iter().flat_map(|time| time.to_le_bytes()));
    page.extend(std::process::id().to_le_bytes());
    page.extend(0_u32.to_le_bytes());
    page.extend(started.to_le_bytes());
    for (text, end) in [(hostile("breath"), 96), (hostile("beat"), 192)] {
        let mut cut = text.len().min(end - page.len());
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        page.extend(&text.as_bytes()[..cut]);
        page.resize(end, 0);
    }
    page.resize(256, 0);
    page
}

/// Scalars of a loss and of a metric with a hostile tag.
fn tfevents() -> Vec<u8> {
    let version = record(&[&[0x09][..], &1.7e9_f64.to_le_bytes(), &field(3, b"brain.Event:2")].concat());
    let tag = hostile("tag");
    let steps = (1..=5_u8).flat_map(|step| [("train/loss", step), (&*tag, step)]).flat_map(|(tag, step)| {
        let value = [&field(1, tag.as_bytes())[..], &[0x15], &2.5_f32.to_le_bytes()].concat();
        let time = (1.7e9 + f64::from(step)).to_le_bytes();
        record(&[&[0x09][..], &time, &[0x10, step], &field(5, &field(1, &value))].concat())
    });
    version.into_iter().chain(steps).collect()
}

/// A field of bytes in protobuf.
fn field(number: u8, data: &[u8]) -> Vec<u8> {
    assert!(data.len() < 1 << 14);
    let length = if data.len() < 128 {
        vec![data.len() as u8]
    } else {
        vec![data.len() as u8 | 0x80, (data.len() >> 7) as u8]
    };
    [&[number << 3 | 2][..], &length, data].concat()
}

/// A record of TensorFlow: the length and the data, each with its masked checksum.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), data, &masked(data)].concat()
}

/// CRC-32C, rotated and with a constant added, as TensorFlow's `core/lib/hash/crc32c.h` has it.
fn masked(data: &[u8]) -> [u8; 4] {
    let mut crc = u32::MAX;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}
