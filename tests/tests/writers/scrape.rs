//! Endpoints that trainers serve: OpenTelemetry's exporter for Prometheus as Axolotl sets it up,
//! and prometheus_client as prime-rl does.

use stepwatch_tests::Exporter;
use stepwatch_wire::{Event, Kind};

use crate::seen::Seen;
use crate::writer::{Writer, has, python};

#[tokio::test(flavor = "multi_thread")]
async fn both_are_recognised_and_followed() {
    if !has(&["prometheus_client", "opentelemetry.exporter.prometheus"]).await {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::start(python("scrape_writer.py", dir.path())).unwrap();
    let (axolotl, prime) = (writer.line().await.unwrap(), writer.line().await.unwrap());
    let source = |port: &str, run: &str| {
        format!("  - scrape: {{url: \"http://127.0.0.1:{port}/metrics\", interval: 100ms, run: {run}}}\n")
    };
    let sources = format!("sources:\n{}{}", source(&axolotl, "axolotl"), source(&prime, "prime"));
    let exporter = Exporter::start(&dir.path().join("exporter"), &sources).await.unwrap();
    let seen = Seen::default();
    seen.follow(&exporter);
    for (step, loss) in [(5, "2.5"), (6, "2.25"), (9, "nan")] {
        writer.send(&format!("step {step} {loss}")).await.unwrap();
        for run in ["axolotl", "prime"] {
            // An SDK of OpenTelemetry drops what is not a number.
            let hidden = run == "axolotl" && loss == "nan";
            let wanted = |e: &Event| e.step == Some(step) && (hidden || e.m.get("loss").is_some());
            seen.event(Kind::Step, run, wanted).await;
        }
    }
    for (run, own) in [("axolotl", "axolotl_memory_usage_MB"), ("prime", "trainer_mismatch_kl")] {
        let losses = seen.column(run, "loss");
        assert_eq!(losses[..2], [(5, 2.5), (6, 2.25)], "{run}");
        assert!(!seen.column(run, own).is_empty(), "{run}: its other metrics are custom");
        assert!(seen.column(run, "python_gc_objects_collected_total").is_empty(), "{run}");
    }
    let nan = seen.column("prime", "loss").last().copied().unwrap();
    assert!(nan.0 == 9 && nan.1.is_nan(), "a gauge of Prometheus may be NaN");
    assert_eq!(
        seen.column("axolotl", "loss").len(),
        2,
        "and one of OpenTelemetry goes on with its last number"
    );
    assert_eq!(seen.column("prime", "tokens_per_second"), [(5, 1000.0)]);
    assert!(!seen.column("prime", "step_time").is_empty(), "it gives when its steps were");
    writer.end().await.unwrap();
}
