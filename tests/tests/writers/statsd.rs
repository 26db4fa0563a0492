//! The client of statsd and that of DogStatsD, over UDP and over a socket of the file system.

use stepwatch_tests::Exporter;
use stepwatch_wire::Kind;

use crate::seen::Seen;
use crate::writer::{Writer, has, python};

#[tokio::test(flavor = "multi_thread")]
async fn both_clients_are_heard() {
    if !has(&["statsd", "datadog"]).await {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("statsd.sock");
    let sources = format!(
        "sources:\n  - statsd: {{listen: \"127.0.0.1:0\", run: plain, prefix: trainer.}}\n  - statsd: {{listen: \"unix:{}\"}}\n",
        socket.display()
    );
    let mut exporter = Exporter::start(&dir.path().join("exporter"), &sources).await.unwrap();
    let line = exporter.daemon.logged(|line| line.contains("listening for statsd")).await.unwrap();
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let port = line["addr"].as_str().unwrap().rsplit_once(':').unwrap().1.trim_end_matches(')').to_owned();
    let seen = Seen::default();
    seen.follow(&exporter);
    let mut script = python("statsd_writer.py", dir.path());
    script.env("STATSD_PORT", port).env("STATSD_SOCKET", &socket);
    let mut writer = Writer::start(script).unwrap();
    for (step, loss) in [(5, "2.5"), (6, "2.25"), (7, "nan")] {
        writer.send(&format!("step {step} {loss}")).await.unwrap();
        for run in ["plain", "tagged"] {
            seen.event(Kind::Step, run, |e| e.step == Some(step) && e.m.get("step_time").is_some()).await;
        }
    }
    writer.end().await.unwrap();
    for (run, seconds) in [("plain", 4.0), ("tagged", 0.25)] {
        let losses = seen.column(run, "loss");
        assert_eq!((losses[0], losses[1]), ((5, 2.5), (6, 2.25)), "{run}");
        assert!(losses[2].1.is_nan(), "{run}: {losses:?}");
        assert_eq!(seen.column(run, "step_time"), [(5, seconds), (6, seconds), (7, seconds)], "{run}");
    }
    assert_eq!(seen.column("plain", "tokens_seen").last(), Some(&(7, 3.0 * 4096.0)));
    assert!(seen.events(Kind::Step, "tagged").iter().all(|e| e.rank == Some(3)));
}
