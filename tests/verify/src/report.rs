//! What a person sees: one line when a step starts, one when it ends, and the verdict at the end.

use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::shell::Workspace;

/// Lines worth repeating on success.
pub(crate) type Closing = Vec<String>;

pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Only with `--full`.
    pub(crate) long: bool,
    pub(crate) run: fn(&Workspace) -> Result<Closing, String>,
}

#[derive(Default)]
pub(crate) struct Report {
    done: Vec<(&'static str, Duration, bool)>,
}

impl Report {
    pub(crate) fn run(&mut self, step: &Step, workspace: &Workspace) -> bool {
        println!("== {:<18} {}", step.name, step.about);
        let _ = std::io::stdout().flush();
        let started = Instant::now();
        let result = (step.run)(workspace);
        let took = started.elapsed();
        match &result {
            Ok(closing) => closing.iter().for_each(|line| println!("   {line}")),
            Err(why) => println!("{why}"),
        }
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        println!("   {verdict} in {}\n", human(took));
        self.done.push((step.name, took, result.is_ok()));
        result.is_ok()
    }

    pub(crate) fn passed(&self) -> bool {
        self.done.iter().all(|(_, _, ok)| *ok)
    }

    pub(crate) fn summary(&self) {
        println!("== summary");
        for (name, took, ok) in &self.done {
            println!("   {} {name:<18} {:>8}", if *ok { "ok    " } else { "FAILED" }, human(*took));
        }
        let total: Duration = self.done.iter().map(|(_, took, _)| *took).sum();
        let failed = self.done.iter().filter(|(_, _, ok)| !ok).count();
        match failed {
            0 => println!("verify: all {} steps passed in {}", self.done.len(), human(total)),
            n => println!("verify: {n} of {} steps FAILED in {}", self.done.len(), human(total)),
        }
    }
}

fn human(d: Duration) -> String {
    let s = d.as_secs();
    if s >= 60 { format!("{}m {:02}s", s / 60, s % 60) } else { format!("{:.1}s", d.as_secs_f64()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        assert_eq!(human(Duration::from_millis(1250)), "1.2s");
        assert_eq!(human(Duration::from_secs(605)), "10m 05s");
    }
}
