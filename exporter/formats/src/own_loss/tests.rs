use super::*;

fn best<'n>(names: &[&'n str]) -> Option<&'n str> {
    OwnLoss::default().find(names.iter().copied())
}

#[test]
fn the_name_that_looks_most_like_the_loss() {
    for (names, want) in [
        (&["lr", "nll_loss"][..], Some("nll_loss")),
        (&["aux_loss", "kl_loss", "z_loss", "val_loss", "critic_loss", "loss_scale", "packet_loss"], None),
        (
            &["entropy", "entropy_loss", "moe_aux_loss", "eval/nll", "test_xent", "loss_type", "loss_every"],
            None,
        ),
        (&["xent", "ppl"], Some("xent")),
        (&["cross_entropy", "entropy_loss"], Some("cross_entropy")),
        (&["Cross Entropy Loss", "acc"], Some("Cross Entropy Loss")),
        (&["mse_loss", "nll_loss"], Some("nll_loss")),
        (&["nll_loss", "policy_loss"], Some("policy_loss")),
        (&["policy_loss", "loss_total"], Some("loss_total")),
        // Alike: the shorter, and then by alphabet, in whatever order they are printed.
        (&["diffusion_loss", "box_loss"], Some("box_loss")),
        (&["dfl_loss", "box_loss", "cls_loss"], Some("box_loss")),
        (&["cls_loss", "box_loss", "dfl_loss"], Some("box_loss")),
        (&["glossary", "nllb", "lossless"], None),
    ] {
        assert_eq!(best(names), want, "{names:?}");
    }
}

#[test]
fn the_first_stays_until_it_is_gone_for_long() {
    let mut own = OwnLoss::default();
    let find = |own: &mut OwnLoss, name: &'static str| own.find([name, "lr"].into_iter());
    assert_eq!(find(&mut own, "mse_loss"), Some("mse_loss"));
    assert_eq!(find(&mut own, "nll_loss"), None, "it is of another line");
    assert_eq!(find(&mut own, "mse_loss"), Some("mse_loss"));
    for _ in 1..REPLACED {
        assert_eq!(find(&mut own, "nll_loss"), None);
    }
    assert_eq!(find(&mut own, "nll_loss"), Some("nll_loss"), "another phase of the run");
    own.saw_usual();
    assert_eq!(find(&mut own, "nll_loss"), None);
}

#[test]
fn another_run_has_another_loss() {
    let mut own = OwnLoss::default();
    let mut find = |step: i64, name: &'static str, usual: bool| {
        own.moves(step);
        if usual {
            own.saw_usual();
            return None;
        }
        own.find([name, "lr"].into_iter())
    };
    for step in 1..4 {
        assert_eq!(find(step, "loss", true), None);
    }
    assert_eq!(find(1, "nll_loss", false), Some("nll_loss"), "a second run");
    assert_eq!(find(2, "nll_loss", false), Some("nll_loss"));
    assert_eq!(find(1, "mse_loss", false), Some("mse_loss"), "a third");
    assert_eq!(find(2, "loss", true), None);
    assert_eq!(find(3, "mse_loss", false), None, "beside the usual one");
    for _ in 1..REPLACED {
        assert_eq!(find(1, "mse_loss", false), None, "it may be of such a line again");
    }
    assert_eq!(find(2, "mse_loss", false), Some("mse_loss"));
}

/// One file, to which two runs write.
#[test]
fn a_second_run_in_one_log_does_not_lose_its_nan() {
    let json = |step: i64, name: &str, value: &str| {
        format!(r#"{{"step":{step},"{name}":{value},"lr":0.1,"grad_norm":1.0}}"#)
    };
    let text = |step: i64, name: &str, value: &str| {
        format!("step: {step} | {name}: {value} | lr: 0.1 | grad_norm: 1.0")
    };
    for line in [&json as &dyn Fn(i64, &str, &str) -> String, &text] {
        for first in [4, 200] {
            let mut reader = crate::LogReader::new(None).unwrap();
            let mut events = Vec::new();
            let run = (1..first).map(|step| line(step, "loss", "2.5"));
            let second = (1..30).map(|step| line(step, "nll_loss", "2.25"));
            let lost = [line(30, "nll_loss", "NaN")];
            for l in run.chain(second).chain(lost) {
                reader.line(&l, &mut events);
            }
            let losses: Vec<_> = events.iter().filter_map(|e| e.m.get("loss")).collect();
            assert_eq!(losses.len(), first as usize - 1 + 30, "{events:?}");
            assert!(losses.last().is_some_and(|loss| loss.is_nan()));
            assert!(events.iter().all(|e| e.missing.is_empty()));
        }
    }
}
