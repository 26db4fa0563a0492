//! Every family of both programs is on a panel, or is left out for a reason.

use stepwatch_dashboards::coverage::{LEFT_OUT, has, read, reason};
use stepwatch_tests::{families, say};

#[tokio::test]
async fn every_family_is_on_a_panel_or_left_out_for_a_reason() {
    let samples = read();
    let mut all: Vec<_> = families::exporter().await.unwrap().into_iter().map(|f| f.name).collect();
    all.extend(families::alerter());
    let (shown, rest): (Vec<_>, Vec<_>) = all.iter().partition(|name| has(&samples, name));
    say::loud(&format!(
        "{} of {} families are on a panel ({:.1} %), {} are left out",
        shown.len(),
        all.len(),
        100.0 * shown.len() as f64 / all.len() as f64,
        LEFT_OUT.len()
    ));
    let missing: Vec<_> = rest.into_iter().filter(|name| reason(name).is_none()).collect();
    assert!(missing.is_empty(), "on no panel, and in no row of coverage::LEFT_OUT: {missing:#?}");
    let wrong = |name: &&str| !all.iter().any(|family| family == name) || has(&samples, name);
    let wrong: Vec<_> = LEFT_OUT.iter().map(|(name, _)| *name).filter(wrong).collect();
    assert!(wrong.is_empty(), "left out, but unknown or on a panel: {wrong:#?}");
    assert!(shown.len() * 10 >= all.len() * 9, "less than 90 %");
}
