//! Jobs that hold GPUs, each on all of its nodes.

use std::collections::BTreeSet;

use super::nodes::USES_FOR;
use super::run::Run;
use super::{Key, Monitor};
use crate::detectors::hang::{Shown, start_suspects};
use crate::node::starts::Meeting;
use crate::node::{Activity, JobAt, NodeState};
use crate::run::{RunState, Starting};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Observation, Suspect, Target};

/// The most nodes without a rank that are named.
const MAX_NAMED: usize = 3;
/// A node that was not heard for this long is out of reach.
const SILENT: Span = Span::secs(90);

impl Monitor {
    /// The jobs whose first node this is, so that each job is evaluated on one node only.
    pub(super) fn jobs_first_on(&self, now: Ts, node: &str) -> Vec<JobAt> {
        let first = |job: &&str| self.placement.nodes_of(job).next().is_some_and(|first| first == node);
        let all = self.placement.jobs_on(node).filter(first).map(|job| self.job_at(now, job));
        // A job that none of its nodes reports any more is over.
        all.filter(|job| job.nodes > 0).collect()
    }

    /// What the nodes show of the start of a run: those that name it, and those whose ranks meet at
    /// the same place. The name of a run may only be known where a rank of it has said hello. What
    /// a node says of another user's processes does not count.
    pub(super) fn shown_of_start(&self, now: Ts, run: &Run, s: &Starting) -> Shown<'_> {
        let (name, uid) = (run.state.name.as_str(), run.reporters.uid);
        let nodes = || self.nodes.iter().map(|(node, of)| (node.as_str(), &of.state.starts));
        let meetings = nodes().flat_map(|(node, starts)| starts.meetings(now).map(move |m| (node, m)));
        let all: Vec<(&str, &Meeting)> =
            meetings.filter(|(_, m)| uid.is_none_or(|uid| m.uid == Some(uid))).collect();
        let is_named = |m: &Meeting| m.runs.iter().any(|of| of == name);
        let named = all.iter().filter(|(_, m)| is_named(m) && !m.master.is_empty());
        let masters: BTreeSet<(Option<u32>, &str)> = named.map(|(_, m)| (m.uid, m.master.as_str())).collect();
        let meets_here = |m: &Meeting| masters.contains(&(m.uid, m.master.as_str()));
        let is_of_run = |node: &str, m: &Meeting| {
            is_named(m) || meets_here(m) && !self.is_another(m) && !is_seen_elsewhere(&run.state, s, node, m)
        };
        // Where an answer names no run, it is that of the only one of its node.
        let is_only_here = |node: &str| {
            let mut on = self.placement.on(node);
            on.next().is_some_and(|of| of == name) && on.next().is_none()
        };
        let unanswered = nodes().flat_map(|(node, starts)| {
            starts.unanswered(now).filter(move |one| match &one.runs {
                Some(runs) => runs.iter().any(|of| of == name),
                None => is_only_here(node),
            })
        });
        let of_run = all.iter().copied().filter(|(node, m)| is_of_run(node, m));
        let told = of_run.map(|(node, m)| {
            let mut m = m.clone();
            m.listens &= !self.is_at_another(node, &m.master);
            (node, m)
        });
        Shown::new(run.state.world, told.collect(), unanswered.collect())
    }

    /// Whether it names another run whose processes have spoken. Two runs may meet at names that
    /// mean a host each, such as `master-0` in two namespaces of Kubernetes.
    fn is_another(&self, m: &Meeting) -> bool {
        let speaks = |of: &RunState| of.run_starts().is_none_or(|s| s.ranks() > 0 && !s.is_only_found());
        m.runs.iter().filter_map(|of| self.runs.get(of)).any(|of| speaks(&of.state))
    }

    /// Whether the master is another node by its name: another job of the user may listen here at
    /// the same port.
    fn is_at_another(&self, node: &str, master: &str) -> bool {
        let host = master.rsplit_once(':').map_or(master, |(host, _)| host);
        let is_ip = host.starts_with('[') || host.parse::<core::net::Ipv4Addr>().is_ok();
        let called = self.node_called(host).filter(|called| !is_ip && self.nodes.contains_key(called));
        called.is_some_and(|called| called != node)
    }

    /// What a start of a run waits for, by the nodes that its job holds GPUs of, and by what its
    /// nodes show.
    pub(super) fn suspects_of_start(
        &self,
        now: Ts,
        run: &Run,
        s: &Starting,
        shown: &Shown<'_>,
    ) -> Vec<Suspect> {
        let f = &run.state;
        let here = f.nodes_in_start(s);
        let job_on = |node: &&str| self.placement.jobs_on(node).find(|job| self.has_run(node, job, &f.name));
        let job = here.keys().find_map(job_on);
        let held: Vec<&str> =
            job.map(|job| self.placement.nodes_of(job).map(String::as_str).collect()).unwrap_or_default();
        let mut suspects = start_suspects(now, f, s, shown, |node| held.contains(&node));
        let without: Vec<&str> = held.into_iter().filter(|node| !here.contains_key(node)).collect();
        // A job may hold spare nodes: those without a rank are to blame only if the missing ranks
        // fill them as the others are filled.
        let fill = here.values().next().copied().unwrap_or(0);
        let is_full = here.values().all(|ranks| *ranks == fill);
        let missing = f.missing_ranks().len();
        if let Some(job) = job.filter(|_| is_full && missing > 0 && missing == fill * without.len()) {
            let is_named = |node: &str| suspects.iter().any(|s| s.target == Target::node(node));
            let without: Vec<&str> = without.into_iter().filter(|node| !is_named(node)).collect();
            let silent = |node: &str| self.nodes.get(node).map(|node| now - node.state.last_heard);
            // The ranks of a node that is silent may be there.
            let why = |node: &str| match silent(node) {
                Some(lasts) if lasts > SILENT => Observation::NodeSilent { lasts },
                _ => Observation::NoRankOnNode { job: job.to_owned() },
            };
            let named = without.into_iter().take(MAX_NAMED);
            suspects.splice(0..0, named.map(|node| Suspect::new(Target::node(node), why(node))));
        }
        suspects
    }

    fn has_run(&self, node: &str, job: &str, run: &str) -> bool {
        let mut jobs = self.nodes.get(node).into_iter().flat_map(|node| node.state.jobs.described());
        jobs.any(|(text, claim)| text == job && claim.runs.iter().any(|of| of == run))
    }

    /// The jobs of a node changed: its runs may have other GPUs.
    pub(super) fn jobs_changed(&mut self, node: &str) {
        let runs: Vec<String> = self.placement.on(node).cloned().collect();
        runs.iter().for_each(|run| self.count_held(run));
    }

    /// Counts the GPUs that the jobs of a run hold.
    pub(super) fn count_held(&mut self, name: &str) {
        let held = self.runs.get(name).and_then(|run| self.held_for(&run.state));
        if self.runs.get_mut(name).is_some_and(|run| run.state.known_gpus.hold(held)) {
            self.dirty.insert(Key::Run(name.to_owned()));
        }
    }

    /// The GPUs that are held for a run alone, if the exporters of all its nodes report them.
    fn held_for(&self, run: &RunState) -> Option<u32> {
        let on = |node: &String| {
            let jobs = &self.nodes.get(node)?.state.jobs;
            let mut claims = jobs.with_gpus().filter(|claim| claim.runs.contains(&run.name));
            let claim = claims.next().filter(|claim| claim.runs.len() == 1)?;
            let is_whole = claims.next().is_none() && !claim.has_more_gpus;
            let is_whole = is_whole && claim.gpus.iter().all(|gpu| !gpu.contains('/'));
            is_whole.then_some(claim.gpus.len() as u32)
        };
        run.nodes_heard()?;
        let held = run.nodes.keys().map(on).sum::<Option<u32>>()?;
        // With fewer GPUs than processes, the exporters do not know all of them.
        run.world.is_some_and(|world| held >= world).then_some(held)
    }

    fn job_at(&self, now: Ts, text: &str) -> JobAt {
        let mut job = JobAt {
            text: text.to_owned(),
            nodes: 0,
            gpus: 0,
            activity: Activity::Computes,
            is_live: false,
            ended: None,
            changed_at: self.placement.job_changed_at(text),
        };
        let mut all: Option<Activity> = None;
        for name in self.placement.nodes_of(text) {
            let Some(node) = self.nodes.get(name).map(|node| &node.state) else { continue };
            let Some((_, claim)) = node.jobs.described().find(|(had, _)| *had == text) else { continue };
            job.nodes += 1;
            job.gpus += claim.gpus.len();
            // Idle time before the job had the GPUs does not count.
            let activity = of_gpus(now, node, &claim.gpus).since(claim.since);
            all = Some(all.map_or(activity, |all| all.and(activity)));
            // A trainer that is only known from a log belongs to no known job, but to the only one
            // on the node.
            let is_only = claim.runs.is_empty() && node.jobs.with_gpus().count() == 1;
            let placed = self.placement.on(name).filter(|_| is_only);
            for run in claim.runs.iter().chain(placed).filter_map(|run| self.runs.get(run)) {
                job.has_run(now, claim.since, &run.state);
            }
        }
        JobAt { activity: all.unwrap_or(Activity::Unknown), ..job }
    }
}

fn of_gpus(now: Ts, node: &NodeState, gpus: &[String]) -> Activity {
    let all = gpus.iter().map(|uuid| node.gpus.activity(now, uuid));
    all.reduce(Activity::and).unwrap_or(Activity::Unknown)
}

impl JobAt {
    /// A run that ended before the job began belonged to another job.
    fn has_run(&mut self, now: Ts, began: Ts, run: &RunState) {
        match &run.ended {
            Some(ended) if ended.at < began => {}
            Some(ended) if self.ended.as_ref().is_none_or(|(_, at)| *at < ended.at) => {
                self.ended = Some((run.name.clone(), ended.at));
            }
            Some(_) => {}
            None => self.is_live |= now - run.last_heard < USES_FOR,
        }
    }
}

impl Activity {
    /// The activity of both together.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Computes, _) | (_, Self::Computes) => Self::Computes,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Idle { since }, Self::Idle { since: other }) => Self::Idle { since: since.max(other) },
        }
    }

    fn since(self, at: Ts) -> Self {
        match self {
            Self::Idle { since } => Self::Idle { since: since.max(at) },
            other => other,
        }
    }
}

/// Whether one of its ranks has said hello on another node.
fn is_seen_elsewhere(f: &RunState, s: &Starting, node: &str, m: &Meeting) -> bool {
    let hello_on = |rank: &u32| f.ranks.get(rank)?.node.as_deref().filter(|_| s.has(*rank));
    m.ranks.iter().filter_map(hello_on).any(|of| of != node)
}
