//! What the exporter finds and reads by itself: logs, tables, binary files, checkpoints, pages in
//! shared memory, the driver, and the environment and error file of a process that trains.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;
use stepwatch_fake_nvml::script::{self, Quantity};
use stepwatch_fake_nvml::{Fleet, SCRIPT, Script, Stage};
use stepwatch_tests::Machine;

use crate::hostile;

/// What is read at once, by the names under which its texts are found again in what the exporter
/// says. The tags and the last words of a log, and the name of a job, come later or not at all.
/// Metrics whose names are no names, in tables and logs of W&B and `Trainer`, are left out.
pub(crate) const FOUND: &[&str] = &["beat", "breath", "trains", "error", "saved", "board"];

/// A process that trains, and all that is read without being sent.
pub(crate) struct Found {
    dir: PathBuf,
    trainer: Child,
    driver: Stage,
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
        fs::write(dir.join(saved()).join("step-10/config.json"), model()).unwrap();
        fs::write(dir.join("plain.log"), plain()).unwrap();
        fs::write(dir.join("table.csv"), table()).unwrap();
        fs::write(dir.join("run.wandb"), wandb()).unwrap();
        fs::write(dir.join("trainer_state.json"), trainer_state()).unwrap();
        fs::create_dir(dir.join("named")).unwrap();
        let named = hostile("named").replace('/', "") + ".jsonl";
        fs::write(dir.join("named").join(named), "{\"step\":1,\"loss\":2.5}\n").unwrap();
        fs::write(dir.join("events.out.tfevents.1780026765.n1.7.0"), tfevents()).unwrap();
        fs::write(dir.join("shm/stepwatch/victim.hb"), heartbeat()).unwrap();
        let message = json!({"message": hostile("error"), "extraInfo": {"py_callstack": hostile("error"), "timestamp": "1"}});
        fs::write(dir.join("work/error.json"), json!({"message": message}).to_string()).unwrap();
        let trainer = trains(&dir);
        fs::write(group.join("cgroup.procs"), format!("{}\n", trainer.id())).unwrap();
        let board = BTreeMap::from([("name".to_owned(), Some(Quantity::Text(hostile("board"))))]);
        let gpus = BTreeMap::from([(script::ALL.to_owned(), board)]);
        let driver = Stage::new(
            &dir,
            &Script { fleet: Fleet::H100, count: Some(1), gpus, is_final: true, ..Script::default() },
        )
        .unwrap();
        Self { dir, trainer, driver }
    }

    /// What the exporter is started with.
    pub(crate) fn machine(&self) -> Machine {
        let path = |name: &str| self.dir.join(name).into_os_string();
        let library = stepwatch_fake_nvml::library().unwrap().into_os_string();
        let args = ["--path.sysfs".into(), path("sys"), "--path.shm".into(), path("shm")];
        Machine {
            args: args.into_iter().chain(["--nvml-library".into(), library]).collect(),
            env: vec![(SCRIPT.to_owned(), self.driver.path().into())],
        }
    }

    /// As entries of `sources`.
    pub(crate) fn sources(&self) -> String {
        let path = |name: &str| json!(self.dir.join(name)).to_string();
        let tail =
            |name: &str, run: &str| format!("  - tail: {{path: {}, run: {run}, from: start}}\n", path(name));
        [
            tail("plain.log", "plain"),
            tail("events.out.tfevents.1780026765.n1.7.0", "tensorboard"),
            tail("table.csv", "table"),
            tail("run.wandb", "wandb"),
            tail("trainer_state.json", "state"),
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

/// The configuration of a model, as `transformers` saves it.
fn model() -> String {
    let name = hostile("model");
    json!({"model_type": name, "architectures": [name], "torch_dtype": name, "_name_or_path": name})
        .to_string()
}

/// A table with a column of a hostile name.
fn table() -> String {
    let name = hostile("column").replace(['\r', '\n'], " ");
    format!("step,loss,\"{name}\"\n1,2.5,7\n2,2.5,7\n")
}

/// The history that `Trainer` saves, with a metric of a hostile name.
fn trainer_state() -> String {
    let entry = |step: u32| json!({"step": step, "loss": 2.5, hostile("state"): 7.5, "epoch": 0.1});
    json!({"global_step": 2, "log_history": [entry(1), entry(2)], "best_model_checkpoint": hostile("best")})
        .to_string()
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

/// The log of a run of W&B whose name, configuration and metric are hostile.
fn wandb() -> Vec<u8> {
    let item =
        |key: &str, json: &str| field(1, &[field(2, key.as_bytes()), long(16, json.as_bytes())].concat());
    let quoted = json!(hostile("configuration")).to_string();
    let config = field(4, &[item("model_type", &quoted), item(&hostile("key"), &quoted)].concat());
    let run = long(17, &[field(1, b"1onpol40"), config, field(8, hostile("displayed").as_bytes())].concat());
    let step = |step: &str| {
        let items = [("_step", step), ("train/loss", "2.5"), (&*hostile("logged"), "7.5")];
        field(2, &items.map(|(key, json)| item(key, json)).concat())
    };
    let mut log = b":W&B\xe1\xbe\x00".to_vec();
    for record in [run, step("1"), step("2")] {
        // One whole piece of LevelDB's log, which has CRC-32 of zlib here.
        let piece = [&[1][..], &record].concat();
        log.extend(crc(0xedb8_8320, &piece).to_le_bytes());
        log.extend((record.len() as u16).to_le_bytes());
        log.extend(piece);
    }
    log
}

/// A field of bytes whose number takes two bytes.
fn long(number: u8, data: &[u8]) -> Vec<u8> {
    let mut field = field(0, data);
    field.splice(..1, [(number << 3 | 2) | 0x80, number >> 4]);
    field
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
    crc(0x82f6_3b78, data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

fn crc(polynomial: u32, data: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ polynomial } else { crc >> 1 };
    !data.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}
