//! The score as Markdown, for people and for `BENCHMARKS.md`.

use core::fmt::{self, Write as _};

use stepwatch_respond::incident::IncidentRecord;

use super::kind::Kind;
use super::score::{Found, Score, quantile, share};

/// The number of wrong answers shown per kind.
const SHOWN: usize = 3;

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary(f)?;
        self.by_kind(f)
    }
}

impl Score {
    fn summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (precision, recall) = self.precision_and_recall();
        let f1 = 2.0 * precision * recall / (precision + recall).max(1e-9);
        let v = &self.volume;
        let at_once = share(&self.found, |f| f.place_at_once == Some(1));
        let at_last = share(&self.found, |f| f.place_at_last == Some(1));
        writeln!(
            f,
            "{} faults, {} runs with {} ranks, {:.0} run-hours, {} events\n",
            self.found.len(),
            v.runs,
            v.ranks,
            v.run_hours,
            v.events
        )?;
        writeln!(
            f,
            "| figure | this fleet | Minder (other data) | Holmes (other data) |\n|---|---|---|---|"
        )?;
        for (name, value, minder, holmes) in [
            ("faults noticed", percent(self.noticed()), "", ""),
            ("culprit named first, of those", percent(self.top(1)), "", "97.2 %"),
            ("among the first three", percent(self.top(3)), "", ""),
            (
                "first: when announced, in the end, of all",
                format!("{}, {}", percent(at_once), percent(at_last)),
                "",
                "",
            ),
            ("precision", format!("{precision:.3}"), "0.904", ""),
            ("F1", format!("{f1:.3}"), "0.893", ""),
            ("until noticed, median", secs(self.delay(0.5)), "3.6 s", "30.3 s"),
            ("until noticed, 90 %", secs(self.delay(0.9)), "", ""),
            ("until paged, median", secs(self.page_delay(0.5)), "", ""),
            (
                "false pages",
                format!("{} ({:.2} a run-week)", self.false_pages.len(), self.false_pages_a_week()),
                "",
                "",
            ),
            ("tickets of no fault", format!("{}", self.other_tickets.len()), "", ""),
        ] {
            writeln!(f, "| {name} | {value} | {minder} | {holmes} |")?;
        }
        writeln!(f)
    }

    fn by_kind(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| fault | of them | noticed | paged | until noticed, median | first | in three | incidents each |\n|---|---|---|---|---|---|---|---|"
        )?;
        for kind in Kind::ALL {
            let of: Vec<Found> = self.of_kind(*kind).cloned().collect();
            if of.is_empty() {
                continue;
            }
            let each: usize = of.iter().map(|f| f.pages + f.tickets).sum();
            writeln!(
                f,
                "| {} | {} | {} | {} | {} | {} | {} | {:.1} |",
                kind.as_str(),
                of.len(),
                percent(share(&of, |f| f.noticed.is_some())),
                percent(share(&of, |f| f.paged.is_some())),
                secs(quantile(of.iter().filter_map(|f| f.noticed), 0.5)),
                percent(share(&of, |f| f.place == Some(1))),
                percent(share(&of, |f| f.place.is_some_and(|p| p <= 3))),
                each as f64 / of.len() as f64,
            )?;
        }
        Ok(())
    }

    /// The mistakes, a few per kind.
    pub fn mistakes(&self) -> String {
        let mut out = String::new();
        for kind in Kind::ALL {
            let wrong = self.of_kind(*kind).filter(|f| f.place != Some(1));
            wrong.take(SHOWN).for_each(|f| mistake(&mut out, f));
        }
        for (title, list) in [("false page", &self.false_pages), ("ticket of no fault", &self.other_tickets)]
        {
            list.iter().take(12).for_each(|r| incident(&mut out, title, r));
        }
        out
    }
}

fn mistake(out: &mut String, f: &Found) {
    let t = &f.truth;
    let _ = write!(
        out,
        "{} at {} in {} ({} nodes), culprit {:?}: ",
        t.kind.as_str(),
        t.onset,
        t.run,
        t.nodes,
        t.culprit
    );
    if let (Some((kind, suspects)), Some(after)) = (&f.says, f.noticed) {
        let _ = writeln!(out, "{kind} after {after:.1} s, place {:?}", f.place);
        for s in suspects {
            let _ = writeln!(out, "    {}: {}", s.what(), s.why());
        }
    } else {
        *out += "missed\n";
        for open in &f.before {
            let _ = writeln!(out, "    open before: {open}");
        }
    }
}

fn incident(out: &mut String, title: &str, r: &IncidentRecord) {
    let _ = writeln!(out, "{title}: {} of {} at {}: {}", r.kind.as_str(), r.place(), r.opened_at, r.summary);
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn secs(v: Option<f64>) -> String {
    v.map_or_else(|| "-".into(), |v| format!("{v:.1} s"))
}
