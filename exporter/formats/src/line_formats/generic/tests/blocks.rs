//! Records of one number a line, and tables behind the step that they are of.

use stepwatch_wire::{Event, Kind};

use super::auto;
use crate::LogReader;

/// What fms-fsdp of IBM prints.
fn fms(step: i64, loss: &str, norm: &str) -> String {
    format!(
        "step: {step}\nloss: {loss}\nLR: 0.0003\ntokens seen: 1000\ngradient norm: {norm}\n\
         reserved memory: 123\nallocated memory: 123\ncurrent step time: 1.5\noverall step time: 1.6\n\
         current token per gpu per sec: 5000\noverall token per gpu per sec: 4000\n\
         overall token per day: 99999"
    )
}

/// What AReaL prints, behind its logger: two pairs of a name and a value in a row.
fn areal(step: i64, loss: &str) -> String {
    let logger = "[AReaL] 20251122-12:00:01.123 StatsLogger INFO: ";
    format!(
        "{logger}Epoch 1/10 Step {step}/100 Train step {step}/1000 done.\n{logger}Stats (1/1):\n{logger}\n\
         ╒════════╤════════╤════════╤════════╕\n\
         │ rollout/reward/avg │ 5.0000e-01 │ ppo_actor/loss/avg │ {loss} │\n\
         ├────────┼────────┼────────┼────────┤\n\
         │ ppo_critic/grad_norm │ 9.0000e+00 │ ppo_actor/update/grad_norm │ 1.2500e+00 │\n\
         ├────────┼────────┼────────┼────────┤\n\
         │ timeperf/train_step │ 1.2000e+01 │ │ │\n\
         ╘════════╧════════╧════════╧════════╛"
    )
}

fn read(text: &str) -> Vec<Event> {
    auto(&text.lines().collect::<Vec<_>>())
}

/// Step, loss and gradient norm of each step.
fn steps(text: &str) -> Vec<(i64, Option<f64>, Option<f64>)> {
    let steps = read(text).into_iter().filter(|e| e.kind == Kind::Step);
    steps.map(|e| (e.step.unwrap(), e.m.get("loss"), e.m.get("grad_norm"))).collect()
}

#[test]
fn numbers_of_a_line_each_are_one_step() {
    let log = [fms(100, "3.5", "0.5"), fms(200, "3.25", "0.75"), fms(300, "nan", "nan"), "end".into()];
    let log = log.join("\n");
    let got = steps(&log);
    assert_eq!(got[..2], [(100, Some(3.5), Some(0.5)), (200, Some(3.25), Some(0.75))]);
    assert!(got[2].0 == 300 && got[2].1.unwrap().is_nan() && got[2].2.unwrap().is_nan());
    let m = &read(&log)[0].m;
    let more = ["lr", "step_time", "tokens_per_second_per_gpu", "overall_step_time"].map(|name| m.get(name));
    assert_eq!(more, [Some(3e-4), Some(1.5), Some(5000.0), Some(1.6)]);
}

#[test]
fn a_table_belongs_to_the_step_before_it() {
    let log = [areal(1, "3.5000e-01"), areal(2, "2.5000e-01"), areal(3, "nan"), "end".into()].join("\n");
    let got = steps(&log);
    assert_eq!(got[..2], [(1, Some(0.35), Some(1.25)), (2, Some(0.25), Some(1.25))]);
    assert!(got[2].0 == 3 && got[2].1.unwrap().is_nan());
    let older = log.replace("done.", "done. Time consumption: 12.123").replace("[AReaL] ", "");
    assert_eq!(steps(&older)[..2], got[..2]);
    let m = &read(&log)[0].m;
    assert_eq!((m.get("rollout/reward/avg"), m.get("ppo_critic/grad_norm")), (Some(0.5), Some(9.0)));
}

#[test]
fn a_record_of_several_lines_ends_with_the_log_and_with_an_exception() {
    let log = [fms(100, "3.5", "0.5"), fms(200, "3.25", "0.75")].join("\n");
    let (mut r, mut out) = (LogReader::new(None).unwrap(), Vec::new());
    let lines = |r: &mut LogReader, text: &str, out: &mut Vec<Event>| {
        for l in text.lines() {
            r.line(l, out);
        }
    };
    lines(&mut r, &log, &mut out);
    lines(&mut r, &fms(300, "3.0", "0.5"), &mut out);
    assert_eq!(out.len(), 2);
    r.rest(&mut out);
    assert_eq!((out.len(), out[2].step, out[2].m.get("loss")), (3, Some(300), Some(3.0)));
    lines(&mut r, &fms(400, "2.5", "0.5"), &mut out);
    r.line("RuntimeError: loss is nan", &mut out);
    let got: Vec<_> = out.iter().map(|e| (e.step.unwrap(), e.m.get("loss").unwrap())).collect();
    assert_eq!(got[..4], [(100, 3.5), (200, 3.25), (300, 3.0), (400, 2.5)]);
    assert!(got[4].0 == 401 && got[4].1.is_nan(), "{got:?}");
}

#[test]
fn what_such_a_record_lacks_is_missed() {
    let good: Vec<String> = (1..=30).map(|s| fms(s * 100, "3.5", "0.5")).collect();
    let gone = fms(3100, "3.5", "0.5").replace("loss: 3.5\n", "");
    let none = fms(3100, "None", "0.5");
    for last in [gone, none] {
        let e = read(&format!("{}\n{last}\nend", good.join("\n")));
        let last = e.last().unwrap();
        assert_eq!((e.len(), last.step, &last.missing[..]), (31, Some(3100), &["loss".to_owned()][..]));
        assert!(e[..30].iter().all(|e| e.missing.is_empty()));
    }
    let small: Vec<String> = (1..=60).map(|s| format!("step: {s}\nloss: 2.5")).collect();
    let e = read(&format!("{}\nend", small.join("\n")));
    assert!(e.len() == 60 && e.iter().all(|e| e.missing.is_empty()), "a heading lacks nothing");
}

#[test]
fn numbers_behind_other_headings_are_none_of_the_training() {
    let step = fms(100, "3.5", "0.5");
    let train = [step.as_str(), &fms(200, "3.25", "0.75")].join("\n");
    for other in [
        "Evaluating at step 200\nloss: nan",
        "step: 201\nRunning validation\nloss: nan",
        "step: 201\nTest set:\nloss: nan",
        "Saving checkpoint at step 201\nloss: nan",
        "step 201 took 3 s\nloss: nan",
        "step: 201\n│ Prompt │ Completion │\n│ why │ loss is nan │\n│ a │ b │\nx\nloss: nan",
        "loss: nan",
        "step: 201\nthe loss: nan",
    ] {
        let e = read(&format!("{train}\n{other}\nend"));
        let lost = e.iter().any(|e| !e.missing.is_empty() || e.m.iter().any(|(_, v)| !v.is_finite()));
        assert!(e.len() == 2 && !lost, "{other}: {e:?}");
    }
    for config in ["steps: 1000\nlr: 0.1\nloss: 5\n", "step: 100\nloss: 2.5\nlr: 0.1\n"] {
        assert!(read(config).is_empty(), "{config}");
    }
}

proptest::proptest! {
    #[test]
    fn never_panics(lines in proptest::collection::vec("(step: [0-9]{1,20}|│ [a-z/é]{0,9} │ [0-9.nae-]{1,6} │|loss: [0-9.nae-]{1,6}|[│━ ]{0,4}|\\PC{0,20})", 0..12)) {
        let (mut r, mut out) = (LogReader::new(Some("generic")).unwrap(), Vec::new());
        for l in &lines {
            r.line(l, &mut out);
            if l.len() % 5 == 0 {
                r.rest(&mut out);
            }
        }
    }
}
