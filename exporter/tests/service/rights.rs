//! The rights that the units of `deploy/systemd/` give, on a real process of another user: with the
//! unit's the exporter knows its job, and with those of `hardened.conf` it says what it cannot see.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{Exporter, Rights, eventually, is_root};

/// Users that no machine has.
const EXPORTER: u32 = 4_000_010;
const ANN: u32 = 4_000_011;

fn unit(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// The capabilities that remain after these files, as systemd reads a list: an empty value clears
/// what stands before it.
fn capabilities(files: &[&str]) -> Vec<String> {
    let of = |key: &str| {
        let mut given: Vec<String> = Vec::new();
        for text in files.iter().map(|name| unit(name)) {
            for value in text.lines().filter_map(|line| line.strip_prefix(key)) {
                if value.is_empty() {
                    given.clear();
                }
                given.extend(value.split_whitespace().map(str::to_owned));
            }
        }
        given
    };
    let (ambient, bounding) = (of("AmbientCapabilities="), of("CapabilityBoundingSet="));
    assert_eq!(ambient, bounding, "one without the other gives nothing");
    ambient
}

/// A trainer of Ann's with a job, that says hello and waits.
struct Trainer(Child);

impl Trainer {
    fn start(exporter: &Exporter) -> Self {
        let script = "import socket, sys, time\n\
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
            s.connect(sys.argv[1])\n\
            s.send(b'{\"k\":\"step\",\"run\":\"hers\",\"rank\":0,\"step\":7,\"m\":{\"loss\":2.5}}')\n\
            time.sleep(600)";
        let mut trainer = Command::new("python3");
        trainer.args(["-c", script]).arg(exporter.socket()).uid(ANN).gid(ANN).current_dir("/");
        trainer.env("SLURM_JOB_ID", "1207").env("SLURM_JOB_USER", "ann").stdin(Stdio::null());
        Self(trainer.spawn().unwrap())
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(dir: &Path, files: &[&str]) -> Exporter {
    let rights = Rights { user: EXPORTER, capabilities: capabilities(files) };
    // A directory of the prolog makes the collector of jobs read from the start, as a scheduler
    // does.
    let prolog = dir.join("prolog");
    std::fs::create_dir(&prolog).unwrap();
    let config = format!(
        "exposition: {{interval: 20ms}}\ncollectors:\n  job: {{interval: 50ms, prolog_dir: '{}'}}\n  config_drift: {{interval: 50ms}}\n",
        prolog.display()
    );
    Exporter::start_as(dir, &config, &rights)
}

/// One more is one more that whoever takes over the exporter has.
const CAPABILITIES: &[&str] =
    &["CAP_SYSLOG", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_NET_ADMIN", "CAP_SYS_ADMIN"];

#[test]
fn the_unit_gives_what_the_features_need_and_no_more() {
    assert_eq!(capabilities(&["stepwatch-exporter.service"]), CAPABILITIES);
    let unit = unit("stepwatch-exporter.service");
    for line in ["NoNewPrivileges=yes", "DynamicUser=yes", "ProtectSystem=strict", "DevicePolicy=closed"] {
        assert!(unit.lines().any(|l| l == line), "{line}");
    }
    // The rights of another user are root's to give.
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let exporter = start(dir.path(), &["stepwatch-exporter.service"]);
    let _trainer = Trainer::start(&exporter);
    eventually(
        || format!("the job of Ann's run: {}", exporter.page().0),
        || exporter.page().0.lines().any(|l| l.starts_with("train_job_info{") && l.contains("job=\"1207\"")),
    );
    assert_eq!(exporter.page().get("config_unreadable_processes"), Some(0.0));
}

#[test]
fn with_fewer_rights_it_says_what_it_does_not_see() {
    assert_eq!(capabilities(&["stepwatch-exporter.service", "hardened.conf"]), ["CAP_SYSLOG"]);
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let exporter = start(dir.path(), &["stepwatch-exporter.service", "hardened.conf"]);
    let _trainer = Trainer::start(&exporter);
    exporter.wait_for("config_unreadable_processes", 1.0);
    assert!(!exporter.page().0.contains("job=\"1207\""), "{}", exporter.page().0);
}
