//! The diagnostics of DCGM, `dcgmi diag -r 1|2`, as JSON of DCGM 3 and 4.
//!
//! dcgmi ends with 226 when a test failed, and also when a setting is not as DCGM wishes, so that
//! its exit status says little: each result of the document is judged, by the severity that DCGM
//! from 3.3 on gives (`dcgm_errors.h`). Older versions give none, and have no other word than
//! `Fail` for a warning, so there the name of the test says what is a setting.

use serde_json::Value;

use super::super::report::Verdict;
use super::bench::Bench;
use super::reading::Reading;
use super::runner::Output;

const TOOL: &str = "dcgmi";
/// Severities with which a GPU can still do its work: one to watch, and a setting.
const MILD: [u64; 2] = [1, 5];
/// The tests of level 1 that look at how the node is set up, as versions without severities name
/// them.
const SETTINGS: &[&str] = &[
    "Blacklist",
    "Denylist",
    "NVML Library",
    "CUDA Main Library",
    "CUDA Toolkit Library",
    "Permissions and OS Blocks",
    "Persistence Mode",
    "Environment Variables",
    "Graphics Processes",
];
/// The most findings of one run that are no faults, and the most characters of one.
const MAX_FINDINGS: usize = 64;
const MAX_WORDS: usize = 300;

#[derive(Debug, Default)]
struct Counts {
    passed: usize,
    skipped: usize,
    found: usize,
}

pub(super) async fn test(bench: &mut Bench<'_>) -> Reading {
    if bench.gpus == 0 {
        return Reading::not_run("there is no NVIDIA GPU");
    }
    let level = bench.config.dcgm_level;
    let number = level.to_string();
    match bench.output(TOOL, &["diag", "-r", number.as_str(), "-j"], None).await {
        Ok(output) => read(&output, level),
        Err(reading) => reading,
    }
}

fn read(output: &Output, level: u8) -> Reading {
    let document = output.json();
    let root = document.as_ref().and_then(|all| {
        let of_version = |key: &str| all.get(key);
        of_version("DCGM Diagnostic").or_else(|| of_version("DCGM GPU Diagnostic"))
    });
    let Some(root) = root else {
        return Reading::unknown(format!("dcgmi gave no result: {}", output.why()));
    };
    let error = root.get("runtime_error").or_else(|| root.get("error")).and_then(Value::as_str);
    if let Some(error) = error {
        return Reading::unknown(format!("dcgmi diag failed: {}", shortened(error)));
    }
    let (mut reading, mut counts) = (Reading::default(), Counts::default());
    for test in list(root.get("test_categories")).iter().flat_map(|category| list(category.get("tests"))) {
        let name = test.get("name").and_then(Value::as_str).unwrap_or("a test");
        let results = list(test.get("results"));
        let before = counts.found;
        for result in results {
            judge(name, result, &mut reading, &mut counts);
        }
        // An error that belongs to no device stands only here.
        if let Some(summary) = test.get("test_summary")
            && counts.found == before
            && (results.is_empty() || failed(summary))
        {
            judge(name, summary, &mut reading, &mut counts);
        }
    }
    let Counts { passed, skipped, found } = counts;
    let skipped_too = if skipped > 0 { format!(", {skipped} were skipped") } else { String::new() };
    match (passed, found) {
        (0, 0) if skipped > 0 => Reading::not_run("DCGM skipped every test on these GPUs"),
        (0, 0) => Reading::unknown(format!("dcgmi gave no result: {}", output.why())),
        (_, 0) if output.failure.is_some() => {
            Reading::unknown(format!("no test of dcgmi diag failed, but {}", output.why()))
        }
        _ => {
            if passed > 0 {
                reading.findings.ok(format!("{passed} results of dcgmi diag -r {level} pass{skipped_too}"));
            }
            reading
        }
    }
}

fn status_of(result: &Value) -> String {
    result.get("status").and_then(Value::as_str).unwrap_or_default().to_ascii_lowercase()
}

fn failed(result: &Value) -> bool {
    !["pass", "skip", "not run"].contains(&status_of(result).as_str())
}

fn judge(name: &str, result: &Value, reading: &mut Reading, counts: &mut Counts) {
    let status = status_of(result);
    let warnings = warnings(result.get("warnings"));
    let ungraded = warnings.iter().all(|(_, severity)| severity.is_none());
    let verdict = match status.as_str() {
        "pass" => {
            counts.passed += 1;
            return;
        }
        "skip" | "not run" => {
            counts.skipped += 1;
            return;
        }
        "warn" => Verdict::Warning,
        "fail" if ungraded && SETTINGS.contains(&name) => Verdict::Warning,
        // Any other of unknown severity is a fault.
        "fail" if !warnings.is_empty() && warnings.iter().all(|(_, severity)| is_mild(*severity)) => {
            Verdict::Warning
        }
        "fail" => Verdict::Unhealthy,
        _ => Verdict::Unknown,
    };
    counts.found += 1;
    // A fault is never left out, and there are no more of them than fit into an output.
    if counts.found > MAX_FINDINGS && verdict != Verdict::Unhealthy {
        return;
    }
    let device = ["entity_id", "gpu_id", "gpu_ids"].iter().find_map(|key| match result.get(*key)? {
        Value::String(text) => Some(text.clone()),
        number => number.as_u64().map(|number| number.to_string()),
    });
    let what = warnings.iter().map(|(text, _)| text.as_str()).find(|text| !text.is_empty());
    let group = result.get("entity_group").and_then(Value::as_str).unwrap_or("GPU");
    let device = device.map(|number| format!("{} {number}", shortened(group)));
    let on = device.as_ref().map(|device| format!(" on {device}")).unwrap_or_default();
    let status = if status.is_empty() { "no status" } else { status.as_str() };
    let text = format!("{name}{on}: {}", shortened(what.unwrap_or(status)));
    let mut finding = reading.findings.add(verdict, text);
    if let Some(device) = device {
        finding = finding.device(device);
    }
    if verdict == Verdict::Unhealthy {
        finding.action("drain the node and run dcgmi diag -r 3 on it");
    }
}

fn is_mild(severity: Option<u64>) -> bool {
    severity.is_some_and(|severity| MILD.contains(&severity))
}

/// The warnings of a result, each with its severity: objects, texts, or one text.
fn warnings(value: Option<&Value>) -> Vec<(String, Option<u64>)> {
    let one = |value: &Value| match value {
        Value::String(text) => Some((text.clone(), None)),
        Value::Object(of) => {
            // DCGM 3.3 writes `warnings` within those of its tests of level 1.
            let text = ["warning", "warnings"].iter().find_map(|key| of.get(*key)?.as_str());
            let text = text.unwrap_or_default().to_owned();
            Some((text, of.get("error_severity").and_then(Value::as_u64)))
        }
        _ => None,
    };
    match value {
        Some(Value::Array(all)) => all.iter().filter_map(one).collect(),
        Some(value) => one(value).into_iter().collect(),
        None => Vec::new(),
    }
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn shortened(text: &str) -> String {
    text.chars().take(MAX_WORDS).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::says;
    use super::*;

    const CAPTURED: &str = include_str!("../../../../tests/data/active/dcgmi_diag_r1_gb10.json");
    const PASSED: &str = include_str!("../../../../tests/data/active/dcgmi_diag_r1_v3.json");

    fn said(stdout: &str, failure: Option<&str>) -> String {
        let failure = failure.map(str::to_owned);
        says(read(&Output { stdout: stdout.to_owned(), failure, ..Output::default() }, 1))
    }

    #[test]
    fn a_setting_is_a_warning_although_dcgmi_fails() {
        let setting = "Persistence Mode: Persistence mode for GPU 0 is disabled. Enable persistence mode by running \"nvidia-smi -i <gpuId> -pm 1 \" as root.";
        assert_eq!(
            said(CAPTURED, Some("exit status: 226")),
            format!("warning software on GPU 0: {setting}\n")
        );
        // The same with the severity of a fault, and with none, as DCGM 3 writes it.
        let fault =
            format!("unhealthy software on GPU 0: {setting}; drain the node and run dcgmi diag -r 3 on it\n");
        let isolate = CAPTURED.replace("\"error_severity\" : 5", "\"error_severity\" : 2");
        assert_eq!(said(&isolate, Some("exit status: 226")), fault);
        let unknown = CAPTURED.replace("\"error_severity\" : 5,", "");
        assert_eq!(said(&unknown, Some("exit status: 226")), fault);
    }

    #[test]
    fn what_passes_and_what_is_skipped() {
        assert_eq!(said(PASSED, None), "ok 9 results of dcgmi diag -r 1 pass\n");
        let skipped = PASSED.replace("Pass", "Skip");
        assert_eq!(said(&skipped, None), "not run DCGM skipped every test on these GPUs\n");
        let some = PASSED.replacen("Pass", "Skip", 2);
        assert_eq!(said(&some, None), "ok 7 results of dcgmi diag -r 1 pass, 2 were skipped\n");
        let odd = PASSED.replacen("Pass", "Perhaps", 1);
        assert_eq!(said(&odd, None), "unknown Blacklist: perhaps\nok 8 results of dcgmi diag -r 1 pass\n");
        let text = said(PASSED, Some("exit status: 226"));
        assert!(text.starts_with("unknown no test of dcgmi diag failed, but exit status: 226"), "{text}");
        let texts = r#"{"DCGM GPU Diagnostic": {"test_categories": [{"category": "Integration", "tests": [
            {"name": "PCIe", "results": [{"gpu_ids": "0,1", "status": "Fail", "warnings": "AER error"}]}]}]}}"#;
        assert_eq!(
            said(texts, None),
            "unhealthy PCIe on GPU 0,1: AER error; drain the node and run dcgmi diag -r 3 on it\n"
        );
    }

    /// One test with these results and this summary.
    fn one(name: &str, rest: &str) -> String {
        let test = format!("{{\"name\": \"{name}\", {rest}}}");
        let text = format!("{{\"DCGM GPU Diagnostic\": {{\"test_categories\": [{{\"tests\": [{test}]}}]}}}}");
        said(&text, Some("exit status: 226"))
    }

    #[test]
    fn a_setting_of_a_version_without_severities_is_no_fault() {
        let bare = r#""results": [{"status": "Fail", "warnings": "Persistence mode is off"}]"#;
        assert_eq!(one("Persistence Mode", bare), "warning Persistence Mode: Persistence mode is off\n");
        let fault = one("Inforom", bare);
        assert!(fault.starts_with("unhealthy Inforom: "), "{fault}");
        // DCGM 3.3 has severities, and another key for the text.
        let graded = |severity: u8| {
            let warning = format!(r#"{{"warnings": "rows are pending", "error_severity": {severity}}}"#);
            one(
                "Page Retirement/Row Remap",
                &format!(r#""results": [{{"status": "Fail", "gpu_id": 3, "warnings": [{warning}]}}]"#),
            )
        };
        let says = "Page Retirement/Row Remap on GPU 3: rows are pending";
        assert_eq!(graded(5), format!("warning {says}\n"));
        assert!(graded(2).starts_with(&format!("unhealthy {says}; ")), "{}", graded(2));
        // A severe one is a fault in any test.
        let severe =
            r#""results": [{"status": "Fail", "warnings": [{"warning": "x", "error_severity": 2}]}]"#;
        assert!(one("Permissions and OS Blocks", severe).starts_with("unhealthy "));
    }

    #[test]
    fn an_error_that_belongs_to_no_device_is_found_in_the_summary() {
        let summary = |status: &str| {
            let warning = r#"[{"warning": "a switch is down", "error_severity": 2}]"#;
            let results = r#""results": [{"status": "Pass", "entity_id": 0}]"#;
            format!(r#"{results}, "test_summary": {{"status": "{status}", "warnings": {warning}}}"#)
        };
        let said = one("nvswitch", &summary("Fail"));
        assert!(said.starts_with("unhealthy nvswitch: a switch is down; "), "{said}");
        assert!(said.ends_with("ok 1 results of dcgmi diag -r 1 pass\n"), "{said}");
        assert!(!one("nvswitch", &summary("Pass")).contains("unhealthy"));
        let of_cpu = r#""results": [{"status": "Fail", "entity_group": "CPU", "entity_id": 1}]"#;
        assert!(one("cpu_eud", of_cpu).starts_with("unhealthy cpu_eud on CPU 1: fail; "));
    }

    #[test]
    fn what_is_no_result_is_unknown() {
        for (text, failure) in [
            (
                "Error: unable to establish a connection to the specified host: localhost\n",
                Some("exit status: 235"),
            ),
            ("", None),
            ("{}", None),
            ("{\"DCGM Diagnostic\": {\"test_categories\": [{\"tests\": [{\"name\": 7}]}]}}", None),
            ("{\"DCGM Diagnostic\": []}", None),
            (&CAPTURED[..CAPTURED.len() / 2], Some("signal: 9 (SIGKILL)")),
        ] {
            let said = said(text, failure);
            assert!(said.starts_with("unknown dcgmi gave no result: "), "{text}: {said}");
        }
        let failed = "{\"DCGM GPU Diagnostic\": {\"runtime_error\": \"the diagnostic is running\"}}";
        assert_eq!(said(failed, None), "unknown dcgmi diag failed: the diagnostic is running\n");
    }
}
