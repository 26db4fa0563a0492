//! Writes the training state to the metrics page.

use std::collections::BTreeMap;

use super::Training;
use super::checkpoint::STAGES;
use super::families as f;
use super::rank::Rank;
use super::run::{Run, WINDOWS};
use crate::principal::Principal;
use crate::samples::Samples;

impl Training {
    /// Writes every run: for each user, first the series of runs, then those of ranks, so that a
    /// full page leaves out the latter. Users alternate, so that one with many runs and ranks does
    /// not use up the room of users with few.
    pub fn write(&self, now: f64, out: &mut Samples) {
        out.set(&f::RUNS, &[], self.runs.len());
        let runs = self.runs.values().map(|run| (run.owner, Part::Run(run)));
        let ranks = self
            .runs
            .values()
            .flat_map(|run| run.ranks.values().map(move |rank| (run.owner, Part::Rank(&run.name, rank))));
        let mut turns = BTreeMap::<Principal, usize>::new();
        let mut queue = Vec::new();
        for (owner, part) in runs.chain(ranks) {
            let turn = turns.entry(owner).or_default();
            queue.push((*turn, part));
            *turn += 1;
        }
        if turns.len() > 1 {
            queue.sort_by_key(|(turn, _)| *turn);
        }
        for (_, part) in queue {
            match part {
                Part::Run(run) => write_run(run, now, out),
                Part::Rank(run, rank) => write_rank(run, rank, out),
            }
        }
    }
}

/// The part of a user's series that is written in one turn.
enum Part<'a> {
    Run(&'a Run),
    Rank(&'a str, &'a Rank),
}

fn write_run(run: &Run, now: f64, out: &mut Samples) {
    let name: &str = &run.name;
    let labels: &[&str] = &[name];
    let a = &run.about;
    let model = run.model.name.as_deref().unwrap_or("");
    out.set(&f::RUN_INFO, &[name, &a.framework, &a.version, model, &a.dtype, &a.gpu, &a.job], 1u64);
    for ((_, family, scale), gauge) in f::GAUGES.iter().zip(&run.gauges) {
        out.maybe(family, labels, gauge.map(|g| g.value * scale));
    }
    for (i, (window, _)) in WINDOWS.iter().enumerate() {
        out.maybe(&f::LOSS_MAX, &[name, window], run.extremes.loss[i].get(now));
        out.maybe(&f::GRAD_NORM_MAX, &[name, window], run.extremes.grad_norm[i].get(now));
    }
    for (dataset, loss) in &run.evals {
        out.set(&f::EVAL_LOSS, &[name, dataset], *loss);
    }
    if let Some((_, step)) = run.step {
        out.set(&f::STEP, labels, step);
    }
    out.set(&f::STEPS, labels, run.steps);
    out.set(&f::ATTEMPT, labels, run.epoch.attempt);
    out.set(&f::RESTARTS, labels, run.restarts);
    out.set(&f::RANK_DEATHS, labels, run.deaths);
    out.maybe(&f::WORLD, labels, run.world);
    out.maybe(&f::LAST_STEP, labels, run.last_step_ts);
    out.set(&f::TOKENS, labels, run.tokens);
    for (convention, ratio) in &run.mfu {
        out.maybe(&f::MFU, &[name, convention], ratio.map(|g| g.value));
    }
    if let Some(remark) = run.mfu_remark() {
        out.set(&f::MFU_REMARK, &[name, remark], 1u64);
    }
    out.maybe(&f::PEAK_FLOPS, labels, run.peak);
    for ((what, how), total) in run.nonfinite.iter() {
        out.set(&f::NONFINITE, &[name, what, how], total);
    }
    out.set(&f::SKIPPED, labels, run.skipped);
    for (metric, gauge) in &run.custom {
        out.maybe(&f::CUSTOM, &[name, metric], gauge.map(|g| g.value));
    }
    let c = &run.checkpoints;
    out.maybe(&f::CKPT_SUCCESS, labels, c.last_success);
    out.maybe(&f::CKPT_STEP, labels, c.last_step);
    for (stage, figures) in STAGES.into_iter().zip(&c.stages) {
        out.maybe(&f::CKPT_DURATION, &[name, stage], figures.seconds);
        out.maybe(&f::CKPT_SIZE, &[name, stage], figures.bytes);
    }
    out.set(&f::CKPT_FAILURES, labels, c.failures);
    out.set(&f::CKPT_IN_PROGRESS, labels, c.in_progress());
}

fn write_rank(run: &str, rank: &Rank, out: &mut Samples) {
    let labels: &[&str] = &[run, &rank.label];
    if !rank.durations.is_empty() {
        out.distribution(&f::STEP_DURATION, labels, rank.durations.distribution());
    }
    out.maybe(&f::RANK_STEP, labels, rank.epoch.last);
    out.maybe(&f::RANK_STEP_TIME, labels, rank.step_time);
    out.maybe(&f::RANK_UP, labels, rank.is_up());
    out.set(&f::HEARTBEAT, labels, rank.heard);
    out.maybe(&f::DATA_WAIT, labels, rank.phases.data_wait);
    out.maybe(&f::CLIENT_DROPPED, labels, rank.client_dropped);
    for (phase, state) in rank.phases.iter() {
        out.set(&f::PHASE_SECONDS, &[run, &rank.label, phase], state.seconds);
        out.set(&f::PHASE_ACTIVE, &[run, &rank.label, phase], state.since.is_some());
    }
}
