//! Records of OLMo-core and OLMo.

use super::*;
use crate::LogReader;
use crate::background::stages;
use crate::line_formats::samples::{PLAIN, Sampled, Written};
use stepwatch_wire::{Edge, Kind};

impl Sampled for Olmo {
    const LOGS: &'static [&'static str] = &[
        include_str!("../../../tests/data/olmo.log"),
        "2026-06-22 10:00:00.123\tnode-3:0\tolmo_core.train.callbacks.console_logger:62\tINFO\t[step=10/1000,epoch=1,eta=1:02:03]\n    train/CE loss=2.345\n    optim/total grad norm=0.4312\n    throughput/device/TPS=12,345\n",
    ];
    const WRITTEN: &'static [Written] = &[Written {
        line: "2026-06-22 10:00:00.123\tnode-3:0\tolmo_core.train.callbacks.console_logger:62\tINFO\t[step=§/1000,epoch=1,eta=1:02:03]\n⟨    train/CE loss=¤\n⟩    optim/total grad norm=0.4312\n    throughput/device/TPS=12,345",
        end: Some("other"),
        ..PLAIN
    }];
}

fn read(log: &str) -> (Vec<Event>, LogReader) {
    let mut r = LogReader::new(Some("olmo")).unwrap();
    let mut out = Vec::new();
    for l in log.lines() {
        r.line(l, &mut out);
    }
    r.rest(&mut out);
    (out, r)
}

fn metrics(e: &Event) -> Vec<(&str, f64)> {
    e.m.iter().collect()
}

const CORE: &str = "\
2026-06-22 10:00:00.123\tnode-3:0\tolmo_core.train.callbacks.console_logger:62\tINFO\t[step=9/1000,epoch=1]
2026-06-22 10:00:01.123\tnode-3:0\tolmo_core.train.callbacks.console_logger:62\tINFO\t[step=10/1000,epoch=1,eta=1:02:03]
    train/CE loss=2.345
    train/PPL=10.43
    optim/total grad norm=0.4312
    optim/LR (group 0)=3.00E-04
    optim/LR (group 1)=1.00E-04
    optim/step skipped=0.0
    throughput/device/TPS=12,345
    throughput/device/BPS=1.250
    throughput/device/MFU=41.25
    throughput/device/data loading (s)=0.0123
    throughput/total tokens=41,943,040
    gpu_memory/GPU active mem (GiB)=61.23
2026-06-22 10:00:02.123\tnode-3:0\tolmo_core.train.callbacks.console_logger:62\tINFO\t[step=11/1000,epoch=1,eta=1:02:02]
    train/CE loss=nan
    throughput/total tokens=46,137,344
";

/// The line that ends a record is the header of the next, behind a prefix that OLMo does not know.
#[test]
fn headers_behind_what_another_logger_puts_before_them() {
    let record = |n: i64| {
        format!(
            "2025-09-01T10:00:0{n}.123Z\tINFO\t[step={n}/1000,epoch=1]\n    optim/total_grad_norm=1.2\n    train/CrossEntropyLoss=3.21\n"
        )
    };
    let mut r = LogReader::new(None).unwrap();
    let mut out = Vec::new();
    for l in (1..6).map(record).collect::<String>().lines() {
        r.line(l, &mut out);
    }
    r.rest(&mut out);
    assert_eq!(out.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert!(out.iter().all(|e| e.m.get("loss") == Some(3.21)), "{out:?}");
}

#[test]
fn olmo_core() {
    let (e, r) = read(CORE);
    let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step, e.ts)).collect();
    assert_eq!(
        seen,
        [
            (Kind::Step, Some(9), Some(1782122400.123)),
            (Kind::Step, Some(10), Some(1782122401.123)),
            (Kind::Step, Some(11), Some(1782122402.123)),
        ]
    );
    assert!(e[0].m.is_empty(), "a header alone reports a step");
    assert_eq!(
        metrics(&e[1]),
        [
            ("loss", 2.345),
            ("train/PPL", 10.43),
            ("grad_norm", 0.4312),
            ("lr", 3e-4),
            ("optim/LR (group 1)", 1e-4),
            ("skipped", 0.0),
            ("tokens_per_second_per_gpu", 12345.0),
            ("step_time", 0.8),
            ("mfu_reported", 0.4125),
            ("total_tokens", 41943040.0),
            ("memory_gib", 61.23),
        ]
    );
    assert_eq!(e[1].t.get("data"), Some(0.0123));
    assert!(e[2].m.get("loss").unwrap().is_nan());
    assert_eq!(e[2].m.get("tokens"), Some(4194304.0));
    let quantum = |name| r.resolution().get(name).unwrap();
    assert!(
        (quantum("loss") / 1e-3 - 1.0).abs() < 1e-9 && (quantum("mfu_reported") / 1e-4 - 1.0).abs() < 1e-9
    );
    assert!((quantum("step_time") / 6.4e-4 - 1.0).abs() < 1e-9, "{}", quantum("step_time"));
    assert_eq!(r.counters().unmatched, 0);
}

const OLMO: &str = "\
[2024-04-18 19:06:17] INFO     [olmo.train:816, rank=0] [step=75/739328]
    train/CrossEntropyLoss=7.417
    train/Perplexity=1,664
    throughput/total_tokens=314,572,800
    throughput/device/tokens_per_second=9,407
    throughput/device/batches_per_second=0.0022
[2024-04-18 19:10:41] CRITICAL [olmo.util:158, rank=0] Uncaught OLMoThreadError: generator thread data thread 3 failed
";

#[test]
fn olmo_one() {
    let (e, r) = read(OLMO);
    assert_eq!((e.len(), e[0].step, e[0].ts), (1, Some(75), Some(1713467177.0)));
    assert_eq!(
        metrics(&e[0]),
        [
            ("loss", 7.417),
            ("train/Perplexity", 1664.0),
            ("total_tokens", 314572800.0),
            ("tokens_per_second_per_gpu", 9407.0),
        ],
        "two digits of a rate are worse than the stamps"
    );
    assert_eq!(r.counters().unmatched, 0, "the line that ends a record");
}

#[test]
fn evaluations() {
    let p = "2026-06-22 10:00:00.123\th:0\tolmo_core.train:62\tINFO\t";
    let (e, _) = read(&format!(
        "{p}[step=10/1000,epoch=1]\n{p}Running lm evals...\n{p}[eval=lm,step=5/10]\n{p}Finished lm evals in 12.3 seconds. Metrics:\n    \
         c4_en-validation/CE loss=3.456\n    c4_en-validation/PPL=31.70\n    pile-validation/CE loss=2.9\n    \
         hellaswag (length-normalized accuracy)=0.3012\n{p}[step=11/1000,epoch=1]\n"
    ));
    let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step, e.name.as_deref(), e.edge)).collect();
    assert_eq!(
        seen,
        [
            (Kind::Step, Some(10), None, None),
            (Kind::Phase, Some(10), Some("eval"), Some(Edge::Begin)),
            (Kind::Phase, Some(10), Some("eval"), Some(Edge::End)),
            (Kind::Eval, Some(10), Some("c4_en-validation"), None),
            (Kind::Eval, Some(10), Some("pile-validation"), None),
            (Kind::Eval, Some(10), Some("lm"), None),
            (Kind::Step, Some(11), None, None),
        ]
    );
    assert_eq!(metrics(&e[3]), [("loss", 3.456), ("PPL", 31.7)]);
    assert_eq!(metrics(&e[5]), [("hellaswag (length-normalized accuracy)", 0.3012)]);
    let (e, _) = read(&format!(
        "{p}[step=10/1000]\n{p}Running evaluation for 'pile-validation'...\n{p}[eval_step=1/2]\n{p}pile-validation\n    \
         eval/pile-validation/CrossEntropyLoss=3.100\n    eval/pile-validation/Perplexity=22.20\n{p}[step=11/1000]\n"
    ));
    let kinds: Vec<_> = e.iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [Kind::Step, Kind::Phase, Kind::Eval, Kind::Phase, Kind::Step]);
    assert_eq!((e[2].name.as_deref(), e[2].m.get("loss")), (Some("pile-validation"), Some(3.1)));
}

/// Composed after the format strings of OLMo-core's `src/olmo_core/train/trainer.py`.
#[test]
fn checkpoints_and_the_end() {
    use CkptPhase::{End, Start};
    let p = "2026-06-22 10:00:00.123\th:0\tolmo_core.train:62\tINFO\t";
    let (e, _) = read(&format!(
        "{p}Loading checkpoint from '/c/step5'...\n{p}Checkpoint successfully loaded\n\
         {p}[step=10/1000,epoch=1]\n{p}Saving checkpoint for step 10 to '/c/step10' asynchronously...\n{p}[step=11/1000,epoch=1]\n\
         {p}Checkpoint for step 10 saved successfully\n{p}Saving ephemeral checkpoint...\n{p}Checkpoint saved to /c/step11\n{p}Training complete\n"
    ));
    let kinds: Vec<_> = e.iter().map(|e| e.kind).filter(|kind| *kind != Kind::Ckpt).collect();
    assert_eq!(kinds, [Kind::Step, Kind::Step, Kind::Bye]);
    let (n, last) = (Some(10), Some(11));
    assert_eq!(
        stages(&e),
        [
            (Start, "load", Some(5)),
            (End, "load", Some(5)),
            (Start, "save", n),
            (End, "save", n),
            (Start, "write", n),
            (End, "write", n),
            (End, "durable", n),
            (Start, "save", last),
            (End, "save", last),
            (End, "durable", last),
        ]
    );
    assert_eq!(e.last().map(|e| (e.kind, e.step)), Some((Kind::Bye, last)));
    let saves = e.iter().find(|e| e.ckpt == Some(Start) && e.step == n).unwrap();
    assert_eq!(saves.extra["path"].as_str(), Some("/c/step10"));
    let blocks = read(&format!(
        "{p}[step=10/1000]\n{p}Saving checkpoint for step 10 to '/c/step10'...\n{p}[step=10/1000]\n{p}Checkpoint saved\n{p}[step=11/1000]\n"
    ));
    assert_eq!(stages(&blocks.0), [(Start, "save", n), (End, "save", n)]);
    let quick = read(&format!(
        "{p}Saving checkpoint for step 10 to '/c/step10' asynchronously...\n{p}Checkpoint for step 10 saved successfully\n{p}[step=11/1000]\n"
    ));
    assert_eq!(stages(&quick.0), [(Start, "save", n), (End, "save", n), (End, "durable", n)]);
}

/// Composed after the format strings of OLMo-core's `src/olmo_core/io.py`.
#[test]
fn uploads_of_what_is_written_behind_the_steps() {
    use CkptPhase::{End, Start};
    let p = "2026-06-22 10:00:00.123\th:0\tolmo_core.io:62\tINFO\t";
    let dir = "s3://b/run/step10";
    let begins = |file: &str| format!("{p}Uploading 1.2GiB from '/tmp/x' to '{dir}/{file}'...\n");
    let ends = |file: &str| format!("{p}Uploaded 1.2GiB to '{dir}/{file}'\n");
    let saves = format!("{p}Saving checkpoint for step 10 to '{dir}' asynchronously...\n");
    let model = ["model_and_optim/__0_0.distcp", "model_and_optim/__0_1.distcp", "model_and_optim/.metadata"];
    let files = model.map(&begins).concat() + &model.map(&ends).concat();
    let done = format!("{p}Checkpoint for step 10 saved successfully\n");
    let log = [
        format!("{p}[step=10/1000]\n"),
        saves.clone(),
        begins("train/rank0.pt") + &ends("train/rank0.pt"),
        begins(model[0]),
        format!("{p}[step=11/1000]\n"),
        files,
        begins(".metadata.json") + &ends(".metadata.json"),
        begins(model[1]),
        begins("config.json") + &ends("config.json"),
        done.clone(),
        begins(model[1]),
        format!("{p}Uploaded 1.2GiB to '{dir}\n{p}Uploading 1.2GiB from 'x\n"),
        format!("{p}Saving checkpoint for step 12 to 's3://b/run/step12'...\n"),
        begins(model[0]).replace("step10", "step12"),
        format!("{p}Checkpoint saved\n"),
    ];
    let (e, _) = read(&log.concat());
    let (n, last) = (Some(10), Some(12));
    assert_eq!(
        stages(&e),
        [
            (Start, "save", n),
            (Start, "upload", n),
            (End, "save", n),
            (Start, "write", n),
            (End, "upload", n),
            (End, "write", n),
            (End, "durable", n),
            (Start, "save", last),
            (End, "save", last),
            (End, "durable", last),
        ]
    );
    let upload = e.iter().filter(|e| e.ckpt == Some(Start)).nth(1).unwrap();
    assert_eq!(upload.extra["path"].as_str(), Some(dir));
    // Its `.metadata.json` is uploaded whether or not the ranks have uploaded their files. Another
    // process saves it again.
    let (begun, mark) = ([saves.clone(), begins(model[0])].concat(), ends(".metadata.json"));
    let failed = [begun.clone(), mark, format!("{p}[step=10/1000]\n"), begun].concat();
    let start = [(Start, "save", n), (Start, "upload", n)];
    assert_eq!(stages(&read(&failed).0), [start, start].concat());
    let cut = [saves, begins(model[0]), done].concat();
    assert_eq!(
        stages(&read(&cut).0),
        [(Start, "save", n), (Start, "upload", n), (End, "save", n), (End, "upload", n), (End, "durable", n)]
    );
}

#[test]
fn a_record_that_goes_on_after_a_rest_is_of_the_same_step() {
    let mut r = LogReader::new(Some("olmo")).unwrap();
    let mut e = Vec::new();
    r.line("[step=10/1000,epoch=1]", &mut e);
    r.line("    train/CE loss=2.345", &mut e);
    r.rest(&mut e);
    assert_eq!((e.len(), e[0].m.get("loss")), (1, Some(2.345)));
    r.rest(&mut e);
    assert_eq!(e.len(), 1, "nothing new");
    r.line("    optim/total grad norm=0.5", &mut e);
    r.line("[step=11/1000,epoch=1]", &mut e);
    assert_eq!((e.len(), e[1].step, metrics(&e[1])), (2, Some(10), vec![("grad_norm", 0.5)]));
}

#[test]
fn values_without_a_header_are_nobodys() {
    let (e, r) = read("train/CE loss=2.345\neval/x/CE loss=1.0\n[step=x/1]\n[step=1]\nlr=1e-4\n");
    assert_eq!((e.len(), r.counters().unmatched), (0, 5));
}

#[test]
fn a_value_of_none_is_a_field_of_the_record() {
    let record = |step: u32, loss: &str, norm: &str| {
        format!(
            "[step={step}/1000,epoch=1]\n    optim/total grad norm={norm}\n    train/CE loss={loss}\n    \
             throughput/device/TPS=12,345\n"
        )
    };
    let log = |last: &str| {
        let good: String = (1..=3).map(|s| record(s, "2.5", "0.5")).collect();
        read(&format!("{good}{last}[step=5/1000,epoch=1]\n"))
    };
    let (e, r) = log(&record(4, "nan", "None"));
    assert!(e[3].m.get("loss").unwrap().is_nan());
    assert_eq!((e[3].step, e[3].missing.clone()), (Some(4), vec!["grad_norm".to_owned()]));
    assert_eq!(r.counters().unmatched, 0);
    for word in ["None", "null"] {
        let (e, r) = log(&record(4, word, "0.5"));
        assert_eq!((e[3].step, e[3].missing.clone()), (Some(4), vec!["loss".to_owned()]), "{word}");
        assert_eq!(metrics(&e[3]), [("grad_norm", 0.5), ("tokens_per_second_per_gpu", 12345.0)]);
        assert_eq!(r.counters().unmatched, 0);
    }
    let (e, _) = read(&record(1, "None", "0.5"));
    assert!(e[0].missing.is_empty(), "no line had one");
}

#[test]
fn a_record_that_rests_says_that_its_loss_is_none() {
    let mut r = LogReader::new(Some("olmo")).unwrap();
    let mut e = Vec::new();
    for (step, loss) in
        ["    train/CE loss=2.5", "    train/CE loss=2.4", "    train/CE loss=None", ""].iter().enumerate()
    {
        for line in [&format!("[step={step}/9,epoch=1]"), *loss, "    optim/total grad norm=0.5"] {
            r.line(line, &mut e);
        }
        r.rest(&mut e);
    }
    let seen: Vec<_> = e.iter().map(|e| (e.step.unwrap(), e.missing.len())).collect();
    assert_eq!(seen, [(0, 0), (1, 0), (2, 1), (3, 0)], "of one that is left out, more may come");
    assert_eq!(e[2].missing, ["loss"]);
}

#[test]
fn what_comes_late_of_a_record_misses_nothing() {
    let mut r = LogReader::new(Some("olmo")).unwrap();
    let mut e = Vec::new();
    for step in 1..=25 {
        r.line(&format!("[step={step}/99,epoch=1]"), &mut e);
        r.line("    train/CE loss=2.5", &mut e);
        if step == 24 {
            r.rest(&mut e);
        }
        r.line("    throughput/device/TPS=12,345", &mut e);
    }
    r.rest(&mut e);
    assert_eq!((e.len(), e[24].step, metrics(&e[24]).len()), (26, Some(24), 1));
    assert!(e.iter().all(|e| e.missing.is_empty()));
}
