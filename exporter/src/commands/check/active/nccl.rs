//! An all-reduce over the GPUs of the node by `all_reduce_perf` of nccl-tests, whose results are
//! checked and whose bus bandwidth is measured.

use super::bench::Bench;
use super::reading::{Reading, number};
use super::runner::Output;

const TOOL: &str = "all_reduce_perf";
/// The size of the message: with less, latency counts too.
const SIZE: &str = "1G";

pub(super) async fn test(bench: &mut Bench<'_>) -> Reading {
    if bench.gpus < 2 {
        return Reading::not_run("there are fewer than two NVIDIA GPUs");
    }
    let gpus = bench.gpus.to_string();
    let args = ["-b", SIZE, "-e", SIZE, "-g", gpus.as_str(), "-c", "1", "-n", "20"];
    match bench.output(TOOL, &args, None).await {
        Ok(output) => read(&output),
        Err(reading) => reading,
    }
}

/// Reads the two lines at the end of the table. A launcher may write something before each line. A
/// rate of data that nobody has looked at is none.
fn read(output: &Output) -> Reading {
    let after = |label: &str| {
        let line = output.stdout.lines().find_map(|line| line.split_once(label))?.1;
        Some(line.trim_start().strip_prefix(':')?.trim())
    };
    let mut reading = Reading::default();
    let checked = after("# Out of bounds values").unwrap_or_default();
    if checked.ends_with("FAILED") {
        let count = checked.split_whitespace().next().unwrap_or_default();
        reading.wrong_data(format!("the all-reduce gave wrong results: {count} values are out of bounds"));
    }
    let right = output.failure.is_none() && checked.ends_with("OK");
    match after("# Avg bus bandwidth").and_then(|rest| number(rest, 1e9)) {
        Some(rate) if right => reading.measure("nccl_all_reduce", "", rate),
        _ if reading.findings.worst().is_some() => {}
        _ => return Reading::unknown(format!("{TOOL} gave no result: {}", output.why())),
    }
    reading
}

#[cfg(test)]
mod tests {
    use super::super::tests::says;
    use super::*;

    const CAPTURED: &str = include_str!("../../../../tests/data/active/all_reduce_perf_a100.txt");

    fn said(stdout: &str, failure: Option<&str>) -> String {
        let failure = failure.map(str::to_owned);
        says(read(&Output { stdout: stdout.to_owned(), failure, ..Output::default() }))
    }

    #[test]
    fn captured_results_and_damaged_ones() {
        assert_eq!(said(CAPTURED, None), "measured nccl_all_reduce is 68.4 GB/s\n");
        let launched = CAPTURED.replace('\n', "\n[1,0]<stdout>:");
        let launched = format!("[1,0]<stdout>:{launched}");
        assert_eq!(said(&launched, None), "measured nccl_all_reduce is 68.4 GB/s\n");
        let wrong = CAPTURED.replace("values : 0 OK", "values : 50 FAILED");
        let expected = "unhealthy the all-reduce gave wrong results: 50 values are out of bounds; drain the node and run dcgmi diag -r 3 on it\n";
        assert_eq!(said(&wrong, Some("exit status: 1")), expected);
        // What is no bandwidth of this node is none: one GPU alone, a comma, an end before the end.
        for text in [
            CAPTURED.replace("68.4048", "0"),
            CAPTURED.replace("68.4048", "68,4048"),
            CAPTURED.replace("68.4048", "-nan"),
            CAPTURED.replace("# Out of bounds values : 0 OK\n", ""),
            CAPTURED.replace("values : 0 OK", "values : N/A"),
            CAPTURED[..CAPTURED.len() - 40].to_owned(),
            String::new(),
        ] {
            assert!(said(&text, None).starts_with("unknown all_reduce_perf gave no result: "), "{text}");
        }
        let died =
            said("h100: Test NCCL failure common.cu:958 'unhandled cuda error'\n", Some("exit status: 3"));
        assert_eq!(
            died,
            "unknown all_reduce_perf gave no result: exit status: 3: h100: Test NCCL failure common.cu:958 'unhandled cuda error'\n"
        );
    }
}
