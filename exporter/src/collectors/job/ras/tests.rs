use super::*;
use crate::lock::Locked as _;
use crate::origin::{Origin, Peer};
use crate::roots::Roots;
use crate::testing;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

mod containers;
mod unanswered;

/// A fake job of eight ranks on two nodes.
#[derive(Debug, Clone)]
struct FakeJob {
    json: bool,
    /// AllReduces that each rank has launched in the communicator of all.
    counts: [u64; 8],
    /// The counts of the communicator of the first two ranks.
    pair: [u64; 2],
    missing: Vec<usize>,
    /// The address of the first node.
    host: &'static str,
    /// Makes its communicators and processes unique.
    salt: usize,
    /// The number of nodes that text gives.
    nodes: usize,
    manner: Manner,
    polls: u32,
    /// Mistakes of the poller in the protocol.
    violations: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Manner {
    Good,
    /// Reads the request and never answers.
    Silent,
    /// A program that is not RAS.
    Stranger,
    Cut,
    Endless,
}

struct Fake {
    address: String,
    job: Arc<Mutex<FakeJob>>,
}

impl Fake {
    fn start(json: bool) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), json)
    }

    fn on(listener: TcpListener, json: bool) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let job = FakeJob {
            json,
            counts: [100; 8],
            pair: [7; 2],
            missing: vec![],
            host: "127.0.0.1",
            salt: 0,
            nodes: 2,
            manner: Manner::Good,
            polls: 0,
            violations: vec![],
        };
        let job = Arc::new(Mutex::new(job));
        let its = Arc::clone(&job);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let its = Arc::clone(&its);
                std::thread::spawn(move || serve(stream, &its));
            }
        });
        Self { address, job }
    }

    fn set(&self, change: impl FnOnce(&mut FakeJob)) {
        change(&mut self.job.locked());
    }
}

/// The protocol in its prescribed order.
fn serve(mut stream: TcpStream, job: &Mutex<FakeJob>) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let manner = job.locked().manner;
    let mut json = false;
    let mut greeted = false;
    while let Some(Ok(line)) = lines.next() {
        if manner == Manner::Stranger {
            return stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").ok();
        }
        let words: Vec<&str> = line.split(' ').collect();
        let wrong = |what: &str| job.locked().violations.push(format!("{what}: {line:?}"));
        if !greeted && words[0] != "CLIENT" {
            wrong("not greeted");
        }
        let answer = match words[..] {
            ["CLIENT", "PROTOCOL", version] if version.parse::<u32>().is_ok() => {
                greeted = true;
                "SERVER PROTOCOL 2\n".to_owned()
            }
            ["TIMEOUT", seconds] if seconds.parse::<f64>().is_ok_and(|s| s >= 1.0) => "OK\n".into(),
            ["SET", "FORMAT", "json"] => {
                json = job.locked().json;
                if json { "OK\n".into() } else { format!("ERROR: Unknown command {line}\n") }
            }
            ["STATUS"] if json => job.locked().answer_json(),
            ["VERBOSE", "STATUS"] if !json => job.locked().answer_text(),
            _ => {
                wrong("not a command here");
                return None;
            }
        };
        let last = line.ends_with("STATUS");
        if last {
            job.locked().polls += 1;
        }
        match manner {
            Manner::Silent if last => {
                // The server waits until the poller gives up.
                while lines.next().is_some() {}
                return None;
            }
            Manner::Cut if last => return stream.write_all(&answer.as_bytes()[..answer.len() / 2]).ok(),
            Manner::Endless if last => {
                while stream.write_all(&[b' '; 8192]).is_ok() {}
                return None;
            }
            _ => stream.write_all(answer.as_bytes()).ok()?,
        }
        if last {
            return None;
        }
    }
    None
}

impl FakeJob {
    fn place(&self, rank: usize) -> (&'static str, usize, usize) {
        (if rank < 4 { self.host } else { "192.0.2.9" }, 1000 * (1 + self.salt) + rank, rank % 4)
    }

    fn answer_json(&self) -> String {
        let rank = |rank: usize, all_reduce: u64| {
            let (host, pid, gpu) = self.place(rank);
            serde_json::json!({
                "rank": rank, "host": host, "pid": pid, "cuda_dev": gpu, "nvml_dev": gpu,
                "status": {"init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false, "abort_flag": false},
                "collective_counts": {"Broadcast": 3, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": all_reduce},
            })
        };
        let missing = |rank: usize| {
            let (host, pid, gpu) = self.place(rank);
            serde_json::json!({
                "rank": rank, "host": host, "pid": pid, "cuda_dev": gpu, "nvml_dev": gpu,
                "status": {"unresponsive": true, "considered_dead": false},
            })
        };
        let here = (0..8).filter(|r| !self.missing.contains(r));
        let world: Vec<_> = here.map(|r| rank(r, self.counts[r])).collect();
        let gone: Vec<_> = self.missing.iter().map(|r| missing(*r)).collect();
        let pair: Vec<_> = (0..2).map(|r| rank(r, self.pair[r])).collect();
        let status = serde_json::json!({
            "nccl_version": "2.29.1", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
            "timestamp": "2026-01-02 03:04:05", "communicators_count": 2,
            "communicators": [
                {"hash": format!("0x{}2b", self.salt), "secondary_hash": "0x1:0x2", "size": 2, "ranks_count": 2, "missing_ranks_count": 0, "ranks": pair, "missing_ranks": []},
                {"hash": format!("0x{}1a", self.salt), "secondary_hash": "0x1:0x1", "size": 8, "ranks_count": world.len(), "missing_ranks_count": gone.len(), "ranks": world, "missing_ranks": gone},
            ],
            "ras": {"collection_time_sec": 0.012, "timeouts_count": self.missing.len()},
        });
        serde_json::to_string_pretty(&status).unwrap()
    }

    fn answer_text(&self) -> String {
        let most = *self.counts.iter().max().unwrap();
        let behind: Vec<usize> = (0..8).filter(|r| self.counts[*r] < most).collect();
        let verdict = if behind.is_empty() { "OK" } else { "MISMATCH" };
        let nodes = self.nodes;
        let mut text = format!(
            "NCCL version 2.26.2 compiled with CUDA 12.8\nCUDA runtime version 12080, driver version 12080\n\nJob summary\n===========\n\n\
            \x20 Nodes  Processes         GPUs  Processes     GPUs\n(total)   per node  per process    (total)  (total)\n\
            \x20     {nodes}          4            1          8        8\n\nCommunicators... (0.01s)\n=============\n\n\
            Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    #  in group  per comm  per node  per comm  in group\n\
            \x20   0         1         2         4         8         8   RUNNING  {verdict}\n\
            \x20   1         1         1         2         2         2   RUNNING      OK\n\nErrors\n======\n\nWarnings\n========\n\n"
        );
        if let [rank] = self.missing[..] {
            writeln!(text, "#0-0 ({}1a) INCOMPLETE\n  Missing communicator data from 1 rank", self.salt)
                .unwrap();
            writeln!(text, "  The missing rank: {rank}\n").unwrap();
        }
        if let [first, ..] = behind[..] {
            let count = self.counts[first];
            writeln!(text, "#0-0 ({}1a) MISMATCH", self.salt).unwrap();
            text += "  Communicator ranks have different AllReduce operation counts\n";
            writeln!(text, "  {} ranks have launched up to operation {most}", 8 - behind.len()).unwrap();
            if behind.len() > 1 {
                writeln!(text, "  {} ranks have launched up to operation {count}", behind.len()).unwrap();
            }
            for rank in &behind {
                let (host, pid, gpu) = self.place(*rank);
                let what = if behind.len() > 1 {
                    String::new()
                } else {
                    format!(" has launched up to operation {count}")
                };
                writeln!(text, "  Rank {rank}{what} -- GPU {gpu} managed by process {pid} on node {host}")
                    .unwrap();
            }
        }
        text
    }
}

struct Poller {
    fake: Fake,
    bench: testing::Bench,
    reader: RasReader,
    start: Instant,
}

impl Poller {
    fn new(json: bool) -> Self {
        let fake = Fake::start(json);
        let config =
            Config { addresses: vec![fake.address.clone()], timeout: Period::secs(1), ..Config::default() };
        let dir = Roots { procfs: "/not/there".into(), ..Roots::default() };
        Self { fake, bench: testing::Bench::new(dir), reader: RasReader::new(&config), start: Instant::now() }
    }

    /// The samples and events at this second.
    fn at(&mut self, seconds: u64) -> (Samples, Vec<Event>) {
        let address = self.fake.address.clone();
        let target = Target { label: address.clone(), address: address.clone(), namespace: None };
        self.reader.poll(&self.bench.context(), &target, self.start + Duration::from_secs(seconds));
        let page = self.reader.places.get(&address).map(|place| place.samples.clone()).unwrap_or_default();
        (page, self.bench.published())
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.fake.job.locked().violations, Vec::<String>::new());
        }
    }
}

#[test]
fn a_job_that_hangs_and_the_rank_that_did_not_join() {
    for json in [true, false] {
        let mut poller = Poller::new(json);
        // Ranks are apart at every poll but move, so the job trains.
        for i in 0..15u64 {
            poller
                .fake
                .set(|job| job.counts = std::array::from_fn(|rank| 200 + i * 50 - u64::from(rank == 5)));
            let (page, published) = poller.at(i * 10);
            assert!(published.is_empty(), "{published:?}");
            assert_eq!(page.rows(&LAGGING).next().unwrap().value, 1.0);
            assert_eq!(page.rows(&STUCK).next().unwrap().value, 0.0);
        }
        let mut published = Vec::new();
        for i in 15..27u64 {
            published = poller.at(i * 10).1;
            // Nothing has moved since the poll at 140 s.
            assert_eq!(!published.is_empty(), i == 26, "{i}: {published:?}");
        }
        let event = &published[0];
        let text = "NCCL hangs: nothing moved for 120 s, and 1 rank has not joined AllReduce 900 of a communicator of 8 \
            (rank 5 on 192.0.2.9, GPU 1, process 1005)";
        assert_eq!(event.text.as_deref(), Some(text));
        assert_eq!((event.kind, event.name.as_deref(), event.code), (Kind::Hw, Some("ras_stuck"), Some(1)));
        assert_eq!(event.extra["ranks"], Value::List(vec![Value::Number(5.0)]));
        assert_eq!(event.extra["collective"], Value::Text("AllReduce".into()));
        let (page, _) = poller.at(270);
        let address = poller.fake.address.clone();
        let labels: &[&str] = &[&address];
        for (family, want) in [
            (&STUCK, 1.0),
            (&STUCK_RANKS, 1.0),
            (&STUCK_SECONDS, 130.0),
            (&RANKS, 8.0),
            (&COMMUNICATORS, 2.0),
        ] {
            assert_eq!(page.get(family, labels), Some(want), "{}", family.name);
        }
        assert_eq!(page.get(&LAUNCHED, &[&address, "AllReduce", "last"]), Some(899.0));
        let (version, format) = if json { ("2.29.1", "json") } else { ("2.26.2", "text") };
        assert_eq!(page.get(&INFO, &[&address, version, format]), Some(1.0));
        poller.fake.set(|job| job.counts = [901; 8]);
        // Text does not identify the job of an answer.
        let end = if json { 280 } else { 400 };
        for seconds in (280..end).step_by(10) {
            assert!(poller.at(seconds).1.is_empty());
        }
        let (page, published) = poller.at(end);
        assert_eq!((published[0].code, page.get(&STUCK, labels)), (Some(0), Some(0.0)));
    }
}

/// Two jobs of a user share the address, and the kernel gives polls to either. `alike` means that
/// text cannot distinguish them.
fn a_hang_beside_another_job(json: bool, alike: bool) {
    let mut poller = Poller::new(json);
    poller.fake.set(|job| job.counts[2] = 99);
    let hangs = poller.fake.job.locked().clone();
    let works = FakeJob { salt: 1, nodes: if alike { 2 } else { 3 }, counts: [7; 8], ..hangs.clone() };
    let address = poller.fake.address.clone();
    let mut seen = BTreeSet::new();
    let mut published = Vec::new();
    for i in 0..30u64 {
        let mut next =
            if [0, 1, 4, 6, 9, 13, 15, 18, 20, 21, 25, 28].contains(&i) { &hangs } else { &works }.clone();
        if next.salt == 1 {
            next.counts = [100 + i; 8];
        }
        poller.fake.set(|job| *job = next);
        let (page, more) = poller.at(i * 10);
        published.extend(more);
        if i >= 2 && (json || !alike) {
            let values = [&COMMUNICATORS, &RANKS, &LAGGING, &MISSING].map(|f| page.get(f, &[&address]));
            seen.insert(format!("{values:?}"));
        }
    }
    let [event] = &published[..] else { panic!("{published:?}") };
    assert_eq!((event.code, &event.extra["ranks"]), (Some(1), &Value::List(vec![Value::Number(2.0)])));
    assert!(seen.len() <= 1, "the page goes to and fro: {seen:?}");
    // The job that hung is gone, and the other one continues.
    for i in 30..60u64 {
        poller.fake.set(|job| *job = FakeJob { counts: [200 + i; 8], ..works.clone() });
        published.extend(poller.at(i * 10).1);
    }
    assert_eq!(published.iter().map(|e| e.code).collect::<Vec<_>>(), [Some(1), Some(0)]);
}

#[test]
fn a_hang_is_found_beside_another_job_of_the_same_user() {
    for (json, alike) in [(true, true), (false, false), (false, true)] {
        a_hang_beside_another_job(json, alike);
    }
}

#[test]
fn a_rank_that_answers_now_and_then_does_not_hang() {
    for json in [true, false] {
        let mut poller = Poller::new(json);
        for i in 0..40u64 {
            poller.fake.set(|job| {
                job.counts = [100 + i; 8];
                job.missing = if i % 2 == 0 { vec![5] } else { vec![] };
            });
            assert!(poller.at(i * 10).1.is_empty(), "{i}");
        }
    }
}

#[test]
fn a_job_that_another_node_leads_does_not_take_this_one_off() {
    let mut poller = Poller::new(true);
    let ours = poller.fake.job.locked().clone();
    let theirs = FakeJob { salt: 1, host: "192.0.2.8", ..ours.clone() };
    for i in 0..20u64 {
        poller.fake.set(|job| {
            *job = FakeJob { polls: job.polls, ..if i % 2 == 0 { ours.clone() } else { theirs.clone() } }
        });
        poller.at(i * 10);
    }
    assert_eq!(poller.fake.job.locked().polls, 20);
    let page = poller.bench.collect(&mut poller.reader);
    assert_eq!(page.rows(&POLLING).next().map(|r| r.value), Some(1.0));
}

#[test]
fn a_rank_that_is_busy_in_another_communicator_does_not_hang() {
    let mut poller = Poller::new(true);
    for i in 0..20u64 {
        poller.fake.set(|job| (job.counts[0], job.pair) = (99, [i, i]));
        assert!(poller.at(i * 10).1.is_empty(), "rank 0 lags, and works elsewhere");
    }
    for i in 20..31u64 {
        assert!(poller.at(i * 10).1.is_empty());
    }
    let published = poller.at(310).1;
    assert!(published[0].text.as_deref().unwrap().contains("rank 0 on 127.0.0.1"), "{published:?}");
}

#[test]
fn ranks_that_do_not_answer_are_named() {
    let mut poller = Poller::new(true);
    poller.fake.set(|job| job.missing = vec![2, 6]);
    for i in 0..12u64 {
        assert!(hangs(poller.at(i * 10).1).is_empty());
    }
    let (page, published) = poller.at(120);
    let published = hangs(published);
    let text = published[0].text.as_deref().unwrap();
    assert!(text.contains("2 ranks have stopped answering in a communicator of 8 (rank 2"), "{text}");
    assert_eq!(page.rows(&MISSING).next().unwrap().value, 2.0);
}

/// The conditions among these events.
fn hangs(mut events: Vec<Event>) -> Vec<Event> {
    events.retain(|e| e.kind == Kind::Hw);
    events
}

/// Any user of the node may listen at the address of RAS.
#[test]
fn an_answer_of_a_user_is_about_the_runs_of_that_user() {
    let mut poller = Poller::new(true);
    for (uid, run) in [(4242, "theirs"), (4243, "hers")] {
        let peer = Origin::Peer(Peer { connection: 1, pid: Some(uid), uid });
        poller.bench.hub.publish(peer, Event::step(run, 1));
    }
    poller.bench.published();
    poller.fake.set(|job| job.missing = vec![2]);
    let (address, start) = (poller.fake.address.clone(), poller.start);
    let answers = |poller: &mut Poller, principal: Principal, seconds: u64| {
        let polled = client::poll(
            &Roots::default(),
            &places::resolve(&address),
            Duration::from_secs(1),
            Some(principal),
        );
        let answer = polled.unwrap();
        let now = start + Duration::from_secs(seconds);
        let target = Target { label: address.clone(), address: address.clone(), namespace: None };
        poller.reader.answered(&poller.bench.context(), &target, answer, now);
        hangs(poller.bench.published())
    };
    for i in 0..12 {
        assert!(answers(&mut poller, Principal::User(4242), i * 10).is_empty());
        assert!(answers(&mut poller, Principal::Unknown, i * 10).is_empty());
    }
    let published = answers(&mut poller, Principal::User(4242), 120);
    assert_eq!(published.len(), 1, "{published:?}");
    assert_eq!(published[0].extra["runs"], Value::List(vec![Value::Text("theirs".into())]));
    assert_eq!(published[0].extra["key"], Value::Text(format!("{address} of uid 4242")));
    assert!(answers(&mut poller, Principal::Unknown, 130).is_empty(), "it is unknown whose answer that is");
    let own = published;
    let mut published = Vec::new();
    for i in 14..27 {
        published.extend(answers(&mut poller, Principal::User(0), i * 10));
    }
    let [over, roots] = &published[..] else { panic!("{published:?}") };
    assert_eq!(
        (over.code, &over.extra["key"]),
        (Some(0), &own[0].extra["key"]),
        "it does not answer any more"
    );
    assert_eq!(roots.extra["key"], Value::Text(address));
    assert_eq!(roots.extra.get("runs"), None, "root may answer for every run");
}

#[test]
fn answers_without_measure_are_kept_small() {
    let long = format!(r#"{{"nccl_version":"{}","communicators":[]}}"#, "x".repeat(100_000));
    let error = json::parse(long.as_bytes()).unwrap_err();
    assert_eq!(error.io_error_kind(), Some(std::io::ErrorKind::FileTooLarge));
    let counts: Vec<_> = (0..1000).map(|i| format!(r#""c{i}":{i}"#)).collect();
    let ranks: Vec<_> = (0..100)
        .map(|rank| format!(r#"{{"rank":{rank},"collective_counts":{{{}}}}}"#, counts.join(",")))
        .collect();
    let answer = format!(
        r#"{{"nccl_version":"2","communicators":[{{"hash":"a","size":100,"ranks":[{},{{"rank":100}}]}}]}}"#,
        ranks.join(",")
    );
    let status = json::parse(answer.as_bytes()).unwrap();
    let names = status.communicators[0].spreads.values().filter(|s| !s.behind.named.is_empty()).count();
    assert_eq!((status.communicators[0].spreads.len(), names), (status::MAX_COLLECTIVES, 1));
    let many = format!(
        r#"{{"nccl_version":"2","communicators":[{}]}}"#,
        vec![r#"{"hash":"a","size":1,"ranks":[]}"#; status::MAX_COMMUNICATORS + 1].join(",")
    );
    assert!(json::parse(many.as_bytes()).unwrap_err().to_string().contains("too long"));
    let mut text = "Communicators... (1s)\n\n#0-0 (a) MISMATCH\n".to_owned();
    for i in 0..1000 {
        writeln!(text, "  Communicator ranks have different C{i} operation counts").unwrap();
        text += "  2 ranks have launched up to operation 5\n  1 ranks have launched up to operation 4\n";
    }
    let status = text::parse(text.as_bytes()).unwrap().unwrap();
    assert_eq!(status.communicators[0].spreads.len(), status::MAX_COLLECTIVES);
    assert!(text::parse("x".repeat(100_000).as_bytes()).is_err(), "a line is too long");
}

#[test]
fn jobs_that_weigh_too_much_make_room_for_the_next() {
    let heavy = |hash: usize| {
        let one = |i: usize| format!(r#"{{"hash":"{hash}-{i}","size":1,"ranks":[]}}"#);
        let all: Vec<_> = (0..8000).map(one).collect();
        json::parse(format!(r#"{{"nccl_version":"2","communicators":[{}]}}"#, all.join(",")).as_bytes())
            .unwrap()
    };
    let (mut jobs, now) = (Jobs::default(), Instant::now());
    for i in 0..12 {
        jobs.take((heavy(i), Principal::Exporter), true, now + Duration::from_secs(i as u64), Duration::MAX);
    }
    assert_eq!(jobs.iter().count(), 8, "of 8,000 communicators each");
    assert!(jobs.iter().any(|job| job.status.communicators[0].id.starts_with("11-")));
}

#[test]
fn one_node_of_a_job_asks_at_the_full_rate() {
    let mut poller = Poller::new(true);
    poller.fake.set(|job| job.host = "192.0.2.8");
    for i in 0..29u64 {
        poller.at(i * 10);
    }
    assert_eq!(poller.fake.job.locked().polls, 1, "the first rank is elsewhere");
    poller.fake.set(|job| job.host = "127.0.0.1");
    for i in 30..40u64 {
        poller.at(i * 10);
    }
    assert_eq!(poller.fake.job.locked().polls, 11, "it has come here");
}

#[test]
fn answers_that_are_none_cost_a_count_and_some_time() {
    let mut poller = Poller::new(true);
    let mut seconds = 0;
    for (manner, reason) in [
        (Manner::Stranger, "protocol"),
        (Manner::Cut, "protocol"),
        (Manner::Silent, "timeout"),
        (Manner::Endless, "too_long"),
    ] {
        poller.fake.set(|job| job.manner = manner);
        let before = poller.reader.failures[reason];
        let began = Instant::now();
        seconds += 100;
        poller.at(seconds);
        assert_eq!(poller.reader.failures[reason], before + 1, "{manner:?}: {:?}", poller.reader.failures);
        assert!(began.elapsed() < Duration::from_secs(20));
        let place = &poller.reader.places[&poller.fake.address];
        assert!(!place.up);
    }
    poller.fake.set(|job| job.manner = Manner::Good);
    assert!(!poller.at(900).0.is_empty());
    let page = poller.bench.collect(&mut poller.reader);
    assert_eq!(page.get(&UP, &[&poller.fake.address]), Some(1.0));
}

#[test]
fn no_server_listens() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let config = Config { addresses: vec![free], ..Config::default() };
    let bench = testing::Bench::new(Roots { procfs: "/not/there".into(), ..Roots::default() });
    let mut reader = RasReader::new(&config);
    assert!(matches!(reader.probe(&bench.context()), Ok(Support::Unsupported(_))));
    let page = bench.collect(&mut reader);
    assert_eq!((page.rows(&UP).count(), page.get(&FAILURES, &["timeout"])), (0, Some(0.0)));
}

/// Counts, ranks and processes are those of the examples in NCCL's user guide (Apache-2.0).
#[test]
fn text_of_ncclras_as_it_is_documented() {
    let text = "Communicators... (2.05s)\n=============\n\n\
        Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    #  in group  per comm  per node  per comm  in group\n\
        \x20   0         1         4       7-8        32        32   RUNNING  INCOMPLETE\n\nErrors\n======\n\n\
        DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n  Process 3487984 on node 172.16.64.213 managing GPU 5\n\n\
        #0-0 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from 1 rank\n  The missing rank: 21\n\nWarnings\n========\n\n\
        TIMEOUT\n  Encountered 2 communication timeouts while gathering communicator data\n\n\
        #0-0 (cf264af53edbe986) MISMATCH\n  Communicator ranks have different collective operation counts\n\
        \x20 26 ranks have launched up to operation 6650\n  5 ranks have launched up to operation 6649\n\
        \x20 Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210\n\
        \x20 Rank 2 -- GPU 1 (NVML 2) managed by process 483074 on node 172.16.64.210\n";
    let status = text::parse(text.as_bytes()).unwrap().unwrap();
    assert_eq!((status.seconds, status.timeouts), (Some(2.05), 2));
    let [communicator] = &status.communicators[..] else { panic!("{status:?}") };
    assert_eq!((communicator.size, communicator.dead, communicator.missing.count), (32, 1, 1));
    assert_eq!(communicator.missing.named[0].rank, 21);
    let (name, spread) = communicator.apart().unwrap();
    assert_eq!((name, spread.most, spread.least, spread.behind.count), ("any", 6650, 6649, 5));
    let gpus: Vec<_> = spread.behind.named.iter().map(|m| (m.rank, m.gpu)).collect();
    assert_eq!(gpus, [(0, Some(0)), (2, Some(2))]);
    assert_eq!(text::parse(&b"not a status"[..]).unwrap(), None);
}

proptest::proptest! {
    #[test]
    fn never_panics(bytes: Vec<u8>, at in 0usize..3000, with: u8) {
        fuzz(&bytes);
        let fake = FakeJob { json: true, counts: [1, 2, 3, 4, 5, 6, 7, 8], pair: [1, 2], missing: vec![3], host: "h", salt: 0, nodes: 2,
            manner: Manner::Good, polls: 0, violations: vec![] };
        for text in [fake.answer_json(), fake.answer_text()] {
            let mut bytes = text.into_bytes();
            let at = at % bytes.len();
            bytes[at] = with;
            fuzz(&bytes);
        }
    }
}
