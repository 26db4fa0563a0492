//! Copies between the host and each GPU, and between GPUs, by `nvbandwidth`: as JSON, or as the
//! text of versions that have none.

use std::collections::BTreeMap;

use serde_json::Value;

use super::bench::Bench;
use super::reading::{Reading, number};
use super::runner::Output;
use crate::node_tests::ActiveConfig;

const TOOL: &str = "nvbandwidth";
/// What it says when data were not copied right.
const CORRUPT: &str = "Invalid value when checking the pattern";
/// The most rows and columns of a matrix.
const MAX_DEVICES: usize = 64;

/// The test cases, by the name of their measure, and whether the GPUs are the columns of the matrix
/// (the rows are processors) or its rows.
static CASES: &[(&str, &str, By)] = &[
    ("host_to_device_memcpy_ce", "nvbandwidth_h2d", By::Column),
    ("device_to_host_memcpy_ce", "nvbandwidth_d2h", By::Column),
    ("device_to_device_memcpy_read_ce", "nvbandwidth_d2d", By::Row),
];

#[derive(Debug, Clone, Copy)]
enum By {
    Row,
    Column,
}

/// Values in bytes a second, by row; a device and itself have none.
type Matrix = Vec<Vec<Option<f64>>>;

/// One result of a test case.
#[derive(Debug, PartialEq)]
enum Case {
    Passed(Matrix),
    /// It does not apply, as between GPUs where there is one.
    Waived,
    Failed(String),
}

pub(super) async fn test(bench: &mut Bench<'_>) -> Reading {
    if bench.gpus == 0 {
        return Reading::not_run("there is no NVIDIA GPU");
    }
    let mut args = vec!["-t"];
    args.extend(CASES.iter().map(|(case, ..)| *case));
    let text = args.clone();
    args.insert(0, "-j");
    let mut output = bench.output(TOOL, &args, None).await;
    // Versions before 0.5 know no JSON and refuse the option.
    if output.as_ref().is_ok_and(|output| output.failure.is_some() && output.json().is_none()) {
        output = bench.output(TOOL, &text, None).await;
    }
    match output {
        Ok(output) => read(&output, bench.config, bench.gpus),
        Err(reading) => reading,
    }
}

/// Reads the result on a node with this number of GPUs.
fn read(output: &Output, config: &ActiveConfig, gpus: usize) -> Reading {
    let mut reading = Reading::default();
    if output.stdout.contains(CORRUPT) || output.stderr.contains(CORRUPT) {
        reading.wrong_data("nvbandwidth found wrong data after a copy");
    }
    let cases = match output.json() {
        Some(document) => of_json(&document),
        None => of_text(&output.stdout),
    };
    let mut waived = 0;
    for (name, measure, by) in CASES {
        // What does not apply is no fault, unless the configuration says what it should reach.
        let applies = gpus > 1 && config.has_reference(measure);
        let why = match cases.get(*name) {
            Some(Case::Passed(matrix)) => {
                let least = slowest(matrix, *by);
                for (gpu, value) in &least {
                    reading.measure(measure, format!("gpu{gpu}"), *value);
                }
                match unmeasured(matrix, &least, *by, gpus) {
                    // GPUs that cannot reach each other have no other value.
                    Some(_) if matches!(by, By::Row) && least.is_empty() && !applies => {
                        waived += 1;
                        continue;
                    }
                    Some(why) => why,
                    None => continue,
                }
            }
            Some(Case::Waived) if applies => format!("it was waived, and {measure} has a reference"),
            Some(Case::Waived) => {
                waived += 1;
                continue;
            }
            Some(Case::Failed(why)) => why.clone(),
            // Versions before 0.8 do not name what they waive.
            None if output.failure.is_none() && output.stdout.contains("Waived:") => {
                waived += 1;
                continue;
            }
            None => output.why(),
        };
        let part = match cases.get(*name) {
            Some(Case::Passed(_) | Case::Waived) => "is not complete",
            Some(Case::Failed(_)) | None => "gave no result",
        };
        reading.findings.unknown(format!("{name} of nvbandwidth {part}: {why}"));
    }
    if waived == CASES.len() {
        return Reading::not_run("nvbandwidth waived every test case");
    }
    reading
}

/// Which GPUs a case says nothing of, of those that the node has.
fn unmeasured(
    matrix: &[Vec<Option<f64>>],
    least: &BTreeMap<usize, f64>,
    by: By,
    gpus: usize,
) -> Option<String> {
    let seen = match by {
        By::Row => matrix.len(),
        By::Column => matrix.iter().map(Vec::len).max().unwrap_or(0),
    };
    let without: Vec<String> =
        (0..seen).filter(|gpu| !least.contains_key(gpu)).map(|gpu| format!("gpu{gpu}")).collect();
    if least.is_empty() {
        Some("it has no value".to_owned())
    } else if !without.is_empty() {
        Some(format!("it has no value of {}", without.join(", ")))
    } else {
        (seen < gpus).then(|| format!("it saw {seen} of {gpus} GPUs"))
    }
}

/// The slowest copy of each GPU.
fn slowest(matrix: &[Vec<Option<f64>>], by: By) -> BTreeMap<usize, f64> {
    let mut least = BTreeMap::new();
    for (r, row) in matrix.iter().enumerate() {
        for (c, value) in row.iter().enumerate() {
            let Some(value) = value else { continue };
            let gpu = match by {
                By::Row => r,
                By::Column => c,
            };
            let known = least.entry(gpu).or_insert(*value);
            *known = f64::min(*known, *value);
        }
    }
    least
}

/// The value of a cell: `N/A` is none, and anything else that is no number makes the whole useless.
fn cell(text: &str) -> Result<Option<f64>, String> {
    if text == "N/A" {
        return Ok(None);
    }
    number(text, 1e9).map(Some).ok_or_else(|| format!("{text:?} is no bandwidth"))
}

fn of_json(document: &Value) -> BTreeMap<String, Case> {
    let root = document.get("nvbandwidth");
    let error = |of: Option<&Value>| of?.get("error")?.as_str().map(str::to_owned);
    let general = error(root);
    let cases = root.and_then(|root| root.get("testcases")).and_then(Value::as_array);
    let case = |case: &Value| {
        let name = case.get("name")?.as_str()?.to_owned();
        let status = case.get("status").and_then(Value::as_str).unwrap_or("no status");
        let result = match status {
            "Passed" => json_matrix(case.get("bandwidth_matrix")).map_or_else(Case::Failed, Case::Passed),
            "Waived" => Case::Waived,
            status => Case::Failed(
                error(Some(case)).or_else(|| general.clone()).unwrap_or_else(|| status.to_owned()),
            ),
        };
        Some((name, result))
    };
    cases.into_iter().flatten().filter_map(case).collect()
}

fn json_matrix(value: Option<&Value>) -> Result<Matrix, String> {
    let rows = value.and_then(Value::as_array).ok_or("there is no matrix")?;
    let of = |value: &Value| match value {
        Value::String(text) => cell(text),
        value => cell(&value.to_string()),
    };
    let row = |row: &Value| -> Result<Vec<Option<f64>>, String> {
        let cells = row.as_array().ok_or("a row is no list")?;
        cells.iter().take(MAX_DEVICES).map(of).collect()
    };
    rows.iter().take(MAX_DEVICES).map(row).collect()
}

/// Reads the text: `Running NAME.`, a heading, the numbers of the columns, the rows, and a line
/// with the sum, without which the end is missing.
fn of_text(text: &str) -> BTreeMap<String, Case> {
    let mut cases = BTreeMap::new();
    let mut running: Option<(&str, Matrix, Option<String>)> = None;
    for line in text.lines() {
        if let Some(name) = line.trim().strip_prefix("Running ") {
            running = Some((name.trim_end_matches('.'), Vec::new(), None));
            continue;
        }
        // So do versions before 0.5 write it.
        if let Some(name) = line.trim().strip_prefix("Waiving ") {
            cases.insert(name.trim_end_matches('.').to_owned(), Case::Waived);
            continue;
        }
        let Some((name, rows, wrong)) = &mut running else { continue };
        let mut words = line.split_whitespace();
        match words.next() {
            Some("SUM") if words.next() == Some(*name) => {
                let case = match wrong.take() {
                    Some(why) => Case::Failed(why),
                    None => Case::Passed(std::mem::take(rows)),
                };
                cases.insert((*name).to_owned(), case);
                running = None;
            }
            Some("Waived:" | "WAIVED") => {
                cases.insert((*name).to_owned(), Case::Waived);
                running = None;
            }
            // The line of column numbers looks like a row without values.
            Some(first) if first.parse::<usize>() == Ok(rows.len()) && !is_heading(line) => {
                match words.take(MAX_DEVICES).map(cell).collect::<Result<Vec<_>, String>>() {
                    Ok(row) if rows.len() < MAX_DEVICES => rows.push(row),
                    Ok(_) => {}
                    Err(why) => *wrong = Some(why),
                }
            }
            _ => {}
        }
    }
    cases
}

/// Whether a line has the numbers of the columns: 0, 1, 2, ...
fn is_heading(line: &str) -> bool {
    line.split_whitespace().enumerate().all(|(i, word)| word.parse::<usize>() == Ok(i))
}

#[cfg(test)]
mod tests {
    use super::super::tests::says;
    use super::*;

    const CAPTURED: &str = include_str!("../../../../tests/data/active/nvbandwidth_gh200.txt");
    const PEERS: &str = include_str!("../../../../tests/data/active/nvbandwidth_a6000.txt");
    const JSON: &str = include_str!("../../../../tests/data/active/nvbandwidth.json");

    fn said(stdout: &str, failure: Option<&str>) -> String {
        let failure = failure.map(str::to_owned);
        of_gpus(0, stdout, failure)
    }

    fn of_gpus(gpus: usize, stdout: &str, failure: Option<String>) -> String {
        let output = Output { stdout: stdout.to_owned(), failure, ..Output::default() };
        says(read(&output, &ActiveConfig::default(), gpus))
    }

    #[test]
    fn captured_text() {
        let cases = of_text(CAPTURED);
        let two = vec![
            vec![Some(369.36e9), Some(269.33e9), Some(412.11e9)],
            vec![Some(323.36e9), Some(299.33e9), Some(312.11e9)],
        ];
        let Some(Case::Passed(matrix)) = cases.get("host_to_device_memcpy_ce") else { panic!("{cases:?}") };
        for (row, wanted) in matrix.iter().zip(&two) {
            for (value, wanted) in row.iter().flatten().zip(wanted.iter().flatten()) {
                assert!((value - wanted).abs() < 1.0, "{value} {wanted}");
            }
        }
        let least = slowest(matrix, By::Column);
        assert_eq!(least.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
        assert!((least[&1] - 269.33e9).abs() < 1.0);
        let peers = of_text(PEERS);
        let Some(Case::Passed(matrix)) = peers.get("device_to_device_memcpy_read_ce") else {
            panic!("{peers:?}")
        };
        assert_eq!(matrix[0][0], None);
        let least = slowest(matrix, By::Row);
        assert_eq!(least.len(), 6);
        assert!((least[&0] - 21.80e9).abs() < 1.0, "{least:?}");
    }

    #[test]
    fn json_of_one_gpu() {
        assert_eq!(
            said(JSON, None),
            "measured nvbandwidth_d2h is 55.3 GB/s\nmeasured nvbandwidth_h2d is 55.1 GB/s\n",
            "what does not apply is no fault"
        );
    }

    #[test]
    fn a_gpu_that_was_not_measured_is_not_passed_over() {
        let text = of_gpus(8, PEERS, None);
        let of = "unknown device_to_device_memcpy_read_ce of nvbandwidth is not complete";
        assert!(text.contains(&format!("{of}: it saw 6 of 8 GPUs\n")), "{text}");
        // The third reaches no other.
        let alone: String = PEERS
            .lines()
            .map(|line| match line.strip_prefix(" 2 ") {
                Some(_) => " 2       N/A       N/A       N/A       N/A       N/A       N/A\n".to_owned(),
                None => format!("{line}\n"),
            })
            .collect();
        let text = of_gpus(6, &alone, None);
        assert!(text.contains(&format!("{of}: it has no value of gpu2\n")), "{text}");
    }

    #[test]
    fn gpus_that_cannot_reach_each_other_are_no_fault_unless_they_should() {
        let passed = |name: &str, rows: &str| {
            format!(r#"{{"name": "{name}", "status": "Passed", "bandwidth_matrix": {rows}}}"#)
        };
        let none = passed("device_to_device_memcpy_read_ce", r#"[["N/A", "N/A"], ["N/A", "N/A"]]"#);
        let waived = r#"{"name": "device_to_device_memcpy_read_ce", "status": "Waived"}"#;
        let copies = ["host_to_device_memcpy_ce", "device_to_host_memcpy_ce"];
        let copies = copies.map(|name| passed(name, r#"[["55.1", "55.2"]]"#));
        let reference = BTreeMap::from([("nvbandwidth_d2d".to_owned(), 2e11)]);
        let should = ActiveConfig { reference, ..ActiveConfig::default() };
        for (d2d, why) in [
            (none.as_str(), "it has no value"),
            (waived, "it was waived, and nvbandwidth_d2d has a reference"),
        ] {
            let text = format!(r#"{{"nvbandwidth": {{"testcases": [{}, {d2d}]}}}}"#, copies.join(", "));
            let said = of_gpus(2, &text, None);
            assert!(said.contains("measured nvbandwidth_h2d is") && !said.contains("unknown"), "{said}");
            let output = Output { stdout: text, ..Output::default() };
            let said = says(read(&output, &should, 2));
            let part = format!("device_to_device_memcpy_read_ce of nvbandwidth is not complete: {why}\n");
            assert!(said.contains(&part), "{said}");
        }
        let old = "Waiving device_to_device_memcpy_read_ce.\n\n";
        assert_eq!(of_text(old).get("device_to_device_memcpy_read_ce"), Some(&Case::Waived));
    }

    #[test]
    fn what_is_no_result_is_unknown_and_wrong_data_is_a_fault() {
        for text in ["", "{", "[]", "nvbandwidth Version: v0.7\n", &CAPTURED[..260], "{\"nvbandwidth\":{}}"] {
            let said = said(text, Some("exit status: 1"));
            assert!(
                said.starts_with("unknown host_to_device_memcpy_ce of nvbandwidth gave no result"),
                "{said}"
            );
            assert!(!said.contains("ok ") && !said.contains("measured "), "{said}");
        }
        let comma = CAPTURED.replace("369.36", "369,36");
        let text = said(&comma, None);
        assert!(
            text.contains(
                "host_to_device_memcpy_ce of nvbandwidth gave no result: \"369,36\" is no bandwidth"
            ),
            "{text}"
        );
        let failed = "{\"nvbandwidth\": {\"error\": \"CUDA_ERROR_OUT_OF_MEMORY\", \"testcases\": [{\"name\": \"host_to_device_memcpy_ce\", \"status\": \"Error\"}]}}";
        let text = said(failed, Some("exit status: 1"));
        assert!(
            text.starts_with(
                "unknown host_to_device_memcpy_ce of nvbandwidth gave no result: CUDA_ERROR_OUT_OF_MEMORY\n"
            ),
            "{text}"
        );
        let corrupt = "Running device_to_device_memcpy_read_ce.\n Invalid value when checking the pattern at 0x70a640000000\n Current offset : 11136 \n";
        let text = said(corrupt, Some("exit status: 1"));
        assert!(
            text.starts_with("unhealthy nvbandwidth found wrong data after a copy; drain the node"),
            "{text}"
        );
    }
}
