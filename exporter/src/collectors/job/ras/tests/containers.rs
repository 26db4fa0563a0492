//! Tests a job in a network namespace that the kernel creates for this test. That takes root or
//! CAP_SYS_ADMIN. Without it the test fails instead of being skipped.

use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};

use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, capabilities, move_into_link_name_space,
    set_capabilities,
};

use super::*;

/// The user of the job.
const USER: u32 = 4_000_001;

/// A process with a network of its own, whose loopback interface is up.
struct Container {
    process: Child,
}

impl Container {
    fn start() -> Self {
        let own = format!("exec setpriv --reuid {USER} sh -c 'echo up && exec sleep 600'");
        let mut process = Command::new("unshare")
            .args(["--net", "sh", "-c", &format!("ip link set lo up && {own}")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n", "this test makes a network namespace: it takes root");
        Self { process }
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }

    /// A RAS server at the usual port in the namespace.
    fn listen(&self) -> TcpListener {
        let link = std::fs::File::open(format!("/proc/{}/ns/net", self.pid())).unwrap();
        std::thread::spawn(move || {
            move_into_link_name_space(link.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            TcpListener::bind("127.0.0.1:28028").unwrap()
        })
        .join()
        .unwrap()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A reader with one process of the run `pod`.
fn node(container: &Container) -> (testing::Bench, RasReader) {
    let bench = testing::Bench::new(Roots::default());
    let origin = Origin::Peer(Peer { connection: 1, pid: Some(container.pid()), uid: USER });
    bench.hub.publish(origin, Event { rank: Some(0), ..Event::step("pod", 1) });
    bench.published();
    let config = Config {
        addresses: vec!["127.0.0.1:28028".into()],
        timeout: Period::secs(1),
        stuck_after: Period::millis(10),
        interval: Period::millis(10),
        ..Config::default()
    };
    (bench, RasReader::new(&config))
}

#[test]
fn a_job_with_a_network_of_its_own_is_asked_and_its_hang_is_its_runs() {
    let container = Container::start();
    let (bench, mut reader) = node(&container);
    let probed = reader.probe(&bench.context());
    assert!(matches!(probed, Ok(Support::Supported(_))), "{probed:?}");
    assert_eq!(bench.collect(&mut reader).rows(&UP).count(), 0, "nothing listens in there yet");
    let fake = Fake::on(container.listen(), true);
    let page = bench.collect(&mut reader);
    let addresses: Vec<String> = page.rows(&UP).map(|row| row.label("address").to_owned()).collect();
    let [address] = &addresses[..] else { panic!("{addresses:?}") };
    assert!(address.starts_with("127.0.0.1:28028@net:"), "{address}");
    assert_eq!((page.get(&UP, &[address]), page.get(&RANKS, &[address])), (Some(1.0), Some(8.0)));
    assert_eq!(page.rows(&UNREACHABLE).count(), 0);
    fake.set(|job| job.counts[5] = 99);
    let hang = || {
        bench.collect(&mut reader);
        bench.published().into_iter().next()
    };
    let hang = std::iter::repeat_with(hang).take(2000).flatten().next().unwrap();
    assert_eq!(hang.name.as_deref(), Some("ras_stuck"));
    assert_eq!(hang.extra[hw::RUNS], Value::List(vec![Value::Text("pod".into())]));
    assert_eq!(fake.job.locked().violations, Vec::<String>::new());
}

#[test]
fn a_network_that_may_not_be_entered_is_named() {
    let container = Container::start();
    let _fake = Fake::on(container.listen(), true);
    // Capabilities belong to threads.
    let seen = std::thread::spawn(move || {
        let all = capabilities(None).unwrap();
        let fewer = CapabilitySets { effective: all.effective - CapabilitySet::SYS_ADMIN, ..all };
        set_capabilities(None, fewer).unwrap();
        let (bench, mut reader) = node(&container);
        bench.collect(&mut reader);
        let page = bench.collect(&mut reader);
        (page.get(&UNREACHABLE, &["pod"]), page.rows(&UP).count(), page.get(&FAILURES, &["denied"]))
    });
    let (unreachable, answered, denied) = seen.join().unwrap();
    assert_eq!((unreachable, answered), (Some(1.0), 0));
    assert!(denied >= Some(1.0), "{denied:?}");
}
