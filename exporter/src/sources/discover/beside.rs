//! Decides which run a file belongs to if no process has it open.
//!
//! The directory of a file does not show its writer: jobs of other nodes write into a shared one,
//! and several jobs of one node may work in it. So a file with the id of a job in its name belongs
//! only to that job. Any other file belongs to the one run that works in the nearest directory
//! above it, or that has such a directory or the file in its arguments. If this is true of several
//! runs, the file belongs to none.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::files::SLACK;
use super::trainer::Trainer;
use crate::processes;
use crate::roots::Roots;
use crate::sources::tail::{self, Candidate};

/// The most words of a command line that are taken as paths.
const MAX_NAMED: usize = 1024;

/// The possible writers of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The trainer with this index.
    Of(usize),
    /// Another job, which may be on another node. The index is that of a trainer nearby.
    OfAnotherJob(usize),
    /// One of these trainers, and it is unknown which.
    OfOneOf(Vec<usize>),
}

/// The working directory of each trainer, and the paths in its arguments.
pub(super) struct Places<'a> {
    trainers: &'a [Trainer],
    /// The paths of each trainer, the working directory first.
    of: Vec<Vec<PathBuf>>,
}

impl<'a> Places<'a> {
    pub(super) fn from_trainers(roots: &Roots, trainers: &'a [Trainer]) -> Self {
        let runs: BTreeSet<&str> = trainers.iter().map(|t| t.run.as_str()).collect();
        let places = |trainer: &Trainer| {
            let Some(cwd) = processes::cwd(roots, trainer.pid).filter(|d| d.parent().is_some()) else {
                return Vec::new();
            };
            // With a single run, nothing has to be distinguished.
            let words = if runs.len() > 1 { processes::arguments(roots, trainer.pid) } else { Vec::new() };
            let named = words.iter().take(MAX_NAMED).filter_map(|word| below(roots, trainer.pid, &cwd, word));
            let named: Vec<PathBuf> = named.collect();
            core::iter::once(cwd).chain(named).collect()
        };
        Self { of: trainers.iter().map(places).collect(), trainers }
    }

    /// The working directory of a trainer.
    pub(super) fn cwd(&self, at: usize) -> Option<&PathBuf> {
        self.of.get(at)?.first()
    }

    /// The possible writers of the file; `None` if no process here can have written it.
    pub(super) fn whose(&self, file: &Candidate) -> Option<Whose> {
        let wrote = |t: &Trainer| t.begun.is_some_and(|begun| file.written + SLACK >= begun);
        let near = |places: &[PathBuf]| {
            let above = places.iter().filter(|place| file.path.starts_with(place));
            above.map(|place| place.components().count()).max()
        };
        let all = self.trainers.iter().zip(&self.of).enumerate();
        let mut found: Vec<(usize, &Trainer, usize)> =
            all.filter(|(_, (t, _))| wrote(t)).filter_map(|(at, (t, of))| Some((at, t, near(of)?))).collect();
        let beside = found.first()?.0;
        let of_job = |t: &Trainer| {
            t.named.job.as_ref().is_some_and(|job| tail::is_of_job(&file.path, &job.id, &t.named.unnamed))
        };
        if tail::names_a_job(&file.path) || found.iter().any(|(_, t, _)| of_job(t)) {
            found.retain(|(_, t, _)| of_job(t));
        }
        let owns = |t: &Trainer| t.view.as_ref().is_some_and(|view| view.user() == file.owner);
        if found.iter().any(|(_, t, _)| owns(t)) {
            found.retain(|(_, t, _)| owns(t));
        }
        let nearest = found.iter().map(|(_, _, near)| *near).max();
        found.retain(|(_, _, near)| Some(*near) == nearest);
        let Some((at, first, _)) = found.first() else { return Some(Whose::OfAnotherJob(beside)) };
        if found.iter().all(|(_, t, _)| t.run == first.run) {
            return Some(Whose::Of(*at));
        }
        Some(Whose::OfOneOf(found.iter().map(|(at, _, _)| *at).collect()))
    }
}

/// The path in an argument of a command line (`out`, `--output_dir=out`, `./out/`), if it is not
/// the root directory itself.
fn below(roots: &Roots, pid: u32, cwd: &Path, word: &str) -> Option<PathBuf> {
    let word = word.rsplit_once('=').map_or(word, |(_, value)| value);
    if word.is_empty() || word.starts_with('-') {
        return None;
    }
    let path = Path::new(word);
    let full = if path.is_absolute() { processes::seen_from_here(roots, pid, path) } else { cwd.join(path) };
    let mut out = PathBuf::new();
    for part in full.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            _ => out.push(part),
        }
    }
    out.parent().is_some().then_some(out)
}
