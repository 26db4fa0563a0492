//! Records of every unit that a run can be measured in.

use super::*;
use crate::LogReader;
use crate::line_formats::samples::{PLAIN, Sampled, Written};
use stepwatch_wire::{Edge, Kind};

impl Sampled for Composer {
    const LOGS: &'static [&'static str] = &[
        include_str!("../../../tests/data/llmfoundry_console.log"),
        include_str!("../../../tests/data/composer_shearing.log"),
    ];
    const WRITTEN: &'static [Written] = &[Written {
        line: "[batch=§/1000]:\n\t Train time/epoch: 0\n⟨\t Train loss/train/total: ¤\n⟩\t Train lr-DecoupledAdamW/group0: 1e-05",
        end: Some("other"),
        ..PLAIN
    }];
}

fn read(log: &str) -> (Vec<Event>, LogReader) {
    let mut r = LogReader::new(Some("composer")).unwrap();
    let mut out = Vec::new();
    for l in log.lines() {
        r.line(l, &mut out);
    }
    r.rest(&mut out);
    (out, r)
}

fn steps(log: &str) -> Vec<i64> {
    read(log).0.iter().filter(|e| e.kind == Kind::Step).map(|e| e.step.unwrap()).collect()
}

fn metrics(e: &Event) -> Vec<(&str, f64)> {
    e.m.iter().collect()
}

#[test]
fn a_whole_record() {
    let (e, r) = read(
        "[batch=366/48000]:\n\t Train time/batch: 365\n\t Train time/token: 382730240\n\t Train loss/train/total: 10.3750\n\t \
         Train metrics/train/LanguageCrossEntropy: 10.3750\n\t Train l2_norm/grad/global: 0.5\n\t \
         Train lr-DecoupledAdamW/group0: 0.0003\n\t Train throughput/device/mfu: 0.4125\n\t \
         Train throughput/device/tokens_per_sec: 12345.6\n[batch=367/48000]:\n\t Train time/token: 383778816\n\t \
         Train loss/train/total: nan\n",
    );
    assert_eq!((e.len(), e[0].kind, e[0].step), (2, Kind::Step, Some(366)));
    assert_eq!(
        metrics(&e[0]),
        [
            ("time/batch", 365.0),
            ("time/token", 382730240.0),
            ("loss", 10.375),
            ("metrics/train/LanguageCrossEntropy", 10.375),
            ("grad_norm", 0.5),
            ("lr", 0.0003),
            ("mfu_reported", 0.4125),
            ("tokens_per_second_per_gpu", 12345.6),
        ]
    );
    assert!(e[1].m.get("loss").unwrap().is_nan());
    assert_eq!((e[1].step, e[1].m.get("tokens")), (Some(367), Some(1048576.0)));
    assert_eq!((r.counters().unmatched, r.resolution().get("loss")), (0, Some(1e-4)));
}

#[test]
fn epochs_go_on_counting() {
    let record = |head: &str| format!("{head}\n\t Train loss/train/total: 1.5\n");
    let known = ["[epoch=1][batch=100/100]:", "[epoch=2][batch=1/100]:"].map(record).concat();
    assert_eq!(steps(&known), [100, 101]);
    let unknown =
        ["[epoch=1][batch=99]:", "[epoch=1][batch=100]:", "[epoch=2][batch=1]:"].map(record).concat();
    assert_eq!(steps(&unknown), [99, 100, 101]);
}

#[test]
fn runs_measured_in_tokens() {
    let log = "[token=1048576/9000000]:\n\t Train time/batch: 41\n\t Train loss/train/total: 1.5\n";
    assert_eq!(steps(log), [42]);
    let record = |n: i64| format!("[token={n}/9000]:\n\t Train loss/train/total: 1.5\n");
    assert_eq!(steps(&[100, 200, 100, 200].map(record).concat()), [1, 2, 1, 2], "a restart");
    let mut r = LogReader::new(Some("composer")).unwrap();
    r.resume(7);
    let mut e = Vec::new();
    record(100).lines().for_each(|l| {
        r.line(l, &mut e);
    });
    r.rest(&mut e);
    assert_eq!(e[0].step, Some(8));
}

#[test]
fn evaluations() {
    let (e, _) = read(
        "[batch=10/100]:\n\t Train loss/train/total: 1.5\n[Eval batch=1/10] Eval on eval data\n[Eval batch=5/10] Eval on eval data\n\
         [Eval batch=10/10] Eval on eval data:\n\t Eval metrics/eval/LanguageCrossEntropy: 2.3456\n\t \
         Eval metrics/eval/LanguagePerplexity: 10.44\n[batch=11/100]:\n\t Train loss/train/total: 1.25\n",
    );
    let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step, e.name.as_deref(), e.edge)).collect();
    assert_eq!(
        seen,
        [
            (Kind::Step, Some(10), None, None),
            (Kind::Phase, Some(10), Some("eval"), Some(Edge::Begin)),
            (Kind::Phase, Some(10), Some("eval"), Some(Edge::End)),
            (Kind::Eval, Some(10), Some("eval"), None),
            (Kind::Step, Some(11), None, None),
        ]
    );
    assert_eq!(metrics(&e[3]), [("loss", 2.3456), ("LanguagePerplexity", 10.44)]);
}

#[test]
fn a_record_is_given_out_once() {
    let mut r = LogReader::new(Some("composer")).unwrap();
    let mut e = Vec::new();
    for l in ["[batch=1/9]:", "Train loss/train/total: 1.5"] {
        r.line(l, &mut e);
    }
    assert!(e.is_empty());
    r.rest(&mut e);
    r.rest(&mut e);
    assert_eq!((e.len(), metrics(&e[0])), (1, vec![("loss", 1.5)]));
    for l in ["Train l2_norm/grad/global: 0.5", "some other text", "[batch=2/9]:", "[batch=3/9]:"] {
        r.line(l, &mut e);
    }
    let seen: Vec<_> = e.iter().map(|e| (e.step, metrics(e))).collect();
    assert_eq!(
        seen[1..],
        [(Some(1), vec![("grad_norm", 0.5)]), (Some(2), vec![])],
        "a header alone reports a step, and what came late belongs to its own"
    );
}

#[test]
fn what_is_no_header() {
    let (e, r) = read(
        "[batch=1]:\n[batch=x/9]:\n[batch=1/9\nTrain loss/train/total: 1\n[epoch=1]:\n[step=1/9]\nEval x: 1\n",
    );
    assert_eq!((e.len(), r.counters().unmatched), (0, 7));
}

#[test]
fn a_loss_of_none_is_missing() {
    let record = |batch: u32, loss: &str| {
        format!("[batch={batch}/9]:\n Train loss/train/total: {loss}\n Train l2_norm/grad/global: 0.5\n")
    };
    let log = [record(1, "1.5"), record(2, "1.4"), record(3, "None")].concat();
    for end in ["", "[batch=4/9]:\n"] {
        let (e, _) = read(&format!("{log}{end}"));
        let seen: Vec<_> = e.iter().take(3).map(|e| e.missing.clone()).collect();
        assert_eq!(seen, [vec![], vec![], vec!["loss".to_owned()]], "{end:?}");
    }
}
