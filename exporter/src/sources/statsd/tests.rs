use std::os::unix::net::UnixDatagram as StdUnix;

use stepwatch_wire::Kind;

use super::*;
use crate::hub::Hub;
use crate::samples::Samples;
use crate::source::{DROPPED, UNMATCHED, UP};
use crate::testing::{hub, published};

fn config(text: &str) -> StatsdConfig {
    stepwatch_kit::config::parse("x", text).unwrap()
}

/// A receiver that is given packets without a socket.
struct Bench {
    hub: Hub,
    statsd: Statsd,
    seen: usize,
}

impl Bench {
    fn new(text: &str) -> Self {
        let hub = hub();
        let statsd =
            Statsd::new(config(&format!("listen: ':8125'\n{text}")), Box::new(hub.clone()), Roots::default());
        Self { hub, statsd, seen: 0 }
    }

    /// The events of packets after a pause, without `hello`.
    fn packets(&mut self, packets: &[&str]) -> Vec<Event> {
        packets.iter().for_each(|p| self.statsd.packet(Principal::Exporter, p.as_bytes()));
        self.statsd.flush();
        let all = published(&self.hub);
        let new = all[self.seen..].iter().filter(|e| e.kind != Kind::Hello).cloned().collect();
        self.seen = all.len();
        new
    }

    fn health(&self, family: &Family, reason: &[&str]) -> Option<f64> {
        let mut page = Samples::default();
        self.hub.write(&mut page);
        page.get(family, &[&[":8125", "statsd"], reason].concat())
    }
}

#[test]
fn a_line_without_a_run_is_the_word_of_who_sent_it() {
    let mut b = Bench::new("run: a");
    let (ann, bob) = (Principal::User(4_000_001), Principal::User(4_000_002));
    b.statsd.packet(ann, b"loss:2|g|#step:1");
    b.statsd.flush();
    b.statsd.packet(bob, b"loss:nan|g|#step:2");
    b.statsd.flush();
    let events = b.packets(&[]);
    assert_eq!(events.iter().map(|e| e.step).collect::<Vec<_>>(), [Some(1)]);
    assert_eq!(b.health(&DROPPED, &["not_owner"]), Some(1.0));
}

/// The user of a port is the current owner, not the previous one.
#[test]
fn a_port_is_of_whoever_has_it() {
    let mut b = Bench::new("");
    let ours = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let theirs = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let ends = Ends::new(theirs.local_addr().unwrap(), ours.local_addr().unwrap());
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(b.statsd.principal(Sender::At(ends)), Principal::User(own));
    drop(theirs);
    assert_eq!(b.statsd.principal(Sender::At(ends)), Principal::Unknown);
}

#[test]
fn searches_for_senders_take_a_part_of_the_time() {
    let mut b = Bench::new("");
    let theirs = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = theirs.local_addr().unwrap();
    let now = Instant::now();
    assert!(b.statsd.search(from, now).is_some());
    b.statsd.searched = (SEARCH_BURST * 2, now);
    assert_eq!(b.statsd.search(from, now), None, "it took long");
    assert_eq!(b.statsd.search(from, now + SEARCH_BURST), None);
    assert!(b.statsd.search(from, now + SEARCH_BURST * (SEARCH_SHARE * 2)).is_some());
}

#[test]
fn steps_by_tag() {
    let mut b = Bench::new("");
    let events = b.packets(&[
        "loss:2.5|g|#run:a,rank:1,step:17\nlr:0.001|g|#run:a,rank:1,step:17\n",
        "step_time:4000|ms|#run:a,rank:1,step:17,world:8",
        "loss:2.25|g|#run:a,rank:1,step:18",
        "loss:9|g|#run:a,rank:0,step:18",
    ]);
    let of: Vec<_> = events.iter().map(|e| (e.rank, e.step, e.m.get("loss"))).collect();
    assert_eq!(
        of,
        [(Some(1), Some(17), Some(2.5)), (Some(0), Some(18), Some(9.0)), (Some(1), Some(18), Some(2.25))]
    );
    assert_eq!(
        (events[0].world, events[0].m.get("lr"), events[0].m.get("step_time")),
        (Some(8), Some(0.001), Some(4.0))
    );
    let again = b.packets(&["loss:2.25|g|#run:a,rank:1,step:19"]);
    assert_eq!(again.len(), 1, "it was set, so it is news");
}

#[test]
fn steps_by_gauge() {
    let mut b = Bench::new("run: a\nprefix: train.");
    let events = b.packets(&[
        "train.step:5|g\ntrain.loss:2|g\n",
        "train.step:6|g\ntrain.loss:1|g\ntokens:4096|c\ntokens:4096|c\n",
    ]);
    let of: Vec<_> = events.iter().map(|e| (e.step, e.m.get("loss"))).collect();
    assert_eq!(of, [(Some(5), Some(2.0)), (Some(6), Some(1.0))]);
}

#[test]
fn what_is_counted_and_timed_adds_up() {
    let mut b = Bench::new("run: a\nmetrics: {it: step_time, oops: skipped}");
    let events = b.packets(&[
        "loss:2|g|#step:1",
        "it:100:200|ms",
        "it:300|ms",
        "oops:1|c|@0.5",
        "oops:1|c",
        "reqs:3|c",
    ]);
    let m = &events[0].m;
    assert_eq!((m.get("step_time"), m.get("skipped"), m.get("reqs")), (Some(0.2), Some(3.0), Some(3.0)));
    let events = b.packets(&["loss:2|g|#step:2", "reqs:4|c", "mem:10|g", "mem:-3|g"]);
    assert_eq!((events[0].m.get("reqs"), events[0].m.get("mem")), (Some(7.0), Some(7.0)));
}

#[test]
fn nan_survives() {
    let mut b = Bench::new("run: a");
    for step in 1..3 {
        let events = b.packets(&[&format!("loss:nan|g|#step:{step}")]);
        assert!(events[0].m.get("loss").unwrap().is_nan());
    }
}

#[test]
fn what_is_not_taken_is_counted() {
    let mut b = Bench::new("");
    assert!(b.packets(&["loss:1|g", "garbage", "users:1|s|#run:a", "_e{1,1}:a|b"]).is_empty());
    assert_eq!(b.health(&DROPPED, &["no_run"]), Some(1.0));
    assert_eq!(b.health(&DROPPED, &["malformed"]), Some(1.0));
    assert_eq!(b.health(&UNMATCHED, &[]), Some(2.0));
    let many: String =
        (0..MAX_GATHERED + 5).map(|i| format!("m{i}:1|g|#run:a\n")).collect::<Vec<_>>().concat();
    b.packets(&[&many]);
    assert_eq!(b.health(&DROPPED, &["gathered_limit"]), Some(5.0));
}

#[test]
fn mistakes_of_the_configuration_are_named() {
    for (text, want) in [
        ("listen: nowhere", "listen: no port"),
        ("listen: 'unix:x.sock'", "listen: must be an absolute path"),
        ("{listen: ':1', metrics: {a: ''}}", "metrics: \"a\" needs"),
    ] {
        let wrong = config(text).check();
        assert!(wrong.len() == 1 && wrong[0].starts_with(want), "{wrong:?}");
    }
    assert!(
        config("listen: 'unix:/run/x.sock'").check().is_empty()
            && config("listen: ':8125'").check().is_empty()
    );
}

async fn until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "it did not come");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_socket_of_the_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/statsd.sock");
    let (hub, listen) = (hub(), format!("unix:{}", path.display()));
    let around = Surroundings {
        hub: hub.clone(),
        nvml: crate::nvml::Nvml::default(),
        roots: Roots::default(),
        state_dir: "/nowhere".into(),
    };
    let up = |hub: &Hub| {
        let mut page = Samples::default();
        hub.write(&mut page);
        page.get(&UP, &[&listen, "statsd"])
    };
    for round in 0..2 {
        if round == 1 {
            // The file that a crash leaves.
            drop(StdUnix::bind(&path).unwrap());
        }
        let (trigger, shutdown) = Shutdown::manual();
        start(config(&format!("listen: '{listen}'\nrun: a")), &around, shutdown);
        until(|| up(&hub) == Some(1.0)).await;
        let step = 10 + round;
        StdUnix::unbound().unwrap().send_to(format!("loss:2|g|#step:{step}").as_bytes(), &path).unwrap();
        until(|| published(&hub).iter().any(|e| e.step == Some(step))).await;
        trigger.fire();
        until(|| !path.exists()).await;
    }
}

#[tokio::test]
async fn udp() {
    let socket = Socket::bind("127.0.0.1:0").await.unwrap();
    let Socket::Udp(udp) = &socket else { panic!("not UDP") };
    let addr = udp.local_addr().unwrap();
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"loss:1|g", addr).unwrap();
    let mut packet = [0; 64];
    let n = socket.recv(&mut packet).await.unwrap();
    assert_eq!(&packet[..n.0], b"loss:1|g");
}

proptest::proptest! {
    #[test]
    fn never_panics(packets: Vec<Vec<u8>>) {
        let mut b = Bench::new("run: a");
        for packet in packets {
            b.statsd.packet(Principal::Unknown, &packet);
        }
        b.statsd.flush();
    }
}
