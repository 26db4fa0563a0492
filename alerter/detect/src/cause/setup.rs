//! The setup as a suspect: what is different from the last good attempt, and nodes that are set up
//! differently and compute longer. It stands before others unless a place has evidence of its own:
//! what was measured says more than what may explain it.

use super::evidence::when;
use super::{AFTER, BEFORE, onset};
use crate::run::{Difference, RunState, SinceGood};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Cause, Finding, Kind, Observation, Suspect, Target, slow_down};

/// The most differences that a suspect names, and that are listed after them.
const NAMED: usize = 3;
const LISTED: usize = 8;
/// A run that was slow from about its beginning has been so for this many steps at most when it is
/// found to be slow: blocks of eight steps, of which some dozens are compared. The same holds for
/// its numbers.
const FROM_THE_START: i64 = 512;
/// A setting that changed within this time of the onset may have caused it.
const AROUND: Span = Span::secs(900);
/// The score of a suspect that counts whenever it began: a reported fact of one of many nodes with
/// the prior of a fault that can slow a run has 5, and further evidence adds to it.
const STRONG: f64 = 6.0;
/// The share of the slow-down that nodes with another setting must explain.
const EXPLAINED: f64 = 0.5;

/// Names what is different from the last good attempt: in one suspect what explains the finding,
/// and the rest after all. The hash of a file and a seed are of the rest, because they differ in
/// most runs.
pub(crate) fn name_since_good(v: &mut Finding, f: &RunState, since: &SinceGood) {
    let in_time = began_with_setup(v, f);
    let explains = |d: &&Difference| in_time && !d.is_vague() && d.explains(v);
    let (explain, rest): (Vec<&Difference>, Vec<&Difference>) = since.list.iter().partition(explains);
    let (named, more) = explain.split_at(explain.len().min(NAMED));
    if let Some(first) = named.first() {
        let evidence = named.iter().map(|d| since_good(since, d).into()).collect();
        let suspect = Suspect { target: Target::Setting { key: first.name.clone() }, evidence };
        put(v, f, suspect, |_| false);
    }
    let mut changes: Vec<_> = more.iter().copied().chain(rest).map(Difference::change).collect();
    if changes.is_empty() {
        return;
    }
    let more = since.more.saturating_add(changes.len().saturating_sub(LISTED) as u32);
    changes.truncate(LISTED);
    let also = Observation::AlsoDifferent { changes, more, good: since.good.clone() };
    v.suspects.push(Suspect::new(Target::Setup, also));
}

/// Puts a setting before all suspects, or after those with evidence of their own that the setting
/// does not cover.
fn put(v: &mut Finding, f: &RunState, setting: Suspect, covers: impl Fn(&Suspect) -> bool) {
    if let Some(had) = v.suspects.iter_mut().find(|s| s.target == setting.target) {
        had.join(setting);
        return;
    }
    let began = onset(v, f);
    let last = v.suspects.iter().rposition(|s| has_own_evidence(s, began) && !covers(s));
    v.suspects.insert(last.map_or(0, |last| last + 1), setting);
}

/// Whether evidence against a place is from about the onset, or strong. A detector's own suspect
/// counts.
fn has_own_evidence(s: &Suspect, onset: Ts) -> bool {
    let is_setting = |seen: &Observation| {
        matches!(
            seen,
            Observation::SetUpDifferently { .. }
                | Observation::Setting { .. }
                | Observation::ChangedSinceGood { .. }
                | Observation::SettingComputesLonger { .. }
                | Observation::AlsoDifferent { .. }
        )
    };
    if s.target.is_nobody() || s.observations().all(is_setting) {
        return false;
    }
    let near = Ts(onset.0.saturating_sub(BEFORE.0))..=onset + AFTER;
    let mut times = s.evidence.iter().filter_map(|e| e.since).peekable();
    let is_strong = s.evidence.iter().filter_map(|e| e.score).any(|score| score.0 >= STRONG);
    times.peek().is_none() || is_strong || times.any(|at| near.contains(&at))
}

fn since_good(since: &SinceGood, d: &Difference) -> Observation {
    Observation::ChangedSinceGood { change: d.change(), good: since.good.clone() }
}

/// Each difference as a suspect.
pub(crate) fn suspects_of<'a>(
    since: &SinceGood,
    differences: impl Iterator<Item = &'a Difference>,
) -> Vec<Suspect> {
    let suspect =
        |d: &Difference| Suspect::new(Target::Setting { key: d.name.clone() }, since_good(since, d));
    differences.map(suspect).collect()
}

/// Whether the fault began when the setup became another one: at the start of the attempt, or when
/// a node reported a change.
fn began_with_setup(v: &Finding, f: &RunState) -> bool {
    let changed = f.config_groups.changed_at.filter(|at| *at > f.attempt_at + AROUND);
    began_with_attempt(v, f) || changed.is_some_and(|at| at <= when(f, v.start_step) + AROUND)
}

/// Whether the fault began at the start of the attempt.
pub(crate) fn began_with_attempt(v: &Finding, f: &RunState) -> bool {
    let steps = FROM_THE_START.saturating_mul(f.interval.max(1));
    f.attempts.first_step.is_none_or(|first| v.start_step <= first.saturating_add(steps))
}

/// Names the setting of nodes that compute longer than the nodes with another value of it.
pub(crate) fn name_groups(v: &mut Finding, f: &RunState) {
    if v.kind.cause() != Cause::Speed || matches!(v.kind, Kind::Stall | Kind::DataWait) {
        return;
    }
    let Some(slower) = f.slower_setup() else { return };
    let step = f.pace.quantile(0.5);
    let rise = slow_down(&v.signal, v.value, v.expected).ln();
    let longer = match step {
        Some(step) if v.signal != "compute_time" => {
            (step / (step - (slower.seconds - slower.usual)).max(f64::MIN_POSITIVE)).ln()
        }
        _ => (slower.seconds / slower.usual).ln(),
    };
    if rise.is_finite() && longer < EXPLAINED * rise {
        return;
    }
    let why = slower.observation(step);
    let suspect = Suspect::new(Target::Setting { key: slower.key.clone() }, why);
    // That the nodes of the group compute longer is what the setting explains.
    let covers = |s: &Suspect| {
        let is_longer = |seen: &Observation| matches!(seen, Observation::ComputesLonger { .. });
        s.target.on_node().is_some_and(|node| slower.slow.contains(node)) && s.observations().all(is_longer)
    };
    put(v, f, suspect, covers);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::rank_compute_time::Member;
    use crate::run::{Aspect, Rank, Setup};
    use stepwatch_model::{Change, LastGood, Num, Sentence, Severity};

    fn finding(kind: Kind, signal: &'static str, start_step: i64, value: f64, expected: f64) -> Finding {
        Finding {
            change: Change::Raise,
            kind,
            severity: Severity::Ticket,
            signal: signal.into(),
            step: start_step + 20,
            ts: Ts(10_000),
            start_step,
            value,
            expected,
            score: 1.0,
            why: Sentence::default(),
            suspects: Vec::new(),
        }
    }

    fn since(names: &[&str]) -> SinceGood {
        let difference = |name: &&str| Difference {
            of: Aspect::Run,
            name: (*name).to_owned(),
            before: Some("1".into()),
            after: Some("2".into()),
        };
        let list = names.iter().map(difference).collect();
        SinceGood { good: LastGood::Before, at: Ts(0), list, more: 0 }
    }

    fn setting(key: &str) -> Target {
        Target::Setting { key: key.into() }
    }

    fn targets(v: &Finding) -> Vec<Target> {
        v.suspects.iter().map(|s| s.target.clone()).collect()
    }

    /// A suspect that was ranked.
    fn throttled(since: i64, score: f64) -> Suspect {
        let seen = Suspect::new(Target::node("n7"), Observation::OutOfPlace);
        seen.weighed(Some(Ts(since)), Some(Num(1.0))).scored(score)
    }

    #[test]
    fn settings_are_one_suspect_and_stand_after_a_place_that_was_measured() {
        let f = RunState::new("r", Ts(0));
        let pulled = since(&["torch", "env.NCCL_ALGO", "file.llama.yaml", "file.train.py"]);
        for (place, is_first) in [
            (throttled(0, 5.0), true),
            (throttled(-9_000_000, 7.0), true),
            (throttled(-9_000_000, 5.0), false),
        ] {
            let mut v = finding(Kind::MfuDroop, "mfu", 200, 0.3, 0.4);
            v.suspects.push(place);
            name_since_good(&mut v, &f, &pulled);
            let (node, key) = (Target::node("n7"), setting("torch"));
            let both = if is_first { [node, key] } else { [key, node] };
            let [first, second] = both;
            assert_eq!(targets(&v), [first, second, Target::Setup]);
            let named = v.suspects.iter().find(|s| s.target == setting("torch")).map(|s| s.evidence.len());
            assert_eq!(named, Some(2), "both settings");
        }
        let mut v = finding(Kind::MfuDroop, "mfu", 200, 0.3, 0.4);
        name_since_good(&mut v, &f, &since(&["file.train.py", "arg.seed"]));
        assert_eq!(targets(&v), [Target::Setup], "a hash and a seed explain nothing by themselves");
    }

    #[test]
    fn numbers_that_go_bad_long_after_the_start_are_not_explained_by_it() {
        let mut f = RunState::new("r", Ts(0));
        f.attempts.first_step = Some(1);
        for (step, is_explained) in [(300, true), (5000, false)] {
            let mut v = finding(Kind::LossSpike, "loss", step, 9.0, 2.0);
            name_since_good(&mut v, &f, &since(&["torch"]));
            assert_eq!(targets(&v).contains(&setting("torch")), is_explained, "{step}");
        }
    }

    /// A run of four nodes with a rank each, of which two lack a variable and compute longer.
    fn halves() -> RunState {
        let mut f = RunState::new("r", Ts(0));
        f.compute_times.groups.entry(0).or_default().secs = 1.0;
        for (rank, (node, excess)) in (0..).zip([("n1", 0.0), ("n2", 0.01), ("n3", 0.26), ("n4", 0.27)]) {
            let mut keys = std::collections::BTreeMap::from([("visible_gpus".to_owned(), "8".to_owned())]);
            if excess < 0.1 {
                keys.insert("env.NCCL_P2P_DISABLE".into(), "1".into());
            }
            let setup = Setup { of_run: true, fingerprint: format!("{}", keys.len()), keys };
            f.config_groups.take(Ts(0), node, &setup);
            let mut known = Rank::default();
            (known.node, known.local_rank) = (Some(node.to_owned()), None);
            f.ranks.insert(rank, known);
            let mut member = Member::default();
            (member.stage, member.excess) = (0, excess);
            f.compute_times.members.insert(rank, member);
        }
        f
    }

    #[test]
    fn a_variable_that_half_of_the_nodes_lack_is_named_with_what_it_costs() {
        let f = halves();
        let mut v = finding(Kind::ThroughputDrop, "compute_time", 200, 1.3, 1.0);
        name_groups(&mut v, &f);
        assert_eq!(targets(&v), [setting("env.NCCL_P2P_DISABLE")]);
        let why = v.suspects[0].why();
        let figures = "env.NCCL_P2P_DISABLE is (not set) on 2 nodes, whose ranks compute 1.";
        assert!(why.starts_with(figures) && why.contains("on the 2 nodes with 1 they compute 1"), "{why}");
    }

    #[test]
    fn halves_that_may_be_stages_of_a_pipeline_are_not_compared() {
        for (depth, is_named) in [("1", true), ("2", false)] {
            let mut f = halves();
            let lacks = |node: &str| matches!(node, "n3" | "n4");
            for node in ["n1", "n2", "n3", "n4"] {
                let mut keys = std::collections::BTreeMap::from([
                    ("visible_gpus".to_owned(), "8".to_owned()),
                    ("arg.pipeline-model-parallel-size".to_owned(), depth.to_owned()),
                ]);
                if !lacks(node) {
                    keys.insert("env.NCCL_P2P_DISABLE".into(), "1".into());
                }
                let setup = Setup { of_run: true, fingerprint: format!("pipeline {}", keys.len()), keys };
                f.config_groups.take(Ts(1), node, &setup);
            }
            let mut v = finding(Kind::ThroughputDrop, "compute_time", 200, 1.3, 1.0);
            name_groups(&mut v, &f);
            assert_eq!(!targets(&v).is_empty(), is_named, "{depth}");
        }
    }

    #[test]
    fn nodes_that_explain_little_of_a_slow_down_are_not_named() {
        let f = halves();
        let mut v = finding(Kind::ThroughputDrop, "compute_time", 200, 2.0, 1.0);
        name_groups(&mut v, &f);
        assert!(targets(&v).is_empty());
        let mut v = finding(Kind::ThroughputDrop, "compute_time", 200, 1.3, 1.0);
        let longer = |node| {
            let seen =
                Observation::ComputesLonger { value: Num(1.3), others: 3, stage: None, since_step: 200 };
            Suspect::new(Target::node(node), seen)
        };
        v.suspects = vec![longer("n3"), longer("n1")];
        name_groups(&mut v, &f);
        let expected = [Target::node("n3"), Target::node("n1"), setting("env.NCCL_P2P_DISABLE")];
        assert_eq!(targets(&v), expected, "n1 is not of the slow group");
        v.suspects = vec![longer("n3"), longer("n4")];
        name_groups(&mut v, &f);
        assert_eq!(v.suspects[0].target, setting("env.NCCL_P2P_DISABLE"));
    }
}
