use super::*;
use stepwatch_wire::Kind;
use stepwatch_wire::names::hw;

/// Evaluates lines as records from `first` on, a second apart. Returns the events, except those of
/// lines that match no pattern.
fn take(tracker: &mut Tracker, first: u64, lines: &[&str]) -> Vec<Event> {
    let unknown = NodeCondition::KernelMessage.name();
    let all = take_all(tracker, first, lines).into_iter();
    all.filter(|event| event.name.as_deref() != Some(unknown)).collect()
}

fn take_all(tracker: &mut Tracker, first: u64, lines: &[&str]) -> Vec<Event> {
    for (sequence, line) in (first..).zip(lines) {
        let record = format!("4,{sequence},{},-;{line}\n", sequence * 1_000_000);
        tracker.take(record.as_bytes(), &Roots::default(), |micros| 1e9 + micros as f64 / 1e6);
    }
    tracker.events.drain(..).collect()
}

fn names(events: &[Event]) -> Vec<(&str, i64)> {
    events.iter().map(|e| (e.name.as_deref().unwrap(), e.code.unwrap())).collect()
}

#[test]
fn a_gpu_that_falls_off_in_three_lines_and_is_known_by_name() {
    let mut t = Tracker::default();
    let events = take(
        &mut t,
        1,
        &[
            "NVRM: GPU at PCI:0000:b3:00: GPU-2f3c",
            "NVRM: The NVIDIA GPU 0000:b3:00.0",
            "NVRM: (PCI ID: 10de:2330) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
            r"NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: fallen off the bus and is not responding to commands.",
            "NVRM: Xid (PCI:0000:b3:00): 45, pid=7, name=x, Ch 1 caused by previous Xid 79",
        ],
    );
    assert_eq!(names(&events), [("gpu_lost", 1), ("gpu_lost", 1), ("xid", 45)]);
    let text = |e: &Event, key: &str| e.extra.get(key).and_then(|v| v.as_str().map(str::to_owned));
    assert!(events.iter().all(|e| text(e, "gpu").as_deref() == Some("GPU-2f3c")), "{events:?}");
    assert_eq!(events[2].extra["caused_by"].as_f64(), Some(79.0));
    assert_eq!(events[0].ts, Some(1e9 + 4.0));
}

#[test]
fn what_was_taken_in_is_not_taken_in_again_and_gaps_are_losses() {
    let mut t = Tracker::default();
    let line = "NVRM: Xid (PCI:0000:3b:00): 79, x";
    take(&mut t, 10, &[line, line]);
    assert!(take(&mut t, 10, &[line, line]).is_empty());
    assert_eq!((t.counts.events["gpu_xid"], t.counts.lost, t.counts.next), (2, 0, Some(12)));
    t.overwritten();
    take(&mut t, 15, &[line]);
    assert_eq!(t.counts.lost, 3);
    t.overwritten();
    take(&mut t, 16, &[line]);
    assert_eq!(t.counts.lost, 4, "something was lost, or the log would not be marked as overwritten");
    t.take(b"garbage", &Roots::default(), |_| 0.0);
    t.take(b" KEY=value", &Roots::default(), |_| 0.0);
    assert_eq!((t.counts.malformed, t.counts.read), (1, 4));
}

#[test]
fn a_stall_begins_ends_and_is_published_again_while_it_lasts() {
    let mut t = Tracker::default();
    let stall = "nfs: server a not responding, still trying";
    assert_eq!(names(&take(&mut t, 1, &[stall, stall, "nfs: server b OK"])), [("nfs_stall", 1)]);
    t.again(1e9 + 2.0);
    assert!(t.events.is_empty());
    t.again(1e9 + 602.0);
    let again = t.events.pop().unwrap();
    assert!(again.extra.contains_key("again") && again.extra["device"].as_str() == Some("a"));
    assert_eq!(names(&take(&mut t, 4, &["nfs: server a OK", "nfs: server a OK"])), [("nfs_stall", 0)]);
    // A condition that began before events were published is published at the first opportunity.
    t.publish_from = NOT_YET;
    assert!(take(&mut t, 6, &[stall]).is_empty());
    t.again(1e9 + 7.0);
    assert_eq!(t.events.len(), 1);
}

#[test]
fn a_timeout_of_a_soft_mount_is_published_once() {
    let mut t = Tracker::default();
    let events = take(&mut t, 1, &["nfs: server a not responding, timed out"]);
    assert_eq!(names(&events), [("nfs_timeout", 1)]);
    assert!(events[0].extra.contains_key("once"), "its end is not logged");
    t.again(1e9 + 1000.0);
    assert!(t.events.is_empty() && t.counts.held.is_empty());
    // A condition without a device has no end either.
    let events = take(&mut t, 2, &["Remounting filesystem read-only"]);
    assert!(events[0].extra.contains_key("once") && t.counts.held.is_empty());
}

#[test]
fn a_stall_of_which_nothing_more_is_heard_is_over() {
    let stall = "nfs: server a not responding, still trying";
    let mut t = Tracker::default();
    take(&mut t, 1, &[stall]);
    let published = |t: &mut Tracker, at: f64| {
        t.again(1e9 + at);
        t.events.drain(..).map(|e| e.code.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(published(&mut t, HOLDS_SECONDS), [1], "a long stall is one");
    // The kernel logs it again.
    let last = HOLDS_SECONDS as u64;
    assert!(take(&mut t, last, &[stall]).is_empty());
    assert_eq!(published(&mut t, 2.0 * HOLDS_SECONDS - 1.0), [1]);
    t.again(1e9 + 2.0 * HOLDS_SECONDS);
    let over = t.events.pop().unwrap();
    assert_eq!((over.code, over.level.as_deref()), (Some(0), Some("info")));
    assert_eq!(over.extra["device"].as_str(), Some("a"));
    let said = "over: the kernel has not logged it again for 6 h (the NFS server does not answer: a)";
    assert_eq!(over.text.as_deref(), Some(said));
    assert!(published(&mut t, 3.0 * HOLDS_SECONDS).is_empty());
    // A condition that ended before events were published is not published; nor is one whose time
    // an older version did not store.
    t.publish_from = NOT_YET;
    take(&mut t, last + 1, &[stall]);
    assert!(published(&mut t, 3.0 * HOLDS_SECONDS).is_empty() && t.counts.held.is_empty());
    t.counts = serde_json::from_str(
        r#"{"held":[{"name":"nfs_stall","device":"a","level":"warn","text":"x","told":1e9}]}"#,
    )
    .unwrap();
    assert_eq!(published(&mut t, HOLDS_SECONDS), [1]);
    assert_eq!(published(&mut t, 2.0 * HOLDS_SECONDS), [0]);
}

fn lost(target: &str, server: &str) -> String {
    format!(
        "Lustre: {target}-osc-ffff9d8a1: Connection to {target} (at {server}) was lost; in progress operations using this service will wait for recovery to complete"
    )
}

fn restored(target: &str, server: &str) -> String {
    format!("Lustre: {target}-osc-ffff9d8a1: Connection restored to {target} (at {server})")
}

fn devices(events: &[Event]) -> Vec<(&str, i64)> {
    events.iter().map(|e| (e.extra["device"].as_str().unwrap(), e.code.unwrap())).collect()
}

#[test]
fn of_the_targets_of_a_server_that_is_back_one_is_all_that_is_heard_of() {
    let mut t = Tracker::default();
    let (a, b) = ("10.0.0.1@tcp", "10.0.0.2@tcp");
    let all = [lost("s-OST1", a), lost("s-OST2", a), lost("s-OST3", b)];
    let began = take(&mut t, 1, &all.each_ref().map(String::as_str));
    assert_eq!(devices(&began), [("s-OST1-osc", 1), ("s-OST2-osc", 1), ("s-OST3-osc", 1)]);
    // A line of the management server does not mean that its targets are back.
    let mgc = format!("Lustre: MGC{a}: Connection restored to {a} (at {a})");
    assert!(take(&mut t, 4, &[&mgc, "Lustre: Skipped 7 previous similar messages"]).is_empty());
    // This is a target whose loss was not logged.
    let over = take(&mut t, 6, &[&restored("s-OST7", a)]);
    assert_eq!(devices(&over), [("s-OST1-osc", 0), ("s-OST2-osc", 0)]);
    // Another server has taken over its place.
    take(&mut t, 7, &[&lost("s-OST4", b)]);
    let over = take(&mut t, 8, &[&restored("s-OST3", a)]);
    assert_eq!(devices(&over), [("s-OST3-osc", 0), ("s-OST4-osc", 0)]);
    assert!(t.counts.held.is_empty());
}

#[test]
fn the_lustre_client_knows_what_the_log_left_out() {
    let mut t = Tracker::default();
    let all = [lost("s-OST1", "a@tcp"), lost("s-OST2", "b@tcp"), lost("s-OST3", "c@tcp")];
    take(&mut t, 1, &all.each_ref().map(String::as_str));
    let up = BTreeMap::from([("s-OST1-osc".to_owned(), true), ("s-OST2-osc".to_owned(), false)]);
    t.imports(1e9 + 1.0, 1e9 + 0.5, &up);
    assert!(t.events.is_empty(), "what was logged after the question is newer than the answer");
    let late = HOLDS_SECONDS - 60.0;
    t.imports(1e9 + late, 1e9 + late - 1.0, &up);
    let over: Vec<Event> = t.events.drain(..).collect();
    assert_eq!(devices(&over), [("s-OST1-osc", 0)]);
    let text = over[0].text.as_deref().unwrap();
    assert!(text.starts_with("over: the connection to the Lustre server is back ("), "{text}");
    // A connection that is known to be down continues; there is no news of the third.
    t.again(1e9 + HOLDS_SECONDS + 3.0);
    let published: Vec<Event> = t.events.drain(..).collect();
    assert_eq!(devices(&published), [("s-OST2-osc", 1), ("s-OST3-osc", 0)]);
}

#[test]
fn errors_of_switches_are_published_unless_they_are_harmless() {
    let mut t = Tracker::default();
    let sxid = |said: &str| format!("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): {said}");
    let lines = [
        "10007, IO failure",
        "10005, Thermal slowdown Disengaged",
        "14017, Correctable, Link 03 ingress ECC limit",
        "20034, Fatal, Link 28 LTSSM Fault Up",
        "20034, Severity 1 Engine instance 28 Sub-engine instance 00",
    ]
    .map(sxid);
    let events = take(&mut t, 1, &lines.each_ref().map(String::as_str));
    let published: Vec<_> = events.iter().map(|e| (e.code.unwrap(), e.level.as_deref().unwrap())).collect();
    assert_eq!(published, [(10007, "error"), (20034, "error")]);
    let counted = |pattern: &str| t.counts.events.get(pattern).copied().unwrap_or_default();
    let patterns = ["nvswitch_sxid_unknown", "nvswitch_sxid_fatal", "nvswitch_sxid_non_fatal"];
    assert_eq!(patterns.map(counted), [1, 1, 0]);
    let mut page = crate::samples::Samples::default();
    t.counts.write(&mut page);
    for (code, severity) in [("10007", "unknown"), ("10005", "unknown"), ("14017", "correctable")] {
        assert_eq!(page.get(&super::super::SXIDS, &["0", code, severity]), Some(1.0), "{code}");
    }
}

#[test]
fn corrected_machine_checks_are_counted_and_the_others_are_errors() {
    let mut t = Tracker::default();
    let logged = "mce: [Hardware Error]: Machine check events logged";
    assert!(take(&mut t, 1, &[logged, "[Hardware Error]: Corrected error, no action required."]).is_empty());
    assert_eq!(t.counts.events.get("mce_logged"), Some(&1));
    for line in [
        "mce: [Hardware Error]: CPU 4: Machine Check Exception: 5 Bank 7: be00004000010090",
        "[Hardware Error]: Uncorrected, software restartable error.",
    ] {
        let next = t.counts.next.unwrap();
        let published = take(&mut t, next, &[line]);
        assert_eq!((names(&published), published[0].level.as_deref()), (vec![("mce", 1)], Some("error")));
    }
}

#[test]
fn errors_from_before_the_boot_are_published_once_even_at_the_first_start() {
    let numbered = "{1}[Hardware Error]: event severity: fatal";
    let lines = [
        "BERT: Error records from previous boot:",
        "[Hardware Error]: event severity: fatal",
        "[Hardware Error]:  Error 0, type: fatal",
        "[Hardware Error]: event severity: fatal",
        numbered,
    ];
    for (publish_from, expected) in [(NOT_YET, 1), (0, 2), (3, 1)] {
        let mut t = Tracker { publish_from, ..Tracker::default() };
        let published = take(&mut t, 1, &lines);
        let previous = published.iter().filter(|e| e.name.as_deref() == Some("hardware_error_previous_boot"));
        let previous: Vec<_> = previous.map(|e| e.level.as_deref()).collect();
        assert_eq!(previous, vec![Some("warn"); usize::from(publish_from != 3)], "{publish_from}");
        assert_eq!(published.len(), expected, "{publish_from}");
        let counted = ["cper_previous_boot", "cper_fatal", "mce"].map(|pattern| t.counts.events.get(pattern));
        assert_eq!(counted, [Some(&2), Some(&1), None]);
    }
}

#[test]
fn a_kill_knows_its_cgroup() {
    let mut t = Tracker::default();
    let events = take(
        &mut t,
        1,
        &[
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task_memcg=/slurm/job_7,task=python3,pid=42,uid=0",
            "Memory cgroup out of memory: Killed process 42 (python3) total-vm:10kB",
        ],
    );
    let [event] = &events[..] else { panic!("{events:?}") };
    assert_eq!((event.kind, event.extra["cgroup"].as_str()), (Kind::Hw, Some("/slurm/job_7")));
    assert_eq!(
        event.text.as_deref(),
        Some("killed for want of memory: process python3 (pid 42), in cgroup /slurm/job_7")
    );
}

#[test]
fn a_storm_is_counted_in_full_and_published_in_part() {
    let mut t = Tracker::default();
    let lines: Vec<String> = (0..100).map(|i| format!("NVRM: Xid (PCI:0000:3b:00): 45, Ch {i}")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    // The lines are a second apart: one full minute and two thirds of another.
    assert_eq!(take(&mut t, 1, &lines).len(), 2 * BURST as usize);
    assert_eq!((t.counts.events["gpu_xid"], t.counts.suppressed), (100, 80));
}

#[test]
fn what_was_never_said_before() {
    let mut t = Tracker { learning: true, ..Tracker::default() };
    take(&mut t, 1, &["foo: number 1 broke"]);
    t.learning = false;
    let published = take_all(
        &mut t,
        2,
        &["foo: number 2 broke", "bar: odd", "bar: odd", "NVRM: Xid (PCI:0000:3b:00): 79, x"],
    );
    assert_eq!(t.counts.unknown, [0, 0, 0, 0, 1]);
    assert_eq!(published.iter().filter(|e| e.name.as_deref() == Some("kernel_message")).count(), 1);
    let odd = &published[0];
    assert_eq!(
        (odd.text.as_deref(), odd.level.as_deref()),
        (Some("new on this node: bar: odd"), Some("info"))
    );
    assert_eq!(odd.extra[hw::TEMPLATE].as_str(), Some("bar: odd"));
    let user = b"12,9,9,-;said by a program\n";
    t.take(user, &Roots::default(), |_| 0.0);
    assert_eq!(t.counts.unknown, [0, 0, 0, 0, 1]);
}
