//! Steps that begin again with each epoch, where the epoch stands on another line or before a bar.

use stepwatch_wire::Kind;

use super::{auto, read};

/// Step, loss and epoch of each step.
fn steps(lines: &[&str]) -> Vec<(i64, f64, Option<f64>)> {
    let steps = auto(lines).into_iter().filter(|e| e.kind == Kind::Step);
    steps.map(|e| (e.step.unwrap(), e.m.get("loss").unwrap(), e.m.get("epoch"))).collect()
}

#[test]
fn bars_of_keras_count_on_over_its_epochs() {
    let lines = [
        "Epoch 1/5",
        "  1/100 ━━━━ 3s 30ms/step - accuracy: 0.1 - loss: 0.5",
        " 50/100 ━━━━ 1s 30ms/step - accuracy: 0.1 - loss: 0.4",
        "100/100 ━━━━ 3s 30ms/step - accuracy: 0.1 - loss: 0.3 - val_loss: 0.2",
        "Epoch 2/5",
        "  1/100 ━━━━ 3s 30ms/step - accuracy: 0.1 - loss: 0.25",
        "Epoch 4/5",
        "  1/100 ━━━━ 3s 30ms/step - accuracy: 0.1 - loss: inf",
    ];
    let got = steps(&lines);
    let one = Some(1.0);
    assert_eq!(got[..4], [(1, 0.5, one), (50, 0.4, one), (100, 0.3, one), (101, 0.25, Some(2.0))]);
    assert_eq!(got[4], (301, f64::INFINITY, Some(4.0)), "an epoch of which no line is in the log");
}

#[test]
fn lines_of_keras_after_each_epoch_count_on() {
    let line = |loss: &str| {
        format!(
            "100/100 - 3s - 30ms/step - accuracy: 0.9000 - loss: {loss} - val_accuracy: 0.9 - val_loss: 0.2"
        )
    };
    let (first, second, lost) = (line("0.3000"), line("2.5e-04"), line("nan"));
    let got = steps(&["Epoch 1/5", &first, "Epoch 2/5", &second, "Epoch 3/5", &lost]);
    assert_eq!(got[..2], [(100, 0.3, Some(1.0)), (200, 2.5e-4, Some(2.0))]);
    assert!(got[2].0 == 300 && got[2].1.is_nan());
}

#[test]
fn bars_of_rich_are_read() {
    let bar = |epoch: i64, step: i64, loss: &str| {
        format!("Epoch {epoch}/9  ━━━╸━━ {step}/100 0:00:03 • 0:00:00 30.10it/s v_num: 0 train_loss: {loss}")
    };
    let lines = [bar(0, 10, "0.3"), bar(0, 100, "0.25"), bar(1, 10, "0.2"), bar(1, 20, "nan")];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let got = steps(&lines);
    assert_eq!(got[..3], [(10, 0.3, Some(0.0)), (100, 0.25, Some(0.0)), (110, 0.2, Some(1.0))]);
    assert!(got[3].0 == 120 && got[3].1.is_nan());
    let other = "Validation  ━━━ 20/100 0:00:03 • 0:00:00 30.10it/s loss: nan";
    let behind = [&lines[..3], &[other]].concat();
    assert_eq!(steps(&behind).len(), 3, "an evaluation");
}

#[test]
fn headings_change_nothing_where_steps_go_on() {
    let lines = ["Epoch 1/2", "step 99 loss 2.5", "step 100 loss 2.4", "Epoch 2/2", "step 101 loss 2.3"];
    let got: Vec<_> = steps(&lines).into_iter().map(|(step, ..)| step).collect();
    assert_eq!(got, [99, 100, 101]);
    let back = [&lines[..], &["Epoch 1/2", "step 1 loss 2.5", "step 2 loss 2.4"]].concat();
    let got: Vec<_> = steps(&back).into_iter().map(|(step, ..)| step).collect();
    assert_eq!(got, [99, 100, 101, 1, 2], "another run");
    for text in ["Epoch 5/10 done in 3 s", "Epoch", "Epoch 5: loss", "Epochs 5", "epoch5"] {
        let lines = [text, "12/100 - loss: 0.5", text, "3/100 - loss: 0.5"];
        assert_eq!(read(&lines).iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [12, 3], "{text}");
    }
}

#[test]
fn an_epoch_has_as_many_steps_as_it_counted_to() {
    let line = |epoch: i64, step: i64| format!("epoch: {epoch} step: {step}, loss is 2.5");
    let read = |lines: &[(i64, i64)]| -> Vec<i64> {
        let lines: Vec<String> = lines.iter().map(|(epoch, step)| line(*epoch, *step)).collect();
        steps(&lines.iter().map(String::as_str).collect::<Vec<_>>()).into_iter().map(|(s, ..)| s).collect()
    };
    assert_eq!(read(&[(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)]), [1, 2, 3, 4, 5], "from one");
    assert_eq!(read(&[(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]), [0, 1, 2, 3, 4], "from none");
    assert_eq!(read(&[(1, 60), (2, 60), (3, 60)]), [60, 120, 180], "one line an epoch");
}

#[test]
fn sentences_and_names_before_values_are_read_as_before() {
    for text in [
        "the run stopped, loss is 2.5 at step 5",
        "step 5: done, loss is high",
        "loss is 2.5, step 5",
        "RuntimeError: loss is nan at step 5",
    ] {
        assert!(read(&[text]).is_empty(), "{text}");
    }
    for (text, loss, norm) in [
        ("step 5 - loss - 2.5 - lr - 0.1", Some(2.5), None),
        ("step 5 - lr - 0.1 - loss - 2.5", Some(2.5), None),
        ("step 5, loss 2.5, 0.3 grad norm", Some(2.5), None),
        ("step 5 | loss: 2.5 | norm: 0.3", Some(2.5), Some(0.3)),
        ("step 5, 2.5 loss, norm 0.3", Some(2.5), Some(0.3)),
        ("Step 5: 2.5 loss, 0.3 norm", Some(2.5), Some(0.3)),
    ] {
        let e = read(&[text]).pop().unwrap_or_else(|| panic!("{text}"));
        assert_eq!((e.m.get("loss"), e.m.get("grad_norm")), (loss, norm), "{text}");
    }
}

#[test]
fn a_word_for_nothing_may_stand_before_its_name() {
    let line = |step: i64, value: &str| format!("Step {step}/99 - {value} loss - {value} grad norm");
    let lines = [line(1, "2.5"), line(2, "2.5"), line(3, "nan"), line(4, "None")];
    let e = read(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(e[2].m.get("loss").unwrap().is_nan() && e[2].m.get("grad_norm").unwrap().is_nan());
    assert_eq!((e[3].step, &e[3].missing[..]), (Some(4), &["loss".to_owned(), "grad_norm".to_owned()][..]));
}
