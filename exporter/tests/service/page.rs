//! The page: its text from the real binary over trees of files, its formats over HTTP, and what
//! operators do with the program.
use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::node;
use crate::support::{Exporter, binary, eventually};

/// What differs from one run to the next.
fn settled(page: &str) -> String {
    let varies = |line: &&str| {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        [
            "_timestamp_seconds",
            "_duration_seconds",
            "_collections_total",
            "_memory_bytes",
            "_cpu_seconds_total",
            "_build_info",
        ]
        .iter()
        .any(|end| name.ends_with(end))
            && name.starts_with("stepwatch_exporter_")
            || [
                "clock_",
                "gpu_nvml_call_",
                "stepwatch_exporter_stream_",
                "stepwatch_exporter_exposition_series",
            ]
            .iter()
            .any(|start| name.starts_with(start))
            || name == "stepwatch_exporter_ingest_events_total"
    };
    page.lines().filter(|l| !varies(l)).map(|l| l.to_owned() + "\n").collect()
}

fn once(root: &std::path::Path) -> String {
    let out = binary()
        .arg("--once")
        .arg("--path.sysfs")
        .arg(root.join("sys"))
        .arg("--path.procfs")
        .arg(root.join("proc"))
        .arg("--path.shm")
        .arg(root.join("shm"))
        .arg("--path.kmsg")
        .arg(root.join("kmsg"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn golden_page_of_a_gpu_node() {
    let dir = tempfile::tempdir().unwrap();
    node::gpu_node(dir.path());
    insta::assert_snapshot!(settled(&once(dir.path())));
}

#[test]
fn a_node_of_which_nothing_can_be_read_has_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let page = once(dir.path());
    assert!(page.contains("stepwatch_exporter_collector_state{collector=\"nic\",state=\"unsupported\"} 1\n"));
    assert!(page.contains("stepwatch_exporter_collector_state{collector=\"process\",state=\"failed\"} 1\n"));
}

/// A page with something in every family that a trainer can fill.
fn busy(exporter: &Exporter) -> String {
    exporter.post(
        r#"{"k":"hello","run":"r","rank":0,"world":8,"framework":"x","gpu":"H100","model":{"n_params":8e9,"layers":32,"hidden":4096,"seq_len":8192}}
           {"k":"step","run":"r","rank":0,"step":1,"ts":1,"m":{"loss":2,"grad_norm":1,"lr":1e-4,"step_time":1,"tokens":1e6,"mine":3,"mfu":0.4,"loss_scale":2,"params_norm":1,"epoch":0.1,"tflops_reported":400},"t":{"data":0.1}}
           {"k":"eval","run":"r","name":"c4","loss":2.2}
           {"k":"ckpt","run":"r","phase":"start","step":1}
           {"k":"ckpt","run":"r","phase":"end","step":1,"bytes":5}
           {"k":"phase","run":"r","name":"eval","phase":"begin"}
           {"k":"hb","run":"r","rank":0,"dropped":12}"#,
    );
    exporter.wait_for(r#"train_custom{run="r",name="mine"}"#, 3.0);
    exporter.page().0
}

/// A page of this process, as the client writes it.
fn heartbeat() -> Vec<u8> {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let started: u64 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
    let mut page = b"STEPWHB1".to_vec();
    page.extend([0u64, 5].map(u64::to_le_bytes).concat());
    page.extend([1e9f64, 1e9, 1e9].map(f64::to_le_bytes).concat());
    page.extend([std::process::id(), 0].map(u32::to_le_bytes).concat());
    page.extend(started.to_le_bytes());
    page.extend([b"fwd", &[0; 29][..], b"run"].concat());
    page.resize(256, 0);
    page
}

#[test]
fn every_family_of_the_page_is_in_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    let half = dir.path().join("ckpt/step-2");
    std::fs::create_dir_all(&half).unwrap();
    std::fs::write(half.join("__0_0.distcp"), "x").unwrap();
    let checkpoints = format!("sources: [{{checkpoints: {{path: {}}}}}]", dir.path().join("ckpt").display());
    std::fs::create_dir_all(dir.path().join("shm/stepwatch")).unwrap();
    std::fs::write(dir.path().join("shm/stepwatch/1.hb"), heartbeat()).unwrap();
    let exporter = Exporter::start(dir.path(), &checkpoints);
    let page = busy(&exporter);
    let reference = String::from_utf8(binary().arg("metrics").output().unwrap().stdout).unwrap();
    let known: BTreeSet<&str> =
        reference.lines().filter(|l| !l.starts_with(' ')).map(|l| l.split('{').next().unwrap()).collect();
    let shown: BTreeSet<&str> = page
        .lines()
        .filter_map(|l| l.strip_prefix("# TYPE "))
        .map(|l| l.split(' ').next().unwrap())
        .collect();
    let unknown: Vec<_> = shown.difference(&known).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    // Families that need a trainer with a socket, a job, or a tail.
    let silent = known.difference(&shown).filter(|n| n.starts_with("train_"));
    let silent: Vec<_> =
        silent.filter(|n| !n.starts_with("train_source_") && **n != "train_log_resolution").collect();
    assert_eq!(silent, [&"train_job_info", &"train_mfu_remark", &"train_rank_up"]);
}

#[test]
fn promtool_finds_nothing_to_mend() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), "");
    let page = busy(&exporter);
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        assert!(std::env::var_os("STEPWATCH_REQUIRE_PEERS").is_none(), "promtool is not installed");
        // Past the capture of the test runner: `cargo verify` repeats it.
        let _ = writeln!(
            std::io::stderr().lock(),
            "!!! NOT TESTED: promtool is not installed; the page was not checked"
        );
        return;
    };
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let out = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.trim().is_empty(), "{said}");
}

#[test]
fn each_scraper_gets_its_format() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), "");
    let text = exporter.request("GET", "/metrics", "");
    assert!(text.head.contains("text/plain; version=0.0.4"), "{}", text.head);
    let accept = "accept: application/openmetrics-text;version=1.0.0\r\n";
    let open = exporter.request_with("GET", "/metrics", accept, "");
    assert!(open.head.contains("application/openmetrics-text; version=1.0.0"), "{}", open.head);
    assert!(open.text().ends_with("# EOF\n"));
    let gzip = exporter.request_with("GET", "/metrics", "accept-encoding: gzip\r\n", "");
    assert!(gzip.head.contains("content-encoding: gzip"), "{}", gzip.head);
    assert_eq!(gzip.body[..2], [0x1f, 0x8b]);
}

#[test]
fn people_and_probes_find_their_way() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), "");
    let index = exporter.request("GET", "/", "");
    assert!(index.head.contains("text/html") && index.text().contains("/v1/stream"));
    assert_eq!(exporter.request("GET", "/-/healthy", "").status, 200);
    assert_eq!(exporter.request("GET", "/-/ready", "").status, 200);
    let missing = exporter.request("GET", "/nothing", "");
    assert_eq!((missing.status, missing.json()["error"].clone()), (404, "there is no /nothing".into()));
    let method = exporter.request("GET", "/v1/events", "");
    assert_eq!(
        (method.status, method.json()["error"].clone()),
        (405, "/v1/events takes another method".into())
    );
}

#[test]
fn a_reload_takes_all_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), "");
    let config = dir.path().join("exporter.yml");
    let good = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{good}collectors: {{nic: {{enabled: false}}}}\n")).unwrap();
    assert_eq!(exporter.request("POST", "/-/reload", "").status, 200);
    exporter.wait_for(r#"stepwatch_exporter_collector_state{collector="nic",state="disabled"}"#, 1.0);
    std::fs::write(&config, format!("{good}collectors: {{nix: 1}}\n")).unwrap();
    let refused = exporter.request("POST", "/-/reload", "");
    assert!(refused.status == 500 && refused.text().contains("unknown field `nix`"), "{}", refused.text());
    std::fs::write(&config, good.replace("node: n1", "node: n2")).unwrap();
    let refused = exporter.request("POST", "/-/reload", "");
    assert!(refused.text().contains("node cannot change without a restart"), "{}", refused.text());
    // SIGHUP is the same, for people with a shell.
    std::fs::write(&config, &good).unwrap();
    exporter.signal(rustix::process::Signal::HUP);
    // Only the state that it is in has a series.
    let disabled = r#"stepwatch_exporter_collector_state{collector="nic",state="disabled"}"#;
    eventually(|| format!("{disabled} is left"), || exporter.page().get(disabled).is_none());
}

#[test]
fn a_bad_configuration_ends_the_program_before_it_binds_anything() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("bad.yml");
    std::fs::write(&config, format!("ingest: {{socket: '{}/s'}}\nlisten: ':9x'\n", dir.path().display()))
        .unwrap();
    for args in [&["--config"][..], &["config", "check"]] {
        let out = binary().args(args).arg(&config).output().unwrap();
        assert_eq!(out.status.code(), Some(64));
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(said.contains("bad.yml:2:9") && said.contains('^'), "{said}");
    }
    assert!(!dir.path().join("s").exists());
    let checked = |code: i32| -> serde_json::Value {
        let out = binary().args(["config", "check", "--format", "json"]).arg(&config).output().unwrap();
        assert_eq!((out.status.code(), out.stderr.as_slice()), (Some(code), &b""[..]));
        serde_json::from_slice(&out.stdout).unwrap()
    };
    let said = checked(64);
    let mistake = &said["mistakes"][0];
    assert_eq!((&said["good"], &mistake["line"], &mistake["column"]), (&false.into(), &2.into(), &9.into()));
    std::fs::write(&config, "").unwrap();
    assert_eq!(checked(0)["mistakes"], serde_json::json!([]));
    let out = binary().args(["config", "check"]).arg(&config).output().unwrap();
    assert!(out.status.success() && String::from_utf8(out.stdout).unwrap().ends_with("bad.yml: ok\n"));
}

#[test]
fn the_name_of_a_configuration_steers_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("a\u{1b}[31m\u{202e}b.yml");
    for text in ["", "listen: ':9x'\n"] {
        std::fs::write(&config, text).unwrap();
        for args in [&["config", "check"][..], &["config", "check", "--format", "json"]] {
            let out = binary().args(args).arg(&config).output().unwrap();
            let said = String::from_utf8([out.stdout, out.stderr].concat()).unwrap();
            assert!(said.contains("a[31mb.yml"), "{said:?}");
            assert!(!said.contains(['\u{1b}', '\u{202e}']) && !said.contains("u001b"), "{said:?}");
        }
    }
}

#[test]
fn a_second_exporter_on_the_same_socket_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), "");
    let out = binary().arg("--config").arg(dir.path().join("exporter.yml")).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("another exporter listens at"), "{said}");
    let (ok, log) = exporter.stop();
    assert!(ok && !log.contains("\"ERROR\""), "{log}");
    assert!(!dir.path().join("ingest.sock").exists(), "its sockets go with it");
}

#[test]
fn the_page_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), "exposition: {interval: 20ms}\n");
    let at = || exporter.page().get("stepwatch_exporter_exposition_timestamp_seconds").unwrap();
    let first = at();
    eventually(|| "the same page for ever".into(), || at() > first);
}

#[test]
fn help_reads_well() {
    let out = binary().arg("--help").output().unwrap();
    insta::assert_snapshot!(String::from_utf8(out.stdout).unwrap());
}
