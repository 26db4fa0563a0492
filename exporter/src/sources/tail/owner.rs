//! Which run a file belongs to, by its writers: the rule's answer for the processes that have it
//! open.
//!
//! A launcher and the trainer that it started write to the same file, and so do the processes that
//! a trainer starts. Before the first step, the file belongs to the innermost of these processes;
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

/// Writers of one file that are asked about.
const MAX_ASKED: usize = 64;
/// How often it is looked whether the writers of a file are still there. A trainer takes longer to
/// come to its first step.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The run that a file is a log of, as far as it is known. Whose user the file is, is elsewhere.
#[derive(Debug, Default)]
pub(super) struct Owner {
    /// What its run is called; `None` until it was asked.
    pub(super) run: Option<String>,
    /// The rule gave it, and not only the path.
    pub(super) ruled: bool,
    /// What it was of, by the rule, in an earlier life of the exporter.
    pub(super) before: Option<String>,
    /// Who wrote to it then.
    writers: Vec<Process>,
    /// The one of them whose run it is.
    of: Option<Process>,
    /// Trainers of other runs write to it, too.
    pub(super) several: bool,
    /// Steps came since.
    trained: bool,
    /// What its run is called as long as one of several writers is left.
    shared: Option<String>,
    /// It was seen that none of them is left.
    left: bool,
    looked: Option<Instant>,
}

impl Owner {
    /// A process that wrote to it still runs.
    pub(super) fn is_written(&self, processes: &Processes) -> bool {
        self.writers.iter().any(|w| processes.runs(*w))
    }

    /// Processes wrote to it, and none of them is left.
    pub(super) fn is_left(&self, processes: &Processes) -> bool {
        !self.writers.is_empty() && !self.is_written(processes)
    }

    /// The one whose run it is has gone, whoever else is left.
    pub(super) fn is_deserted(&self, processes: &Processes) -> bool {
        self.of.is_some_and(|of| !processes.runs(of))
    }

    /// Somebody writes to it, and may yet start the trainer.
    pub(super) fn may_launch(&self) -> bool {
        !self.trained && !self.writers.is_empty()
    }

    /// A step was read.
    pub(super) fn trains(&mut self) {
        self.trained = true;
    }

    /// Whether it is left, looked at from time to time, and whenever there is something to read.
    pub(super) fn is_found_left(&mut self, now: Instant, grown: bool, processes: &Processes) -> bool {
        let due = self.looked.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_EVERY);
        if !self.left && (grown || due) {
            self.looked = Some(now);
            self.left = self.is_left(processes);
        }
        self.left
    }

    /// What is known is about a writer that is gone, and does not apply to the next writer.
    pub(super) fn begin_anew(&mut self) {
        *self = Self { looked: self.looked, ..Self::default() };
    }

    /// Takes down whose the file is. What was published under the file's own name, while its writer
    /// was not known, goes along.
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
            // What is left to read was written by those who are gone.
            self.writers.clear();
            return false;
        }
        // A launcher that is left says nothing of a run of its own.
        let same = self.run.is_some()
            && (writers == self.writers
                || self.of.is_some() && writers.iter().all(|w| self.writers.contains(w)));
        if !writers.iter().any(|w| self.writers.contains(w)) {
            self.shared = None;
        }
        self.writers = writers;
        self.several &= self.writers.len() > 1;
        // A shell may have become a script since, or started one before its `tee`; and before there
        // are steps a launcher may have started a trainer.
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

    /// Scripts and jobs that write the file: by having it open, by a pipe to a process that has it
    /// open, or by the file's name.
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

    /// Those of several that are trainers: none that started another, unless the steps are its. Of
    /// those that have nothing to do with the one whose the steps are, the log stays a mixture.
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

    /// What the run of several writers is called: by the path, and by the first of them, so that
    /// those who write it next do not go on with it.
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
                // Ranks of other nodes are not notified, and would be left behind under the other
                // name.
                claim.why =
                    format!("{}; its job is on other nodes too, and is called {unnamed} there", claim.why);
            }
        }
        claim
    }
}

/// A process that runs a script, or is of a job.
struct Script {
    pid: u32,
    /// What it has to do with the file.
    how: &'static str,
    named: Named,
}

/// Whether one process started the other.
fn is_of_family(roots: &Roots, pid: u32, other: Option<u32>) -> bool {
    let started = |above: u32, below: u32| identity::ancestors(roots, below).into_iter().any(|a| a == above);
    other.is_some_and(|other| started(pid, other) || started(other, pid))
}

fn are_several(found: &[Script]) -> bool {
    found.windows(2).any(|w| w[0].named.unnamed != w[1].named.unnamed)
}

/// What is needed to find out.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) roots: &'a Roots,
    pub(super) processes: &'a Processes,
    pub(super) sink: &'a dyn Sink,
    pub(super) now: Instant,
    pub(super) unix: f64,
    /// Whose the file is.
    pub(super) principal: Principal,
}

/// The words of a file's name.
fn words(text: &str) -> Vec<&str> {
    text.split(|c: char| !c.is_alphanumeric()).collect()
}

fn stem(path: &Path) -> String {
    path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}

fn is_number(word: &&str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit())
}

/// Whether the name of a file shows that it is of a job, known or not: `slurm-101.out`.
pub(in crate::sources) fn names_a_job(path: &Path) -> bool {
    let stem = stem(path);
    let mut words = words(&stem).into_iter();
    words.next() == Some("slurm") && words.next().is_some_and(|word| is_number(&word))
}

/// `slurm-101.out`, `slurm-100_3.out` of a task of an array, and `pretrain_101.log` of a job called
/// pretrain.
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
