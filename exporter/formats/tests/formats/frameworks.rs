//! Logs that people published, compared value by value.

#![expect(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use stepwatch_formats::LogReader;
use stepwatch_wire::{CkptPhase, Event, Kind};

struct Log {
    events: Vec<Event>,
    reader: LogReader,
}

fn read(text: &str, format: Option<&str>) -> Log {
    let mut reader = LogReader::new(format).unwrap();
    let mut events = Vec::new();
    for line in text.lines() {
        reader.line(line, &mut events);
    }
    reader.rest(&mut events);
    Log { events, reader }
}

impl Log {
    fn of_kind(&self, kind: Kind) -> Vec<&Event> {
        self.events.iter().filter(|e| e.kind == kind).collect()
    }

    fn steps(&self) -> Vec<i64> {
        self.of_kind(Kind::Step).iter().map(|e| e.step.unwrap()).collect()
    }

    fn column(&self, name: &str) -> Vec<f64> {
        self.of_kind(Kind::Step).iter().map(|e| e.m.get(name).unwrap()).collect()
    }

    /// Whether a column is this but for what dividing by a unit costs.
    fn reads(&self, name: &str, want: &[f64]) -> bool {
        let column = self.column(name);
        column.len() == want.len() && column.iter().zip(want).all(|(a, b)| (a - b).abs() <= 1e-12 * b.abs())
    }

    fn quantum_is(&self, name: &str, want: f64) -> bool {
        (self.reader.resolution().get(name).unwrap() / want - 1.0).abs() < 1e-9
    }
}

#[test]
fn nemo() {
    let log = read(include_str!("../data/nemo_progress.log"), None);
    assert_eq!(log.steps(), [120, 121, 122, 123]);
    assert_eq!(log.column("loss"), [1.233, 1.288, 1.333, 1.245]);
    assert_eq!(log.column("step_time"), [0.03146, 0.03163, 0.03215, 0.03157]);
    assert_eq!((log.column("lr"), log.column("samples")), (vec![3e-5; 4], vec![1.0; 4]));
    assert_eq!(log.column("consumed_samples"), [121.0, 122.0, 123.0, 124.0]);
    let evals = log.of_kind(Kind::Eval);
    assert_eq!(
        (evals.len(), evals[0].m.get("loss")),
        (1, Some(4.106)),
        "one evaluation, repeated on every line"
    );
    assert!(log.quantum_is("loss", 1e-3) && log.quantum_is("step_time", 1e-5));
    let log = read(include_str!("../data/nemo_automodel_stdout.log"), None);
    assert_eq!(log.steps(), [13, 14, 15, 16]);
    assert_eq!(log.column("loss"), [0.6407, 0.7505, 0.7045, 0.6826]);
    assert_eq!(log.column("grad_norm"), [1.1754, 1.2398, 1.0398, 1.116]);
    assert_eq!(log.column("tokens_per_second"), [6574.51, 10144.41, 10021.5, 7053.11]);
    assert_eq!(log.column("tokens_per_second_per_gpu"), [821.81, 1268.05, 1252.69, 881.64]);
    assert_eq!(log.column("memory_gib"), [31.55, 25.49, 32.47, 23.56]);
    assert_eq!((log.column("lr"), log.events[0].ts), (vec![1e-5; 4], Some(1786376939.0)));
}

#[test]
fn nanotron() {
    let log = read(include_str!("../data/nanotron.log"), None);
    assert_eq!(log.steps(), [327281, 327282, 327283, 991, 992]);
    assert_eq!(log.column("loss"), [2.38, 2.35, 2.51, 10.6, 10.6]);
    assert_eq!(log.column("grad_norm"), [1.25, 1.22, 1.21, 0.515, 0.507]);
    assert_eq!(log.column("step_time"), [11.5, 11.5, 11.5, 0.045, 0.0412]);
    assert_eq!(log.column("tokens_per_second"), [22800.0, 22800.0, 22800.0, 14200.0, 15500.0]);
    assert_eq!(log.column("tokens_per_second_per_gpu"), [11400.0, 11400.0, 11400.0, 1780.0, 1940.0]);
    assert_eq!(log.column("tflops_reported"), [38.3, 38.3, 38.3, 0.00869, 0.0095]);
    assert_eq!(log.column("samples"), [64.0, 64.0, 64.0, 20.0, 20.0], "sequences, in those versions");
    assert_eq!(log.column("consumed_tokens")[0], 85.8e9);
    let stamps: Vec<_> = log.events.iter().map(|e| e.ts.unwrap()).collect();
    assert_eq!(stamps[..3], [1760718716.0, 1760718727.0, 1760718739.0]);
    assert!(log.quantum_is("loss", 0.01) && log.quantum_is("grad_norm", 1e-3));
}

#[test]
fn olmo() {
    let log = read(include_str!("../data/olmo.log"), None);
    assert_eq!((log.steps(), log.events[0].ts), (vec![75], Some(1713467177.0)));
    assert_eq!((log.column("loss"), log.column("tokens_per_second_per_gpu")), (vec![7.417], vec![9407.0]));
    assert_eq!(
        (log.column("total_tokens"), log.column("train/Perplexity")),
        (vec![314572800.0], vec![1664.0])
    );
}

#[test]
fn torchtune() {
    let log = read(include_str!("../data/torchtune.log"), None);
    assert_eq!(log.steps(), [1, 2, 3, 4]);
    let losses = [2.085338592529297, 1.8718312978744507, 1.1732845306396484, 1.1244843006134033];
    assert_eq!((log.column("loss"), log.column("lr")), (losses.to_vec(), vec![2e-5; 4]));
    assert_eq!(log.column("tokens_per_second_per_gpu")[3], 417.49818620797487);
}

#[test]
fn torchtitan() {
    let log = read(include_str!("../data/torchtitan_2026.log"), None);
    assert_eq!((log.steps(), log.column("loss")), (vec![14, 15, 16], vec![3.24405, 3.1068, 3.05047]));
    assert_eq!(log.column("grad_norm"), [0.8319, 0.8587, 0.5443]);
    assert_eq!(log.column("tokens_per_second_per_gpu"), [7282.0, 7334.0, 7313.0]);
    assert!(log.reads("memory_gib", &[9.46; 3]) && log.reads("memory_ratio", &[0.6499; 3]));
    assert!(log.reads("tflops_reported", &[0.52, 0.53, 0.52]) && log.reads("mfu_reported", &[0.0017; 3]));
    let stamps: Vec<_> = log.events.iter().map(|e| e.ts.unwrap()).collect();
    assert_eq!(stamps, [1779120286.338, 1779120287.456, 1779120288.577]);
}

#[test]
fn composer_with_its_clock() {
    let log = read(include_str!("../data/composer_shearing.log"), None);
    assert_eq!((log.steps(), log.column("loss")), (vec![366], vec![10.375]));
    assert_eq!(
        (log.column("time/batch"), log.column("metrics/train/Perplexity")),
        (vec![365.0], vec![32048.3164])
    );
    assert_eq!(log.reader.counters().unmatched, 0);
}

#[test]
fn losses_that_became_nan() {
    let log = read(include_str!("../data/nanogpt_nan.log"), None);
    assert_eq!(log.steps(), [2980, 2990, 3000, 3010, 3020]);
    let losses = log.column("loss");
    assert_eq!(losses[..3], [3.8983, 3.8853, 4.249]);
    assert!(losses[3].is_nan() && losses[4].is_nan());
    assert!(log.reads("step_time", &[1.09918, 1.09665, 35.39233, 1.01995, 1.01595]));
    let (eval, saves) = (log.of_kind(Kind::Eval), log.of_kind(Kind::Ckpt));
    assert_eq!(
        (eval[0].step, eval[0].m.get("loss"), eval[0].m.get("train_loss")),
        (Some(3000), Some(4.0427), Some(4.039))
    );
    let saves: Vec<_> = saves.iter().map(|e| (e.step, e.ckpt)).collect();
    assert_eq!(saves, [(Some(3000), Some(CkptPhase::Start)), (Some(3000), Some(CkptPhase::End))]);
    let log = read(include_str!("../data/llmc_nan.log"), None);
    assert_eq!(log.steps(), [10, 11, 20]);
    assert!(log.column("loss").iter().chain(&log.column("grad_norm")).all(|v| v.is_nan()));
    assert_eq!(log.column("step_time"), [0.03658, 0.03651, 0.03674]);
    let eval = log.of_kind(Kind::Eval);
    assert!(eval[0].step == Some(20) && eval[0].m.get("loss").unwrap().is_nan());
}

#[test]
fn deepspeed() {
    let log = read(include_str!("../data/deepspeed_2020_cifar.log"), Some("deepspeed"));
    let rates: Vec<_> =
        log.of_kind(Kind::Hb).iter().map(|e| e.m.get("samples_per_second").unwrap()).collect();
    assert_eq!((rates.len(), rates[0], rates[12]), (13, 1292.6411179579866, 1284.5698818883018));
    assert!(log.steps().is_empty(), "micro-steps of an epoch number no step");
    let log = read(include_str!("../data/deepspeed_neox_timers.log"), Some("deepspeed"));
    assert_eq!((log.events.len(), log.reader.counters().ignored), (0, 2));
}
