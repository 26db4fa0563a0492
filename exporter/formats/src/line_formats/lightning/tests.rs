use super::*;
use crate::LogReader;
use crate::line_formats::samples::{PLAIN, Sampled, Written};
use stepwatch_wire::{Kind, Value};

impl Sampled for Lightning {
    const LOGS: &'static [&'static str] = &[include_str!("../../../tests/data/lightning.log")];
    const WRITTEN: &'static [Written] = &[Written {
        line: "Epoch 0:   1%|          | §/40320 [01:00<6:00:00,  1.86it/s, v_num=0⟨, train_loss=¤⟩, lr=6e-4, Kt/s=122.0]",
        nan: "nan.0",
        ..PLAIN
    }];
}

fn read_as(format: Option<&str>, lines: &[&str]) -> (Vec<Event>, &'static str) {
    let mut r = LogReader::new(format).unwrap();
    let mut out = Vec::new();
    for l in lines {
        r.line(l, &mut out);
    }
    (out, r.name())
}

fn read(lines: &[&str]) -> Vec<Event> {
    read_as(None, lines).0
}

/// Another one at each step.
fn loss(epoch: i64, n: i64) -> f64 {
    3.0 - 0.001 * (100.0 * epoch as f64 + n as f64)
}

fn bar(epoch: i64, n: i64, more: &str) -> String {
    let loss = loss(epoch, n);
    format!("Epoch {epoch}:  12%|█▏        | {n}/100 [00:03<00:25,  3.50it/s{more}, train_loss={loss:.3}]")
}

fn drawn(epoch: i64, n: i64) -> String {
    bar(epoch, n, ", v_num=0")
}

fn save(epoch: i64, step: i64) -> String {
    format!(
        "Epoch {epoch}, global step {step}: 'val_loss' reached 0.49430 (best 0.49430), saving model to '/ckpt/epoch={epoch}-step={step}.ckpt' as top 3"
    )
}

/// Kind, step, and the edge of a checkpoint.
fn seen(events: &[Event]) -> Vec<(Kind, Option<i64>, Option<CkptPhase>)> {
    events.iter().map(|e| (e.kind, e.step, e.ckpt)).collect()
}

fn all(lines: &[String]) -> Vec<Event> {
    read(&lines.iter().map(String::as_str).collect::<Vec<_>>())
}

const START: Option<CkptPhase> = Some(CkptPhase::Start);
const END: Option<CkptPhase> = Some(CkptPhase::End);

#[test]
fn a_save_ends_when_the_bar_moves_on() {
    let e = all(&[drawn(0, 50), drawn(0, 100), save(0, 100), drawn(0, 100), drawn(1, 50)]);
    let want = [
        (Kind::Step, Some(50), None),
        (Kind::Step, Some(100), None),
        (Kind::Ckpt, Some(100), START),
        (Kind::Ckpt, Some(100), END),
        (Kind::Step, Some(150), None),
    ];
    assert_eq!(seen(&e), want);
    assert_eq!(e[2].extra.get("path"), Some(&Value::Text("/ckpt/epoch=0-step=100.ckpt".into())));
    assert_eq!((e[4].m.get("loss"), e[4].m.get("epoch")), (Some(2.85), Some(1.0)));
}

/// What lightning 2.6 wrote for two epochs of 50 batches, and for a third after a restart.
#[test]
fn a_real_log() {
    let (e, name) = read_as(None, &[include_str!("../../../tests/data/lightning.log")]);
    assert_eq!(name, "lightning");
    let steps: Vec<_> = e.iter().filter(|e| e.kind == Kind::Step).collect();
    let of = |e: &&Event| (e.step.unwrap(), e.m.get("loss").unwrap(), e.m.get("epoch").unwrap());
    let want = [
        (25, 3.63, 0.0),
        (50, 3.29, 0.0),
        (75, 2.97, 1.0),
        (100, 2.69, 1.0),
        (125, 2.43, 2.0),
        (150, 2.2, 2.0),
    ];
    assert_eq!(steps.iter().map(of).collect::<Vec<_>>(), want);
    let evals: Vec<_> =
        e.iter().filter(|e| e.kind == Kind::Eval).map(|e| (e.step, e.m.get("loss"))).collect();
    assert_eq!(evals, [(Some(50), Some(3.27)), (Some(100), Some(2.68)), (Some(150), Some(2.19))]);
    let is_load = |e: &&Event| e.extra.contains_key("stage");
    let saves: Vec<_> =
        e.iter().filter(|e| e.kind == Kind::Ckpt && !is_load(e)).map(|e| (e.step, e.ckpt)).collect();
    let of = |step| [(Some(step), START), (Some(step), END)];
    assert_eq!(saves, [of(50), of(100), of(150)].concat());
    assert_eq!(e.iter().filter(is_load).count(), 2);
    let mut ends: Vec<_> = e.iter().filter(|e| e.kind == Kind::Bye).map(|e| e.step).collect();
    ends.dedup();
    assert_eq!(ends, [Some(100), Some(150)]);
    assert_eq!(e.last().unwrap().kind, Kind::Bye);
}

#[test]
fn a_log_that_begins_in_a_later_epoch_counts_the_epochs_before() {
    let e = all(&[drawn(3, 50), drawn(3, 100), drawn(4, 50)]);
    assert_eq!(e.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [350, 400, 450]);
}

#[test]
fn an_evaluation_is_reported_once() {
    let shows = |n: i64| bar(0, n, ", v_num=0, val_loss=2.500, val/own=0.500");
    let validation = || "Validation DataLoader 0:  60%|██████    | 50/83 [03:25<02:15,  4.10s/it]".to_owned();
    let e = all(&[drawn(0, 50), validation(), shows(50), shows(60), shows(70), validation(), shows(70)]);
    let evals: Vec<_> = e.iter().filter(|e| e.kind == Kind::Eval).collect();
    assert_eq!(
        evals.iter().map(|e| e.step).collect::<Vec<_>>(),
        [Some(50), Some(70)],
        "the same value twice"
    );
    assert_eq!((evals[0].m.get("loss"), evals[0].m.get("own")), (Some(2.5), Some(0.5)));
    assert!(e.iter().filter(|e| e.kind == Kind::Step).all(|e| e.m.get("val_loss").is_none()));
}

#[test]
fn a_save_on_the_line_of_the_bar_is_read_too() {
    let line = format!(
        "{}Epoch 0, global step 100: 'val/loss' reached 0.00615 (best 0.00615), saving model to \"/c/a.ckpt\" as top 3",
        drawn(0, 100)
    );
    let e = all(&[drawn(0, 50), line, drawn(1, 50)]);
    let steps: Vec<_> = e.iter().map(|e| e.step.unwrap()).collect();
    assert_eq!(steps, [50, 100, 100, 100, 150]);
    assert_eq!(e[2].extra.get("path"), Some(&Value::Text("/c/a.ckpt".into())));
}

#[test]
fn a_save_is_counted_as_the_bar_counts() {
    // The bar is drawn each 20 batches.
    let e = all(&[drawn(0, 20), drawn(0, 40), save(0, 50), drawn(0, 60)]);
    assert_eq!(e[2].step, Some(50), "the bar lags behind");
    // Four batches are a step of the optimizer.
    let e = all(&[drawn(0, 20), drawn(0, 40), save(0, 10), drawn(0, 60)]);
    assert_eq!((e[2].step, e[3].step), (Some(40), Some(40)));
}

#[test]
fn a_save_whose_process_is_gone_does_not_end() {
    let e = all(&[drawn(1, 50), drawn(1, 60), save(1, 160), drawn(0, 10), drawn(0, 20)]);
    let ends = e.iter().filter(|e| e.ckpt == END).count();
    assert_eq!(ends, 0, "{:?}", seen(&e));
    // It draws its bar once more when it dies.
    let again = drawn(0, 100);
    let dies = [
        "Traceback (most recent call last):",
        "OSError: [Errno 28] No space left on device",
        again.as_str(),
        "Epoch 0:   0%|          | 0/100 [00:00<?, ?it/s]",
    ];
    let lines = [drawn(0, 50), drawn(0, 100), save(0, 100)].into_iter().chain(dies.map(str::to_owned));
    let e = all(&lines.chain([drawn(0, 10), drawn(0, 20)]).collect::<Vec<_>>());
    assert!(e.iter().any(|e| e.ckpt == START) && e.iter().all(|e| e.ckpt != END), "{:?}", seen(&e));
}

/// Composed after the format strings of NeMo 1's `S3CheckpointIO`, which NeMo draws Lightning's bar
/// beside.
#[test]
fn uploads_to_s3_between_the_drawings() {
    let p = "[NeMo I 2026-02-17 17:58:41 s3_checkpoint_io:183]";
    let begins = |path: &str| format!("{p} Uploading checkpoint to {path} in asynchronous mode, rank 0");
    let ends = |path: &str| {
        format!(
            "{p} Time elapsed uploading file /dev/shm/x of size 1.5GB to {path} with chunk_size=64MB and max_concurrency=10: 12.34 seconds"
        )
    };
    let (first, next) = ("s3://b/gpt--step=100-last.ckpt", "s3://b/gpt--step=150-last.ckpt");
    let uploads = |e: &[Event]| -> Vec<_> {
        let is_upload = |e: &&Event| e.extra.get("stage").and_then(Value::as_str) == Some("upload");
        e.iter().filter(is_upload).map(|e| (e.step, e.ckpt)).collect()
    };
    let e = all(&[
        drawn(0, 50),
        drawn(0, 100),
        begins(first),
        drawn(1, 10),
        ends(first),
        drawn(1, 50),
        begins(next),
        begins(next),
        drawn(1, 60),
        ends(next),
    ]);
    let (n, m) = (Some(100), Some(150));
    assert_eq!(uploads(&e), [(n, START), (n, END), (m, START), (m, END)]);
    let steps: Vec<_> = e.iter().filter(|e| e.kind == Kind::Step).map(|e| e.step.unwrap()).collect();
    assert_eq!(steps, [50, 100, 110, 150, 160], "no drawing is lost");
    // The process dies, and another one saves the same step under another name.
    let [lost, again] = ["5", "6"].map(|loss| format!("s3://b/gpt--val_loss={loss}-step=100.ckpt"));
    let e = all(&[
        drawn(0, 50),
        drawn(0, 100),
        begins(&lost),
        drawn(0, 60),
        drawn(0, 100),
        begins(&again),
        ends(&again),
    ]);
    assert_eq!(uploads(&e), [(n, START), (n, START), (n, END)]);
}

#[test]
fn what_is_no_save() {
    let e = all(&[
        save(0, 10),
        drawn(0, 50),
        "Epoch 0, global step 50: 'val_loss' was not in top 1".to_owned(),
        drawn(0, 60),
    ]);
    assert_eq!(seen(&e), [(Kind::Step, Some(50), None), (Kind::Step, Some(60), None)], "no step before");
    for text in [
        "Epoch x, global step 5: 'a' reached 1 (best 1), saving model to '/c' as top 1",
        "Epoch 1, global step y",
        "Epoch 1, global step 5: 'a' reached 1",
        "loss, global step 5: b",
    ] {
        assert_eq!(monitored(text), None, "{text}");
    }
}

#[test]
fn a_log_without_a_version_goes_on_counting_when_it_is_known() {
    let plain = |epoch, n| bar(epoch, n, "");
    let e = all(&[plain(0, 50), plain(0, 100), plain(1, 50), save(1, 150), plain(1, 60), plain(1, 70)]);
    let steps: Vec<_> = e.iter().filter(|e| e.kind == Kind::Step).map(|e| e.step.unwrap()).collect();
    assert_eq!(steps, [50, 100, 150, 160, 170]);
}

#[test]
fn a_load_an_evaluation_and_the_end() {
    let e = all(&[
        "Restoring states from the checkpoint path at /c/last.ckpt".to_owned(),
        "Restored all states from the checkpoint at /c/last.ckpt".to_owned(),
        "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 99.00it/s]".to_owned(),
        drawn(0, 50),
        "Validation DataLoader 0:  60%|██████    | 50/83 [03:25<02:15,  4.10s/it]".to_owned(),
        "Validation DataLoader 0: 100%|██████████| 83/83 [05:38<00:00,  4.08s/it]".to_owned(),
        drawn(0, 60),
        "`Trainer.fit` stopped: `max_steps=60` reached.".to_owned(),
    ]);
    let kinds: Vec<_> = e.iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [Kind::Ckpt, Kind::Ckpt, Kind::Step, Kind::Phase, Kind::Phase, Kind::Step, Kind::Bye]);
    for (event, phase) in e.iter().zip([START, END]) {
        assert_eq!((event.ckpt, event.extra.get("stage")), (phase, Some(&Value::Text("load".into()))));
        assert_eq!(event.extra.get("path"), Some(&Value::Text("/c/last.ckpt".into())));
    }
    assert_eq!((e[6].code, e[6].step), (Some(0), Some(60)));
}

#[test]
fn bars_of_rich_are_its_own() {
    let bar = |epoch: i64, step: i64| {
        format!("Epoch {epoch}/9  ━━━╸━━ {step}/100 0:00:03 • 0:00:00 30.10it/s v_num: 0 train_loss: 2.340")
    };
    let lines = [bar(0, 50), bar(0, 100), save(0, 100), bar(1, 50)];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let (e, name) = read_as(None, &lines);
    assert_eq!(name, "lightning");
    let steps: Vec<_> = e.iter().map(|e| (e.step.unwrap(), e.ckpt)).collect();
    assert_eq!(steps, [(50, None), (100, None), (100, START), (100, END), (150, None)]);
    // The process is gone, and a new one begins again.
    let e = all(&[bar(0, 50), bar(0, 100), save(0, 100), bar(0, 0), bar(0, 50), bar(0, 60)]);
    assert!(e.iter().any(|e| e.ckpt == START) && e.iter().all(|e| e.ckpt != END), "{:?}", seen(&e));
}

proptest::proptest! {
    #[test]
    fn never_panics(a in "\\PC{0,40}", n in proptest::prelude::any::<i64>(), b in "(Epoch |, global step |: |[0-9]|/|%[|]|[|]|━|\\[|\\]| as top |, saving model to |v_num=|'){0,20}") {
        let (save, drawn) = (save(n, n), drawn(n, n));
        for format in [None, Some("lightning")] {
            read_as(format, &[&a, &b, &save, &drawn, &format!("{drawn}{b}{save}"), &format!("{a}{save}{b}"), &b]);
        }
    }
}
