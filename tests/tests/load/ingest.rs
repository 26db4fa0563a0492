//! Alerts a second, the memory they take and the time to show them: beside Debian's Alertmanager,
//! in the same run, asked the same.
//!
//! The comparison is not even in one respect: ours answers when an alert is on disk, Alertmanager
//! when it is in memory, from where a crash takes it.

use std::net::SocketAddr;
use std::time::Instant;

use serde_json::{Value, json};
use stepwatch_tests::peers::{self, Alertmanager};
use stepwatch_tests::{Stack, StackOptions, say};

use crate::client::{Client, Tally, flood};
use crate::memory::resident;
use crate::{in_full, one_at_a_time};

const PATH: &str = "/api/v2/alerts";
/// Alerts in one request, as Prometheus sends them.
pub(crate) const BATCH: usize = 64;
/// Rules that fire, each for so many machines.
const RULES: usize = 40;
/// The limits of a full measurement: alerts sent again, in theirs; and with 20,000 alerts. A short
/// one proves that all are taken and shown.
const TARGET_RATIO: f64 = 3.0;
const TARGET_MIB: f64 = 136.0;

struct Plan {
    machines: usize,
    again: usize,
    reads: usize,
}

fn plan() -> Plan {
    if in_full() {
        Plan { machines: 500, again: 5, reads: 7 }
    } else {
        Plan { machines: 50, again: 2, reads: 2 }
    }
}

/// One program under measurement.
struct Subject {
    name: &'static str,
    addr: SocketAddr,
    pid: u32,
    /// In the order of [`Phase::ALL`], for one sender and for many.
    tallies: [[Tally; 3]; 2],
    shown: [Tally; 2],
    bytes: [usize; 2],
    mib: [f64; 2],
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Fires,
    Again,
    Over,
}

/// Prometheus servers that send at the same time.
const SENDERS: [usize; 2] = [1, 8];

impl Phase {
    const ALL: [Self; 3] = [Self::Fires, Self::Again, Self::Over];
}

impl Subject {
    fn new(name: &'static str, addr: SocketAddr, pid: Option<u32>) -> Self {
        let (tallies, shown, bytes, mib) = Default::default();
        Self { name, addr, pid: pid.unwrap(), tallies, shown, bytes, mib }
    }

    /// Alerts a second.
    fn rate(&self, senders: usize, phase: Phase) -> f64 {
        let tally = &self.tallies[senders][phase as usize];
        (tally.took.len() * BATCH) as f64 / tally.lasted.as_secs_f64()
    }

    fn send(&mut self, senders: usize, phase: Phase, bodies: &[Vec<u8>]) {
        let tally = flood(self.addr, PATH, bodies, SENDERS[senders]);
        let kept = &mut self.tallies[senders][phase as usize];
        let lasted = kept.lasted + tally.lasted;
        let took = core::mem::take(&mut kept.took).into_iter().chain(tally.took).collect();
        *kept = Tally::from_times(lasted, took);
    }

    fn show(&mut self) {
        for (n, path) in [PATH, "/api/v2/alerts/groups"].into_iter().enumerate() {
            let (mut client, mut took) = (Client::connect(self.addr), Vec::new());
            for _ in 0..plan().reads {
                let began = Instant::now();
                assert_eq!(client.get(path), 200);
                took.push(began.elapsed());
            }
            self.bytes[n] = client.body.len();
            self.shown[n] = Tally::from_times(took.iter().sum(), took);
        }
    }

    fn row(&self, senders: usize) -> String {
        let each = |phase: Phase| {
            let tally = &self.tallies[senders][phase as usize];
            format!(" {:>8.0} {:>6.2} {:>6.2}", self.rate(senders, phase), tally.ms(0.5), tally.ms(0.99))
        };
        let shown = |n: usize| format!(" {:>6.0} {:>5.1}", self.shown[n].ms(0.5), self.bytes[n] as f64 / 1e6);
        format!(
            "{:<12} {:>2}{}{}{} {:>6.1}",
            self.name,
            SENDERS[senders],
            Phase::ALL.map(each).concat(),
            shown(0),
            shown(1),
            self.mib[senders]
        )
    }
}

/// The alerts of a training cluster's rules about its machines, sent `minutes` after they began to
/// fire.
pub(crate) fn alert(set: usize, rule: usize, machine: usize, minutes: i64, over: bool) -> Value {
    let began = jiff::Timestamp::now();
    let at = |seconds: i64| (began + jiff::SignedDuration::from_secs(seconds)).to_string();
    let (name, node) = (format!("ClusterRule{set}x{rule:02}"), format!("gpu-{machine:04}"));
    json!({
        "labels": {
            "alertname": name, "severity": if rule == 0 { "critical" } else { "warning" }, "cluster": "eu-north-1",
            "job": "node", "instance": format!("{node}:9100"), "gpu": format!("GPU-{machine:08x}-5a1c-4c7e"),
            "datacenter": "dc2", "prometheus": "monitoring/k8s"
        },
        "annotations": {
            "summary": format!("{name} on {node}"),
            "description": format!("{node} has been over its limit for 10 minutes: value {}.{machine}", 90 + rule),
            "runbook_url": format!("https://runbooks.example.com/{name}")
        },
        "startsAt": "2026-01-01T00:00:00.000Z",
        "endsAt": if over { at(-1) } else { at(240 + 60 * minutes) },
        "generatorURL": format!("http://prometheus-0:9090/graph?g0.expr=rule_{rule}+%3E+90&g0.tab=1")
    })
}

/// All of them, in requests as Prometheus makes them.
pub(crate) fn bodies(set: usize, machines: usize, minutes: i64, over: bool) -> Vec<Vec<u8>> {
    let all: Vec<Value> =
        (0..RULES * machines).map(|n| alert(set, n / machines, n % machines, minutes, over)).collect();
    all.chunks(BATCH).map(|batch| serde_json::to_vec(batch).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_beside_alertmanager() {
    let Some(program) = peers::alertmanager() else { return };
    let _alone = one_at_a_time().await;
    let stack = Stack::start_with(StackOptions { blind: true, ..StackOptions::default() }).await.unwrap();
    let theirs = Alertmanager::start(&program, stack.dir.path()).await.unwrap();
    let mut subjects = [
        Subject::new("Alertmanager", theirs.addr, theirs.pid()),
        Subject::new("Stepwatch", stack.alerter.addr, stack.alerter.daemon.pid()),
    ];
    let subjects = tokio::task::spawn_blocking(move || {
        for set in 0..SENDERS.len() {
            measure(&mut subjects, set);
        }
        subjects
    })
    .await
    .unwrap();
    report(&subjects);
    if in_full() {
        judge(&subjects);
    }
}

fn measure(subjects: &mut [Subject; 2], senders: usize) {
    let fires = bodies(senders, plan().machines, 0, false);
    for subject in subjects.iter_mut() {
        subject.send(senders, Phase::Fires, &fires);
    }
    for n in 1..=plan().again {
        let again = bodies(senders, plan().machines, n as i64, false);
        subjects.iter_mut().for_each(|subject| subject.send(senders, Phase::Again, &again));
    }
    for subject in subjects.iter_mut() {
        subject.mib[senders] = resident(subject.pid);
        if senders == 0 {
            subject.show();
        }
    }
    let over = bodies(senders, plan().machines, 0, true);
    subjects.iter_mut().for_each(|subject| subject.send(senders, Phase::Over, &over));
}

fn report(subjects: &[Subject; 2]) {
    let columns = "alerts/s    p50    p99";
    say::figure(&format!(
        "{} alerts, {BATCH} a request: fire, sent again, over; senders, milliseconds of a request, of showing all and in groups \
         (MB), MiB",
        RULES * plan().machines
    ));
    say::figure(&format!("{:<15}  {columns}  {columns}  {columns}   show    MB groups   MB    MiB", ""));
    for (n, senders) in SENDERS.into_iter().enumerate() {
        subjects.iter().for_each(|s| say::figure(&s.row(n)));
        let ratio =
            |phase| format!("{phase:?} {:.1}", subjects[1].rate(n, phase) / subjects[0].rate(n, phase));
        say::figure(&format!("ratio, {senders} senders: {}", Phase::ALL.map(ratio).join(", ")));
    }
}

fn judge(subjects: &[Subject; 2]) {
    let [theirs, ours] = subjects;
    // What Prometheus does all day. What begins or ends is on disk before it is answered, and
    // theirs is not.
    for n in 0..SENDERS.len() {
        let ratio = ours.rate(n, Phase::Again) / theirs.rate(n, Phase::Again);
        assert!(ratio >= TARGET_RATIO, "{ratio:.2} of Alertmanager's alerts a second");
    }
    assert!(ours.mib[0] <= TARGET_MIB, "{:.1} MiB", ours.mib[0]);
}
