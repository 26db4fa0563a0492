//! What a person sees: one line when a step starts, one when it ends, and the verdict at the end.

use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::shell::Workspace;

/// Lines worth repeating on success, and what was left out (see [`not_run`]).
pub(crate) type Closing = Vec<String>;

const NOT_RUN: &str = "NOT RUN: ";
/// Why something may be left out in a full verification as well: no command installs a GPU.
pub(crate) const NO_GPU: &str = "no GPU";

/// A closing line for something that the step did not check.
pub(crate) fn not_run(what: &str) -> String {
    format!("{NOT_RUN}{what}")
}

/// When a step runs. The phases follow each other but for the first two, and the two of the tests,
/// which run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The tools that later phases need.
    Install,
    /// What needs no tools, in order.
    Static,
    /// The tests, which mostly wait.
    Tests,
    /// What bears that they run beside it, in order.
    BesideTests,
    /// What measures time, and the rest, in order.
    Alone,
}

pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Only with `--full`.
    pub(crate) long: bool,
    pub(crate) phase: Phase,
    pub(crate) run: fn(&Workspace) -> Result<Closing, String>,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Passed,
    /// What was run passed, and so many things were not run.
    Partly(usize),
    /// Nothing was run.
    NotRun,
    Failed,
}

impl Ended {
    fn from_result(result: &Result<Closing, String>, full: bool) -> Self {
        let Ok(closing) = result else { return Self::Failed };
        let left_out = || closing.iter().filter(|l| l.starts_with(NOT_RUN));
        match left_out().count() {
            0 => Self::Passed,
            _ if full && left_out().any(|l| !l.contains(NO_GPU)) => Self::Failed,
            n if n == closing.len() => Self::NotRun,
            n => Self::Partly(n),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::Partly(_) => "in part",
            Self::NotRun => "not run",
            Self::Failed => "FAILED",
        }
    }
}

/// A step that was run.
pub(crate) struct Done {
    name: &'static str,
    about: &'static str,
    took: Duration,
    result: Result<Closing, String>,
}

impl Step {
    pub(crate) fn run(&self, workspace: &Workspace) -> Done {
        let started = Instant::now();
        let result = (self.run)(workspace);
        let took = started.elapsed();
        if self.phase == Phase::BesideTests {
            progress(&format!("beside the tests: {} took {}", self.name, human(took)));
        }
        Done { name: self.name, about: self.about, took, result }
    }
}

pub(crate) struct Report {
    full: bool,
    began: Instant,
    done: Vec<(&'static str, Duration, Ended)>,
}

impl Report {
    pub(crate) fn new(full: bool) -> Self {
        Self { full, began: Instant::now(), done: Vec::new() }
    }

    /// Runs a step and prints how it ended; returns whether it passed.
    pub(crate) fn run(&mut self, step: &Step, workspace: &Workspace) -> bool {
        header(step.name, step.about);
        let done = step.run(workspace);
        self.ended(done)
    }

    /// The same of a step that ran beside others.
    pub(crate) fn add(&mut self, done: std::thread::Result<Done>) -> bool {
        let done = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        header(done.name, done.about);
        self.ended(done)
    }

    fn ended(&mut self, Done { name, took, result, .. }: Done) -> bool {
        match &result {
            Ok(closing) => closing.iter().for_each(|line| println!("   {line}")),
            Err(why) => println!("{why}"),
        }
        let ended = Ended::from_result(&result, self.full);
        if ended == Ended::Failed && result.is_ok() {
            println!("   --full leaves nothing out, and the step did");
        }
        println!("   {} in {}\n", ended.word(), human(took));
        self.done.push((name, took, ended));
        ended != Ended::Failed
    }

    pub(crate) fn passed(&self) -> bool {
        self.done.iter().all(|(_, _, ended)| *ended != Ended::Failed)
    }

    pub(crate) fn summary(&self) {
        println!("== summary");
        for (name, took, ended) in &self.done {
            println!("   {:<8} {name:<18} {:>8}", ended.word(), human(*took));
        }
        println!("{}", self.verdict(self.began.elapsed()));
    }

    fn verdict(&self, took: Duration) -> String {
        let total = human(took);
        let steps = self.done.len();
        let count = |is: fn(&Ended) -> bool| self.done.iter().filter(|(_, _, e)| is(e)).count();
        let failed = count(|e| *e == Ended::Failed);
        if failed > 0 {
            return format!("verify: {failed} of {steps} steps FAILED in {total}");
        }
        let (part, none) = (count(|e| matches!(e, Ended::Partly(_))), count(|e| *e == Ended::NotRun));
        if part + none == 0 {
            return format!("verify: all {steps} steps passed in {total}");
        }
        let passed = steps - part - none;
        format!(
            "verify: nothing failed in {total}: {passed} steps passed, {part} passed in part, {none} were not run (see NOT RUN above)"
        )
    }
}

/// Prints a line while steps run beside each other.
pub(crate) fn progress(line: &str) {
    println!("   {line}");
    let _ = std::io::stdout().flush();
}

fn header(name: &str, about: &str) {
    println!("== {name:<18} {about}");
    let _ = std::io::stdout().flush();
}

pub(crate) fn human(d: Duration) -> String {
    let s = d.as_secs();
    if s >= 60 { format!("{}m {:02}s", s / 60, s % 60) } else { format!("{:.1}s", d.as_secs_f64()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(full: bool, results: &[Result<Closing, String>]) -> String {
        let mut report = Report::new(full);
        report.done =
            results.iter().map(|r| ("x", Duration::from_secs(1), Ended::from_result(r, full))).collect();
        let verdict = report.verdict(Duration::from_secs(results.len() as u64));
        assert_eq!(report.passed(), !verdict.contains("FAILED"));
        verdict
    }

    #[test]
    fn what_was_not_run_is_not_ok() {
        let passed = || Ok(vec!["10 passed".to_owned()]);
        let part = || Ok(vec!["10 passed".to_owned(), not_run("torch is not installed")]);
        let none = || Ok(vec![not_run("cargo-deny is not installed")]);
        assert_eq!(report(false, &[passed(), Ok(Vec::new())]), "verify: all 2 steps passed in 2.0s");
        assert_eq!(
            report(false, &[passed(), part(), none()]),
            "verify: nothing failed in 3.0s: 1 steps passed, 1 passed in part, 1 were not run (see NOT RUN above)"
        );
        assert_eq!(report(true, &[passed(), part(), none()]), "verify: 2 of 3 steps FAILED in 3.0s");
        let gpu = || Ok(vec!["10 passed".to_owned(), not_run("test_layers: no GPU")]);
        assert!(report(true, &[passed(), gpu()]).contains("1 passed in part"));
        assert_eq!(report(false, &[part(), Err("no".into())]), "verify: 1 of 2 steps FAILED in 2.0s");
        assert_eq!(Ended::from_result(&none(), false).word(), "not run");
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(human(Duration::from_millis(1250)), "1.2s");
        assert_eq!(human(Duration::from_secs(605)), "10m 05s");
    }
}
