//! A scheduled report, in all forms that receivers may need.
//!
//! It is created and stored once, so that all attempts have the same content: text and numbers.
//! Notifiers do not know how a report is made.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwatch_model::time::Ts;
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::effect::{Action, Notification};
use stepwatch_respond::matcher::Labels;
use stepwatch_respond::message::{Details, Fact, Link, LinkRole, Message, Reason, Status};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ScheduledReport {
    /// The name of the schedule.
    pub(crate) schedule: String,
    pub(crate) title: String,
    /// The period, in the time zone of the schedule.
    pub(crate) period: String,
    /// The notice if there is nothing to report.
    pub(crate) nothing: Option<String>,
    /// The names and values of the overall figures.
    pub(crate) figures: Vec<[String; 2]>,
    /// The states with the largest losses, in descending order.
    pub(crate) losses: Vec<String>,
    /// The most expensive incidents, in descending order.
    pub(crate) incidents: Vec<IncidentLine>,
    /// The address of the full report.
    pub(crate) url: Option<String>,
    pub(crate) markdown: String,
    pub(crate) html: String,
    /// The report as the API returns it.
    pub(crate) data: Value,
}

/// An incident in one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IncidentLine {
    /// What happened to which run.
    pub(crate) what: String,
    pub(crate) cost: String,
    pub(crate) href: Option<String>,
}

impl ScheduledReport {
    /// The message that delivers the report to a receiver, under the report's id. Its text is for
    /// receivers without a format for reports.
    pub(crate) fn notification(&self, id: &str, receiver: &str, now: Ts) -> Notification {
        Notification {
            incident: id.to_owned(),
            receiver: receiver.to_owned(),
            seq: 1,
            action: Action::Trigger,
            idem_key: format!("{id}/{receiver}/1"),
            page: false,
            users: Vec::new(),
            slack_ids: Vec::new(),
            path: None,
            despite_suppression: false,
            left_to: None,
            source: String::new(),
            reporter: String::new(),
            message: self.message(id, now),
        }
    }

    fn message(&self, id: &str, now: Ts) -> Message {
        let fact = |label: &str, text: &str| Fact { label: label.to_owned(), text: text.to_owned() };
        let list =
            |label: &str, lines: &[String]| (!lines.is_empty()).then(|| fact(label, &lines.join("\n")));
        let incidents: Vec<String> =
            self.incidents.iter().map(|i| format!("{} ({})", i.what, i.cost)).collect();
        let lists = [list("Largest losses", &self.losses), list("Costliest incidents", &incidents)];
        let figures = self.figures.iter().map(|[label, text]| fact(label, text));
        let link = |href| Link { role: LinkRole::Other, text: "Report".to_owned(), href };
        let nothing = self.nothing.iter().flat_map(|nothing| [" ", nothing.as_str()]);
        Message {
            incident: id.to_owned(),
            run: String::new(),
            nodes: Vec::new(),
            // Every message has a kind; that of a report is not shown.
            kind: Kind::AlerterFault,
            severity: Severity::Info,
            status: Status::Firing,
            ended: None,
            title: self.title.clone(),
            summary: core::iter::once(self.period.as_str()).chain(nothing).collect(),
            marked_up: false,
            facts: figures.chain(lists.into_iter().flatten()).collect(),
            details: Details::default(),
            because: Reason::First,
            reason: format!("the schedule {} of reports", self.schedule),
            links: self.url.clone().map(link).into_iter().collect(),
            chart: None,
            labels: Labels::new(),
            started_at: now,
            at: now,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const ID: &str = "report/weekly/2026-11-23";

    /// A report of a week in which a run of 64 GPUs lost some time.
    pub(crate) fn weekly(address: bool) -> ScheduledReport {
        let url = "https://stepwatch.example.com";
        let incident = |id: &str, what: &str, cost: &str| IncidentLine {
            what: format!("llama-70b: {what} <!channel>"),
            cost: cost.into(),
            href: address.then(|| format!("{url}/incidents/{id}")),
        };
        let figures =
            [("GPU hours", "10752"), ("Cost", "$26880.00"), ("Goodput", "89.3 %"), ("Interruptions", "4")];
        ScheduledReport {
            schedule: "weekly".into(),
            title: "Weekly report, 2026-11-16 to 2026-11-22".into(),
            period: "From 2026-11-16 00:00 CET to 2026-11-23 00:00 CET.".into(),
            nothing: None,
            figures: figures.map(|(label, text)| [label.to_owned(), text.to_owned()]).to_vec(),
            losses: vec!["down: 576 GPU hours, $1440.00".into(), "starting: 192 GPU hours, $480.00".into()],
            incidents: vec![
                incident("01HANG", "the run hangs", "320 GPU hours, $800.00"),
                incident("01DEAD", "rank 17 is dead", "96.5 GPU hours, $241.25"),
            ],
            url: address.then(|| {
                format!("{url}/report?since=2026-11-15T23%3A00%3A00Z&until=2026-11-22T23%3A00%3A00Z")
            }),
            markdown: "# Report\n\n| GPU hours | 10752 |\n".into(),
            html: "<h1>Report</h1><th scope=\"row\">llama-70b</th>".into(),
            data: serde_json::json!({"total": {"gpu_hours": 10752.0}}),
        }
    }

    /// A report of a week without an accounted run.
    pub(crate) fn nothing() -> ScheduledReport {
        ScheduledReport {
            nothing: Some("No time of any run is accounted.".into()),
            figures: Vec::new(),
            losses: Vec::new(),
            incidents: Vec::new(),
            ..weekly(false)
        }
    }

    #[test]
    fn its_message_says_it_in_words() {
        let n = weekly(true).notification(ID, "chat", Ts(0));
        assert_eq!((n.idem_key.as_str(), n.page), ("report/weekly/2026-11-23/chat/1", false));
        let facts: Vec<_> = n.message.facts.iter().map(|f| (f.label.as_str(), f.text.as_str())).collect();
        let lists = [
            ("Largest losses", "down: 576 GPU hours, $1440.00\nstarting: 192 GPU hours, $480.00"),
            (
                "Costliest incidents",
                "llama-70b: the run hangs <!channel> (320 GPU hours, $800.00)\n\
                 llama-70b: rank 17 is dead <!channel> (96.5 GPU hours, $241.25)",
            ),
        ];
        assert_eq!((facts[0], &facts[4..]), (("GPU hours", "10752"), &lists[..]));
        assert!(n.message.links[0].href.starts_with("https://stepwatch.example.com/report?since="));
        let message = nothing().notification(ID, "chat", Ts(0)).message;
        let end = "CET. No time of any run is accounted.";
        let said = message.summary.len().checked_sub(end.len()).and_then(|at| message.summary.get(at..));
        assert_eq!(said, Some(end), "{}", message.summary);
        assert_eq!((message.facts, message.links), (Vec::new(), Vec::new()));
    }
}
