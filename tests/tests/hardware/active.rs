//! The recipes of the tests that put load on nodes: the epilog, the job of pairs, and the manifest.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use stepwatch_tests::{bins, daemon, peers};

use crate::deploy::{deploy, documents, pod, runs, strings, text};

const EPILOG: &str = "slurm/stepwatch-epilog.sh";
const PAIRS: &str = "slurm/stepwatch-pairs.sh";

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
        script.current_dir(self.0.path());
        let output = script.envs(env.iter().copied()).output().await.unwrap();
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

#[tokio::test]
async fn an_epilog_tests_the_node_once_a_day_and_drains_it_only_if_it_is_unhealthy() {
    let node = Node::new(&[("logger", "echo \"$*\" >>\"$HERE/log\"")]);
    let checks = |status: i32, says: &str| {
        node.program(
            "stepwatch-exporter",
            &format!("echo \"$*\" >>\"$HERE/checks\"\necho '{says}'\nexit {status}"),
        );
    };
    checks(2, "unknown   nccl not run: a job is on the node: 4711");
    assert_eq!(node.run(EPILOG, &[]).await, (0, String::new()), "a refusal drains nothing");
    assert_eq!(node.read("checks"), "check --active --quiet --timeout 8s --budget 120s\n");
    assert!(node.read("log").contains("gpu-042 could not be tested in full: unknown   nccl not run"));
    checks(1, "unhealthy nccl nccl_all_reduce is 1.0 GB/s");
    let failed = (1, "stepwatch: unhealthy nccl nccl_all_reduce is 1.0 GB/s\n".to_owned());
    assert_eq!(node.run(EPILOG, &[("STEPWATCH_TEST_BUDGET", "60")]).await, failed);
    // It was tested: not again on the same day.
    assert_eq!(node.run(EPILOG, &[]).await, (0, String::new()));
    assert_eq!(node.read("checks").lines().count(), 2);
    assert_eq!(node.run(EPILOG, &[("STEPWATCH_TEST_EVERY", "0")]).await, failed);
    checks(64, "no such check");
    assert_eq!(node.run(EPILOG, &[("STEPWATCH_TEST_EVERY", "0")]).await, (0, String::new()));
    assert!(node.read("log").contains("the test of gpu-042 failed (exit 64): no such check"));
}

/// Runs the command as on the node, whose name it passes on. Servers end at once.
const SRUN: &str = "for arg in \"$@\"; do case $arg in --nodelist=*) export ON=${arg#*=} ;; esac; done
while [[ $1 == --* ]]; do shift; done
exec \"$@\"";
/// A client, whose last argument is its server: n3 is slow, and n4 refuses n2.
const WRITE_BW: &str = "to=${!#}
case $to in --output=*) exit 0 ;; esac
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
