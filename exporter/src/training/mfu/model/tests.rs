//! Compares models with published parameters and with FLOPs derived by hand.

use super::*;
use stepwatch_wire::Event;

fn model(fields: &str) -> Model {
    let hello = format!(r#"{{"k":"hello","run":"r","model":{fields}}}"#);
    Model::from_hello(&Event::parse(hello.as_bytes()).unwrap().extra)
}

fn flops(model: &Model, convention: &str) -> Option<f64> {
    model.flops_per_token(None).into_iter().find(|(c, _)| c == convention).map(|(_, f)| f)
}

/// The calculator of the Python client is tested with the same cases.
#[test]
fn the_published_cases() {
    let Value::List(cases) = Value::parse(include_bytes!("../cases.json")).unwrap() else { panic!("a list") };
    for case in &cases {
        let name = case.get("name").and_then(Value::as_str).unwrap();
        let Some(Value::Map(extra)) = Some(case) else { panic!("{name}") };
        let model = Model::from_hello(extra);
        let Some(Value::Map(want)) = case.get("flops_per_token_want") else { panic!("{name}") };
        assert_eq!(model.refused(), case.get("refused_want").and_then(Value::as_str), "{name}");
        for convention in Convention::ALL {
            let (ours, want) = (flops(&model, convention.as_str()), want.get(convention.as_str()));
            match want.and_then(Value::as_f64) {
                Some(want) => {
                    let ours = ours.unwrap_or_else(|| panic!("{name} {convention:?}: none"));
                    assert!((ours / want - 1.0).abs() < 1e-6, "{name} {convention:?}: {ours} {want}");
                }
                None => assert_eq!(ours, None, "{name} {convention:?}"),
            }
        }
    }
    assert!(cases.len() >= 30);
}

/// The numbers of all and of active parameters, as the makers published them.
#[test]
fn the_parameters_are_those_that_were_published() {
    let cases = Value::parse(include_bytes!("../cases.json")).unwrap();
    let Value::List(cases) = cases else { panic!("a list") };
    let mut compared = 0;
    for case in &cases {
        let Some(published) = case.get("published_params") else { continue };
        let number = |key: &str| published.get(key).and_then(Value::as_f64);
        let Value::Map(extra) = case else { panic!("{case:?}") };
        let working = flops(&Model::from_hello(extra), "6n").unwrap() / 6.0 + number("embedding").unwrap();
        let near = |ours: f64, billions: f64, within: f64| (ours / (billions * 1e9) - 1.0).abs() <= within;
        let within = number("within").unwrap();
        assert!(near(working, number("billions_with_embedding").unwrap(), within), "{working} {case:?}");
        if let Some(total) = number("total_billions") {
            assert!(near(working + number("idle").unwrap(), total, 0.01), "{case:?}");
        }
        compared += 1;
    }
    assert!(compared >= 10);
}

#[test]
fn dimensions_must_add_up_to_what_the_trainer_counts() {
    let of = |total: &str| {
        let fields = r#"{"layers":2,"hidden":64,"heads":4,"ffn":256,"vocab":1000,"gated":true,"seq_len":128,"total_params":"#;
        model(&format!("{fields}{total}}}"))
    };
    // Two layers of 4 x 64 x 64 and 3 x 64 x 256, and 64,000 of an embedding, once or twice.
    assert_eq!(of("195072").refused(), None);
    assert_eq!(of("259200").refused(), None);
    assert!(of("300000").refused().is_some_and(|why| why.contains("add up to 195072 parameters, of 300000")));
    assert!(of("300000").flops_per_token(None).is_empty());
}

#[test]
fn a_part_that_sees_is_left_out_and_that_is_said() {
    let seen = model(
        r#"{"model_type":"llava","text_config":{"num_hidden_layers":2,"hidden_size":64},"n_params":1e9,"vision_config":{}}"#,
    );
    assert!(seen.refused().is_none() && seen.remark().is_some_and(|r| r.contains("only the language part")));
}

/// BLOOM-7B1 has 7,069,016,064 parameters and Falcon-7B 6,921,720,704, as their model cards say.
/// OPT-350M has 331,196,416, of which 2,099,200 are positions. Norms and biases are not counted
/// here.
#[test]
fn kinds_that_leave_out_what_their_class_means() {
    let bloom = model(
        r#"{"model_type":"bloom","n_embed":4096,"n_layer":30,"num_attention_heads":32,"vocab_size":250880,"total_params":7069016064}"#,
    );
    let falcon = model(
        r#"{"model_type":"falcon","hidden_size":4544,"multi_query":true,"new_decoder_architecture":false,
            "num_attention_heads":71,"num_hidden_layers":32,"vocab_size":65024,"total_params":6921720704}"#,
    );
    let opt = model(
        r#"{"model_type":"opt","hidden_size":1024,"word_embed_proj_dim":512,"ffn_dim":4096,"activation_function":"relu",
            "num_attention_heads":16,"num_hidden_layers":24,"vocab_size":50272,"total_params":331196416}"#,
    );
    for (model, params) in [(bloom, 7_069_016_064.0), (falcon, 6_921_720_704.0), (opt, 329_097_216.0)] {
        assert_eq!(model.refused(), None);
        let counted = flops(&model, "6n").unwrap() / 6.0;
        assert!((counted / params - 1.0).abs() < 0.002, "{counted} {params}");
    }
}

#[test]
fn a_configuration_that_is_not_understood_says_what_is_missing() {
    let mpt = model(r#"{"model_type":"mpt","d_model":4096,"n_heads":32,"n_layers":32,"vocab_size":50432}"#);
    let why =
        "its configuration has, under a name that is known, no width of the feed-forward part, no activation";
    assert_eq!(mpt.remark(), Some(why));
    assert_eq!(model(r#"{"hidden_size":4096}"#).remark(), None, "no model was described");
    assert_eq!(model(r#"{"model_type":"x","n_params":1e9}"#).remark(), None);
}

#[test]
fn megatrons_own_formula_for_a_dense_model() {
    // 12·l·h²·[(1 + g/a) + f/h·3/2 + s/2h + V/2lh], its terms one by one.
    let (layers, hidden, seq) = (32.0, 4096.0, 8192.0);
    let terms = (1.0 + 8.0 / 32.0)
        + 14336.0 / hidden * 1.5
        + seq / hidden / 2.0
        + 128_256.0 / (2.0 * layers * hidden);
    let want = 12.0 * layers * hidden * hidden * terms;
    let ours = model(
        r#"{"num_layers":32,"hidden_size":4096,"num_attention_heads":32,"num_query_groups":8,"ffn_hidden_size":14336,
            "swiglu":true,"padded_vocab_size":128256,"seq_length":8192}"#,
    );
    let exact = flops(&ours, "exact").unwrap();
    assert!((exact / want - 1.0).abs() < 1e-12, "{exact} {want}");
}

#[test]
fn packing_shortens_attention_only() {
    let whole = model(r#"{"n_params":1e9,"layers":10,"hidden":1000,"seq_len":8000}"#);
    let packed = model(r#"{"n_params":1e9,"layers":10,"hidden":1000,"seq_len":8000,"packed_seq_len":2000}"#);
    assert_eq!(flops(&whole, "6n"), flops(&packed, "6n"));
    let attention = |m: &Model| flops(m, "full").unwrap() - 6e9;
    assert!((attention(&whole) / attention(&packed) - 4.0).abs() < 1e-9);
    let given = whole.flops_per_token(Some(2000.0));
    assert_eq!(given, packed.flops_per_token(None));
}

#[test]
fn what_is_not_given_is_not_guessed() {
    assert!(!model(r#""llama""#).is_known() && !model(r#"{"hidden":4096}"#).is_known());
    let names = |m: &Model| m.flops_per_token(None).iter().map(|(c, _)| c.to_string()).collect::<Vec<_>>();
    assert_eq!(names(&model(r#"{"n_params":1e9}"#)), ["6n"]);
    // The gate decides half of the feed-forward part's size.
    let shape = r#"{"layers":2,"hidden":64,"heads":4,"ffn":256,"vocab":1000,"seq_len":128"#;
    assert!(names(&model(&format!("{shape}}}"))).is_empty());
    assert_eq!(names(&model(&format!("{shape},\"gated\":false}}"))), ["full", "causal", "6n", "exact"]);
    // Null stands for a default width only in frameworks that use it so.
    let shape = shape.replace(",\"ffn\":256", ",\"gated\":false");
    let null = |key: &str| names(&model(&format!("{shape},\"{key}\":null}}")));
    assert_eq!(null("n_inner"), ["full", "causal", "6n", "exact"]);
    assert!(null("ffn").is_empty());
    // With experts of unknown width, the number of idle parameters is unknown.
    assert!(names(&model(r#"{"n_params":1e9,"experts":8,"top_k":2,"layers":2,"hidden":64}"#)).is_empty());
}

proptest::proptest! {
    #[test]
    fn any_dimensions_give_positive_finite_figures_or_none(
        n in proptest::collection::vec(proptest::option::of(-1e3f64..1e13), 14), gated: bool,
    ) {
        let names = ["n_params", "trainable_params", "layers", "hidden", "heads", "ffn", "vocab", "seq_len", "experts", "top_k",
            "dense_layers", "mtp_layers", "sliding_window_pattern", "sliding_window"];
        let given = names.iter().zip(n).filter_map(|(name, v)| Some(format!(",\"{name}\":{}", v?)));
        let fields = format!("{{\"gated\":{gated}{}", given.collect::<String>());
        for (_, flops) in model(&(fields + "}")).flops_per_token(None) {
            proptest::prop_assert!(flops > 0.0 && flops.is_finite());
        }
    }

    #[test]
    fn training_fewer_weights_costs_less(trained in 0.0f64..1e9) {
        let m = model(&format!(r#"{{"n_params":1e9,"trainable_params":{}}}"#, trained.max(1.0)));
        let flops = flops(&m, "6n").unwrap();
        proptest::prop_assert!((4e9..=6e9).contains(&flops));
    }
}
