//! Records of scalars, and what their tags mean.

use super::*;
use crate::number::Resolution;

fn give(scalars: &mut Scalars, step: i64, values: &[(&str, f64)]) -> Vec<Event> {
    let mut events = Vec::new();
    let ids: Vec<_> = values.iter().filter_map(|(t, v)| Some((scalars.id(t)?, *v))).collect();
    let mut resolution = Resolution::default();
    let mut out = Out::new(&mut events, &mut resolution, None);
    scalars.give(&Gathered { step, ts: Some(5.0), values: ids }, Printed::Binary, &mut out);
    events
}

fn once(values: &[(&str, f64)]) -> Vec<Event> {
    give(&mut Scalars::default(), 7, values)
}

fn metrics(e: &Event) -> Vec<(&str, f64)> {
    e.m.iter().collect()
}

#[test]
fn tags_of_frameworks() {
    let megatron = once(&[
        ("lm loss", 2.5),
        ("lm loss vs samples", 2.5),
        ("learning-rate", 0.1),
        ("throughput", 400.0),
        ("mtp_1 loss", 3.0),
    ]);
    assert_eq!(
        metrics(&megatron[0]),
        [("loss", 2.5), ("lr", 0.1), ("tflops_reported", 400.0), ("mtp_1_loss", 3.0)]
    );
    let titan = once(&[
        ("loss_metrics/global_avg_loss", 2.5),
        ("mfu(%)", 40.0),
        ("throughput(tps)", 4000.0),
        ("time_metrics/data_loading(s)", 0.25),
        ("time_metrics/data_loading(%)", 5.0),
        ("memory/max_active(GiB)", 2.0),
    ]);
    assert_eq!(titan[0].t.get("data"), Some(0.25));
    assert_eq!(
        metrics(&titan[0]),
        [
            ("loss", 2.5),
            ("mfu_reported", 0.4),
            ("tokens_per_second_per_gpu", 4000.0),
            ("time_metrics/data_loading_ratio", 0.05),
            ("memory/max_active_bytes", 2147483648.0),
        ]
    );
    let lightning =
        once(&[("train_loss_step", 1.0), ("train_loss_epoch", 1.5), ("lr-AdamW", 0.1), ("epoch", 0.0)]);
    assert_eq!(
        metrics(&lightning[0]),
        [("loss", 1.0), ("lr", 0.1), ("epoch", 0.0), ("train_loss_epoch", 1.5)]
    );
    let two = once(&[("lr-AdamW/pg1", 0.1), ("lr-AdamW/pg2", 0.2)]);
    assert_eq!(metrics(&two[0]), [("lr", 0.1), ("lr-AdamW/pg2", 0.2)]);
}

#[test]
fn evaluations_of_frameworks() {
    let of = |tags: &[&str]| {
        let values: Vec<_> = tags.iter().zip(1..).map(|(t, i)| (*t, f64::from(i))).collect();
        let events = once(&values);
        assert!(events.iter().all(|e| e.kind == Kind::Eval && e.step == Some(7)), "{tags:?}");
        events
            .iter()
            .map(|e| {
                let numbers: Vec<_> = e.m.iter().map(|(n, v)| format!("{n}={v}")).collect();
                format!("{}: {}", e.name.as_deref().unwrap(), numbers.join(" "))
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(of(&["lm loss validation", "lm loss validation ppl"]), ["validation: loss=1 lm_loss_ppl=2"]);
    assert_eq!(of(&["validation_metrics/loss"]), ["validation: loss=1"]);
    assert_eq!(of(&["eval/loss", "eval/runtime"]), ["eval: loss=1 runtime=2"]);
    assert_eq!(of(&["eval/c4_loss", "eval/c4_runtime", "eval/x"]), ["c4: loss=1 runtime=2", "eval: x=3"]);
    assert_eq!(of(&["val_loss", "val_acc"]), ["val: loss=1 acc=2"]);
    assert_eq!(of(&["eval/lm/c4_en-validation/CE loss"]), ["lm/c4_en-validation: loss=1"]);
    assert_eq!(of(&["metrics/eval/LanguageCrossEntropy"]), ["eval: loss=1"]);
    assert_eq!(of(&["Loss/test", "Accuracy/test"]), ["test: loss=1 Accuracy=2"]);
}

#[test]
fn a_step_and_its_evaluation_are_apart() {
    let events = once(&[("train/loss", 2.0), ("eval/loss", 3.0)]);
    let seen: Vec<_> = events.iter().map(|e| (e.kind, e.m.get("loss"))).collect();
    assert_eq!(seen, [(Kind::Eval, Some(3.0)), (Kind::Step, Some(2.0))]);
}

#[test]
fn another_run_in_the_file_has_a_loss_of_its_own() {
    let mut s = Scalars::default();
    give(&mut s, 7, &[("train/loss", 2.0)]);
    let second = |s: &mut Scalars| give(s, 1, &[("train/nll_loss", f64::NAN)]);
    s.begin_anew();
    assert!(second(&mut s)[0].m.get("loss").is_some_and(f64::is_nan));
    let usual = give(&mut s, 2, &[("train/loss", 2.0), ("train/nll_loss", 1.0)]);
    assert_eq!(usual[0].m.get("loss"), Some(2.0));
    assert_eq!(usual[0].m.get("train/nll_loss"), Some(1.0));
}

#[test]
fn hugging_face_ends_with_means() {
    let mut s = Scalars::default();
    give(&mut s, 7, &[("train/loss", 2.0)]);
    let events = give(&mut s, 7, &[("train/train_loss", 5.0), ("train/train_runtime", 60.0)]);
    assert_eq!(metrics(&events[0]), [("train/train_loss", 5.0), ("train/train_runtime", 60.0)]);
    let events = give(&mut s, 7, &[("train/train_loss", f64::NAN), ("train/train_runtime", 60.0)]);
    assert!(events[0].m.get("loss").unwrap().is_nan(), "a step before was lost");
    assert_eq!((events[1].kind, events[1].code), (Kind::Bye, Some(0)));
}

#[test]
fn the_time_since_the_start_ends_nothing_at_a_step() {
    for prefix in ["train/", ""] {
        let tag = |name: &str| format!("{prefix}{name}");
        let step = |s: &mut Scalars, n: i64, loss: f64| {
            let (of_loss, seconds, speed) =
                (tag("loss"), tag("train_runtime"), tag("train_tokens_per_second"));
            give(s, n, &[(&of_loss, loss), (&seconds, 12.3), (&speed, 456.7)])
        };
        let mut s = Scalars::default();
        for (n, loss) in [(10, 2.0), (20, f64::NAN), (30, 2.0)] {
            let events = step(&mut s, n, loss);
            assert_eq!(events.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Step], "{prefix}");
            assert_eq!(events[0].m.get("loss").unwrap().to_bits(), loss.to_bits(), "{prefix}");
        }
        let end = (tag("train_runtime"), tag("train_samples_per_second"));
        let events = give(&mut s, 30, &[(&end.0, 60.0), (&end.1, 5.4)]);
        assert_eq!(events.last().unwrap().kind, Kind::Bye, "{prefix}");
    }
}

#[test]
fn a_loss_with_a_name_of_its_own_is_the_loss() {
    let mut s = Scalars::default();
    let own = [("opt/aux_loss", 0.5), ("opt/diffusion_loss", 2.0), ("opt/lr", 0.1), ("loss_weight", 1.0)];
    for step in 1..3 {
        let e = &give(&mut s, step, &own)[0];
        assert_eq!((e.m.get("loss"), e.m.get("opt/aux_loss")), (Some(2.0), Some(0.5)));
    }
    let e = &once(&[("denoise/loss_total", 3.0), ("denoise/loss_pixel", 1.0), ("kl_loss", 0.1)])[0];
    assert_eq!((e.m.get("loss"), e.m.get("denoise/loss_pixel")), (Some(3.0), Some(1.0)));
    // A name that is known takes its place.
    let e = &give(&mut s, 3, &[("train/loss", 4.0), ("opt/diffusion_loss", 2.0)])[0];
    assert_eq!((e.m.get("loss"), e.m.get("opt/diffusion_loss")), (Some(4.0), Some(2.0)));
    assert_eq!(once(&[("eval/my_loss", 1.0), ("packet_loss", 2.0)])[1].m.get("loss"), None);
}

#[test]
fn a_counter_of_tokens_gives_those_of_a_step() {
    let mut s = Scalars::default();
    let of = |s: &mut Scalars, step: i64| {
        let all = step as f64 * 1e6;
        give(s, step, &[("train/loss", 2.0), ("train/tokens", all)])[0].m.get("tokens")
    };
    assert_eq!([of(&mut s, 1), of(&mut s, 2), of(&mut s, 4)], [None, Some(1e6), Some(1e6)]);
    let named = once(&[("train/loss", 2.0), ("perf/total_num_tokens", 500.0)]);
    assert_eq!(named[0].m.get("tokens"), Some(500.0));
}

#[test]
fn an_event_stays_small() {
    let names: Vec<String> = (0..600).map(|i| format!("layers.{i}.attention.\"q\".grad_norm")).collect();
    let mut values: Vec<_> = names.iter().map(|n| (n.as_str(), f64::MIN_POSITIVE)).collect();
    values.push(("loss", 2.5));
    let events = once(&values);
    assert_eq!(events[0].m.get("loss"), Some(2.5), "what matters is kept");
    assert!(events[0].dropped > 300);
    assert!(events[0].to_json().len() < stepwatch_wire::MAX_EVENT_BYTES);
}

#[test]
fn tags_are_bounded() {
    let mut s = Scalars::default();
    assert!(s.id(&"x".repeat(MAX_TAG_BYTES + 1)).is_none() && s.id("").is_none() && s.id("a\nb").is_none());
    for i in 0..MAX_TAGS + 10 {
        s.id(&format!("tag {i}"));
    }
    assert_eq!(s.ids.len(), MAX_TAGS);
    assert!(s.id("another").is_none());
}

#[test]
fn without_room_for_tags_the_usual_metrics_are_read() {
    let mut scalars = Scalars::default();
    for n in 0..100 {
        assert!(scalars.id(&format!("layers/{n}/norm")).is_some());
    }
    assert!(scalars.bytes() > 100 * TAG_BYTES);
    scalars.give_up();
    assert_eq!(scalars.bytes(), 0);
    assert_eq!(scalars.id("layers/1/norm"), None);
    assert_eq!(scalars.lost, 1);
    assert!(scalars.id("train/loss").is_some() && scalars.id("eval/loss").is_some());
    for n in 0..MAX_TAGS {
        scalars.id(&format!("eval/set-{n}/loss"));
    }
    assert!(scalars.bytes() < MAX_USUAL_TAGS * (3 * MAX_TAG_BYTES + TAG_BYTES), "{}", scalars.bytes());
}

#[test]
fn tags_of_a_file_have_a_limit_in_bytes() {
    for (mut scalars, max) in [(Scalars::default(), MAX_BYTES), (Scalars::of_whole(), MAX_BYTES_OF_WHOLE)] {
        for n in 0..MAX_TAGS {
            scalars.id(&format!("{n:0199}"));
        }
        assert!(scalars.bytes() <= max + 3 * MAX_TAG_BYTES + TAG_BYTES, "{}", scalars.bytes());
        assert!(scalars.id("train/loss").is_some() || scalars.ids.len() >= MAX_USUAL_TAGS);
    }
}
