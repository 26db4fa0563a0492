use super::*;
use crate::LogReader;

/// A log of one rank, a millisecond a line.
fn read(lines: &[&str]) -> Vec<Event> {
    let mut reader = LogReader::new(None).unwrap();
    let mut out = Vec::new();
    for (i, l) in lines.iter().enumerate() {
        let common = r#""rank":3,"global_rank":3,"local_rank":3,"source":"training","pid":9"#;
        let time = 1_795_227_416_000_000u64 + i as u64 * 1000;
        let line =
            format!(r#"{{{common},"time_us":{time},"log_type":"event","event_name":null,{l},"seq_id":{i}}}"#);
        reader.line(&line, &mut out);
    }
    out
}

fn start(step: i64, span: &str) -> String {
    format!(r#""step":{step},"log_type_name":"{span}_start""#)
}

fn end(step: i64, span: &str, ms: f64) -> String {
    format!(r#""step":{step},"log_type_name":"{span}_end","value":{ms}"#)
}

fn lines(lines: &[String]) -> Vec<Event> {
    read(&lines.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_step_of_a_rank_with_its_parts() {
    let s = |span| start(5, span);
    let e = |span, ms| end(5, span, ms);
    let events = lines(&[
        s("step"),
        s("gc_collect"),
        e("gc_collect", 4.0),
        s("fetching_batch"),
        e("fetching_batch", 20.0),
        s("fetching_batch"),
        e("fetching_batch", 30.0),
        r#""step":5,"log_type_name":"metric_value","event_name":"train.loss","value":2.5"#.to_owned(),
        s("fwd_bwd"),
        s("preprocess_inputs"),
        e("preprocess_inputs", 1.0),
        e("fwd_bwd", 900.0),
        s("optim"),
        e("optim", 46.0),
        s("checkpoint_save"),
        e("checkpoint_save", 0.02),
        e("step", 1000.5),
    ]);
    assert_eq!(events.len(), 1);
    let step = &events[0];
    assert_eq!((step.kind, step.rank, step.step), (Kind::Step, Some(3), Some(5)));
    assert_eq!(step.ts, Some(1795227416.016));
    assert_eq!(step.m.iter().collect::<Vec<_>>(), [("loss", 2.5), ("step_time", 1.0005)]);
    let parts: Vec<_> = step.t.iter().collect();
    assert_eq!(
        parts,
        [("gc", 0.004), ("data", 0.05), ("fwd_bwd", 0.9), ("optim", 0.046), ("checkpoint_save", 0.00002)]
    );
}

#[test]
fn evaluations_and_checkpoints_are_no_part_of_the_step() {
    let tag = |mut line: String| {
        line.push_str(r#","step_tags":["gc","checkpoint_save"]"#);
        line
    };
    let events = lines(&[
        start(6, "step"),
        start(6, "checkpoint_save"),
        tag(start(6, "gc_collect")),
        tag(end(6, "gc_collect", 10.0)),
        tag(end(6, "checkpoint_save", 2000.0)),
        start(6, "eval"),
        end(6, "eval", 500.0),
        end(6, "step", 3000.0),
        start(7, "step"),
        start(7, "checkpoint_save"),
        end(7, "checkpoint_save", 1500.0),
        end(7, "step", 2000.0),
    ]);
    let kinds: Vec<_> = events.iter().map(|e| (e.kind, e.ckpt, e.edge)).collect();
    let (begin, stop) = (Some(CkptPhase::Start), Some(CkptPhase::End));
    assert_eq!(
        kinds,
        [
            (Kind::Ckpt, begin, None),
            (Kind::Ckpt, stop, None),
            (Kind::Phase, None, Some(Edge::Begin)),
            (Kind::Phase, None, Some(Edge::End)),
            (Kind::Step, None, None),
            (Kind::Ckpt, begin, None),
            (Kind::Ckpt, stop, None),
            (Kind::Step, None, None),
        ]
    );
    assert_eq!(events[1].extra.get("seconds"), Some(&Value::Number(2.0)));
    assert_eq!((events[2].name.as_deref(), events[4].m.get("step_time")), (Some("eval"), Some(0.5)));
    assert!((events[6].ts.unwrap() - events[5].ts.unwrap() - 1.5).abs() < 1e-6, "it began when it began");
}

#[test]
fn an_exception_is_published_once_and_is_no_step() {
    let error = |span: &str, what: &str| {
        format!(r#""step":8,"log_type_name":"{span}_error","message":"[step 8] {span}_error: {what}""#)
    };
    let crash = |what: &str| {
        lines(&[
            start(8, "step"),
            start(8, "fwd_bwd"),
            error("fwd_bwd", what),
            end(8, "fwd_bwd", 5.0),
            error("step", what),
            end(8, "step", 6.0),
        ])
    };
    let events = crash("OutOfMemoryError: CUDA out of memory");
    assert_eq!(events.len(), 1);
    let e = &events[0];
    assert_eq!((e.kind, e.rank, e.level.as_deref()), (Kind::Event, Some(3), Some("error")));
    assert_eq!(
        (e.name.as_deref(), e.text.as_deref()),
        (Some("fwd_bwd_error"), Some("OutOfMemoryError: CUDA out of memory"))
    );
    assert_eq!(crash("DataloaderExhaustedError: ")[0].level.as_deref(), Some("info"));
}

#[test]
fn what_does_not_fit_together_is_passed_over() {
    assert_eq!(
        lines(&[end(9, "step", 5.0), end(9, "optim", 5.0), r#""log_type_name":"training_start""#.into()]),
        []
    );
    let left_open: Vec<_> =
        (0..100).map(|_| start(1, "x")).chain([start(2, "step"), end(2, "step", 7.0)]).collect();
    assert_eq!(lines(&left_open)[0].m.get("step_time"), Some(0.007));
    let task = r#""step":1,"task_name":"Task-1","log_type_name":"step_end","value":5"#.to_owned();
    assert_eq!(lines(&[start(1, "step"), task]), []);
}

/// A file has one rank. Somebody may say otherwise, and never end a step.
#[test]
fn steps_that_never_end_are_counted_and_given_up() {
    let mut reader = LogReader::new(None).unwrap();
    let mut out = Vec::new();
    let mut say = |reader: &mut LogReader, rank: u32, words: &str| {
        let common = format!(r#""rank":{rank},"time_us":1795227416000000,"log_type":"event""#);
        reader.line(&format!("{{{common},{words}}}"), &mut out);
        core::mem::take(&mut out)
    };
    for rank in 0..500 {
        say(&mut reader, rank, &format!(r#""event_name":null,{}"#, start(5, "step")));
        for n in 0..20 {
            let number =
                format!(r#""event_name":"n{n:02}{}","log_type_name":"x","value":1"#, "x".repeat(1000));
            say(&mut reader, rank, &number);
        }
        let long = format!(r#""event_name":null,{}"#, start(5, &"y".repeat(1000)));
        say(&mut reader, rank, &long);
    }
    let held = reader.pending_bytes();
    assert!((500 * 20 * 128..500 * 20 * 256).contains(&held), "{held}");
    reader.give_up_pending();
    assert_eq!(reader.pending_bytes(), 0);
    let null = |words: String| format!(r#""event_name":null,{words}"#);
    assert_eq!(say(&mut reader, 3, &null(start(6, "step"))), []);
    assert_eq!(say(&mut reader, 3, &null(end(6, "step", 100.0))).len(), 1, "the next step is read");
}
