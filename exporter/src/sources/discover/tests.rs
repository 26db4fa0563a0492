//! Tests with a directory tree in place of `/proc` and the cgroups, a real process, and a library
//! in place of NVML.

mod beside;
mod owners;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::files::LINGER;
use super::*;
use crate::roots::Roots;
use crate::testing;

const PATIENCE: Duration = Duration::from_secs(20);

/// A host whose processes are files.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let host = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir_all(host.path("proc")).unwrap();
        fs::create_dir_all(host.path("work")).unwrap();
        fs::write(host.path("proc/stat"), "cpu 1 2 3\nbtime 1000000000\n").unwrap();
        host
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn roots(&self) -> Roots {
        Roots {
            procfs: self.path("proc"),
            sysfs: self.path("sys"),
            nvml_library: Some("/nonexistent/libnvidia-ml.so.1".into()),
            ..Roots::default()
        }
    }

    /// Creates a process that works in `work/`; `open` are its descriptors and their targets.
    fn process(&self, pid: u32, parent: u32, environ: &[&str], open: &[(u32, &str)]) {
        let dir = self.path(&format!("proc/{pid}"));
        fs::create_dir_all(dir.join("fd")).unwrap();
        fs::create_dir_all(dir.join("fdinfo")).unwrap();
        let rest = "1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 4711 0";
        fs::write(dir.join("stat"), format!("{pid} (python3 (a) b) S {parent} {rest}")).unwrap();
        fs::write(dir.join("environ"), environ.join("\0")).unwrap();
        fs::copy("/proc/self/status", dir.join("status")).unwrap();
        symlink(self.path("work"), dir.join("cwd")).unwrap();
        for (fd, target) in open {
            let elsewhere = target.starts_with("/dev") || target.starts_with("pipe:");
            let target = if elsewhere { target.into() } else { self.path(target) };
            symlink(&target, dir.join(format!("fd/{fd}"))).unwrap();
            fs::write(dir.join(format!("fdinfo/{fd}")), "pos:\t0\nflags:\t0100001\n").unwrap();
        }
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    fn discovery(&self) -> Discovery {
        self.with(r#"{"cgroups":["jobs/*"]}"#, self.roots())
    }

    fn with(&self, config: &str, roots: Roots) -> Discovery {
        let config: DiscoverConfig = serde_json::from_str(config).unwrap();
        assert!(config.check().is_empty());
        let state_dir = self.path("state");
        Discovery::new(
            config,
            Surroundings { hub: testing::hub(), nvml: crate::nvml::Nvml::default(), roots, state_dir },
        )
    }
}

impl Discovery {
    /// Paths below the host's directory, each with the run and rank of its tail.
    fn found(&self, host: &Host) -> Vec<String> {
        let name = |p: &PathBuf| p.strip_prefix(host.dir.path()).unwrap_or(p).to_string_lossy().into_owned();
        self.files.paths().map(name).collect()
    }

    fn published(&self) -> Vec<Event> {
        testing::published(&self.around.hub)
    }

    fn page(&self) -> Samples {
        let mut out = Samples::default();
        self.around.hub.write(&mut out);
        out
    }
}

/// Polls until `done`, as the event loop does.
async fn eventually(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "in vain");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

const TORCHRUN: &[&str] =
    &["RANK=3", "WORLD_SIZE=8", "STEPWATCH_RUN=llama", "TORCHELASTIC_RESTART_COUNT=2", "HOME=/"];

#[tokio::test]
async fn a_process_that_holds_a_gpu_and_what_it_writes() {
    let host = Host::new();
    host.write("logs/train.txt", "step 1 loss 2.5\n");
    host.write("logs/metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":2.25}\n");
    host.write("logs/weights.bin", "x");
    host.write("work/runs/events.out.tfevents.1780026765.n1.7.0", "");
    host.process(
        100,
        1,
        TORCHRUN,
        &[(1, "logs/train.txt"), (5, "/dev/nvidia0"), (6, "logs/metrics.jsonl"), (7, "logs/weights.bin")],
    );
    host.process(101, 100, &[], &[]);
    host.process(200, 1, &["RANK=0"], &[(5, "/dev/null"), (6, "logs/other.jsonl")]);
    let mut d = host.discovery();
    d.look(Instant::now());
    assert_eq!(
        d.found(&host),
        ["logs/metrics.jsonl", "logs/train.txt", "work/runs/events.out.tfevents.1780026765.n1.7.0"]
    );
    eventually(|| d.published().iter().any(|e| e.step == Some(2))).await;
    let published = d.published();
    let hello = published.iter().find(|e| e.kind == Kind::Hello).unwrap();
    assert_eq!((hello.run.as_deref(), hello.rank, hello.world), (Some("llama"), Some(3), Some(8)));
    assert_eq!(hello.extra["pid"], Value::Number(100.0));
    let step = published.iter().find(|e| e.step == Some(2)).unwrap();
    assert_eq!((step.run.as_deref(), step.rank, step.m.get("loss")), (Some("llama"), Some(3), Some(2.25)));
    assert_eq!(d.page().get(&PROCESSES, &["llama"]), Some(1.0));
    assert_eq!(d.page().get(&RESTARTS, &["llama"]), Some(2.0));
}

#[tokio::test]
async fn a_dump_of_the_flight_recorder_is_published_once() {
    let host = Host::new();
    let prefix = format!("TORCH_FR_DUMP_TEMP_FILE={}", host.path("fr/rank_").display());
    host.process(100, 1, &["RANK=3", "STEPWATCH_RUN=llama", &prefix], &[(5, "/dev/nvidia0")]);
    let mut d = host.discovery();
    d.look(Instant::now());
    let dumps = |d: &Discovery| {
        let dumps =
            d.published().into_iter().filter(|e| e.name.as_deref() == Some(stepwatch_formats::DUMP_EVENT));
        dumps.map(|e| (e.run, e.rank)).collect::<Vec<_>>()
    };
    assert!(dumps(&d).is_empty());
    host.write("fr/rank_3", "not looked at");
    d.look(Instant::now());
    d.look(Instant::now());
    assert_eq!(dumps(&d), [(Some("llama".to_owned()), Some(3))]);
}

#[tokio::test]
async fn output_that_goes_to_a_launcher_is_found_there() {
    let host = Host::new();
    host.write("slurm-7.out", "");
    host.process(10, 1, &[], &[(1, "slurm-7.out")]);
    host.process(20, 10, &[], &[]);
    for rank in 0..2 {
        let pid = 30 + rank;
        host.process(pid, 20, &[&format!("RANK={rank}"), "WORLD_SIZE=2"], &[(5, "/dev/nvidia0")]);
    }
    let mut d = host.discovery();
    d.look(Instant::now());
    assert!(d.found(&host).contains(&"slurm-7.out".to_owned()));
    // Without a name or a job, both ranks get the run of the process that started them.
    let runs: BTreeSet<_> = d.published().into_iter().filter_map(|e| e.run).collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert!(runs.iter().all(|run| run.starts_with("run-20010909-014727-")), "{runs:?}");
}

#[tokio::test]
async fn a_log_that_tee_writes_is_found() {
    let host = Host::new();
    host.process(100, 1, TORCHRUN, &[(1, "pipe:[7]"), (2, "pipe:[7]"), (5, "/dev/nvidia0")]);
    host.process(101, 1, &[], &[(0, "pipe:[7]"), (3, "logs/train.txt")]);
    host.process(102, 1, &[], &[(0, "pipe:[8]"), (3, "logs/other.txt")]);
    host.write("logs/train.txt", "step 1 loss 2.5\n");
    host.write("logs/other.txt", "step 1 loss 2.5\n");
    let mut d = host.discovery();
    d.look(Instant::now());
    assert_eq!(d.found(&host), ["logs/train.txt"]);
}

#[tokio::test]
async fn a_file_is_let_go_some_time_after_its_process() {
    let host = Host::new();
    host.write("logs/metrics.jsonl", "");
    host.process(100, 1, &["STEPWATCH_RUN=r"], &[(5, "/dev/nvidia0"), (6, "logs/metrics.jsonl")]);
    let mut d = host.discovery();
    let begun = Instant::now();
    d.look(begun);
    assert_eq!(d.found(&host), ["logs/metrics.jsonl"]);
    fs::remove_dir_all(host.path("proc/100")).unwrap();
    d.look(begun + LINGER / 2);
    assert_eq!(d.found(&host).len(), 1, "its end is still to be read");
    d.look(begun + LINGER);
    assert_eq!(d.found(&host).len(), 0);
}

#[tokio::test]
async fn a_process_that_reports_by_itself_or_is_configured_not_to_is_left_alone() {
    let host = Host::new();
    host.write("logs/metrics.jsonl", "");
    let environ = &["STEPWATCH_DISABLED=1", "RANK=0"];
    host.process(100, 1, environ, &[(5, "/dev/nvidia0"), (6, "logs/metrics.jsonl")]);
    let mut d = host.discovery();
    d.look(Instant::now());
    assert_eq!(d.files.len(), 0);
}

/// A process of this host, killed when dropped.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_real_process_in_a_control_group() {
    let host = Host::new();
    // A process that writes to a file and keeps it open.
    let child = Command::new("sh")
        .args(["-c", r#"exec 7>>metrics.jsonl; echo '{"step":5,"loss":1.5}' >&7; echo ready; read -r _"#])
        .current_dir(host.path("work"))
        .envs([("RANK", "1"), ("WORLD_SIZE", "2"), ("STEPWATCH_RUN", "real")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Child(child);
    let mut ready = [0];
    std::io::Read::read_exact(child.0.stdout.as_mut().unwrap(), &mut ready).unwrap();
    host.write("sys/fs/cgroup/jobs/7/cgroup.procs", &format!("{}\n", child.0.id()));
    let roots = Roots { procfs: "/proc".into(), ..host.roots() };
    let mut d = host.with(r#"{"cgroups":["jobs/*"]}"#, roots);
    d.look(Instant::now());
    assert!(d.found(&host).contains(&"work/metrics.jsonl".to_owned()), "{:?}", d.found(&host));
    eventually(|| d.published().iter().any(|e| e.kind == Kind::Step)).await;
    let step = d.published().into_iter().find(|e| e.kind == Kind::Step).unwrap();
    assert_eq!((step.run.as_deref(), step.rank, step.step), (Some("real"), Some(1), Some(5)));
}

/// An NVML with only the functions that discovery calls, two GPUs, and one process on each.
const FAKE_NVML: &str = r#"
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device) { *device = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetUUID(void *device, char *out, unsigned n) { out[0] = '0' + (char)(long)device; out[n - 1] = out[1] = 0; return 0; }
#ifdef MINOR
int nvmlDeviceGetMinorNumber(void *device, unsigned *n) { *n = (unsigned)(long)device - 1; return 0; }
#endif
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, process *out) {
#ifdef LOST
  if ((long)device == 2) return 15;
#endif
  if (out == 0 || *n < 1) { *n = 1; return 7; }
  out->pid = 40 + (unsigned)(long)device; out->memory = 1; out->gi = out->ci = 0xffffffffu; *n = 1;
  return 0;
}
"#;

/// Compiles it with these macros defined.
fn fake_nvml(host: &Host, defined: &[&str]) -> PathBuf {
    host.write("nvml.c", FAKE_NVML);
    let library = host.path("libnvidia-ml.so.1");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(host.path("nvml.c"));
    let built = cc.args(defined.iter().map(|name| format!("-D{name}"))).status();
    assert!(built.is_ok_and(|s| s.success()), "the linker of every Rust program");
    library
}

#[tokio::test]
async fn nvml_knows_who_computes() {
    let host = Host::new();
    let library = fake_nvml(&host, &[]);
    for pid in [41, 42, 43] {
        host.process(pid, 1, &[&format!("RANK={pid}"), "STEPWATCH_RUN=r"], &[]);
    }
    let mut d = host.with("{}", Roots { nvml_library: Some(library), ..host.roots() });
    d.look(Instant::now());
    let ranks: Vec<_> = d.published().into_iter().filter_map(|e| e.rank).collect();
    assert_eq!(ranks, [41, 42], "and not 43");
}

#[tokio::test]
async fn who_holds_a_gpu_that_cannot_answer_computes_on_it() {
    for (defined, wanted) in [(&["LOST", "MINOR"][..], &[41, 42][..]), (&["LOST"], &[41, 42, 43])] {
        let host = Host::new();
        let library = fake_nvml(&host, defined);
        let driver = [(3, "/dev/nvidiactl"), (4, "/dev/nvidia-uvm")];
        for (pid, gpu) in [(42, "/dev/nvidia1"), (43, "/dev/nvidia0")] {
            let open = [&driver[..], &[(5, gpu)]].concat();
            host.process(pid, 1, &[&format!("RANK={pid}"), "STEPWATCH_RUN=r"], &open);
        }
        host.process(41, 1, &["RANK=41", "STEPWATCH_RUN=r"], &[]);
        // This process only monitors GPUs.
        let open = [(3, "/dev/nvidiactl"), (4, "/dev/nvidia0"), (5, "/dev/nvidia1")];
        host.process(44, 1, &["RANK=44"], &open);
        let mut d = host.with("{}", Roots { nvml_library: Some(library), ..host.roots() });
        d.look(Instant::now());
        let ranks: Vec<_> = d.published().into_iter().filter_map(|e| e.rank).collect();
        assert_eq!(ranks, wanted, "{defined:?}");
    }
}

#[test]
fn mistakes_are_named() {
    let config: DiscoverConfig =
        serde_json::from_str(r#"{"interval":"1ms","cgroups":["ok/*","a/***"]}"#).unwrap();
    let wrong = config.check().join("\n");
    assert!(
        wrong.contains("interval:") && wrong.contains("cgroups[1]:") && !wrong.contains("cgroups[0]"),
        "{wrong}"
    );
}
