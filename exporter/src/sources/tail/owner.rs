//! Finds the run of a file from its writers: the rule's answer for the processes that have it open.
//!
//! A launcher and the trainer that it started write to the same file, and so do the children of a
//! trainer. Before the first step, the file belongs to the innermost of these processes;
//! afterwards, to the one that wrote the steps.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use stepwatch_wire::run_name::{self, By, Named};

use super::writers::{Process, Processes};
use super::{TailConfig, name};
use crate::identity::{self, Claim};
use crate::pipes;
use crate::principal::Principal;
use crate::roots::Roots;
use crate::sources::sink::Sink;

/// The most writers of one file that are inspected.
const MAX_ASKED: usize = 64;
/// How often the writers of a file are checked for having exited. A trainer takes longer to reach
/// its first step.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The run of a log, as far as it is known. The user of the file is kept elsewhere.
#[derive(Debug, Default)]
pub(super) struct Owner {
    /// The name of its run; `None` before the first lookup.
    pub(super) run: Option<String>,
    /// Whether the rule gave the run, rather than only the path.
    pub(super) ruled: bool,
    /// The run that the rule gave before a restart of the exporter.
    pub(super) before: Option<String>,
    /// The writers at the last lookup.
    writers: Vec<Process>,
    /// The writer to whose run the file belongs.
    of: Option<Process>,
    /// Whether trainers of other runs write to it as well.
    pub(super) several: bool,
    /// Whether steps were read since.
    trained: bool,
    /// The name of the run while one of several writers is left.
    shared: Option<String>,
    /// Whether all of them were found to have exited.
    left: bool,
    looked: Option<Instant>,
}

impl Owner {
    /// Whether a process that wrote to it still runs.
    pub(super) fn is_written(&self, processes: &Processes) -> bool {
        self.writers.iter().any(|w| processes.runs(*w))
    }

    /// Whether processes wrote to it, and all have exited.
    pub(super) fn is_left(&self, processes: &Processes) -> bool {
        !self.writers.is_empty() && !self.is_written(processes)
    }

    /// Whether the process to whose run it belongs has exited.
    pub(super) fn is_deserted(&self, processes: &Processes) -> bool {
        self.of.is_some_and(|of| !processes.runs(of))
    }

    /// Whether its writers may still start the trainer, because no step was read.
    pub(super) fn may_launch(&self) -> bool {
        !self.trained && !self.writers.is_empty()
    }

    /// Records that a step was read.
    pub(super) fn trains(&mut self) {
        self.trained = true;
    }

    /// Whether all writers have exited. It is checked periodically, and whenever the file has
    /// grown.
    pub(super) fn is_found_left(&mut self, now: Instant, grown: bool, processes: &Processes) -> bool {
        let due = self.looked.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_EVERY);
        if !self.left && (grown || due) {
            self.looked = Some(now);
            self.left = self.is_left(processes);
        }
        self.left
    }

    /// Forgets the writers, because they do not apply to the next writer.
    pub(super) fn begin_anew(&mut self) {
        *self = Self { looked: self.looked, ..Self::default() };
    }

    /// Sets the run of the file from its writers. Returns whether the run changed; what was
    /// published under the file's own name is merged into it.
    pub(super) fn settle(
        &mut self,
        config: &TailConfig,
        path: &Path,
        writers: Vec<Process>,
        asked: Asked<'_>,
    ) -> bool {
        let gone = writers.is_empty() && !self.writers.is_empty();
        self.looked = Some(asked.now);
        self.left = false;
        if gone {
            // The remaining text was written by those that exited.
            self.writers.clear();
            return false;
        }
        // A launcher that stays alone has no run of its own.
        let same = self.run.is_some()
            && (writers == self.writers
                || self.of.is_some() && writers.iter().all(|w| self.writers.contains(w)));
        if !writers.iter().any(|w| self.writers.contains(w)) {
            self.shared = None;
        }
        self.writers = writers;
        self.several &= self.writers.len() > 1;
        // A shell may have become a script since, or started one before its `tee`. Before the first
        // step, a launcher may have started a trainer.
        let steady = self.ruled && (self.of.is_some() || self.trained);
        if same && (steady || self.writers.is_empty()) {
            return false;
        }
        let claim = self.claim(config, path, asked);
        let run = asked.sink.claim(asked.unix, claim);
        let before = self.run.replace(run.clone());
        let changed = before.is_some_and(|before| before != run);
        self.trained &= !changed;
        changed
    }

    /// The scripts and jobs that write the file: those that have it open, those that write through
    /// a pipe, or the process in its name.
    fn scripts(&self, path: &Path, roots: &Roots) -> Vec<Script> {
        let asked = |pids: &mut dyn Iterator<Item = u32>, how| -> Vec<Script> {
            let named = |pid| Some(Script { pid, how, named: identity::script_named(roots, pid)? });
            pids.take(MAX_ASKED).filter_map(named).collect()
        };
        let writers = || self.writers.iter().take(MAX_ASKED).map(|w| w.pid);
        let mut found = asked(&mut writers(), "writes it");
        if found.is_empty() {
            let before: BTreeSet<u32> = writers().flat_map(|pid| pipes::before(roots, pid)).collect();
            found = asked(&mut before.into_iter(), "writes it through a pipe");
        }
        if found.is_empty() && self.writers.is_empty() {
            found = asked(&mut name::writer(path, roots).into_iter(), "is in its name");
        }
        found
    }

    /// The trainers among several scripts: those that started no other, or the one that wrote the
    /// steps. If unrelated processes of other runs write too, the log counts as mixed.
    fn trainers(&mut self, mut found: Vec<Script>, roots: &Roots) -> Vec<Script> {
        let of = self.of.filter(|_| self.trained).map(|of| of.pid);
        let steady = found.iter().find(|script| of == Some(script.pid));
        if let Some(steady) = steady.map(|script| script.named.unnamed.clone()) {
            self.several = found.iter().any(|s| s.named.unnamed != steady && !is_of_family(roots, s.pid, of));
            found.retain(|script| script.named.unnamed == steady);
            return found;
        }
        let above: BTreeSet<u32> = found.iter().flat_map(|s| identity::ancestors(roots, s.pid)).collect();
        found.retain(|script| !above.contains(&script.pid));
        self.several = are_several(&found);
        found
    }

    /// The name of the run of several writers: that of the path with a mark of the first writer, so
    /// that later writers do not continue it.
    fn shared(&mut self, path: &Path, roots: &Roots) -> String {
        let first = self.writers.iter().min_by_key(|w| w.start);
        let mark = || Some(run_name::marks(&identity::chain(roots, first?.pid))?.process);
        let run = name::run_of(path);
        let run = self.shared.take().or_else(|| Some(run_name::beside(&run, &mark()?))).unwrap_or(run);
        self.shared.insert(run).clone()
    }

    fn claim(&mut self, config: &TailConfig, path: &Path, asked: Asked<'_>) -> Claim {
        self.ruled = true;
        let mut found = self.scripts(path, asked.roots);
        self.several = false;
        if are_several(&found) {
            found = self.trainers(found, asked.roots);
        }
        let several = are_several(&found);
        let writer = found.into_iter().next().filter(|_| !several);
        self.of = writer.as_ref().and_then(|of| self.writers.iter().find(|w| w.pid == of.pid).copied());
        let mut claim = Claim {
            kind: "tail".to_owned(),
            source: path.display().to_string(),
            pid: writer.as_ref().map(|w| w.pid),
            job: None,
            run: String::new(),
            by: None,
            why: String::new(),
            unnamed: None,
            principal: asked.principal,
        };
        let several_nodes = writer.as_ref().is_some_and(|w| w.named.several_nodes);
        if let Some(Script { pid, how, named }) = writer {
            claim.why = format!("pid {pid} {how}: {}", named.why);
            claim.job = named.job.map(|job| job.id);
            (claim.run, claim.by, claim.unnamed) = (named.run, Some(named.by), Some(named.unnamed));
        } else if let Some((id, unnamed)) =
            asked.sink.jobs(asked.principal).into_iter().find(|(id, unnamed)| is_of_job(path, id, unnamed))
        {
            claim.why = format!("its name has the id of job {id}");
            (claim.job, claim.by, claim.unnamed) = (Some(id), Some(By::Job), Some(unnamed.clone()));
            claim.run = unnamed;
        } else if let Some(found) = config.found.as_ref().filter(|_| !several) {
            claim.run.clone_from(found);
            claim.why = "found with a process of the run".into();
        } else if let Some(before) = self.before.as_ref().filter(|_| !several) {
            claim.run.clone_from(before);
            claim.why = "as it was before this exporter started; who wrote it is gone".into();
        } else {
            self.ruled = false;
            (claim.run, claim.why) = if several {
                let why = "named by its path and its first writer, for processes of several runs write it";
                (self.shared(path, asked.roots), why.to_owned())
            } else {
                let why = "named by its path, for no process of this node is known to write it";
                (name::run_of(path), why.to_owned())
            };
        }
        if let Some(run) = &config.run {
            (claim.run, claim.by) = (run.clone(), Some(By::Name));
            claim.why = "named by run: of its tail".into();
            if let Some(unnamed) = claim.unnamed.take_if(|_| several_nodes) {
                // The rename does not reach ranks on other nodes, which would stay under the other
                // name.
                claim.why =
                    format!("{}; its job is on other nodes too, and is called {unnamed} there", claim.why);
            }
        }
        claim
    }
}

/// A process that runs a script or belongs to a job.
struct Script {
    pid: u32,
    /// Its relation to the file.
    how: &'static str,
    named: Named,
}

/// Whether one process is an ancestor of the other.
fn is_of_family(roots: &Roots, pid: u32, other: Option<u32>) -> bool {
    let started = |above: u32, below: u32| identity::ancestors(roots, below).into_iter().any(|a| a == above);
    other.is_some_and(|other| started(pid, other) || started(other, pid))
}

fn are_several(found: &[Script]) -> bool {
    found.windows(2).any(|w| w[0].named.unnamed != w[1].named.unnamed)
}

/// The facts from which the run is found.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) roots: &'a Roots,
    pub(super) processes: &'a Processes,
    pub(super) sink: &'a dyn Sink,
    pub(super) now: Instant,
    pub(super) unix: f64,
    /// The user who reports the file.
    pub(super) principal: Principal,
}

/// The words in a file's name.
fn words(text: &str) -> Vec<&str> {
    text.split(|c: char| !c.is_alphanumeric()).collect()
}

fn stem(path: &Path) -> String {
    path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}

fn is_number(word: &&str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit())
}

/// Whether the name of a file has the id of any job, known or not, such as `slurm-101.out`.
pub(in crate::sources) fn names_a_job(path: &Path) -> bool {
    let stem = stem(path);
    let mut words = words(&stem).into_iter();
    words.next() == Some("slurm") && words.next().is_some_and(|word| is_number(&word))
}

/// Whether a file belongs to a job by its name: `slurm-101.out`, `slurm-100_3.out` of a task of an
/// array, and `pretrain_101.log` of a job called pretrain.
pub(in crate::sources) fn is_of_job(path: &Path, id: &str, unnamed: &str) -> bool {
    let stem = stem(path);
    let (stem, id, title) = (words(&stem), words(id), words(unnamed));
    if !id.iter().any(is_number) {
        return false;
    }
    if stem.first() == Some(&"slurm") {
        // All tasks of an array may write one file.
        let ids = stem[1..].iter().take_while(|word| is_number(word)).take(id.len());
        let same = ids.clone().zip(&id).filter(|(a, b)| a == b).count();
        return same > 0 && same == ids.count();
    }
    stem.windows(id.len()).any(|w| w == id) && title.first().is_some_and(|title| stem.contains(title))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_named_after_their_job() {
        for (path, want) in [
            ("/logs/slurm-101.out", true),
            ("/logs/pretrain_101.log", true),
            ("/logs/pretrain-101.3.err", true),
            ("/logs/slurm-1011.out", false),
            ("/logs/step-101.log", false),
            ("/logs/train.log", false),
            ("", false),
        ] {
            assert_eq!(is_of_job(Path::new(path), "101", "pretrain-101"), want, "{path}");
        }
        for (path, want) in [
            ("/logs/slurm-100_3.out", true),
            ("/logs/slurm-100.out", true),
            ("/logs/slurm-100_4.out", false),
            ("/logs/slurm-3.out", false),
            ("/logs/sweep-100_3.log", true),
        ] {
            assert_eq!(is_of_job(Path::new(path), "100_3", "sweep-100_3"), want, "{path}");
        }
        let names = |path| names_a_job(Path::new(path));
        assert_eq!(
            ["slurm-7.out", "/x/slurm-7_1.err", "slurm.out", "a-7.log"].map(names),
            [true, true, false, false]
        );
    }
}
