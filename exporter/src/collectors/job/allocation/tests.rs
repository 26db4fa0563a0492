//! Tests with nodes of Slurm and Kubernetes as directory trees.

use std::path::PathBuf;

use std::os::unix::fs::symlink;
use stepwatch_wire::{Event, Value};

use super::devices::tests::uuid;
use super::families::*;
use super::kubelet::tests::{Answer, Fake, pod, pods};
use super::*;
use crate::origin::{Origin, Peer};
use crate::roots::Roots;
use crate::testing::{Bench, logged};

mod over;

struct Node {
    dir: tempfile::TempDir,
    bench: Bench,
    config: Config,
}

impl Node {
    /// A node with eight GPUs.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let roots =
            Roots { sysfs: dir.path().join("sys"), procfs: dir.path().join("proc"), ..Roots::default() };
        let node = Self { bench: Bench::new(roots), config: Config::default(), dir };
        node.write("proc/stat", "btime 1700000000\n");
        for i in 0..8 {
            node.write(
                &format!("proc/driver/nvidia/gpus/0000:{:02x}:00.0/information", 0x10 + i),
                &format!(
                    "Model: H100\nGPU UUID: {}\nBus Location: 0000:{:02x}:00.0\nDevice Minor: {i}\n",
                    uuid(i),
                    0x10 + i
                ),
            );
        }
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn group(&self, path: &str, pids: &[u32]) {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        self.write(&format!("sys/fs/cgroup/{path}/cgroup.procs"), &pids.join("\n"));
    }

    /// A process that started `started` seconds after boot.
    fn process(&self, pid: u32, started: u64, environ: &[&str]) {
        let ticks = started * 100;
        let stat = format!("{pid} (python3) S 1 {pid} {pid} 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 {ticks} 1 1 0");
        self.write(&format!("proc/{pid}/stat"), &stat);
        self.write(&format!("proc/{pid}/environ"), &environ.join("\0"));
    }

    fn opens(&self, pid: u32, device: &str) {
        let dir = self.path(&format!("proc/{pid}/fd"));
        std::fs::create_dir_all(&dir).unwrap();
        let n = std::fs::read_dir(&dir).unwrap().count();
        symlink(device, dir.join(n.to_string())).unwrap();
    }

    fn trains(&self, pid: u32, run: &str) {
        let origin = Origin::Peer(Peer { connection: u64::from(pid), pid: Some(pid), uid: 0 });
        self.bench.hub.publish(origin, Event { rank: Some(pid), ..Event::step(run, 1) });
        self.bench.published();
    }

    /// A training process of this user.
    fn trains_as(&self, uid: u32, pid: u32, run: &str, environ: &[&str]) {
        self.process(pid, u64::from(pid), environ);
        self.write(&format!("proc/{pid}/status"), &format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n"));
        let origin = Origin::Peer(Peer { connection: u64::from(pid), pid: Some(pid), uid });
        self.bench.hub.publish(origin, Event { rank: Some(pid), ..Event::step(run, 1) });
        self.bench.published();
    }

    fn reader(&self) -> AllocationReader {
        AllocationReader::new(&self.config)
    }

    fn published(&self) -> Vec<Event> {
        self.bench.published()
    }
}

const SLURM: &str = "sys/fs/cgroup/system.slice/slurmstepd.scope";
const V2: &str = "system.slice/slurmstepd.scope";

fn rank(job: &str) -> Vec<String> {
    ["SLURM_JOB_NAME=llama", "SLURM_JOB_USER=ada", "SLURM_JOB_ACCOUNT=research", "SLURM_JOB_PARTITION=h100"]
        .iter()
        .map(|s| (*s).to_owned())
        .chain([
            format!("SLURM_JOB_ID={job}"),
            "SLURM_JOB_NUM_NODES=64".into(),
            "API_TOKEN=canary-7f3a".into(),
        ])
        .collect()
}

fn with<'a>(environ: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    environ.iter().map(String::as_str).chain(more.iter().copied()).collect()
}

/// The GPUs of a job.
fn held(page: &Samples, job: &str) -> Vec<u32> {
    (0..8).filter(|i| page.get(&GPU_JOB, &[&uuid(*i), "", job]).is_some()).collect()
}

const LLAMA: [&str; 9] = ["1207", "llama", "ada", "research", "h100", "", "64", "", "slurm"];

#[test]
fn a_job_of_slurm_from_its_beginning_to_its_end() {
    let node = Node::new();
    let environ = rank("1207");
    node.group(&format!("{V2}/job_1207/step_0/user/task_0"), &[100, 101]);
    node.group(&format!("{V2}/job_1207/step_0/slurm"), &[99]);
    node.process(100, 500, &with(&environ, &["SLURM_STEP_GPUS=0-3", "CUDA_VISIBLE_DEVICES=0,1,2,3"]));
    node.process(101, 600, &with(&environ, &[]));
    node.trains(100, "llama-70b");
    let mut reader = node.reader();
    assert!(matches!(reader.probe(&node.bench.context()), Ok(Support::Supported(_))));
    let page = node.bench.collect(&mut reader);
    assert_eq!(page.get(&INFO, &LLAMA), Some(1.0), "{page:?}");
    assert_eq!(page.get(&START, &["1207"]), Some(1_700_000_500.0));
    assert_eq!((page.get(&PROCESSES, &["1207"]), page.get(&GPUS, &["1207"])), (Some(2.0), Some(4.0)));
    assert_eq!(held(&page, "1207"), [0, 1, 2, 3]);
    assert_eq!(page.get(&RUN_JOB, &["llama-70b", "1207"]), Some(1.0));
    assert_eq!(page.get(&RUNNING, &["slurm"]), Some(1.0));
    let [event] = &node.published()[..] else { panic!() };
    assert_eq!(event.name.as_deref(), Some("job"));
    assert_eq!(event.extra["user"], Value::Text("ada".into()));
    assert_eq!(event.extra["runs"], Value::List(vec![Value::Text("llama-70b".into())]));
    assert_eq!(event.text.as_deref(), Some("slurm job 1207 (llama) of ada is here, on 4 GPUs"));
    node.bench.collect(&mut reader);
    assert!(node.published().is_empty(), "nothing changed");

    std::fs::remove_dir_all(node.path(SLURM).join("job_1207")).unwrap();
    std::fs::remove_dir_all(node.path("proc/100")).unwrap();
    let page = node.bench.collect(&mut reader);
    assert!(page.iter().all(|s| !s.labels.iter().any(|l| l == "1207")), "{page:?}");
    let [event] = &node.published()[..] else { panic!() };
    assert_eq!((event.code, event.text.as_deref()), (Some(0), Some("job 1207 has left this node")));
}

#[test]
fn a_run_that_is_followed_by_its_log_alone_is_its_jobs_by_name() {
    let node = Node::new();
    for (pid, job, name) in [(10, "1", "llama"), (11, "2", "twice"), (12, "3", "twice"), (13, "4", "quiet")] {
        node.group(&format!("{V2}/job_{job}/step_0/user/task_0"), &[pid]);
        node.process(pid, 1, &[&format!("SLURM_JOB_ID={job}"), &format!("SLURM_JOB_NAME={name}")]);
    }
    for run in ["llama-1", "twice-3", "twice", "other"] {
        node.bench.hub.publish(Origin::Http(crate::principal::Principal::Exporter), Event::step(run, 1));
    }
    let page = node.bench.collect(&mut node.reader());
    let published: Vec<_> =
        page.iter().filter(|s| s.family.name == RUN_JOB.name).map(|s| &s.labels).collect();
    assert_eq!(published.len(), 2, "{published:?}");
    assert_eq!(page.get(&RUN_JOB, &["llama-1", "1"]), Some(1.0));
    assert_eq!(page.get(&RUN_JOB, &["twice-3", "3"]), Some(1.0));
}

/// Users as whom no test runs.
const ANN: u32 = 4_000_001;
const BOB: u32 = 4_000_002;

/// The runs of a job.
fn runs(page: &Samples, job: &str) -> Vec<String> {
    let of_job = page.iter().filter(|s| s.family.name == RUN_JOB.name && s.labels.get(1) == job);
    of_job.map(|s| s.labels.get(0).to_owned()).collect()
}

#[test]
fn nobody_joins_the_job_of_another_by_an_environment() {
    let node = Node::new();
    node.group(&format!("{V2}/job_1207/step_0/user/task_0"), &[99, 100]);
    // The group also contains a program of root.
    node.process(99, 1, &[]);
    node.write("proc/99/status", "Uid:\t0\t0\t0\t0\n");
    node.trains_as(BOB, 10, "evil", &["SLURM_JOB_ID=1207", "SLURM_JOB_NAME=mine"]);
    node.trains_as(ANN, 100, "genuine", &["SLURM_JOB_ID=1207"]);
    node.trains_as(ANN, 101, "beside", &["SLURM_JOB_ID=1207"]);
    node.trains_as(0, 102, "of-root", &["SLURM_JOB_ID=1207"]);
    let page = node.bench.collect(&mut node.reader());
    assert_eq!(runs(&page, "1207"), ["beside", "genuine", "of-root"]);
    assert_eq!(page.get(&INFO, &["1207", "", &ANN.to_string(), "", "", "", "", "", "slurm"]), Some(1.0));
    let [event] = &node.published()[..] else { panic!() };
    assert_eq!((event.uid, event.extra.get("attested")), (Some(ANN), Some(&Value::Bool(true))));
}

#[test]
fn a_job_that_no_group_shows_is_the_first_users() {
    let node = Node::new();
    let job = ["SLURM_JOB_ID=1207"];
    node.trains_as(ANN, 10, "genuine", &job);
    node.trains_as(BOB, 11, "evil", &job);
    let mut reader = node.reader();
    assert_eq!(runs(&node.bench.collect(&mut reader), "1207"), ["genuine"]);
    let [event] = &node.published()[..] else { panic!() };
    assert_eq!((event.uid, event.extra.get("attested")), (Some(ANN), None));
    // Her trainer restarts.
    std::fs::remove_dir_all(node.path("proc/10")).unwrap();
    assert!(runs(&node.bench.collect(&mut reader), "1207").is_empty());
    node.trains_as(ANN, 12, "genuine", &job);
    assert_eq!(runs(&node.bench.collect(&mut reader), "1207"), ["genuine"]);
}

#[test]
fn nobody_names_the_run_of_another_as_that_of_their_job() {
    let node = Node::new();
    for (uid, pid, job) in [(ANN, 10, "1207"), (BOB, 11, "1208")] {
        node.group(&format!("{V2}/job_{job}/step_0/user/task_0"), &[pid]);
        node.process(pid, 1, &[&format!("SLURM_JOB_ID={job}"), "STEPWATCH_RUN=genuine"]);
        node.write(&format!("proc/{pid}/status"), &format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n"));
    }
    let her_log = Origin::Http(crate::principal::Principal::User(ANN));
    node.bench.hub.publish(her_log, Event::step("genuine", 1));
    let page = node.bench.collect(&mut node.reader());
    assert_eq!((runs(&page, "1207"), runs(&page, "1208")), (vec!["genuine".to_owned()], vec![]));
}

#[test]
fn whoever_names_many_jobs_takes_no_room_of_others() {
    let mut node = Node::new();
    node.config.max_jobs = 4;
    for i in 0..8 {
        node.trains_as(BOB, 10 + i, "evil", &[&format!("SLURM_JOB_ID=10{i}")]);
    }
    node.trains_as(ANN, 100, "genuine", &["SLURM_JOB_ID=1207"]);
    assert_eq!(runs(&node.bench.collect(&mut node.reader()), "1207"), ["genuine"]);
}

#[test]
fn secrets_of_an_environment_go_nowhere() {
    let node = Node::new();
    node.group(&format!("{V2}/job_1/step_0/user/task_0"), &[100]);
    node.process(100, 1, &with(&rank("1"), &["SLURM_STEP_GPUS=0"]));
    let page = node.bench.collect(&mut node.reader());
    assert!(page.get(&RUNNING, &["slurm"]).is_some());
    let published = format!("{page:?} {:?}", node.published());
    assert!(published.contains("research") && !published.contains("canary"), "{published}");
}

#[test]
fn version_1_and_what_a_process_has_open() {
    let node = Node::new();
    for controller in ["memory", "devices", "cpuset"] {
        node.group(&format!("{controller}/slurm/uid_1000/job_9/step_batch/task_0"), &[50]);
    }
    node.process(50, 1, &["SLURM_JOB_ID=9", "CUDA_VISIBLE_DEVICES=0,1"]);
    for device in ["/dev/nvidia5", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia6", "/tmp/nvidia7"] {
        node.opens(50, device);
    }
    let page = node.bench.collect(&mut node.reader());
    assert_eq!(page.get(&INFO, &["9", "", "1000", "", "", "", "", "", "slurm"]), Some(1.0), "{page:?}");
    assert_eq!(
        held(&page, "9"),
        [5, 6],
        "numbers that CUDA sees within a control group are not those of the node"
    );
}

#[test]
fn steps_and_mig_instances() {
    let node = Node::new();
    node.group(&format!("{V2}/job_1/step_0/user/task_0"), &[10]);
    node.group(&format!("{V2}/job_1/step_1/user/task_0"), &[11]);
    node.process(10, 1, &["SLURM_JOB_ID=1", "SLURM_STEP_GPUS=1"]);
    node.process(11, 1, &["SLURM_JOB_ID=1", "SLURM_STEP_GPUS=4,5"]);
    node.group(&format!("{V2}/job_2/step_0/user/task_0"), &[20]);
    let visible = format!("CUDA_VISIBLE_DEVICES=MIG-{}/2/0", uuid(7));
    node.process(20, 1, &["SLURM_JOB_ID=2", "SLURM_JOB_GPUS=3", &visible]);
    let page = node.bench.collect(&mut node.reader());
    for n in [1, 4, 5] {
        assert_eq!(page.get(&GPU_JOB, &[&uuid(n), "", "1"]), Some(1.0), "{n}");
    }
    assert_eq!(page.get(&GPU_JOB, &[&uuid(7), "2", "2"]), Some(1.0));
    assert_eq!((page.get(&GPUS, &["1"]), page.get(&GPUS, &["2"])), (Some(3.0), Some(1.0)));
}

#[test]
fn numbers_of_gpus_are_those_of_this_node_and_this_job() {
    let node = Node::new();
    // The second node of a job that has GPUs 0 to 3 of the first. Every step inherits the variables
    // of the script there.
    node.group(&format!("{V2}/job_1/step_0/user/task_0"), &[10]);
    node.process(10, 1, &["SLURM_JOB_ID=1", "SLURM_JOB_GPUS=0,1,2,3", "SLURM_STEP_GPUS=4,5"]);
    // The script was submitted from within a step.
    node.group(&format!("{V2}/job_2/step_batch/user/task_0"), &[20]);
    node.process(20, 1, &["SLURM_JOB_ID=2", "SLURM_JOB_GPUS=0,1", "SLURM_STEP_GPUS=6"]);
    node.group(&format!("{V2}/job_3/step_interactive/user/task_0"), &[30]);
    node.process(30, 1, &["SLURM_JOB_ID=3", "SLURM_JOB_GPUS=2"]);
    // One process has variables of another job, another has variables only for the script of
    // another node.
    node.group(&format!("{V2}/job_4/step_0/user/task_0"), &[40, 41, 42]);
    let foreign = format!("CUDA_VISIBLE_DEVICES={}", uuid(6));
    node.process(40, 1, &["SLURM_JOB_ID=9", "SLURM_STEP_GPUS=4,5", "SLURM_JOB_NAME=other", &foreign]);
    node.process(41, 1, &["SLURM_JOB_ID=4", "SLURM_JOB_GPUS=0,1"]);
    node.process(42, 1, &["HOME=/root"]);
    node.opens(42, "/dev/nvidia3");
    node.bench.hub.publish(Origin::Http(crate::principal::Principal::Exporter), Event::step("other-9", 1));
    let page = node.bench.collect(&mut node.reader());
    assert_eq!(["1", "2", "3", "4"].map(|job| held(&page, job)), [vec![4, 5], vec![0, 1], vec![2], vec![3]]);
    assert_eq!(page.get(&GPUS, &["1"]), Some(2.0));
    assert_eq!(page.get(&RUN_JOB, &["other-9", "4"]), None);
}

#[test]
fn of_a_job_it_is_told_how_many_gpus_have_no_name_here() {
    let node = Node::new();
    node.group(&format!("{V2}/job_1/step_0/user/task_0"), &[10]);
    node.process(10, 1, &["SLURM_JOB_ID=1", "SLURM_STEP_GPUS=6,7,90"]);
    let page = node.bench.collect(&mut node.reader());
    assert_eq!((held(&page, "1"), page.get(&GPUS, &["1"])), (vec![6, 7], Some(3.0)));
    let [event] = &node.published()[..] else { panic!() };
    assert_eq!(event.extra["unnamed_gpus"], Value::Number(1.0));
}

#[test]
fn a_process_that_sees_uuids_has_those() {
    let node = Node::new();
    node.group(&format!("{V2}/job_1/step_0/user/task_0"), &[10, 11]);
    let visible = format!("CUDA_VISIBLE_DEVICES={}", uuid(7));
    node.process(10, 1, &["SLURM_JOB_ID=1", "SLURM_STEP_GPUS=0", &visible]);
    node.process(11, 1, &["SLURM_JOB_ID=1", "SLURM_STEP_GPUS=5", "CUDA_VISIBLE_DEVICES=0"]);
    assert_eq!(held(&node.bench.collect(&mut node.reader()), "1"), [5, 7]);
}

#[test]
fn a_trainer_outside_the_groups_that_were_looked_at_has_the_gpus_of_its_step() {
    let node = Node::new();
    for (pid, step) in [(10, "step_batch"), (11, "step_0")] {
        node.process(pid, 1, &[&format!("SLURM_JOB_ID={pid}"), "SLURM_JOB_GPUS=1", "SLURM_STEP_GPUS=2"]);
        node.write(
            &format!("proc/{pid}/cgroup"),
            &format!("4:memory:/slurm/uid_0/job_{pid}/{step}\n1:pids:/\n"),
        );
        node.trains(pid, "llama");
    }
    let page = node.bench.collect(&mut node.reader());
    assert_eq!(["10", "11"].map(|job| held(&page, job)), [[1], [2]]);
}

#[test]
fn a_component_of_a_heterogeneous_job_has_the_name_and_the_gpus_of_the_job() {
    let node = Node::new();
    node.group(&format!("{V2}/job_301/step_0/user/task_0"), &[10]);
    let components = ["SLURM_JOB_ID_HET_GROUP_0=300", "SLURM_JOB_ID_HET_GROUP_1=301", "SLURM_STEP_GPUS=7"];
    node.process(10, 1, &with(&rank("300"), &components));
    let page = node.bench.collect(&mut node.reader());
    let info = ["301", "llama", "ada", "research", "h100", "", "64", "", "slurm"];
    assert_eq!(page.get(&INFO, &info), Some(1.0), "{page:?}");
    assert_eq!(held(&page, "301"), [7]);
}

#[test]
fn files_of_a_prolog_have_the_last_word() {
    let mut node = Node::new();
    node.config.prolog_dir = Some(node.path("jobs"));
    let mut reader = node.reader();
    let page = node.bench.collect(&mut reader);
    assert_eq!(
        (page.get(&SOURCE_UP, &["prolog"]), page.get(&SOURCE_FAILURES, &["prolog", "read"])),
        (Some(0.0), Some(1.0))
    );
    node.write("jobs/2", "1\n");
    node.write("jobs/3.1", "77\n");
    node.group(&format!("{V2}/job_1/step_0/user/task_0"), &[10]);
    node.process(10, 1, &["SLURM_JOB_ID=1", "SLURM_STEP_GPUS=6"]);
    let page = node.bench.collect(&mut reader);
    assert_eq!(page.get(&GPU_JOB, &[&uuid(2), "", "1"]), Some(1.0));
    assert_eq!(page.get(&GPU_JOB, &[&uuid(6), "", "1"]), None);
    assert_eq!(page.get(&GPU_JOB, &[&uuid(3), "1", "77"]), Some(1.0));
    assert_eq!(page.get(&INFO, &["77", "", "", "", "", "", "", "", ""]), Some(1.0));
}

#[test]
fn without_control_groups_the_environment_of_a_trainer_decides() {
    let node = Node::new();
    node.process(
        10,
        1,
        &[
            "PBS_JOBID=12.server",
            "PBS_JOBNAME=gpt",
            "CUDA_VISIBLE_DEVICES=0,2",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        ],
    );
    let mut reader = node.reader();
    assert!(matches!(reader.probe(&node.bench.context()), Ok(Support::Unsupported(_))));
    node.trains(10, "gpt");
    assert!(matches!(reader.probe(&node.bench.context()), Ok(Support::Supported(_))));
    let page = node.bench.collect(&mut reader);
    assert_eq!(page.get(&RUN_JOB, &["gpt", "12.server"]), Some(1.0));
    assert_eq!(page.get(&GPU_JOB, &[&uuid(2), "", "12.server"]), Some(1.0));
    assert_eq!(page.get(&PROCESSES, &["12.server"]), None, "no control group counts them");
}

#[test]
fn too_many_jobs_are_counted_once_and_those_that_train_stay() {
    let mut node = Node::new();
    node.config.max_jobs = 2;
    for i in 0..6u32 {
        node.group(&format!("memory/slurm/uid_1000/job_{i}/step_0/task_0"), &[100 + i]);
        node.process(100 + i, 1, &[&format!("SLURM_JOB_ID={i}")]);
    }
    node.trains_as(1000, 105, "r", &["SLURM_JOB_ID=5"]);
    let mut reader = node.reader();
    let log = logged(|| {
        for _ in 0..3 {
            let page = node.bench.collect(&mut reader);
            assert_eq!(
                (page.get(&DROPPED, &["jobs"]), page.get(&RUNNING, &["slurm"])),
                (Some(4.0), Some(2.0))
            );
            assert_eq!(page.get(&RUN_JOB, &["r", "5"]), Some(1.0));
        }
    });
    assert_eq!(log.matches("more jobs than are reported").count(), 1, "{log}");
    assert!(log.contains("count=4 whose=\"4 of uid 1000\""), "{log}");
}

#[test]
fn what_may_not_be_read_is_counted() {
    let node = Node::new();
    node.group(&format!("{V2}/job_1/step_0/user/task_0"), &[10]);
    node.process(10, 1, &[]);
    // A directory cannot be read as a file, not even by root, who may read all files.
    std::fs::remove_file(node.path("proc/10/environ")).unwrap();
    std::fs::create_dir(node.path("proc/10/environ")).unwrap();
    let page = node.bench.collect(&mut node.reader());
    assert_eq!(page.get(&UNREADABLE, &[]), Some(1.0));
    assert_eq!(page.get(&PROCESSES, &["1"]), Some(1.0), "the job is known all the same");
}

#[test]
fn a_trainer_in_a_pod() {
    let mut node = Node::new();
    node.config.kubelet.socket = node.path("kubelet.sock");
    let fake = Fake::serve(
        &node.config.kubelet.socket,
        pods(vec![
            pod("ml", "llama-0", "nvidia.com/gpu", &[&uuid(0), &uuid(1)]),
            pod("ml", "host-net", "nvidia.com/gpu", &[&uuid(2)]),
        ]),
    );
    node.process(10, 1, &["HOSTNAME=llama-0"]);
    node.trains(10, "llama-70b");
    let visible = format!("NVIDIA_VISIBLE_DEVICES={}", uuid(2));
    node.process(11, 1, &["HOSTNAME=n1", &visible]);
    node.trains(11, "gpt");
    let mut reader = node.reader();
    let page = node.bench.collect(&mut reader);
    assert_eq!(page.get(&GPU_POD, &[&uuid(1), "", "ml", "llama-0", "trainer"]), Some(1.0), "{page:?}");
    assert_eq!(page.get(&GPU_JOB, &[&uuid(1), "", "ml/llama-0"]), Some(1.0));
    assert_eq!(page.get(&RUN_JOB, &["llama-70b", "ml/llama-0"]), Some(1.0));
    assert_eq!(page.get(&RUN_JOB, &["gpt", "ml/host-net"]), Some(1.0));
    assert_eq!(page.get(&SOURCE_UP, &["kubelet"]), Some(1.0));
    fake.set(Answer::Refuse(14));
    let page = node.bench.collect(&mut reader);
    assert_eq!(page.get(&SOURCE_UP, &["kubelet"]), Some(0.0));
    assert_eq!(page.get(&SOURCE_FAILURES, &["kubelet", "refused"]), Some(1.0));
    assert!(page.get(&GPU_JOB, &[&uuid(1), "", "ml/llama-0"]).is_some(), "the last answer stays");
}

#[test]
fn a_run_goes_to_the_pod_of_its_devices_whatever_others_are_called() {
    let mut node = Node::new();
    node.config.kubelet.socket = node.path("kubelet.sock");
    let _fake = Fake::serve(
        &node.config.kubelet.socket,
        pods(vec![
            pod("team-a", "worker-0", "nvidia.com/gpu", &[&uuid(0)]),
            pod("team-b", "worker-0", "nvidia.com/gpu", &[&uuid(1)]),
            pod("team-c", "shared-0", "nvidia.com/gpu.shared", &[&format!("{}::0", uuid(3))]),
            pod("team-c", "shared-1", "nvidia.com/gpu.shared", &[&format!("{}::1", uuid(3))]),
            pod("ml", "idx-0-x7k2p", "nvidia.com/gpu", &[&uuid(2)]),
        ]),
    );
    let trains = |pid: u32, run: &str, environ: &[&str]| {
        node.process(pid, 1, environ);
        node.trains(pid, run);
    };
    let sees = |n| format!("NVIDIA_VISIBLE_DEVICES={}", uuid(n));
    trains(10, "by-uuid", &["HOSTNAME=worker-0", &sees(1)]);
    trains(11, "shared", &["HOSTNAME=shared-1", &sees(3)]);
    trains(12, "nobody-knows", &["HOSTNAME=worker-0"]);
    trains(13, "by-namespace", &["HOSTNAME=worker-0"]);
    node.write("proc/13/root/var/run/secrets/kubernetes.io/serviceaccount/namespace", "team-b");
    trains(14, "linked", &["HOSTNAME=worker-0"]);
    node.write("proc/14/root/run/secrets/kubernetes.io/serviceaccount/namespace", "team-a\n");
    // Most images have this link; followed from outside, it leads to the host's directory.
    std::fs::create_dir(node.path("proc/14/root/var")).unwrap();
    symlink("/run", node.path("proc/14/root/var/run")).unwrap();
    for pid in [13, 14] {
        // The process is in a container of its own.
        std::fs::create_dir(node.path(&format!("proc/{pid}/ns"))).unwrap();
        symlink(format!("mnt:[{pid}]"), node.path(&format!("proc/{pid}/ns/mnt"))).unwrap();
        std::fs::copy("/proc/self/status", node.path(&format!("proc/{pid}/status"))).unwrap();
    }
    trains(15, "indexed", &["HOSTNAME=idx-0", "NVIDIA_VISIBLE_DEVICES=void"]);
    node.opens(15, "/dev/nvidia2");
    let page = node.bench.collect(&mut node.reader());
    let of = |run: &str| -> Vec<String> {
        let published = page.iter().filter(|s| s.family.name == RUN_JOB.name && s.labels.get(0) == run);
        published.map(|s| s.labels.get(1).to_owned()).collect()
    };
    assert_eq!(of("by-uuid"), ["team-b/worker-0"]);
    assert_eq!(of("shared"), ["team-c/shared-1"]);
    assert!(of("nobody-knows").is_empty());
    assert_eq!(of("by-namespace"), ["team-b/worker-0"]);
    assert_eq!(of("linked"), ["team-a/worker-0"]);
    assert_eq!(of("indexed"), ["ml/idx-0-x7k2p"]);
}

#[test]
fn a_pod_on_a_part_of_a_gpu_has_the_runs_in_it() {
    let mut node = Node::new();
    node.config.kubelet.socket = node.path("kubelet.sock");
    let _fake = Fake::serve(
        &node.config.kubelet.socket,
        pods(vec![
            pod("ml", "half-0", "nvidia.com/mig-3g.40gb", &["nvidia4/gi1"]),
            pod("ml", "half-1", "nvidia.com/mig-3g.40gb", &["nvidia4/gi2"]),
        ]),
    );
    node.process(10, 1, &["HOSTNAME=n1", &format!("NVIDIA_VISIBLE_DEVICES=MIG-{}/2/0", uuid(4))]);
    node.trains(10, "llama");
    let page = node.bench.collect(&mut node.reader());
    assert_eq!(page.get(&RUN_JOB, &["llama", "ml/half-1"]), Some(1.0), "{page:?}");
    assert_eq!(page.get(&RUN_JOB, &["llama", "ml/half-0"]), None);
}

#[test]
fn a_node_of_slurm_in_a_pod_has_the_job_of_slurm_on_its_gpus() {
    let mut node = Node::new();
    node.config.kubelet.socket = node.path("kubelet.sock");
    let _fake = Fake::serve(
        &node.config.kubelet.socket,
        pods(vec![pod("slurm", "worker-0", "nvidia.com/gpu", &[&uuid(0), &uuid(1)])]),
    );
    node.group(
        "kubepods.slice/pod1.slice/cri-1.scope/system.slice/slurmstepd.scope/job_5/step_0/user/task_0",
        &[10],
    );
    node.process(10, 1, &["SLURM_JOB_ID=5", "SLURM_STEP_GPUS=0"]);
    let page = node.bench.collect(&mut node.reader());
    assert_eq!(page.get(&GPU_JOB, &[&uuid(0), "", "5"]), Some(1.0));
    assert_eq!(page.get(&GPU_JOB, &[&uuid(0), "", "slurm/worker-0"]), None);
    assert_eq!(page.get(&GPU_JOB, &[&uuid(1), "", "slurm/worker-0"]), Some(1.0));
    assert_eq!(page.get(&GPU_POD, &[&uuid(0), "", "slurm", "worker-0", "trainer"]), Some(1.0));
}

#[test]
fn a_node_without_a_scheduler_is_unsupported() {
    let node = Node::new();
    assert!(matches!(node.reader().probe(&node.bench.context()), Ok(Support::Unsupported(_))));
}
