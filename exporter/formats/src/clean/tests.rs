use super::*;

fn text(s: &str) -> &str {
    strip(s).text
}

#[test]
fn takes_off_every_launcher() {
    for s in [
        "[default7]: iteration 5/ 9 | x",
        "[rank0]:iteration 5/ 9 | x",
        "[trainer_3]:iteration 5/ 9 | x",
        "3: iteration 5/ 9 | x",
        " 0:  iteration 5/ 9 | x",
        "worker-0: iteration 5/ 9 | x",
        "jean-zay-iam01: iteration 5/ 9 | x",
        "[1,12]<stdout>:iteration 5/ 9 | x",
        "[prterun-node01-8214@1,3]<stderr>: iteration 5/ 9 | x",
        "[pod/llama-70b-worker-0/main] iteration 5/ 9 | x",
        "(TaskRunner pid=123, ip=10.0.0.1) iteration 5/ 9 | x",
        "(RayTrainWorker pid=7) iteration 5/ 9 | x",
        "2026-05-29T03:52:45.118201123Z stdout F iteration 5/ 9 | x",
        "3:  [2026-05-29 03:52:45] iteration 5/ 9 | x",
        "2026-05-29T03:52:45Z stderr F [rank0]: [2026-05-29 03:52:45.1] iteration 5/ 9 | x",
        "[pod/a-0/main] 2026-05-29T03:52:45Z [default3]:iteration 5/ 9 | x",
        "2026-05-29 03:52:45,123 - iteration 5/ 9 | x\r",
    ] {
        assert_eq!(text(s), "iteration 5/ 9 | x", "{s}");
    }
}

#[test]
fn a_line_of_a_record_of_composer_is_no_step() {
    let line = "3: \t Train loss/train/total: 7.9266";
    assert_eq!(text(line), "Train loss/train/total: 7.9266");
    assert_eq!(strip(line).origin.rank, Some(3));
    assert_eq!(text("12: Train loss 10.94 | LR 8.4e-07"), "12: Train loss 10.94 | LR 8.4e-07");
}

#[test]
fn leaves_what_is_no_prefix() {
    for s in [
        "step: 20  loss: 11.8",
        "step10: loss: 11.8",
        "iter-10: loss: 11.8",
        "s:0 trl:11.0091",
        "step:1/1845 train_time:73ms",
        "loss: 3: 4",
        "[Rank 1] (after 1 iterations)",
        "[2, 12000] loss: 1.247",
        "[12]: 5",
        "[1,2]<stdin>:x",
        "1795227416: x",
        "(min, max) time across ranks (ms):",
        "{'loss': 1}",
    ] {
        assert_eq!(text(s), s);
    }
}

#[test]
fn whose_words_they_are() {
    for (s, rank, process) in [
        ("3: x", Some(3), None),
        ("[1,12]<stdout>:x", Some(12), None),
        ("[rank511]: x", Some(511), None),
        ("[default7]: x", None, Some((0, 7))),
        ("12: [default4]: x", None, Some((12, 4))),
        ("worker-0: x", None, None),
        ("[pod/a-0/main] [rank2]: x", Some(2), None),
        ("5: [rank2]: x", Some(2), None),
        ("[rank2]: node7: x", Some(2), None),
        ("x", None, None),
    ] {
        assert_eq!(strip(s).origin, Origin { rank, process }, "{s}");
    }
}

#[test]
fn the_trainers_own_stamp_wins() {
    let c = strip("2026-05-29T03:52:46.5Z stdout F [2026-05-29 05:52:45] iteration");
    assert_eq!(c.stamp, Some(Stamp::Local(1780033965.0)));
    assert_eq!(strip("2026-05-29T03:52:46Z stdout F ").text, "");
    let piece = |s| container(s).map(|(_, text, partial)| (text.to_owned(), partial));
    assert_eq!(piece("2026-05-29T03:52:45Z stdout P half "), Some(("half ".into(), true)));
    assert_eq!(piece("2026-05-29T03:52:45Z stdout F  a"), Some((" a".into(), false)));
    assert_eq!(piece("2026-05-29T03:52:45Z stdout Fa"), None);
}

#[test]
fn records_of_docker() {
    let d = docker(r#"{"log":"\u001b[31mx\u001b[0m\n","stream":"stdout","time":"2026-05-29T03:52:45Z"}"#)
        .unwrap();
    assert_eq!((d.text.as_str(), d.stamp, d.partial), ("x\n", Some(Stamp::Exact(1780026765.0)), false));
    let piece = |end: &str| docker(&format!(r#"{{"log":"{}{end}"}}"#, "x".repeat(DOCKER_PIECE))).unwrap();
    assert!(piece("").partial && !piece(r"\n").partial);
    assert!(!docker(r#"{"log":"a whole line of an odd shipper"}"#).unwrap().partial);
    assert!(docker(r#"{"loss":1}"#).is_none() && docker(r#"{"log":5}"#).is_none());
}

#[test]
fn colours_and_bars() {
    assert_eq!(strip_ansi("\u{1b}[31mloss\u{1b}[0m: 2\u{1b}]0;title\u{7}!"), "loss: 2!");
    assert_eq!(strip_ansi("\u{1b}"), "");
    let parts: Vec<_> = segments("\r  1%| 1/9\r  \r{'a': 1}\n").collect();
    assert_eq!(parts, ["  1%| 1/9", "{'a': 1}"]);
}

proptest::proptest! {
    #[test]
    fn never_panics(s in "\\PC{0,60}") {
        let _ = (strip(&s), strip_ansi(&format!("\u{1b}[{s}\u{1b}]{s}")), docker(&format!("{{\"log\":{s}")));
        let _ = (strip(&format!("[{s}")), strip(&format!("[{s}]<stdout>:{s}")), strip(&format!("({s}) ")));
    }

    #[test]
    fn prefixes_in_front_change_nothing_behind(n in 0u32..9999, s in "[a-z{}][a-z0-9 |.]{0,30}[a-z]") {
        for line in [format!("{n}: [default{n}]:{s}"), format!("[1,{n}]<stdout>:{s}"), format!("[pod/x-{n}/y] {s}")] {
            proptest::prop_assert_eq!(strip(&line).text, text(&s));
        }
    }
}
