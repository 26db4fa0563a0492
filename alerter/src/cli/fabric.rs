//! Pairs of nodes: the rounds in which they are measured, and what the results say.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use stepwatch_wire::words;

use super::error::CliError;
use super::format::{Format, json};
use super::table::{BAD, Table, plain};
use crate::fabric_report::{Doubt, MAX_RECORDS, Record, Slow, TestReport, reports, rounds};

/// The most bytes of a line, whose rest is read as another one, and of a file.
const MAX_LINE: u64 = 64 << 10;
const MAX_FILE: u64 = 2 << 30;
/// The most nodes of a plan.
const MAX_NODES: usize = 4096;

#[derive(Debug, Subcommand)]
pub(super) enum FabricCommand {
    /// Print rounds of pairs: no node is twice in a round, and every pair is in one
    Pairs(PairsArgs),
    /// Find slow rails, nodes, ports and pairs in files of measurements: exit 0 when every pair was
    /// measured and none is slow, 1 otherwise. Fewer than four nodes prove nothing without
    /// --reference
    Report(ReportArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Each line is the number of the round and two nodes.

Examples:
  stepwatch-alerter fabric pairs n1 n2 n3 n4
  stepwatch-alerter fabric pairs n1 n2 n3 --format json")]
pub(super) struct PairsArgs {
    /// The nodes, at least two
    #[arg(required = true, num_args = 2..)]
    nodes: Vec<String>,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter fabric report pairs.jsonl
  stepwatch-alerter fabric report pairs-*.jsonl --tolerance 0.05 --partial --format json
  stepwatch-alerter fabric report pairs.jsonl --reference 48.5e9")]
pub(super) struct ReportArgs {
    /// Files with one measurement a line: an object with test, a, b, rail and bytes_per_second, or
    /// error in place of the last
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A value that is lower than expected by more than this part is slow
    #[arg(long, value_name = "PART", default_value_t = 0.03, value_parser = part)]
    tolerance: f64,
    /// What a pair should reach, in bytes a second, instead of the median of all pairs. The files
    /// then have one test only
    #[arg(long, value_name = "BYTES", value_parser = rate)]
    reference: Option<f64>,
    /// Pairs may be missing
    #[arg(long)]
    partial: bool,
    /// How many nodes have to be in the files: one of which there is no line is not known otherwise
    #[arg(long, value_name = "COUNT")]
    nodes: Option<usize>,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Serialize)]
struct Answer {
    proven: bool,
    tests: Vec<TestReport>,
    /// Lines that are no measurement, and those beyond the limit.
    unreadable_lines: usize,
    dropped_lines: usize,
}

fn part(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().map_err(|e| format!("{e}"))?;
    if value > 0.0 && value < 1.0 { Ok(value) } else { Err("must be between 0 and 1, as in 0.03".into()) }
}

fn rate(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().map_err(|e| format!("{e}"))?;
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err("must be more than 0, as in 48.5e9".into()) }
}

pub(super) fn run(command: &FabricCommand, out: &mut dyn Write) -> Result<(), CliError> {
    match command {
        FabricCommand::Pairs(args) => pairs(args, out),
        FabricCommand::Report(args) => report(args, out),
    }
}

fn pairs(args: &PairsArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let mut nodes = args.nodes.clone();
    nodes.sort();
    nodes.dedup();
    if nodes.len() > MAX_NODES {
        return Err(CliError::Other(format!("{} nodes are too many; at most {MAX_NODES}", nodes.len())));
    }
    let rounds = rounds(&nodes);
    if args.format == Format::Json {
        return json(out, &rounds);
    }
    for (i, round) in rounds.iter().enumerate() {
        for (a, b) in round {
            writeln!(out, "{} {} {}", i + 1, plain(a), plain(b))?;
        }
    }
    Ok(())
}

fn report(args: &ReportArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let (mut records, mut unreadable_lines, mut dropped_lines) = (Vec::new(), 0, 0);
    for file in &args.files {
        read(file, &mut |line| match Record::parse(line) {
            Some(_) if records.len() >= MAX_RECORDS => dropped_lines += 1,
            Some(record) => records.push(record),
            None => unreadable_lines += 1,
        })?;
    }
    let mut tests = reports(&records, args.tolerance, args.reference);
    if args.reference.is_some() && tests.len() > 1 {
        let names: Vec<_> = tests.iter().map(|test| plain(name(test)).into_owned()).collect();
        let names = names.join(", ");
        return Err(CliError::Other(format!("--reference is of one test, and the files have {names}")));
    }
    for test in &mut tests {
        test.missing_nodes = args.nodes.unwrap_or(0).saturating_sub(test.nodes);
    }
    let proven = !tests.is_empty()
        && tests.iter().all(|test| test.is_proven(args.partial))
        && unreadable_lines == 0
        && dropped_lines == 0;
    let answer = Answer { proven, tests, unreadable_lines, dropped_lines };
    match args.format {
        Format::Json => json(out, &answer)?,
        Format::Table => answer.write(out)?,
    }
    if proven { Ok(()) } else { Err(CliError::Said(1)) }
}

/// Gives each line of a file to `take`; empty ones are left out.
fn read(path: &Path, take: &mut dyn FnMut(&[u8])) -> Result<(), CliError> {
    let name = words::into_line(path.display().to_string());
    let cannot = |e: std::io::Error| CliError::Other(format!("cannot read {name}: {e}"));
    let mut file = BufReader::new(File::open(path).map_err(cannot)?.take(MAX_FILE));
    let mut line = Vec::new();
    loop {
        line.clear();
        // One that is longer is cut, and its parts are no measurements.
        if file.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).map_err(cannot)? == 0 {
            if file.get_ref().limit() == 0 {
                return Err(CliError::Other(format!("{name} is larger than {} GiB", MAX_FILE >> 30)));
            }
            return Ok(());
        }
        let text = line.trim_ascii();
        if !text.is_empty() {
            take(text);
        }
    }
}

impl Answer {
    fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        for test in &self.tests {
            write_test(test, out)?;
        }
        if self.tests.is_empty() {
            writeln!(out, "no pair was measured")?;
        }
        let lines = [(self.unreadable_lines, "are no measurement"), (self.dropped_lines, "are too many")];
        for (count, what) in lines.iter().filter(|(count, _)| *count > 0) {
            writeln!(out, "{count} lines {what}")?;
        }
        Ok(())
    }
}

fn write_test(test: &TestReport, out: &mut dyn Write) -> std::io::Result<()> {
    let expected = test.expected_bytes_per_second.map(gigabytes).unwrap_or_else(|| "nothing".into());
    writeln!(
        out,
        "{}: {} nodes, {} rails, {} pairs measured, {expected} expected",
        plain(name(test)),
        test.nodes,
        test.rails,
        test.measured
    )?;
    let groups = [
        ("slow rail", &test.slow_rails),
        ("slow node", &test.slow_nodes),
        ("slow port", &test.slow_ports),
        ("slow pair", &test.slow_pairs),
    ];
    let mut table = Table::facts().indented(2);
    for (what, slow) in groups.iter().flat_map(|(what, all)| all.iter().map(move |slow| (*what, slow))) {
        let below = format!("{:.1} % below", 100.0 * (1.0 - slow.ratio));
        table.painted([what, &place(slow), &gigabytes(slow.bytes_per_second), &below]).paint(0, BAD);
    }
    let more = test.slow_pair_count - test.slow_pairs.len();
    if more > 0 {
        table.row(["slow pair", &format!("{more} more")]);
    }
    for node in &test.failing_nodes {
        table.painted(["failing node", node.as_str(), "most of its pairs failed"]).paint(0, BAD);
    }
    for failed in &test.failed {
        let place = format!("{} {} {}", failed.a, failed.b, failed.rail);
        table.painted(["failed", place.trim_end(), failed.error.as_str()]).paint(0, BAD);
    }
    for (a, b, rail) in &test.missing {
        table.row(["not measured", format!("{a} {b} {rail}").trim_end()]);
    }
    table.write(out)?;
    let unnamed = [
        (test.failed_count - test.failed.len(), "failed"),
        (test.missing_count - test.missing.len(), "were not measured"),
    ];
    for (count, what) in unnamed.iter().filter(|(count, _)| *count > 0) {
        writeln!(out, "  {count} more pairs {what}")?;
    }
    let doubt = match test.doubt {
        Some(Doubt::FewNodes) => Some("fewer than four nodes"),
        Some(Doubt::MostBelowBest) => Some("most pairs are far below the best one"),
        None => None,
    };
    if test.missing_nodes > 0 {
        writeln!(out, "  not proven: {} nodes were not measured at all", test.missing_nodes)?;
    }
    if let Some(why) = doubt {
        writeln!(out, "  not proven: {why}; give what a pair should reach (--reference)")?;
    }
    if test.is_proven(false) {
        writeln!(out, "  every pair was measured, and none is slow")?;
    }
    Ok(())
}

fn name(test: &TestReport) -> &str {
    if test.test.is_empty() { "pairs" } else { test.test.as_str() }
}

fn place(slow: &Slow) -> String {
    let nodes = slow.nodes.join(" ");
    format!("{nodes} {}", slow.rail).trim().to_owned()
}

fn gigabytes(bytes_per_second: f64) -> String {
    format!("{:.1} GB/s", bytes_per_second / 1e9)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use insta::assert_snapshot;

    use super::super::Cli;
    use super::*;

    /// What a command prints, and whether it ended with 0.
    fn printed(args: &[&str]) -> (String, bool) {
        #[derive(Debug, Parser)]
        struct Fabric {
            #[command(subcommand)]
            command: FabricCommand,
        }
        let parsed = Fabric::try_parse_from(["fabric"].iter().chain(args)).unwrap();
        let mut out = Vec::new();
        let done = run(&parsed.command, &mut out);
        let out = anstream::adapter::strip_str(core::str::from_utf8(&out).unwrap()).to_string();
        (out, done.is_ok())
    }

    fn file(lines: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines).unwrap();
        file
    }

    #[test]
    fn what_is_slow_is_printed_and_fails() {
        use std::fmt::Write as _;
        let mut lines = String::new();
        for (a, b) in [("n1", "n2"), ("n1", "n3"), ("n1", "n4"), ("n2", "n3"), ("n2", "n4")] {
            let rate = if a == "n1" { 24e9 } else { 48e9 };
            let of = r#""test":"ib_write_bw","rail":"mlx5_0""#;
            lines += "{";
            lines += of;
            let _ = writeln!(lines, r#","a":"{a}","b":"{b}","bytes_per_second":{rate}}}"#);
        }
        lines += "{\"test\":\"ib_write_bw\",\"a\":\"n3\",\"b\":\"n4\",\"rail\":\"mlx5_0\",\"error\":\"Couldn't connect\"}\n\nnonsense\n";
        let file = file(&lines);
        let path = file.path().to_str().unwrap();
        let (text, ok) = printed(&["report", path, "--reference", "48e9"]);
        assert_snapshot!(text, @r"
        ib_write_bw: 4 nodes, 1 rails, 5 pairs measured, 48.0 GB/s expected
          slow node  n1            24.0 GB/s         50.0 % below
          failed     n3 n4 mlx5_0  Couldn't connect
        1 lines are no measurement
        ");
        assert!(!ok);
        let (text, ok) = printed(&["report", path, "--format", "json"]);
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (answer["proven"].as_bool(), answer["unreadable_lines"].as_u64(), ok),
            (Some(false), Some(1), false)
        );
        assert_eq!(answer["tests"][0]["failed_count"], 1);
        assert!(
            run(
                &FabricCommand::Report(ReportArgs {
                    files: vec!["/not/there".into()],
                    tolerance: 0.03,
                    reference: None,
                    partial: false,
                    nodes: None,
                    format: Format::Table,
                }),
                &mut Vec::new()
            )
            .is_err()
        );
    }

    #[test]
    fn a_fabric_that_is_proven_and_one_of_which_nothing_is_known() {
        let file = file("{\"a\":\"n1\",\"b\":\"n2\",\"bytes_per_second\":48e9}\n");
        let path = file.path().to_str().unwrap();
        let (text, ok) = printed(&["report", path, "--reference", "48e9"]);
        assert_snapshot!(text, @r"
        pairs: 2 nodes, 1 rails, 1 pairs measured, 48.0 GB/s expected
          every pair was measured, and none is slow
        ");
        assert!(ok);
        let (text, ok) = printed(&["report", path]);
        assert_snapshot!(text, @r"
        pairs: 2 nodes, 1 rails, 1 pairs measured, 48.0 GB/s expected
          not proven: fewer than four nodes; give what a pair should reach (--reference)
        ");
        assert!(!ok);
        // A third of which there is no line.
        for args in [&["--nodes", "3"][..], &["--nodes", "3", "--partial"]] {
            let all = [&["report", path, "--reference", "48e9"][..], args].concat();
            let (text, ok) = printed(&all);
            assert!(text.contains("  not proven: 1 nodes were not measured at all\n") && !ok, "{text}");
            assert!(!text.contains("every pair was measured"), "{text}");
        }
        assert!(printed(&["report", path, "--reference", "48e9", "--nodes", "2"]).1);
        // A reference of one test is none of the other.
        let pair = |more: &str| format!("{{{more}\"a\":\"n1\",\"b\":\"n2\",\"bytes_per_second\":48e9}}\n");
        let two = self::file(&[pair(""), pair("\"test\":\"nccl\",")].concat());
        let two = two.path().to_str().unwrap();
        assert_eq!(printed(&["report", two, "--reference", "48e9"]), (String::new(), false));
        assert!(printed(&["report", two]).0.contains("nccl: 2 nodes"));
        let nothing = self::file("");
        let (text, ok) = printed(&["report", nothing.path().to_str().unwrap()]);
        assert_eq!((text.as_str(), ok), ("no pair was measured\n", false));
    }

    #[test]
    fn rounds_for_a_launcher() {
        let (text, ok) = printed(&["pairs", "n1", "n2", "n3", "n4", "n2"]);
        assert!(ok);
        assert_eq!(text, "1 n1 n4\n1 n2 n3\n2 n1 n3\n2 n4 n2\n3 n1 n2\n3 n3 n4\n");
        assert_eq!(
            printed(&["pairs", "n1", "n2", "--format", "json"]).0.split_whitespace().collect::<String>(),
            "[[[\"n1\",\"n2\"]]]"
        );
        for wrong in [&["pairs", "n1"][..], &["report"], &["report", "x", "--tolerance", "3"]] {
            let args = ["stepwatch-alerter", "fabric"].iter().chain(wrong);
            assert!(Cli::try_parse_from(args).is_err(), "{wrong:?}");
        }
    }
}
