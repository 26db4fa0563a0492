//! What is different from the last good attempt, and what of that explains a finding.
//!
//! A setting explains a finding by its topic ([`stepwatch_wire::setting`]): another attention
//! backend, version or batch size explains both speed and numbers, a variable of NCCL explains
//! speed, a learning rate explains numbers. Fewer GPUs explain a slow-down by about their ratio.
//! What only says where a run lives explains nothing, and is left out. So is what one of the two
//! has not reported: a library that is not loaded yet, what an older exporter or client does not
//! tell.

use stepwatch_wire::names::setting::DIFFERS_BY_RANK;
use stepwatch_wire::setting::{ALL_VISIBLE, ARGUMENT, FILE, Topic, VISIBLE_GPUS, topic};

use super::attempts::{Aspect, AttemptSetup, Difference, SinceGood};
use stepwatch_model::time::Ts;
use stepwatch_model::{Cause, Finding, Kind, LastGood, SettingChange, slow_down};

/// The most differences kept; further ones are counted.
const MAX_DIFFERENCES: usize = 24;
/// Findings about the speed of the whole run, which its setup explains. A single long step and a
/// single slow rank have other causes.
const OF_SPEED: [Kind; 6] = [
    Kind::MfuDroop,
    Kind::ThroughputDrop,
    Kind::SlowStart,
    Kind::BelowExpectation,
    Kind::StepTimeJitter,
    Kind::GcTail,
];
/// Findings about numbers that have other causes: one rank's own, and a checkpoint.
const NOT_OF_NUMBERS: [Kind; 2] = [Kind::RankLoss, Kind::LostProgress];
/// The logarithm of a slow-down that fewer GPUs explain, as a multiple of that of their ratio: work
/// that is not divided evenly, and communication that grows or shrinks with their number.
const LEAST_OF_RATIO: f64 = 0.5;
const MOST_OF_RATIO: f64 = 1.5;

impl SinceGood {
    /// `None` if nothing that matters is different.
    pub(crate) fn new(good: LastGood, at: Ts, before: &AttemptSetup, after: &AttemptSetup) -> Option<Self> {
        let mut list = before.differences(after);
        list.retain(|d| counts(d, before, after));
        list.sort_by_key(|d| topic(&d.name));
        let more = list.len().saturating_sub(MAX_DIFFERENCES) as u32;
        list.truncate(MAX_DIFFERENCES);
        (!list.is_empty()).then_some(Self { good, at, list, more })
    }

    /// Whether a difference in it may explain how the run does.
    pub(crate) fn may_explain(&self) -> bool {
        self.list.iter().any(|d| topic(&d.name) < Topic::Other)
    }

    /// Whether one of them does so without another seed or the hash of a file.
    pub(crate) fn is_explanation(&self) -> bool {
        self.list.iter().any(|d| topic(&d.name) < Topic::Other && !d.is_vague())
    }
}

impl Difference {
    pub(crate) fn change(&self) -> SettingChange {
        let (key, before, after) = (self.name.clone(), self.before.clone(), self.after.clone());
        SettingChange { key, before, after }
    }

    /// Whether it explains a finding about the speed or the numbers of the run.
    pub(crate) fn explains(&self, v: &Finding) -> bool {
        let of_speed = v.kind.cause() == Cause::Speed && OF_SPEED.contains(&v.kind);
        let of_numbers = v.kind.cause() == Cause::Numerics && !NOT_OF_NUMBERS.contains(&v.kind);
        match topic(&self.name) {
            Topic::Devices => of_speed && self.explains_by_ratio(v),
            Topic::Kernel | Topic::Platform | Topic::Work => of_speed || of_numbers,
            Topic::Runtime => of_speed,
            Topic::Recipe => of_numbers,
            Topic::Other | Topic::Place => false,
        }
    }

    /// Whether it changes often without an effect: a hash says that a file was edited, not what,
    /// and each run has another seed.
    pub(crate) fn is_vague(&self) -> bool {
        let is_file = self.name.starts_with(FILE) && topic(&self.name) == Topic::Work;
        is_file || self.name.rsplit(['.', '_', '-']).next() == Some("seed")
    }

    /// Whether the run is slower by about as much as it has fewer GPUs.
    fn explains_by_ratio(&self, v: &Finding) -> bool {
        let number = |value: &Option<String>| value.as_deref().and_then(|text| text.parse::<f64>().ok());
        let (Some(before), Some(after)) = (number(&self.before), number(&self.after)) else { return false };
        let (fewer, slower) = ((before / after).ln(), slow_down(&v.signal, v.value, v.expected).ln());
        let is_like = fewer > 0.0 && slower >= LEAST_OF_RATIO * fewer && slower <= MOST_OF_RATIO * fewer;
        fewer.is_finite() && is_like
    }
}

/// Whether a difference is one, and not only something that is not reported.
fn counts(d: &Difference, before: &AttemptSetup, after: &AttemptSetup) -> bool {
    let topic = topic(&d.name);
    let has = |part: &str| [&d.before, &d.after].into_iter().flatten().any(|value| value.contains(part));
    let is_unknown = has(DIFFERS_BY_RANK) || (d.name == VISIBLE_GPUS && has(ALL_VISIBLE));
    if topic == Topic::Place || d.of == Aspect::Node || is_unknown {
        return false;
    }
    let both = d.before.is_some() && d.after.is_some();
    match d.of {
        _ if both => true,
        Aspect::Run if d.name.starts_with(ARGUMENT) => before.has_arguments() && after.has_arguments(),
        Aspect::Run => topic != Topic::Platform && topic != Topic::Devices,
        Aspect::Size | Aspect::Node | Aspect::Declared | Aspect::Host => false,
    }
}

impl AttemptSetup {
    fn has_arguments(&self) -> bool {
        self.values.keys().any(|(of, name)| *of == Aspect::Run && name.starts_with(ARGUMENT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepwatch_model::{Change, Sentence, Severity};

    fn setup(values: &[(Aspect, &str, &str)]) -> AttemptSetup {
        let mut setup = AttemptSetup::default();
        for (of, name, value) in values {
            setup.values.insert((*of, (*name).to_owned()), (*value).to_owned());
        }
        setup
    }

    fn since(before: &[(Aspect, &str, &str)], after: &[(Aspect, &str, &str)]) -> Vec<Difference> {
        let good = LastGood::Attempt { attempt: 0 };
        SinceGood::new(good, Ts(0), &setup(before), &setup(after)).map_or_else(Vec::new, |since| since.list)
    }

    fn finding(kind: Kind, signal: &'static str, value: f64, expected: f64) -> Finding {
        Finding {
            change: Change::Raise,
            kind,
            severity: Severity::Ticket,
            signal: signal.into(),
            step: 900,
            ts: Ts(0),
            start_step: 800,
            value,
            expected,
            score: 1.0,
            why: Sentence::default(),
            suspects: Vec::new(),
        }
    }

    /// Whether a change of this setting explains a slow run and a loss that jumps.
    fn explains(of: Aspect, name: &str, before: &str, after: &str) -> [bool; 2] {
        let all = since(&[(of, name, before)], &[(of, name, after)]);
        let [d] = &all[..] else { panic!("{name}: {all:?}") };
        let slow = finding(Kind::ThroughputDrop, "tokens_per_second", 70.0, 100.0);
        [d.explains(&slow), d.explains(&finding(Kind::LossSpike, "loss", 9.0, 2.0))]
    }

    #[test]
    fn what_a_setting_explains_follows_from_its_topic() {
        let (speed, numbers, both, neither) = ([true, false], [false, true], [true, true], [false, false]);
        for (of, name, expected) in [
            (Aspect::Run, "env.NVTE_FLASH_ATTN", both),
            (Aspect::Declared, "attn_implementation", both),
            (Aspect::Run, "arg.bf16", both),
            (Aspect::Run, "torch", both),
            (Aspect::Run, "nccl", both),
            (Aspect::Host, "driver", both),
            (Aspect::Run, "env.NCCL_P2P_DISABLE", speed),
            (Aspect::Run, "env.CUDA_LAUNCH_BLOCKING", speed),
            (Aspect::Host, "sysctl.vm.swappiness", speed),
            (Aspect::Run, "arg.lr", numbers),
            (Aspect::Declared, "seed", numbers),
            (Aspect::Run, "arg.data-path", numbers),
            (Aspect::Run, "arg.global-batch-size", both),
            (Aspect::Run, "file.llama.yaml", both),
            (Aspect::Run, "arg.frobnicate", neither),
        ] {
            assert_eq!(explains(of, name, "1", "2"), expected, "{name}");
        }
    }

    #[test]
    fn a_hash_of_a_file_and_a_seed_are_vague() {
        let is_vague =
            |name: &str| since(&[(Aspect::Run, name, "1")], &[(Aspect::Run, name, "2")])[0].is_vague();
        assert!(is_vague("file.train.py") && is_vague("arg.seed") && is_vague("arg.data.seed"));
        assert!(!is_vague("file.nccl.conf") && !is_vague("torch") && !is_vague("env.NCCL_ALGO"));
    }

    #[test]
    fn places_names_and_what_one_side_does_not_report_are_no_difference() {
        use Aspect::{Declared, Host, Node, Run, Size};
        for name in ["arg.output-dir", "hostname", "master_addr", "job_id", "arg.master-port", "run_id"] {
            assert!(since(&[(Declared, name, "a")], &[(Declared, name, "b")]).is_empty(), "{name}");
        }
        assert!(since(&[(Node, "node", "n1")], &[(Node, "node", "n2")]).is_empty());
        let known =
            [(Run, "env.A", "1"), (Host, "kernel", "6"), (Declared, "team", "a"), (Size, "nodes", "2")];
        for (of, name) in [(Run, "nccl"), (Host, "driver"), (Declared, "lr"), (Run, "arg.lr")] {
            let more: Vec<_> = known.iter().copied().chain([(of, name, "1")]).collect();
            assert!(since(&known, &more).is_empty() && since(&more, &known).is_empty(), "{name}");
        }
        let by_rank = [(Run, "env.OMP_NUM_THREADS", "(differs by rank)")];
        assert!(since(&by_rank, &[(Run, "env.OMP_NUM_THREADS", "8")]).is_empty());
        let all = [(Run, "visible_gpus", "all")];
        assert!(since(&all, &[(Run, "visible_gpus", "8")]).is_empty(), "their number is not known");
        let set = since(&[(Run, "env.A", "1")], &[(Run, "env.A", "1"), (Run, "env.NCCL_ALGO", "Ring")]);
        assert_eq!((set.len(), set[0].before.as_deref(), set[0].after.as_deref()), (1, None, Some("Ring")));
        let lr = since(&[(Run, "arg.seed", "1")], &[(Run, "arg.seed", "1"), (Run, "arg.lr", "3")]);
        assert_eq!(lr.len(), 1, "both have arguments");
    }

    #[test]
    fn fewer_gpus_explain_a_slow_down_by_about_their_ratio() {
        let all = since(&[(Aspect::Size, "processes", "64")], &[(Aspect::Size, "processes", "48")]);
        let explains = |signal, value, expected| {
            all[0].explains(&finding(Kind::ThroughputDrop, signal, value, expected))
        };
        assert!(explains("tokens_per_second", 75.0, 100.0) && explains("step_time", 4.0, 3.0));
        assert!(!explains("tokens_per_second", 40.0, 100.0), "much slower than three quarters");
        assert!(!explains("step_time", 3.06, 3.0), "a fiftieth");
        assert!(!explains("mfu", f64::NAN, 0.4) && !explains("step_time", 3.0, 0.0));
        let more = since(&[(Aspect::Size, "processes", "48")], &[(Aspect::Size, "processes", "64")]);
        assert!(!more[0].explains(&finding(Kind::ThroughputDrop, "step_time", 4.0, 3.0)));
        let straggler = finding(Kind::Straggler, "step_time", 4.0, 3.0);
        assert!(!all[0].explains(&straggler), "one rank is slow");
    }

    #[test]
    fn what_explains_most_comes_first_and_the_rest_is_counted() {
        let named = |n: &str| -> Vec<(Aspect, String, String)> {
            let many = (0..30).map(|i| (Aspect::Run, format!("arg.a{i:02}"), n.to_owned()));
            many.chain([(Aspect::Run, "env.NCCL_ALGO".to_owned(), n.to_owned())]).collect()
        };
        let of = |all: &[(Aspect, String, String)]| {
            setup(&all.iter().map(|(of, k, v)| (*of, &**k, &**v)).collect::<Vec<_>>())
        };
        let good = LastGood::Run { run: "a".into() };
        let since = SinceGood::new(good, Ts(0), &of(&named("1")), &of(&named("2"))).unwrap();
        assert_eq!((since.list.len(), since.more), (24, 7));
        assert_eq!(since.list[0].name, "env.NCCL_ALGO");
        assert!(since.may_explain());
    }
}
