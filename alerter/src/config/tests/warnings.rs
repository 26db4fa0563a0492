use super::{error, parse};

#[test]
fn what_can_notify_nobody_or_wakes_nobody_is_a_warning() {
    let text = "receivers: [{name: chat, stdout: {}}, {name: pager, stdout: {}, wakes: true}]\n\
                teams: [{name: a, match: ['run=~\".*\"'], notify: [chat]}, {name: b, match: ['run=\"b\"']}]\n\
                routes:\n\
                - {match: ['severity=\"info\"'], notify: [chat]}\n\
                - {match: ['severity=\"page\"', 'run=\"x\"'], notify: [pager]}\n\
                - {match: ['severity=\"page\"'], notify: [chat]}\n\
                - {match: ['run=\"y\"', 'severity=\"page\"'], notify: [pager]}\n\
                - {match: ['severity=\"ticket\"'], notify: [chat]}\n";
    let warnings = parse(text).unwrap().warnings;
    for part in [
        "routes[0]: is about severity=\"info\", of which nobody is notified",
        "routes[3]: is never used, because routes[2] takes all that it matches",
        "routes[2]: a page that goes there wakes nobody; who wakes somebody: pager",
        "teams[0]: matches everything, so that no team after it is ever given",
    ] {
        assert!(warnings.iter().any(|w| w.starts_with(part)), "{part}: {warnings:#?}");
    }
    let goes_on = text.replace(
        "'severity=\"page\"'], notify: [chat]",
        "'severity=\"page\"'], continue: true, notify: [chat]",
    );
    assert!(!parse(&goes_on).unwrap().warnings.iter().any(|w| w.contains("is never used")));
    let unreached = text.replace("'run=\"x\"'], notify: [pager]", "'run=\"x\"'], notify: ['user:ann']");
    let unreached =
        parse(&format!("{unreached}users: [{{name: ann, notify: []}}]\n")).unwrap_err().to_string();
    let wrong = "routes[1].notify[0]: no receiver reaches \"ann\", expected `notify` of this user";
    assert!(unreached.contains(wrong), "{unreached}");
}

#[test]
fn a_page_of_a_team_or_of_a_policy_that_wakes_nobody_is_a_warning() {
    let receivers = "receivers: [{name: chat, stdout: {}}, {name: pager, stdout: {}, wakes: true}]\n";
    let warned = |text: &str| {
        let warnings = parse(&format!("{receivers}{text}")).unwrap().warnings;
        warnings.into_iter().filter(|w| w.contains("wakes nobody;")).collect::<Vec<_>>()
    };
    let of_team = "teams: [{name: a, match: ['run=~\"a.*\"'], notify: [chat]}]\n";
    assert_eq!(warned(of_team), ["team a: a page that goes there wakes nobody; who wakes somebody: pager"]);
    let of_policy = "policies: [{name: p, levels: [{after: 0s, notify: [chat]}, \
                     {after: 60s, notify: [pager], if: {severity: ticket}}]}]\n\
                     routes: [{match: ['severity=page'], policy: p}]\n";
    assert_eq!(
        warned(of_policy),
        ["routes[0]: a page that goes there wakes nobody; who wakes somebody: pager"]
    );
    assert_eq!(warned(&of_policy.replace("severity: ticket", "severity: page")), [""; 0]);
    // That somebody with a pager may take over wakes nobody until then.
    let of_schedule = "users: [{name: ann, notify: [chat]}, {name: bob, notify: [pager]}]\n\
                       schedules: [{name: s, time_zone: UTC, layers: [{users: [ann], start: 2026-01-05T09:00}]}]\n\
                       routes: [{match: ['severity=page'], notify: ['schedule:s']}]\n";
    assert_eq!(
        warned(of_schedule),
        ["routes[0]: a page that goes there wakes nobody; who wakes somebody: pager"]
    );
}

#[test]
fn labels_that_are_nearly_ours_are_warnings_with_the_name() {
    let label_warnings = |text: &str| -> Vec<String> {
        let named = |w: &String| w.contains("label");
        parse(&format!("receivers: [{{name: out, stdout: {{}}}}]\n{text}"))
            .unwrap()
            .warnings
            .into_iter()
            .filter(named)
            .collect()
    };
    let route =
        |matchers: &str| label_warnings(&format!("routes: [{{match: [{matchers}], notify: [out]}}]\n"));
    let mistyped = route(r#"'alertname="X"', 'severty="page"'"#);
    assert_eq!(
        mistyped,
        [
            "routes[0].match[1]: no incident has the label \"severty\" unless an alert brings it; the nearest of our own is \"severity\""
        ]
    );
    for label in
        ["datacentre", "code", "mode", "name", "le", "quantile", "role", "state", "type", "user", "path"]
    {
        assert_eq!(route(&format!("'alertname=\"X\"', '{label}=\"y\"'")), [""; 0], "{label}");
    }
    assert_eq!(route(r#"'alertname="X"', 'severity="page"', 'instance="y"'"#), [""; 0]);
    let below = label_warnings(
        "routes: [{match: ['alertname=\"X\"'], notify: [out], routes: [{match: ['teem=\"a\"', 'Severity=\"page\"']}]}]\n",
    );
    assert_eq!(below.len(), 2, "{below:?}");
    assert!(
        below[1].starts_with("routes[0].routes[0].match[1]") && below[1].contains("\"severity\""),
        "{below:?}"
    );
    let common = label_warnings(
        "group_by: [nod, colour]\ninhibit_rules: [{source_matchers: ['kind=\"hang\"'], target_matchers: ['cause=\"speed\"'], equal: [rnu]}]\n",
    );
    let of_label = |label: &str| common.iter().find(|w| w.contains(&format!("{label:?}"))).unwrap().clone();
    assert!(of_label("nod").ends_with("; the nearest that one may have is \"node\""), "{common:?}");
    assert!(of_label("rnu").ends_with("; the nearest that one may have is \"run\""), "{common:?}");
    assert!(!of_label("colour").contains("nearest"), "{common:?}");
}

#[test]
fn a_name_that_is_nothing_like_it_is_not_suggested() {
    let text = error("routes: [{match: ['colour=\"red\"']}]\n");
    assert!(text.contains("no incident has the label \"colour\"; if runs declare it"), "{text}");
    let teams = "teams: [{name: research, match: ['run=\"a\"']}]\nroutes: [{match: ['team=\"X\"']}]\n";
    let warnings = parse(teams).unwrap().warnings;
    let mistake = warnings.iter().find(|w| w.contains("`teams` has no \"X\"")).unwrap();
    assert!(!mistake.contains("research"), "{mistake}");
}
