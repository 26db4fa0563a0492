use super::*;
use proptest::prelude::*;

const SAMPLE: &str = r#"{"v":1,"k":"step","ts":1795227416.98,"run":"llama-70b","rank":0,"world":512,"step":12345,
    "m":{"loss":2.3456,"grad_norm":NaN,"lr":3e-4,"step_time":4.21,"tokens":4194304,"mfu":"Infinity"},
    "t":{"data":0.02,"fwd_bwd":3.9,"optim":0.2},"git":"abc"}"#;

#[test]
fn reads_the_contract() {
    let e = Event::parse(SAMPLE.as_bytes()).unwrap();
    assert_eq!((e.kind, e.step, e.rank, e.world), (Kind::Step, Some(12345), Some(0), Some(512)));
    assert_eq!(e.m.get("loss"), Some(2.3456));
    assert!(e.m.get("grad_norm").unwrap().is_nan());
    assert_eq!(e.m.get("mfu"), Some(f64::INFINITY));
    assert_eq!(e.t.get("fwd_bwd"), Some(3.9));
    assert_eq!(e.extra.get("git").and_then(Value::as_str), Some("abc"));
    let again = Event::parse(e.to_json().as_bytes()).unwrap();
    assert_eq!(again.to_json(), e.to_json());
}

#[test]
fn errors_name_the_field() {
    for (text, field) in [
        ("[1]", "$"),
        ("{", "$"),
        ("{}", "k"),
        (r#"{"k":"stepp","step":1}"#, "k"),
        (r#"{"k":"step"}"#, "step"),
        (r#"{"k":"step","step":1.5}"#, "step"),
        (r#"{"k":"step","step":-1}"#, "step"),
        (r#"{"k":"ckpt","phase":"exploded"}"#, "phase"),
        (r#"{"k":"ckpt","phase":1}"#, "phase"),
        (r#"{"k":"phase","name":"eval","phase":"middle"}"#, "phase"),
        (r#"{"k":"step","step":1,"rank":-1}"#, "rank"),
        (r#"{"k":"step","step":1,"m":[]}"#, "m"),
        (r#"{"k":"step","step":1,"m":{"loss":"high"}}"#, "m.loss"),
        (r#"{"k":"step","step":1,"ts":NaN}"#, "ts"),
        (r#"{"v":2,"k":"hb"}"#, "v"),
        (r#"{"k":"hb","run":{}}"#, "run"),
    ] {
        assert_eq!(Event::parse(text.as_bytes()).unwrap_err().field, field, "{text}");
    }
    let big = format!(r#"{{"k":"hb","x":"{}"}}"#, "y".repeat(MAX_EVENT_BYTES));
    assert_eq!(Event::parse(big.as_bytes()).unwrap_err().field, "$");
    // The exporter adds fields to an event, and the alerter must still be able to parse it.
    assert!(Event::parse_record(big.as_bytes()).is_ok());
    assert_eq!(Event::parse_record(big.repeat(2).as_bytes()).unwrap_err().field, "$");
}

#[test]
fn phases_and_checkpoints() {
    let edge = |t: &str| Event::parse(t.as_bytes()).unwrap().edge;
    assert_eq!(edge(r#"{"k":"phase","name":"eval","phase":"begin"}"#), Some(Edge::Begin));
    assert_eq!(edge(r#"{"end":true,"name":"eval","k":"phase"}"#), Some(Edge::End));
    let e = Event::parse(br#"{"phase":"fail","k":"ckpt","step":5,"path":"/x"}"#).unwrap();
    assert_eq!((e.ckpt, e.step), (Some(CkptPhase::Fail), Some(5)));
}

#[test]
fn a_failed_checkpoint_is_one_in_any_words() {
    let phase = |word: &str| {
        let text = format!(r#"{{"k":"ckpt","run":"r","phase":"{word}"}}"#);
        Event::parse(text.as_bytes()).unwrap().ckpt.unwrap()
    };
    for (want, words) in [
        (CkptPhase::Start, &["start", "begin"][..]),
        (CkptPhase::End, &["end", "done", "success", "saved", "Saved"]),
        (CkptPhase::Fail, &["fail", "failed", "error", "FAILED"]),
    ] {
        for word in words {
            assert_eq!(phase(word), want, "{word}");
        }
    }
    let edge = |word: &str| {
        let text = format!(r#"{{"k":"phase","name":"eval","phase":"{word}"}}"#);
        Event::parse(text.as_bytes()).unwrap().edge.unwrap()
    };
    assert_eq!(["begin", "start", "enter"].map(edge), [Edge::Begin; 3]);
    assert_eq!(["end", "stop", "exit"].map(edge), [Edge::End; 3]);
    // An event without a phase: the trainer only reports that it saved.
    assert_eq!(Event::parse(br#"{"k":"ckpt","step":5}"#).unwrap().ckpt, None);
}

#[test]
fn a_null_loss_of_a_step_is_a_number_that_its_writer_could_not_write() {
    for text in [
        r#"{"k":"step","step":1,"m":{"loss":null,"lr":null}}"#,
        r#"{"m":{"loss":null},"missing":["loss"],"step":1,"k":"step"}"#,
        r#"{"k":"step","step":1,"loss":null}"#,
    ] {
        assert_eq!(Event::parse(text.as_bytes()).unwrap().missing, ["loss"], "{text}");
    }
    let e = Event::parse(br#"{"k":"step","step":1,"m":{"grad_norm":null,"loss":2}}"#).unwrap();
    assert_eq!(e.missing, ["grad_norm"]);
    let e = Event::parse(br#"{"k":"eval","step":1,"m":{"loss":null}}"#).unwrap();
    assert!(e.missing.is_empty());
}

#[test]
fn a_resolution_is_a_positive_number_or_nothing() {
    let text = r#"{"k":"step","step":1,"m":{"loss":2.34},"q":{"loss":0.01,"lr":0,"grad_norm":NaN,"mfu":"x","tokens":null}}"#;
    let e = Event::parse(text.as_bytes()).unwrap();
    assert_eq!((e.q.iter().collect::<Vec<_>>(), e.dropped), (vec![("loss", 0.01)], 0));
    assert_eq!(e.to_json(), r#"{"v":1,"k":"step","step":1,"m":{"loss":2.34},"q":{"loss":0.01}}"#);
    let e = Event::parse(br#"{"k":"step","step":1,"q":0.7}"#).unwrap();
    assert_eq!((e.m.get("q"), e.q.len()), (Some(0.7), 0), "a metric of that name");
}

#[test]
fn flat_numbers_of_a_step_are_metrics() {
    let e = Event::parse(br#"{"k":"step","step":3,"loss":2.5,"note":"x"}"#).unwrap();
    assert_eq!(e.m.get("loss"), Some(2.5));
    assert_eq!(e.extra.len(), 1);
}

#[test]
fn limits_count_what_they_drop() {
    let many: Vec<String> = (0..300).map(|i| format!("\"k{i}\":1")).collect();
    let e =
        Event::parse(format!(r#"{{"k":"step","step":1,"m":{{{}}}}}"#, many.join(",")).as_bytes()).unwrap();
    assert_eq!((e.m.len(), e.dropped), (MAX_METRICS, 44));
}

/// The number of values in a value, including itself.
fn values(v: &Value) -> usize {
    1 + match v {
        Value::List(items) => items.iter().map(values).sum(),
        Value::Map(map) => map.values().map(values).sum(),
        _ => 0,
    }
}

#[test]
fn what_is_small_and_expands_is_kept_in_part() {
    for (inner, kept) in [(r#"{"":0}"#, 128), ("[0]", 128), ("0", 256), (r#""""#, 256), ("[]", 256)] {
        let some = vec![inner; 700].join(",");
        let text = format!(r#"{{"k":"hb","run":"r","a":[{some}],"b":[{some}],"d":[1],"z":"y"}}"#);
        let e = Event::parse_record(text.as_bytes()).unwrap();
        let all: usize = e.extra.values().map(|v| values(v) - 1).sum();
        assert_eq!(all, MAX_NESTED, "{inner}");
        assert!(e.dropped > 1000, "{inner}: {}", e.dropped);
        assert_eq!(e.extra.get("z").and_then(Value::as_str), Some("y"), "what is no list is no matter");
        let Some(Value::List(items)) = e.extra.get("a") else { panic!("{e:?}") };
        assert_eq!(items.len(), kept, "{inner}");
    }
    // Values that are not kept must still be valid JSON.
    let odd = format!(r#"{{"k":"hb","a":[{},x]}}"#, vec!["0"; 400].join(","));
    assert!(Event::parse(odd.as_bytes()).is_err());
    let m = vec![r#""loss":1"#; 1500].join(",");
    let e = Event::parse_record(format!(r#"{{"k":"step","step":1,"m":{{{m}}}}}"#).as_bytes()).unwrap();
    assert_eq!((e.m.len(), e.dropped), (1, 476));
}

proptest! {
    #[test]
    fn never_panics(bytes: Vec<u8>) {
        let _ = Event::parse(&bytes);
    }

    #[test]
    fn mutations_of_a_real_packet_never_panic(at in 0usize..300, b: u8) {
        let mut bytes = SAMPLE.as_bytes().to_vec();
        let at = at % bytes.len();
        bytes[at] = b;
        let _ = Event::parse(&bytes);
    }

    #[test]
    fn what_is_written_reads_back(
        step in 0i64..1_000_000, loss: f64, run in "[a-z\"\\\\é]{1,20}", rank in 0u32..5000, quantum in 1e-12f64..1e3,
    ) {
        let mut e = Event::step(&run, step);
        e.rank = Some(rank);
        e.m.set("loss", loss);
        e.q.set("loss", quantum);
        let again = Event::parse(e.to_json().as_bytes()).unwrap();
        prop_assert_eq!(again.to_json(), e.to_json());
        prop_assert_eq!(again.run, e.run);
    }
}

#[test]
fn no_text_of_an_event_steers_a_terminal_or_hides() {
    const HOSTILE: &str = r"*b*\r\n\u001b[31m\u202e\u200b<script>";
    let all = format!(
        r#"{{"k":"step","step":1,"run":"{HOSTILE}","node":"{HOSTILE}","name":"{HOSTILE}","text":"{HOSTILE}","level":"{HOSTILE}",
            "m":{{"{HOSTILE}":1,"*b* [31m<script>":2}},"t":{{"{HOSTILE}":1}},"missing":["{HOSTILE}"],"{HOSTILE}":{{"{HOSTILE}":["{HOSTILE}"]}}}}"#
    );
    let mut event = Event::parse(all.as_bytes()).unwrap();
    event.clean();
    for text in [&event.run, &event.node, &event.name, &event.level] {
        assert_eq!(text.as_deref(), Some("*b* [31m<script>"));
    }
    assert_eq!(event.text.as_deref(), Some("*b*\n[31m<script>"));
    assert_eq!(
        event.m.iter().collect::<Vec<_>>(),
        [("*b* [31m<script>", 1.0)],
        "of two that are one, the first"
    );
    let json = event.to_json();
    for hidden in ["\\r", "\\u001b", "\u{202e}", "\u{200b}"] {
        assert!(!json.contains(hidden), "{hidden:?} in {json}");
    }
    let mut unseen = Event::parse("{\"k\":\"hb\",\"run\":\"\u{200b}\"}".as_bytes()).unwrap();
    unseen.clean();
    assert_eq!(unseen.run, None, "a name that nobody can see is none");
    let error = Event::parse("{\"k\":\"\u{202e}\"}".as_bytes()).unwrap_err().to_string();
    assert!(!error.contains('\u{202e}'), "{error}");
}

#[test]
fn whose_the_run_is_travels_with_hello() {
    let event = Event::parse(br#"{"k":"hello","run":"r","uid":1000}"#).unwrap();
    assert_eq!(event.uid, Some(1000));
    assert_eq!(Event::parse(event.to_json().as_bytes()).unwrap(), event);
    assert_eq!(Event::parse(br#"{"k":"hello","run":"r","uid":"root"}"#).unwrap().uid, None);
}

#[test]
fn a_field_cannot_hide_behind_a_control_character() {
    let sent = "{\"k\":\"event\",\"run\":\"mine\",\"uid\":1,\"run\\u0001\":\"hers\",\"uid\\u0000\":2,\"no\\u202ede\":\"n7\"}";
    let mut event = Event::parse(sent.as_bytes()).unwrap();
    event.clean();
    assert_eq!((event.run.as_deref(), event.uid, event.node.as_deref()), (Some("hers"), Some(2), Some("n7")));
    assert!(event.extra.is_empty(), "{:?}", event.extra);
    assert_eq!(Event::parse(event.to_json().as_bytes()).unwrap(), event);
}
