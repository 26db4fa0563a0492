use insta::assert_snapshot;

use super::*;
use crate::cli::tests::stripped;

pub(in crate::cli) const SAMPLE: &str = include_str!("sample.yml");

fn answer(schedule: Option<&str>, at: &str, days: u32) -> Result<OnCallView, String> {
    let config = Config::parse(std::path::Path::new("alerter.yml"), SAMPLE).unwrap();
    let (oncall, missing) = config.file.oncall(Ts(0));
    assert_eq!(missing, Vec::<String>::new());
    OnCallView::from_on_call(&oncall, schedule, Some(Moment::parse(at).unwrap()), days, Ts(0))
}

#[test]
fn a_table_over_the_end_of_summer_time() {
    let mut out = Vec::new();
    table(&answer(None, "2026-10-24T00:00", 4).unwrap(), Ts(0), &mut out).unwrap();
    assert_snapshot!(stripped(out));
}

#[test]
fn json_is_what_the_api_answers() {
    let mut out = Vec::new();
    json(&mut out, &answer(Some("primary"), "2026-10-24T15:00:00Z", 1).unwrap()).unwrap();
    assert_snapshot!(stripped(out));
}

#[test]
fn whoever_is_notified_when_nobody_is_on_call_is_named() {
    let mut view = answer(Some("office"), "2026-10-24T15:00:00Z", 1).unwrap();
    let line = |view: &OnCallView| {
        let mut out = Vec::new();
        table(view, Ts(0), &mut out).unwrap();
        stripped(out).lines().find(|l| l.contains("NOBODY")).map(str::to_owned)
    };
    view.schedules[0].on_call.clear();
    view.schedules[0].fallback = vec!["chat".into()];
    assert!(line(&view).unwrap().ends_with("; notified instead: chat"), "{view:?}");
    view.schedules[0].fallback.clear();
    let instead = "; notified instead: the others of the level, or whoever is nearest if it names no others";
    assert!(line(&view).unwrap().ends_with(instead), "{view:?}");
}

#[test]
fn a_schedule_that_is_not_is_named() {
    let error = answer(Some("tertiary"), "2026-10-24T00:00", 1).unwrap_err();
    assert_eq!(error, "there is no schedule \"tertiary\"; those that exist: primary, office");
}

#[test]
fn nothing_and_a_calendar_that_is_old() {
    let mut out = Vec::new();
    table(&OnCallView { schedules: Vec::new() }, Ts(0), &mut out).unwrap();
    let mut view = answer(Some("primary"), "2026-10-24T00:00", 1).unwrap();
    let calendar = CalendarView {
        read_at: Some(crate::api::view::When(Ts(0))),
        stale: true,
        events: 12,
        skipped: 1,
        strangers: vec!["Zoe\u{1b}[2J".into()],
    };
    view.schedules[0].calendar = Some(calendar);
    table(&view, Ts(5 * 3_600_000), &mut out).unwrap();
    assert_snapshot!(stripped(out));
}
