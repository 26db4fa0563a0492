use super::families as f;
use super::*;

use crate::origin::Priority;
use crate::origin::{Peer, Via};
use crate::samples::Samples;

mod owners;
mod sources;

const NOW: f64 = 1_700_001_000.0;

const OPTIONS: Options = Options {
    max_runs: 3,
    new_per_minute: 60.0,
    shared: Vec::new(),
    max_ranks: 16,
    max_custom: 4,
    forget_after: 900.0,
    linger: 60.0,
    convention: Convention::Full,
    gpu: None,
};

/// A training state with a clock, and all events that it has published.
struct Bench {
    training: Training,
    drops: Arc<Drops>,
    now: f64,
    out: Vec<Event>,
}

impl Bench {
    fn new() -> Self {
        Self::with(OPTIONS, Archive::default())
    }

    fn with(options: Options, archive: Archive) -> Self {
        let drops = Arc::new(Drops::default());
        let training = Training::new(options, archive, Arc::clone(&drops));
        Self { training, drops, now: NOW, out: Vec::new() }
    }

    fn from(&mut self, origin: &Origin, line: &str) -> Outcome {
        let event = Event::parse(line.as_bytes()).unwrap();
        self.training.apply(self.now, origin, event, &mut self.out)
    }

    fn http(&mut self, line: &str) -> Outcome {
        self.from(&Origin::Http(Principal::Exporter), line)
    }

    fn page(&self) -> Samples {
        let mut out = Samples::default();
        self.training.write(self.now, &mut out);
        out
    }

    fn last(&self) -> &Event {
        self.out.last().unwrap()
    }
}

fn peer(connection: u64, pid: u32) -> Origin {
    Origin::Peer(Peer { connection, pid: Some(pid), uid: 0 })
}

#[test]
fn a_step_reaches_the_page_and_the_stream_with_what_follows_from_it() {
    let mut b = Bench::new();
    b.http(
        r#"{"k":"hello","run":"llama","rank":0,"world":8,"framework":"megatron","dtype":"bf16","gpu":"NVIDIA H100 80GB HBM3",
            "model":{"name":"llama-3-8b","n_params":7504924672,"layers":32,"heads":32,"head_dim":128,"seq_len":8192}}"#,
    );
    b.http(
        r#"{"k":"step","ts":1700000990,"run":"llama","rank":0,"world":8,"step":5,
            "m":{"loss":2.5,"grad_norm":0.9,"lr":3e-4,"step_time":2,"tokens":152000,"mine":7},"t":{"data":0.5,"fwd_bwd":1.4}}"#,
    );
    let step = b.last();
    assert_eq!((step.attempt, step.ts), (Some(0), Some(1_700_000_990.0)));
    assert_eq!(step.m.get("tokens_per_second_per_gpu"), Some(9_500.0));
    assert!(step.m.get("mfu").is_some_and(|v| (v - 0.556).abs() < 0.001));
    let page = b.page();
    for (family, labels, want) in [
        (&f::LOSS, &["llama"][..], 2.5),
        (&f::GRAD_NORM, &["llama"], 0.9),
        (&f::LEARNING_RATE, &["llama"], 3e-4),
        (&f::STEP, &["llama"], 5.0),
        (&f::STEPS, &["llama"], 1.0),
        (&f::TOKENS, &["llama"], 152_000.0),
        (&f::TOKENS_PER_SECOND, &["llama"], 76_000.0),
        (&f::LAST_STEP, &["llama"], 1_700_000_990.0),
        (&f::LOSS_MAX, &["llama", "1m"], 2.5),
        (&f::GRAD_NORM_MAX, &["llama", "5m"], 0.9),
        (&f::CUSTOM, &["llama", "mine"], 7.0),
        (&f::WORLD, &["llama"], 8.0),
        (&f::NONFINITE, &["llama", "loss", "value"], 0.0),
        (&f::PEAK_FLOPS, &["llama"], 989.4e12),
        (&f::DATA_WAIT, &["llama", "0"], 0.25),
        (&f::PHASE_SECONDS, &["llama", "0", "fwd_bwd"], 1.4),
        (&f::RUN_INFO, &["llama", "megatron", "", "llama-3-8b", "bf16", "NVIDIA H100 80GB HBM3", ""], 1.0),
    ] {
        assert_eq!(page.get(family, labels), Some(want), "{} {labels:?}", family.name);
    }
    let percent = |c| (page.get(&f::MFU, &["llama", c]).unwrap() * 1000.0).round() / 10.0;
    assert_eq!((percent("6n"), percent("causal"), percent("full")), (43.2, 49.4, 55.6));
}

#[test]
fn whose_word_on_the_model_counts() {
    let mut b = Bench::new();
    let file = Origin::source(Via::Tail, &Arc::from("/x"), Priority::File);
    let known = |b: &Bench| b.training.runs["r"].model.name.clone();
    let hello = |source: &str, name: &str, dtype: &str| {
        format!(
            r#"{{"k":"hello","run":"r","source":"{source}","dtype":"{dtype}","model":{{"name":"{name}","n_params":1e9}}}}"#
        )
    };
    b.from(&file, &hello("config.json", "kept", "bf16"));
    assert_eq!(known(&b).as_deref(), Some("kept"));
    b.from(&file, r#"{"k":"hello","run":"r","model":{"name":"printed","n_params":1e9}}"#);
    assert_eq!(known(&b).as_deref(), Some("printed"));
    b.from(&file, &hello("config.json", "kept", "bf16"));
    assert_eq!(known(&b).as_deref(), Some("printed"), "which says more than what lies beside a checkpoint");
    b.from(&file, &hello("tail", "configured", "fp8"));
    b.http(&hello("x", "declared", "bf16"));
    assert_eq!(known(&b).as_deref(), Some("configured"));
    assert_eq!(b.training.runs["r"].about.dtype, "fp8");
}

#[test]
fn a_file_that_describes_the_model_of_a_run_that_ended_does_not_wake_it() {
    let mut b = Bench::new();
    let file = Origin::source(Via::Tail, &Arc::from("/x/checkpoint-9/config.json"), Priority::File);
    b.http(r#"{"k":"step","run":"r","rank":0,"step":1,"loss":2.5}"#);
    b.http(r#"{"k":"bye","run":"r","rank":0,"code":0}"#);
    let published = b.out.len();
    b.from(
        &file,
        r#"{"k":"hello","run":"r","source":"config.json","model":{"name":"llama","n_params":1e9}}"#,
    );
    assert!(
        b.training.runs["r"].is_over() && b.out.len() == published,
        "nor is it published that it is alive"
    );
    assert_eq!(b.training.runs["r"].model.name.as_deref(), Some("llama"));
}

#[test]
fn a_model_without_a_formula_has_a_remark() {
    let mut b = Bench::new();
    b.http(r#"{"k":"hello","run":"r","world":8,"gpu":"H100","model":{"model_type":"jamba","n_params":5e10,"num_hidden_layers":32}}"#);
    b.http(r#"{"k":"step","run":"r","step":1,"m":{"tokens":1000,"step_time":1}}"#);
    let page = b.page();
    let why = "jamba has layers that there is no agreed way of counting for";
    assert_eq!(page.get(&f::MFU_REMARK, &["r", why]), Some(1.0));
    assert_eq!((page.get(&f::MFU, &["r", "6n"]), b.last().m.get("mfu")), (None, None));
    b.http(r#"{"k":"hello","run":"r","gpu":"abacus","model":{"n_params":1e9}}"#);
    let page = b.page();
    assert_eq!(page.get(&f::MFU_REMARK, &["r", why]), None);
    let why = "no peak FLOP/s is known of this GPU and number format";
    assert_eq!(page.get(&f::MFU_REMARK, &["r", why]), Some(1.0));
}

#[test]
fn a_trainer_that_says_nothing_of_its_model_has_a_remark() {
    let mut b = Bench::new();
    let why = "neither the parameters nor the dimensions of the model are known";
    b.http(r#"{"k":"hello","run":"r","world":8,"gpu":"H100","framework":"torchtitan"}"#);
    assert_eq!(b.page().get(&f::MFU_REMARK, &["r", why]), None, "no step yet");
    b.http(r#"{"k":"step","run":"r","step":1,"m":{"loss":2,"tokens_per_second_per_gpu":1000}}"#);
    assert_eq!(b.page().get(&f::MFU_REMARK, &["r", why]), Some(1.0));
    b.http(r#"{"k":"hello","run":"r","model":{"n_params":1e9}}"#);
    b.http(r#"{"k":"step","run":"r","step":2,"m":{"loss":2,"tokens_per_second_per_gpu":1000}}"#);
    assert_eq!(b.page().get(&f::MFU_REMARK, &["r", why]), None);
}

#[test]
fn a_model_without_the_rest_of_what_its_mfu_needs_has_a_remark() {
    let sequences = "neither the tokens of a step nor the length of a sequence are known";
    let duration = "neither the tokens nor the sequences of a step are known, or not its duration";
    let gpus = "how many GPUs the run has is not known";
    for (model, m, want) in [
        (r#""n_params":1e9"#, r#""tokens":1000,"step_time":1"#, gpus),
        (r#""n_params":1e9"#, r#""samples":8,"step_time":1"#, sequences),
        (r#""n_params":1e9,"seq_len":4096"#, r#""samples":8"#, duration),
    ] {
        let mut b = Bench::new();
        b.http(&format!(r#"{{"k":"hello","run":"r","gpu":"H100","model":{{{model}}}}}"#));
        assert_eq!(b.page().get(&f::MFU_REMARK, &["r", want]), None, "no step yet");
        b.http(&format!(r#"{{"k":"step","run":"r","step":1,"m":{{{m}}}}}"#));
        assert_eq!(b.page().get(&f::MFU_REMARK, &["r", want]), Some(1.0), "{m}");
        b.http(r#"{"k":"step","run":"r","step":2,"world":8,"m":{"tokens":1000,"step_time":1}}"#);
        assert_eq!(b.page().get(&f::MFU_REMARK, &["r", want]), None, "{m}");
    }
}

#[test]
fn a_process_with_eight_gpus_has_the_mfu_of_each() {
    let mut b = Bench::new();
    let why = "how many GPUs the run has is not known";
    let mut mfu = |run: &str, more: &str| {
        b.http(&format!(r#"{{"k":"hello","run":"{run}","gpu":"H100","model":{{"n_params":1e9}}{more}}}"#));
        b.http(&format!(r#"{{"k":"step","run":"{run}","step":1,"m":{{"tokens":8e4,"step_time":1}}}}"#));
        let page = b.page();
        let per_gpu = b.last().m.get("tokens_per_second_per_gpu");
        (per_gpu, page.get(&f::MFU, &[run, "6n"]), page.get(&f::MFU_REMARK, &[run, why]))
    };
    let of_one = mfu("eight", r#","world":8"#);
    assert_eq!((of_one.0, of_one.1.is_some(), of_one.2), (Some(1e4), true, None));
    assert_eq!(mfu("jax", r#","world":1,"framework":"jax","devices":8"#), of_one);
    assert_eq!(mfu("unsaid", r#","world":1,"framework":"jax""#), (None, None, Some(1.0)));
}

#[test]
fn the_mfu_of_a_model_goes_with_it() {
    let mut b = Bench::new();
    let known = r#"{"k":"hello","run":"r","world":8,"gpu":"H100","model":{"n_params":1e9}}"#;
    let refused = r#"{"k":"hello","run":"r","model":{"model_type":"jamba","n_params":1e9}}"#;
    let mut step = 0;
    let mut ratio = |b: &mut Bench, hello: &str| {
        step += 1;
        b.http(hello);
        b.http(&format!(r#"{{"k":"step","run":"r","step":{step},"m":{{"tokens":8e4,"step_time":1}}}}"#));
        b.page().get(&f::MFU, &["r", "6n"])
    };
    assert!(ratio(&mut b, known).is_some());
    b.http(known);
    assert!(b.page().get(&f::MFU, &["r", "6n"]).is_some(), "the same model again");
    assert_eq!(ratio(&mut b, refused), None, "the speed is of another model");
    assert!(ratio(&mut b, known).is_some());
    assert_eq!(ratio(&mut b, &known.replace("H100", "abacus")), None, "no peak is known");
}

#[test]
fn nan_is_counted_and_streamed_and_the_gauge_keeps_the_last_number() {
    let mut b = Bench::new();
    b.http(r#"{"k":"step","run":"r","step":1,"loss":2.5}"#);
    b.http(r#"{"k":"step","run":"r","step":2,"loss":NaN}"#);
    assert!(b.last().m.get("loss").unwrap().is_nan());
    let page = b.page();
    assert_eq!(page.get(&f::LOSS, &["r"]), Some(2.5));
    assert_eq!(page.get(&f::NONFINITE, &["r", "loss", "value"]), Some(1.0));
    assert_eq!(page.get(&f::STEP, &["r"]), Some(2.0));
}

#[test]
fn a_spike_between_two_scrapes_is_on_the_page_for_a_minute() {
    let mut b = Bench::new();
    for (step, norm) in [(1, 0.5), (2, 80.0), (3, 0.6)] {
        b.http(&format!(r#"{{"k":"step","run":"r","step":{step},"grad_norm":{norm}}}"#));
        b.now += 1.0;
    }
    b.now += 12.0;
    assert_eq!(b.page().get(&f::GRAD_NORM, &["r"]), Some(0.6));
    assert_eq!(b.page().get(&f::GRAD_NORM_MAX, &["r", "1m"]), Some(80.0));
    b.now += 60.0;
    assert_eq!(b.page().get(&f::GRAD_NORM_MAX, &["r", "1m"]), None);
    assert_eq!(b.page().get(&f::GRAD_NORM_MAX, &["r", "5m"]), Some(80.0));
}

#[test]
fn going_back_is_a_restart_that_is_published_before_the_step() {
    let mut b = Bench::new();
    for step in [148, 149, 150] {
        b.http(&format!(r#"{{"k":"step","run":"r","step":{step},"loss":2}}"#));
    }
    b.http(r#"{"k":"step","run":"r","step":100,"loss":2.1}"#);
    let [.., restart, step] = &b.out[..] else { panic!() };
    assert_eq!(
        (restart.name.as_deref(), restart.attempt, restart.step),
        (Some("restart"), Some(1), Some(100))
    );
    assert_eq!(restart.text.as_deref(), Some("steps went back from 150 to 100: the run restarted"));
    assert_eq!(step.attempt, Some(1));
    let page = b.page();
    assert_eq!(page.get(&f::RESTARTS, &["r"]), Some(1.0));
    assert_eq!(page.get(&f::STEP, &["r"]), Some(100.0));
    assert_eq!(page.get(&f::STEPS, &["r"]), Some(4.0));
    assert!(b.training.is_urgent());
}

#[test]
fn a_run_that_a_trainer_opens_is_saved_at_once() {
    let mut b = Bench::new();
    b.http(r#"{"k":"step","run":"r","step":1,"loss":2}"#);
    assert!(!b.training.is_urgent());
    b.from(&peer(1, 42), r#"{"k":"hello","run":"r.1","rank":0}"#);
    assert!(b.training.is_urgent());
    assert!(b.training.archive(b.now).runs.contains_key("r.1"));
    assert!(!b.training.is_urgent());
}

#[test]
fn attempts_survive_a_restart_of_the_exporter() {
    let mut b = Bench::new();
    for step in [10, 11, 5, 6] {
        b.from(&peer(1, 42), &format!(r#"{{"k":"step","run":"r","rank":3,"step":{step}}}"#));
    }
    let saved = b.training.archive(b.now);
    let mut again = Bench::with(OPTIONS, saved.clone());
    again.from(&peer(1, 42), r#"{"k":"hello","run":"r","rank":3}"#);
    again.from(&peer(1, 42), r#"{"k":"step","run":"r","rank":3,"step":7}"#);
    assert_eq!((again.out.len(), again.last().attempt), (2, Some(1)), "the trainer went on: no restart");
    let mut again = Bench::with(OPTIONS, saved);
    again.from(&peer(1, 43), r#"{"k":"hello","run":"r","rank":3}"#);
    again.from(&peer(1, 43), r#"{"k":"step","run":"r","rank":3,"step":7}"#);
    assert_eq!(again.last().attempt, Some(2), "another process: a restart");
}

#[test]
fn ranks_share_counters_and_have_their_own_series() {
    let mut b = Bench::new();
    for step in 1..=10 {
        for rank in 0..8 {
            let line = r#"{"k":"step","run":"r","rank":RANK,"step":STEP,"m":{"loss":2,"tokens":100,"step_time":0.5,"skipped":1}}"#;
            b.http(&line.replace("RANK", &rank.to_string()).replace("STEP", &step.to_string()));
        }
    }
    let page = b.page();
    assert_eq!(page.get(&f::STEPS, &["r"]), Some(10.0));
    assert_eq!(page.get(&f::TOKENS, &["r"]), Some(1_000.0));
    assert_eq!(page.get(&f::SKIPPED, &["r"]), Some(10.0));
    assert_eq!(page.get(&f::RANK_STEP, &["r", "7"]), Some(10.0));
    assert_eq!(page.iter().filter(|s| s.family == &f::STEP_DURATION).count(), 8);
}

#[test]
fn the_time_between_steps_is_their_duration_when_nobody_says() {
    let mut b = Bench::new();
    b.http(r#"{"k":"step","run":"r","step":10,"ts":1700000100}"#);
    b.http(r#"{"k":"step","run":"r","step":20,"ts":1700000130}"#);
    assert_eq!(b.last().m.get("step_time"), Some(3.0));
    // After a restart, the gap is not the duration of a step.
    b.http(r#"{"k":"step","run":"r","step":5,"ts":1700000900}"#);
    assert_eq!(b.last().m.get("step_time"), None);
    // Lines that arrive at once give no duration.
    b.http(r#"{"k":"step","run":"q","step":1}"#);
    b.http(r#"{"k":"step","run":"q","step":2}"#);
    assert_eq!(b.last().m.get("step_time"), None);
}

#[test]
fn a_lower_source_is_dropped_where_a_higher_one_spoke() {
    let mut b = Bench::new();
    let log = Origin::source(Via::Tail, &"/logs/run.log".into(), Priority::Log);
    b.from(&log, r#"{"k":"step","run":"r","step":7,"loss":2.5}"#);
    b.http(r#"{"k":"step","run":"r","step":8,"loss":2.4}"#);
    let dup = b.from(&log, r#"{"k":"step","run":"r","step":8,"loss":2.4}"#);
    assert_eq!(dup, Outcome::Dropped(Reason::Duplicate));
    assert_eq!((b.out.len(), b.drops.get(Reason::Duplicate)), (2, 1));
}

#[test]
fn a_closed_connection_without_goodbye_is_a_death() {
    let mut b = Bench::new();
    b.from(&peer(1, 42), r#"{"k":"step","run":"r","rank":3,"step":12}"#);
    b.from(&peer(2, 43), r#"{"k":"step","run":"r","rank":4,"step":12}"#);
    b.from(&peer(2, 43), r#"{"k":"bye","run":"r","rank":4,"code":0}"#);
    let mut out = Vec::new();
    b.training.closed(b.now, 2, ProcessFate::Gone, &mut out);
    assert_eq!(out, [], "it said goodbye");
    b.training.closed(b.now, 1, ProcessFate::Gone, &mut out);
    insta::assert_snapshot!(out[0].to_json(), @r#"{"v":1,"k":"event","ts":1700001000,"run":"r","rank":3,"attempt":0,"uid":0,"step":12,"name":"rank_dead","text":"process 42 of rank 3 closed its socket without a goodbye after step 12; it is gone, and its exit status cannot be seen from here","level":"error","pid":42,"process":"gone"}"#);
    assert_eq!(b.page().get(&f::RANK_UP, &["r", "3"]), Some(0.0));
    assert_eq!(b.page().get(&f::RANK_DEATHS, &["r"]), Some(1.0));
}

#[test]
fn only_the_kernel_names_the_process_of_a_connection() {
    let mut b = Bench::new();
    b.from(&peer(1, 42), r#"{"k":"step","run":"r","rank":3,"step":12}"#);
    b.from(&Origin::Http(peer(1, 42).principal()), r#"{"k":"hello","run":"r","rank":3,"pid":7}"#);
    assert_eq!(b.training.processes().iter().map(|p| p.pid).collect::<Vec<_>>(), [42]);
    let elsewhere = Origin::Peer(Peer { connection: 2, pid: None, uid: 1000 });
    b.from(&elsewhere, r#"{"k":"hello","run":"s","rank":0,"pid":7}"#);
    b.from(&elsewhere, r#"{"k":"step","run":"s","rank":0,"step":1}"#);
    assert_eq!(b.training.processes().len(), 1, "it may be another's here");
    b.from(&elsewhere, r#"{"k":"hello","run":"s","rank":0,"pid":8}"#);
    b.from(&elsewhere, r#"{"k":"step","run":"s","rank":0,"step":2}"#);
    assert_eq!(b.last().attempt, Some(1), "but it tells a restart");
}

#[test]
fn a_command_is_no_rank() {
    let mut b = Bench::new();
    b.from(&peer(1, 42), r#"{"k":"step","run":"r","rank":3,"step":12}"#);
    b.from(&peer(2, 50), r#"{"k":"hello","run":"r","rank":3,"role":"command"}"#);
    b.from(&peer(2, 50), r#"{"k":"step","run":"r","rank":3,"step":13,"role":"command"}"#);
    let mut out = Vec::new();
    b.training.closed(b.now, 2, ProcessFate::Gone, &mut out);
    assert_eq!((out.len(), b.training.processes()[0].pid), (0, 42));
}

#[test]
fn a_rank_with_another_connection_lives() {
    let mut b = Bench::new();
    b.from(&peer(1, 42), r#"{"k":"step","run":"r","rank":3,"step":12}"#);
    b.from(&peer(2, 42), r#"{"k":"step","run":"r","rank":3,"step":13}"#);
    let mut out = Vec::new();
    b.training.closed(b.now, 1, ProcessFate::Running, &mut out);
    assert_eq!(out, []);
    assert_eq!(b.training.processes().len(), 1);
    b.training.closed(b.now, 2, ProcessFate::Gone, &mut out);
    assert_eq!(out.len(), 1);
}

#[test]
fn a_run_leaves_the_page_when_it_is_over_or_silent() {
    let mut b = Bench::new();
    b.http(r#"{"k":"step","run":"done","rank":0,"step":1}"#);
    b.http(r#"{"k":"bye","run":"done","rank":0,"code":0}"#);
    b.http(r#"{"k":"step","run":"silent","step":1}"#);
    b.from(&peer(1, 42), r#"{"k":"step","run":"hung","step":1}"#);
    let runs = |b: &Bench| b.page().get(&f::RUNS, &[]).unwrap();
    b.now += 61.0;
    b.training.expire(b.now);
    assert_eq!(runs(&b), 2.0);
    b.now += 900.0;
    b.training.expire(b.now);
    assert_eq!(b.page().get(&f::STEP, &["hung"]), Some(1.0), "its process is there: it hangs");
    assert_eq!(runs(&b), 1.0);
    // The attempt of a forgotten run is remembered.
    b.http(r#"{"k":"step","run":"silent","step":0}"#);
    assert_eq!(b.last().attempt, Some(1));
}

#[test]
fn a_goodbye_that_names_no_rank_is_that_of_all_who_cannot_speak() {
    let mut b = Bench::new();
    for rank in 0..4 {
        b.http(&format!(r#"{{"k":"step","run":"log","rank":{rank},"step":1}}"#));
    }
    b.http(r#"{"k":"bye","run":"log"}"#);
    b.from(&peer(1, 42), r#"{"k":"step","run":"client","rank":1,"step":1}"#);
    b.http(r#"{"k":"bye","run":"client"}"#);
    b.now += 61.0;
    b.training.expire(b.now);
    assert_eq!(b.page().get(&f::STEP, &["log"]), None);
    assert_eq!(
        b.page().get(&f::STEP, &["client"]),
        Some(1.0),
        "a process that is connected speaks for itself"
    );
}

#[test]
fn limits_hold_and_count() {
    let mut b = Bench::new();
    for run in ["a", "b", "c", "d"] {
        b.http(&format!(r#"{{"k":"hb","run":"{run}"}}"#));
    }
    assert_eq!(b.drops.get(Reason::Runs), 1);
    b.http(r#"{"k":"bye","run":"b","rank":0}"#);
    assert_eq!(b.http(r#"{"k":"hb","run":"d"}"#), Outcome::Accepted, "in the place of the one that ended");
    for rank in 0..20 {
        b.http(&format!(r#"{{"k":"hb","run":"a","rank":{rank}}}"#));
    }
    assert_eq!(b.drops.get(Reason::Ranks), 4);
    b.http(r#"{"k":"step","run":"a","step":1,"m":{"c1":1,"c2":1,"c3":1,"c4":1,"c5":1,"c6":1}}"#);
    assert_eq!(b.drops.get(Reason::Custom), 2);
    assert_eq!(b.last().m.get("c6"), Some(1.0), "the stream has it all");
}

#[test]
fn what_needs_a_run_says_so() {
    let mut b = Bench::new();
    let Outcome::Rejected(e) = b.http(r#"{"k":"step","step":1}"#) else { panic!() };
    assert_eq!(e.field, "run");
    let Outcome::Rejected(e) = b.http(r#"{"k":"gap","run":"r","lost":9}"#) else { panic!() };
    assert_eq!(e.field, "k");
    assert_eq!(b.from(&Origin::Node, r#"{"k":"xid","code":79}"#), Outcome::Accepted);
}

#[test]
fn a_run_that_fell_silent_makes_room() {
    let mut b = Bench::new();
    b.from(&peer(1, 42), r#"{"k":"step","run":"hung","step":1}"#);
    b.http(r#"{"k":"hb","run":"first"}"#);
    b.now += 30.0;
    b.http(r#"{"k":"hb","run":"second"}"#);
    assert_eq!(b.http(r#"{"k":"hb","run":"new"}"#), Outcome::Dropped(Reason::Runs), "all spoke a moment ago");
    b.now += 31.0;
    assert_eq!(b.http(r#"{"k":"hb","run":"new"}"#), Outcome::Accepted);
    assert_eq!(b.training.runs.keys().map(|r| &**r).collect::<Vec<_>>(), ["hung", "new", "second"]);
}

#[test]
fn one_wild_step_spoils_nothing() {
    let mut b = Bench::new();
    for step in [1, 2, 9_000_000_000i64, 3, 4] {
        b.http(&format!(r#"{{"k":"step","run":"r","step":{step},"tokens":10}}"#));
    }
    let page = b.page();
    assert_eq!((page.get(&f::STEPS, &["r"]), page.get(&f::TOKENS, &["r"])), (Some(4.0), Some(40.0)));
    assert_eq!((page.get(&f::STEP, &["r"]), page.get(&f::RESTARTS, &["r"])), (Some(4.0), Some(0.0)));
    assert_eq!(b.drops.get(Reason::StepJump), 1);
    // Two in a row confirm the jump. The number of steps between is unknown.
    for step in [1_000_000, 1_000_001] {
        b.http(&format!(r#"{{"k":"step","run":"r","step":{step}}}"#));
    }
    let page = b.page();
    assert_eq!((page.get(&f::STEPS, &["r"]), page.get(&f::STEP, &["r"])), (Some(5.0), Some(1_000_001.0)));
    let negative = Event { step: Some(-1), ..Event::step("r", 1) };
    assert!(matches!(
        b.training.apply(b.now, &Origin::Http(Principal::Exporter), negative, &mut b.out),
        Outcome::Rejected(_)
    ));
}

#[test]
fn a_time_that_cannot_be_is_that_of_the_arrival_and_measures_nothing() {
    let mut b = Bench::new();
    for (step, ts) in [(1, 1_700_000_900.0), (2, 1_700_000_901_000.0), (3, 1_700_000_902.0)] {
        b.http(&format!(r#"{{"k":"step","run":"r","step":{step},"ts":{ts}}}"#));
    }
    let seen: Vec<_> = b.out.iter().map(|e| (e.ts.unwrap(), e.m.get("step_time"))).collect();
    assert_eq!(seen, [(1_700_000_900.0, None), (NOW, None), (1_700_000_902.0, Some(1.0))]);
    assert_eq!(b.drops.get(Reason::Timestamp), 1);
}

#[test]
fn the_trainers_own_mfu_is_never_ours() {
    let mut b = Bench::new();
    b.http(r#"{"k":"step","run":"r","step":1,"mfu":0.41}"#);
    assert_eq!((b.last().m.get("mfu"), b.last().m.get("mfu_reported")), (None, Some(0.41)));
    let page = b.page();
    assert_eq!(page.get(&f::MFU_REPORTED, &["r"]), Some(0.41));
    assert!(page.iter().all(|s| s.family != &f::MFU));
}

#[test]
fn checkpoints_and_phases_on_the_page() {
    let mut b = Bench::new();
    b.http(r#"{"k":"ckpt","run":"r","phase":"start","step":100,"ts":1700000980}"#);
    b.http(r#"{"k":"phase","run":"r","name":"ckpt","phase":"begin","ts":1700000980}"#);
    assert_eq!(b.page().get(&f::CKPT_IN_PROGRESS, &["r"]), Some(1.0));
    assert_eq!(b.page().get(&f::PHASE_ACTIVE, &["r", "0", "ckpt"]), Some(1.0));
    b.http(r#"{"k":"ckpt","run":"r","phase":"end","step":100,"ts":1700000990,"bytes":5e9}"#);
    b.http(r#"{"k":"phase","run":"r","name":"ckpt","phase":"end","ts":1700000990}"#);
    let page = b.page();
    assert_eq!(page.get(&f::CKPT_SUCCESS, &["r"]), Some(1_700_000_990.0));
    assert_eq!(page.get(&f::CKPT_DURATION, &["r", "save"]), Some(10.0));
    assert_eq!(page.get(&f::CKPT_SIZE, &["r", "save"]), Some(5e9));
    assert_eq!(page.get(&f::PHASE_SECONDS, &["r", "0", "ckpt"]), Some(10.0));
}

proptest::proptest! {
    /// Whatever trainers send, no series is exported twice and attempts never go back.
    #[test]
    fn any_traffic_keeps_the_page_valid(
        traffic in proptest::collection::vec((0usize..9, 0u32..4, 0i64..30, 0u64..3, -1e3f64..1e3), 1..150),
    ) {
        let mut b = Bench::new();
        let kinds = [
            r#""k":"step","loss":VALUE,"x":VALUE"#, r#""k":"step","loss":NaN"#, r#""k":"hb""#, r#""k":"bye""#,
            r#""k":"hello","pid":STEP"#, r#""k":"ckpt","phase":"start""#, r#""k":"phase","name":"eval","phase":"begin""#,
            r#""k":"eval","name":"c4","loss":VALUE"#, r#""k":"step","missing":["loss"],"ts":VALUE"#,
        ];
        for (kind, rank, step, connection, value) in traffic {
            let body = kinds[kind].replace("VALUE", &value.to_string()).replace("STEP", &step.to_string());
            let line = format!(r#"{{"run":"r","rank":{rank},"step":{step},{body}}}"#);
            b.from(&peer(connection, 100 + rank), &line);
            if value > 900.0 {
                let mut out = Vec::new();
                b.training.closed(b.now, connection, ProcessFate::Unknown, &mut out);
            }
            b.now += value.abs() / 100.0;
            b.training.expire(b.now);
        }
        let page = b.page();
        let mut seen = std::collections::BTreeSet::new();
        for s in page.iter() {
            proptest::prop_assert!(seen.insert((s.family.name, s.labels.clone())), "{s:?}");
        }
        let attempts: Vec<_> = b.out.iter().filter(|e| e.name.as_deref() == Some("restart")).map(|e| e.attempt).collect();
        proptest::prop_assert!(attempts.is_sorted());
    }
}

#[test]
fn a_death_is_missed_only_by_whoever_did_not_listen() {
    let mut b = Bench::new();
    b.from(&peer(1, 70), r#"{"k":"step","run":"r","rank":0,"step":5}"#);
    assert!(!b.training.missed("r", 0, 70, NOW), "its connection will be seen to close");
    assert!(b.training.missed("r", 1, 71, NOW) && b.training.missed("other", 0, 70, NOW));
    let archive = b.training.archive(NOW);
    let next = Bench::with(OPTIONS, archive);
    assert!(!next.training.missed("r", 0, 70, NOW - 5.0), "it died while the one before listened");
    assert!(next.training.missed("r", 0, 70, NOW + 30.0), "it lived on after that");
}
