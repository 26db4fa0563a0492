//! Checks and describes the `expect` section: what is expected of runs.

use std::collections::BTreeMap;

use stepwatch_detect::detectors::below_expectation::Expect;
use stepwatch_model::number;

use super::file::File;

/// The most entries, each of which is compared with the name of every run.
const MAX: usize = 1000;

pub(super) fn check(file: &File, errors: &mut Vec<String>) {
    if file.expect.len() > MAX {
        errors.push(format!("expect: has {} entries, at most {MAX} are allowed", file.expect.len()));
    }
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, expect) in file.expect.iter().enumerate() {
        let at = format!("expect[{i}]");
        if expect.run.trim().is_empty() {
            errors.push(format!("{at}.run: is empty, expected the name of a run; * stands for anything"));
        }
        if let Some(before) = first.get(expect.run.as_str()) {
            errors.push(format!(
                "{at}.run: {:?} is that of expect[{before}] too, and the first entry that matches decides",
                expect.run
            ));
        }
        first.entry(expect.run.as_str()).or_insert(i);
        limits(&at, expect, errors);
    }
}

fn limits(at: &str, expect: &Expect, errors: &mut Vec<String>) {
    let Expect { run: _, mfu, tokens_per_second, step_time } = expect;
    if mfu.or(*tokens_per_second).or(*step_time).is_none() {
        errors.push(format!("{at}: expects nothing, expected mfu, tokens_per_second or step_time"));
    }
    if let Some(mfu) = mfu.filter(|mfu| !(*mfu > 0.0 && *mfu <= 1.0)) {
        errors.push(format!("{at}.mfu: must be a ratio above 0 and up to 1, such as 0.4, got {mfu}"));
    }
    for (key, limit) in [("tokens_per_second", tokens_per_second), ("step_time", step_time)] {
        if let Some(limit) = limit.filter(|limit| !(limit.is_finite() && *limit > 0.0)) {
            let what = if key == "step_time" { "a number of seconds" } else { "a number" };
            errors.push(format!("{at}.{key}: must be {what} above 0, got {limit}"));
        }
    }
}

/// One line per entry, such as `llama-*: MFU at least 40 %, a step at most 4.5 s`.
pub(super) fn described(expect: &Expect) -> String {
    let mfu = expect.mfu.map(|mfu| format!("MFU at least {} %", number(100.0 * mfu)));
    let tokens = expect.tokens_per_second.map(|n| format!("at least {} tokens a second", number(n)));
    let step = expect.step_time.map(|secs| format!("a step at most {} s", number(secs)));
    let limits: Vec<String> = [mfu, tokens, step].into_iter().flatten().collect();
    format!("{}: {}", expect.run, limits.join(", "))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;

    fn mistakes(yaml: &str) -> String {
        Config::parse(Path::new("alerter.yml"), yaml).unwrap_err().to_string()
    }

    #[test]
    fn what_is_expected_reaches_the_detector_and_is_shown() {
        let yaml = "expect:\n  - {run: 'llama-*', mfu: 0.40, step_time: 4.5}\n  - {run: '*', tokens_per_second: 1.2e6}\n";
        let c = Config::parse(Path::new("alerter.yml"), yaml).unwrap();
        let below = &c.engine.detectors.below_expectation;
        assert_eq!(below.expect, c.file.expect);
        assert_eq!((below.expect.len(), below.expect[0].mfu), (2, Some(0.4)));
        let shown = c.to_string();
        assert!(shown.contains("expect     llama-*: MFU at least 40 %, a step at most 4.5 s"), "{shown}");
        assert!(shown.contains(" tokens a second"), "{shown}");
    }

    #[test]
    fn mistakes_name_their_place_and_what_is_accepted() {
        let text = mistakes(
            "expect:\n  - {run: a}\n  - {run: '', mfu: 40}\n  - {run: b, tokens_per_second: 0, step_time: -1}\n  - {run: b, mfu: 0.3}\n",
        );
        for part in [
            "expect[0]: expects nothing, expected mfu, tokens_per_second or step_time",
            "expect[1].run: is empty, expected the name of a run; * stands for anything",
            "expect[1].mfu: must be a ratio above 0 and up to 1, such as 0.4, got 40",
            "expect[2].tokens_per_second: must be a number above 0, got 0",
            "expect[2].step_time: must be a number of seconds above 0, got -1",
            "expect[3].run: \"b\" is that of expect[2] too, and the first entry that matches decides",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let text = mistakes("expect:\n  - {run: a, mfuu: 0.4}\n");
        let accepted = "unknown field `mfuu`, expected one of run, mfu, tokens_per_second, step_time";
        assert!(text.contains(accepted), "{text}");
        assert!(mistakes("expect:\n  - {mfu: 0.4}\n").contains("run"));
    }
}
