//! Trainers that survived their job.

use super::*;

const JOB: &[&str] = &["SLURM_JOB_ID=1207", "SLURM_JOB_USER=ann", "SLURM_STEP_GPUS=0-3"];

impl Node {
    /// A training process that left its job, in a group of this path.
    fn survives(&self, pid: u32, group: &str, environ: &[&str]) {
        self.trains_as(ANN, pid, "llama", environ);
        self.write(&format!("proc/{pid}/cgroup"), &format!("0::{group}\n"));
    }

    /// The latest event of a job.
    fn event_of(&self, job: &str) -> Event {
        let is_of = |e: &Event| e.extra.get("job") == Some(&Value::Text(job.into()));
        self.published().into_iter().rfind(is_of).unwrap()
    }
}

fn is_over(event: &Event) -> bool {
    event.extra.get("over") == Some(&Value::Bool(true))
}

#[test]
fn a_trainer_that_survived_its_job_holds_nothing() {
    let node = Node::new();
    node.group(&format!("{V2}/job_1207/step_0/user/task_0"), &[99]);
    node.process(99, 1, JOB);
    node.write("proc/99/status", &format!("Uid:\t{ANN}\t{ANN}\t{ANN}\t{ANN}\n"));
    node.survives(100, "/init.scope", JOB);
    let mut reader = node.reader();
    assert_eq!(held(&node.bench.collect(&mut reader), "1207"), [0, 1, 2, 3], "its job is here");
    assert!(!is_over(&node.event_of("1207")));
    std::fs::remove_dir_all(node.path(SLURM).join("job_1207")).unwrap();
    let page = node.bench.collect(&mut reader);
    assert!(held(&page, "1207").is_empty() && page.get(&GPUS, &["1207"]).is_none(), "{page:?}");
    let event = node.event_of("1207");
    assert!(is_over(&event), "{event:?}");
    assert_eq!(event.extra["pids"], Value::List(vec![Value::Number(100.0)]));
    assert_eq!(event.extra["runs"], Value::List(vec![Value::Text("llama".into())]));
    assert_eq!((event.code, event.extra.get("attested"), event.uid), (Some(1), None, Some(ANN)));
    assert_eq!(
        event.text.as_deref(),
        Some("slurm job 1207 of ann is over, and has training processes left: 1")
    );
    std::fs::remove_dir_all(node.path("proc/100")).unwrap();
    node.bench.collect(&mut reader);
    assert_eq!(node.event_of("1207").code, Some(0));
}

#[test]
fn a_job_that_was_never_shown_while_others_are_holds_nothing() {
    let node = Node::new();
    node.group(&format!("{V2}/job_1300/step_0/user/task_0"), &[99]);
    node.process(99, 1, &["SLURM_JOB_ID=1300"]);
    node.survives(100, "/system.slice/docker-1.scope", JOB);
    node.bench.collect(&mut node.reader());
    assert!(is_over(&node.event_of("1207")));
}

#[test]
fn a_claim_holds_where_control_groups_prove_nothing() {
    let pod = "/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope";
    let shell = "/system.slice/slurmstepd.scope/job_1207/step_interactive/user/task_0";
    // Another node of its job may have started it over SSH.
    let session = "/user.slice/user-4000001.slice/session-3.scope";
    // Whether another job is shown, and the group of the trainer.
    for (others, group) in [(true, pod), (true, shell), (true, session), (true, ""), (false, "/init.scope")] {
        let node = Node::new();
        if others {
            node.group(&format!("{V2}/job_1300/step_0/user/task_0"), &[99]);
            node.process(99, 1, &["SLURM_JOB_ID=1300"]);
        }
        node.survives(100, group, JOB);
        if group.is_empty() {
            std::fs::remove_file(node.path("proc/100/cgroup")).unwrap();
        }
        node.bench.collect(&mut node.reader());
        assert!(!is_over(&node.event_of("1207")), "{group}");
    }
}

#[test]
fn a_container_of_a_component_of_a_heterogeneous_job_is_in_the_job() {
    let node = Node::new();
    node.group(&format!("{V2}/job_301/step_0/user/task_0"), &[99]);
    let components = ["SLURM_JOB_ID=300", "SLURM_JOB_ID_HET_GROUP_0=300", "SLURM_JOB_ID_HET_GROUP_1=301"];
    node.process(99, 1, &components);
    node.survives(100, "/system.slice/docker-1.scope", &components);
    node.bench.collect(&mut node.reader());
    assert!(!is_over(&node.event_of("300")));
}
