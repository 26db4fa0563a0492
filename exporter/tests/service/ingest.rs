//! Sends events to the real binary by every way in, and checks the page and the stream.
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use crate::support::{Exporter, binary};
use serde_json::Value;

fn start() -> (tempfile::TempDir, Exporter) {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), "exposition: {interval: 20ms}\n");
    (dir, exporter)
}

fn is_event(name: &str) -> impl FnMut(&Value) -> bool {
    move |r| r["k"] == "event" && r["name"] == name
}

#[test]
fn by_packet_datagram_and_http() {
    let (dir, exporter) = start();
    let packets = exporter.connect();
    packets.send(r#"{"k":"step","run":"p","rank":0,"step":1,"m":{"loss":2.5,"grad_norm":NaN}}"#);
    let datagrams = UnixDatagram::unbound().unwrap();
    datagrams
        .send_to(br#"{"k":"step","run":"d","step":2,"loss":1.5}"#, dir.path().join("ingest.dgram"))
        .unwrap();
    let answer = exporter.post(r#"{"k":"step","run":"h","step":3,"loss":0.5}"#);
    assert_eq!((answer.status, answer.json()["accepted"].clone()), (202, 1.into()));
    exporter.wait_for(r#"train_loss{run="p"}"#, 2.5);
    exporter.wait_for(r#"train_loss{run="d"}"#, 1.5);
    exporter.wait_for(r#"train_loss{run="h"}"#, 0.5);
    let page = exporter.page();
    assert_eq!(page.get(r#"train_nonfinite_total{run="p",what="grad_norm",how="value"}"#), Some(1.0));
    for via in ["seqpacket", "datagram", "http"] {
        assert_eq!(page.get(&format!(r#"stepwatch_exporter_ingest_events_total{{via="{via}"}}"#)), Some(1.0));
    }
}

#[test]
fn malformed_packets_cost_only_themselves() {
    let (_dir, exporter) = start();
    let packets = exporter.connect();
    packets.send("not json");
    packets.bytes(&[]);
    packets.bytes(&[0xff; 100]);
    packets.send(&format!(r#"{{"k":"hb","run":"r","x":"{}"}}"#, "y".repeat(9000)));
    packets.send(r#"{"k":"step","run":"r","rank":0,"step":1.5}"#);
    packets.send(r#"{"k":"step","run":"r","rank":0,"step":7,"loss":2}"#);
    exporter.wait_for(r#"train_step{run="r"}"#, 7.0);
    let page = exporter.page();
    let dropped =
        |reason| page.get(&format!(r#"stepwatch_exporter_ingest_dropped_total{{reason="{reason}"}}"#));
    assert_eq!((dropped("malformed"), dropped("oversize")), (Some(4.0), Some(1.0)));
    assert_eq!(page.get("stepwatch_exporter_ingest_connections"), Some(1.0));
}

#[test]
fn http_names_what_is_wrong_and_keeps_what_is_right() {
    let (_dir, exporter) = start();
    let body = "{\"k\":\"step\",\"run\":\"r\",\"step\":1}\n\n{\"k\":\"step\",\"run\":\"r\",\"step\":\"x\"}\n{\"k\":\"step\",\"step\":3}\n{\"k\":\"step\",\"run\":\"r\",\"step\":4}\n";
    let answer = exporter.post(body);
    assert_eq!(answer.status, 400);
    let said = answer.json();
    assert_eq!((said["accepted"].clone(), said["rejected"].clone()), (2.into(), 2.into()));
    assert_eq!(said["error"], "line 3: field \"step\": must be an integer of at least 0, got \"x\"");
    assert_eq!(said["errors"][1]["line"], 4);
    assert_eq!(said["errors"][1]["field"], "run");
    exporter.wait_for(r#"train_step{run="r"}"#, 4.0);
    // One event over several lines is one event.
    assert_eq!(exporter.post("{\n  \"k\": \"hb\",\n  \"run\": \"r\"\n}").status, 202);
    let one = exporter.post("{\n  \"k\": \"step\",\n  \"run\": \"r\"\n}");
    assert_eq!((one.status, one.json()["errors"][0]["field"].clone()), (400, "step".into()));
    assert_eq!(exporter.post("\n").status, 204);
    assert_eq!(exporter.request_with("POST", "/v1/events", "content-encoding: gzip\r\n", "x").status, 415);
    for megabytes in [2, 3] {
        let big = exporter.post(&"x".repeat(megabytes << 20));
        assert!(big.status == 413 && big.json()["error"].as_str().unwrap().contains("at most 1048576"));
    }
    exporter.wait_for(r#"stepwatch_exporter_ingest_dropped_total{reason="body_limit"}"#, 2.0);
}

/// A separate process that sends these packets and then ends when asked to.
fn trainer(exporter: &Exporter, packets: &[&str]) -> std::process::Child {
    let script = "import os, socket, sys\n\
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
        s.connect(sys.argv[1])\n\
        [s.send(p.encode()) for p in sys.argv[2:]]\n\
        print('sent', flush=True)\n\
        sys.stdin.read()\n";
    let mut child = Command::new("python3")
        .arg("-c")
        .arg(script)
        .arg(exporter.socket())
        .args(packets)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut said)
        .unwrap();
    assert_eq!(said, "sent\n");
    child
}

#[test]
fn a_killed_rank_is_dead_at_once_and_one_that_says_goodbye_is_not() {
    let (_dir, exporter) = start();
    let mut stream = exporter.stream(None);
    let mut polite = trainer(
        &exporter,
        &[r#"{"k":"step","run":"r","rank":1,"step":40}"#, r#"{"k":"bye","run":"r","rank":1,"code":0}"#],
    );
    let mut killed =
        trainer(&exporter, &[r#"{"k":"hello","run":"r","rank":3,"world":4}"#, r#"{"k":"step","step":41}"#]);
    exporter.wait_for(r#"train_rank_up{run="r",rank="3"}"#, 1.0);
    assert!(exporter.page().get(r#"job_process_threads{run="r",rank="3"}"#).is_none_or(|n| n >= 1.0));
    polite.kill().unwrap();
    polite.wait().unwrap();
    killed.kill().unwrap();
    let pid = killed.id();
    let dead = stream.find(is_event("rank_dead"));
    assert_eq!(
        (dead["run"].clone(), dead["rank"].clone(), dead["step"].clone()),
        ("r".into(), 3.into(), 41.into())
    );
    assert_eq!(
        (dead["pid"].clone(), dead["node"].clone(), dead["code"].clone()),
        (pid.into(), "n1".into(), Value::Null)
    );
    assert_eq!(dead["process"], "gone");
    killed.wait().unwrap();
    exporter.wait_for(r#"train_rank_up{run="r",rank="3"}"#, 0.0);
    exporter.wait_for(r#"train_rank_deaths_total{run="r"}"#, 1.0);
}

#[test]
fn the_exporters_own_end_kills_nobody_and_forgets_no_attempt() {
    let (dir, exporter) = start();
    let packets = exporter.connect();
    for step in [10, 11, 5, 6] {
        packets.send(&format!(r#"{{"k":"step","run":"r","rank":0,"step":{step}}}"#));
    }
    exporter.wait_for(r#"train_attempt{run="r"}"#, 1.0);
    let (ok, log) = exporter.stop();
    assert!(ok && !log.contains("rank dead"), "{log}");
    let exporter = Exporter::start(dir.path(), "exposition: {interval: 20ms}\n");
    let packets = exporter.connect();
    packets.send(r#"{"k":"step","run":"r","rank":0,"step":7}"#);
    exporter.wait_for(r#"train_attempt{run="r"}"#, 1.0);
    packets.send(r#"{"k":"step","run":"r","rank":0,"step":5}"#);
    exporter.wait_for(r#"train_attempt{run="r"}"#, 2.0);
    let mut stream = exporter.stream(None);
    // The stream has the first life as well.
    let froms = [(); 2]
        .map(|()| stream.find(is_event("restart")))
        .map(|r| (r["attempt"].clone(), r["from_step"].clone()));
    assert_eq!(froms, [(1.into(), 11.into()), (2.into(), 7.into())]);
}

#[test]
fn connections_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), "exposition: {interval: 20ms}\nruns: {max_runs: 2}\n");
    let packets = exporter.connect();
    for rank in 0..70 {
        packets.send(&format!(r#"{{"k":"hb","run":"r","rank":{rank}}}"#));
    }
    for run in ["a", "b"] {
        exporter.post(&format!(r#"{{"k":"hb","run":"{run}"}}"#));
    }
    exporter.wait_for(r#"stepwatch_exporter_ingest_dropped_total{reason="identities_limit"}"#, 6.0);
    exporter.wait_for(r#"stepwatch_exporter_ingest_dropped_total{reason="runs_limit"}"#, 1.0);
}

#[test]
fn emit_from_a_shell() {
    let (_dir, exporter) = start();
    let emit = |args: &[&str]| {
        let mut command = binary();
        command.env("STEPWATCH_SOCKET", exporter.socket()).arg("emit").args(args);
        command.output().unwrap()
    };
    assert!(emit(&["step", "run=shell", "step=5", "loss=2.3"]).status.success());
    exporter.wait_for(r#"train_loss{run="shell"}"#, 2.3);
    assert_eq!(exporter.page().get(r#"train_rank_deaths_total{run="shell"}"#).unwrap_or(0.0), 0.0);
    let url = format!("http://{}", exporter.addr);
    assert!(emit(&["--url", &url, r#"{"k":"step","run":"url","step":9}"#]).status.success());
    exporter.wait_for(r#"train_step{run="url"}"#, 9.0);
    let refused = emit(&["--url", &url, "gap", "run=shell"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("400") && said.contains("gap"), "{said}");
    let refused = emit(&["ckpt", "phase=failed"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("add run=NAME"), "{said}");
    assert!(!emit(&["stepp"]).status.success());
}

#[test]
fn a_tail_of_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("run.jsonl");
    std::fs::write(&log, "{\"step\": 3, \"loss\": 2.25}\n{\"step\": 4, \"loss\": 2.125}\n").unwrap();
    let sources = format!(
        "exposition: {{interval: 20ms}}\nsources:\n  - tail: {{path: '{}', format: auto, run: tailed, from: start}}\n",
        log.display()
    );
    let exporter = Exporter::start(dir.path(), &sources);
    exporter.wait_for(r#"train_loss{run="tailed"}"#, 2.125);
    exporter.wait_for(r#"stepwatch_exporter_ingest_events_total{via="tail"}"#, 2.0);
}
