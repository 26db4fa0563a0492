use super::*;
use crate::api::attempts::ForgottenView;
use crate::api::doc::examples;

fn series(signal: &str, from: i64, values: &[f32]) -> SeriesView {
    let mut view: SeriesView = serde_json::from_value(examples::series()).unwrap();
    view.signal = signal.to_owned();
    view.step = (from..).take(values.len()).collect();
    view.mean = values.iter().copied().map(Some).collect();
    view.count = vec![1; values.len()];
    view
}

fn run(name: &str, from: i64, loss: &[f32], setup: &[(AspectView, &str, &str)]) -> Side {
    let mut run: RunView = serde_json::from_value(examples::run()).unwrap();
    (run.run, run.last_step) = (name.to_owned(), Some(from + loss.len() as i64 - 1));
    let setting =
        |s: &(AspectView, &str, &str)| SettingView { of: s.0, name: s.1.to_owned(), value: s.2.to_owned() };
    let history = HistoryView { setup: setup.iter().map(setting).collect(), ..HistoryView::default() };
    let mfu: Vec<f32> = loss.iter().enumerate().map(|(i, _)| if i % 5 == 4 { 0.1 } else { 0.4 }).collect();
    let signals = BTreeMap::from([
        (metric::LOSS, series("loss", from, loss)),
        (metric::MFU, series("mfu", from, &mfu)),
    ]);
    Side { run, history, signals, incidents: Counts { page: 1, ..Counts::default() }, watched: true }
}

#[test]
fn runs_are_compared_at_the_steps_that_both_have_made() {
    use AspectView::{Declared, Host, Run, Size};
    let falling: Vec<f32> = (0..100).map(|i| 4.0 - 0.01 * i as f32).collect();
    let lower: Vec<f32> = falling.iter().map(|v| v - 0.5).collect();
    let a =
        run("a", 0, &falling, &[(Size, "processes", "8"), (Declared, "lr", "1e-4"), (Host, "driver", "550")]);
    let b = run("b", 50, &lower, &[(Size, "processes", "8"), (Declared, "lr", "3e-4"), (Run, "env.X", "1")]);
    let diff = Diff::new(a, b);
    assert_eq!(diff.steps, Some((50, 99)));
    let lr = |value: &str| Some(value.to_owned());
    let different = Setting { of: Declared, name: "lr".into(), a: lr("1e-4"), b: lr("3e-4") };
    assert_eq!(diff.setup, [different], "what only one of them reports at all is no difference");
    assert_eq!((diff.loss.len(), diff.loss[0].step, diff.loss[9].step), (10, 50, 99));
    // Step 50 is the 51st step of one run and the first of the other.
    let first = diff.loss[0].difference.unwrap();
    assert!((first - 0.0).abs() < 1e-6, "{first}");
    assert!((diff.speed[0].a.unwrap() - 0.4).abs() < 1e-6, "a median: {:?}", diff.speed);
    let mut out = Vec::new();
    diff.write(&mut out).unwrap();
    let out = anstream::adapter::strip_str(core::str::from_utf8(&out).unwrap()).to_string();
    for part in ["incidents  1 page, 0 ticket, 0 info", "mfu        40.0 %", "lr      declared  1e-4  3e-4"] {
        assert!(out.contains(part), "{part}:\n{out}");
    }
    let text = serde_json::to_value(&diff).unwrap();
    assert_eq!((text["a"]["run"].as_str(), &text["setup"][0]["of"]), (Some("a"), &"declared".into()));
}

#[test]
fn each_node_that_came_or_went_is_a_row() {
    use AspectView::Node;
    let names: Vec<String> = (0..30).map(|i| format!("n{i:02}")).collect();
    let all = |from: usize, to: usize| -> Vec<(AspectView, &str, &str)> {
        names[from..to].iter().map(|name| (Node, name.as_str(), "used")).collect()
    };
    let diff = |a: &[(AspectView, &str, &str)], b: &[(AspectView, &str, &str)]| {
        Diff::new(run("a", 0, &[4.0], a), run("b", 0, &[4.0], b))
    };
    let small = diff(&all(0, 3), &all(1, 4));
    let used = Some("used".to_owned());
    let went = Setting { of: Node, name: "n00".into(), a: used.clone(), b: None };
    let came = Setting { of: Node, name: "n03".into(), a: None, b: used };
    assert_eq!((&small.setup[..], small.more_nodes), (&[went, came][..], 0));
    let large = diff(&all(0, 1), &all(1, 30));
    assert_eq!((large.setup.len(), large.more_nodes), (20, 10));
    let mut out = Vec::new();
    large.write(&mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(out.contains("10 more") && out.contains("n05"), "{out}");
}

#[test]
fn what_explains_most_comes_first_and_a_long_list_is_cut() {
    use AspectView::{Declared, Run};
    let names: Vec<String> = (0..60).map(|i| format!("arg.a{i:02}")).collect();
    let of = |value: &'static str| -> Vec<(AspectView, &str, &str)> {
        let many = names.iter().map(|name| (Run, name.as_str(), value));
        let more = [(Declared, "job_id", value), (Run, "env.NCCL_ALGO", value), (Run, "visible_gpus", value)];
        many.chain(more).collect()
    };
    let diff = Diff::new(run("a", 0, &[4.0], &of("1")), run("b", 0, &[4.0], &of("2")));
    let order: Vec<&str> = diff.setup.iter().map(|s| s.name.as_str()).collect();
    assert_eq!((&order[..3], order.len()), (&["visible_gpus", "env.NCCL_ALGO", "arg.a00"][..], 63));
    assert_eq!(order[62], "job_id");
    let mut out = Vec::new();
    diff.write(&mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(out.contains("and 23 more: --format json has all") && !out.contains("job_id"), "{out}");
}

#[test]
fn runs_without_a_common_step_say_so() {
    let diff = Diff::new(run("a", 0, &[4.0, 3.0], &[]), run("b", 50, &[3.0], &[]));
    assert_eq!((diff.steps, diff.loss.len(), diff.speed[0].a), (None, 0, None));
    let mut out = Vec::new();
    diff.write(&mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(
        out.contains("no step of which both have a loss") && out.contains("no known difference"),
        "{out}"
    );
    let one = Diff::new(run("a", 5, &[4.0], &[]), run("b", 5, &[3.0], &[]));
    assert_eq!((one.loss.len(), one.loss[0].difference), (1, Some(-1.0)));
}

#[test]
fn a_run_that_is_forgotten_is_compared_by_its_setup() {
    use AspectView::Host;
    let now = run("now", 0, &[4.0, 3.0], &[(Host, "driver", "560.28")]);
    let setting = SettingView { of: Host, name: "driver".into(), value: "550.54".into() };
    let kept = ForgottenView {
        last_heard_at: When(Ts(1_795_227_416_000)),
        attempt: 2,
        last_step: Some(9000),
        steps: 9100,
        ranks: 64,
    };
    let history = HistoryView {
        run: "a month ago".into(),
        setup: vec![setting],
        forgotten: Some(kept),
        ..HistoryView::default()
    };
    let gone = Side {
        run: forgotten(&history),
        history,
        signals: BTreeMap::new(),
        incidents: Counts::default(),
        watched: false,
    };
    let diff = Diff::new(gone, now);
    let value = |value: &str| Some(value.to_owned());
    let driver = Setting { of: Host, name: "driver".into(), a: value("550.54"), b: value("560.28") };
    assert_eq!((&diff.setup[..], diff.steps), (&[driver][..], None));
    assert_eq!((diff.a.attempts, diff.a.run.last_step), (3, Some(9000)));
    let mut out = Vec::new();
    diff.write(&mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(out.contains("not watched any more") && out.contains("driver"), "{out}");
    let text = serde_json::to_value(&diff).unwrap();
    assert_eq!((&text["a"]["watched"], &text["b"]["watched"]), (&false.into(), &true.into()));
}
