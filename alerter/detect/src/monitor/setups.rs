//! The setups of runs beyond their end: that of the last good attempt of each run, with which later
//! attempts and runs are compared, and that of each run that is forgotten.
//!
//! An attempt is good once it has made [`GOOD_STEPS`] steps in [`GOOD_AFTER`], its setup has not
//! changed lately, no incident about its speed or its numbers is open, and it is no slower than the
//! last good one that did the same work. If its setup may explain a fault that is found later, it
//! must have lasted [`PROVEN`]. A run is compared with its own last good attempt, otherwise with
//! the last good run of the same work, or else of a like name. Runs of other users do not count:
//! nobody decides with what the run of another user is compared. Of a full store, the user with the
//! most setups loses the oldest.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::baselines::configuration;
use super::run::{Run, SetupLook};
use super::{Key, Monitor};
use crate::cause;
use crate::detector::RunAt;
use crate::run::{Aspect, AttemptSetup, KnownSetup, SinceGood};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{
    Cause, Change, Clause, Fact, Finding, Kind, LastGood, NO_RUN, Sentence, Severity, clause,
};

/// The most good setups, and the most setups of forgotten runs. A setup has some 200 values of some
/// 30 bytes, so all together take 20 MB.
const MAX_GOOD: usize = 500;
const MAX_KEPT: usize = 1000;
/// The most names of nodes in the setups of each store together: of runs above it, the nodes are
/// not kept.
const MAX_NODE_NAMES: usize = 100_000;
/// The steps of an attempt from which it is good. A setup that was there at one look must still be
/// there at the next.
const GOOD_STEPS: u64 = 256;
/// The time in which detectors find a run that is slow from its start.
const GOOD_AFTER: Span = Span::secs(480);
/// The time in which they find what another setup costs, if that is little.
const PROVEN: Span = Span::secs(3600);
/// The time after which exporters have reported how a new attempt is set up: they look once a
/// minute.
const REPORTED: Span = Span::secs(120);
/// A step that is so much longer than that of the last good attempt is not the usual speed.
const SLOWER: f64 = 1.1;
/// The most differences in the sentence of an annotation.
const NAMED: usize = 3;
/// The fewest digits and letters of a hash at the end of a name.
const HASH: usize = 6;

/// The setup of a run as it stands.
fn known(now: Ts, run: &Run, setup: AttemptSetup, secs: Option<f64>) -> KnownSetup {
    let f = &run.state;
    KnownSetup {
        run: f.name.clone(),
        uid: run.reporters.uid,
        attempt: f.attempt,
        at: now,
        last_step: f.last_step,
        steps: f.total_steps,
        ranks: f.ranks_known(),
        setup,
        work: configuration(run),
        secs,
    }
}

/// What a good attempt is to a run.
fn seen_from(run: &Run, good: &KnownSetup) -> LastGood {
    let f = &run.state;
    match good.run == f.name && good.at >= f.first_seen {
        true if good.attempt == f.attempt => LastGood::Before,
        true => LastGood::Attempt { attempt: good.attempt },
        false => LastGood::Run { run: good.run.clone() },
    }
}

impl Monitor {
    /// What is different in a run from the last good attempt.
    pub(super) fn since_good(&self, run: &Run) -> Option<SinceGood> {
        let good = self.last_good(run)?;
        SinceGood::new(seen_from(run, good), good.at, &good.setup, &AttemptSetup::from_run(&run.state))
    }

    /// The last good attempt of the run, or else the last good run that is like it.
    fn last_good(&self, run: &Run) -> Option<&KnownSetup> {
        let (name, uid) = (run.state.name.as_str(), run.reporters.uid);
        let of_user = |known: &&Arc<KnownSetup>| known.uid == uid;
        let own = self.good_setups.get(name).filter(of_user);
        if own.is_some() {
            return own.map(Arc::as_ref);
        }
        if self.good_setups.is_empty() {
            return None;
        }
        let (stem_of, work) = (stem(name), configuration(run));
        let is_like =
            |known: &&Arc<KnownSetup>| stem(&known.run) == stem_of || (work.is_some() && known.work == work);
        let like = self.good_setups.values().filter(of_user).filter(is_like);
        let does_same = |known: &KnownSetup| work.is_some() && known.work == work;
        like.max_by_key(|known| (does_same(known), known.at)).map(Arc::as_ref)
    }

    /// What explains a finding: what is different from the last good attempt. If the attempt itself
    /// was taken for good, what was different at its start explains a fault of its start.
    pub(super) fn since_good_of(&self, run: &Run, v: &Finding) -> Option<SinceGood> {
        let kept = run.state.attempts.since_good.as_deref();
        let at_start = || kept.filter(|_| cause::began_with_attempt(v, &run.state)).cloned();
        self.since_good(run).or_else(at_start)
    }

    /// Compares the setup of a run with the last good one, and remembers it if it is good. What is
    /// different is annotated once an attempt.
    pub(super) fn look_at_setup(&mut self, now: Ts, name: &str, out: &mut Vec<Finding>) {
        let Some(run) = self.runs.get(name).filter(|run| run.state.name != NO_RUN) else { return };
        let f = &run.state;
        let setup = AttemptSetup::from_run(f);
        let good = self.last_good(run);
        let is_own = good.is_some_and(|good| seen_from(run, good) == LastGood::Before);
        let since = good.and_then(|good| SinceGood::new(seen_from(run, good), good.at, &good.setup, &setup));
        let is_known = [Aspect::Run, Aspect::Host, Aspect::Declared].iter().any(|of| setup.reports(*of));
        let is_first = !f.attempts.compared && is_known && now - f.attempt_at >= REPORTED;
        if let Some(since) = since.as_ref().filter(|since| is_first && since.may_explain()) {
            out.push(annotation(RunAt { now, run: f }, since));
        }
        let hash = setup.hash();
        let looked = run.setup_look.as_deref().copied();
        let looked = looked.filter(|look| look.at >= f.attempt_at && look.steps < f.attempt_steps);
        let secs = looked.map(|look| {
            let samples = (f.attempt_steps - look.steps) as f64;
            (now - look.at).as_secs_f64() / samples / f.interval.max(1) as f64
        });
        let work = configuration(run);
        let is_slower = good.is_some_and(|good| {
            let usual = good.secs.filter(|_| good.work == work && work.is_some());
            usual.zip(secs).is_some_and(|(usual, secs)| secs > SLOWER * usual)
        });
        let troubled = self
            .incidents
            .get(name)
            .is_some_and(|known| known.standstill_or_slowness.is_some() || known.numerics);
        let held = looked.is_some_and(|look| look.hash == hash);
        let is_news = since.as_ref().is_some_and(SinceGood::is_explanation);
        let lasted = now - f.attempt_at >= if is_news { PROVEN } else { GOOD_AFTER };
        let is_good = f.attempt_steps >= GOOD_STEPS && lasted && held && !troubled && !is_slower;
        let look = SetupLook { hash, at: now, steps: f.attempt_steps };
        let remembered = is_good.then(|| known(now, run, setup, secs));
        if let Some(run) = self.runs.get_mut(name) {
            run.setup_look = Some(Box::new(look));
            let a = &mut run.state.attempts;
            a.compared |= is_first;
            if !is_own || since.is_some() {
                a.since_good = since.map(Box::new);
            }
        }
        if let Some(good) = remembered {
            self.remember_good(good);
        }
    }

    fn remember_good(&mut self, mut known: KnownSetup) {
        fit_nodes(&self.good_setups, &mut known, MAX_NODE_NAMES);
        let name = known.run.clone();
        // A run that goes on as it is, is good from minute to minute: it need not be stored anew.
        let is_news = self.good_setups.get(&name).is_none_or(|had| {
            had.attempt != known.attempt || had.setup != known.setup || had.uid != known.uid
        });
        if !is_news {
            // This need not be stored: after a restart of ours, it is seen again.
            if let Some(had) = self.good_setups.get_mut(&name) {
                Arc::make_mut(had).at = known.at;
            }
            return;
        }
        let is_live = |run: &str| self.runs.contains_key(run);
        if let Some(oldest) = too_many(&self.good_setups, &name, MAX_GOOD, is_live) {
            self.good_setups.remove(&oldest);
            self.dirty.insert(Key::GoodSetup(oldest));
            self.dropped_setups += 1;
        }
        self.good_setups.insert(name.clone(), Arc::new(known));
        self.dirty.insert(Key::GoodSetup(name));
    }

    /// Keeps the setup of a run that is forgotten.
    pub(super) fn keep_setup(&mut self, now: Ts, run: &Run) {
        let f = &run.state;
        if f.total_steps == 0 || f.name == NO_RUN {
            return;
        }
        // Its nodes may be gone before it.
        let (last, had) = (AttemptSetup::from_run(f), &f.attempts.setup);
        let setup = if last.values.len() >= had.values.len() { last } else { had.clone() };
        if let Some(oldest) = too_many(&self.kept_setups, &f.name, MAX_KEPT, |_| false) {
            self.kept_setups.remove(&oldest);
            self.dirty.insert(Key::KeptSetup(oldest));
            self.dropped_setups += 1;
        }
        let mut last = known(f.last_heard.min(now), run, setup, None);
        fit_nodes(&self.kept_setups, &mut last, MAX_NODE_NAMES);
        self.kept_setups.insert(f.name.clone(), Arc::new(last));
        self.dirty.insert(Key::KeptSetup(f.name.clone()));
    }

    /// Notes at once that the numbers of a run are bad, until that is fed back.
    pub(super) fn note_numerics(&mut self, run: &str, v: &Finding) {
        if v.kind.cause() == Cause::Numerics && v.change.raises() {
            let known = self.incidents.entry(run.to_owned()).or_default();
            run.clone_into(&mut known.run);
            known.numerics = true;
        }
    }

    /// The setups of forgotten runs.
    pub fn kept_setups(&self) -> impl Iterator<Item = &Arc<KnownSetup>> {
        self.kept_setups.values()
    }

    /// Setups that were dropped to make room.
    pub fn dropped_setups(&self) -> u64 {
        self.dropped_setups
    }
}

/// Leaves the names of nodes out of a setup if a store has no room for so many.
fn fit_nodes(all: &BTreeMap<String, Arc<KnownSetup>>, known: &mut KnownSetup, most: usize) {
    let others = all.values().filter(|other| other.run != known.run);
    let held: usize = others.map(|other| other.setup.nodes().count()).sum();
    if held + known.setup.nodes().count() > most {
        known.setup.forget_nodes();
    }
}

/// The name of the setup that makes room for that of `name`, if there is none: the oldest one of
/// the user with the most, rather of a run that is over.
fn too_many(
    all: &BTreeMap<String, Arc<KnownSetup>>,
    name: &str,
    most: usize,
    is_live: impl Fn(&str) -> bool,
) -> Option<String> {
    if all.len() < most || all.contains_key(name) {
        return None;
    }
    let mut of_users: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    all.values().for_each(|known| *of_users.entry(known.uid).or_default() += 1);
    let (uid, _) = of_users.into_iter().max_by_key(|(_, count)| *count)?;
    let own = all.iter().filter(|(_, known)| known.uid == uid);
    own.min_by_key(|(name, known)| (is_live(name), known.at)).map(|(name, _)| name.clone())
}

/// What the names of runs of one kind have in common: a name without numbers, dates and hashes at
/// its end.
fn stem(name: &str) -> &str {
    let between = |c: char| matches!(c, '-' | '_' | '.' | '/' | ':' | '@' | '+');
    let is_number = |part: &str| {
        let hash =
            part.len() >= HASH && part.bytes().all(|b| b.is_ascii_hexdigit() || b == b'T' || b == b'Z');
        let digits = part.trim_start_matches(['v', 'r']);
        let counts = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        counts || (hash && part.bytes().any(|b| b.is_ascii_digit()))
    };
    let mut stem = name;
    while let Some((rest, last)) = stem.rsplit_once(between) {
        if rest.is_empty() || !(last.is_empty() || is_number(last)) {
            break;
        }
        stem = rest;
    }
    stem
}

/// What is different at the start of an attempt. It notifies nobody.
fn annotation(view: RunAt<'_>, since: &SinceGood) -> Finding {
    let suspects = cause::suspects_of(since, since.list.iter().take(NAMED));
    let seen: Vec<Clause> = suspects
        .iter()
        .flat_map(|suspect| suspect.observations())
        .map(|seen| clause!("{seen}", seen))
        .collect();
    let more = since.list.len().saturating_sub(NAMED) as u64 + u64::from(since.more);
    let mut why = Sentence::from(clause!("set up differently: {seen}", seen = Fact::joined(seen, "; ")));
    if more > 0 {
        why.add(clause!("and {more} more", more));
    }
    let value = (since.list.len() as u32).saturating_add(since.more);
    let blank = view.finding(Kind::ConfigDrift, "config", Change::Note, Severity::Info);
    Finding { why, suspects, value: f64::from(value), ..blank }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Input;
    use crate::detectors::DetectorsConfig;
    use stepwatch_wire::Event;

    const START: Ts = Ts(1_795_227_416_000);

    struct Scene {
        monitor: Monitor,
        now: Ts,
        uid: u32,
        step: i64,
    }

    impl Scene {
        fn new() -> Self {
            Self { monitor: Monitor::default(), now: START, uid: 1000, step: 0 }
        }

        fn say(&mut self, line: &str) {
            let mut event = Event::parse(line.as_bytes()).unwrap();
            (event.rank, event.node, event.uid) = (Some(0), Some("n1".into()), Some(self.uid));
            event.ts = Some(self.now.as_secs_f64());
            self.monitor.handle(self.now, Input::Event { source: "n1:9765", event: &event }, &mut Vec::new());
        }

        /// An attempt that makes so many steps of two seconds.
        fn attempt(&mut self, run: &str, attempt: u32, seed: u32, steps: i64) {
            self.say(&format!(
                r#"{{"k":"hello","run":"{run}","attempt":{attempt},"world":8,"seed":{seed}}}"#
            ));
            self.steps(run, attempt, steps);
        }

        fn steps(&mut self, run: &str, attempt: u32, steps: i64) {
            for _ in 0..steps {
                (self.now, self.step) = (self.now + Span::secs(2), self.step + 1);
                let (step, loss) = (self.step, 2.0 + 0.01 * (self.step % 7) as f64);
                self.say(&format!(
                    r#"{{"k":"step","run":"{run}","attempt":{attempt},"step":{step},"m":{{"loss":{loss}}}}}"#
                ));
            }
        }

        fn since(&self, run: &str) -> Option<(LastGood, Vec<String>)> {
            let since = self.monitor.since_good(&self.monitor.runs[run])?;
            Some((since.good, since.list.iter().map(|d| d.name.clone()).collect()))
        }
    }

    #[test]
    fn a_restart_is_compared_with_the_last_good_attempt_also_after_a_restart_of_ours() {
        let mut s = Scene::new();
        s.attempt("r", 0, 1, 300);
        assert_eq!(s.since("r"), None);
        // Too short to be good.
        s.attempt("r", 1, 2, 40);
        s.attempt("r", 2, 3, 200);
        let changed = Some((LastGood::Attempt { attempt: 0 }, vec!["seed".to_owned()]));
        assert_eq!(s.since("r"), changed);
        let parts: Vec<_> = s.monitor.take_dirty().into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
        let (monitor, unusable) = Monitor::restore(Arc::<DetectorsConfig>::default(), parts);
        assert!(unusable.is_empty(), "{unusable:?}");
        s.monitor = monitor;
        assert_eq!(s.since("r"), changed);
        s.steps("r", 2, 300);
        assert_eq!(s.since("r"), None, "it is good as it is");
    }

    #[test]
    fn a_new_run_is_compared_with_the_last_good_one_of_a_like_name_and_of_the_same_user() {
        let mut s = Scene::new();
        s.attempt("llama-70b-1", 0, 1, 300);
        s.attempt("gpt-1", 0, 2, 300);
        s.attempt("llama-70b-2", 0, 3, 20);
        let first = Some((LastGood::Run { run: "llama-70b-1".into() }, vec!["seed".to_owned()]));
        assert_eq!(s.since("llama-70b-2"), first);
        s.attempt("mamba-1", 0, 4, 20);
        assert_eq!(s.since("mamba-1"), None);
        s.uid = 2000;
        s.attempt("llama-70b-3", 0, 5, 20);
        assert_eq!(s.since("llama-70b-3"), None, "of another user");
    }

    #[test]
    fn a_variable_that_may_cost_little_is_not_good_for_an_hour() {
        let mut s = Scene::new();
        let setup = |s: &mut Scene, value: &str| {
            s.say(&format!(
                r#"{{"k":"health","name":"config","run":"r","fingerprint":"{value}","env.NCCL_ALGO":"{value}"}}"#
            ));
        };
        s.attempt("r", 0, 1, 8);
        setup(&mut s, "Ring");
        s.steps("r", 0, 400);
        s.attempt("r", 1, 1, 8);
        setup(&mut s, "Tree");
        let changed = Some((LastGood::Attempt { attempt: 0 }, vec!["env.NCCL_ALGO".to_owned()]));
        s.steps("r", 1, 1700);
        assert_eq!(s.since("r"), changed);
        s.steps("r", 1, 300);
        assert_eq!(s.since("r"), None);
        let start = s.monitor.runs["r"].state.attempts.first_step.unwrap();
        let since = |s: &Scene, start_step: i64| {
            let run = &s.monitor.runs["r"];
            let view = RunAt { now: s.now, run: &run.state };
            let blank = view.finding(Kind::MfuDroop, "mfu", Change::Raise, Severity::Ticket);
            s.monitor.since_good_of(run, &Finding { start_step, ..blank }).map(|since| since.good)
        };
        assert_eq!(since(&s, start + 40), Some(LastGood::Attempt { attempt: 0 }), "slow from its start");
        assert_eq!(since(&s, start + 1900), None);
    }

    #[test]
    fn of_runs_that_are_alike_one_of_the_same_work_is_the_last_good_one() {
        let mut s = Scene::new();
        for (run, batch) in [("llama-1", 64), ("llama-2", 1), ("llama-3", 64)] {
            s.attempt(run, 0, 1, 8);
            s.say(&format!(
                r#"{{"k":"health","name":"config","run":"{run}","fingerprint":"{batch}","arg.batch-size":"{batch}"}}"#
            ));
            s.steps(run, 0, if run == "llama-3" { 40 } else { 2100 });
        }
        let good = s.monitor.last_good(&s.monitor.runs["llama-3"]).map(|good| good.run.as_str());
        assert_eq!(good, Some("llama-1"), "and not the latest");
    }

    #[test]
    fn an_attempt_with_an_incident_about_its_numbers_or_its_speed_is_not_good() {
        for (numerics, slow, good) in [(true, None, 0), (false, Some(Kind::MfuDroop), 0), (false, None, 1)] {
            let mut s = Scene::new();
            s.attempt("r", 0, 1, 100);
            s.monitor.learn(stepwatch_model::RunIncidents {
                run: "r".into(),
                notified: Some(true),
                standstill_or_slowness: slow,
                numerics,
            });
            s.steps("r", 0, 299);
            assert_eq!(s.monitor.good_setups.len(), good, "{numerics} {slow:?}");
        }
    }

    #[test]
    fn a_full_store_takes_from_the_user_with_the_most() {
        let setup = |run: &str, uid: u32, at: i64| {
            let run = Run::new(run, Ts(at), &Arc::default());
            let last = known(Ts(at), &run, AttemptSetup::default(), None);
            Arc::new(KnownSetup { uid: Some(uid), ..last })
        };
        let mut all = BTreeMap::new();
        for (name, uid, at) in [("a", 1, 1), ("b", 2, 2), ("c", 2, 3), ("d", 2, 4)] {
            all.insert(name.to_owned(), setup(name, uid, at));
        }
        assert_eq!(too_many(&all, "e", 5, |_| false), None);
        assert_eq!(too_many(&all, "a", 4, |_| false), None, "it has its place");
        assert_eq!(too_many(&all, "e", 4, |_| false).as_deref(), Some("b"), "not the oldest of all");
        assert_eq!(too_many(&all, "e", 4, |run| run == "b").as_deref(), Some("c"), "it goes on");
    }

    #[test]
    fn when_a_setup_was_last_good_is_refreshed_while_the_run_goes_on() {
        let mut s = Scene::new();
        s.attempt("r", 0, 1, 300);
        let first = s.monitor.good_setups["r"].at;
        s.steps("r", 0, 300);
        let last = s.monitor.good_setups["r"].at;
        assert!(last - first >= Span::secs(256), "{first} {last}");
    }

    #[test]
    fn names_of_nodes_are_kept_while_there_is_room() {
        let of = |name: &str, nodes: &[&str]| {
            let mut run = Run::new(name, START, &Arc::default());
            run.state.nodes.extend(nodes.iter().map(|node| ((*node).to_owned(), 1)));
            known(START, &run, AttemptSetup::from_run(&run.state), None)
        };
        let all = BTreeMap::from([("a".to_owned(), Arc::new(of("a", &["n1", "n2"])))]);
        for (name, most, kept) in [("b", 4, 2), ("b", 3, 0), ("a", 2, 2)] {
            let mut new = of(name, &["n1", "n3"]);
            fit_nodes(&all, &mut new, most);
            assert_eq!(new.setup.nodes().count(), kept, "{name} {most}");
        }
    }

    #[test]
    fn names_of_one_kind_have_a_stem_in_common() {
        for (name, expected) in [
            ("llama-70b-2026-11-20", "llama-70b"),
            ("llama-70b-20261120T0930", "llama-70b"),
            ("llama-70b_v3", "llama-70b"),
            ("llama-70b", "llama-70b"),
            ("sweep/lr-3e-4.17", "sweep/lr-3e"),
            ("run-4f9a1c2b", "run"),
            ("run-deadbeef", "run-deadbeef"),
            ("2026-11-20", "2026"),
            ("17", "17"),
            ("-1", "-1"),
            ("", ""),
        ] {
            assert_eq!(stem(name), expected, "{name}");
        }
    }
}
