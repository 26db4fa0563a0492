//! The energy of a run, from the counters of a driver to the metrics and the report of the alerter.

use std::time::Duration;

use stepwatch_fake_nvml::{Script, Stage, library};
use stepwatch_tests::trainer::{self, Rank};
use stepwatch_tests::{Machine, Stack, StackOptions, exposition, poll_until};

use crate::tree::FLEET;

const GPUS: u32 = 8;
/// The GPUs of the fleet draw 500 to 507 W.
const WATTS: std::ops::RangeInclusive<f64> = 500.0..=507.0;
/// GPUs are read for the stream every ten seconds, and energy takes two readings.
const LONG: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn the_energy_of_a_run_is_what_its_gpus_count() {
    let dir = tempfile::tempdir().unwrap();
    let stage = Stage::new(dir.path(), &Script::for_fleet(FLEET)).unwrap();
    let mut machine = Machine::default();
    machine.args.extend(["--nvml-library".into(), library().unwrap().into()]);
    machine.env.push((stepwatch_fake_nvml::SCRIPT.to_owned(), stage.path().into()));
    let stack = Stack::start_with(StackOptions { machine, ..StackOptions::default() }).await.unwrap();
    let begun = trainer::now();
    let rank = Rank::join(&stack.ingest(), "llama", 0, GPUS).unwrap();
    let mut step = 0;
    let joules = poll_until("energy of the run", LONG, async || {
        step += 1;
        rank.step(step, &[("loss", 2.0), ("tokens", 4096.0)]).unwrap();
        let page = stack.alerter.metrics().await.ok()?;
        exposition::value(&page, "train_energy_joules_total", &[("run", "llama")])
    })
    .await
    .unwrap();
    let gpu_seconds = joules / WATTS.start();
    let lasted = trainer::now() - begun;
    assert!(gpu_seconds >= 9.0, "of one GPU for ten seconds, less what a clock is off: {joules} J");
    assert!(joules <= WATTS.end() * f64::from(GPUS) * (lasted + 10.0), "{joules} J in {lasted} s");
    let report = stack.alerter.cli(&["report", "--format", "json"]).await.unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    let kwh = report["total"]["energy_kwh"].as_f64().unwrap();
    // The report adds up hours, and the metric what was counted at once: they differ by rounding.
    assert!(kwh * 3.6e6 >= joules * (1.0 - 1e-9), "{kwh} kWh are not {joules} J");
}
