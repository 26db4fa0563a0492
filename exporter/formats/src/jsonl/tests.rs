use stepwatch_wire::{Event, Kind};

use crate::Reader;

fn read(lines: &[&str]) -> Vec<Event> {
    with(Reader::new(Some("jsonl")).unwrap(), lines)
}

fn with(mut r: Reader, lines: &[&str]) -> Vec<Event> {
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
        Reader::with_keys(keys),
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
    let keys = || Reader::with_keys([("step", "it"), ("loss", "l"), ("lr", "lr")]);
    let whole = |n: u32| format!(r#"{{"it":{n},"l":2.5,"lr":0.1}}"#);
    let without = |n: u32| format!(r#"{{"it":{n},"lr":0.1}}"#);
    let read = |lines: Vec<String>| {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let missing = with(keys(), &lines).into_iter().filter(|e| e.missing == ["loss"]);
        missing.map(|e| e.step.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(read((1..=20).map(whole).chain([without(21), without(22)]).collect()), [21, 22]);
    assert_eq!(read((1..=19).map(whole).chain([without(20)]).collect()), [0; 0], "too early to tell");
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
