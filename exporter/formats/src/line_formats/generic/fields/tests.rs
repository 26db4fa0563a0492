use super::*;

fn fields(text: &str) -> Vec<(&str, f64, Unit)> {
    scan(text).unwrap_or_default().iter().map(|f| (f.name, f.number.value, f.unit)).collect()
}

fn plain(text: &str) -> Vec<(&str, f64)> {
    fields(text).into_iter().map(|(name, value, _)| (name, value)).collect()
}

#[test]
fn whatever_separates_them() {
    for text in [
        "step 12 loss 2.5",
        "step: 12 loss: 2.5",
        "step=12,loss=2.5",
        "step 12 | loss 2.5",
        "step: 12 - loss: 2.5",
        "step\t12\tloss\t2.5",
        "step,12,loss,2.5",
        "[step 12] loss = 2.5",
        "[step: 12] [loss: 2.5]",
        "{'step': 12, 'loss': 2.5}",
        "step(12) loss(2.5)",
        "step 12; loss: tensor(2.5, device='x')",
        "step - 12 - loss - 2.5",
        "step12 loss 2.5",
        "step_12: loss 2.5",
    ] {
        assert_eq!(plain(text)[..2], [("step", 12.0), ("loss", 2.5)], "{text}");
    }
    assert_eq!(
        plain("INFO  train step 7 lm loss nan -inf 3")[..1],
        [("train step", 7.0)],
        "two blanks end what stands before"
    );
    assert!(plain("loss nan")[0].1.is_nan());
    assert_eq!(plain("Cross Entropy Loss (NLL): 2.5 | lr 1"), [("Cross Entropy Loss", 2.5), ("lr", 1.0)]);
    // InternEvo, with a norm for each group of parameters.
    let groups = plain("loss_scale=65536.0 grad_norm={'0_default': nan} micro_num=4");
    assert!(groups.len() == 3 && groups[1].0 == "grad_norm" && groups[1].1.is_nan(), "{groups:?}");
    assert_eq!(plain("a={'b': 1, 'c': 2}").iter().filter(|(name, _)| *name == "a").count(), 0);
    assert_eq!(plain("loss: -inf, lr .5"), [("loss", f64::NEG_INFINITY), ("lr", 0.5)]);
    assert_eq!(plain("tok/s: 1,271,000 | acc 1"), [("tok/s", 1271000.0), ("acc", 1.0)]);
}

#[test]
fn totals() {
    let of = |text| {
        scan(text).unwrap().iter().map(|f| (f.name, f.number.value, f.of, f.leads)).collect::<Vec<_>>()
    };
    assert_eq!(of("Step 12/100"), [("Step", 12.0, Some(100), false)]);
    assert_eq!(of("[ 12/100] loss 2"), [("", 12.0, Some(100), true), ("loss", 2.0, None, false)]);
    assert_eq!(
        of("Epoch: [0][  10/1251] x 5")[..2],
        [("Epoch", 0.0, None, false), ("", 10.0, Some(1251), true)]
    );
    assert_eq!(of("Epoch: 1 [640/60000 (1%)]\tLoss: 0.5").len(), 3, "a percentage behind it is none");
}

#[test]
fn units() {
    for (text, want) in [
        ("dt 412.33ms", ("dt", 412.33, Unit::Time(1e3))),
        ("dt: 0.4 s | x", ("dt", 0.4, Unit::Time(1.0))),
        ("mfu 38.12%", ("mfu", 38.12, Unit::Percent)),
        ("tok/s 14K", ("tok/s", 14.0, Unit::Scale(1e3))),
        ("| 123.45 ms | x", ("", 123.45, Unit::Time(1e3))),
        ("| 431234 tok/s", ("", 431234.0, Unit::TokensPerSecond(1.0))),
        ("| 51.2% bf16 MFU |", ("", 51.2, Unit::Mfu)),
        ("mem 48.87GiB(51.44%)", ("mem", 48.87, Unit::Other)),
        ("time (ms): 12.5", ("time (ms)", 12.5, Unit::None)),
        ("mfu(%) 40", ("mfu(%)", 40.0, Unit::None)),
        ("step 12 ms 5.0", ("step", 12.0, Unit::None)),
    ] {
        assert_eq!(fields(text)[0], want, "{text}");
    }
}

#[test]
fn parts_of_something_else_are_no_numbers() {
    for text in [
        "at 10.0.0.1:8080",
        "time 12:34:56",
        "date 2026-05-29",
        "version 2.3.1",
        "torch-2.3.0",
        "v2.3",
        "0x7f8c",
        "3rd",
        "05/29/2026",
        "/data/12/loss",
        "pid@12",
        "12_000",
        "info nano",
    ] {
        assert_eq!(plain(text), [], "{text}");
    }
    assert!(plain("GET /metrics?step=12&loss=1").iter().all(|(name, _)| name.is_empty()));
    assert_eq!(plain("loss 6.9 (6.7) top1 0.5 (avg 0.4)"), [("loss", 6.9), ("top1", 0.5)]);
    for text in
        ["the loss 2.3 at step 5", "loss 2 was 5", "Saved step 5 loss 3", "Resumed from step 5 loss 2"]
    {
        assert!(scan(text).is_none(), "{text}");
    }
}

proptest::proptest! {
    #[test]
    fn never_panics(text in "\\PC{0,60}", near in "[a-z0-9 :=|,./()%\\[\\]-]{0,60}") {
        let _ = (scan(&text), scan(&near), scan(&format!("{near}{text}")));
    }
}
