//! Lines whose only loss has a name of its own.

use super::{auto, read};

/// Step, loss, and what is missing, of each line.
fn losses(lines: &[String]) -> Vec<(i64, Option<f64>, usize)> {
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    auto(&lines).iter().map(|e| (e.step.unwrap(), e.m.get("loss"), e.missing.len())).collect()
}

#[test]
fn the_only_loss_of_a_run_is_its_loss() {
    for line in [
        "step=§ nll_loss=¤ lr=1e-4",
        "step=§ mse_loss=¤ lr=1e-4 grad_norm=0.5",
        "step § | aux_loss 0.1 | train/diffusion_loss ¤ | kl_loss 0.2",
        "[09/01/25 10:00:00] INFO     fairseq2 - Train Metrics (step §) - NLL Loss: ¤ | Gradient Norm: 1.2 | Learning Rate: 1e-05 | Batch Size: 8 | Elements per Second: 12,345",
        "[09/01/25 10:00:00] INFO     fairseq2 - Train Metrics (step §) - Cross Entropy Loss (NLL): ¤ | Gradient Norm: 1.2",
        "[2025-09-01 10:00:00,123 INFO] Step §/100000; acc: 6.1; ppl: 2300.5; xent: ¤; lr: 0.00012; sents: 100; bsz: 3000/2500/10; 3000/2500 tok/s; 10 sec;",
        "step § nll ¤",
        "it § | Cross Entropy Loss: ¤ | lr 0.1",
    ] {
        let at = |step: i64, loss: &str| line.replace('§', &step.to_string()).replace('¤', loss);
        let mut lines: Vec<String> = (1..=25).map(|step| at(step, "2.5")).collect();
        lines.push(at(26, "nan"));
        let seen = losses(&lines);
        assert_eq!((seen.len(), seen[0]), (26, (1, Some(2.5), 0)), "{line}");
        assert!(seen[25].0 == 26 && seen[25].1.is_some_and(f64::is_nan), "{line}");
    }
}

#[test]
fn it_is_missed_where_it_is_none_or_is_left_out() {
    for then in ["step=26 nll_loss=None lr=1e-4 wd=0.1", "step=26 lr=1e-4 wd=0.1"] {
        let lines = (1..=25).map(|s| format!("step={s} nll_loss=2.5 lr=1e-4 wd=0.1"));
        let lines: Vec<String> = lines.chain([then.to_owned()]).collect();
        assert_eq!(losses(&lines)[25..], [(26, None, 1)], "{then}");
    }
}

#[test]
fn a_usual_loss_takes_its_place() {
    let e = read(&[
        "step 1 nll_loss 2.5 mse_loss 0.5",
        "step 2 mse_loss 0.5 nll_loss 2.4",
        "step 3 loss 2.3 nll_loss 2.2",
        "step 4 nll_loss 2.1 grad_norm 0.5",
    ]);
    let seen: Vec<_> = e.iter().map(|e| (e.m.get("loss"), e.m.get("nll_loss"))).collect();
    let want = [(Some(2.5), None), (Some(2.4), None), (Some(2.3), Some(2.2)), (None, Some(2.1))];
    assert_eq!(seen, want);
}

#[test]
fn losses_of_evaluations_and_parts_are_none() {
    for line in
        ["step 5 aux_loss nan lr 0.1", "step 5 | kl loss: nan | z_loss: 0.1", "step 5 val_nll nan ppl 3"]
    {
        assert!(read(&[line]).iter().all(|e| e.m.get("loss").is_none()), "{line}");
    }
    let eval = "[09/01/25 10:00:00] INFO     fairseq2 - Validation Metrics (step 20) - NLL Loss: nan | Batch Size: 8";
    let lines: Vec<String> =
        (1..20).map(|s| format!("[09/01/25 10:00:00] INFO     fairseq2 - Train Metrics (step {s}) - NLL Loss: 2.5 | Gradient Norm: 1.2"))
            .chain([eval.to_owned()]).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let steps = auto(&lines).into_iter().filter(|e| e.kind == stepwatch_wire::Kind::Step);
    assert!(steps.count() == 19, "an evaluation is no step");
}
