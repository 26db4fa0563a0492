//! Lines that trainers really printed, read by `auto`, compared value by value.

#![expect(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use proptest::prelude::*;
use stepwatch_formats::{Counters, LogReader, Rule, names};
use stepwatch_wire::{Event, Kind, MAX_EVENT_BYTES};

macro_rules! samples {
    ($($name:ident = $file:literal;)*) => {
        $(const $name: &str = include_str!(concat!("../data/", $file));)*
        const ALL: &[&str] = &[$($name),*];
    };
}

samples! {
    BLOOM_SPIKE = "bloom176b_loss_spike.log";
    BLOOM_DROP = "bloom176b_throughput_drop.log";
    BLOOM_EVAL = "bloom176b_eval.log";
    TR8 = "tr8_104b_divergence.log";
    MEGATRON_SKIPPED = "megatron_v2_fp16_skipped.log";
    MEGATRON_DEEPSPEED = "megatron_deepspeed_3d.log";
    DEEPSPEED_PIPE = "deepspeed_pipe_engine.log";
    BRIDGE = "megatron_bridge_moe_mtp.log";
    STRAGGLER = "megatron_straggler.log";
    MSSWIFT = "hf_msswift.log";
    AUTOMODEL = "nemo_automodel.jsonl";
    TORCHTITAN = "torchtitan_stdout.log";
    MAXTEXT = "maxtext_dpo.log";
    VERL = "verl_console.log";
    LLMFOUNDRY = "llmfoundry_console.log";
    MODDED = "modded_nanogpt.log";
    LLMC = "llmc_main.log";
    LLMC_OLD = "llmc_tel_trl.log";
    DEEPSPEED_CIFAR = "deepspeed_2020_cifar.log";
    TORCHTITAN_LOSSES = "torchtitan_losses.txt";
    NO_TRAINING = "no_training.log";
}

struct Log {
    events: Vec<Event>,
    counters: Counters,
    reader: LogReader,
}

fn read(text: &str) -> Log {
    read_with(LogReader::new(None).unwrap(), text)
}

fn read_with(mut reader: LogReader, text: &str) -> Log {
    let mut events = Vec::new();
    for line in text.lines() {
        reader.line(line, &mut events);
    }
    reader.rest(&mut events);
    Log { events, counters: reader.counters(), reader }
}

impl Log {
    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |e| e.kind == kind)
    }

    /// Steps with a metric: timers are events of the same step again, without one.
    fn trained(&self) -> impl Iterator<Item = &Event> {
        self.of_kind(Kind::Step).filter(|e| !e.m.is_empty())
    }

    fn steps(&self) -> Vec<i64> {
        self.trained().map(|e| e.step.unwrap()).collect()
    }

    /// A metric at every step; NaN where it is absent would hide a mistake, so absent is -1.
    fn column(&self, name: &str) -> Vec<f64> {
        self.trained().map(|e| e.m.get(name).unwrap_or(-1.0)).collect()
    }

    /// Of a column that is there at every step, so that a value that was misread anywhere shows.
    fn sum(&self, name: &str) -> f64 {
        self.trained().map(|e| e.m.get(name).unwrap()).sum()
    }

    fn quantum(&self, name: &str) -> f64 {
        self.reader.resolution().get(name).unwrap()
    }
}

fn close(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-12
}

#[test]
fn bloom_loss_spike() {
    let log = read(BLOOM_SPIKE);
    assert_eq!((log.reader.name(), log.counters.matched, log.counters.unmatched), ("megatron", 11, 0));
    assert_eq!(log.steps(), [31214, 31215, 31216, 31217, 31218, 31219, 31220, 31221, 31222, 31250, 31251]);
    assert_eq!(
        log.column("grad_norm"),
        [0.242, 0.947, 2.39, 15.886, 145.119, 960.351, 353.201, 379.33, 650.246, 0.267, 0.205]
    );
    assert_eq!(
        log.column("loss"),
        [
            2.198845, 2.220424, 2.595213, 2.241558, 2.345279, 5.098124, 3.492029, 3.213059, 2.804948,
            2.215699, 2.235667
        ]
    );
    assert_eq!(log.column("step_time")[..3], [106.46, 105.9, 106.4]);
    assert_eq!(log.column("lr")[8], 5.278e-5);
    assert_eq!(log.column("tflops_reported")[0], 147.29);
    assert_eq!(log.column("consumed_samples")[0], 47768496.0);
    // 2048 sequences of 2048 tokens, from the counter; also across the 28 steps that the excerpt
    // leaves out.
    assert_eq!(log.column("tokens"), [vec![-1.0], vec![4194304.0; 10]].concat());
    assert!(log.events.iter().all(|e| e.missing.is_empty() && e.ts.is_none()));
    assert_eq!((log.quantum("loss"), log.quantum("grad_norm"), log.quantum("step_time")), (1e-6, 1e-3, 1e-2));
}

#[test]
fn bloom_throughput_drop() {
    let log = read(BLOOM_DROP);
    assert_eq!(log.steps(), [42780, 42781, 42782, 42783, 42784]);
    assert_eq!(log.column("step_time"), [105.16, 105.17, 106.25, 110.17, 111.14]);
    assert_eq!(log.column("tflops_reported"), [149.1, 149.09, 147.58, 142.32, 141.09]);
    // The key is printed with two blanks in it.
    assert_eq!(log.column("lr"), [4.475e-5; 5]);
    assert_eq!(log.column("samples_per_second")[4], 18.428);
}

#[test]
fn bloom_evaluation() {
    let log = read(BLOOM_EVAL);
    assert_eq!(
        (log.steps(), log.column("loss"), log.column("grad_norm")),
        (vec![45000], vec![2.113567], vec![0.139])
    );
    let eval = log.of_kind(Kind::Eval).next().unwrap();
    assert_eq!(
        (eval.step, eval.name.as_deref(), eval.m.get("loss")),
        (Some(45000), Some("valid"), Some(2.327091))
    );
    assert_eq!(log.events.len(), 2, "and then for hours only a watchdog of the cluster");
    assert_eq!(log.counters, Counters { lines: 11, matched: 2, ignored: 2, unmatched: 7 });
}

#[test]
fn tr8_divergence_with_a_loss_that_is_nan() {
    let log = read(TR8);
    assert_eq!(log.counters.unmatched, 0);
    let steps = log.steps();
    assert_eq!((steps.len(), steps[0], steps.last().copied()), (19, 7000, Some(9027)));
    assert_eq!(log.column("grad_norm")[..3], [98258.265, 219645.978, 16921.991]);
    assert_eq!(log.column("loss")[10], 7.71234);
    let last: Vec<_> = log.of_kind(Kind::Step).skip(17).collect();
    assert_eq!((last[0].step, last[0].m.get("loss"), last[0].missing.len()), (Some(9026), Some(7.02458), 0));
    assert_eq!((last[1].m.get("loss"), last[1].missing.as_slice()), (None, ["loss".to_owned()].as_slice()));
    assert_eq!((last[1].m.get("loss_scale"), last[1].m.get("skipped")), (Some(8192.0), Some(0.0)));
    assert_eq!(log.events.iter().filter(|e| !e.missing.is_empty()).count(), 1);
    let eval = log.of_kind(Kind::Eval).next().unwrap();
    assert_eq!(
        (eval.step, eval.m.get("loss"), eval.m.get("lm_loss_ppl")),
        (Some(7000), Some(7.1742), Some(1305.315))
    );
}

#[test]
fn skipped_iterations_miss_no_loss() {
    let log = read(MEGATRON_SKIPPED);
    assert_eq!(log.steps(), [1, 2, 3]);
    assert_eq!((log.column("skipped"), log.column("loss")), (vec![1.0; 3], vec![-1.0; 3]));
    assert_eq!(log.column("loss_scale"), [4294967296.0, 2147483648.0, 1073741824.0]);
    assert_eq!(log.column("step_time"), [155.4838, 129.0288, 128.8915]);
    assert!(log.events.iter().all(|e| e.missing.is_empty()));
    let forward: Vec<_> = log.of_kind(Kind::Step).filter_map(|e| e.t.get("forward")).collect();
    assert!(forward.iter().zip([32.05416, 31.74974, 31.88801]).all(|(a, b)| close(*a, b)), "{forward:?}");
    assert_eq!((log.counters.lines, log.counters.matched), (20, 6));
}

#[test]
fn megatron_deepspeed() {
    let log = read(MEGATRON_DEEPSPEED);
    assert_eq!((log.reader.name(), log.steps()), ("megatron", (1..=49).collect()));
    assert_eq!(log.column("loss")[..3], [12.44238, 12.44502, 41.03157]);
    assert!(close(log.sum("loss"), 657.912324) && close(log.sum("lr"), 0.00681195));
    assert!(close(log.sum("step_time"), 6710.3941));
    assert_eq!(log.column("loss_scale"), [-1.0; 49], "the sentinel for no loss scaling is absent");
    assert!(log.events.iter().all(|e| e.rank.is_none()), "the memory lines name a rank, the steps do not");
    let log = read(DEEPSPEED_PIPE);
    assert_eq!((log.reader.name(), log.steps()), ("megatron", vec![0, 1, 1, 1, 2]));
    assert_eq!(
        log.column("loss"),
        [-1.0, -1.0, 12.7902, 12.79022, 12.80042],
        "the engine's until Megatron speaks"
    );
    assert_eq!(log.column("lr"), [0.0, 1.875e-5, -1.0, 1.875e-5, 3.75e-5]);
}

#[test]
fn megatron_bridge() {
    let log = read(BRIDGE);
    let m = &log.events[0].m;
    assert_eq!((log.steps(), m.get("loss"), m.get("grad_norm")), (vec![100], Some(7.968678), Some(1.04)));
    assert_eq!((m.get("load_balancing_loss"), m.get("mtp_1_loss")), (Some(1.329517), Some(7.925096)));
    assert_eq!((m.get("step_time"), m.get("samples")), (Some(3.7386), Some(32.0)));
    assert_eq!(read(STRAGGLER).counters, Counters { lines: 3, matched: 0, ignored: 3, unmatched: 0 });
}

#[test]
fn hugging_face_as_ms_swift_prints_it() {
    let log = read(MSSWIFT);
    assert_eq!(log.reader.name(), "huggingface");
    assert_eq!(log.steps(), [1].into_iter().chain((5..=90).step_by(5)).collect::<Vec<_>>());
    assert_eq!(log.column("loss")[..3], [1.47077751, 1.58882141, 1.56617603]);
    assert_eq!(log.column("grad_norm")[17..], [10.125, 8.375]);
    assert_eq!(log.column("lr")[..3], [2e-6, 1e-5, 9.92e-6]);
    assert!(close(log.sum("loss"), 28.60100717) && close(log.sum("grad_norm"), 213.8125));
    assert!(close(log.sum("lr"), 9.601e-5));
    assert_eq!(log.column("epoch")[..6], [0.01, 0.05, 0.11, 0.16, 0.21, 0.27]);
    assert_eq!(log.column("step_time"), [-1.0; 19], "the speed since the start is no step time");
    assert_eq!((log.column("token_acc")[0], log.column("memory(GiB)")[1]), (0.65511727, 5.64));
    assert!(log.events[0].m.get("elapsed_time").is_none(), "text for people is no number");
}

#[test]
fn automodel() {
    let log = read(AUTOMODEL);
    assert_eq!(log.reader.name(), "jsonl");
    assert_eq!((log.steps(), log.counters.unmatched), ((0..100).collect(), 0));
    assert_eq!(log.column("loss")[..2], [0.9607781767845154, 0.9602441787719727]);
    assert_eq!(log.column("grad_norm")[0], 80.44873809814453);
    assert_eq!(log.column("tokens")[..3], [13451.0, 15581.0, 12249.0]);
    assert_eq!(log.column("tokens_per_second_per_gpu")[1], 859.1156356440428);
    assert!((log.column("mfu_reported")[1] - 0.004744590548468).abs() < 1e-12, "printed in percent");
    assert!(close(log.sum("loss"), 17.68958775140345) && close(log.sum("grad_norm"), 1586.3208649158478));
    assert!(close(log.sum("lr"), 0.00055) && log.sum("tokens") == 1201809.0);
    assert!(close(log.sum("tokens_per_second"), 7910962.956144296), "of the whole job");
    assert!(close(log.sum("tokens_per_second_per_gpu"), 988870.369518037));
    assert!(close(log.sum("mfu_reported"), 5.847535799987788));
    assert_eq!((log.events[0].ts, log.events[99].ts), (Some(1775059572.572), Some(1775059592.091)));
}

#[test]
fn torchtitan() {
    let log = read(TORCHTITAN);
    assert_eq!((log.reader.name(), log.steps()), ("torchtitan", vec![20]));
    assert_eq!((log.column("loss"), log.column("grad_norm")), (vec![11.83506], vec![9.6669]));
    assert_eq!(log.column("tokens_per_second_per_gpu"), [4376.0]);
    assert_eq!((log.column("tflops_reported"), log.column("mfu_reported")), (vec![253.41], vec![0.2562]));
}

#[test]
fn maxtext() {
    let log = read(MAXTEXT);
    assert_eq!((log.reader.name(), log.steps()), ("maxtext", (1..=117).collect()));
    assert_eq!(log.column("step_time")[..3], [24.93, 0.57, 0.254]);
    assert_eq!(log.column("loss")[..3], [0.693, 0.693, 0.708], "not the lm_loss beside it");
    assert_eq!(log.column("tokens_per_second_per_gpu")[0], 164.297);
    assert_eq!(log.quantum("loss"), 1e-3);
    assert!(close(log.sum("loss"), 63.892) && close(log.sum("step_time"), 54.24));
    assert!(close(log.sum("tokens_per_second_per_gpu"), 1892354.139));
    let eval = log.of_kind(Kind::Eval).next().unwrap();
    assert_eq!((eval.step, eval.m.get("loss"), eval.m.get("perplexity")), (Some(0), Some(0.693), Some(2.0)));
}

#[test]
fn verl() {
    let log = read(VERL);
    assert_eq!((log.reader.name(), log.steps()), ("verl", vec![0, 1]));
    assert_eq!((log.column("loss"), log.column("grad_norm")), (vec![-0.005, 0.0], vec![1.992, 2.06]));
    assert_eq!(log.column("critic/grad_norm"), [1023.278, 942.924]);
    assert!(log.column("lr").iter().all(|v| (v - 1e-6).abs() < 1e-15), "0.010 of the unit in the key");
}

#[test]
fn composer() {
    let log = read(LLMFOUNDRY);
    assert_eq!((log.reader.name(), log.steps()), ("composer", vec![1, 2, 3, 4]));
    assert_eq!(log.column("loss"), [10.9736, 10.9724, 10.9745, 10.6459]);
}

#[test]
fn small_trainers() {
    let log = read(MODDED);
    assert_eq!((log.reader.name(), log.steps()), ("modded-nanogpt", (1..=119).collect()));
    assert_eq!(log.column("step_time")[..5], [0.073, 0.021, 0.018, 0.035, 0.033]);
    assert!(close(log.sum("step_time"), 4.118), "the last total");
    assert_eq!(log.of_kind(Kind::Eval).map(|e| e.m.get("loss")).collect::<Vec<_>>(), [Some(10.8289)]);
    let log = read(LLMC);
    assert_eq!((log.reader.name(), log.steps()), ("llmc", (0..119).collect()));
    assert_eq!(log.column("loss")[..3], [11.0091, 10.9598, 10.8556]);
    assert_eq!((log.column("grad_norm")[0], log.column("lr")[2]), (15.37, 3e-6));
    assert!(
        close(log.sum("loss"), 994.9108)
            && close(log.sum("grad_norm"), 268.25)
            && close(log.sum("lr"), 0.00612)
    );
    assert_eq!(log.of_kind(Kind::Eval).map(|e| e.m.get("loss")).collect::<Vec<_>>(), [Some(11.0092)]);
    let log = read(LLMC_OLD);
    assert_eq!((log.reader.name(), log.steps()), ("llmc", (0..79).collect()));
    assert_eq!(log.column("loss")[..4], [10.965596, 10.814037, 10.543272, 10.260427]);
    assert!(close(log.sum("loss"), 613.152524));
}

#[test]
fn two_columns_need_a_rule() {
    assert_eq!(read(TORCHTITAN_LOSSES).events, [], "nothing says that the numbers are steps and losses");
    let regex = Some(r"^(?P<step>\d+)\s+(?P<loss>\S+)$".to_owned());
    let log = read_with(LogReader::with_rule(&Rule { regex, ..Rule::default() }).unwrap(), TORCHTITAN_LOSSES);
    assert_eq!((log.steps(), log.counters.unmatched), ((1..=10).collect(), 0));
    assert_eq!(log.column("loss")[..2], [8.296810150146484, 7.725587844848633]);
    assert_eq!(log.column("loss")[9], 2.674215316772461);
}

/// Builds, downloads, clones, tests, tracebacks, schedules and prose: steps and losses in all of
/// them, and no training.
#[test]
fn what_else_is_in_a_log() {
    let log = read(&NO_TRAINING.repeat(3));
    assert_eq!((log.events, log.reader.name()), (vec![], "auto"));
}

/// NCCL's inspector and RAS write JSON, metrics and tables with ranks, counts and times in them;
/// none of it is training.
#[test]
fn the_diagnostics_of_nccl_are_no_training() {
    for text in [
        r#"{"header":{"id":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"nnodes":1},"metadata":{"dump_timestamp_us":1748030377748202,"pid":1639453},"coll_perf":{"coll":"AllReduce","coll_sn":1407,"coll_exec_time_us":61974,"coll_busbw_gbs":485.119099}}"#,
        "nccl_bus_bandwidth_gbs{version=\"v5.1\",comm_name=\"dp\",nranks=\"8\",collective=\"AllReduce\"} 325.64\n\
         nccl_collective_exec_time_microseconds{comm_name=\"dp\",collective=\"AllReduce\"} 61974",
        "Job summary\n===========\n\n  Nodes  Processes         GPUs  Processes     GPUs\n(total)   per node  per process    (total)  (total)\n\
         \n      4          8            1         32       32\n\nCommunicators... (0.00s)\n#0-0 (27a079b828ff1a75) MISMATCH\n\
         Communicator ranks have different collective operation counts\n26 ranks have launched up to operation 6650",
    ] {
        let log = read(text);
        assert_eq!((log.events, log.reader.name()), (vec![], "auto"), "{text}");
    }
}

/// One change to the bytes of a sample: what a full disk, a mixed-up pipe or a new release does to
/// a log.
#[derive(Debug, Clone)]
enum Damage {
    Replace(u8),
    Insert(Vec<u8>),
    Cut(usize),
    Double(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        any::<u8>().prop_map(Damage::Replace),
        proptest::collection::vec(any::<u8>(), 0..8).prop_map(Damage::Insert),
        (1usize..40).prop_map(Damage::Cut),
        (1usize..40).prop_map(Damage::Double),
    ]
}

fn apply(bytes: &mut Vec<u8>, at: usize, damage: &Damage) {
    let at = at % bytes.len().max(1);
    match damage {
        Damage::Replace(b) => bytes.get_mut(at).into_iter().for_each(|x| *x = *b),
        Damage::Insert(more) => drop(bytes.splice(at..at, more.iter().copied())),
        Damage::Cut(n) => drop(bytes.drain(at..(at + n).min(bytes.len()))),
        Damage::Double(n) => bytes.extend_from_within(at..(at + n).min(bytes.len())),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_samples_never_panic_and_stay_valid_events(
        sample in 0..ALL.len(),
        hits in proptest::collection::vec((any::<usize>(), damage()), 1..6),
        format in 0..names().len(),
    ) {
        let mut bytes = ALL[sample].as_bytes().to_vec();
        for (at, damage) in &hits {
            apply(&mut bytes, *at, damage);
        }
        let mut reader = LogReader::new(Some(names()[format])).unwrap();
        let mut events = Vec::new();
        for line in String::from_utf8_lossy(&bytes).split('\n') {
            reader.line(line, &mut events);
        }
        let c = reader.counters();
        prop_assert_eq!(c.lines, c.matched + c.ignored + c.unmatched);
        for e in events {
            let json = e.to_json();
            if json.len() <= MAX_EVENT_BYTES {
                let again = Event::parse(json.as_bytes());
                prop_assert!(again.is_ok(), "{} {:?}", json, again);
            }
        }
    }

    #[test]
    fn any_bytes_never_panic(bytes: Vec<u8>, format in 0..names().len()) {
        let mut reader = LogReader::new(Some(names()[format])).unwrap();
        reader.line(&String::from_utf8_lossy(&bytes), &mut Vec::new());
    }
}
