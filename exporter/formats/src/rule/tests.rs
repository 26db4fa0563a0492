use proptest::prelude::*;

use super::*;
use crate::LogReader;

fn rule(json: &str) -> Rule {
    serde_json::from_str(json).unwrap()
}

fn read(json: &str, lines: &[&str]) -> Vec<Event> {
    let mut reader = LogReader::with_rule(&rule(json)).unwrap();
    let mut out = Vec::new();
    for l in lines {
        reader.line(l, &mut out);
    }
    out
}

#[test]
fn groups_of_a_regex() {
    let step = r#"{"regex":"it (?P<step>\\d+)/\\d+ \\| L=(?P<loss>\\S+) \\| (?P<step_time>\\S+) \\| (?P<gnorm>\\S+)","units":{"step_time":"ms"}}"#;
    let e = read(
        step,
        &[
            "2026-05-29 03:52:45 it 12/90 | L=2.5 | 412.5 | 0.7",
            "noise",
            "it 13/90 | L=nan | 400 | 1.5",
            "it x/9 | L=1 | 1 | 1",
        ],
    );
    assert_eq!(e.len(), 2);
    assert_eq!((e[0].kind, e[0].step, e[0].ts), (Kind::Step, Some(12), Some(1780026765.0)));
    assert_eq!(e[0].m.iter().collect::<Vec<_>>(), [("loss", 2.5), ("step_time", 0.4125), ("grad_norm", 0.7)]);
    assert!(e[1].m.get("loss").unwrap().is_nan());
    let e = read(r#"{"regex":"(?P<step>\\d+) (?P<loss>\\S+) (?P<lr>\\S+)"}"#, &["5 None 0.1", "6 2.5 x"]);
    assert_eq!((&e[0].missing[..], e[0].m.get("lr")), (&["loss".to_owned()][..], Some(0.1)));
    assert_eq!(e[1].m.iter().collect::<Vec<_>>(), [("loss", 2.5)], "a word is no number");
}

#[test]
fn two_columns() {
    let e = read(
        r#"{"regex":"^(?P<step>\\d+)\\s+(?P<loss>\\S+)$"}"#,
        &["1 8.296810150146484", "2 7.725587844848633"],
    );
    assert_eq!(
        e.iter().map(|e| (e.step.unwrap(), e.m.get("loss").unwrap())).collect::<Vec<_>>(),
        [(1, 8.296810150146484), (2, 7.725587844848633)]
    );
}

#[test]
fn the_line_as_it_stands_or_without_its_prefixes() {
    let e = read(
        r#"{"regex":"^\\[(?P<ts>[^\\]]+)\\] s=(?P<step>\\d+) (?P<loss>\\S+)"}"#,
        &["[2026-05-29 03:52:45] s=5 2.5", "3: [2026-05-29 03:52:45] s=6 2.5"],
    );
    assert_eq!((e.len(), e[0].step, e[0].ts), (1, Some(5), Some(1780026765.0)));
    let e = read(r#"{"regex":"^s=(?P<step>\\d+) (?P<loss>\\S+)"}"#, &["3: [2026-05-29 03:52:45] s=6 2.5"]);
    assert_eq!((e[0].step, e[0].rank, e[0].ts), (Some(6), Some(3), Some(1780026765.0)));
}

#[test]
fn evaluations_and_checkpoints() {
    let e = read(
        r#"{"regex":"eval on (?P<name>\\w+) @(?P<step>\\d+): (?P<loss>\\S+)","kind":"eval","name":"x"}"#,
        &["eval on c4 @500: 2.5"],
    );
    assert_eq!(
        (e[0].kind, e[0].step, e[0].name.as_deref(), e[0].m.get("loss")),
        (Kind::Eval, Some(500), Some("c4"), Some(2.5))
    );
    let e = read(
        r#"{"regex":"ckpt (?P<phase>\\w+) (?P<step>\\d+) (?P<path>\\S+)","kind":"ckpt"}"#,
        &["ckpt start 5 /x", "ckpt saved 5 /x", "ckpt failed 6 /x", "ckpt sideways 7 /x"],
    );
    assert_eq!(
        e.iter().map(|e| (e.ckpt, e.step)).collect::<Vec<_>>(),
        [
            (Some(CkptPhase::Start), Some(5)),
            (Some(CkptPhase::End), Some(5)),
            (Some(CkptPhase::Fail), Some(6))
        ]
    );
    assert_eq!(e[0].extra.get("path"), Some(&Value::Text("/x".into())));
}

#[test]
fn keys_of_logfmt() {
    let e = read(
        r#"{"logfmt":{"step":"global_step","loss":"train.loss","step_time":"dur","ts":"time","mfu":"mfu","run":"job"}}"#,
        &[
            r#"level=info msg="train step" global_step=12 train.loss=2.5 dur=412ms time="2026-05-29T03:52:45Z" mfu=41% job="a b""#,
            "level=info msg=hello",
            "global_step=13 other=1",
        ],
    );
    assert_eq!(
        (e.len(), e[0].step, e[0].ts, e[0].run.as_deref()),
        (1, Some(12), Some(1780026765.0), Some("a b"))
    );
    let m: Vec<_> = e[0].m.iter().collect();
    assert_eq!(
        m,
        [("loss", 2.5), ("mfu_reported", 0.41), ("step_time", 0.412)],
        "units that stand behind the number"
    );
}

#[test]
fn several_rules() {
    let rules = [
        rule(r#"{"regex":"^s (?P<step>\\d+) (?P<loss>\\S+)"}"#),
        rule(r#"{"regex":"^e (?P<step>\\d+) (?P<loss>\\S+)","kind":"eval"}"#),
    ];
    let mut reader = LogReader::with_rules(&rules).unwrap();
    let mut out = Vec::new();
    for l in ["s 1 2.5", "e 1 2.6", "x 1 2"] {
        reader.line(l, &mut out);
    }
    assert_eq!((reader.name(), out.len(), out[0].kind, out[1].kind), ("rule", 2, Kind::Step, Kind::Eval));
}

#[test]
fn mistakes_are_named_with_what_is_accepted() {
    let wrong = |json: &str| LogReader::with_rule(&rule(json)).unwrap_err().to_string();
    insta::assert_snapshot!(
        [
            r#"{}"#,
            r#"{"regex":"x","logfmt":{}}"#,
            r#"{"regex":"(?P<step>\\d+"}"#,
            r#"{"regex":"(\\d+) (\\S+)"}"#,
            r#"{"regex":"(?P<loss>\\S+)"}"#,
            r#"{"regex":"(?P<step>\\d+)"}"#,
            r#"{"regex":"(?P<step>\\d+) (?P<loss>\\S+)","units":{"dt":"ms"}}"#,
            r#"{"regex":"(?P<step>\\d+) (?P<loss>\\S+)","units":{"step":"K"}}"#,
            r#"{"regex":"(?P<step>\\d{1,1000}){1000} (?P<loss>\\S+)"}"#,
            r#"{"logfmt":{"loss":"l"}}"#,
            r#"{"logfmt":{}}"#,
        ]
        .map(wrong)
        .join("\n")
    );
    let not_a_rule = |json: &str| serde_json::from_str::<Rule>(json).unwrap_err().to_string();
    insta::assert_snapshot!(
        [r#"{"regx":"x"}"#, r#"{"regex":"x","kind":"steps"}"#, r#"{"regex":"x","units":{"dt":"millis"}}"#]
            .map(not_a_rule)
            .join("\n")
    );
    assert!(
        LogReader::with_rules(&[]).is_err() && LogReader::with_rules(&vec![Rule::default(); 99]).is_err()
    );
    assert_eq!(compile(&"x".repeat(MAX_REGEX + 1)).unwrap_err().field, "regex");
}

#[test]
fn a_rule_survives_its_own_writing() {
    let r = rule(r#"{"regex":"(?P<step>\\d+) (?P<loss>\\S+)","kind":"eval","units":{"loss":"percent"}}"#);
    assert_eq!(serde_json::from_str::<Rule>(&serde_json::to_string(&r).unwrap()).unwrap(), r);
}

proptest! {
    #[test]
    fn never_panics(text in "\\PC{0,60}", near in "[a-z0-9 =.\"%-]{0,40}", pattern in "\\PC{0,30}") {
        let _ = LogReader::with_rule(&Rule { regex: Some(pattern), ..Rule::default() });
        for json in [
            r#"{"regex":"(?P<step>\\S+) (?P<loss>.*)"}"#,
            r#"{"regex":"(?P<ts>.+) (?P<phase>.+)","kind":"ckpt"}"#,
            r#"{"logfmt":{"step":"a","loss":"b","rank":"c"}}"#,
        ] {
            read(json, &[&text, &near, &format!("a=1 b={near} c={text}")]);
        }
    }
}
