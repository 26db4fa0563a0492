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
