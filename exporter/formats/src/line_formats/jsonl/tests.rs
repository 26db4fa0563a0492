use stepwatch_wire::{Event, Kind};

use super::Jsonl;
use crate::LogReader;
use crate::line_formats::samples::{PLAIN, Sampled, Written};

impl Sampled for Jsonl {
    const LOGS: &'static [&'static str] = &[include_str!("../../../tests/data/nemo_automodel.jsonl")];
    // A JSON object is a Python dict too: the list of formats decides.
    const READ_BY: &'static [&'static str] = &["huggingface"];
    const WRITTEN: &'static [Written] = &[Written {
        line: r#"{"step": §,⟨ "loss": ¤,⟩ "grad_norm": 0.5, "lr": 1e-05}"#,
        word: Some("null"),
        nan: "NaN",
        ..PLAIN
    }];
    const OWN: &'static [Written] = &[Written {
        line: r#"{"step": §, "loss": 2.5, "lr": 1e-05, "reward": ¤}"#,
        word: Some("null"),
        ..PLAIN
    }];
}

fn read(lines: &[&str]) -> Vec<Event> {
    with(LogReader::new(Some("jsonl")).unwrap(), lines)
}

fn with(mut r: LogReader, lines: &[&str]) -> Vec<Event> {
    let mut out = Vec::new();
    for l in lines {
        r.line(l, &mut out);
    }
    out
}

#[test]
fn our_own_events() {
    let e = read(&[
        r#"{"v":1,"k":"step","ts":5.5,"run":"r","rank":3,"step":7,"m":{"loss":NaN}}"#,
        r#"{"k":"bye","code":1}"#,
    ]);
    assert_eq!(
        (e[0].step, e[0].rank, e[0].run.as_deref(), e[0].ts),
        (Some(7), Some(3), Some("r"), Some(5.5))
    );
    assert!(e[0].m.get("loss").unwrap().is_nan());
    assert_eq!((e[1].kind, e[1].code), (Kind::Bye, Some(1)));
}

#[test]
fn llama_factory() {
    let e = read(&[
        r#"{"current_steps":5,"total_steps":10,"loss":1.58,"lr":1e-05,"epoch":0.05,"percentage":50.0,"elapsed_time":"0:00:10","throughput":1500.5,"total_tokens":1000}"#,
        r#"{"current_steps":5,"total_steps":10,"eval_loss":1.25,"epoch":0.05}"#,
        r#"{"current_steps":10,"total_steps":10,"loss":1.5,"lr":0.0,"epoch":0.1,"total_tokens":3000}"#,
    ]);
    assert_eq!((e[0].step, e[0].m.get("loss"), e[0].m.get("lr")), (Some(5), Some(1.58), Some(1e-5)));
    assert_eq!(e[0].m.get("tokens_per_second"), Some(1500.5));
    assert_eq!((e[1].kind, e[1].m.get("loss")), (Kind::Eval, Some(1.25)));
    assert_eq!(e[2].m.get("tokens"), Some(400.0));
    assert_eq!((e[3].kind, e[3].step), (Kind::Bye, Some(10)));
    let e = read(&[r#"{"train_runtime":5.5,"global_step/max_steps":"94/94"}"#]);
    assert_eq!((e.len(), e[0].kind), (1, Kind::Bye));
}

#[test]
fn the_first_count_of_llama_factory_is_not_that_of_a_step() {
    let line = |step: i64, tokens: i64| {
        format!(r#"{{"current_steps":{step},"total_steps":100000,"loss":1.5,"total_tokens":{tokens}}}"#)
    };
    // The tail begins in the middle, and a process goes on and counts from 0 again.
    let lines = [line(5000, 9_000_000), line(5010, 9_020_000), line(5020, 20_000), line(5030, 40_000)];
    let e = read(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let tokens: Vec<_> = e.iter().map(|e| e.m.get("tokens")).collect();
    assert_eq!(tokens, [None, Some(2000.0), None, Some(2000.0)]);
}

#[test]
fn the_throughput_of_llama_factory_is_a_mean() {
    let line = |step: i64, tokens: f64, seconds: f64, loss: &str| {
        format!(
            r#"{{"current_steps":{step},"total_steps":100,{loss}"total_tokens":{tokens},"throughput":{}}}"#,
            tokens / seconds
        )
    };
    let train = r#""loss":1.5,"lr":1e-05,"#;
    let lines = [
        line(5, 1000.0, 10.0, train),
        line(10, 2000.0, 20.0, train),
        // Half as fast; then an evaluation of half a minute; then a process that goes on with the
        // run.
        line(15, 3000.0, 40.0, train),
        line(15, 3000.0, 70.0, r#""eval_loss":1.25,"#),
        line(20, 4000.0, 80.0, train),
        line(25, 5000.0, 10.0, train),
        line(30, 6000.0, 20.0, train),
    ];
    let e = read(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let steps = e.iter().filter(|e| e.kind == Kind::Step);
    let rates: Vec<_> = steps.map(|e| e.m.get("tokens_per_second").map(f64::round)).collect();
    assert_eq!(rates, [Some(100.0), Some(100.0), Some(50.0), Some(100.0), None, Some(100.0)]);
}

#[test]
fn null_is_how_strict_writers_say_nan() {
    let verl = |step: i64, loss: &str, more: &str| {
        format!(
            r#"{{"step":{step},"data":{{"actor/pg_loss":{loss},"actor/grad_norm":{loss},"actor/lr":1e-6,"perf/throughput":811.5{more}}}}}"#
        )
    };
    let lines = [
        verl(1, "0.5", ""),
        verl(2, "0.4", ""),
        verl(3, "null", ""),
        verl(4, "null", r#","val-core/gsm8k/acc/mean@1":0.25"#),
        r#"{"step":5,"data":{"val-core/gsm8k/acc/mean@1":0.25}}"#.to_owned(),
    ];
    let e = read(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let missing: Vec<_> =
        e.iter().filter(|e| e.kind == Kind::Step).map(|e| (e.step.unwrap(), e.missing.len())).collect();
    assert_eq!(missing, [(1, 0), (2, 0), (3, 2), (4, 2)], "and no evaluation is one");
    let e = read(&[&verl(1, "0.5", ""), &verl(2, "null", "")]);
    assert_eq!(e[1].missing.len(), 2, "it writes every value of every step");
    // A writer that writes all of its fields into each record.
    let whole = |step: i64, loss: &str, eval: &str| {
        format!(r#"{{"step":{step},"loss":{loss},"lr":0.1,"eval_loss":{eval}}}"#)
    };
    let lines: Vec<_> =
        (1..40).map(|s| if s % 5 == 0 { whole(s, "null", "1.5") } else { whole(s, "2.5", "null") }).collect();
    let e = read(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(e.iter().all(|e| e.missing.is_empty()), "{e:?}");
    assert_eq!(
        read(&[&whole(1, "2.5", "null"), &whole(2, "2.4", "null"), &whole(3, "null", "null")])[2].missing,
        ["loss"]
    );
}

#[test]
fn a_metric_that_is_an_object_has_its_total() {
    let line = |step: i64, total: &str| {
        format!(r#"{{"step": {step}, "loss": 2.0, "grad_norm": {{"total": {total}, "embed": 0.5}}}}"#)
    };
    let lines = [line(5, "1.2"), line(6, "1.3"), line(7, "null"), line(8, "NaN")];
    let e = read(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!((e[0].m.get("grad_norm"), e[1].m.get("grad_norm")), (Some(1.2), Some(1.3)));
    assert_eq!(e[2].missing, ["grad_norm"]);
    assert!(e[3].m.get("grad_norm").unwrap().is_nan());
    let e = read(&[
        r#"{"step": 1, "metrics": {"loss": {"lm": 2.5}}}"#,
        r#"{"step": 2, "metrics": {"loss": {"lm": 2.4}}}"#,
        r#"{"step": 3, "metrics": {"loss": {"lm": null}}}"#,
    ]);
    assert_eq!((e[0].m.get("loss"), &e[2].missing[..]), (Some(2.5), &["loss".to_owned()][..]));
    for parts in [r#"{"val": null}"#, r#"{"lm": null, "aux": 0.1}"#, "{}", r#"{"kind": "l2"}"#, "[null]"] {
        let lost = format!(r#"{{"step": 9, "loss": 2.0, "grad_norm": {parts}}}"#);
        let e = read(&[&lines[0], &lines[1], &lost]);
        assert!(e.iter().all(|e| e.missing.is_empty()), "{parts}: {e:?}");
    }
}

#[test]
fn a_record_behind_what_a_logger_writes() {
    let e = read(&[
        r#"INFO:metrics:{"step": 5, "loss": 2.5}"#,
        r#"2026-05-29 03:52:45,000 INFO root: {"step": 6, "loss": NaN}"#,
        r#"config {"step": 1, "loss": "ce"}"#,
        r#"step {x}: {"step": 7, "loss": 2.5}"#,
    ]);
    assert_eq!(e.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [5, 6]);
}

#[test]
fn ms_swift_verl_and_levanter() {
    let e = read(&[
        r#"{"loss":1.47,"grad_norm":10.5,"learning_rate":2e-06,"token_acc":0.65,"global_step/max_steps":"1/94","elapsed_time":"2s"}"#,
        r#"{"step":3,"data":{"actor/pg_loss":-0.005,"actor/grad_norm":1.992,"actor/lr":1e-6,"perf/total_num_tokens":500,"perf/mfu/actor":0.31,"timing_s/step":62.5,"perf/throughput":811.5}}"#,
        r#"{"tracker":"json_logger","event":"log","step":4,"metrics":{"train/loss":2.25,"grad/norm/total":0.5,"throughput/duration":1.25}}"#,
    ]);
    assert_eq!((e[0].step, e[0].m.get("lr"), e[0].m.get("token_acc")), (Some(1), Some(2e-6), Some(0.65)));
    let m = &e[1].m;
    assert_eq!(
        (e[1].step, m.get("loss"), m.get("grad_norm"), m.get("tokens")),
        (Some(3), Some(-0.005), Some(1.992), Some(500.0))
    );
    assert_eq!(
        (m.get("mfu_reported"), m.get("step_time"), m.get("tokens_per_second_per_gpu")),
        (Some(0.31), Some(62.5), Some(811.5))
    );
    let m = &e[2].m;
    assert_eq!((m.get("loss"), m.get("grad_norm"), m.get("step_time")), (Some(2.25), Some(0.5), Some(1.25)));
}

#[test]
fn keys_of_the_configuration() {
    let keys = [("step", "it"), ("loss", "train.losses.lm"), ("ts", "when"), ("rank", "r"), ("lr", "a.b")];
    let e = with(
        LogReader::with_keys(keys),
        &[
            r#"{"it":7,"train":{"losses":{"lm":2.5,"aux":1.0}},"when":1795227416980,"r":3,"a.b":0.1}"#,
            r#"{"it":8,"train":{"losses":{"lm":null}}, "when":"2026-04-01T16:06:12.572Z"}"#,
            r#"{"train":{"losses":{"lm":2.5}}}"#,
        ],
    );
    assert_eq!(e.len(), 2);
    assert_eq!((e[0].step, e[0].rank, e[0].ts), (Some(7), Some(3), Some(1795227416.98)));
    assert_eq!(e[0].m.iter().collect::<Vec<_>>(), [("loss", 2.5), ("lr", 0.1)]);
    assert_eq!((e[1].ts, &e[1].missing), (Some(1775059572.572), &vec!["loss".to_owned()]));
}

#[test]
fn a_loss_that_every_record_had_is_missed() {
    let keys = || LogReader::with_keys([("step", "it"), ("loss", "l"), ("lr", "lr")]);
    let whole = |n: u32| format!(r#"{{"it":{n},"l":2.5,"lr":0.1}}"#);
    let without = |n: u32| format!(r#"{{"it":{n},"lr":0.1}}"#);
    let read = |lines: Vec<String>| {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let missing = with(keys(), &lines).into_iter().filter(|e| e.missing == ["loss"]);
        missing.map(|e| e.step.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(read((1..=20).map(whole).chain([without(21), without(22)]).collect()), [21, 22]);
    assert_eq!(read((1..=19).map(whole).chain([without(20)]).collect()), [0; 0], "too few lines");
    let other = r#"{"it":21,"note":1}"#.to_owned();
    assert_eq!(read((1..=20).map(whole).chain([other]).collect()), [0; 0], "a record of something else");
    let every_tenth = |n| if n % 10 == 0 { whole(n) } else { without(n) };
    assert_eq!(read((1..=200).map(every_tenth).collect()), [0; 0]);
}

#[test]
fn plain_records() {
    let e = read(&[r#"{"_step": 5, "train/loss": Infinity, "grad_norm": "NaN", "job": "123"}"#]);
    assert_eq!((e[0].step, e[0].m.get("loss")), (Some(5), Some(f64::INFINITY)));
    assert!(e[0].m.get("grad_norm").unwrap().is_nan() && e[0].m.get("job").is_none());
    for text in [
        r#"{"step":1}"#,
        r#"{"loss":1}"#,
        r#"{"step":1.5,"loss":1}"#,
        "{",
        "[1]",
        r#"{"step":1,"loss":"low"}"#,
        r#"{"k":"nope"}"#,
    ] {
        assert!(read(&[text]).is_empty(), "{text}");
    }
}

#[test]
fn maxtext_and_lingua() {
    let e = read(&[
        r#"{"learning/loss":2.5,"learning/grad_norm":0.5,"learning/current_learning_rate":3e-4,"perf/step_time_seconds":1.25,"perf/per_device_tokens_per_sec":7185.0,"perf/per_device_tflops_per_sec":37.6,"learning/param_norm":9.5,"step":7.0,"run_name":"r"}"#,
        r#"{"eval/avg_loss":2.7,"eval/avg_perplexity":14.9,"eval/step_time_seconds":0.1,"step":0.0,"run_name":"r"}"#,
        r#"{"eval/avg_loss":2.6,"eval/avg_perplexity":13.5,"eval/total_weights":100.0,"step":7.0,"run_name":"r"}"#,
        r#"{"global_step":10,"acc_step":0,"speed/wps":110000.0,"speed/FLOPS":4.0e14,"speed/curr_iter_time":0.412,"speed/data_load_time":0.001,"optim/grad_norm":1.23,"optim/lr":3e-4,"optim/total_tokens":1000,"loss/out":9.1234,"created_at":"2026-04-01T16:06:12.572000+00:00"}"#,
        r#"{"global_step":20,"acc_step":0,"optim/total_tokens":3000,"loss/out":9.1}"#,
    ]);
    assert_eq!(e.len(), 4, "the batches of an evaluation are none");
    let m: Vec<_> = e[0].m.iter().collect();
    let want = [
        ("lr", 3e-4),
        ("grad_norm", 0.5),
        ("loss", 2.5),
        ("params_norm", 9.5),
        ("tflops_reported", 37.6),
        ("tokens_per_second_per_gpu", 7185.0),
        ("step_time", 1.25),
    ];
    assert_eq!((e[0].step, m), (Some(7), want.to_vec()));
    assert_eq!((e[1].kind, e[1].step, e[1].m.get("loss")), (Kind::Eval, Some(7), Some(2.6)));
    let m = &e[2].m;
    assert_eq!(
        (e[2].step, m.get("loss"), m.get("step_time"), m.get("lr")),
        (Some(10), Some(9.1234), Some(0.412), Some(3e-4))
    );
    assert_eq!(
        (m.get("tokens_per_second_per_gpu"), m.get("tflops_reported"), e[2].t.get("data")),
        (Some(110000.0), Some(400.0), Some(0.001))
    );
    assert_eq!((e[2].ts, e[3].m.get("tokens")), (Some(1775059572.572), Some(200.0)));
}

#[test]
fn automodel_validation_and_swift_speed() {
    let e = read(&[
        r#"{"step":99,"epoch":0,"timestamp":"2026-04-01T16:06:12.572Z","val_loss":0.25,"lr":1e-6,"num_label_tokens":390,"mem":6.8}"#,
        r#"{"loss":1.47,"learning_rate":2e-06,"global_step/max_steps":"1/94","memory(GiB)":4.87,"train_speed(s/it)":2.5}"#,
        r#"{"step":5,"loss":2.0,"val_loss":2.5,"val_acc":0.5}"#,
        r#"{"step":0,"data":{"val-core/gsm8k/acc/mean@1":0.25}}"#,
    ]);
    assert_eq!((e[0].kind, e[0].step, e[0].m.get("loss")), (Kind::Eval, Some(99), Some(0.25)));
    assert_eq!((e[1].m.get("memory(GiB)"), e[1].m.get("train_speed(s/it)")), (Some(4.87), Some(2.5)));
    assert_eq!(e[1].m.get("step_time"), None, "it is the mean since the start");
    let (step, eval) = (&e[2], &e[3]);
    assert_eq!((step.kind, step.m.iter().collect::<Vec<_>>()), (Kind::Step, vec![("loss", 2.0)]));
    assert_eq!((eval.kind, eval.m.get("loss"), eval.m.get("acc")), (Kind::Eval, Some(2.5), Some(0.5)));
    assert_eq!(
        (e[4].kind, e[4].step, e[4].m.get("core/gsm8k/acc/mean@1")),
        (Kind::Eval, Some(0), Some(0.25))
    );
}

#[test]
fn fairseq_counts_updates() {
    let e = read(&[
        r#"{"epoch": 1, "update": 0.5, "loss": "9.125", "wps": "35012.2", "ups": "1.93", "num_updates": "200", "lr": "5e-05"}"#,
        r#"{"epoch": 1, "valid_loss": "9.5", "valid_num_updates": "200"}"#,
    ]);
    assert_eq!((e[0].step, e[0].m.get("loss"), e[0].m.get("lr")), (Some(200), Some(9.125), Some(5e-5)));
    assert_eq!(e[0].m.get("tokens_per_second"), Some(35012.2), "of the whole job");
    assert_eq!((e[1].kind, e[1].step, e[1].m.get("loss")), (Kind::Eval, Some(200), Some(9.5)));
}

/// The steps that are reported to miss their loss, of 40 lines like the first and then the others.
fn missed(reader: LogReader, line: impl Fn(u32) -> String, then: &[&str]) -> Vec<i64> {
    let lines: Vec<String> = (1..=40).map(line).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).chain(then.iter().copied()).collect();
    let missing = with(reader, &lines).into_iter().filter(|e| e.missing == ["loss"]);
    missing.map(|e| e.step.unwrap()).collect()
}

#[test]
fn a_record_of_which_nothing_but_the_step_is_left_is_missed() {
    let auto = || LogReader::new(None).unwrap();
    let line = |s: u32| format!(r#"{{"step": {s}, "loss": 1.2}}"#);
    let gone = [r#"{"step": 41}"#, r#"{"step": 42}"#, r#"{"step": 43}"#];
    assert_eq!(missed(auto(), line, &gone), [41, 42, 43]);
    assert_eq!(missed(auto(), line, &[gone[0], r#"{"step": 42, "loss": 1.2}"#]), [41]);
    assert_eq!(missed(auto(), |s| format!(r#"INFO:root:{{"step": {s}, "loss": 1.2}}"#), &gone), [41, 42, 43]);
    let keys = LogReader::with_keys([("step", "it"), ("loss", "l"), ("ts", "at")]);
    let timed = |s: u32, loss: &str| format!(r#"{{"it":{s},"at":{}{loss}}}"#, 1795227416 + s);
    let gone_too: Vec<_> = (41..44).map(|s| timed(s, "")).collect();
    let gone_too: Vec<_> = gone_too.iter().map(String::as_str).collect();
    assert_eq!(missed(keys, |s| timed(s, r#","l":1.2"#), &gone_too), [41, 42, 43]);
    let epoch = |s: u32| format!(r#"{{"epoch": 0, "step": {s}, "loss": 1.2}}"#);
    let of_epoch = [r#"{"epoch": 0, "step": 41}"#, r#"{"epoch": 0, "step": 42}"#];
    assert_eq!(missed(auto(), epoch, &of_epoch), [41, 42]);
}

#[test]
fn a_record_without_numbers_may_be_of_something_else() {
    let line = |s: u32| format!(r#"{{"step": {s}, "loss": 1.2}}"#);
    for then in [
        // Done, saved, announced, at a step of its own, or with another key.
        &[r#"{"step": 41}"#][..],
        &[r#"{"step": 40}"#, r#"{"step": 41, "loss": 1.2}"#],
        &[r#"{"step": 41}"#, r#"{"step": 41, "loss": 1.2}"#, r#"{"step": 42}"#, r#"{"step": 43}"#],
        &[r#"{"step": 1000}"#, r#"{"step": 1001}"#],
        &[r#"{"step": 41, "event": "saved"}"#, r#"{"step": 42, "event": "saved"}"#],
        &[r#"{"step": 41}"#, r#"{"step": 41, "eval_loss": 1.3}"#, r#"{"step": 42, "loss": 1.2}"#],
        &[r#"{"epoch": 1, "step": 41}"#, r#"{"epoch": 1, "step": 42}"#],
    ] {
        assert_eq!(missed(LogReader::new(None).unwrap(), line, then), [0; 0], "{then:?}");
    }
    let more = |s: u32| format!(r#"{{"step": {s}, "loss": 1.2, "lr": 0.1}}"#);
    let bare = [r#"{"step": 41}"#, r#"{"step": 42}"#];
    assert_eq!(missed(LogReader::new(None).unwrap(), more, &bare), [0; 0], "a rate does not vanish");
}

#[test]
fn a_loss_is_missed_beside_numbers_of_any_name() {
    let line = |s: u32| format!(r#"{{"step": {s}, "loss": 1.2, "seen": 512, "elapsed": 0.4}}"#);
    let then = [r#"{"step": 41, "seen": 512, "elapsed": 0.4}"#, r#"{"step": 41, "seen": 512}"#];
    assert_eq!(missed(LogReader::new(None).unwrap(), line, &then), [41]);
}

#[test]
fn a_loss_with_a_name_of_its_own_is_the_loss() {
    for line in [
        r#"{"step": §, "nll_loss": ¤, "lr": 1e-4}"#,
        r#"{"step": §, "nll_loss": ¤}"#,
        r#"{"step": §, "train/diffusion_loss": ¤, "aux_loss": 0.5, "lr": 1e-4}"#,
        r#"{"step": §, "metrics": {"recon_loss": ¤, "kl_loss": 0.1}}"#,
        r#"{"step": §, "data": {"sft/nll": ¤, "critic/vf_loss": 0.1}}"#,
        r#"INFO:root:{"step": §, "xent": ¤}"#,
        r#"{"step": §, "nll_loss": ¤, "val_nll_loss": 0.5, "grad_norm": 0.5}"#,
    ] {
        let at = |step: i64, loss: &str| line.replace('§', &step.to_string()).replace('¤', loss);
        let lines: Vec<String> = (1..=3).map(|s| at(s, "2.5")).chain([at(4, "NaN"), at(5, "null")]).collect();
        let e = read(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        let steps: Vec<&Event> = e.iter().filter(|e| e.kind == Kind::Step).collect();
        assert_eq!((steps.len(), steps[0].m.get("loss")), (5, Some(2.5)), "{line}");
        assert!(steps[3].m.get("loss").is_some_and(f64::is_nan), "{line}");
        assert_eq!(
            (steps[4].m.get("loss"), &steps[4].missing[..]),
            (None, &["loss".to_owned()][..]),
            "{line}"
        );
    }
    for line in [
        r#"{"step": 1, "aux_loss": 0.5, "lr": 1e-4}"#,
        r#"{"step": 1, "loss": null, "nll_loss": 0.5, "lr": 1e-4}"#,
        r#"{"step": 1, "nll_loss": 0.5, "val_loss": 0.5}"#,
    ] {
        let e = read(&[line]);
        assert!(e.iter().all(|e| e.kind == Kind::Eval || e.m.get("loss").is_none()), "{line}: {e:?}");
    }
    let e = read(&[r#"{"step":1,"nll_loss":2.5}"#, r#"{"step":2,"loss":3.5,"nll_loss":2.5}"#]);
    assert_eq!((e[1].m.get("loss"), e[1].m.get("nll_loss")), (Some(3.5), Some(2.5)), "a usual name");
}

#[test]
fn tokens_may_be_those_of_all_steps_so_far() {
    for line in [
        r#"{"step": §, "loss": 2.5, "tokens": ¤, "step_time": 2.0}"#,
        r#"{"step": §, "train/loss": 2.5, "train/tokens": ¤}"#,
        r#"{"step": §, "metrics": {"loss": 2.5, "tokens": ¤}}"#,
    ] {
        let read = |tokens: &dyn Fn(i64) -> i64| {
            let at = |s: i64| line.replace('§', &s.to_string()).replace('¤', &tokens(s).to_string());
            let lines: Vec<String> = (1..=4).map(at).collect();
            let e = read(&lines.iter().map(String::as_str).collect::<Vec<_>>());
            e.iter().map(|e| e.m.get("tokens")).collect::<Vec<_>>()
        };
        let want = [None, Some(65536.0), Some(65536.0), Some(65536.0)];
        assert_eq!(read(&|step| step * 65536), want, "{line}");
        assert_eq!(read(&|_| 65536), want, "{line}");
    }
    let e = read(&[r#"{"step": 1, "loss": 2.5, "perf/total_num_tokens": 500}"#]);
    assert_eq!(e[0].m.get("tokens"), Some(500.0), "the name says what they are");
}
