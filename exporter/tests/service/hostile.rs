//! Attacks on the exporter from the node and from the network, and their largest permitted cost: an
//! unrelated run stays on the page, and memory stays below the bound of docs/security.md.

use std::io::{Read as _, Seek as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::support::{Exporter, PATIENCE, eventually, is_optimized};

/// Of the exporter at its worst, under every attack (docs/security.md).
const MAX_MEMORY_KIB: u64 = 64 << 10;
/// How old a genuine step may be on the page.
const MAX_AGE: Duration = Duration::from_secs(2);

const QUICK: &str = "exposition: {interval: 20ms}\n";

/// The most memory that the exporter ever had, in KiB.
///
/// A build without optimisation maps 20 to 40 MiB of its own code (`RssFile`), and more with every
/// feature; it never lets go of any. 16 MiB stand in its place. An optimized build is held to the
/// whole: by `cargo verify memory`, which runs these tests again, and by `tests/hostile`.
fn peak_kib(exporter: &Exporter) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", exporter.pid())).unwrap();
    let kib = |key: &str| -> u64 {
        let line = status.lines().find_map(|l| l.strip_prefix(key)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let peak = kib("VmHWM:");
    if is_optimized() { peak } else { peak.saturating_sub(kib("RssFile:")) + (16 << 10) }
}

/// A trainer that has nothing to do with the attack sends a step; how long until it is on the page.
fn genuine_step(exporter: &Exporter, step: u64) -> Duration {
    let sent = Instant::now();
    let event = format!(r#"{{"v":1,"k":"step","run":"genuine","rank":0,"step":{step},"m":{{"loss":2.5}}}}"#);
    exporter.connect().send(&event);
    exporter.wait_for(r#"train_step{run="genuine"}"#, step as f64);
    sent.elapsed()
}

fn is_unharmed(exporter: &Exporter, step: u64) {
    let age = genuine_step(exporter, step);
    assert!(age < MAX_AGE, "a genuine step took {age:?}");
    let peak = peak_kib(exporter);
    assert!(peak < MAX_MEMORY_KIB, "the exporter took {peak} KiB");
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

fn varint(mut n: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

fn message(field: u8, bytes: &[u8]) -> Vec<u8> {
    [&[field << 3 | 2][..], &varint(bytes.len()), bytes].concat()
}

/// Posts and returns the status.
fn post(exporter: &Exporter, path: &str, headers: &str, body: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(exporter.addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_bomb_of_empty_metrics_is_refused_before_it_takes_memory() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), QUICK);
    let protobuf = "content-type: application/x-protobuf\r\ncontent-encoding: gzip\r\n";
    let json = "content-type: application/json\r\ncontent-encoding: gzip\r\n";
    // Eight million in 16 MB, which gzip makes 16 KB of; and as many as fit into what is taken.
    for metrics in [8_000_000, 2_000_000] {
        let bomb = gzip(&message(1, &message(2, &[0x12, 0x00].repeat(metrics))));
        assert!(bomb.len() < 32 << 10);
        assert_eq!(post(&exporter, "/v1/metrics", protobuf, &bomb), 413);
    }
    let points = message(1, &message(2, &message(2, &message(5, &[0x0a, 0x00].repeat(2_000_000)))));
    assert_eq!(post(&exporter, "/v1/metrics", protobuf, &gzip(&points)), 413);
    let list = format!(r#"{{"resourceMetrics":[{}{{}}]}}"#, "{},".repeat(1_000_000));
    assert_eq!(post(&exporter, "/v1/metrics", json, &gzip(list.as_bytes())), 413);
    let spans = message(1, &message(2, &[0x12, 0x00].repeat(2_000_000)));
    assert_eq!(post(&exporter, "/v1/traces", protobuf, &gzip(&spans)), 413);
    is_unharmed(&exporter, 1);
    let page = exporter.page();
    let dropped = page.get(r#"train_source_dropped_total{source="otlp",kind="otlp",reason="too_large"}"#);
    assert_eq!(dropped, Some(5.0));
}

#[test]
fn bodies_held_open_are_bounded_together() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), QUICK);
    let mut held = Vec::new();
    for (path, size) in [("/v1/metrics", 4 << 20), ("/v1/events", 1 << 20)] {
        let part = vec![b' '; size - 1];
        for _ in 0..60 {
            let mut stream = TcpStream::connect(exporter.addr).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n\r\n"
            );
            // Who is refused is not read to the end.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&part));
            held.push(stream);
        }
    }
    is_unharmed(&exporter, 1);
    assert_eq!(exporter.post(r#"{"v":1,"k":"step","run":"posted","step":1,"m":{"loss":1.0}}"#).status, 202);
    assert!(exporter.page().get("stepwatch_exporter_http_bodies_refused_total").unwrap() > 50.0);
}

#[test]
fn idle_connections_keep_no_probe_out() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), QUICK);
    let mut idle: Vec<_> = (0..600).map(|_| TcpStream::connect(exporter.addr).unwrap()).collect();
    for place in idle.iter_mut().take(100) {
        assert_eq!(exporter.request("GET", "/-/healthy", "").status, 200);
        *place = TcpStream::connect(exporter.addr).unwrap();
    }
    is_unharmed(&exporter, 1);
}

/// More requests than there are connections, of each the head alone or all but the last byte.
#[test]
fn requests_that_do_not_end_keep_no_other_out() {
    for (path, sent, length) in [("/v1/events", 0, 1), ("/v1/metrics", (64 << 10) - 1, 64 << 10)] {
        let dir = tempfile::tempdir().unwrap();
        let exporter = Exporter::start(dir.path(), QUICK);
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        let begin = || {
            let mut stream = TcpStream::connect(exporter.addr).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            // Who is closed for another is not read to the end.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&vec![b' '; sent]));
            stream
        };
        let mut held: Vec<_> = (0..600).map(|_| begin()).collect();
        for (turn, place) in held.iter_mut().enumerate().take(50) {
            assert_eq!(exporter.request("GET", "/-/healthy", "").status, 200, "{path}");
            let event = format!(r#"{{"v":1,"k":"step","run":"posted","step":{turn},"m":{{"loss":1.0}}}}"#);
            assert_eq!(exporter.post(&event).status, 202, "{path}");
            *place = begin();
        }
        is_unharmed(&exporter, 1);
    }
}

#[test]
fn strangers_who_follow_the_stream_leave_room() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), QUICK);
    let _strangers: Vec<_> = (0..8).map(|_| exporter.stream(None)).collect();
    exporter.wait_for("stepwatch_exporter_stream_readers", 8.0);
    let refused = exporter.request("GET", "/v1/stream", "");
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("max_readers_per_address"), "{}", refused.text());
    is_unharmed(&exporter, 1);
}

#[test]
fn pages_of_other_sites_bring_nothing_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), QUICK);
    let event = r#"{"v":1,"k":"step","run":"forged","step":1,"m":{"loss":1.0}}"#;
    for path in ["/v1/events", "/-/reload", "/-/nvml/release"] {
        let foreign = "origin: https://evil.example\r\ncontent-type: text/plain\r\n";
        assert_eq!(exporter.request_with("POST", path, foreign, event).status, 403, "{path}");
        let rebound = "user-agent: Mozilla/5.0\r\norigin: http://x\r\n";
        assert_eq!(exporter.request_with("POST", path, rebound, event).status, 403, "{path}");
    }
    let reading = exporter.request_with("GET", "/metrics", "user-agent: Mozilla/5.0\r\n", "");
    assert_eq!(reading.status, 403, "a page whose name was made to lead here reads nothing");
    assert_eq!(exporter.post(event).status, 202, "a program comes by any name");
    exporter.wait_for("stepwatch_exporter_http_requests_foreign_total", 7.0);
}

#[test]
fn files_with_many_series_are_refused_before_they_take_memory() {
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("textfile");
    std::fs::create_dir(&files).unwrap();
    for file in 0..4 {
        let lines = (0..50_000).map(|i| format!("site_metric{{file=\"{file}\",series=\"{i}\"}} 1\n"));
        std::fs::write(files.join(format!("{file}.prom")), lines.collect::<String>()).unwrap();
    }
    std::fs::write(files.join("small.prom"), "site_small 1\n").unwrap();
    let textfile = format!("collectors: {{textfile: {{directories: ['{}']}}}}\n", files.display());
    let exporter = Exporter::start(dir.path(), &format!("{QUICK}{textfile}"));
    exporter.wait_for("site_small", 1.0);
    let refused = exporter.page();
    for file in 0..4 {
        let series = format!(
            r#"stepwatch_exporter_textfile_error{{file="{}"}}"#,
            files.join(format!("{file}.prom")).display()
        );
        assert_eq!(refused.get(&series), Some(1.0), "{series}");
    }
    is_unharmed(&exporter, 1);
}

#[test]
fn runs_that_only_said_hello_make_room_for_one_that_trains() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), &format!("{QUICK}runs: {{max_runs: 4, linger: 1s}}\n"));
    let silent = exporter.connect();
    for i in 0..4 {
        silent.send(&format!(r#"{{"v":1,"k":"hello","run":"silent-{i}","rank":0}}"#));
    }
    exporter.wait_for(r#"stepwatch_exporter_ingest_events_total{via="seqpacket"}"#, 4.0);
    is_unharmed(&exporter, 1);
}

/// Opens the packet socket from a process of its own, sends `hello`, and stays until it is killed.
const NEIGHBOUR: &str = "import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
s.send(b'{\"k\":\"hello\",\"run\":\"neighbour\",\"rank\":0}')
s.send(b'{\"k\":\"step\",\"step\":7,\"m\":{\"loss\":2.5}}')
sys.stdin.read()";

#[test]
fn sockets_of_one_process_leave_room_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), QUICK);
    let _held: Vec<_> = (0..1_024).map(|_| exporter.connect()).collect();
    exporter.wait_for("stepwatch_exporter_ingest_connections", 1_024.0);
    let mut neighbour = Command::new("python3");
    neighbour.args(["-c", NEIGHBOUR]).arg(exporter.socket()).stdin(Stdio::piped());
    let mut neighbour = neighbour.spawn().unwrap();
    exporter.wait_for(r#"train_step{run="neighbour"}"#, 7.0);
    exporter.wait_for(r#"stepwatch_exporter_ingest_dropped_total{reason="share_limit"}"#, 1.0);
    neighbour.kill().unwrap();
    neighbour.wait().unwrap();
    let (_, log) = exporter.stop();
    let whose = format!("\"uid\":{},\"pid\":{}", rustix::process::getuid().as_raw(), std::process::id());
    assert!(
        log.lines().any(|l| l.contains("ingest.max_connections is reached") && l.contains(&whose)),
        "{log}"
    );
}

/// A Python program that runs until its input ends.
struct Python(Child);

impl Python {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The loss of a service, as OpenTelemetry. Its process names the run.
const FAT: &str = r#"import json, sys, urllib.request
attributes = [{"key": "service.name", "value": {"stringValue": "fat"}}]
metrics = [{"name": "loss", "gauge": {"dataPoints": [{"asDouble": 2.5}]}}]
body = {"resourceMetrics": [{"resource": {"attributes": attributes}, "scopeMetrics": [{"metrics": metrics}]}]}
request = urllib.request.Request(
    sys.argv[-1] + "/v1/metrics", json.dumps(body).encode(), {"Content-Type": "application/json"})
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).status, flush=True)
sys.stdin.read()"#;

/// A process whose command line says again and again that it is a launcher, with variables as long
/// as the kernel allows.
#[test]
fn a_process_that_wraps_itself_takes_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), QUICK);
    let script = dir.path().join("stepwatch");
    std::fs::write(&script, FAT).unwrap();
    let mut command = Command::new("python3");
    command.arg(&script).args(["run", "stepwatch"].repeat(120)).args(["run", "train.py"]);
    command.arg(format!("http://{}", exporter.addr));
    for variable in ["WANDB_NAME", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_NAME"] {
        command.env(variable, "x".repeat(120_000));
    }
    let mut process = Python::start(command.stdout(Stdio::piped()));
    let mut status = [0; 3];
    process.0.stdout.as_mut().unwrap().read_exact(&mut status).unwrap();
    assert_eq!(&status, b"200");
    eventually(|| exporter.page().0, || exporter.page().0.contains("train_loss{run=\"train"));
    is_unharmed(&exporter, 1);
}

/// Maps a file at every other page, so that the mappings do not merge.
const MAPPINGS: &str = r#"import ctypes, mmap, os, socket, sys
directory = os.path.join(os.fsencode(sys.argv[2]), b"\xff" * 250, b"\xff" * 250)
os.makedirs(directory)
file = open(os.path.join(directory, b"\xff" * 250), "w+b")
file.truncate(2 * mmap.PAGESIZE)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
for n in range(int(sys.argv[3])):
    at = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), n % 2 * mmap.PAGESIZE)
    assert at != ctypes.c_void_p(-1).value
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
s.send(b'{"k":"step","run":"mapped","step":7,"m":{"loss":2.5}}')
sys.stdin.read()"#;

#[test]
fn the_mappings_of_a_process_take_little_memory() {
    const MANY: usize = 60_000;
    let dir = tempfile::tempdir().unwrap();
    let exporter =
        Exporter::start(dir.path(), &format!("{QUICK}collectors: {{config_drift: {{interval: 50ms}}}}\n"));
    let mut command = Command::new("python3");
    command.args(["-c", MAPPINGS]).arg(exporter.socket()).arg(dir.path()).arg(MANY.to_string());
    let _process = Python::start(&mut command);
    exporter.wait_for(r#"train_step{run="mapped"}"#, 7.0);
    let is_read = || exporter.page().0.contains("config_fingerprint_info{run=\"mapped\"");
    eventually(|| exporter.page().0, is_read);
    is_unharmed(&exporter, 1);
}

/// Ranks that die without end, steps that go back, and another model each time.
#[test]
fn what_a_process_does_again_and_again_fills_no_log() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), QUICK);
    let step = |rank: u32, step: u32| {
        format!(
            r#"{{"v":1,"k":"step","run":"loud","rank":{rank},"world":64,"step":{step},"m":{{"loss":2.5}}}}"#
        )
    };
    for turn in 1..=20 {
        let packets = exporter.connect();
        for rank in 0..64 {
            packets.send(&step(rank, 2 * turn));
        }
    }
    let packets = exporter.connect();
    for turn in 0..1_000 {
        packets.send(&step(0, 100 - turn % 2 * 50));
        let layers = 1_000_000 + turn;
        packets.send(&format!(
            r#"{{"v":1,"k":"hello","run":"loud","rank":0,"model":{{"layers":{layers},"hidden":8}}}}"#
        ));
    }
    // Runs that end and begin again.
    let names: Vec<_> = (0..60).map(|n| format!("loud-{n}")).collect();
    for _ in 0..10 {
        let packets = exporter.connect();
        for name in &names {
            packets.send(&format!(r#"{{"v":1,"k":"bye","run":"{name}","rank":0,"code":0}}"#));
        }
    }
    is_unharmed(&exporter, 3);
    let (stopped, log) = exporter.stop();
    assert!(stopped, "{log}");
    let loud = log.lines().filter(|line| line.contains("loud")).count();
    assert!((300..=320).contains(&loud), "{loud} lines");
}

/// Twenty thousand logs and a hole of terabytes of one user; as root, who can give files away, a
/// genuine log of another.
#[test]
fn a_flood_of_logs_and_holes_leaves_room_for_a_log() {
    const LINE: &str = "{\"step\":5,\"loss\":2.5}\n";
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("logs");
    std::fs::create_dir(&logs).unwrap();
    for n in 0..20_000 {
        std::fs::write(logs.join(format!("{n}.jsonl")), "{}\n").unwrap();
    }
    let mut sparse = std::fs::File::create(logs.join("sparse.jsonl")).unwrap();
    sparse.set_len(4 << 40).unwrap();
    sparse.seek(std::io::SeekFrom::End(0)).unwrap();
    sparse.write_all(LINE.as_bytes()).unwrap();
    // The freshest of all: hundreds of files are written within one tick of the kernel's clock.
    sparse.set_modified(std::time::SystemTime::now() + Duration::from_secs(1)).unwrap();
    let genuine = logs.join("theirs.jsonl");
    std::fs::write(&genuine, LINE).unwrap();
    let written = std::fs::File::options().append(true).open(&genuine).unwrap();
    let age = Duration::from_mins(2);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&genuine, Some(65_534), None).unwrap();
        written.set_modified(std::time::SystemTime::now() - age).unwrap();
    } else {
        written.set_modified(std::time::SystemTime::now() + age).unwrap();
    }
    // A log that this process still wrote to would have the run of the script that started the
    // tests, if a script did.
    drop((sparse, written));
    let tail = format!("sources:\n  - tail: {{path: '{}', from: start}}\n", logs.display());
    let exporter = Exporter::start(dir.path(), &format!("{QUICK}{tail}"));
    exporter.wait_for(r#"train_step{run="sparse"}"#, 5.0);
    exporter.wait_for(r#"train_step{run="theirs"}"#, 5.0);
    let source = format!(r#"train_source_skipped_bytes_total{{source="{}",kind="tail"}}"#, logs.display());
    assert!(exporter.page().get(&source).unwrap() > (4_u64 << 40) as f64 - 1e6);
    is_unharmed(&exporter, 1);
}

/// Pieces of lines, records and rows of which the end never comes, in as many files as are
/// followed. Each kind has an exporter of its own, because a build without optimisations takes more
/// than twice the memory before anything is read.
#[test]
fn text_without_an_end_in_files_takes_little_memory() {
    const FILES: usize = 256;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for name in ["logs", "events", "tables"] {
        std::fs::create_dir(path(name)).unwrap();
    }
    let piece = format!("2026-11-27T07:52:45.118201123Z stdout P {}\n", "x".repeat(16_000)).repeat(18);
    // The length of a record of a million bytes, and its checksum.
    let mut record = [0x40, 0x42, 0x0f, 0, 0, 0, 0, 0, 0x85, 0xa0, 0x44, 0x2a].to_vec();
    record.resize(1_000_000, b'x');
    let row = format!("step,loss\n1,2.0\n2,{}", "1".repeat(5_000_000));
    for n in 0..FILES {
        std::fs::write(path("logs").join(format!("{n}.log")), &piece).unwrap();
        std::fs::write(path("events").join(format!("events.out.tfevents.{n}")), &record).unwrap();
        if n < FILES / 8 {
            let table = path("tables").join(n.to_string());
            std::fs::create_dir(&table).unwrap();
            std::fs::write(table.join("metrics.csv"), &row).unwrap();
        }
    }
    for pattern in ["logs/*.log", "events/events.out.tfevents.*", "tables/*/metrics.csv"] {
        let pattern = path(pattern).display().to_string();
        let state = dir.path().join("state").join(pattern.len().to_string());
        std::fs::create_dir_all(&state).unwrap();
        let exporter = Exporter::start(
            &state,
            &format!("{QUICK}sources:\n  - tail: {{path: '{pattern}', format: auto}}\n"),
        );
        if pattern.contains("/logs/") {
            let lost = format!(
                r#"train_source_dropped_total{{source="{pattern}",kind="tail",reason="unfinished_limit"}}"#
            );
            let given_up = || exporter.page().get(&lost).is_some_and(|lost| lost > 100.0);
            eventually(|| exporter.page().0, given_up);
        }
        for step in 1..20 {
            is_unharmed(&exporter, step);
        }
    }
}

/// The same by as many streams of a launcher.
#[test]
fn text_without_an_end_in_streams_takes_little_memory() {
    const STREAMS: usize = 256;
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), QUICK);
    let packets = exporter.connect();
    let text = "x".repeat(7_800);
    for n in 0..12 * STREAMS {
        let stream = n % STREAMS;
        packets.send(&format!(
            r#"{{"v":1,"k":"event","name":"output","run":"mine","rank":0,"stream":"s{stream}","lines":["2026-11-27T07:52:45.118201123Z stdout P {text}"]}}"#
        ));
    }
    let given_up = |exporter: &Exporter| {
        let page = exporter.page().0;
        let lost = |l: &&str| l.starts_with("train_source_dropped_total") && l.contains("unfinished_limit");
        page.lines().filter(lost).count()
    };
    eventually(|| exporter.page().0, || given_up(&exporter) > 0);
    for step in 1..20 {
        is_unharmed(&exporter, step);
    }
}

#[test]
fn descriptors_that_come_with_datagrams_stay_outside() {
    use std::io::IoSlice;
    use std::os::fd::AsFd as _;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), QUICK);
    let open = || std::fs::read_dir(format!("/proc/{}/fd", exporter.pid())).unwrap().count();
    let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
    socket.connect(exporter.socket().with_file_name("ingest.dgram")).unwrap();
    is_unharmed(&exporter, 1);
    let before = open();
    let file = std::fs::File::open("/dev/null").unwrap();
    let four = [file.as_fd(); 4];
    for _ in 0..500 {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&four)));
        // Newer kernels refuse it.
        let _ = sendmsg(&socket, &[IoSlice::new(b"{}")], &mut control, SendFlags::NOSIGNAL);
    }
    is_unharmed(&exporter, 2);
    assert!(open() < before + 50, "{} descriptors, {before} before", open());
}
