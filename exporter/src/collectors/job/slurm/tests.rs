//! Tests with commands that answer as Slurm does, slowly, wrongly, too much or not at all.

use std::io::Write as _;
use std::process::{Command, Stdio};

use stepwatch_wire::Value;
use stepwatch_wire::names::hw;

use super::*;
use crate::roots::Roots;
use crate::testing::Bench;

const PINGED: &str = include_str!("fixtures/ping-22.05.txt");
const NODES_SHOWN: &str = include_str!("fixtures/nodes-22.05.txt");
const JOBS_SHOWN: &str = include_str!("fixtures/jobs-22.05.txt");

/// A directory of commands.
struct Commands {
    dir: tempfile::TempDir,
    config: Config,
}

impl Commands {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            enabled: true,
            timeout: Period::secs(20),
            scontrol: dir.path().join("scontrol"),
            squeue: dir.path().join("squeue"),
            silent_after: Period::millis(0),
            ..Config::default()
        };
        let commands = Self { dir, config };
        commands.ping("cat ping");
        commands.nodes("cat nodes");
        commands.jobs("cat jobs");
        for (name, text) in [("ping", PINGED), ("nodes", NODES_SHOWN), ("jobs", JOBS_SHOWN)] {
            std::fs::write(commands.dir.path().join(name), text).unwrap();
        }
        commands.script("scontrol", "case \"$*\" in\nping) . ./ping.sh ;;\n'--all --local --details --oneliner show nodes') . ./nodes.sh ;;\n*) exit 9 ;;\nesac");
        commands.script(
            "squeue",
            "case \"$1 $2 $3 $4\" in\n'--all --local --noheader --Format') . ./jobs.sh ;;\n*) exit 9 ;;\nesac",
        );
        commands
    }

    /// Writes a program by another process: one that this process had open for writing could not be
    /// run while a neighbouring test starts a process.
    fn script(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        let mut shell = Command::new("sh");
        shell.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let text = format!("#!/bin/sh\ncd {}\n{text}\n", self.dir.path().display());
        shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(shell.wait().unwrap().success());
    }

    fn ping(&self, text: &str) {
        std::fs::write(self.dir.path().join("ping.sh"), text).unwrap();
    }

    fn nodes(&self, text: &str) {
        std::fs::write(self.dir.path().join("nodes.sh"), text).unwrap();
    }

    fn jobs(&self, text: &str) {
        std::fs::write(self.dir.path().join("jobs.sh"), text).unwrap();
    }

    fn reader(&self) -> SlurmReader {
        SlurmReader::new(&self.config)
    }
}

fn texts(bench: &Bench) -> Vec<String> {
    bench.published().into_iter().map(|e| e.text.unwrap()).collect()
}

/// A pass in which the command fails for this reason.
fn fails(commands: &Commands, command: &str, reason: &str) -> String {
    let bench = Bench::new(Roots::default());
    let page = bench.collect(&mut commands.reader());
    assert_eq!(page.get(&FAILURES, &[command, reason]), Some(1.0), "{command}: {reason}");
    let failures: f64 = page.rows(&FAILURES).map(|row| row.value).sum();
    assert_eq!((failures, page.get(&UP, &[])), (1.0, Some(0.0)));
    assert_eq!((page.get(&JOBS, &["running"]), page.get(&GPUS, &["idle"])), (None, None), "not half of it");
    let texts = texts(&bench);
    assert_eq!(texts.len(), 1, "{texts:?}");
    texts.concat()
}

#[test]
fn nodes_and_jobs_of_a_real_slurm() {
    let commands = Commands::new();
    let bench = Bench::new(Roots::default());
    let page = bench.collect(&mut commands.reader());
    let get = |family, labels: &[&str]| page.get(family, labels);
    assert_eq!(get(&UP, &[]), Some(1.0));
    assert_eq!(get(&CONTROLLER_UP, &["primary", "vm"]), Some(1.0));
    for (state, gpus, count) in
        [("mixed", "yes", 2.0), ("drained", "yes", 1.0), ("unknown", "yes", 1.0), ("mixed", "no", 0.0)]
    {
        assert_eq!(get(&NODES, &[state, gpus]), Some(count), "{state}");
    }
    for (state, count) in [("allocated", 4.0), ("idle", 12.0), ("powered_down", 8.0), ("unavailable", 8.0)] {
        assert_eq!(get(&GPUS, &[state]), Some(count), "{state}");
    }
    assert_eq!((get(&JOBS, &["running"]), get(&JOBS, &["pending"])), (Some(1.0), Some(106.0)));
    for (reason, jobs, gpus) in [
        ("resources", 0.0, 0.0),
        ("down_or_reserved", 1.0, 24.0),
        ("priority", 6.0, 18.0),
        ("begin_time", 1.0, 2.0),
        ("held", 98.0, 389.0),
        ("dependency", 0.0, 0.0),
    ] {
        assert_eq!(get(&PENDING_JOBS, &[reason]), Some(jobs), "{reason}");
        assert_eq!(get(&PENDING_GPUS, &[reason]), Some(gpus), "{reason}");
    }
    // Held jobs are not eligible, so that nothing says how long they wait.
    assert_eq!((get(&OLDEST, &["held"]), get(&FITTING, &[])), (Some(0.0), Some(0.0)));
    let eligible = unix_now() - 1_796_058_494.0;
    assert!((get(&OLDEST, &["down_or_reserved"]).unwrap() - eligible.max(0.0)).abs() < 60.0);
    let drained = ["n3", "drained", "Kill task failed | bad State=IDLE"];
    assert_eq!(get(&OUT, &drained), Some(1_796_058_494.0));
    assert_eq!(page.rows(&OUT).count(), 1);
    assert!(get(&ANSWER, &["jobs"]).is_some_and(|seconds| seconds > 0.0));
    let failures: f64 = page.rows(&FAILURES).map(|row| row.value).sum();
    assert_eq!(
        (failures, get(&MALFORMED, &["nodes"]), get(&MALFORMED, &["jobs"])),
        (0.0, Some(0.0), Some(0.0))
    );
    let events = bench.published();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].name.as_deref(), Some("node_out_of_service"));
    assert_eq!(events[0].node.as_deref(), Some("n1"), "the node that reports it");
    assert_eq!(events[0].extra.get(hw::ABOUT), Some(&Value::Text("n3".into())));
    assert_eq!(events[0].text.as_deref(), Some("Slurm: drained (Kill task failed | bad State=IDLE)"));
}

#[test]
fn a_controller_that_is_gone_is_not_asked_further() {
    let commands = Commands::new();
    commands.ping(
        "echo 'Slurmctld(primary) at head1 is DOWN'; echo 'Slurmctld(backup) at head2 is DOWN'; exit 1",
    );
    commands.nodes("touch asked; cat nodes");
    assert_eq!(
        fails(&commands, "ping", "controller"),
        "Slurm has not answered for 0 min: no controller is up"
    );
    assert!(!commands.dir.path().join("asked").exists());
    // The backup has taken over.
    commands.ping("echo 'Slurmctld(primary) at head1 is DOWN'; echo 'Slurmctld(backup) at head2 is UP'");
    let bench = Bench::new(Roots::default());
    let page = bench.collect(&mut commands.reader());
    assert_eq!((page.get(&UP, &[]), page.get(&CONTROLLER_UP, &["primary", "head1"])), (Some(1.0), Some(0.0)));
}

/// As a real `scontrol` does where munge does not run.
#[test]
fn a_node_that_cannot_prove_who_it_is_knows_nothing_of_the_controller() {
    let commands = Commands::new();
    let refused =
        "scontrol: error: slurm_send_node_msg: auth_g_create: REQUEST_PING has authentication error";
    commands.ping(&format!("echo 'Slurmctld(primary) at vm is DOWN'; echo '{refused}' >&2; exit 1"));
    let text = fails(&commands, "ping", "exit");
    let unreadable = "Slurm may work, but could not be read for 0 min: ping ended with exit status: 1";
    assert_eq!(text, format!("{unreadable}: {refused}"));
    let page = Bench::new(Roots::default()).collect(&mut commands.reader());
    assert_eq!((page.rows(&CONTROLLER_UP).count(), page.get(&SILENT, &[])), (0, Some(0.0)));
}

#[test]
fn a_version_that_answers_to_ping_in_other_words_is_read() {
    let commands = Commands::new();
    commands.ping("echo 'controller head1: responding'");
    let page = Bench::new(Roots::default()).collect(&mut commands.reader());
    assert_eq!((page.get(&UP, &[]), page.rows(&CONTROLLER_UP).count()), (Some(1.0), 0));
    let old = controllers("Slurmctld(primary/backup) at a/b are UP/DOWN");
    let found: Vec<_> = old.iter().map(|c| (c.role.as_str(), c.host.as_str(), c.is_up)).collect();
    assert_eq!(found, [("primary", "a", true), ("backup", "b", false)]);
    assert_eq!(controllers("** RESTORE SLURMCTLD DAEMON TO SERVICE **"), []);
}

#[test]
fn what_it_complains_of_is_passed_on() {
    let commands = Commands::new();
    let refused = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)";
    commands.jobs(&format!("head -n 3 jobs; echo >&2; echo '{refused}' >&2; exit 1"));
    let text = fails(&commands, "jobs", "exit");
    assert_eq!(text, format!("Slurm has not answered for 0 min: jobs ended with exit status: 1: {refused}"));
    // The controller answers to ping, and is too busy for more.
    let busy = "slurm_load_jobs error: Socket timed out on send/recv operation";
    commands.jobs(&format!("echo '{busy}' >&2; exit 1"));
    let text = fails(&commands, "jobs", "exit");
    assert_eq!(text, format!("Slurm has not answered for 0 min: jobs ended with exit status: 1: {busy}"));
    // It works for others, and lets this user ask less often.
    commands.jobs("echo 'slurm_load_jobs error: Rate limit exceeded' >&2; exit 1");
    assert!(fails(&commands, "jobs", "exit").starts_with("Slurm may work, but could not be read"));
    commands.jobs("printf '\\033[31m\\0bad\\n' >&2; exit 1");
    let text = fails(&commands, "jobs", "exit");
    let denied = "Slurm may work, but could not be read for 0 min: jobs ended with exit status: 1: [31mbad";
    assert_eq!(text, denied);
    // More than a pipe holds.
    commands.jobs("cat jobs; head -c 1000000 /dev/zero >&2");
    let page = Bench::new(Roots::default()).collect(&mut commands.reader());
    assert_eq!(page.get(&UP, &[]), Some(1.0));
}

#[test]
fn a_command_that_hangs_is_ended_with_all_that_it_started() {
    let mut commands = Commands::new();
    commands.config.timeout = Period::secs(3);
    commands.nodes("sleep 600 & echo $! > child; echo $$ > parent; cat nodes; wait");
    let text = fails(&commands, "nodes", "timeout");
    assert_eq!(text, "Slurm has not answered for 0 min: nodes gave no answer within 3s");
    for name in ["parent", "child"] {
        let pid = std::fs::read_to_string(commands.dir.path().join(name)).unwrap();
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        // The child's end is awaited by whoever adopts it.
        let ended = || stat().map_or(true, |stat| name == "child" && stat.contains(") Z "));
        let asked = Instant::now();
        while !ended() {
            assert!(asked.elapsed() < Duration::from_secs(20), "{name}: {:?}", stat());
            std::thread::yield_now();
        }
    }
}

#[test]
fn an_answer_has_a_limit_and_must_be_known() {
    let commands = Commands::new();
    commands.jobs("head -c 50000000 /dev/zero | tr '\\0' 'x'");
    assert_eq!(
        fails(&commands, "jobs", "too_large"),
        "Slurm may work, but could not be read for 0 min: jobs printed more than 33554432 bytes"
    );
    commands.jobs("echo 'ID|ETAT|RAISON'; echo '1|EN ATTENTE|Ressources'");
    let unknown =
        "Slurm may work, but could not be read for 0 min: no line of jobs is one that this version knows";
    assert_eq!(fails(&commands, "jobs", "malformed"), unknown);
    commands.nodes("head -c 100000 /dev/urandom");
    fails(&commands, "nodes", "malformed");
    commands.nodes("cat nodes; echo 'NodeName=n5 Arch=x86'");
    commands.jobs("head -c 400 jobs");
    let page = Bench::new(Roots::default()).collect(&mut commands.reader());
    assert_eq!((page.get(&UP, &[]), page.get(&MALFORMED, &["nodes"])), (Some(1.0), Some(1.0)));
    assert_eq!(page.get(&MALFORMED, &["jobs"]), Some(1.0), "a line that is cut off");
    // An empty queue is none that is unknown.
    commands.jobs("true");
    let page = Bench::new(Roots::default()).collect(&mut commands.reader());
    assert_eq!((page.get(&UP, &[]), page.get(&JOBS, &["pending"])), (Some(1.0), Some(0.0)));
}

#[test]
fn commands_that_are_not_there() {
    let mut commands = Commands::new();
    commands.config.scontrol = commands.dir.path().join("missing");
    let text = fails(&commands, "ping", "start");
    assert!(text.starts_with("Slurm may work, but could not be read for 0 min: cannot start"), "{text}");
    assert!(text.contains("No such file"), "{text}");
    let page = Bench::new(Roots::default()).collect(&mut commands.reader());
    assert_eq!((page.get(&SILENT, &[]), page.get(&UP, &[])), (Some(0.0), Some(0.0)));
    assert!(page.get(&UNREADABLE, &[]).is_some());
}

#[test]
fn a_job_counts_once_it_has_waited_beside_idle_gpus_at_every_look() {
    let mut commands = Commands::new();
    commands.nodes("echo 'NodeName=n1 Gres=gpu:8 GresUsed=gpu:0 State=IDLE Partitions=main'");
    let job = "1|1|N/A|gres:gpu:8|N/A|N/A|cpu=1|1796058494|main||(null)|Resources|(null)|";
    commands.jobs(&format!("echo '7|PENDING|{job}'; echo '8|PENDING|{job}'"));
    let bench = Bench::new(Roots::default());
    let page = bench.collect(&mut commands.reader());
    assert_eq!((page.get(&FITTING, &[]), texts(&bench)), (Some(0.0), vec![]), "not for long");
    commands.config.idle_after = Period::millis(0);
    let page = bench.collect(&mut commands.reader());
    assert_eq!(page.get(&FITTING, &[]), Some(2.0));
    let waits = "Slurm: 2 jobs wait beside as many idle GPUs, job 7 of main for 0 min";
    assert_eq!(texts(&bench), [waits]);
}

#[test]
fn the_environment_is_what_the_formats_need() {
    let mut commands = Commands::new();
    commands.config.conf = Some("/etc/slurm/other.conf".into());
    commands.ping("env > env.txt; cat ping");
    Bench::new(Roots::default()).collect(&mut commands.reader());
    let env = std::fs::read_to_string(commands.dir.path().join("env.txt")).unwrap();
    for set in ["LC_ALL=C", "SLURM_TIME_FORMAT=%s", "SLURM_CONF=/etc/slurm/other.conf"] {
        assert!(env.lines().any(|line| line == set), "{set} is not in {env}");
    }
    // Tests run with variables of cargo.
    assert!(!env.contains("CARGO"), "{env}");
}

#[test]
fn settings_have_limits() {
    let check = |text: &str| {
        let config: Config = stepwatch_kit::config::parse("x", text).unwrap();
        config.check().under("slurm").collect::<Vec<_>>()
    };
    assert_eq!(check("{enabled: true, scontrol: /opt/slurm/bin/scontrol, conf: /etc/slurm.conf}"), [""; 0]);
    assert_eq!(
        check("{timeout: 1ms, squeue: ''}"),
        ["slurm.timeout: must be at least 10ms", "slurm.squeue: must not be empty"]
    );
    assert!(!Config::default().enabled, "one exporter of a cluster asks");
}
