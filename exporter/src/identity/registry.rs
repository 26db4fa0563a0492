//! Records which process reports which run and why, as `stepwatch-exporter runs` prints it.
//!
//! The name that the rule gives a process without a given name joins it to everything else of its
//! job, because the rule gives all sources of a job the same name. A name given to one of them
//! becomes the name of all, unless there are two given names: then each of those is a run of its
//! own, and sources without a name keep the rule's.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use stepwatch_wire::run_name::{By, MAX_CHARS};
use stepwatch_wire::words;

use crate::lock::Locked as _;
use crate::principal::Principal;
use crate::training::Life;

/// The most sources kept. Above it, the user with the most loses the one with the oldest report.
const MAX_CLAIMS: usize = 2048;
/// The most jobs kept. Above it, one is removed by the same rule.
const MAX_GROUPS: usize = 1024;
/// The most spellings of the name of one job that are kept.
const MAX_SPELLINGS: usize = 8;
/// Seconds without reports after which any user may take over a job.
const FORGOTTEN_SECONDS: f64 = 900.0;
/// The most given names kept of one job.
const MAX_NAMES: usize = 16;
/// The most bytes of the reason why a source belongs to a run, and of its kind.
const MAX_WORDS_BYTES: usize = 200;
/// The most bytes of a job's id and name. The rule makes none longer.
const MAX_JOB_BYTES: usize = 4 * MAX_CHARS;
/// The length of `-20261122-223542-3fa9c1d2`: the start time of a process and its unique mark.
const STAMP: usize = 25;
const MARK: usize = 9;

/// A source that declares its run.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// For example `client`, `tail` or `otlp`.
    pub kind: String,
    /// The source within its kind, such as a path or a process.
    pub source: String,
    pub pid: Option<u32>,
    pub job: Option<String>,
    pub run: String,
    pub by: Option<By>,
    pub why: String,
    /// The name that the rule gives without a given name; `None` if no process is known.
    pub unnamed: Option<String>,
    /// The sender that makes the claim.
    pub principal: Principal,
}

/// A change of the name of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renamed {
    pub from: String,
    pub to: String,
}

/// A run as the command `runs` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    pub run: String,
    /// The number of the run's attempt, from 1; `None` before the first report.
    pub attempt: Option<u32>,
    pub step: Option<i64>,
    /// The uid of the run's owner, if it is known.
    #[serde(default)]
    pub uid: Option<u32>,
    pub jobs: Vec<String>,
    pub sources: Vec<SourceRow>,
    /// Remarks on the run for people.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceRow {
    pub kind: String,
    pub source: String,
    pub pid: Option<u32>,
    pub why: String,
}

/// The record of all claims. Clones of the hub share it.
#[derive(Debug, Default)]
pub struct Registry {
    state: Mutex<State>,
    /// Whether any run has another name than its sources declare.
    renames: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    claims: BTreeMap<(String, String), (f64, Claim)>,
    /// The key is the name that the rule gives without a given name.
    groups: BTreeMap<String, Group>,
    /// From the declared name to the name of the run and the principal who declared it.
    aliases: BTreeMap<String, (String, Principal)>,
    /// The principals whose source or job was dropped to make room since the last query.
    forgotten: Vec<Principal>,
}

#[derive(Debug, Default)]
struct Group {
    heard: f64,
    /// The owner, as of a run. The claim of another user is not joined to the job.
    owner: Principal,
    /// Whether another user claimed the job too: then only the owner's reports get the other name.
    disputed: bool,
    /// The first spelling of the name: two readers of one clock may differ by a second.
    unnamed: String,
    names: BTreeSet<String>,
    /// The names of this job that are keys of `aliases`.
    spelled: BTreeSet<String>,
}

/// The entry to drop: of the user with the most, the one reported longest ago.
fn to_forget<'a, K: Clone + 'a>(
    all: impl Iterator<Item = (&'a K, Principal, f64)> + Clone,
    newcomer: Principal,
) -> Option<(K, Principal)> {
    let mut held = BTreeMap::<Principal, usize>::new();
    all.clone().for_each(|(_, principal, _)| *held.entry(principal).or_default() += 1);
    let (most, _) = held.into_iter().max_by_key(|(principal, count)| (*count, *principal == newcomer))?;
    let oldest = all.filter(|(_, principal, _)| *principal == most).min_by(|a, b| a.2.total_cmp(&b.2));
    oldest.map(|(key, ..)| (key.clone(), most))
}

impl Claim {
    /// Cleans the texts for display and cuts them to their limits, because thousands are kept.
    pub fn clean(self) -> Self {
        let line = words::into_line;
        let name = |name: String| cut(line(name), MAX_JOB_BYTES);
        Self {
            source: line(self.source),
            kind: cut(line(self.kind), MAX_WORDS_BYTES),
            job: self.job.map(name),
            run: line(self.run),
            why: cut(line(self.why), MAX_WORDS_BYTES),
            unnamed: self.unnamed.map(name),
            ..self
        }
    }

    /// The key of the claim. A process that takes over a rank replaces its predecessor.
    fn key(&self) -> (String, String) {
        let rank = self.source.split_once(", ").map_or(self.source.as_str(), |(_, rank)| rank);
        let source = match self.kind.as_str() {
            "client" | "launcher" => {
                format!("{} {} {rank}", self.run, self.unnamed.as_deref().unwrap_or_default())
            }
            // One file may be left out on account of several runs.
            "left" => format!("{} {}", self.run, self.source),
            _ => self.source.clone(),
        };
        (self.kind.clone(), source)
    }
}

impl Registry {
    /// Records which run a source belongs to. Returns the current name of the run, and the runs
    /// that were renamed by it.
    pub fn claim(&self, now: f64, claim: Claim) -> (String, Vec<Renamed>) {
        let mut state = self.state.locked();
        let (run, renamed) = state.join(now, &claim);
        let key = claim.key();
        if !state.claims.contains_key(&key) && state.claims.len() >= MAX_CLAIMS {
            let all = state.claims.iter().map(|(key, (heard, claim))| (key, claim.principal, *heard));
            if let Some((key, whose)) = to_forget(all, claim.principal) {
                state.claims.remove(&key);
                state.forgotten.push(whose);
            }
        }
        state.claims.insert(key, (now, claim));
        self.renames.store(!state.aliases.is_empty(), Ordering::Release);
        (run, renamed)
    }

    /// Takes the principals whose sources and jobs were dropped to make room.
    pub fn forgotten(&self) -> Vec<Principal> {
        std::mem::take(&mut self.state.locked().forgotten)
    }

    /// Moves the sources that a process is known to write to the run `own`, and returns their
    /// names. The process itself declares its run.
    pub fn set_apart(&self, pid: u32, run: &str, own: &str) -> Vec<String> {
        let mut state = self.state.locked();
        let theirs = state.claims.values_mut().map(|(_, claim)| claim).filter(|claim| {
            claim.pid == Some(pid)
                && matches!(claim.by, Some(By::Job | By::Launch))
                && claim.run == run
                && !matches!(claim.kind.as_str(), "client" | "launcher")
        });
        let put = |claim: &mut Claim| {
            own.clone_into(&mut claim.run);
            claim.unnamed = Some(own.to_owned());
            claim.source.clone()
        };
        theirs.map(put).collect()
    }

    /// The current name of a run that `principal` calls `run`.
    pub fn canonical<'a>(&self, principal: Principal, run: &'a str) -> Cow<'a, str> {
        if !self.renames.load(Ordering::Acquire) {
            return Cow::Borrowed(run);
        }
        let found = self.state.locked().called(principal, run).map(str::to_owned);
        found.map_or(Cow::Borrowed(run), Cow::Owned)
    }

    /// The run of a job of which a process has been seen.
    pub fn of_job(&self, id: &str) -> Option<String> {
        let state = self.state.locked();
        let claims = state.claims.values().map(|(_, c)| c);
        let of = claims.filter(|c| c.job.as_deref() == Some(id)).find_map(|c| c.unnamed.clone())?;
        Some(state.called(Principal::Exporter, &of).map(str::to_owned).unwrap_or(of))
    }

    /// Jobs reported by senders that `principal` accepts, each with the run name that the rule
    /// gives it.
    pub fn jobs(&self, principal: Principal) -> Vec<(String, String)> {
        let state = self.state.locked();
        let claims =
            state.claims.values().map(|(_, c)| c).filter(|c| principal.joined_by(c.principal).is_some());
        let found: BTreeSet<_> = claims.filter_map(|c| Some((c.job.clone()?, c.unnamed.clone()?))).collect();
        found.into_iter().collect()
    }

    /// The sources of every run in `known`.
    pub fn rows(&self, known: &BTreeMap<String, Life>) -> Vec<RunRow> {
        let state = self.state.locked();
        let mut rows: BTreeMap<String, RunRow> =
            known.iter().map(|(run, life)| (run.clone(), RunRow::new(run, life))).collect();
        for (_, claim) in state.claims.values() {
            let run = state.called(claim.principal, &claim.run).unwrap_or(&claim.run);
            let Some(row) = rows.get_mut(run) else { continue };
            let joined = run != claim.run;
            let why = if joined {
                format!("{}, and its job is called {run}", claim.why)
            } else {
                claim.why.clone()
            };
            row.jobs.extend(claim.job.clone().filter(|job| !row.jobs.contains(job)));
            let (kind, source) = (claim.kind.clone(), claim.source.clone());
            row.sources.push(SourceRow { kind, source, pid: claim.pid, why });
            let group = claim.unnamed.as_ref().and_then(|u| state.groups.get(key(u).as_ref()));
            row.notes.extend(
                group
                    .filter(|g| g.names.len() > 1)
                    .map(|g| {
                        let names: Vec<&str> = g.names.iter().map(String::as_str).collect();
                        format!(
                            "sources of {} were given {} names: {}",
                            g.unnamed,
                            names.len(),
                            names.join(", ")
                        )
                    })
                    .filter(|note| !row.notes.contains(note)),
            );
        }
        rows.into_values().collect()
    }
}

impl State {
    fn called(&self, principal: Principal, run: &str) -> Option<&str> {
        let (called, by) = self.aliases.get(run)?;
        let disputed = || self.groups.get(key(run).as_ref()).is_some_and(|group| group.disputed);
        (*by == principal || by.joined_by(principal).is_some() && !disputed()).then_some(called)
    }

    /// Whether a claim may join the job that it declares: the principals must agree.
    fn is_of(&mut self, now: f64, principal: Principal, unnamed: &str) -> bool {
        let Some(group) = self.groups.get_mut(key(unnamed).as_ref()) else { return true };
        if group.owner.joined_by(principal).is_some() {
            return true;
        }
        if now - group.heard < FORGOTTEN_SECONDS {
            group.disputed = true;
            return false;
        }
        group.spelled.iter().for_each(|said| drop(self.aliases.remove(said)));
        *group = Group { owner: principal, ..Group::default() };
        true
    }

    fn join(&mut self, now: f64, claim: &Claim) -> (String, Vec<Renamed>) {
        let unnamed = claim.unnamed.as_ref().filter(|unnamed| self.is_of(now, claim.principal, unnamed));
        let Some(unnamed) = unnamed else {
            let called = self.called(claim.principal, &claim.run).unwrap_or(&claim.run);
            return (called.to_owned(), Vec::new());
        };
        if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(key(unnamed).as_ref()) {
            self.forget_group(claim.principal);
        }
        let new = || Group { owner: claim.principal, ..Group::default() };
        let group = self.groups.entry(key(unnamed).into_owned()).or_insert_with(new);
        group.heard = now;
        group.owner = group.owner.joined_by(claim.principal).unwrap_or(claim.principal);
        let owner = group.owner;
        if group.unnamed.is_empty() {
            group.unnamed.clone_from(unnamed);
        }
        if claim.by == Some(By::Name) && group.names.len() < MAX_NAMES {
            group.names.insert(claim.run.clone());
        }
        let (first, only) =
            (group.unnamed.clone(), group.names.iter().next().filter(|_| group.names.len() == 1));
        let called = only.cloned().unwrap_or_else(|| first.clone());
        let mut renamed = Vec::new();
        for said in BTreeSet::from([unnamed.clone(), first]) {
            if said == called {
                group.spelled.remove(&said);
                self.aliases.remove(&said);
                continue;
            }
            if group.spelled.len() >= MAX_SPELLINGS && !group.spelled.contains(&said) {
                continue;
            }
            group.spelled.insert(said.clone());
            if self
                .aliases
                .insert(said.clone(), (called.clone(), owner))
                .is_none_or(|(before, _)| before != called)
            {
                renamed.push(Renamed { from: said, to: called.clone() });
            }
        }
        let run = if claim.by == Some(By::Name) { claim.run.clone() } else { called };
        (run, renamed)
    }

    fn forget_group(&mut self, newcomer: Principal) {
        let all = self.groups.iter().map(|(key, group)| (key, group.owner, group.heard));
        let Some((key, whose)) = to_forget(all, newcomer) else { return };
        self.forgotten.push(whose);
        let spelled = self.groups.remove(&key).map(|group| group.spelled).unwrap_or_default();
        spelled.iter().for_each(|said| drop(self.aliases.remove(said)));
    }
}

/// Cuts a text to at most `limit` bytes, between characters.
fn cut(mut text: String, limit: usize) -> String {
    text.truncate(text.floor_char_boundary(limit));
    text
}

impl RunRow {
    fn new(run: &str, life: &Life) -> Self {
        let owner = life.owner;
        let note = |(by, events): (&Principal, &u64)| {
            format!("{events} events of {by} were refused: the run is that of {owner}")
        };
        Self {
            run: run.to_owned(),
            attempt: Some(life.attempt + 1),
            step: life.step,
            uid: owner.uid(),
            jobs: Vec::new(),
            sources: Vec::new(),
            notes: life.refused.iter().map(note).collect(),
        }
    }
}

/// The part of a rule's name that identifies the job. If the name ends in a time and a mark, it is
/// everything but the time.
fn key(unnamed: &str) -> Cow<'_, str> {
    let split = unnamed.len().checked_sub(STAMP).filter(|at| unnamed.is_char_boundary(*at));
    let Some((script, end)) = split.map(|at| unnamed.split_at(at)) else { return Cow::Borrowed(unnamed) };
    let is_stamp = end.bytes().enumerate().all(|(i, b)| match i {
        0 | 9 | 16 => b == b'-',
        1..16 => b.is_ascii_digit(),
        _ => b.is_ascii_hexdigit(),
    });
    if is_stamp { Cow::Owned(format!("{script}{}", &end[STAMP - MARK..])) } else { Cow::Borrowed(unnamed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(source: &str, run: &str, by: By, unnamed: &str) -> Claim {
        Claim {
            kind: "client".into(),
            source: source.into(),
            pid: None,
            job: Some("101".into()),
            run: run.into(),
            by: Some(by),
            why: by.to_string(),
            unnamed: Some(unnamed.into()),
            principal: Principal::User(4_000_001),
        }
    }

    fn life(step: Option<i64>) -> Life {
        Life { attempt: 1, step, ..Life::default() }
    }

    #[test]
    fn a_name_that_one_source_was_given_is_that_of_all() {
        let r = Registry::default();
        assert_eq!(r.claim(1.0, claim("a", "pretrain-101", By::Job, "pretrain-101")).0, "pretrain-101");
        let (run, renamed) = r.claim(2.0, claim("b", "llama", By::Name, "pretrain-101"));
        assert_eq!((run.as_str(), renamed.len()), ("llama", 1));
        assert_eq!(r.canonical(Principal::Exporter, "pretrain-101"), "llama");
        assert_eq!(r.of_job("101").as_deref(), Some("llama"));
        assert_eq!(
            r.claim(3.0, claim("c", "pretrain-101", By::Job, "pretrain-101")),
            ("llama".into(), vec![])
        );
        let rows = r.rows(&BTreeMap::from([("llama".to_owned(), life(Some(7)))]));
        assert_eq!((rows[0].attempt, rows[0].sources.len(), rows[0].notes.len()), (Some(2), 3, 0));
        let a = rows[0].sources.iter().find(|s| s.source == "a").unwrap();
        assert_eq!(a.why, "job, and its job is called llama");
    }

    #[test]
    fn two_names_are_two_runs() {
        let r = Registry::default();
        r.claim(1.0, claim("a", "x", By::Name, "pretrain-101"));
        assert_eq!(r.claim(2.0, claim("b", "y", By::Name, "pretrain-101")).0, "y");
        assert_eq!(r.claim(3.0, claim("c", "pretrain-101", By::Job, "pretrain-101")).0, "pretrain-101");
        assert_eq!(r.canonical(Principal::Exporter, "pretrain-101"), "pretrain-101");
        let rows = r.rows(&BTreeMap::from([("x".to_owned(), life(None))]));
        assert_eq!(rows[0].notes, ["sources of pretrain-101 were given 2 names: x, y"]);
    }

    #[test]
    fn nobody_names_the_job_of_another() {
        let r = Registry::default();
        let (ann, bob) = (Principal::User(4_000_001), Principal::User(4_000_002));
        // Bob is the first to declare a name for Ann's job.
        r.claim(1.0, Claim { principal: bob, ..claim("b", "evil", By::Name, "pretrain-101") });
        assert_eq!(r.claim(2.0, claim("a", "pretrain-101", By::Job, "pretrain-101")).0, "pretrain-101");
        assert_eq!(
            (r.canonical(ann, "pretrain-101"), r.canonical(bob, "pretrain-101")),
            ("pretrain-101".into(), "evil".into())
        );
        assert_eq!(
            r.canonical(Principal::Exporter, "pretrain-101"),
            "pretrain-101",
            "nor what root says of it"
        );
        // If her job is known first, it is not renamed either.
        r.claim(3.0, claim("a", "pretrain-102", By::Job, "pretrain-102"));
        let late = Claim { principal: bob, ..claim("b", "evil", By::Name, "pretrain-102") };
        assert_eq!(r.claim(4.0, late), ("evil".into(), vec![]));
        assert_eq!(r.canonical(Principal::Exporter, "pretrain-102"), "pretrain-102");
        assert!(r.jobs(ann).iter().all(|(_, unnamed)| unnamed != "evil"));
        let root = Claim { principal: Principal::User(0), ..claim("l", "llama", By::Name, "pretrain-102") };
        assert_eq!(r.claim(5.0, root).0, "llama");
        assert_eq!(r.canonical(ann, "pretrain-102"), "llama", "root may");
    }

    #[test]
    fn a_flood_of_one_user_makes_nothing_forgotten_of_others() {
        let r = Registry::default();
        let (ann, bob) = (Principal::User(4_000_001), Principal::User(4_000_002));
        r.claim(1.0, claim("a", "pretrain-101", By::Job, "pretrain-101"));
        r.claim(1.0, claim("b", "llama", By::Name, "pretrain-101"));
        for n in 0..2 * MAX_CLAIMS {
            let job = format!("u-{n}");
            r.claim(2.0, Claim { principal: bob, ..claim(&job, &job, By::Job, &job) });
        }
        assert_eq!(r.canonical(ann, "pretrain-101"), "llama");
        let rows = r.rows(&BTreeMap::from([("llama".to_owned(), life(Some(7)))]));
        assert_eq!(rows[0].sources.len(), 2);
    }

    #[test]
    fn whose_sources_make_room_is_told() {
        let r = Registry::default();
        for n in 0..=MAX_CLAIMS {
            let job = format!("u-{n}");
            r.claim(2.0, claim(&job, &job, By::Job, &job));
        }
        let forgotten = r.forgotten();
        assert_eq!(forgotten.len(), 1 + MAX_CLAIMS + 1 - MAX_GROUPS, "a source, and jobs");
        assert!(
            forgotten.iter().all(|whose| *whose == Principal::User(4_000_001)) && r.forgotten().is_empty()
        );
    }

    #[test]
    fn words_of_a_claim_are_cut() {
        let long = "ü".repeat(3_500);
        let claim =
            Claim { why: long.clone(), kind: long.clone(), ..claim("a", "r", By::Name, &long) }.clean();
        assert_eq!((claim.why.len(), claim.kind.len()), (200, 200));
        assert_eq!(claim.unnamed.map(|name| name.len()), Some(MAX_JOB_BYTES));
    }

    #[test]
    fn spellings_of_one_name_are_bounded() {
        let r = Registry::default();
        for n in 0..10_000 {
            let name = format!("train-20261122-{n:06}-3fa9c1d2");
            r.claim(1.0, claim("a", &name, By::Script, &name));
        }
        assert!(r.state.locked().aliases.len() <= 64, "{}", r.state.locked().aliases.len());
    }

    #[test]
    fn a_clock_that_was_set_makes_no_other_run() {
        let r = Registry::default();
        let (one, later) = ("train-20261122-223542-3fa9c1d2", "train-20261122-223543-3fa9c1d2");
        assert_eq!(r.claim(1.0, claim("a", one, By::Script, one)).0, one);
        assert_eq!(r.claim(2.0, claim("b", later, By::Script, later)).0, one);
        assert_eq!(r.canonical(Principal::Exporter, later), one);
        let other = "train-20261122-223542-3fa9c1d3";
        assert_eq!(r.claim(3.0, claim("c", other, By::Script, other)).0, other);
    }

    proptest::proptest! {
        #[test]
        fn any_name_has_a_key(name in ".{0,60}") {
            let _ = key(&name);
        }

        #[test]
        fn memory_is_bounded(names in proptest::collection::vec("[a-z]{1,3}-[0-9]{1,4}", 0..50)) {
            let r = Registry::default();
            for (i, name) in names.iter().enumerate() {
                r.claim(i as f64, claim(name, name, if i % 3 == 0 { By::Name } else { By::Job }, name));
            }
            let state = r.state.locked();
            proptest::prop_assert!(state.claims.len() <= names.len() && state.groups.len() <= names.len());
        }
    }
}
