//! Processes that train, found through NVML: none is lost with the GPU that it is on.

use std::os::unix::fs::symlink;

use stepwatch_fake_nvml::{Effect, Fault, Fleet, Script, library};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{exposition, poll_until};

use crate::node::Node;

const PROCESSES: &str = "nvmlDeviceGetComputeRunningProcesses_v3";
const WITH_PASSES: &str = "collectors:\n  gpu: {metrics: {include: ['*']}, interval: 100ms, slow_interval: 500ms}\nsources:\n  - discover: {interval: 100ms}\n";
/// The GPUs are read only by the search for processes.
const WITHOUT_PASSES: &str =
    "collectors:\n  gpu: {enabled: false}\nsources:\n  - discover: {interval: 100ms}\n";

fn script(gpus: usize) -> Script {
    Script { count: Some(gpus), ..Script::for_fleet(Fleet::H100) }
}

/// A rank on each GPU, which holds these devices beside the GPU's own.
fn train(node: &Node, gpus: u32, devices: &[&str]) {
    std::fs::write(node.dir.path().join("proc/stat"), "btime 1000000000\n").unwrap();
    for gpu in 0..gpus {
        let own = format!("/dev/nvidia{gpu}");
        let open: Vec<&str> =
            if devices.is_empty() { Vec::new() } else { [devices, &[own.as_str()]].concat() };
        process(
            node,
            4200 + 100 * gpu,
            &format!("RANK={gpu}\0WORLD_SIZE={gpus}\0STEPWATCH_RUN=llama"),
            &open,
        );
    }
}

fn process(node: &Node, pid: u32, environ: &str, open: &[&str]) {
    let dir = node.dir.path().join(format!("proc/{pid}"));
    std::fs::create_dir_all(dir.join("fd")).unwrap();
    for (fd, device) in open.iter().enumerate() {
        symlink(device, dir.join(format!("fd/{fd}"))).unwrap();
    }
    std::fs::write(dir.join("environ"), environ).unwrap();
    let rest = "1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 4711 0";
    std::fs::write(dir.join("stat"), format!("{pid} (python3) S 1 {rest}")).unwrap();
}

fn found(page: &str) -> Option<f64> {
    exposition::value(page, "job_discovered_processes", &[("run", "llama")])
}

/// Watches the page until NVML was asked for processes so many times more; every page must be so.
async fn all_pages(node: &Node, asked: u64, so: impl Fn(&str)) {
    let enough = node.calls().count(PROCESSES) + asked;
    let watched = poll_until("NVML is asked again", PATIENCE, async || {
        so(&node.page().await);
        (node.calls().count(PROCESSES) >= enough).then_some(())
    });
    watched.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_is_followed_on_a_gpu_that_is_lost() {
    let node = Node::start_with(&script(4), &library().unwrap(), WITH_PASSES).await;
    train(&node, 4, &["/dev/nvidiactl", "/dev/nvidia-uvm"]);
    // One that only looks at GPUs.
    process(&node, 77, "HOME=/", &["/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia2"]);
    node.page_where("all ranks are found", |page| found(page) == Some(4.0)).await;
    node.stage.set(&Script { lost: vec![2], ..script(4) }).unwrap();
    let gpu = Fleet::H100.uuid(2);
    node.page_where("the GPU is lost", |page| {
        exposition::value(page, "gpu_lost", &[("gpu", &gpu)]) == Some(1.0)
    })
    .await;
    all_pages(&node, 60, |page| {
        assert_eq!(found(page), Some(4.0));
        let runs = page.lines().filter(|l| l.starts_with("job_discovered_processes{"));
        assert_eq!(runs.count(), 1, "and nobody else: {page}");
    })
    .await;
    node.decent();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_is_judged_by_what_it_is_asked_at_a_time() {
    let mut late = script(1);
    // What it takes in all is soon longer than one GPU may take.
    late.faults.push(Fault::new(PROCESSES, Effect::DelayMs(300)));
    let node = Node::start_with(&late, &library().unwrap(), WITHOUT_PASSES).await;
    train(&node, 1, &[]);
    node.page_where("the rank is found", |page| found(page) == Some(1.0)).await;
    all_pages(&node, 25, |page| assert_eq!(found(page), Some(1.0))).await;
    node.decent();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_is_back_is_asked_again_where_nobody_makes_passes() {
    let node = Node::start_with(&script(2), &library().unwrap(), WITHOUT_PASSES).await;
    train(&node, 2, &[]);
    node.page_where("both ranks are found", |page| found(page) == Some(2.0)).await;
    node.stage.set(&Script { lost: vec![1], ..script(2) }).unwrap();
    node.page_where("one is lost", |page| found(page) == Some(1.0)).await;
    node.stage.set(&script(2)).unwrap();
    node.page_where("it is back", |page| found(page) == Some(2.0)).await;
    node.decent();
}
