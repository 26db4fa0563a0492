//! The message of a scheduled report: the main figures, and the full report in all forms.

use stepwatch_detect::run::TimeState;
use stepwatch_model::time::Span;
use url::form_urlencoded;

use super::schedule::{Schedule, Slot};
use super::view::{CostlyView, ReportView};
use super::{html, markdown, text};
use crate::notify::{IncidentLine, ScheduledReport, line};
use crate::state_time::StateTime;

/// The overall figures in a message.
const FIGURES: &[&str] = &["GPU hours", "Cost", "Goodput", "Interruptions", "Energy"];
/// The most states and incidents in a message.
const LISTED: usize = 3;
/// The most characters of a run's name in the title, whose limit is 150 characters.
const RUN_MAX: usize = 80;
const NOTHING: &str = "No time of any run is accounted.";

/// The report of a schedule; `external_url` is the address of this alerter for people.
pub(crate) fn scheduled(
    s: &Schedule,
    slot: &Slot,
    external_url: Option<&str>,
    view: &ReportView,
) -> serde_json::Result<ScheduledReport> {
    let run = s.run.as_deref().map(|run| format!(" on {}", line(run, RUN_MAX))).unwrap_or_default();
    let (first, last) = (slot.first, slot.last);
    let days = if first == last { last.to_string() } else { format!("{first} to {last}") };
    let show = |at| s.time_zone.show(at);
    let base = external_url.map(|url| url.trim_end_matches('/'));
    let url = base.map(|base| format!("{base}/report?{}", query(view)));
    let nothing = view.total.seconds <= 0.0;
    let mut markdown = markdown::render(view);
    markdown.extend(url.iter().flat_map(|url| ["\n", url, "\n"]));
    Ok(ScheduledReport {
        schedule: s.name.clone(),
        title: format!("{}{run}, {days}", s.every.title()),
        period: format!("From {} to {}.", show(slot.period.since), show(slot.period.until)),
        nothing: nothing.then(|| NOTHING.to_owned()),
        figures: if nothing { Vec::new() } else { figures(view) },
        losses: losses(view),
        incidents: view.costliest.iter().take(LISTED).map(|costly| incident(costly, base)).collect(),
        markdown,
        html: html::render(view),
        data: serde_json::to_value(view)?,
        url,
    })
}

fn query(view: &ReportView) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("since", &view.since.0.to_string());
    query.append_pair("until", &view.until.0.to_string());
    query.extend_pairs(view.run.iter().map(|run| ("run", run)));
    query.finish()
}

fn figures(view: &ReportView) -> Vec<[String; 2]> {
    text::figures(view).into_iter().filter(|row| FIGURES.contains(&row[0].as_str())).collect()
}

/// The states with the largest losses, in descending order. Unknown time is no loss.
fn losses(view: &ReportView) -> Vec<String> {
    let gained = [TimeState::Productive, TimeState::Unknown].map(TimeState::as_str);
    let mut lost: Vec<&StateTime> =
        view.total.time.iter().filter(|time| !gained.contains(&&*time.state)).collect();
    let by_gpus = |time: &StateTime| time.gpu_seconds.unwrap_or(time.seconds);
    lost.sort_by(|a, b| by_gpus(b).total_cmp(&by_gpus(a)).then_with(|| a.state.cmp(&b.state)));
    let one = |time: &StateTime| {
        let amount = match time.gpu_seconds {
            Some(seconds) => format!("{} GPU hours", text::amount(seconds / 3600.0)),
            None => format!("{} hours of runs whose size is not known", text::amount(time.seconds / 3600.0)),
        };
        format!("{}: {amount}{}", time.state, dollars(time.dollars))
    };
    lost.into_iter().take(LISTED).map(one).collect()
}

fn incident(c: &CostlyView, base: Option<&str>) -> IncidentLine {
    IncidentLine {
        what: format!("{}: {}: {}", c.run, c.title, c.summary),
        cost: match c.lost_gpu_hours {
            Some(hours) => format!("{} GPU hours{}", text::amount(hours), dollars(c.lost_dollars)),
            None => format!("{} of a run whose size is not known", Span::from_secs_f64(c.lasted_seconds)),
        },
        href: base.map(|base| format!("{base}/incidents/{}", c.id)),
    }
}

/// The amount as `, $12.50`, if a price is known.
fn dollars(amount: Option<f64>) -> String {
    amount.map(|_| format!(", {}", text::dollars(amount))).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use stepwatch_detect::run::{Counts, Totals};
    use stepwatch_model::time::Ts;
    use stepwatch_respond::oncall::Zone;

    use super::super::schedule::{Every, TimeOfDay};
    use super::*;
    use crate::store::RunTotals;
    use crate::when::When;

    pub(crate) fn schedule(run: Option<&str>) -> Schedule {
        Schedule {
            name: "weekly".into(),
            notify: vec!["chat".into()],
            every: Every::Week,
            on: None,
            at: TimeOfDay::default(),
            time_zone: Zone::named("Europe/Berlin").unwrap(),
            run: run.map(str::to_owned),
        }
    }

    /// A report of the week before 23 November 2026, in which a run of 64 GPUs lost some time.
    fn report(run: Option<&str>, external_url: Option<&str>) -> ScheduledReport {
        let s = schedule(run);
        let slot = s.next(Ts(1_795_227_416_000)).unwrap();
        let of = |state, hours: i64| {
            (state, [hours * 3_600_000, 64 * hours * 3_600_000], 2.5 * 64.0 * hours as f64)
        };
        let states = [
            of(TimeState::Productive, 150),
            of(TimeState::Saving, 2),
            of(TimeState::Down, 9),
            of(TimeState::Starting, 3),
            of(TimeState::Evaluating, 1),
            of(TimeState::Unknown, 3),
        ];
        let totals = Totals::from_states(states, Counts { starts: 4, interruptions: 4, ..Counts::default() });
        let all = [RunTotals { run: run.unwrap_or("llama-70b").into(), totals }];
        let mut view = super::super::view(slot.period, run.map(str::to_owned), &all, &[]);
        let costly = |id: &str, title: &str, lost: f64| CostlyView {
            id: id.into(),
            run: run.unwrap_or("llama-70b").into(),
            title: title.into(),
            summary: "no step for 31m".into(),
            opened_at: When(slot.period.since),
            lasted_seconds: 1860.0,
            lost_gpu_hours: Some(lost),
            lost_dollars: Some(2.5 * lost),
        };
        view.costliest = vec![
            costly("01HANG", "the run hangs", 320.0),
            costly("01DEAD", "rank 17 is dead", 96.5),
            costly("01LINK", "a link is down", 12.0),
            costly("01MORE", "a straggler", 1.0),
        ];
        scheduled(&s, &slot, external_url, &view).unwrap()
    }

    #[test]
    fn what_is_told_at_a_glance() {
        let report = report(None, Some("https://stepwatch.example.com/"));
        assert_eq!(report.title, "Weekly report, 2026-11-16 to 2026-11-22");
        assert_eq!(report.period, "From 2026-11-16 00:00 CET to 2026-11-23 00:00 CET.");
        let figures: Vec<_> = report.figures.iter().map(|[label, text]| (&**label, &**text)).collect();
        assert_eq!(
            figures,
            [
                ("GPU hours", "10,752"),
                ("Cost", "$26,880.00"),
                ("Goodput", "89.3 to 91.1 %"),
                ("Interruptions", "4")
            ]
        );
        assert_eq!(
            report.losses,
            [
                "down: 576 GPU hours, $1,440.00",
                "starting: 192 GPU hours, $480.00",
                "saving: 128 GPU hours, $320.00"
            ]
        );
        assert_eq!(report.incidents.len(), 3);
        let first = IncidentLine {
            what: "llama-70b: the run hangs: no step for 31m".into(),
            cost: "320 GPU hours, $800.00".into(),
            href: Some("https://stepwatch.example.com/incidents/01HANG".into()),
        };
        assert_eq!(report.incidents[0], first);
        let url = "https://stepwatch.example.com/report?since=2026-11-15T23%3A00%3A00Z&until=2026-11-22T23%3A00%3A00Z";
        assert_eq!(report.url.as_deref(), Some(url));
        assert!(report.markdown.starts_with("# Report\n"), "{}", report.markdown);
        assert!(report.markdown.ends_with(&format!("\n{url}\n")), "{}", report.markdown);
        assert!(report.html.contains("<th scope=\"row\">llama-70b</th>"), "{}", report.html);
        assert_eq!(report.data["total"]["gpu_hours"], 10752.0);
        let text = serde_json::to_string(&report).unwrap();
        let read = serde_json::from_str::<ScheduledReport>(&text).unwrap();
        // Numbers may lose their last digit.
        assert_eq!(ScheduledReport { data: report.data.clone(), ..read }, report);
    }

    #[test]
    fn of_one_run_without_an_address_and_of_nothing() {
        let one = report(Some("a b&c"), None);
        assert_eq!(one.title, "Weekly report on a b&c, 2026-11-16 to 2026-11-22");
        assert_eq!((&one.url, &one.incidents[0].href), (&None, &None));
        let one = report(Some("a b&c"), Some("http://x"));
        assert!(one.url.as_ref().unwrap().ends_with("&run=a+b%26c"), "{:?}", one.url);
        let s = schedule(None);
        let slot = s.next(Ts(0)).unwrap();
        let nothing = super::super::view(slot.period, None, &[], &[]);
        let nothing = scheduled(&s, &slot, None, &nothing).unwrap();
        assert_eq!(nothing.nothing.as_deref(), Some(NOTHING));
        assert_eq!(
            (nothing.figures, nothing.losses, nothing.incidents),
            (Vec::new(), Vec::new(), Vec::new())
        );
    }
}
