//! The HTML report, as one self-contained page.

use core::fmt::{self, Write as _};

use stepwatch_model::Severity;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::message::{Fact, number};
use stepwatch_respond::route::Router;

use super::report::Counts;
use super::signals::{SILENCE, Signals};
use super::story::Story;
use super::{Replayed, picture, words};
use crate::chart::{self, Look};
use crate::markup::{escape, page};

/// The most charts for one file: browsers fail on a page that is too large.
const MAX_CHARTS: usize = 120;
/// The most rounds of messages that are listed for one incident.
const MAX_ROUNDS: usize = 5;

#[derive(Debug)]
pub(super) struct Page<'a> {
    pub(super) files: &'a [Replayed],
    /// Errors about files that could not be read.
    pub(super) failed: &'a [String],
    pub(super) config: &'a ResponderConfig,
    /// Sections between the overview and the files.
    pub(super) more: &'a str,
    pub(super) version: &'a str,
}

/// The length of the common directory prefix of all file names, which is omitted because it
/// distinguishes nothing.
fn common<'a>(mut names: impl Iterator<Item = &'a str>) -> usize {
    let Some(first) = names.next() else { return 0 };
    let directory = |name: &str| name.rfind('/').map_or(0, |at| at + 1);
    let common = names.fold(directory(first), |common, name| {
        let same = first.bytes().zip(name.bytes()).take(common).take_while(|(a, b)| a == b).count();
        first.get(..same).map_or(0, directory)
    });
    // Two paths may share only the root.
    if common > 1 { common } else { 0 }
}

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut body = String::new();
        self.summary(&mut body);
        body.push_str(self.more);
        let router = Router::new(&self.config.routes, &self.config.teams).unwrap_or_default();
        for (i, file) in self.files.iter().enumerate() {
            self.file(&mut body, i, file, &router);
        }
        body.push_str("</main>\n");
        let by = "the engine that watches live runs, fed from files";
        f.write_str(&page("Stepwatch backtest", &body, self.version, by))
    }
}

impl Page<'_> {
    fn short<'b>(&self, file: &'b Replayed) -> &'b str {
        let common = common(self.files.iter().map(|f| f.name.as_str()));
        file.name.get(common..).unwrap_or(&file.name)
    }

    fn summary(&self, out: &mut String) {
        let total = self.files.iter().map(|f| Counts::from_replay(&f.replay)).sum::<Counts>();
        let weeks = words::weeks(self.files.iter().map(|f| f.replay.lasted()));
        let _ = write!(
            out,
            "<header><h1>Stepwatch backtest</h1><p>What the alerter would have said about {} recorded {}.</p></header>\n\
             <main>\n<ul class=\"totals\"><li class=\"page\"><b>{}</b> {}</li><li class=\"ticket\"><b>{}</b> {}</li><li><b>{}</b> {}</li>\
             <li><b>{}</b> of training</li>",
            self.files.len(),
            words::plural(self.files.len(), "run", "runs"),
            total.page,
            words::plural(total.page, "page", "pages"),
            total.ticket,
            words::plural(total.ticket, "ticket", "tickets"),
            total.info,
            words::plural(total.info, "annotation", "annotations"),
            words::length(weeks),
        );
        if weeks > 0.0 {
            let _ = write!(out, "<li><b>{}</b> pages a run-week</li>", number(total.page as f64 / weeks));
        }
        out.push_str("</ul>\n");
        for failed in self.failed {
            let _ = writeln!(out, "<p class=\"failed\" role=\"alert\">Not read: {}</p>", escape(failed));
        }
        out.push_str(
            "<section><table><caption>Runs</caption><thead><tr><th scope=\"col\">run</th><th scope=\"col\" class=\"num\">pages</th>\
             <th scope=\"col\" class=\"num\">tickets</th><th scope=\"col\" class=\"num\">annotations</th><th scope=\"col\" class=\"num\">steps</th>\
             <th scope=\"col\" class=\"num\">samples</th><th scope=\"col\" class=\"num\">lasted</th><th scope=\"col\">signals</th></tr></thead><tbody>\n",
        );
        for (i, file) in self.files.iter().enumerate() {
            let (c, (first, last)) = (Counts::from_replay(&file.replay), file.replay.steps());
            let hot = |n: usize, class: &str| if n > 0 { format!("num {class}") } else { "num none".into() };
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\"><a href=\"#f{}\">{}</a></th><td class=\"{}\">{}</td><td class=\"{}\">{}</td><td class=\"num\">{}</td>\
                 <td class=\"num\">{first}&ndash;{last}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"signals\">{}</td></tr>",
                i + 1,
                escape(self.short(file)),
                hot(c.page, "page"),
                c.page,
                hot(c.ticket, "ticket"),
                c.ticket,
                c.info,
                file.replay.samples(),
                escape(&words::lasted(&file.replay)),
                escape(&file.replay.signals().join(", ")),
            );
        }
        out.push_str("</tbody></table></section>\n");
    }

    fn file(&self, out: &mut String, i: usize, file: &Replayed, router: &Router) {
        let _ = writeln!(
            out,
            "<section class=\"file\" id=\"f{}\" aria-labelledby=\"h{0}\"><h2 id=\"h{0}\" title=\"{}\">{}</h2>",
            i + 1,
            escape(&file.name),
            escape(self.short(file))
        );
        if !file.replay.is_timed() {
            out.push_str("<p class=\"note\">The file contains no times: time passes by the step times (1 s where there are none).</p>\n");
        }
        let dropped = file.replay.drawn().map_or(0, Signals::dropped);
        if dropped > 0 {
            let _ = writeln!(
                out,
                "<p class=\"note\">The file has many signals: {dropped} samples of some are not drawn.</p>"
            );
        }
        for note in &file.notes {
            let _ = writeln!(out, "<p class=\"note\">{}</p>", escape(note));
        }
        let link = |n: usize| format!("f{}i{}", i + 1, n + 1);
        let signals = file.replay.drawn();
        if let Some(chart) = signals.and_then(|s| picture::overview(self.short(file), &file.replay, s, &link))
        {
            figure(out, &chart, "");
        }
        let stories = file.replay.stories();
        if stories.is_empty() {
            out.push_str("<p class=\"good\">Nothing to say about this run.</p>\n");
        }
        for (n, story) in stories.iter().enumerate() {
            let _ =
                writeln!(out, "<article class=\"{}\" id=\"{}\">", story.record.severity.as_str(), link(n));
            self.incident(out, n, story, router);
            let chart = signals.and_then(|s| picture::incident(&story.record, s)).filter(|_| n < MAX_CHARTS);
            if let Some(chart) = chart {
                let usual = chart.panels.iter().any(|p| p.usual.is_some());
                let expected = chart.panels.iter().any(|p| p.expected.is_some());
                let legend = [
                    (usual, "<span class=\"key usual\"></span>90 % of the samples before the onset"),
                    (expected, "<span class=\"key expected\"></span>what the detector expected"),
                ];
                let legend: Vec<&str> = legend.into_iter().filter(|(is, _)| *is).map(|(_, l)| l).collect();
                figure(out, &chart, &legend.join(" &nbsp; "));
            }
            history(out, story);
            out.push_str("</article>\n");
        }
        if stories.len() > MAX_CHARTS {
            let _ = writeln!(
                out,
                "<p class=\"note\">{} incidents have no picture.</p>",
                stories.len() - MAX_CHARTS
            );
        }
        out.push_str("<p class=\"top\"><a href=\"#\">back to the runs</a></p></section>\n");
    }

    fn incident(&self, out: &mut String, n: usize, story: &Story, router: &Router) {
        let r = &story.record;
        let seen = if r.signal == SILENCE { String::new() } else { format!(", seen in {}", r.signal) };
        let _ = writeln!(
            out,
            "<h3><span class=\"badge {}\">{}</span> {}. {} <small>at step {}{}</small></h3>\n<p class=\"why\">{}</p>",
            r.severity.as_str(),
            r.severity.as_str(),
            n + 1,
            r.kind.title(),
            r.detected_step,
            escape(&seen),
            escape(&story.summary()),
        );
        out.push_str("<dl>");
        let mut fact = |label: &str, text: &str| {
            let _ = write!(
                out,
                "<div><dt>{}</dt><dd>{}</dd></div>",
                escape(label),
                escape(text).replace('\n', "<br>")
            );
        };
        fact("Course", &words::course(r));
        if let Some(m) = &story.message {
            m.facts.iter().filter(|f| adds(f)).for_each(|f| fact(&f.label, &f.text));
        } else {
            fact("Value", &words::value(r));
            r.suspects.iter().for_each(|s| fact("Suspect", &format!("{}: {}", s.what(), s.why())));
        }
        if r.severity > Severity::Info {
            fact("Rule", &words::rule(self.config, router, r));
            fact("Would have notified", &rounds(story));
        } else {
            fact("Would have notified", "nobody: an annotation is kept and shown");
        }
        let links = story.message.iter().flat_map(|m| &m.links);
        for link in links.filter(|l| l.href.starts_with("https://") || l.href.starts_with("http://")) {
            let _ = write!(
                out,
                "<div><dt>{}</dt><dd><a href=\"{1}\">{1}</a></dd></div>",
                escape(&link.text),
                escape(&link.href)
            );
        }
        out.push_str("</dl>\n");
    }
}

/// Whether a fact is not already in the course of the incident above.
fn adds(fact: &Fact) -> bool {
    !matches!(fact.label.as_str(), "Since" | "Since step" | "Restarts")
}

fn figure(out: &mut String, chart: &chart::Chart<'_>, legend: &str) {
    let _ = writeln!(out, "<figure>{}", chart::svg(chart, Look::default()));
    if !legend.is_empty() {
        let _ = write!(out, "<figcaption>{legend}</figcaption>");
    }
    out.push_str("</figure>\n");
}

/// The rounds of messages: the receivers, the time after opening, and the reason.
fn rounds(story: &Story) -> String {
    let mut rounds: Vec<(Ts, i64, &str, Vec<&str>)> = Vec::new();
    for notified in &story.notified {
        match rounds.last_mut().filter(|(at, _, reason, _)| *at == notified.at && *reason == notified.reason)
        {
            Some((.., receivers)) => receivers.push(&notified.receiver),
            None => rounds.push((notified.at, notified.step, &notified.reason, vec![&notified.receiver])),
        }
    }
    if rounds.is_empty() {
        return "nobody".into();
    }
    let more = rounds.len().saturating_sub(MAX_ROUNDS) as u64 + story.dropped_notified;
    let opened = story.record.opened_at;
    let line = |(at, step, reason, receivers): &(Ts, i64, &str, Vec<&str>)| {
        let after = *at - opened;
        let when = if after == Span::ZERO { "at once".to_owned() } else { format!("after {after}") };
        format!("{}: {when}, at step {step} ({reason})", receivers.join(", "))
    };
    let mut lines: Vec<String> = rounds.iter().take(MAX_ROUNDS).map(line).collect();
    if more > 0 {
        lines.push(format!("and {more} times more: nobody answers in a replay"));
    }
    lines.join("\n")
}

fn history(out: &mut String, story: &Story) {
    let _ = write!(
        out,
        "<details><summary>What happened, line by line ({})</summary><ol>",
        story.lines.len() as u64 + story.dropped_lines
    );
    for line in &story.lines {
        let _ = write!(
            out,
            "<li><span class=\"num\">step {}</span> <time>{}</time> {}</li>",
            line.step,
            line.at,
            escape(&line.what)
        );
    }
    if story.dropped_lines > 0 {
        let _ = write!(out, "<li>{} lines more</li>", story.dropped_lines);
    }
    out.push_str("</ol></details>\n");
}
