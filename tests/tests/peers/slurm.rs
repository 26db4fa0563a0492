//! A real Slurm whose controller the exporter asks: jobs that wait, a node that is drained, and the
//! end of the controller.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use stepwatch_tests::daemon::{Daemon, command};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Exporter, exposition, peers, poll_until};

/// A controller of two nodes that nobody serves, in a directory of its own.
struct Slurm {
    conf: PathBuf,
    daemon: Daemon,
}

/// The user who runs this: only then does Slurm's controller need no other rights.
async fn user() -> String {
    let out = command("id").arg("-un").output().await.unwrap();
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

/// Slurm wants numbers, and another program may take them before it does.
fn free_ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

impl Slurm {
    async fn start(program: &Path, dir: &Path) -> Self {
        let user = user().await;
        for attempt in 0..5 {
            let dir = dir.join(attempt.to_string());
            std::fs::create_dir_all(dir.join("state")).unwrap();
            let [controller, node] = free_ports();
            let conf = dir.join("slurm.conf");
            let shown = dir.display();
            let text = format!(
                "ClusterName=test\nSlurmctldHost=localhost(127.0.0.1)\nSlurmUser={user}\nSlurmdUser={user}\n\
                 AuthType=auth/none\nCredType=cred/none\nSlurmctldPort={controller}\nSlurmdPort={node}\n\
                 SlurmctldPidFile={shown}/ctld.pid\nStateSaveLocation={shown}/state\nSlurmdSpoolDir={shown}/spool\n\
                 SwitchType=switch/none\nProctrackType=proctrack/pgid\nTaskPlugin=task/none\n\
                 SelectType=select/cons_tres\nMpiDefault=none\nGresTypes=gpu\nMailProg=/bin/true\n\
                 NodeName=n[1-2] NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:h100:8 State=UNKNOWN\n\
                 PartitionName=main Nodes=ALL Default=YES\n"
            );
            std::fs::write(&conf, text).unwrap();
            std::fs::write(dir.join("gres.conf"), "NodeName=n[1-2] Name=gpu Type=h100 Count=8\n").unwrap();
            let mut slurmctld = command(program);
            slurmctld.arg("-D").arg("-f").arg(&conf).env("SLURM_CONF", &conf);
            let mut daemon = Daemon::spawn("slurmctld", &mut slurmctld).unwrap();
            if daemon.logged(|line| line.contains("Running as primary controller")).await.is_ok() {
                return Self { conf, daemon };
            }
        }
        panic!("slurmctld does not start");
    }

    async fn run(&self, program: &str, args: &[&str]) {
        let out = command(program).args(args).env("SLURM_CONF", &self.conf).output().await.unwrap();
        assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slurms_queue_and_nodes_are_read() {
    let (Some(program), Some(_), Some(_)) =
        (peers::find(&["slurmctld"]), peers::find(&["scontrol"]), peers::find(&["squeue"]))
    else {
        return;
    };
    let dir = tempfile::Builder::new().prefix("stepwatch").tempdir().unwrap();
    let mut slurm = Slurm::start(&program, dir.path()).await;
    slurm.run("scontrol", &["update", "nodename=n2", "state=drain", "reason=bad fan | State=IDLE"]).await;
    slurm.run("sbatch", &["--hold", "--nodes=1", "--gres=gpu:4", "--wrap=true"]).await;
    slurm.run("sbatch", &["--nodes=2", "--gres=gpu:2", "--job-name=a|b", "--wrap=true"]).await;

    let config = format!(
        "collectors:\n  slurm: {{enabled: true, interval: 200ms, silent_after: 0s, conf: '{}'}}\n",
        slurm.conf.display()
    );
    let exporter = Exporter::start(&dir.path().join("exporter"), &config).await.unwrap();
    let until = async |what: &str, is_so: &dyn Fn(&str) -> bool| {
        poll_until(what, PATIENCE, async || exporter.metrics().await.ok().filter(|page| is_so(page)))
            .await
            .unwrap()
    };
    let value = |page: &str, name: &str, labels: &[(&str, &str)]| exposition::value(page, name, labels);
    // As Slurm says before or after it has registered the node.
    let sum = |page: &str, name: &str, label: &str, values: [&str; 2]| {
        values.into_iter().filter_map(|is| value(page, name, &[(label, is)])).sum::<f64>()
    };
    let nodes = ["resources", "down_or_reserved"];
    let page =
        until("the job that waits", &|page| sum(page, "slurm_pending_jobs", "reason", nodes) == 1.0).await;
    assert_eq!(value(&page, "slurm_up", &[]), Some(1.0));
    assert_eq!(value(&page, "slurm_jobs", &[("state", "pending")]), Some(2.0));
    assert_eq!(value(&page, "slurm_pending_gpus", &[("reason", "held")]), Some(4.0));
    assert_eq!(sum(&page, "slurm_pending_gpus", "reason", nodes), 4.0);
    assert_eq!(sum(&page, "slurm_gpus", "state", ["unavailable", "powered_down"]), 16.0);
    assert!(value(&page, "slurm_gpus", &[("state", "unavailable")]) >= Some(8.0), "n2 is drained");
    let drained = [("node", "n2"), ("state", "drained"), ("reason", "bad fan | State=IDLE")];
    let since = value(&page, "slurm_node_out_of_service_timestamp_seconds", &drained).unwrap();
    assert!(since > 1_700_000_000.0, "{since}");
    for command in ["nodes", "jobs"] {
        assert_eq!(value(&page, "slurm_malformed_lines_total", &[("command", command)]), Some(0.0));
    }

    slurm.daemon.kill().await.unwrap();
    let page = until("that nobody answers", &|page| value(page, "slurm_up", &[]) == Some(0.0)).await;
    assert!(
        value(&page, "slurm_failures_total", &[("command", "ping"), ("reason", "controller")]) > Some(0.0)
    );
    assert_eq!(value(&page, "slurm_jobs", &[("state", "pending")]), None, "nobody knows");
}
