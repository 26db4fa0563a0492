use super::*;

const MEGATRON: &str =
    " iteration        7/     100 | elapsed time per iteration (ms): 10.0 | lm loss: 2.5E+00 |";

fn auto() -> LogReader {
    LogReader::new(None).unwrap()
}

fn read(r: &mut LogReader, lines: &[&str]) -> Vec<Event> {
    let mut out = Vec::new();
    for l in lines {
        r.line(l, &mut out);
    }
    out
}

#[test]
fn names_are_checked() {
    assert!(LogReader::new(Some("megatron")).is_ok_and(|r| r.name() == "megatron"));
    assert_eq!(LogReader::new(Some("auto")).unwrap().name(), "auto");
    let e = LogReader::new(Some("megatorn")).unwrap_err().to_string();
    assert!(e.starts_with("unknown log format \"megatorn\"; known are auto, megatron, jsonl"), "{e}");
}

#[test]
fn locks_on_and_counts() {
    let mut r = auto();
    let events = read(&mut r, &["hello", "", MEGATRON, "training ..."]);
    assert_eq!((r.name(), events.len()), ("megatron", 1));
    assert_eq!(r.counters(), Counters { lines: 3, matched: 1, ignored: 1, unmatched: 1 });
    assert!((r.resolution().get("loss").unwrap() - 1e-1).abs() < 1e-9);
}

#[test]
fn another_format_takes_over_and_loses_nothing() {
    let mut r = auto();
    let mut events = read(&mut r, &[MEGATRON, r#"{"step": 1, "loss": 1.5}"#, MEGATRON]);
    assert_eq!((r.name(), events.len()), ("megatron", 2));
    events = read(
        &mut r,
        &[
            r#"{"step": 1, "loss": 3.5}"#,
            "some noise",
            r#"{"step": 2, "loss": 2.5}"#,
            r#"{"step": 3, "loss": 1.5}"#,
        ],
    );
    assert_eq!(r.name(), "jsonl");
    assert_eq!(events.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn an_engine_gives_way_to_the_trainer_that_uses_it() {
    const ENGINE: &str = "[2023-11-07 01:55:23,711] [INFO] [logging.py:96:log_dist] [Rank 0] step=7, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]";
    let mut r = auto();
    let events = read(&mut r, &[ENGINE]);
    assert_eq!((r.name(), events.len()), ("deepspeed", 1));
    let events = read(&mut r, &[MEGATRON, ENGINE]);
    assert_eq!((r.name(), events.len()), ("megatron", 1));
    // Ten lines of the engine for each of the trainer: it is only silent.
    let mut r = auto();
    let dict = |n: i64| format!("{{'loss': 2.5, 'learning_rate': 5e-05, 'epoch': 0.1, 'step': {n}}}");
    let engine =
        |n: i64| format!("[INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=0, lr=[1e-05], mom=[]");
    let lines: Vec<String> = (1..=50).map(|n| if n % 10 == 0 { dict(n) } else { engine(n) }).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let events = read(&mut r, &lines);
    assert_eq!(r.name(), "huggingface");
    assert_eq!(events.iter().filter(|e| e.m.get("loss").is_some()).count(), 5);
    assert_eq!(events.len(), 9 + 5, "the engine's before the first of the trainer's");
    // A training loop of one's own prints beside the engine: both are read.
    let mut r = auto();
    let loops = |n: i64| format!("step {n} loss {n}.5");
    let lines: Vec<String> = (1..=8).flat_map(|n| [engine(n), loops(n)]).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let events = read(&mut r, &lines);
    assert_eq!(r.name(), "generic");
    let with = |name: &str| events.iter().filter(|e| e.m.get(name).is_some()).count();
    assert_eq!((with("loss"), with("lr")), (8, 8));
}

#[test]
fn a_stamp_inside_the_line_gives_the_zone_too() {
    let mut r = auto();
    r.set_utc_offset(7200.0);
    let line = "[rank0]:[titan] 2026-05-29 05:52:45,000 - root - INFO - step: 20  loss: 1.5  memory: 4.8GiB(5.1%)  tps: 4,376";
    let events = read(&mut r, &[line]);
    assert_eq!((events[0].ts, r.local_stamp()), (Some(1780026765.0), Some(1780033965.0)));
}

#[test]
fn the_goodbye_is_the_last_word() {
    let mut r = auto();
    let kinds = |events: Vec<Event>| events.iter().map(|e| e.kind).collect::<Vec<_>>();
    let last = "validation loss at the end of training for val data | lm loss value: 2.0E+00 |";
    let events = read(&mut r, &[MEGATRON, "[after training is done] datetime: x", last, "noise"]);
    assert_eq!(kinds(events), [Kind::Step, Kind::Bye, Kind::Eval, Kind::Bye]);
    let events = read(&mut r, &[MEGATRON, last]);
    assert_eq!(kinds(events), [Kind::Step, Kind::Eval], "it trains again");
}

#[test]
fn container_pieces_are_joined() {
    let stamp = "2026-05-29T03:52:45Z stdout";
    let (a, b) = MEGATRON.split_at(40);
    let mut r = auto();
    let events = read(&mut r, &[&format!("{stamp} P [default7]:{a}"), &format!("{stamp} F {b}")]);
    assert_eq!((events.len(), events[0].ts, events[0].step), (1, Some(1780026765.0), Some(7)));
    let log = format!(r#"{{"log":"{MEGATRON}\n","stream":"stdout","time":"2026-05-29T03:52:45.5Z"}}"#);
    let events = read(&mut auto(), &[&log]);
    assert_eq!((events[0].ts, events[0].step), (Some(1780026765.5), Some(7)));
}

#[test]
fn a_piece_without_an_end_is_bounded() {
    let mut r = auto();
    let piece = format!("2026-05-29T03:52:45Z stdout P {}", "é".repeat(60_000));
    for _ in 0..4 {
        read(&mut r, &[&piece]);
    }
    assert!(r.joined.len() <= MAX_JOINED_BYTES + 1);
}

#[test]
fn a_line_in_pieces_that_is_given_up_says_what_its_beginning_says() {
    let stamp = "2026-05-29T03:52:45Z stdout";
    let mut r = auto();
    let piece = format!("{stamp} P {MEGATRON}{}", "x".repeat(60_000));
    assert!(read(&mut r, &[&piece]).is_empty());
    assert!(r.pending_bytes() > 60_000);
    r.give_up_pending();
    assert!(r.pending_bytes() <= 2 * KEPT_BYTES);
    assert!(read(&mut r, &[&piece, &piece]).is_empty());
    assert!(r.pending_bytes() <= 2 * KEPT_BYTES, "it does not grow again");
    let events = read(&mut r, &[&format!("{stamp} F the end")]);
    assert_eq!((events.len(), events[0].step), (1, Some(7)));
    let (a, b) = MEGATRON.split_at(40);
    let events = read(&mut r, &[&format!("{stamp} P {a}"), &format!("{stamp} F {b}")]);
    assert_eq!(events[0].step, Some(7), "and the next is whole");
}

#[test]
fn zones() {
    let mut r = auto();
    r.set_utc_offset(7200.0);
    let events = read(&mut r, &[&format!("[2026-05-29 05:52:45]{MEGATRON}")]);
    assert_eq!((events[0].ts, r.local_stamp()), (Some(1780026765.0), Some(1780033965.0)));
}

proptest::proptest! {
    #[test]
    fn never_panics(lines: Vec<String>) {
        let mut r = auto();
        let mut out = Vec::new();
        for l in &lines {
            r.line(l, &mut out);
        }
        let c = r.counters();
        proptest::prop_assert_eq!(c.lines, c.matched + c.ignored + c.unmatched);
    }
}

#[test]
fn what_a_logger_puts_before_a_line_hides_no_step() {
    for prefix in [
        "",
        "2025-01-01 10:00:03,123 - INFO - ",
        "2025-01-01 10:00:03,123 - __main__ - INFO - ",
        "2025-01-01 10:00:03 INFO ",
        "2025-01-01 10:00:03.123 | INFO     | __main__:train:41 - ",
        "[2025-01-01 10:00:03,123][INFO] - ",
        "[2025-01-01 10:00:03,123][__main__][INFO] - ",
        "INFO:root:",
        "[rank0] ",
        "[rank0]: ",
        "[rank0]: 2025-01-01 10:00:03,123 - root - INFO - ",
        "2025-01-01 10:00:03,123 - INFO - [rank0] ",
        "[default0]:INFO:__main__:",
        "0: INFO:root:",
        "2026-05-29T03:52:45.118201123Z stdout F [rank0]: 2025-01-01 10:00:03 INFO ",
    ] {
        let lines = [
            format!("{prefix}0: Loss 10.94 | Grad Norm 16.8 | LR 8.4e-07 | Time 20119.00ms | Tokens/s 26059"),
            format!("{prefix}1: Loss 10.91 | Grad Norm 15.1 | LR 1.7e-06 | Time 410.00ms | Tokens/s 1278751"),
        ];
        let mut reader = auto();
        let e = read(&mut reader, &lines.each_ref().map(String::as_str));
        let seen: Vec<_> = e.iter().map(|e| (e.step, e.m.get("loss"), e.m.get("step_time"))).collect();
        let want = [(Some(0), Some(10.94), Some(20.119)), (Some(1), Some(10.91), Some(0.41))];
        assert_eq!((seen.as_slice(), reader.name()), (want.as_slice(), "generic"), "{prefix}");
        let ranked = prefix.contains("rank0") || prefix.starts_with("0: ");
        assert_eq!(e[1].rank, ranked.then_some(0), "{prefix}");
        assert_eq!(e[1].ts.is_some(), prefix.contains("2025"), "{prefix}");
    }
    // Grammars of frameworks have it from the same place.
    let mut reader = auto();
    let e = read(&mut reader, &["INFO:root:s:1 trl:10.9", "INFO:root:s:2 trl:10.8"]);
    assert_eq!((e.len(), e[0].step, reader.name()), (2, Some(1), "llmc"));
    let e = read(&mut auto(), &["2025-01-01 10:00:03 INFO eval - 3: Loss 2.5 | LR 0.1"; 4]);
    assert_eq!(e, [], "an evaluation is no step");
}
