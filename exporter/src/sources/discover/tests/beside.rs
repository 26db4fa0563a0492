//! Tests of files that no process has open, beside several trainers or jobs.

use super::*;
use crate::source::DROPPED;

const GPU: &[(u32, &str)] = &[(5, "/dev/nvidia0")];

impl Host {
    /// A trainer of a job, with the words of its command line.
    fn job(&self, pid: u32, id: u32, words: &[&str]) {
        let job = format!("SLURM_JOB_ID={id}");
        self.process(pid, 1, &[&job, "SLURM_JOB_NAME=sft", "SLURM_PROCID=0"], GPU);
        self.says(pid, words);
    }

    fn says(&self, pid: u32, words: &[&str]) {
        fs::write(self.path(&format!("proc/{pid}/cmdline")), format!("{}\0", words.join("\0"))).unwrap();
    }
}

impl Discovery {
    /// The steps published, each with its run.
    fn run_steps(&self) -> Vec<(String, i64)> {
        let steps = self.published().into_iter().filter(|e| e.kind == Kind::Step);
        steps.map(|e| (e.run.unwrap(), e.step.unwrap())).collect()
    }

    fn left(&self) -> Option<f64> {
        self.page().get(&DROPPED, &["discover", "discover", "unknown_writer"])
    }
}

fn metrics(step: i64) -> String {
    format!("{{\"step\":{step},\"loss\":2.5}}\n")
}

#[tokio::test]
async fn a_log_that_is_named_after_another_job_is_not_followed() {
    let host = Host::new();
    host.write("work/slurm-777.out", "step 5000 loss 9.0\nstep 5001 loss nan\n");
    host.write("work/slurm-601.out", "step 1 loss 2.5\nstep 2 loss 2.5\n");
    host.write("work/metrics.jsonl", &metrics(1));
    host.job(100, 601, &["python3", "train.py"]);
    let mut d = host.discovery();
    d.look(Instant::now());
    assert_eq!(d.found(&host), ["work/metrics.jsonl", "work/slurm-601.out"]);
    assert_eq!(d.left(), None, "other jobs may be on other nodes");
}

#[tokio::test]
async fn a_file_is_of_the_run_that_names_its_directory() {
    let host = Host::new();
    host.write("work/out-a/trainer_log.jsonl", &metrics(1));
    host.write("work/out-b/trainer_log.jsonl", &metrics(3000));
    host.job(100, 701, &["python3", "train.py", "out-a"]);
    host.job(200, 702, &["python3", "train.py", "--output_dir=./out-b/"]);
    let mut d = host.discovery();
    d.look(Instant::now());
    eventually(|| d.run_steps().len() == 2).await;
    let steps: BTreeSet<_> = d.run_steps().into_iter().collect();
    assert_eq!(steps, BTreeSet::from([("sft-701".to_owned(), 1), ("sft-702".to_owned(), 3000)]));
    assert_eq!(d.left(), None);
}

#[tokio::test]
async fn a_file_of_one_of_several_runs_is_left_and_logged_once() {
    let host = Host::new();
    host.write("work/out/trainer_log.jsonl", &metrics(1));
    host.job(100, 701, &["python3", "train.py", "out"]);
    host.job(200, 702, &["python3", "train.py", "out"]);
    let mut d = host.discovery();
    d.look(Instant::now());
    d.look(Instant::now());
    assert_eq!(d.found(&host), Vec::<String>::new());
    assert_eq!(d.left(), Some(1.0));
    let sources = d.around.hub.runs().into_iter().flat_map(|row| row.sources);
    assert_eq!(sources.filter(|s| s.kind == "left" && s.why.starts_with("not followed")).count(), 2);
    // When a process has it open, that decides for good.
    symlink(host.path("work/out/trainer_log.jsonl"), host.path("proc/200/fd/6")).unwrap();
    fs::write(host.path("proc/200/fdinfo/6"), "pos:\t0\nflags:\t0100001\n").unwrap();
    d.look(Instant::now());
    fs::remove_file(host.path("proc/200/fd/6")).unwrap();
    d.look(Instant::now());
    eventually(|| d.run_steps() == [("sft-702".to_owned(), 1)]).await;
}

#[tokio::test]
async fn a_file_is_of_the_run_that_works_nearest() {
    let host = Host::new();
    host.write("work/b/metrics.jsonl", &metrics(7));
    host.job(100, 701, &["python3", "train.py"]);
    host.job(200, 702, &["python3", "train.py"]);
    fs::remove_file(host.path("proc/200/cwd")).unwrap();
    symlink(host.path("work/b"), host.path("proc/200/cwd")).unwrap();
    let mut d = host.discovery();
    d.look(Instant::now());
    eventually(|| d.run_steps() == [("sft-702".to_owned(), 7)]).await;
}

#[tokio::test]
async fn ranks_of_one_run_share_what_lies_beside_them() {
    let host = Host::new();
    host.write("work/out/trainer_log.jsonl", &metrics(1));
    host.job(100, 701, &["python3", "train.py"]);
    host.job(200, 701, &["python3", "train.py"]);
    let mut d = host.discovery();
    d.look(Instant::now());
    eventually(|| d.run_steps() == [("sft-701".to_owned(), 1)]).await;
}
