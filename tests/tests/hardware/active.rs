//! The recipes of the tests that put load on nodes: the epilog, the job of pairs, and the manifest.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use stepwatch_tests::poll::{PATIENCE, poll_until};
use stepwatch_tests::{bins, daemon, peers};

use crate::deploy::{deploy, documents, pod, runs, strings, text};

const EPILOG: &str = "slurm/stepwatch-epilog.sh";
const PAIRS: &str = "slurm/stepwatch-pairs.sh";
/// Longer than a recipe takes on a machine that is busy. One whose programs do not end would wait
/// for ever.
const WITHIN: Duration = Duration::from_mins(2);

/// A node whose programs are scripts.
struct Node(tempfile::TempDir);

impl Node {
    fn new(programs: &[(&str, &str)]) -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(node.0.path().join("bin")).unwrap();
        for (name, body) in programs {
            node.program(name, body);
        }
        node
    }

    fn program(&self, name: &str, body: &str) {
        let path = self.0.path().join("bin").join(name);
        std::fs::write(&path, format!("#!/bin/bash\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.path().join(file), text).unwrap();
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.path().join(file)).unwrap_or_default()
    }

    /// Exit status and output of a recipe.
    async fn run(&self, recipe: &str, env: &[(&str, &str)]) -> (i32, String) {
        let mut script = daemon::command(deploy(recipe));
        let path = format!("{}:/usr/bin:/bin", self.0.path().join("bin").display());
        script.env("PATH", &path).env("STEPWATCH_PATH", &path).env("HERE", self.0.path());
        script.env("STEPWATCH_SETTINGS", "/nonexistent").env("STEPWATCH_CONFIG", "/nonexistent");
        script.env("STEPWATCH_TEST_STAMP", self.0.path().join("stamp")).env("SLURMD_NODENAME", "gpu-042");
        script.env("STEPWATCH_TEST_SPREAD", "0");
        script.current_dir(self.0.path());
        script.envs(env.iter().copied()).kill_on_drop(true);
        let output = tokio::time::timeout(WITHIN, script.output()).await.unwrap().unwrap();
        (output.status.code().unwrap(), text(&output))
    }
}

#[tokio::test]
async fn scripts_are_sound() {
    for recipe in [EPILOG, PAIRS] {
        let script = deploy(recipe);
        assert!(script.metadata().unwrap().permissions().mode() & 0o111 != 0, "{recipe} can be run");
        let Some(shellcheck) = peers::find(&["shellcheck"]) else { continue };
        let checked = runs(&shellcheck, &[script.to_str().unwrap()]).await;
        assert!(checked.status.success(), "{}", text(&checked));
    }
}

/// A node between jobs: Slurm says what stands in files, and writes its changes into one.
fn between_jobs() -> Node {
    let node = Node::new(&[
        ("logger", "echo \"$*\" >>\"$HERE/log\""),
        ("squeue", "[ ! -e \"$HERE/silent\" ] || exit 1; cat \"$HERE/jobs\""),
        (
            "scontrol",
            "case \"$*\" in
            update*) echo \"$*\" >>\"$HERE/updates\"; cp \"$HERE/after\" \"$HERE/nodes\"
                [ ! -e \"$HERE/refuses\" ] || exit 1
                case \"$*\" in
                *undrain) [ ! -e \"$HERE/slow\" ] || { rm \"$HERE/slow\"; exit 1; } ;;
                esac ;;
            'show node gpu-042'*)
                grep -m 1 =gpu-042 \"$HERE/nodes\" || echo 'NodeName=gpu-042 State=IDLE+COMPLETING ' ;;
            *) cat \"$HERE/nodes\" ;;
            esac",
        ),
    ]);
    node.write("jobs", "4711\n");
    node.write("nodes", "NodeName=n1 State=IDLE\n");
    node.write("after", DRAINED);
    node
}

const DRAINED: &str = "NodeName=gpu-042 State=IDLE+DRAIN Reason=stepwatch: under load: x [root]\n";
const JOB: (&str, &str) = ("SLURM_JOB_ID", "4711");
const ALWAYS: (&str, &str) = ("STEPWATCH_TEST_EVERY", "0");

fn checks(node: &Node, status: i32, says: &str) {
    let body = format!("echo \"$*\" >>\"$HERE/checks\"\nprintf '%s' '{says}'\nexit {status}");
    node.program("stepwatch-exporter", &body);
}

#[tokio::test]
async fn an_epilog_tests_the_node_once_a_day_and_drains_it_only_if_a_test_failed() {
    let node = between_jobs();
    let quiet = (0, String::new());
    checks(&node, 3, "unknown   nccl not run: a job is on the node: 4712");
    assert_eq!(node.run(EPILOG, &[JOB]).await, quiet, "a refusal drains nothing");
    let command = "check --active --tests-only --quiet --timeout 8s --budget 120s --skip fio\n";
    assert_eq!(node.read("checks"), command);
    assert!(node.read("log").contains("gpu-042 was not tested: unknown   nccl not run"));
    checks(&node, 1, "unhealthy nccl nccl_all_reduce is \"1.0\" GB/s");
    assert_eq!(node.run(EPILOG, &[JOB, ("STEPWATCH_TEST_BUDGET", "60")]).await, quiet);
    let drain = "update nodename=gpu-042 state=drain reason=stepwatch: under load: unhealthy nccl nccl_all_reduce is 1.0 GB/s\n";
    assert_eq!(node.read("updates"), drain);
    // It was tested: not again on the same day.
    assert_eq!(node.run(EPILOG, &[JOB]).await, quiet);
    assert_eq!(node.read("checks").lines().count(), 2);
    checks(&node, 64, "no such check");
    assert_eq!(node.run(EPILOG, &[JOB, ALWAYS]).await, quiet);
    assert!(node.read("log").contains("the test of gpu-042 failed (exit 64): no such check"));
    assert_eq!(node.read("updates"), drain);
}

#[tokio::test]
async fn a_node_that_can_never_be_tested_in_full_is_not_loaded_after_every_job() {
    let node = between_jobs();
    checks(&node, 2, "unknown   dcgm not run: dcgmi is not installed");
    for _ in 0..2 {
        assert_eq!(node.run(EPILOG, &[JOB]).await, (0, String::new()));
    }
    assert_eq!(node.read("checks").lines().count(), 1);
    assert_eq!(node.read("updates"), "");
}

#[tokio::test]
async fn a_test_that_takes_its_script_down_is_not_repeated_after_every_job() {
    let node = between_jobs();
    let body = "cp \"$HERE/stamp\" \"$HERE/then\"; echo x >>\"$HERE/checks\"; kill -9 $$";
    node.program("stepwatch-exporter", body);
    for _ in 0..2 {
        assert_eq!(node.run(EPILOG, &[JOB]).await, (0, String::new()));
    }
    assert_eq!(node.read("checks").lines().count(), 1);
    assert!(node.read("then").trim().parse::<u64>().unwrap() > 0, "it was written before the test");
    assert!(node.read("log").contains("the test of gpu-042 failed (exit 137)"), "{}", node.read("log"));
    // What put nothing under load is tried again.
    let node = between_jobs();
    checks(&node, 3, "unknown   nccl not run");
    assert_eq!(node.run(EPILOG, &[JOB]).await, (0, String::new()));
    assert_eq!(node.read("stamp"), "0\n");
}

#[tokio::test]
async fn the_log_says_that_a_node_is_fast_only_if_that_was_found() {
    let node = between_jobs();
    checks(&node, 0, "not run   nccl all_reduce_perf is not installed");
    assert_eq!(node.run(EPILOG, &[JOB, ALWAYS]).await.0, 0);
    let log = node.read("log");
    assert!(log.contains("gpu-042 was tested, and this was found: not run   nccl"), "{log}");
    assert!(!log.contains("as fast as"), "{log}");
    checks(&node, 0, "");
    assert_eq!(node.run(EPILOG, &[JOB, ALWAYS]).await.0, 0);
    assert!(node.read("log").contains("gpu-042 is as fast as it should be"));
}

#[tokio::test]
async fn an_epilog_leaves_a_node_with_another_job_alone() {
    let node = between_jobs();
    checks(&node, 0, "");
    node.write("jobs", "4711\n4712\n");
    assert_eq!(node.run(EPILOG, &[JOB]).await, (0, String::new()));
    assert!(node.read("log").contains("gpu-042 was not tested: another job is on it: 4712"));
    node.write("silent", "");
    assert_eq!(node.run(EPILOG, &[JOB]).await, (0, String::new()));
    assert!(node.read("log").contains("Slurm does not say which jobs are on it"));
    assert_eq!(node.read("checks"), "");
}

#[tokio::test]
async fn the_epilogs_of_a_large_job_do_not_drain_the_cluster() {
    let node = between_jobs();
    checks(&node, 1, "unhealthy nccl nccl_all_reduce is 1.0 GB/s");
    // Eight are drained, also by the check without load.
    let one = |i: usize| format!("NodeName=n{i} State=IDLE+DRAIN Reason=stepwatch: unhealthy nic eth1\n");
    node.write("nodes", &(0..8).map(one).collect::<String>());
    assert_eq!(node.run(EPILOG, &[JOB, ALWAYS]).await, (0, String::new()));
    assert_eq!(node.read("updates"), "");
    assert!(node.read("log").contains("does not drain gpu-042: 8 are drained"));
    // All of them drained at once.
    node.write("nodes", "NodeName=n1 State=IDLE\n");
    node.write("after", &DRAINED.repeat(9));
    assert_eq!(node.run(EPILOG, &[JOB, ALWAYS]).await, (0, String::new()));
    assert!(node.read("updates").ends_with("update nodename=gpu-042 state=undrain\n"));
    assert!(node.read("log").contains("takes back the drain of gpu-042"));
    // Slurm does not answer at first.
    node.write("nodes", "NodeName=n1 State=IDLE\n");
    node.write("updates", "");
    node.write("slow", "");
    assert_eq!(node.run(EPILOG, &[JOB, ALWAYS]).await, (0, String::new()));
    let undrain = "update nodename=gpu-042 state=undrain\n".repeat(2);
    assert!(node.read("updates").ends_with(&undrain), "{}", node.read("updates"));
    // Slurm refuses, and somebody drains the node meanwhile.
    node.write("nodes", "NodeName=n1 State=IDLE\n");
    node.write("updates", "");
    node.write("refuses", "");
    node.write("after", "NodeName=gpu-042 State=IDLE+DRAIN Reason=fan is loud [ops]\n");
    assert_eq!(node.run(EPILOG, &[JOB, ALWAYS]).await, (0, String::new()));
    assert!(!node.read("updates").contains("undrain"), "{}", node.read("updates"));
    assert!(node.read("log").contains("did not drain gpu-042, which others"));
}

#[tokio::test]
async fn a_check_whose_time_is_over_still_drains_for_what_it_found() {
    let node = between_jobs();
    let found = "unhealthy nccl the all-reduce gave wrong results";
    // In place of the timer of `timeout`, which sleeps when it has armed that. A signal that comes
    // earlier ends it alone.
    let body = format!(
        "trap 'echo \"{found}\"; exit 1' TERM
        until grep -q '^State:.S' \"/proc/$PPID/status\"; do /bin/sleep 0.01; done
        kill -ALRM $PPID
        for _ in {{1..3000}}; do /bin/sleep 0.01; done"
    );
    node.program("stepwatch-exporter", &body);
    assert_eq!(node.run(EPILOG, &[JOB, ALWAYS]).await, (0, String::new()));
    assert!(node.read("updates").contains("state=drain"), "{}", node.read("log"));
}

/// Runs the command as on the node, whose name it passes on. When it is told to end, it kills all
/// processes of the step, as Slurm does. `timeout` would leave its command behind if it is told to
/// end before it knows it.
const SRUN: &str = "for arg in \"$@\"; do case $arg in --nodelist=*) export ON=${arg#*=} ;; esac; done
while [[ $1 == --* ]]; do shift; done
trap 'kill -KILL -- -$!; exit 143' TERM
set -m
\"$@\" &
wait $!";
/// A client, whose last argument is its server: n3 is slow, and n4 refuses n2.
const WRITE_BW: &str = "to=${!#}
case $to in --output=*) exec /bin/sleep 864006 ;; esac
case \"$ON $to\" in
*n2*n4* | *n4*n2*) echo \"Couldn't connect to $to:18600\"; exit 1 ;;
*n3*) echo 200.00 ;;
*) echo 390.00 ;;
esac";

#[tokio::test]
async fn every_pair_is_measured_once_and_judged() {
    let alerter = format!("exec '{}' \"$@\"", bins::path(bins::ALERTER).unwrap().display());
    let node = Node::new(&[
        ("scontrol", "printf 'n%s\\n' 1 2 3 4 5"),
        ("srun", SRUN),
        ("ib_write_bw", WRITE_BW),
        ("sleep", ""),
        ("stepwatch-alerter", alerter.as_str()),
    ]);
    let env =
        [("SLURM_JOB_NODELIST", "n[1-5]"), ("STEPWATCH_RAILS", "mlx5_0"), ("STEPWATCH_PAIRS", "pairs.jsonl")];
    let (status, said) = node.run(PAIRS, &env).await;
    assert_eq!(status, 1, "{said}");
    let lines = node.read("pairs.jsonl");
    assert_eq!(lines.lines().count(), 10, "{lines}");
    // They were told to end, and each does when it next runs.
    poll_until("all servers to end", PATIENCE, async || {
        let commands = std::fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path().join("cmdline"));
        let mut servers = commands.filter_map(|path| std::fs::read_to_string(path).ok());
        (!servers.any(|words| words.contains("\0864006\0"))).then_some(())
    })
    .await
    .unwrap();
    for part in [
        "5 nodes, 1 rails, 9 pairs measured, 48.8 GB/s expected",
        "slow node  n3",
        "25.0 GB/s",
        "n2 n4 mlx5_0",
        "Couldnt connect to",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[tokio::test]
async fn the_default_rails_are_those_of_the_most_common_rate() {
    let script = std::fs::read_to_string(deploy(PAIRS)).unwrap();
    let (_, rest) = script.split_once("of_common_rate() {\n").unwrap();
    let (body, _) = rest.split_once("\n}\n").unwrap();
    let ports = "printf '%s\\n' '100 mlx5_4' '400 mlx5_0' '400 mlx5_1' ' mlx5_9'";
    let output = runs(Path::new("/bin/bash"), &["-c", &format!("{ports} | {{ {body}; }}")]).await;
    assert_eq!(text(&output), "mlx5_0\nmlx5_1\n");
}

#[test]
fn one_bad_node_does_not_end_the_tests_of_the_others() {
    let job = &documents("kubernetes/check-active.yml")[0]["spec"];
    assert_eq!(job["completionMode"], "Indexed");
    assert_eq!(job["backoffLimitPerIndex"], 0);
    assert!(job["backoffLimit"].is_null());
}

#[tokio::test]
async fn the_manifest_of_the_tests_is_understood() {
    let exporter = bins::path(bins::EXPORTER).unwrap();
    let documents = documents("kubernetes/check-active.yml");
    let pod = pod(&documents[0]);
    let container = &pod["containers"][0];
    let args = [strings(&container["args"]), vec!["--help"]].concat();
    let output = runs(Path::new(&exporter), &args).await;
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    let volumes: Vec<_> = pod["volumes"].as_array().unwrap().iter().map(|v| &v["name"]).collect();
    for mount in container["volumeMounts"].as_array().unwrap() {
        assert!(volumes.contains(&&mount["name"]), "{mount}");
    }
}
