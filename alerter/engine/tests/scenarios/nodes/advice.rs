//! The advice of messages: a node is drained only for a fault of its own, and a run that moves is
//! not called a standstill.

use stepwatch_model::Severity;
use stepwatch_wire::{Event, Kind as EventKind};

use super::bench::{Bench, UUID, dead, fell_off, hw, link, reading, xid};

const NODES: [&str; 2] = ["n1", "n2"];

fn died(b: &mut Bench, words: &str) {
    let e = Event {
        run: Some("llama".into()),
        rank: Some(0),
        node: Some("n1".into()),
        ..Event::new(EventKind::Bye)
    };
    b.feed(Event { code: Some(1), text: Some(words.into()), ..e });
    b.wait(60);
}

/// The advice of the last message.
fn advice(b: &Bench) -> &str {
    let message = &b.notifications.last().unwrap_or_else(|| panic!("nobody was notified")).message;
    message.details.advice.as_deref().unwrap_or_default()
}

#[test]
fn an_exception_is_looked_at_and_no_node_is_drained() {
    let mut b = Bench::with_run("llama", &NODES);
    died(&mut b, "ValueError: operands could not be broadcast together");
    assert_eq!((b.last().severity, b.pages()), (Severity::Page, 1));
    let want = "look at what ended rank 0 on n1 (exited with code 1: ValueError: operands could not be broadcast together), then restart; \
                no checkpoint was reported";
    assert_eq!(advice(&b), want);
}

#[test]
fn what_a_kernel_did_to_itself_leaves_the_node_alone() {
    let mut b = Bench::with_run("llama", &NODES);
    b.feed(xid("n1", 31, "info", "restart_app", "GPU memory page fault"));
    b.feed(xid("n1", 43, "info", "none", "GPU stopped processing"));
    died(&mut b, "CUDA error: an illegal memory access was encountered");
    let said = advice(&b);
    assert!(said.starts_with("look at what ended rank 0 on n1") && !said.contains("drain"), "{said}");
}

#[test]
fn who_took_too_much_memory_takes_less() {
    let mut b = Bench::with_run("llama", &NODES);
    let extra = [("once", "true"), ("cgroup", "/slurm/job_77"), ("constraint", "CONSTRAINT_MEMCG")];
    let text = "killed for want of memory: process python3 (pid 42), in cgroup /slurm/job_77";
    b.feed(hw("n1", "oom_kill", true, "warn", text, &extra));
    b.feed(dead("llama", 0, "n1"));
    b.wait(60);
    assert_eq!(b.pages(), 1);
    let want = "let the job use less memory on n1 or raise the limit of /slurm/job_77, then restart; no checkpoint was reported";
    assert_eq!(advice(&b), want);
}

#[test]
fn what_can_wait_for_the_next_checkpoint_is_said_to_wait_while_the_run_moves() {
    let mut b = Bench::with_run("llama", &NODES);
    b.feed(xid("n1", 48, "error", "drain_reset", "Double-bit ECC error"));
    assert_eq!(b.pages(), 1);
    assert_eq!(advice(&b), format!("drain n1 at the next checkpoint, then reset {UUID}"));
    // It did stop.
    died(&mut b, "CUDA error: uncorrectable ECC error encountered");
    let want = format!("drain n1 and reset {UUID}, then restart; no checkpoint was reported");
    assert_eq!(advice(&b), want);
}

#[test]
fn what_is_to_do_outlives_a_restart_of_ours_and_ends_with_the_trouble() {
    let mut b = Bench::with_run("llama", &NODES);
    b.feed(fell_off("n1"));
    let want = "drain n1 and reboot it, then restart; no checkpoint was reported";
    assert_eq!(advice(&b), want);
    b.restart();
    b.ack("sam");
    assert_eq!(advice(&b), want);
    b.resolve("sam");
    assert_eq!(advice(&b), "", "it is over");
}

#[test]
fn an_unknown_clock_is_left_out() {
    let mut b = Bench::with_run("llama", &NODES);
    let text =
        "GPU 0 is slowed down to 0.80 GHz by its hardware at 40 °C: hw_slowdown, hw_power_brake_slowdown";
    let reason = ("reason", "hw_slowdown,hw_power_brake_slowdown");
    b.feed(hw("n1", "gpu_throttled", true, "warn", text, &[("gpu", UUID), reason]));
    b.wait(60);
    let m = &b.notifications.last().unwrap_or_else(|| panic!("nobody was notified")).message;
    assert!(m.facts.iter().all(|f| f.label != "SM clock" && !f.text.contains("NaN")), "{:#?}", m.facts);
    assert_eq!(m.details.evidence.text, "");
}

#[test]
fn a_node_whose_link_is_down_is_drained() {
    let mut b = Bench::with_run("llama", &NODES);
    b.feed(link("n1", "mlx5_0/1", false));
    b.wait(20);
    assert_eq!((b.last().severity, b.pages()), (Severity::Page, 1));
    assert!(advice(&b).starts_with("drain n1 and have its link mlx5_0/1 looked at"), "{}", advice(&b));
}

#[test]
fn a_driver_that_does_not_answer_is_no_host_that_is_gone() {
    let mut b = Bench::with_run("llama", &NODES);
    NODES.iter().for_each(|node| b.feed(reading(node, 0, &[("utilization_ratio", 1.0)])));
    b.feed(xid("n1", 119, "error", "reboot_node", "GSP RPC timeout"));
    b.feed(hw("n1", "nvml_stuck", true, "error", "the driver has not answered for 10 s", &[]));
    b.wait(300);
    let want = "drain n1 and reboot it, then restart; no checkpoint was reported";
    assert_eq!(advice(&b), want);
    // Nor is one whose GPUs are not read.
    let mut b = Bench::with_run("llama", &NODES);
    NODES.iter().for_each(|node| b.feed(reading(node, 0, &[("utilization_ratio", 1.0)])));
    b.feed(dead("llama", 0, "n1"));
    b.wait(300);
    b.ack("sam");
    assert!(advice(&b).starts_with("look at"), "{}", advice(&b));
}

#[test]
fn what_is_broken_is_mended_though_the_host_is_gone() {
    let mut b = Bench::with_run("llama", &["n1", "n2", "n3"]);
    b.feed(fell_off("n2"));
    b.lose("n2");
    b.wait(300);
    assert!(advice(&b).starts_with("drain n2 and reboot it"), "{}", advice(&b));
}

#[test]
fn an_exporter_that_answers_at_another_address_speaks_for_its_host() {
    let nodes = ["n1", "n2", "n3"];
    let said = |moved: bool| {
        let mut b = Bench::with_run("llama", &nodes);
        let well = |node| reading(node, 0, &[("utilization_ratio", 1.0)]);
        nodes.iter().for_each(|node| b.feed(well(node)));
        b.lose("n2");
        if moved {
            b.find_at("192.0.2.9:9765");
            b.feed_over("192.0.2.9:9765", well("n2"));
        }
        // It is no host that died: what stands may be evaluating.
        b.wait(if moved { 2000 } else { 300 });
        advice(&b).to_owned()
    };
    assert!(said(false).starts_with("see whether the host n2 is up"), "{}", said(false));
    assert!(said(true).starts_with("take the stacks of all ranks"), "{}", said(true));
}
