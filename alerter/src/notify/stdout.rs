//! The terminal receiver: for a first try, a demo, and containers whose log is read.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use stepwatch_respond::effect::Notification;

use super::attempt::{Attempt, Failure, Receipt};
use super::kind::ReceiverKind;
use super::mistake::Mistake;
use super::notifier::Notifier;
use super::text::{clean, line};
use super::webhook::ReportBody;

/// The width to which labels are padded, so that the values are aligned.
const LABEL_WIDTH: usize = 22;
const LINE_MAX: usize = 2000;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `text`: a block per message. `json`: one line per message, with the whole notification.
    pub format: Format,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    #[default]
    Text,
    Json,
}

pub struct Stdout {
    format: Format,
    out: Mutex<Box<dyn Write + Send>>,
}

impl std::fmt::Debug for Stdout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stdout").field("format", &self.format).finish_non_exhaustive()
    }
}

impl ReceiverKind for Config {}

impl Config {
    #[expect(clippy::unnecessary_wraps, reason = "as every other kind of receiver")]
    pub(super) fn build(&self) -> Result<Stdout, Mistake> {
        Ok(Stdout { format: self.format, out: Mutex::new(Box::new(io::stdout())) })
    }
}

impl Notifier for Stdout {
    fn kind(&self) -> &'static str {
        "stdout"
    }

    fn send<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Receipt, Failure>> {
        async move {
            match self.write(attempt) {
                Ok(()) => Ok(Receipt::default()),
                // The reader is permanently gone.
                Err(err) if err.kind() == io::ErrorKind::BrokenPipe => {
                    Err(Failure::permanent(format!("stdout: {err}")))
                }
                Err(err) => Err(Failure::transient(format!("stdout: {err}"), true)),
            }
        }
        .boxed()
    }
}

impl Stdout {
    fn write(&self, attempt: Attempt<'_>) -> io::Result<()> {
        let n = attempt.notification;
        let text = match (self.format, attempt.report) {
            (Format::Text, report) => block(n, report.is_none()),
            (Format::Json, Some(report)) => serde_json::to_string(&ReportBody::of(n, report))? + "\n",
            (Format::Json, None) => serde_json::to_string(n)? + "\n",
        };
        // Each message is one write, so that lines of other writers do not interleave.
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// Formats a message. `incident`: it is about an incident.
fn block(n: &Notification, incident: bool) -> String {
    let m = &n.message;
    let mut text = format!("\n== {} ==\n{}\n", line(&m.title, LINE_MAX), line(&m.summary, LINE_MAX));
    let mut row = |label: &str, value: &str| {
        let value = clean(value).trim().replace('\n', &format!("\n  {:LABEL_WIDTH$} ", ""));
        let label = line(label, LABEL_WIDTH);
        text.extend(["  ", &format!("{label:LABEL_WIDTH$}"), " ", &value, "\n"]);
    };
    for fact in &m.facts {
        row(&fact.label, &fact.text);
    }
    for link in &m.links {
        row(&link.text, &link.href);
    }
    if incident {
        row("Incident", &m.incident);
    }
    row("Why you see this", &m.reason);
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stepwatch_respond::effect::Action;

    use super::*;
    use crate::notify::tests::{hostile, page};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    async fn written(format: Format, n: &Notification) -> String {
        let shared = Shared::default();
        let stdout = Stdout { format, out: Mutex::new(Box::new(shared.clone())) };
        stdout.send(Attempt::first(n)).await.unwrap();
        String::from_utf8(shared.0.lock().unwrap().clone()).unwrap()
    }

    #[tokio::test]
    async fn a_block_to_read() {
        insta::assert_snapshot!(written(Format::Text, &page("terminal", 1, Action::Trigger)).await);
    }

    #[tokio::test]
    async fn a_report_in_either_form() {
        let report = super::super::report::tests::weekly(false);
        let n = report.notification("report/weekly/2026-11-23", "terminal", stepwatch_model::time::Ts(0));
        for (format, known) in
            [(Format::Text, "\n== Weekly report, "), (Format::Json, "{\"version\":\"1\",\"type\":\"report\"")]
        {
            let shared = Shared::default();
            let stdout = Stdout { format, out: Mutex::new(Box::new(shared.clone())) };
            stdout.send(Attempt { report: Some(&report), ..Attempt::first(&n) }).await.unwrap();
            let text = String::from_utf8(shared.0.lock().unwrap().clone()).unwrap();
            assert!(text.starts_with(known) && text.contains("10752"), "{text}");
            assert!(!text.contains("  Incident "), "{text}");
        }
    }

    #[tokio::test]
    async fn a_line_to_parse() {
        let n = page("terminal", 1, Action::Trigger);
        let text = written(Format::Json, &n).await;
        assert_eq!(text.matches('\n').count(), 1);
        assert_eq!(serde_json::from_str::<Notification>(&text).unwrap(), n);
    }

    #[tokio::test]
    async fn a_run_name_cannot_drive_the_terminal() {
        let text = written(Format::Text, &hostile(page("terminal", 1, Action::Trigger))).await;
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text:?}");
    }
}
