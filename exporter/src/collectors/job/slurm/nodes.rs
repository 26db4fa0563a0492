//! Reads the nodes: one line each of `scontrol --details --oneliner show nodes`, which has names
//! before values and is alike in all versions.

use std::collections::BTreeMap;

use super::gres::Gpus;
use crate::scheduler::Outage;

/// The most nodes that are read; further ones are counted as malformed.
const MAX_NODES: usize = 50_000;
/// The most partitions, and the most features, kept of a node.
const MAX_PARTITIONS: usize = 64;
/// What versions before 21.08 write behind a base state (`ALLOCATED#`), and the flag that later
/// ones write.
const MARKS: [(char, &str); 9] = [
    ('*', "NOT_RESPONDING"),
    ('~', "POWERED_DOWN"),
    ('#', "POWERING_UP"),
    ('%', "POWERING_DOWN"),
    ('!', "POWER_DOWN"),
    ('$', "MAINTENANCE"),
    ('@', "REBOOT_REQUESTED"),
    ('^', "REBOOT_ISSUED"),
    ('-', "PLANNED"),
];

/// The state of a node, as one word. Slurm has a base state and flags: `IDLE+DRAIN+NOT_RESPONDING`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Idle,
    Mixed,
    Allocated,
    Completing,
    Planned,
    Reserved,
    Maintenance,
    Rebooting,
    PoweredDown,
    Blocked,
    Unknown,
    NotResponding,
    Draining,
    Drained,
    Failing,
    Fail,
    Invalid,
    Error,
    Down,
    Other,
    /// Only planned: not counted.
    Future,
}

impl State {
    pub(super) const ALL: [Self; 20] = [
        Self::Idle,
        Self::Mixed,
        Self::Allocated,
        Self::Completing,
        Self::Planned,
        Self::Reserved,
        Self::Maintenance,
        Self::Rebooting,
        Self::PoweredDown,
        Self::Blocked,
        Self::Unknown,
        Self::NotResponding,
        Self::Draining,
        Self::Drained,
        Self::Failing,
        Self::Fail,
        Self::Invalid,
        Self::Error,
        Self::Down,
        Self::Other,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Mixed => "mixed",
            Self::Allocated => "allocated",
            Self::Completing => "completing",
            Self::Planned => "planned",
            Self::Reserved => "reserved",
            Self::Maintenance => "maintenance",
            Self::Rebooting => "rebooting",
            Self::PoweredDown => "powered_down",
            Self::Blocked => "blocked",
            Self::Unknown => "unknown",
            Self::NotResponding => "not_responding",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Failing => "failing",
            Self::Fail => "fail",
            Self::Invalid => "invalid",
            Self::Error => "error",
            Self::Down => "down",
            Self::Other => "other",
            Self::Future => "future",
        }
    }

    fn parse(text: &str) -> Self {
        let upper = text.to_ascii_uppercase();
        let marks = MARKS.iter().filter(|(mark, _)| upper.contains(*mark)).map(|(_, flag)| *flag);
        let words = upper.split('+').map(|w| w.trim_matches(|c: char| !c.is_alphanumeric()));
        let words: Vec<&str> = words.chain(marks).collect();
        let has = |names: &[&str]| words.iter().any(|word| names.contains(word));
        let busy = has(&["ALLOCATED", "MIXED", "COMPLETING"]);
        match () {
            () if has(&["FUTURE"]) => Self::Future,
            () if has(&["DOWN"]) => Self::Down,
            () if has(&["ERROR"]) => Self::Error,
            () if has(&["INVALID_REG", "INVAL"]) => Self::Invalid,
            () if has(&["FAIL"]) && busy => Self::Failing,
            () if has(&["FAILING"]) => Self::Failing,
            () if has(&["FAIL"]) => Self::Fail,
            () if has(&["DRAIN"]) && busy => Self::Draining,
            () if has(&["DRAIN"]) => Self::Drained,
            () if has(&["DRAINING"]) => Self::Draining,
            () if has(&["DRAINED"]) => Self::Drained,
            () if has(&["UNKNOWN"]) => Self::Unknown,
            // `POWER` is that of versions before 21.08.
            () if has(&["POWER", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_UP"]) => {
                Self::PoweredDown
            }
            () if has(&["REBOOT", "REBOOT_ISSUED"]) => Self::Rebooting,
            // What is only asked for waits until the node has no job.
            () if has(&["POWER_DOWN"]) && !busy => Self::PoweredDown,
            () if has(&["REBOOT_REQUESTED"]) && !busy => Self::Rebooting,
            () if has(&["NOT_RESPONDING", "NO_RESPOND"]) => Self::NotResponding,
            () if has(&["MAINT", "MAINTENANCE"]) => Self::Maintenance,
            () if has(&["BLOCKED"]) => Self::Blocked,
            () if has(&["RESERVED"]) => Self::Reserved,
            () if has(&["COMPLETING"]) => Self::Completing,
            () if has(&["ALLOCATED"]) => Self::Allocated,
            () if has(&["MIXED"]) => Self::Mixed,
            () if has(&["PLANNED"]) => Self::Planned,
            () if has(&["IDLE"]) => Self::Idle,
            () => Self::Other,
        }
    }

    /// Whether the scheduler gives jobs to the node, as far as nobody reserved it.
    fn is_usable(self) -> bool {
        matches!(
            self,
            Self::Idle | Self::Mixed | Self::Allocated | Self::Completing | Self::Planned | Self::Reserved
        )
    }

    /// Whether the node is off to save power, reboots or has just been configured: it comes back by
    /// itself.
    fn is_powered_down(self) -> bool {
        matches!(self, Self::PoweredDown | Self::Rebooting | Self::Unknown)
    }

    /// Whether somebody has to look at the node, or decided to.
    fn is_out_of_service(self) -> bool {
        matches!(
            self,
            Self::Maintenance
                | Self::NotResponding
                | Self::Draining
                | Self::Drained
                | Self::Failing
                | Self::Fail
                | Self::Invalid
                | Self::Error
                | Self::Down
        )
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) state: State,
    pub(super) partitions: Vec<String>,
    pub(super) features: Vec<String>,
    pub(super) gpus: Gpus,
    used: u64,
    reason: String,
    /// Since when its reason stands, in Unix seconds.
    since: Option<f64>,
}

impl Node {
    fn parse(line: &str) -> Option<Self> {
        let name = field(line, "NodeName").filter(|name| !name.is_empty())?;
        let state = State::parse(field(line, "State")?);
        let (reason, since) = reason(line);
        let list = |name| -> Vec<String> {
            let words = field(line, name).unwrap_or_default().split(',').filter(|word| !word.is_empty());
            words.take(MAX_PARTITIONS).map(str::to_owned).collect()
        };
        Some(Self {
            name: name.to_owned(),
            state,
            partitions: list("Partitions"),
            features: list("ActiveFeatures"),
            gpus: Gpus::parse(field(line, "Gres").unwrap_or_default()),
            used: Gpus::parse(field(line, "GresUsed").unwrap_or_default()).total(),
            reason,
            since,
        })
    }

    fn outage(&self) -> Option<Outage> {
        let is_out = self.state.is_out_of_service();
        is_out.then(|| Outage::new(&self.name, self.state.as_str(), &self.reason, self.since))
    }
}

/// The first value of this name: those that come before the free text of the line.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// The reason, without the user and the time in brackets, and the time:
/// `Kill task failed [root@1796058494]`.
fn reason(line: &str) -> (String, Option<f64>) {
    let Some((_, text)) = line.split_once(" Reason=") else { return (String::new(), None) };
    for (at, _) in text.match_indices(" [") {
        let (before, by) = text.split_at(at);
        let Some((_, time)) = by.split_once(']').and_then(|(by, _)| by.rsplit_once('@')) else { continue };
        return (before.to_owned(), time.parse::<u64>().ok().map(|seconds| seconds as f64));
    }
    let ends = [" Comment=", " Extra="].iter().filter_map(|end| text.find(end)).min();
    (text.split_at(ends.unwrap_or(text.len())).0.to_owned(), None)
}

/// All nodes.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub(super) all: Vec<Node>,
    pub(super) malformed: u64,
}

/// GPUs by what the scheduler does with them; each counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct GpuCounts {
    pub(super) allocated: u64,
    pub(super) idle: u64,
    /// Of nodes that come back by themselves, and without a job.
    pub(super) powered_down: u64,
    /// Of other nodes that get no job, and without one.
    pub(super) unavailable: u64,
}

impl Nodes {
    pub(super) fn take(&mut self, line: &str) {
        if line.is_empty() {
            return;
        }
        match Node::parse(line) {
            Some(node) if node.state == State::Future => {}
            Some(node) if self.all.len() < MAX_NODES => self.all.push(node),
            Some(_) | None => self.malformed += 1,
        }
    }

    /// The number of nodes by state, and whether they have GPUs.
    pub(super) fn by_state(&self) -> BTreeMap<(State, bool), u64> {
        let mut counts: BTreeMap<_, u64> = BTreeMap::new();
        for node in &self.all {
            *counts.entry((node.state, node.gpus.total() > 0)).or_default() += 1;
        }
        counts
    }

    pub(super) fn gpus(&self) -> GpuCounts {
        let mut counts = GpuCounts::default();
        for node in &self.all {
            let (all, used) = (node.gpus.total(), node.used.min(node.gpus.total()));
            counts.allocated += used;
            let rest = match node.state {
                state if state.is_usable() => &mut counts.idle,
                state if state.is_powered_down() => &mut counts.powered_down,
                _ => &mut counts.unavailable,
            };
            *rest += all - used;
        }
        counts
    }

    pub(super) fn outages(&self) -> Vec<Outage> {
        self.all.iter().filter_map(Node::outage).collect()
    }

    /// Nodes that no job uses and nobody reserved, with their GPUs. A node that a job uses in part
    /// may lack processors or memory for another one.
    pub(super) fn idle(&self) -> impl Iterator<Item = &Node> {
        self.all.iter().filter(|node| node.state == State::Idle && node.used == 0 && node.gpus.total() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_one_word() {
        for (text, state) in [
            ("IDLE", "idle"),
            ("MIXED+PLANNED", "mixed"),
            ("IDLE+PLANNED", "planned"),
            ("ALLOCATED", "allocated"),
            ("IDLE+DRAIN+INVALID_REG", "invalid"),
            ("UNKNOWN+DRAIN+NOT_RESPONDING", "drained"),
            ("MIXED+DRAIN", "draining"),
            ("IDLE+COMPLETING+DRAIN", "draining"),
            ("DOWN+NOT_RESPONDING", "down"),
            ("DOWN*+DRAIN", "down"),
            ("DOWN+DRAIN+REBOOT_ISSUED", "down"),
            ("IDLE*", "not_responding"),
            ("MIXED+NOT_RESPONDING", "not_responding"),
            ("IDLE+FAIL", "fail"),
            ("ALLOCATED+FAIL", "failing"),
            ("IDLE+MAINT+RESERVED", "maintenance"),
            ("IDLE+RESERVED", "reserved"),
            ("IDLE+CLOUD+POWERED_DOWN", "powered_down"),
            ("IDLE+CLOUD+POWER", "powered_down"),
            ("IDLE+CLOUD+POWERING_UP", "powered_down"),
            // As versions before 21.08 write them.
            ("IDLE~", "powered_down"),
            ("IDLE#+CLOUD", "powered_down"),
            ("ALLOCATED#+CLOUD", "powered_down"),
            ("MIXED%+CLOUD", "powered_down"),
            ("ALLOCATED$", "maintenance"),
            ("MAINT*", "not_responding"),
            ("REBOOT", "rebooting"),
            ("ALLOCATED@", "allocated"),
            ("DOWN$+DRAIN", "down"),
            ("FAILING*", "failing"),
            ("IDLE-", "planned"),
            ("ALLOCATED+REBOOT_REQUESTED", "allocated"),
            ("ALLOCATED+REBOOT_ISSUED", "rebooting"),
            ("MIXED+CLOUD+POWER_DOWN", "mixed"),
            ("IDLE+CLOUD+POWER_DOWN", "powered_down"),
            ("MIXED+DRAIN+REBOOT_REQUESTED", "draining"),
            ("IDLE+DYNAMIC_NORM", "idle"),
            ("UNKNOWN+NOT_RESPONDING", "unknown"),
            ("IDLE+REBOOT_REQUESTED", "rebooting"),
            ("", "other"),
            ("LIBRE", "other"),
            ("FUTURE+CLOUD", "future"),
        ] {
            assert_eq!(State::parse(text).as_str(), state, "{text}");
        }
        let mut words: Vec<_> = State::ALL.iter().map(|state| state.as_str()).collect();
        words.dedup();
        assert_eq!(words.len(), 20);
        assert!(State::ALL.is_sorted());
    }

    #[test]
    fn a_reason_is_free_text() {
        for (line, text, since) in [
            ("NodeName=n1 State=DOWN", "", None),
            ("State=DOWN Reason=GPU fell off [root@1796058430]", "GPU fell off", Some(1_796_058_430.0)),
            (
                "State=DOWN Reason=a [b] c | d [root@1796058430] Comment=x",
                "a [b] c | d",
                Some(1_796_058_430.0),
            ),
            ("State=DOWN Reason=a [root@2026-11-30T17:07:10]", "a", None),
            ("State=DOWN Reason=never set Comment=x", "never set", None),
            ("State=DOWN Reason=cut off [root@17960", "cut off [root@17960", None),
            ("State=DOWN Reason=", "", None),
        ] {
            assert_eq!(reason(line), (text.to_owned(), since), "{line}");
        }
    }

    #[test]
    fn a_reason_cannot_change_the_state() {
        let mut nodes = Nodes::default();
        nodes.take(
            "NodeName=n3 Gres=gpu:8 GresUsed=gpu:0 State=IDLE+DRAIN Reason=x State=IDLE Gres=gpu:9 [a@1]",
        );
        assert_eq!((nodes.all[0].state, nodes.all[0].gpus.total()), (State::Drained, 8));
        for bad in
            ["No nodes in the system", "NodeName=n1 Arch=x86_6", "NodeName= State=IDLE", "\u{fffd}\u{1}"]
        {
            nodes.take(bad);
        }
        assert_eq!((nodes.all.len(), nodes.malformed), (1, 4));
        nodes.take("NodeName=n9 State=FUTURE");
        nodes.take("");
        assert_eq!((nodes.all.len(), nodes.malformed), (1, 4));
    }

    #[test]
    fn gpus_of_nodes_that_come_back_by_themselves_are_not_unavailable() {
        let mut nodes = Nodes::default();
        for (i, state) in [
            "MIXED+CLOUD",
            "IDLE+CLOUD+POWERED_DOWN",
            "IDLE+CLOUD+POWER",
            "IDLE+REBOOT_ISSUED",
            "UNKNOWN",
            "IDLE+DRAIN",
            "DOWN+CLOUD+POWERED_DOWN",
        ]
        .into_iter()
        .enumerate()
        {
            let used = u32::from(i == 0);
            nodes.take(&format!("NodeName=n{i} Gres=gpu:8 GresUsed=gpu:{used} State={state}"));
        }
        let counts = GpuCounts { allocated: 1, idle: 7, powered_down: 32, unavailable: 16 };
        assert_eq!(nodes.gpus(), counts);
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_a_node_or_none(line: String) {
            let mut nodes = Nodes::default();
            nodes.take(&line);
            nodes.take(&format!("NodeName=n State=IDLE Gres={line} Reason={line}"));
            proptest::prop_assert!(nodes.all.len() <= 2);
            let _ = (nodes.by_state(), nodes.gpus(), nodes.outages());
        }
    }
}
