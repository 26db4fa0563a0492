//! Two users of one node: neither can report the run of the other, nor take the places of the
//! other's runs.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use stepwatch_exporter::principal::Principal;

use crate::support::{Exporter, binary, eventually};

/// Users that no machine has.
const ANN: u32 = 4_000_001;
const BOB: u32 = 4_000_002;

const QUICK: &str = "exposition: {interval: 20ms}\n";

/// Sends what it reads, one line at a time, by the given way, and prints when all of it was sent.
const SPEAKER: &str = r"import http.client, socket, sys
way, path, port = sys.argv[1:]
lines = [line.strip().encode() for line in sys.stdin]
if way == 'http':
    for at in range(0, len(lines), 1000):
        status = 429
        while status == 429:
            c = http.client.HTTPConnection('127.0.0.1', int(port))
            c.request('POST', '/v1/events', b'\n'.join(lines[at:at + 1000]))
            status = c.getresponse().status
else:
    kind = socket.SOCK_SEQPACKET if way == 'packets' else socket.SOCK_DGRAM
    s = socket.socket(socket.AF_UNIX, kind)
    s.connect(path if way == 'packets' else path.replace('ingest.sock', 'ingest.dgram'))
    for line in lines:
        s.send(line)
print('sent', flush=True)";

/// Only root may become other users. Without root there is one user, and the rule for two users is
/// tested by itself.
fn is_root() -> bool {
    if crate::support::is_root() {
        return true;
    }
    let (ann, bob) = (Principal::User(ANN), Principal::User(BOB));
    assert_eq!((ann.joined_by(bob), ann.joined_by(Principal::Unknown)), (None, None));
    assert_eq!((ann.joined_by(ann), Principal::User(0).joined_by(ann)), (Some(ann), Some(ann)));
    false
}

fn start(dir: &Path, extra: &str) -> Exporter {
    std::fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    Exporter::start(dir, &format!("{QUICK}{extra}"))
}

fn say(exporter: &Exporter, uid: u32, way: &str, lines: &[String]) {
    let mut speaker = Command::new("python3");
    speaker.args(["-c", SPEAKER, way]).arg(exporter.socket()).arg(exporter.addr.port().to_string());
    speaker.uid(uid).gid(uid).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut speaker = speaker.spawn().unwrap();
    std::io::Write::write_all(&mut speaker.stdin.take().unwrap(), lines.join("\n").as_bytes()).unwrap();
    let said = speaker.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "sent\n", "{way} as {uid}");
}

fn step(run: &str, step: u32) -> String {
    format!(r#"{{"k":"step","run":"{run}","rank":0,"step":{step},"m":{{"loss":2.5}}}}"#)
}

fn dropped(reason: &str) -> String {
    format!("stepwatch_exporter_ingest_dropped_total{{reason=\"{reason}\"}}")
}

#[test]
fn nobody_speaks_for_the_run_of_another_user_by_any_way() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log/forged.jsonl");
    std::fs::create_dir(log.parent().unwrap()).unwrap();
    let tail = format!("sources:\n  - tail: {{path: '{}', from: start}}\n", log.display());
    let exporter = start(dir.path(), &tail);
    let mut stream = exporter.stream(None);
    let hello = r#"{"k":"hello","run":"hers","rank":0,"uid":4000002,"node":"n2"}"#.to_owned();
    say(&exporter, ANN, "packets", &[hello, step("hers", 7)]);
    exporter.wait_for(r#"train_step{run="hers"}"#, 7.0);
    let hello = stream.find(|record| record["k"] == "hello");
    assert_eq!((hello["uid"].as_u64(), hello["node"].as_str()), (Some(u64::from(ANN)), Some("n1")));
    // Her connection is closed, and her run stays hers.
    let forged = [
        r#"{"k":"step","run":"hers","rank":0,"step":8,"m":{"loss":NaN}}"#.to_owned(),
        r#"{"k":"bye","run":"hers","rank":0,"code":1}"#.to_owned(),
    ];
    for way in ["packets", "datagrams", "http"] {
        let before = exporter.page().get(&dropped("not_owner")).unwrap();
        say(&exporter, BOB, way, &forged);
        eventually(
            || format!("{way}: refused since {before}"),
            || exporter.page().get(&dropped("not_owner")) == Some(before + 2.0),
        );
    }
    // Nor does he have it renamed.
    say(
        &exporter,
        BOB,
        "packets",
        &[r#"{"k":"hello","run":"evil","run_by":"name","run_unnamed":"hers"}"#.to_owned()],
    );
    exporter.wait_for(&dropped("not_owner"), 7.0);
    let before = exporter.page().get(&dropped("not_owner")).unwrap();
    std::fs::write(&log, format!("{}\n", forged[0])).unwrap();
    chown(&log, Some(BOB), Some(BOB)).unwrap();
    eventually(
        || "a tail of Bob's file".to_owned(),
        || exporter.page().get(&dropped("not_owner")) > Some(before),
    );
    say(&exporter, 0, "packets", &[step("hers", 9)]);
    exporter.wait_for(r#"train_step{run="hers"}"#, 9.0);
    let next = stream.find(|record| record["run"] == "hers" && record["k"] != "hello");
    assert_eq!(next["step"], 7, "{next}");
    let next = stream.find(|record| record["run"] == "hers" && record["name"] != "rank_dead");
    assert_eq!((next["k"].as_str(), next["step"].as_u64()), (Some("step"), Some(9)), "{next}");
    let url = format!("http://{}", exporter.addr);
    let output = binary().args(["runs", "--url", &url]).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    assert!(output.contains("hers") && output.contains("uid 4000001"), "{output}");
    assert!(
        output.contains("events of uid 4000002 were refused: the run is that of uid 4000001"),
        "{output}"
    );
    let (_, log) = exporter.stop();
    let said: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let refused = |line: &&Value| line["message"].as_str().is_some_and(|m| m.starts_with("refused: the run"));
    let refused: Vec<_> = said.iter().filter(refused).collect();
    assert_eq!(refused.len(), 1, "once a minute: {refused:?}");
    assert_eq!(
        (refused[0]["of"].as_str(), refused[0]["by"].as_str()),
        (Some("uid 4000001"), Some("uid 4000002"))
    );
}

#[test]
fn a_run_that_root_opened_is_that_of_who_trains_in_it() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let exporter = start(dir.path(), "");
    let hello = r#"{"k":"hello","run":"job","rank":0,"source":"launcher"}"#.to_owned();
    say(&exporter, 0, "packets", &[hello]);
    say(&exporter, 0, "packets", &[step("roots", 1)]);
    exporter.wait_for(r#"train_step{run="roots"}"#, 1.0);
    let forged: Vec<_> = ["job", "roots"]
        .iter()
        .flat_map(|run| {
            ["hb\"", "bye\",\"code\":0", "event\",\"name\":\"maintenance\",\"seconds\":3600"]
                .map(|rest| format!(r#"{{"k":"{rest},"run":"{run}","rank":0}}"#))
        })
        .collect();
    for (n, way) in ["packets", "datagrams", "http"].iter().enumerate() {
        say(&exporter, BOB, way, &forged);
        exporter.wait_for(&dropped("not_owner"), ((n + 1) * forged.len()) as f64);
    }
    // Her trainer says hello before its first step.
    let hello = r#"{"k":"hello","run":"job","rank":0,"framework":"megatron"}"#.to_owned();
    let nan = r#"{"k":"step","run":"job","rank":0,"step":2,"m":{"loss":NaN}}"#.to_owned();
    say(&exporter, ANN, "packets", &[hello, step("job", 1), nan]);
    exporter.wait_for(r#"train_nonfinite_total{run="job",what="loss",how="value"}"#, 1.0);
    assert!(exporter.page().0.contains(r#"run="job",framework="megatron""#), "{}", exporter.page().0);
    let runs = exporter.request("GET", "/v1/runs", "").json();
    let owners: Vec<_> = runs["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| (run["run"].as_str(), run["uid"].as_u64()))
        .collect();
    assert_eq!(owners, [(Some("job"), Some(u64::from(ANN))), (Some("roots"), Some(0))]);
}

/// Who reaches loopback is every user of the node.
#[test]
fn another_user_neither_administers_the_exporter_nor_takes_the_places_of_its_readers() {
    if !is_root() {
        return;
    }
    const ASK: &str = "import sys, urllib.request, urllib.error
port, way = sys.argv[1], sys.argv[2]
readers = []
try:
    if way == 'stream':
        for _ in range(9): readers.append(urllib.request.urlopen(f'http://127.0.0.1:{port}/v1/stream', timeout=30))
    else:
        request = urllib.request.Request(f'http://127.0.0.1:{port}{way}', data=b'', method='POST')
        print(urllib.request.urlopen(request, timeout=30).status, flush=True)
except urllib.error.HTTPError as error:
    print(error.code, flush=True)
sys.stdin.read()";
    let dir = tempfile::tempdir().unwrap();
    let exporter = start(dir.path(), "");
    let ask = |uid: u32, way: &str| {
        let mut asker = Command::new("python3");
        asker.args(["-c", ASK, &exporter.addr.port().to_string(), way]);
        asker.uid(uid).gid(uid).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut asker = asker.spawn().unwrap();
        let mut said = String::new();
        let out = std::io::BufReader::new(asker.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut { out }, &mut said).unwrap();
        (said.trim().to_owned(), asker)
    };
    let ends = |(said, mut asker): (String, std::process::Child)| {
        drop(asker.stdin.take());
        asker.wait().unwrap();
        said
    };
    for way in ["/-/reload", "/-/nvml/release", "/-/nvml/acquire"] {
        assert_eq!(ends(ask(BOB, way)), "403", "{way}");
        assert_eq!(ends(ask(0, way)), "200", "{way}");
    }
    let theirs = ask(BOB, "stream");
    assert_eq!(theirs.0, "503", "their ninth");
    let mut stream = exporter.stream(None);
    assert_eq!(exporter.post(&step("hers", 7)).status, 202);
    stream.find(|record| record["k"] == "step");
    ends(theirs);
}

#[test]
fn what_only_the_exporter_says_of_its_node_is_refused_from_trainers() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), QUICK);
    let mut stream = exporter.stream(None);
    for kind in ["xid", "link", "hw", "health"] {
        let answer = exporter.post(&format!(r#"{{"k":"{kind}","node":"n7","name":"gpu","code":79}}"#));
        assert_eq!((answer.status, answer.json()["errors"][0]["field"].as_str()), (400, Some("k")), "{kind}");
        exporter.connect().send(&format!(r#"{{"k":"{kind}","node":"n7","code":79}}"#));
    }
    exporter.wait_for(&dropped("malformed"), 8.0);
    exporter.post(r#"{"k":"step","run":"r","step":1,"node":"n7"}"#);
    let own = |record: &Value| record["k"] == "health" && record["code"] != 79;
    let first = stream.find(|record| record["k"] != "hb" && !own(record));
    assert_eq!((first["k"].as_str(), first["node"].as_str()), (Some("step"), Some("n1")), "{first}");
    exporter.wait_for(&dropped("foreign_node"), 9.0);
}

#[test]
fn a_million_runs_of_one_user_keep_no_run_of_another_out() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let exporter = start(dir.path(), "runs: {max_runs: 8}\n");
    say(&exporter, ANN, "packets", &[step("hers", 1)]);
    exporter.wait_for(r#"train_step{run="hers"}"#, 1.0);
    // A million names are too many for a test: these are many times the places and what is
    // admitted.
    let invented: Vec<_> = (0..20_000).map(|i| step(&format!("invented-{i}"), 1)).collect();
    say(&exporter, BOB, "http", &invented);
    let refused = || {
        let page = exporter.page();
        ["new_runs_limit", "runs_limit"].iter().filter_map(|reason| page.get(&dropped(reason))).sum::<f64>()
    };
    eventually(|| format!("{} invented names refused", refused()), || refused() > 19_000.0);
    let page = exporter.page();
    assert_eq!(page.get(r#"train_step{run="hers"}"#), Some(1.0), "{}", page.0);
    say(&exporter, ANN, "packets", &[step("her-next", 1)]);
    exporter.wait_for(r#"train_step{run="her-next"}"#, 1.0);
    exporter.wait_for(&dropped("runs_share"), 1.0);
    let (_, log) = exporter.stop();
    assert!(log.contains("uid 4000002"), "{log}");
}
