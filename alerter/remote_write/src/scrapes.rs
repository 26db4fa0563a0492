//! Assembles the samples of one scrape: a step of a run, a reading of a device.
//!
//! All samples of a scrape have one time, but arrive in several requests and in any order: the step
//! may follow the loss. The samples are reported when the step has arrived, the next scrape begins,
//! or nothing has arrived for [`PATIENCE`]. Later samples of the same scrape are reported with the
//! same step; the engine adds them to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use stepwatch_model::time::{Span, Ts};
use stepwatch_wire::names::{ckpt, hello, metric};
use stepwatch_wire::{CkptPhase, Event, Kind, Metrics, Value};

use crate::report::{Report, Reported, Scraped};
use crate::signal::{DeviceName, Instance, Signal, XidSeries};
use crate::xids::{Conclusion, Xids};

/// How long the samples of a scrape wait for the step.
const PATIENCE: Span = Span::secs(5);
/// How long a device reading waits for the other readings of its scrape.
const READING: Span = Span::secs(2);
/// The most runs of instances, and devices, that are assembled at once; samples of more are counted
/// and dropped.
const MAX_GROUPS: usize = 100_000;
/// The most runs of instances among them, and the most run names: a run costs the engine much more
/// than a device.
const MAX_RUN_GROUPS: usize = 10_000;
const MAX_RUNS: usize = 512;
/// The most events of one scrape in addition to its steps.
const MAX_OTHERS: usize = 64;
/// The most ranks of one run on one instance.
const MAX_RANKS: usize = 256;
/// The number of scrape intervals without a scrape after which an instance counts as lost, and the
/// limits of that time.
const MISSED: i64 = 4;
const LOST_AFTER: (Span, Span) = (Span::secs(45), Span::secs(300));
/// How long the instance must answer after the run's series have ended for the run to be over.
const ENDS_AFTER: Span = Span::secs(30);

#[derive(Debug, Default)]
pub(crate) struct Scrapes {
    instances: BTreeMap<Arc<str>, Liveness>,
    runs: BTreeMap<(Arc<str>, Arc<str>), RunScrape>,
    devices: BTreeMap<(Arc<str>, DeviceName), DeviceScrape>,
    /// Names of runs, and the number of instances that report each.
    names: BTreeMap<Arc<str>, u32>,
    /// The number of runs when the names were last counted.
    named: usize,
    /// Runs whose samples arrived since the last check.
    touched: Vec<(Arc<str>, Arc<str>)>,
    xids: Xids,
    over_limit: u64,
}

/// The scrape times of an instance.
#[derive(Debug)]
struct Liveness {
    /// The time of the latest scrape, and when it arrived.
    scrape_ms: i64,
    heard: Ts,
    /// The interval between two scrapes, in milliseconds.
    every_ms: i64,
    up: Option<bool>,
    reported: Option<bool>,
}

#[derive(Debug, Default)]
struct RunScrape {
    node: Arc<str>,
    at_ms: i64,
    since: Ts,
    ranks: BTreeMap<u32, RankScrape>,
    /// Samples without a rank.
    whole: RankScrape,
    world: Option<u32>,
    attempt: Option<u32>,
    /// The number of restarts seen, used as the attempt if the run reports none.
    fallen: u32,
    /// The MFU convention that was reported first.
    mfu: Option<Arc<str>>,
    /// The number of scrapes, used as steps for a run that reports none.
    scrapes: i64,
    has_steps: bool,
    last_step: Option<i64>,
    last_checkpoint: Option<i64>,
    checkpoint_failures: Option<f64>,
    saving: bool,
    others: Vec<Event>,
    /// When the run's series ended.
    ended: Option<Ts>,
}

/// The samples of a rank in one scrape.
#[derive(Debug, Default)]
struct RankScrape {
    step: Option<i64>,
    /// The step reported for this scrape, and the one reported before.
    reported: Option<i64>,
    last: Option<i64>,
    m: Metrics,
    /// Counter values of the last scrapes.
    seconds: Counted,
    count: Counted,
    counters: BTreeMap<Arc<str>, f64>,
}

/// The values of a counter at the last two scrapes.
#[derive(Debug, Default, Clone, Copy)]
struct Counted {
    before: Option<f64>,
    now: Option<f64>,
}

#[derive(Debug)]
struct DeviceScrape {
    node: Arc<str>,
    at_ms: i64,
    since: Ts,
    m: Metrics,
}

impl Counted {
    fn take(&mut self, value: f64) {
        self.before = self.now.replace(value);
    }

    /// The increase between the two scrapes; from 0 after a counter reset.
    fn rise(self) -> Option<f64> {
        let (before, now) = (self.before?, self.now?);
        Some(if now >= before { now - before } else { now })
    }
}

impl Scrapes {
    /// Takes a sample of a run.
    pub(crate) fn run(
        &mut self,
        now: Ts,
        (instance, run): (&Instance, &Arc<str>),
        (rank, signal): (Option<u32>, &Signal),
        v: Scraped,
        out: &mut Vec<Reported>,
    ) {
        let key = (Arc::clone(&instance.address), Arc::clone(run));
        if !self.runs.contains_key(&key) {
            if self.runs.len() >= MAX_RUN_GROUPS || self.is_a_run_too_many(run) {
                self.over_limit += 1;
                return;
            }
            *self.names.entry(Arc::clone(run)).or_default() += 1;
        }
        let scrape = self.runs.entry(key.clone()).or_default();
        scrape.node = Arc::clone(&instance.node);
        if v.stale {
            if matches!(signal, Signal::Step | Signal::Metric { .. }) {
                scrape.ended.get_or_insert(now);
            }
            return;
        }
        scrape.ended = None;
        if v.ts_ms > scrape.at_ms {
            scrape.flush(run, true, &instance.address, out);
            scrape.begin(v.ts_ms, now);
        }
        scrape.take(rank, signal, v.value);
        if self.touched.last() != Some(&key) {
            self.touched.push(key);
        }
        self.hear(now, instance, v.ts_ms, out);
    }

    fn is_a_run_too_many(&self, run: &Arc<str>) -> bool {
        self.names.len() >= MAX_RUNS && !self.names.contains_key(run)
    }

    /// Takes a sample of a device.
    pub(crate) fn device(
        &mut self,
        now: Ts,
        (instance, device): (&Instance, &DeviceName),
        (name, scale): (&str, f64),
        v: Scraped,
        out: &mut Vec<Reported>,
    ) {
        let value = v.value * scale;
        if v.stale || !value.is_finite() {
            return;
        }
        let key = (Arc::clone(&instance.address), device.clone());
        if self.devices.len() >= MAX_GROUPS && !self.devices.contains_key(&key) {
            self.over_limit += 1;
            return;
        }
        let fresh = || DeviceScrape {
            node: Arc::clone(&instance.node),
            at_ms: v.ts_ms,
            since: now,
            m: Metrics::default(),
        };
        let scrape = self.devices.entry(key).or_insert_with(fresh);
        if v.ts_ms > scrape.at_ms {
            scrape.flush(device, &instance.address, out);
            (scrape.at_ms, scrape.since) = (v.ts_ms, now);
        }
        scrape.m.set(name, value);
        self.hear(now, instance, v.ts_ms, out);
    }

    /// Takes a sample about the XIDs of a GPU.
    pub(crate) fn xid(
        &mut self,
        now: Ts,
        (instance, gpu, series): (&Instance, &Arc<str>, XidSeries),
        v: Scraped,
        tells: Conclusion,
        out: &mut Vec<Reported>,
    ) {
        self.xids.take(now, (instance, gpu, series), v, tells, out);
        // Our exporter always reports how much it read, even if nothing else of it is watched.
        if !v.stale && series != XidSeries::Read && tells > Conclusion::Nothing {
            self.hear(now, instance, v.ts_ms, out);
        }
    }

    /// The number of samples beyond the limits of assembly.
    pub(crate) fn over_limit(&self) -> u64 {
        self.over_limit + self.xids.over_limit
    }

    /// Takes a sample of `up`: whether an instance answered a scrape.
    pub(crate) fn up(&mut self, now: Ts, instance: &Instance, v: Scraped, out: &mut Vec<Reported>) {
        if v.stale || !self.instances.contains_key(&instance.address) {
            return;
        }
        self.hear(now, instance, v.ts_ms, out);
        if let Some(l) = self.instances.get_mut(&instance.address) {
            l.up = Some(v.value > 0.0);
            l.report(&instance.address, "the target does not answer Prometheus: up is 0", out);
        }
    }

    fn hear(&mut self, now: Ts, instance: &Instance, ts_ms: i64, out: &mut Vec<Reported>) {
        let fresh = || Liveness { scrape_ms: ts_ms, heard: now, every_ms: 0, up: None, reported: None };
        let l = self.instances.entry(Arc::clone(&instance.address)).or_insert_with(fresh);
        if ts_ms > l.scrape_ms {
            l.every_ms = ts_ms - l.scrape_ms;
            l.scrape_ms = ts_ms;
        }
        l.heard = now;
        if l.reported.is_none() || l.reported == Some(false) && l.up != Some(false) {
            l.reported = Some(true);
            out.push((Arc::clone(&instance.address), Report::Up));
        }
    }

    /// Reports what a request completed.
    pub(crate) fn finish_request(&mut self, out: &mut Vec<Reported>) {
        self.touched.sort_unstable();
        self.touched.dedup();
        for key in core::mem::take(&mut self.touched) {
            if let Some(scrape) = self.runs.get_mut(&key) {
                scrape.flush(&key.1, false, &key.0, out);
            }
        }
    }

    /// Reports what has waited long enough at `now`.
    pub(crate) fn tick(&mut self, now: Ts, out: &mut Vec<Reported>) {
        for ((address, run), scrape) in &mut self.runs {
            if now - scrape.since >= PATIENCE {
                scrape.flush(run, true, address, out);
            }
        }
        for ((address, device), scrape) in &mut self.devices {
            if now - scrape.since >= READING {
                scrape.flush(device, address, out);
            }
        }
        self.xids.tick(now, out);
        for (address, l) in &mut self.instances {
            if l.up != Some(false) && now - l.heard >= l.patience() {
                l.up = Some(false);
                l.report(address, "Prometheus sends nothing of it any more", out);
                l.up = None;
            }
        }
        let instances = &self.instances;
        self.runs.retain(|(address, run), scrape| {
            let Some(ended) = scrape.ended.filter(|at| now - *at >= ENDS_AFTER) else { return true };
            let lives = instances.get(address).is_some_and(|l| l.up == Some(true) && l.heard > ended);
            if lives {
                scrape.flush(run, true, address, out);
                out.extend(scrape.farewell(run).map(|event| (Arc::clone(address), report(event))));
            }
            !lives && now - ended < Span::secs(3600)
        });
        self.forget(now);
    }

    /// Drops instances, runs and devices without samples for an hour.
    fn forget(&mut self, now: Ts) {
        let recent = |at: Ts| now - at < Span::secs(3600);
        self.devices.retain(|_, scrape| recent(scrape.since));
        self.runs.retain(|_, scrape| recent(scrape.since));
        if self.runs.len() != self.named {
            self.named = self.runs.len();
            self.names.clear();
            for (_, run) in self.runs.keys() {
                *self.names.entry(Arc::clone(run)).or_default() += 1;
            }
        }
        self.instances.retain(|_, l| recent(l.heard));
    }
}

impl Liveness {
    fn patience(&self) -> Span {
        let (least, most) = LOST_AFTER;
        Span::millis(self.every_ms.saturating_mul(MISSED)).max(least).min(most)
    }

    fn report(&mut self, address: &Arc<str>, why_down: &'static str, out: &mut Vec<Reported>) {
        if self.up == self.reported {
            return;
        }
        self.reported = self.up;
        let report = if self.up == Some(true) { Report::Up } else { Report::Down { reason: why_down } };
        out.push((Arc::clone(address), report));
    }
}

fn report(event: Event) -> Report {
    Report::Event(Box::new(event))
}

impl RunScrape {
    fn begin(&mut self, at_ms: i64, now: Ts) {
        (self.at_ms, self.since) = (at_ms, now);
        self.scrapes += 1;
        for rank in self.ranks.values_mut().chain([&mut self.whole]) {
            rank.last = rank.reported.take().or(rank.last);
            rank.step = None;
        }
    }

    fn take(&mut self, rank: Option<u32>, signal: &Signal, value: f64) {
        let of = match rank {
            Some(rank) if self.ranks.len() < MAX_RANKS || self.ranks.contains_key(&rank) => {
                self.ranks.entry(rank).or_default()
            }
            Some(_) => return,
            None => &mut self.whole,
        };
        match signal {
            Signal::Step => of.step = whole(value).or(of.step),
            Signal::World => self.world = whole(value).and_then(|v| u32::try_from(v).ok()),
            Signal::Attempt => self.attempt = whole(value).and_then(|v| u32::try_from(v).ok()),
            Signal::Metric { name, scale } => drop(of.m.set(name, value * scale)),
            Signal::Mfu { convention } => {
                if self.mfu.get_or_insert_with(|| Arc::clone(convention)) == convention {
                    of.m.set(metric::MFU, value);
                }
            }
            Signal::Rise { name } => {
                let had = of.counters.insert((*name).into(), value);
                if let Some(rise) = had.map(|had| value - had).filter(|rise| *rise > 0.0) {
                    of.m.set(name, rise);
                }
            }
            Signal::StepSeconds => of.seconds.take(value),
            Signal::StepCount => of.count.take(value),
            Signal::NonFinite { name } => {
                let had = of.counters.insert(Arc::clone(name), value);
                if had.is_some_and(|had| value > had) {
                    of.m.set(name, f64::NAN);
                }
            }
            Signal::EvalLoss { dataset } => {
                let key: Arc<str> = format!("eval/{dataset}").into();
                if of.counters.insert(key, value).is_none_or(|had| had.to_bits() != value.to_bits()) {
                    let mut eval = Event { name: Some(dataset.to_string()), ..Event::new(Kind::Eval) };
                    eval.m.set(metric::LOSS, value);
                    self.beside(eval);
                }
            }
            Signal::CheckpointStep => self.checkpoint(whole(value)),
            Signal::CheckpointFailures => {
                let had = self.checkpoint_failures.replace(value);
                if had.is_some_and(|had| value > had) {
                    self.beside(Event { ckpt: Some(CkptPhase::Fail), ..Event::new(Kind::Ckpt) });
                }
            }
            Signal::CheckpointRunning => {
                if !core::mem::replace(&mut self.saving, value > 0.0) && self.saving {
                    self.beside(Event { ckpt: Some(CkptPhase::Start), ..Event::new(Kind::Ckpt) });
                }
            }
        }
    }

    /// Adds an event that is not a step, up to a limit that no scrape reaches.
    fn beside(&mut self, event: Event) {
        if self.others.len() < MAX_OTHERS {
            self.others.push(event);
        }
    }

    /// Takes the last completed checkpoint, which may be older than the first scrape.
    fn checkpoint(&mut self, step: Option<i64>) {
        if step.is_some() && self.last_checkpoint != step {
            self.last_checkpoint = step;
            let mut done = Event { ckpt: Some(CkptPhase::End), step, ..Event::new(Kind::Ckpt) };
            done.extra.insert(ckpt::STAGE.into(), Value::Text(ckpt::SAVE.into()));
            self.beside(done);
        }
    }

    /// Reports the samples so far. `late`: nothing more is expected.
    fn flush(&mut self, run: &str, late: bool, address: &Arc<str>, out: &mut Vec<Reported>) {
        let lowest = self.ranks.keys().next().copied();
        let known = self.whole.step.or_else(|| self.ranks.values().find_map(|rank| rank.step));
        let bad = |rank: &RankScrape| rank.m.iter().any(|(_, value)| !value.is_finite());
        let urgent = bad(&self.whole) || self.ranks.values().any(bad);
        if known.is_none() && !late && !(urgent && self.has_steps) {
            return;
        }
        self.has_steps |= known.is_some();
        let nothing = self.whole.m.is_empty() && self.ranks.values().all(|rank| rank.m.is_empty());
        let fallback = if self.has_steps { self.last_step } else { (!nothing).then_some(self.scrapes) };
        let Some(step) = known.or(fallback) else { return };
        if self.last_step.is_some_and(|last| step < last) && self.attempt.is_none() {
            self.fallen += 1;
        }
        self.last_step = Some(step);
        let attempt = Some(self.attempt.unwrap_or(self.fallen));
        let mut send = |mut event: Event| {
            event.run = Some(run.to_owned());
            event.ts = Some(self.at_ms as f64 / 1e3);
            event.node = Some(self.node.to_string()).filter(|node| !node.is_empty());
            (event.world, event.attempt) = (self.world, attempt);
            event.step = event.step.or(Some(step));
            out.push((Arc::clone(address), report(event)));
        };
        // Samples without a rank count for the lowest rank of this instance.
        let mut whole = core::mem::take(&mut self.whole.m);
        if let Some(secs) = self.whole.step_time() {
            whole.set(metric::STEP_TIME, secs);
        }
        // A run without ranks gets rank 0, because an event without a rank has no node.
        if self.ranks.is_empty() && self.whole.reports(step, &whole) {
            send(Event { m: whole.clone(), rank: Some(0), ..Event::new(Kind::Step) });
        }
        for (number, rank) in &mut self.ranks {
            let mut m = core::mem::take(&mut rank.m);
            if let Some(secs) = rank.step_time() {
                m.set(metric::STEP_TIME, secs);
            }
            if Some(*number) == lowest {
                for (name, value) in whole.iter() {
                    m.set(name, value);
                }
            }
            let at = rank.step.unwrap_or(step);
            if rank.reports(at, &m) {
                send(Event { m, rank: Some(*number), step: Some(at), ..Event::new(Kind::Step) });
            }
        }
        for event in self.others.drain(..) {
            send(Event { rank: lowest, ..event });
        }
    }

    /// The end events of the run's ranks, without a reason.
    fn farewell(&self, run: &str) -> impl Iterator<Item = Event> {
        let mut ranks: Vec<Option<u32>> = self.ranks.keys().map(|rank| Some(*rank)).collect();
        if ranks.is_empty() {
            ranks.push(None);
        }
        let node = Some(self.node.to_string()).filter(|node| !node.is_empty());
        ranks.into_iter().map(move |rank| {
            let mut bye =
                Event { run: Some(run.to_owned()), rank, node: node.clone(), ..Event::new(Kind::Bye) };
            bye.extra.insert(hello::SOURCE.into(), Value::Text("remote_write".into()));
            bye
        })
    }
}

impl RankScrape {
    /// The mean seconds of the steps between the last two scrapes. A second call returns `None`.
    fn step_time(&mut self) -> Option<f64> {
        let (seconds, count) = (self.seconds.rise()?, self.count.rise()?);
        // The counters up to here are used up.
        if count <= 0.0 {
            return None;
        }
        (self.seconds.before, self.count.before) = (None, None);
        (seconds.is_finite() && seconds > 0.0).then_some(seconds / count)
    }

    /// Whether there is something to report: a new step, more samples of it, or a non-finite value.
    /// A run that stands still is still scraped, with the numbers of its last step.
    fn reports(&mut self, step: i64, m: &Metrics) -> bool {
        let again = self.reported.replace(step) == Some(step);
        let stands = self.last == Some(step) && m.iter().all(|(_, value)| value.is_finite());
        !stands && (!again || !m.is_empty())
    }
}

impl DeviceScrape {
    fn flush(&mut self, device: &DeviceName, address: &Arc<str>, out: &mut Vec<Reported>) {
        if self.m.is_empty() {
            return;
        }
        let mut event = Event {
            ts: Some(self.at_ms as f64 / 1e3),
            node: Some(self.node.to_string()),
            m: core::mem::take(&mut self.m),
            ..Event::new(Kind::Health)
        };
        let (name, words) = match device {
            DeviceName::Gpu { uuid } => ("gpu", vec![("gpu", uuid)]),
            DeviceName::Port { device, port } => ("rdma", vec![("device", device), ("port", port)]),
        };
        event.name = Some(name.into());
        for (key, word) in words {
            event.extra.insert(key.into(), Value::Text(word.to_string()));
        }
        out.push((Arc::clone(address), report(event)));
    }
}

fn whole(value: f64) -> Option<i64> {
    (value.is_finite() && value.abs() < 9e15).then_some(value as i64)
}
