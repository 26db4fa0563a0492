//! Whether detection holds when the same runs are recorded in other ways: every variant of every
//! run, replayed and counted.

// Writing to a string cannot fail.
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::label::{Label, Truths};
use crate::replay::{self, Incidents};
use crate::score::{self, Tally};
use crate::table::Table;
use crate::tables::short;
use crate::variants::{Variant, Varied};

/// What was made of the runs that were recorded one way.
#[derive(Debug)]
pub struct Outcome {
    pub name: &'static str,
    pub runs: usize,
    pub out_of_sight: usize,
    pub tally: Tally,
}

/// Reads every labelled table of a directory.
pub fn read(dir: &Path, truths: &Truths) -> anyhow::Result<Vec<(String, Table, Vec<Label>)>> {
    let tables = truths.iter().map(|(run, truth)| {
        let table = Table::read(&dir.join(format!("{run}.csv")))?;
        Ok((run.clone(), table, truth.events.clone()))
    });
    tables.collect()
}

/// Records the runs in one way, replays and counts them.
pub fn judge(variant: &Variant, runs: &[(String, Table, Vec<Label>)]) -> anyhow::Result<Outcome> {
    let dir = tempfile::tempdir().context("no temporary directory")?;
    let (mut varied, mut files): (Vec<(&str, Varied)>, Vec<PathBuf>) = (Vec::new(), Vec::new());
    for (run, table, labels) in runs {
        let Some(v) = variant.record(run, table, labels) else { continue };
        let file = dir.path().join(format!("{run}.csv"));
        v.table.write(&file)?;
        files.push(file);
        varied.push((run, v));
    }
    let found = replay::files(&files)?;
    let mut outcome = Outcome {
        name: variant.name,
        runs: varied.len(),
        out_of_sight: varied.iter().map(|(_, v)| v.out_of_sight).sum(),
        tally: Tally::default(),
    };
    varied.iter().for_each(|(run, v)| outcome.tally.add(count(run, v, &found)));
    Ok(outcome)
}

fn count(run: &str, v: &Varied, found: &Incidents) -> Tally {
    let incidents = found.get(run).map_or(&[][..], Vec::as_slice);
    let steps = v.table.steps();
    let all = [v.labels.clone(), v.under_way.clone()].concat();
    let Tally { false_pages, false_tickets, false_pages_at, .. } = score::judge(run, &steps, &all, incidents);
    Tally { false_pages, false_tickets, false_pages_at, ..score::judge(run, &steps, &v.labels, incidents) }
}

/// One row a variant.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut out = String::from(
        "| recorded | runs | page labels paged | labels noticed | out of sight | false pages | a run-week | false tickets per 10k samples |\n|---|---|---|---|---|---|---|---|\n",
    );
    for o in outcomes {
        let t = &o.tally;
        let _ = writeln!(
            out,
            "| {} | {} | {} of {} | {} of {} | {} | {} | {} | {:.2} |",
            o.name,
            o.runs,
            t.paged,
            t.page_labels,
            t.noticed,
            t.labels,
            o.out_of_sight,
            t.false_pages,
            short(t.false_pages_a_week()),
            t.false_tickets_per_10k(),
        );
    }
    out
}

/// What was missed, and the false pages, as text.
pub fn details(outcomes: &[Outcome]) -> String {
    let mut out = String::new();
    for o in outcomes {
        for missed in &o.tally.missed {
            let _ = writeln!(out, "{}: missed {missed}", o.name);
        }
        for unpaged in &o.tally.unpaged {
            let _ = writeln!(out, "{}: not paged {unpaged}", o.name);
        }
        for page in &o.tally.false_pages_at {
            let _ = writeln!(out, "{}: false page {page}", o.name);
        }
    }
    out
}
