use super::*;

fn one(rows: &mut Rows, line: &str) -> Event {
    let mut events = rows.events(line).unwrap();
    assert_eq!(events.len(), 1, "{line}");
    events.remove(0)
}

#[test]
fn reads_what_the_web_page_of_wandb_exports() {
    let header =
        r#""Step","proud-sun-7 - lm_loss","proud-sun-7 - lm_loss__MIN","proud-sun-7 - lm_loss__MAX""#;
    let mut rows = Rows::new(Header::parse(header).unwrap());
    let e = one(&mut rows, r#""100","2.5","2.5","2.5""#);
    assert_eq!((e.step, e.run.as_deref()), (Some(100), Some("proud-sun-7")));
    assert_eq!(e.m.iter().collect::<Vec<_>>(), [("loss", 2.5)]);
    assert!(one(&mut rows, r#""101","NaN","NaN","NaN""#).m.get("loss").unwrap().is_nan());
    let columns =
        |run: &str, name: &str| format!(r#""{run} - {name}","{run} - {name}__MIN","{run} - {name}__MAX""#);
    let header =
        format!(r#""trainer/global_step",{},{}"#, columns("a, b", "my_loss"), columns("c - d", "train/loss"));
    let mut rows = Rows::new(Header::parse(&header).unwrap());
    let both = rows.events(r#""5","1.5","1.5","1.5","2.5","2.5","2.5""#).unwrap();
    let seen: Vec<_> = both.iter().map(|e| (e.run.as_deref().unwrap(), e.m.get("loss"))).collect();
    assert_eq!(
        seen,
        [("a, b", Some(1.5)), ("c - d", Some(2.5))],
        "a loss with a name of its own is the loss"
    );
    assert_eq!(one(&mut rows, "6,,,,2.5,2.5,2.5").run.as_deref(), Some("c - d"));
    assert_eq!(rows.events("7,,,,,,"), Ok(vec![]));
}

#[test]
fn json_is_no_table() {
    for line in [
        r#"{"loss": 7.9, "grad_norm": 0.3, "learning_rate": 5e-05, "epoch": 0.01, "step": 1}"#,
        r#"{"epoch":0,"step":1,"loss":7.9}"#,
        r#"2026-11-27 01:00:01,123 INFO train: {"epoch": 0, "step": 1, "loss": 7.9, "lr": 0.0001}"#,
        r#"[{"epoch": 0, "step" : 1, "loss" : 7.9}]"#,
    ] {
        assert!(Header::parse(line).is_none(), "{line}");
    }
}

#[test]
fn counts_the_rows_of_an_export_over_time() {
    let columns =
        |run: &str, name: &str| format!(r#""{run} - {name}","{run} - {name}__MIN","{run} - {name}__MAX""#);
    let seen = |events: Vec<Event>| {
        let of = |e: &Event| (e.run.clone().unwrap(), e.step.unwrap(), e.m.get("loss").unwrap(), e.ts);
        events.iter().map(of).collect::<Vec<_>>()
    };
    for (axis, cell, ts) in [
        ("Relative Time (Process)", "12.5", None),
        ("Relative Time (Wall)", "12.5", None),
        ("Wall Time", "1795227416.5", Some(1_795_227_416.5)),
        ("Wall Time", "1795227416500", Some(1_795_227_416.5)),
        ("Wall Time", "2026-11-21T02:16:56.5Z", Some(1_795_227_416.5)),
        ("Wall Time", "this morning", None),
    ] {
        let header = format!(r#""{axis}",{},{}"#, columns("a", "train/loss"), columns("b", "train/loss"));
        let mut rows = Rows::new(Header::parse(&header).unwrap());
        let mut read = |cells: &str| seen(rows.events(&format!("\"{cell}\",{cells}")).unwrap());
        assert_eq!(read("2.5,2.5,2.5,,,"), [("a".to_owned(), 1, 2.5, ts)], "{axis}");
        assert_eq!(read(",,,3.5,3.5,3.5"), [("b".to_owned(), 1, 3.5, ts)], "each run has its own rows");
        assert_eq!(read("2.25,2.25,2.25,,,"), [("a".to_owned(), 2, 2.25, ts)]);
    }
    let own = format!(r#""Wall Time",{},{}"#, columns("a", "_step"), columns("a", "loss"));
    let mut rows = Rows::new(Header::parse(&own).unwrap());
    let e = one(&mut rows, "1795227416,70,70,70,2.5,2.5,2.5");
    assert_eq!(
        (e.step, e.ts),
        (Some(70), Some(1_795_227_416.0)),
        "a step that the file contains is not counted"
    );
    assert!(Header::parse("Wall Time,loss").is_none(), "no export");
}

#[test]
fn takes_the_times_of_pandas_and_logging_for_utc() {
    let mut rows = Rows::new(Header::parse("step,loss,timestamp").unwrap());
    for (cell, want) in [
        ("2026-11-21 02:16:56", 1_795_227_416.0),
        ("2026-11-21 02:16:56.572", 1_795_227_416.572),
        ("2026-11-21 02:16:56.572118", 1_795_227_416.572_118),
        ("\"2026-11-21 02:16:56,572\"", 1_795_227_416.572),
        ("2026-11-21T02:16:56", 1_795_227_416.0),
        ("2026-11-21 03:16:56+01:00", 1_795_227_416.0),
    ] {
        assert_eq!(one(&mut rows, &format!("1,2.5,{cell}")).ts, Some(want), "{cell}");
    }
    for cell in ["yesterday", "2026-13-21 02:16:56", "02:16:56"] {
        let err = rows.events(&format!("1,2.5,{cell}")).unwrap_err();
        let why = "timestamp is none of Unix seconds, RFC 3339, and YYYY-MM-DD HH:MM:SS in UTC";
        assert_eq!(err, format!("{why}: {cell:?}"));
    }
}

#[test]
fn a_loss_that_turns_into_nothing_is_missing() {
    for (nothing, known) in [("null", 3), ("None", 3), ("", 21)] {
        let mut rows = Rows::new(Header::parse("step,loss,lr,grad_norm").unwrap());
        for step in 1..known {
            assert_eq!(one(&mut rows, &format!("{step},2.5,0.1,0.5")).missing, [""; 0]);
        }
        let e = one(&mut rows, &format!("{known},{nothing},0.1,0.5"));
        assert_eq!((&e.missing[..], e.m.get("lr")), (&["loss".to_owned()][..], Some(0.1)), "{nothing:?}");
        assert_eq!(one(&mut rows, "100,,,").missing, [""; 0], "a row of something else");
    }
}

/// The rows after 40 complete ones that miss a value, and the names of the missing values.
fn missed(header: &str, row: impl Fn(i64) -> String, then: &[&str]) -> Vec<(i64, Vec<String>)> {
    let mut rows = Rows::new(Header::parse(header).unwrap());
    let lines = (1..=40).map(row).chain(then.iter().map(|l| (*l).to_owned()));
    let events: Vec<Event> = lines.flat_map(|l| rows.events(&l).unwrap()).collect();
    let missing = events.into_iter().filter(|e| !e.missing.is_empty());
    missing.map(|e| (e.step.unwrap(), e.missing)).collect()
}

#[test]
fn a_row_with_nothing_but_a_step_misses_its_loss() {
    let loss = |steps: &[i64]| steps.iter().map(|s| (*s, vec!["loss".to_owned()])).collect::<Vec<_>>();
    let gone = missed("step,loss", |s| format!("{s},2.5"), &["41,", "42,", "43,2.5", "44,2.5"]);
    assert_eq!(gone, loss(&[41, 42]));
    let both = vec!["loss".to_owned(), "grad_norm".to_owned()];
    let gone = missed("step,loss,grad_norm", |s| format!("{s},2.5,0.5"), &["41,,", "42,,0.5"]);
    assert_eq!(gone, [(41, both), (42, vec!["loss".to_owned()])]);
    let timed = |s: i64| format!("{s},2.5,2026-11-21 02:16:{:02}", s % 60);
    let gone = missed("step,loss,timestamp", timed, &["41,,2026-11-21 02:17:00", "42,,"]);
    assert_eq!(gone, loss(&[41]), "a row that has no time was not logged");
    let note = |s: i64| format!("{s},2.5,0:00:{s}");
    assert_eq!(missed("step,loss,elapsed", note, &["41,,0:01:00"]), loss(&[41]));
}

#[test]
fn a_row_of_something_else_misses_no_loss() {
    for (header, row, then) in [
        ("step,loss,eval/loss", "2.5,", &["40,,2.6", "41,,2.6", "42,2.5,", "42,,"][..]),
        ("step,loss,eval_loss,note", "2.5,,", &["41,,2.6,x"]),
        ("step,loss,phase", "2.5,train", &["41,,eval", "42,,checkpoint"]),
        ("step,loss,eval_loss", "2.5,", &["41,,null"]),
    ] {
        assert_eq!(missed(header, |s| format!("{s},{row}"), then), [], "{header}");
    }
    for every in [2, 3, 10, 19] {
        let seldom = |s: i64| format!("{s},{}", if s % every == 0 { "2.5" } else { "" });
        let then: Vec<_> = (41..200).map(seldom).collect();
        let then: Vec<&str> = then.iter().map(String::as_str).collect();
        assert_eq!(missed("step,loss", seldom, &then), [], "logged every {every} rows");
    }
    let two = |run: &str| format!(r#""{run} - loss","{run} - loss__MIN","{run} - loss__MAX""#);
    let header = format!(r#""Step",{},{}"#, two("a"), two("b"));
    let ended = missed(&header, |s| format!("{s},2.5,2.5,2.5,1.5,1.5,1.5"), &["41,2.5,2.5,2.5,,,"; 3]);
    assert_eq!(ended, [], "another run has ended");
}

#[test]
fn columns_of_other_names_are_series_where_they_are_numbers() {
    let mut rows = Rows::new(Header::parse("step,loss,\"rollout/reward\",note").unwrap());
    let e = one(&mut rows, "7,2.5,-0.5,fine");
    assert_eq!(e.m.iter().collect::<Vec<_>>(), [("loss", 2.5), ("rollout/reward", -0.5)]);
}

#[test]
fn a_loss_with_a_name_of_its_own_is_the_loss_of_a_plain_table() {
    let mut rows = Rows::new(Header::parse("step,aux_loss,nll_loss,lr").unwrap());
    let e = one(&mut rows, "7,0.1,2.5,0.5");
    assert_eq!((e.m.get("loss"), e.m.get("aux_loss")), (Some(2.5), Some(0.1)));
    assert!(one(&mut rows, "8,0.1,nan,0.5").m.get("loss").unwrap().is_nan());
    assert_eq!(one(&mut rows, "9,0.1,skipped,0.5").m.get("loss"), None, "a text is no mistake in it");
    let mut rows = Rows::new(Header::parse("step,loss,nll_loss").unwrap());
    assert_eq!(one(&mut rows, "7,2.5,2.0").m.iter().collect::<Vec<_>>(), [("loss", 2.5), ("nll_loss", 2.0)]);
}

#[test]
fn reads_what_the_header_names() {
    let header = Header::parse("step,loss,mystery,grad_norm,step_time_seconds,timestamp,rank,node").unwrap();
    let mut rows = Rows::new(header);
    let e = one(&mut rows, "12.0,2.5,x,,0.25,2026-11-21T02:16:56.5Z,3,node007");
    assert_eq!((e.step, e.rank, e.node.as_deref()), (Some(12), Some(3), Some("node007")));
    assert_eq!((e.m.get("loss"), e.m.get("grad_norm"), e.m.get("step_time")), (Some(2.5), None, Some(0.25)));
    assert_eq!(e.ts, Some(1_795_227_416.5));
    assert_eq!(e.q.iter().collect::<Vec<_>>(), [("loss", 0.1), ("step_time", 0.01)]);
    let e = one(&mut rows, "13,-inf,,nan");
    assert_eq!(e.m.get("loss"), Some(f64::NEG_INFINITY));
    assert!(e.m.get("grad_norm").unwrap().is_nan());
}

#[test]
fn reads_what_a_rank_did() {
    let mut rows = Rows::new(Header::parse("step,rank,stage,forward_compute,gc").unwrap());
    let e = one(&mut rows, "16,4,1,17.5,0");
    assert_eq!(
        (e.step, e.rank, e.extra.get("stage").and_then(Value::as_f64)),
        (Some(16), Some(4), Some(1.0))
    );
    assert_eq!((e.t.get("forward_compute"), e.t.get("gc"), e.m.len()), (Some(17.5), Some(0.0), 0));
}

#[test]
fn reads_what_others_export() {
    let mut rows = Rows::new(Header::parse("iteration\ttrain/loss\tlearning_rate\tstep_time_ms").unwrap());
    let e = one(&mut rows, "7\t2.5\t3e-4\t250");
    assert_eq!((e.step, e.m.get("loss"), e.m.get("lr")), (Some(7), Some(2.5), Some(3e-4)));
    assert_eq!(e.m.get("step_time"), Some(0.25));
    let mut rows = Rows::new(Header::parse("\"Step\";\"loss\"").unwrap());
    assert_eq!(one(&mut rows, "\"8\";\"2.5\"").step, Some(8));
}

#[test]
fn says_what_is_wrong() {
    let mut rows = Rows::new(Header::parse("step,loss").unwrap());
    for (line, reason) in [
        ("1.5,2", "step is not an integer: \"1.5\""),
        ("1,two", "loss is not a number: \"two\""),
        (",2", "no step in 2 cells"),
    ] {
        assert_eq!(rows.events(line).unwrap_err(), reason);
    }
    for no_header in ["loss,lr", "step", "1,2,3", "iteration 5 | loss 2, step 3"] {
        assert!(Header::parse(no_header).is_none(), "{no_header}");
    }
}
