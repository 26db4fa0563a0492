//! A suspect in its three forms: JSON for people and the API, postcard for the engine's state, and
//! words.

use serde_json::json;
use stepwatch_model::{Evidence, Fault, Num, Observation, Place, Suspect, Target, Topic, Ts};

fn gpu() -> Target {
    Target::Gpu { node: "gpu-7".into(), index: Some(3), uuid: "GPU-2f".into(), pci: String::new() }
}

fn fault(text: &str) -> Observation {
    Observation::Fault { fault: Fault::new(Topic::Xid, "xid", 79, "").with_sentence(text), slowed: None }
}

fn fallen() -> Observation {
    let fault = Fault::new(Topic::Xid, "xid", 79, "");
    Observation::Fault {
        fault: fault.with_name("GPU has fallen off the bus", "Drain the node."),
        slowed: None,
    }
}

fn loss(value: f64) -> Observation {
    Observation::OwnLoss { step: 9, value: Num(value), expected: Num(2.5), others: 7, times: Some(3) }
}

#[test]
fn every_form_keeps_all_of_it() {
    let evidence: Evidence = Observation::Shared {
        places: 8,
        nodes: 8,
        first: Place::Node("n1".into()),
        evidence: vec![loss(f64::NAN).into()],
    }
    .into();
    let mut suspect = Suspect::new(gpu(), fallen()).weighed(Some(Ts(5000)), Some(Num(1.0)));
    suspect.evidence.push(Evidence { of: Some(Target::node("gpu-7")), score: Some(Num(6.25)), ..evidence });
    let bytes = postcard::to_stdvec(&suspect).unwrap();
    assert_eq!(postcard::from_bytes::<Suspect>(&bytes).unwrap(), suspect);
    let text = serde_json::to_string(&suspect).unwrap();
    assert_eq!(serde_json::from_str::<Suspect>(&text).unwrap(), suspect, "{text}");
}

#[test]
fn people_get_the_words_beside_the_data() {
    let suspect = Suspect::new(gpu(), fallen()).weighed(Some(Ts(5000)), Some(Num(1.0))).scored(5.25);
    let what = "XID 79, GPU has fallen off the bus: Drain the node";
    let fault = json!({"topic": "xid", "name": "xid", "number": 79, "state": "",
                       "said": {"named": {"name": "GPU has fallen off the bus", "hint": "Drain the node"}}});
    let want = json!({
        "target": {"gpu": {"node": "gpu-7", "index": 3, "uuid": "GPU-2f", "pci": ""}},
        "what": "node gpu-7, GPU 3 (GPU-2f)",
        "why": format!("{what} (score 5.2)"),
        "evidence": [{
            "observation": {"fault": {"fault": fault, "slowed": null}},
            "words": what, "since": 5000, "strength": 1.0, "score": 5.25,
        }],
    });
    assert_eq!(serde_json::to_value(&suspect).unwrap(), want);
    let measured = serde_json::to_value(Evidence::from(loss(f64::NAN))).unwrap();
    assert_eq!((&measured["value"], &measured["expected"]), (&json!("NaN"), &json!(2.5)));
    assert_eq!(measured["unit"], "loss");
}

#[test]
fn pieces_of_one_place_are_listed_after_the_best_one() {
    let mut suspect = Suspect::new(Target::node("gpu-7"), Observation::RanksSilent);
    suspect.join(Suspect::new(Target::node("gpu-7"), Observation::RanksSilent));
    suspect.join(Suspect::new(gpu(), fault("")));
    let why = "nothing was heard of its ranks since those of the other nodes began to die; \
               node gpu-7, GPU 3 (GPU-2f): XID 79";
    assert_eq!(suspect.why(), why);
    assert_eq!(suspect.clone().scored(4.0).why(), format!("{why} (score 4.0)"));
}

#[test]
fn what_is_said_already_is_known_whatever_it_weighs() {
    let of = |all: &[Observation]| {
        let evidence = all.iter().cloned().map(Evidence::from).collect();
        Suspect { target: Target::node("n1"), evidence }
    };
    let (a, b, c) = (Observation::RanksSilent, fallen(), loss(f64::NAN));
    let had = of(&[a.clone(), b.clone(), c.clone()]).weighed(Some(Ts(1)), Some(Num(2.0))).scored(7.0);
    for known in
        [&[a.clone()][..], std::slice::from_ref(&c), &[a.clone(), b.clone()], &[b.clone(), c.clone()]]
    {
        assert!(had.says(&of(known)), "{known:?}");
    }
    for news in [&[loss(2.0)][..], &[a.clone(), c.clone()], &[c.clone(), a.clone()]] {
        assert!(!had.says(&of(news)), "{news:?}");
    }
    assert!(had.says(&of(std::slice::from_ref(&c)).scored(7.0)) && !had.says(&of(&[c]).scored(6.0)));
    assert!(!had.says(&of(&[a]).scored(7.0)));
}
