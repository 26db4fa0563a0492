//! The engine's view of nodes: their events, the runs that use them, and their evidence when a run
//! stops.

use std::collections::{BTreeMap, BTreeSet};

use stepwatch_wire::Event;

use super::node::Node;
use super::run::Run;
use super::scraped::origin_of;
use super::users::of_several_users;
use super::{Key, LOOK_AGAIN, Monitor, NO_RUN};
use crate::cause;
use crate::changes::{self, RunChange, configuration};
use crate::detectors::gpu_fault;
use crate::node::messages::Messages;
use crate::node::peer_metrics::{PEER_METRICS, peers};
use crate::node::{self, NodeState, Tenant};
use crate::node::{conditions, words};
use crate::placement::Placement;
use crate::run::summary;
use stepwatch_model::Detected;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Cause, Context, Finding, Kind, Labels, OldestRun, Origin, RunSummary, Saves, Scope};

/// The most nodes watched at once; events of further nodes are counted and dropped.
pub(super) const MAX_NODES: usize = 50_000;
/// A run that was not reported on a node for this long does not use it any more.
pub(super) const USES_FOR: Span = Span::secs(3600);
/// How long after a run's failure its cause may still be reported: a driver that hangs answers
/// late.
const DIED_OF_IT: Span = Span::secs(180);
/// How often state that changed only by readings is stored. After a crash of the alerter, the
/// statistics lack the later readings.
const KEEP_EVERY: Span = Span::secs(60);
/// How often exporters read their GPUs: a comparison sooner has no new readings.
const COMPARE_EVERY: Span = Span::secs(10);
/// A run without a step for this long may stand still: most steps are shorter.
const STILL: Span = Span::secs(30);
/// A run with long steps may stand still after this many of its usual steps.
const STILL_STEPS: f64 = 5.0;
/// If the links of this many nodes fail at once, whatever their runs, the nodes share the cause.
const MANY: usize = 3;
/// Causes that the nodes of a run may have.
const EXPLAINED: [Cause; 3] = [Cause::Numerics, Cause::Speed, Cause::Progress];

impl Monitor {
    pub(super) fn node_event(&mut self, now: Ts, event: &Event, out: &mut Vec<Detected>) {
        let Some(name) = event.node.as_deref() else { return };
        if !self.nodes.contains_key(name) {
            if self.nodes.len() >= MAX_NODES {
                self.dropped_nodes += 1;
                return;
            }
            self.nodes.insert(name.to_owned(), Node::new(name, now, &self.config));
        }
        if event.name.as_deref() == Some(words::RAS_STUCK) && event.code != Some(0) {
            self.ranks_wait(now, name, event, out);
        }
        let run = users(&self.placement, &self.runs, now, name).first().copied();
        let Some(node) = self.nodes.get_mut(name) else { return };
        let is_job = event.name.as_deref() == Some("job");
        let held = if is_job { node.state.jobs.held(event) } else { None };
        let news = node.event(now, event, run.map(|run| &run.state.peers));
        if Messages::is_one(event) {
            self.kernel_messages.note(&node.state);
        }
        if is_job {
            self.placement.set_jobs(now, name, node.state.jobs.described().map(|(job, _)| job));
            // What it held until then is accounted with the GPUs that it held.
            if let Some(held) = held.filter(|_| node.state.jobs.held(event).is_none()) {
                self.job_left(now, name, event, &held);
            }
            if news.changed {
                self.jobs_changed(name);
            }
        }
        if news.reading {
            for run in self.compare(now, name) {
                self.stands_still(now, &run, out);
            }
        }
        if let Some(used) = &news.used {
            self.count_energy(now, name, used);
        }
        let Some(node) = self.nodes.get(name) else { return };
        if news.reading {
            self.placement.set_clock(name, node.state.gpus.loaded_clock("").map(|(clock, _)| clock));
        }
        if let Some((of, setup)) = &news.setup {
            let runs: Vec<String> = self.placement.on(name).cloned().collect();
            for run in runs.iter().filter(|run| of.as_ref().is_none_or(|of| of == *run)) {
                let before = self.runs.get(run).map(|run| configuration(&run.state)).unwrap_or_default();
                self.with_run(now, run, out, |run, findings| {
                    run.state.set_up(now, name, setup);
                    run.look(now, findings);
                });
                self.configured(now, run, &before);
            }
        }
        self.with_node(now, name, news.changed || news.setup.is_some(), out);
    }

    /// Records that a run reports a new configuration. The first one is no change.
    fn configured(&mut self, now: Ts, name: &str, before: &[String]) {
        let Some(run) = self.runs.get(name).filter(|_| !before.is_empty()) else { return };
        if configuration(&run.state).iter().any(|c| !before.contains(c)) {
            let (run, step) = (name.to_owned(), run.state.last_step);
            self.changes.push(RunChange { run, at: now, what: changes::Change::Configured, step });
        }
    }

    /// Handles a report of NCCL that ranks of a run wait, which shortens the proof of a standstill.
    fn ranks_wait(&mut self, now: Ts, node: &str, event: &Event, out: &mut Vec<Detected>) {
        let about = conditions::runs(event);
        let runs = self.placement.on(node).filter(|run| about.as_ref().is_none_or(|of| of.contains(run)));
        let runs: Vec<String> = runs.cloned().collect();
        for run in &runs {
            self.with_run(now, run, out, |run, findings| {
                run.state.stuck_at = Some(now);
                run.look(now, findings);
            });
        }
    }

    /// Evaluates the GPUs of a run that has not made a step for a while.
    fn stands_still(&mut self, now: Ts, name: &str, out: &mut Vec<Detected>) {
        let Some(run) = self.runs.get(name) else { return };
        let f = &run.state;
        let silent = now - f.last_progress >= STILL && f.ended.is_none();
        let nodes = || f.nodes.keys().filter_map(|node| Some(&self.nodes.get(node)?.state));
        let waits = silent && cause::all_wait(now, f.last_progress, f.ranks_known(), nodes());
        let computes = silent && cause::most_compute(now, f.last_progress, nodes());
        if waits == f.waiting_since.is_some() && !computes {
            return;
        }
        self.with_run(now, name, out, |run, findings| {
            run.state.waiting_since = waits.then(|| run.state.waiting_since.unwrap_or(now));
            run.state.computed_at = if computes { Some(now) } else { run.state.computed_at };
            run.look(now, findings);
        });
    }

    /// Computes the usual readings of the devices of the runs on a node, if they are old. Returns
    /// those runs.
    fn compare(&mut self, now: Ts, node: &str) -> Vec<String> {
        let mut compared = Vec::new();
        for name in self.placement.on(node) {
            let Some(run) = self
                .runs
                .get_mut(name)
                .filter(|r| r.state.peers.at.is_none_or(|at| now - at >= COMPARE_EVERY))
            else {
                continue;
            };
            let mut values = vec![Vec::new(); PEER_METRICS.len()];
            let nodes = run.state.nodes.keys().filter_map(|node| self.nodes.get(node));
            nodes.for_each(|node| node.state.peer_metrics.gather(now, &mut values));
            run.state.peers = peers(now, values);
            self.dirty.insert(Key::Run(name.clone()));
            compared.push(name.clone());
        }
        compared
    }

    /// Runs the detectors of a node, and reports their findings.
    pub(super) fn with_node(&mut self, now: Ts, name: &str, mut keep: bool, out: &mut Vec<Detected>) {
        let tenants = self.tenants(now, name);
        let jobs = self.placement.looks_at_jobs(now, name).then(|| self.jobs_first_on(now, name));
        keep |= self.judge_messages(now, name, &tenants);
        let Some(node) = self.nodes.get_mut(name) else { return };
        let mut findings = core::mem::take(&mut self.scratch);
        node.look(now, &tenants, jobs.as_deref(), &mut findings);
        keep |= !findings.is_empty() || now - node.state.kept_at >= KEEP_EVERY;
        if keep {
            node.state.kept_at = now;
            self.fabric.note(&node.state);
        }
        let next = node.deadline().max(now + LOOK_AGAIN);
        if !findings.is_empty() {
            let mut context = self.context_of(now, name, &tenants);
            for v in &mut findings {
                context.well_at = v.ts;
                let link = v.kind == Kind::LinkFault;
                context.fabric =
                    if link { self.went_down_with(name, &context.run.name) } else { BTreeSet::new() };
                context.device = v.suspects.first().map(|s| s.target.clone());
                self.rank_again(&context.run.name, v);
                out.push(Detected::finding(&context, v));
            }
            findings.clear();
        }
        self.scratch = findings;
        let key = Key::Node(name.to_owned());
        self.timers.set_earlier(&key, Some(next));
        if keep {
            self.dirty.insert(key);
        }
    }

    /// Turns kernel messages into conditions if they are unusual among the nodes of the run, or of
    /// the fleet if no run uses the node. Returns whether any message was evaluated.
    fn judge_messages(&mut self, now: Ts, name: &str, tenants: &[Tenant]) -> bool {
        let all = self.nodes.len();
        let Some(node) = self.nodes.get_mut(name) else { return false };
        let due = node.state.messages.due(now);
        if due.is_empty() {
            return false;
        }
        self.kernel_messages.forget(now);
        let hit = tenants.first().and_then(|tenant| self.runs.get(&tenant.run));
        let beside = hit.map_or(all, |run| run.state.nodes.len());
        for message in &due {
            if self.kernel_messages.is_odd(&message.template, message.at, beside) {
                node.state.conditions.take(now, &message.event(), "");
            }
        }
        true
    }

    /// The context of a finding of a node: the node, and the run that it hits. A node with runs of
    /// several users is attributed to none of them: any user could declare the most ranks there.
    fn context_of(&self, now: Ts, name: &str, tenants: &[Tenant]) -> Context {
        let shared = of_several_users(tenants.iter().filter_map(|t| self.runs.get(&t.run)));
        let hit = tenants.first().filter(|_| !shared).and_then(|t| self.runs.get(&t.run));
        let run = hit.map(|run| self.hit_of(now, run)).unwrap_or_default();
        let scope = Scope::Node(name.to_owned());
        let origin =
            self.owners.get(name).map(|source| Origin::of_exporter(origin_of(source).to_owned(), None));
        let oldest = self.oldest_run_on(now, name);
        Context { shared, origin, oldest, ..Context::new(scope, run, [name.to_owned()].into(), now) }
    }

    /// The run that has been known longest of those with ranks on the node. A run that has just
    /// ended counts as well: it may have died of the fault while a neighbour goes on.
    fn oldest_run_on(&self, now: Ts, node: &str) -> Option<OldestRun> {
        let here = self.placement.on(node).filter_map(|name| self.runs.get(name));
        let used = here.filter(|run| now - run.state.last_heard < USES_FOR && run.state.name != NO_RUN);
        let (since, run) = used.map(|run| (run.known_since(), run)).min_by_key(|(since, _)| *since)?;
        Some(OldestRun { name: run.state.name.clone(), since })
    }

    /// The summary of a run that a node's incident hits. Without the labels of the run: they name
    /// the owner of the run, not of the node.
    fn hit_of(&self, now: Ts, run: &Run) -> RunSummary {
        RunSummary { labels: Labels::new(), ..self.summary_of(now, run) }
    }

    /// The summary of a run for an incident, with what has to be done on its nodes.
    pub(super) fn summary_of(&self, now: Ts, run: &Run) -> RunSummary {
        let nodes = run.state.nodes.keys().filter_map(|node| Some(&self.nodes.get(node)?.state));
        let nodes: Vec<&NodeState> = nodes.collect();
        let needs = cause::needs(now, &run.state, &run.state.out_of_reach(), nodes.iter().copied());
        let (of_run, hangs) = (summary(&run.state), nodes.iter().any(|node| cause::storage_hangs(node)));
        let saves = if hangs { Saves::Stuck } else { of_run.saves };
        let save_interval = self.save_interval(run).map(Box::new);
        let failing_interval = self.failing_interval(run).map(Box::new);
        RunSummary { needs, saves, save_interval, failing_interval, ..of_run }
    }

    /// The nodes whose links went down with those of this one, if they are too many for
    /// coincidence. In a large fleet two links may fail within a minute without a common cause;
    /// two nodes count only if one run uses both.
    fn went_down_with(&self, name: &str, run: &str) -> BTreeSet<String> {
        let mut nodes = self.fabric.together(name);
        if nodes.len() < MANY {
            nodes.retain(|node| *node == name || self.placement.on(node).any(|of| of == run));
        }
        if nodes.len() > 1 { nodes.into_iter().map(str::to_owned).collect() } else { BTreeSet::new() }
    }

    pub(super) fn tick_node(&mut self, now: Ts, name: &str, out: &mut Vec<Detected>) {
        if self.nodes.get(name).is_some_and(|n| now >= n.state.last_heard + node::FORGET_AFTER) {
            let heard = self.nodes.remove(name).map_or(now, |node| node.state.last_heard);
            self.placement.set_clock(name, None);
            self.placement.set_jobs(now, name, [].into_iter());
            self.fabric.forget(name);
            out.push(Detected::Forgotten { scope: Scope::Node(name.to_owned()), heard_at: heard });
            self.dirty.insert(Key::Node(name.to_owned()));
            return;
        }
        self.with_node(now, name, false, out);
    }

    /// The runs that use a node, in the order of [`users`].
    fn tenants(&self, now: Ts, node: &str) -> Vec<Tenant> {
        let runs = users(&self.placement, &self.runs, now, node).into_iter();
        let here = self.nodes.get(node).map(|n| gpu_fault::lately(now, &n.state)).unwrap_or_default();
        runs.map(|run| Tenant {
            run: run.state.name.clone(),
            ranks: run.state.nodes.get(node).copied().unwrap_or(0),
            last_step: run.state.last_step,
            last_progress: run.state.last_progress,
            ended: run.state.ended.as_ref().map(|e| e.at),
            peer_clock: self.placement.clock_beside(&run.state.name, node),
            fails_alike: self.fails_alike(now, run, node, &here),
        })
        .collect()
    }

    /// The runs that continue on the nodes of a run that is over, by node. The name is empty if
    /// that run belongs to another user.
    pub(super) fn heirs(&self, now: Ts, name: &str) -> BTreeMap<String, RunSummary> {
        let Some(run) = self.runs.get(name) else { return BTreeMap::new() };
        let lives = |run: &&&Run| run.state.name != name && run.state.ended.is_none();
        let heir = |node: &String| {
            let users = users(&self.placement, &self.runs, now, node);
            let mut heir = self.hit_of(now, users.iter().find(lives)?);
            if of_several_users(users.iter().filter(lives).copied().chain([run])) {
                heir.name.clear();
            }
            Some((node.clone(), heir))
        };
        run.state.nodes.keys().filter_map(heir).collect()
    }

    /// Of the recent XIDs of this node (`here`), those that a program can cause by itself and that
    /// other nodes of the run had too.
    fn fails_alike(&self, now: Ts, run: &Run, node: &str, here: &[i64]) -> Vec<i64> {
        // Most nodes have none.
        if here.is_empty() {
            return Vec::new();
        }
        let others = run.state.nodes.keys().filter(|name| *name != node).filter_map(|n| self.nodes.get(n));
        let alike = others.flat_map(|n| gpu_fault::lately(now, &n.state));
        alike.filter(|number| here.contains(number)).collect()
    }

    /// Updates the nodes that a run is placed on, and gives the run the setups of its new nodes.
    pub(super) fn place(&mut self, now: Ts, name: &str) {
        let Some(run) = self.runs.get_mut(name) else { return };
        for node in core::mem::take(&mut run.state.moved) {
            if !run.state.nodes.contains_key(&node) {
                self.placement.left(name, &node);
                continue;
            }
            if !self.placement.came(name, &node) {
                continue;
            }
            for setup in self.nodes.get(&node).into_iter().flat_map(|n| n.state.setups_for(name)) {
                run.state.set_up(now, &node, setup);
            }
        }
        self.count_held(name);
    }

    /// Removes a run that is about to be forgotten from its nodes.
    pub(super) fn leave(&mut self, name: &str) {
        for node in self.runs.get(name).into_iter().flat_map(|run| run.state.nodes.keys()) {
            self.placement.left(name, node);
        }
    }

    /// While the run of a node has a fault, ranks the suspects of the node's finding again with all
    /// that is known of the run.
    fn rank_again(&self, run: &str, v: &mut Finding) {
        let known = self.incidents.get(run).and_then(|known| known.standstill_or_slowness);
        let faulty = known.filter(|_| v.change.raises());
        let (Some(kind), Some(run)) = (faulty, self.runs.get(run)) else { return };
        let own = core::mem::take(&mut v.suspects);
        let nodes = run.state.nodes.keys().filter_map(|node| Some(&self.nodes.get(node)?.state));
        let asked = Finding { kind, start_step: run.state.last_step.unwrap_or(v.start_step), ..v.clone() };
        v.suspects = cause::rank(&asked, &run.state, nodes);
        if v.suspects.is_empty() {
            v.suspects = own;
        }
    }

    /// Adds the nodes that hinder each other to a finding about saves.
    fn explain_saves(&self, name: &str, v: &mut Finding) {
        let Some(run) = self.runs.get(name) else { return };
        let nodes = run.state.nodes.keys().filter_map(|node| Some(&self.nodes.get(node)?.state));
        let nodes: Vec<&NodeState> = nodes.collect();
        let Some(suspect) = cause::together(&run.state, &nodes) else { return };
        match v.suspects.iter_mut().find(|had| had.target == suspect.target) {
            Some(had) => had.join(suspect),
            None => v.suspects.push(suspect),
        }
    }

    /// Adds the suspects to a finding of a run: the ranks and nodes that differ from the others.
    pub(super) fn explain(&self, now: Ts, name: &str, v: &mut Finding) {
        if v.change.raises() && matches!(v.kind, Kind::CkptCost | Kind::CkptSlow) {
            self.explain_saves(name, v);
        }
        if !v.change.raises() || !EXPLAINED.contains(&v.kind.cause()) {
            return;
        }
        let Some(run) = self.runs.get(name) else { return };
        if let Some(s) = run.state.run_starts().filter(|_| v.kind == Kind::Hang) {
            let shown = self.shown_of_start(now, run, s);
            v.suspects = self.suspects_of_start(now, run, s, &shown);
            let (clauses, named) = shown.clauses(now, &run.state, s);
            clauses.into_iter().for_each(|clause| v.why.add(clause));
            named.into_iter().for_each(|target| v.why.name(target));
        }
        let nodes = run.state.nodes.keys().filter_map(|node| Some(&self.nodes.get(node)?.state));
        v.suspects = cause::rank(v, &run.state, nodes.clone());
        if v.kind == Kind::Hang {
            let seen = cause::standstill(now, run.state.last_progress, nodes);
            v.why = core::mem::take(&mut v.why).and_perhaps(seen.what);
        }
        if matches!(v.kind.cause(), Cause::Speed | Cause::Numerics) {
            if let Some(since) = self.since_good_of(run, v) {
                cause::name_since_good(v, &run.state, &since);
            }
            cause::name_groups(v, &run.state);
        }
        if let Some(first) =
            v.suspects.first().filter(|s| v.kind.cause() == Cause::Progress && !v.why.names(&s.target))
        {
            v.why.add(first.clause());
            v.why.name(first.target.clone());
        }
    }
}

/// The runs that use a node. Runs that make steps come before runs that stand still; then the one
/// that made a step last, then the one with most ranks. If all have ended, the runs that have just
/// failed.
pub(super) fn users<'a>(
    placement: &Placement,
    runs: &'a BTreeMap<String, Run>,
    now: Ts,
    node: &str,
) -> Vec<&'a Run> {
    let here = placement.on(node).filter_map(|name| runs.get(name));
    let mut here: Vec<&Run> = here.filter(|run| now - run.state.last_heard < USES_FOR).collect();
    let is_live = |run: &&Run| run.state.ended.is_none();
    if here.iter().any(is_live) {
        here.retain(is_live);
    } else {
        let failed =
            |run: &&Run| run.state.ended.as_ref().is_some_and(|e| !e.well() && now - e.at < DIED_OF_IT);
        here.retain(failed);
    }
    here.sort_by_cached_key(|run| {
        let f = &run.state;
        let usual = f.pace.quantile(0.5).map_or(Span::ZERO, |secs| Span::from_secs_f64(STILL_STEPS * secs));
        let moves = now - f.last_progress < STILL.max(usual);
        let moved = if moves { now } else { f.last_progress };
        core::cmp::Reverse((moves, moved, f.nodes.get(node).copied().unwrap_or(0)))
    });
    here
}
