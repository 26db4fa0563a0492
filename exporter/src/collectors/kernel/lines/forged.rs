//! Tests that text of processes in the kernel log is no event: their names, the names of their
//! files and cgroups, and their arguments.

use proptest::prelude::*;

use super::tests::SAMPLES;
use super::{Found, MAX_NAME_BYTES, lines, recognise};
use crate::collectors::kernel::patterns::Pattern;

/// Lines of the driver that have no pattern among the samples.
const DRIVER: &[&str] = &[
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=a, GPU has fallen off the bus.",
    "NVRM: GPU at PCI:0000:3b:00: GPU-3c6e8a4b-1111-2222-3333-444455556666",
    "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
    "NVRM: The NVIDIA GPU 0000:3b:00.0",
    "NVRM: fallen off the bus and is not responding to commands.",
    "NVRM: knvlinkUpdateLinkConnectionStatus: Failed to update Rx Detect Link mask!",
    "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/a,task_memcg=/a,task=b,pid=1,uid=0",
];

/// Lines about a process with the name `name` (15 bytes of its choice) and with files, cgroups or
/// arguments named `text` (of any length).
fn written(name: &str, text: &str) -> Vec<String> {
    // The kernel does not allow a newline in the name of a cgroup.
    let cgroup = text.replace('\n', "");
    vec![
        format!("{name}[4242]: segfault at 0 ip 00007f sp 00007f error 4 in {text}[7f1000+5000]"),
        format!(
            "{name}[4242]: segfault at 0 ip 00007f sp 00007f error 4 in {text}[7f1000+5000] likely on CPU 3 (core 1, socket 0)"
        ),
        format!("{name}[4242] trap invalid opcode ip:7f sp:7f error:0 in {text}[7f1000+5000]"),
        format!("traps: {name}[4242] general protection fault ip:7f sp:7f error:0 in {text}[7f1000+5000]"),
        format!("{name}[4242]: bad frame in rt_sigreturn frame:7f ip:7f sp:7f orax:0 in {text}[7f1000+5000]"),
        format!("{name}[4242] vsyscall attempted with vsyscall=none ip:7f cs:33 sp:7f ax:0 si:0 di:0"),
        format!("{name} (4242): attempted to duplicate a private mapping with mremap."),
        format!("{name} (4242) used greatest stack depth: 11 bytes left"),
        format!("{name}/4242 is trying to acquire lock:"),
        format!(
            "{name}: page allocation failure: order:4, mode:0xcc0(GFP_KERNEL), nodemask=(null),cpuset={cgroup},mems_allowed=0"
        ),
        format!("{name} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"),
        format!("{name}: renamed from {name}"),
        format!("{name}: entered promiscuous mode"),
        format!("CPU: 0 PID: 4242 Comm: {name} Not tainted 6.8.0 #1"),
        format!("[   4242]  1000  4242     1042       64    45056        0             0 {name}"),
        format!("x86/split lock detection: #AC: {name}/4242 took a split_lock trap at address: 0x7f"),
        format!("oom_reaper: reaped process 4242 ({name}), now anon-rss:0kB"),
        format!("warning: `{name}' uses 32-bit capabilities (legacy support in use)"),
        format!("process '{text}' started with executable stack"),
        format!("ptrace attach of \"{text}\"[1] was attempted by \"{text}\"[2]"),
        format!("audit: type=1701 audit(1.1:5): auid=1 uid=1 pid=4242 comm=\"{name}\" exe=\"{text}\" sig=11"),
        format!("overlayfs: failed to resolve '{text}': -2"),
        format!("Memory cgroup stats for /{cgroup}: cache:0KB rss:0KB"),
        format!("Tasks in /{cgroup} are going to be killed due to memory.oom.group set"),
        format!("Task in /{cgroup} killed as a result of limit of /{cgroup}"),
        format!("cgroup: fork rejected by pids controller in /{cgroup}"),
        format!("EXT4-fs (sda1): error count since last fsck: 1 {name}"),
    ]
}

fn is_no_event(name: &str, text: &str) {
    for message in written(name, text) {
        for line in lines(&message) {
            let found = recognise(line.trim_end());
            // A crash belongs to its own process, whatever that calls a library.
            let own = matches!(found, Some(Found::Pattern(Pattern::NcclSegfault, ref facts)) if facts.pid == Some(4242));
            assert!(found.is_none() || own, "{line:?} of {message:?} is {found:?}");
        }
    }
}

fn samples() -> impl Iterator<Item = &'static str> {
    SAMPLES.iter().map(|sample| sample.0).chain(DRIVER.iter().copied())
}

/// Cuts every sample in two wherever a name can end, and names the process after the first part.
#[test]
fn names_of_processes_are_no_events() {
    for sample in samples() {
        assert!(recognise(sample).is_some(), "{sample}");
        for end in 0..=MAX_NAME_BYTES.min(sample.len()) {
            let (name, rest) = sample.split_at(end);
            for text in
                [sample, rest, &format!("\n{sample}"), &format!("x: {sample}"), &format!("\n{sample}\n")]
            {
                is_no_event(name, text);
                is_no_event(&format!("\n{name}").chars().take(MAX_NAME_BYTES).collect::<String>(), text);
            }
        }
    }
}

/// Uses every suffix of every sample as the name of a file, after names that begin as samples do.
#[test]
fn names_of_files_are_no_events() {
    for sample in samples() {
        let name = &sample[..MAX_NAME_BYTES.min(sample.len())];
        for at in 0..sample.len() {
            is_no_event(name, &sample[at..]);
            is_no_event("NVRM: ", &format!("\n{}", &sample[at..]));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn nothing_of_a_process_is_an_event(
        first in 0..SAMPLES.len(),
        second in 0..SAMPLES.len(),
        begin in 0_usize..60,
        length in 0..=MAX_NAME_BYTES,
        inserted in "[ -~\n]{0,3}",
    ) {
        let name: String = SAMPLES[first].0.chars().skip(begin).collect::<String>();
        let name: String = format!("{inserted}{name}").chars().take(length).collect();
        is_no_event(&name, SAMPLES[second].0);
        is_no_event(&name, &format!("{inserted}{}", SAMPLES[second].0));
    }
}

#[test]
fn a_cgroup_that_could_be_anybodys_is_nobodys() {
    let of = |fields: &str| {
        let line = format!("oom-kill:constraint=CONSTRAINT_MEMCG,{fields},pid=4242,uid=1000");
        match recognise(&line) {
            Some(Found::OomContext { pid: 4242, cgroup, .. }) => cgroup.to_owned(),
            found => panic!("{line}: {found:?}"),
        }
    };
    assert_eq!(of("cpuset=/,oom_memcg=/a,task_memcg=/a/job_7,task=python3"), "/a/job_7");
    assert_eq!(of("cpuset=x,task_memcg=/job_1,task=y,oom_memcg=/a,task_memcg=/a,task=python3"), "");
    assert_eq!(of("cpuset=/,oom_memcg=/a,task_memcg=/a/b,task_memcg=/job_1,task=python3"), "");
    assert_eq!(of("cpuset=/,oom_memcg=/a,task_memcg=/a/b,task=,task=/c"), "/a/b");
}
