//! Reads the jobs: one line each of `squeue --Format`. The features that a job asks for, which may
//! have the separator in them, are the last field.

use std::collections::BTreeMap;

use super::gres::Gpus;
use super::nodes::Nodes;
use crate::scheduler::Waiter;

/// The fields of a job, each with the separator behind it. Versions before 20.02 know no separator.
pub(super) const FORMAT: &str = "JobArrayID:|,State:|,NumNodes:|,NumTasks:|,tres-per-job:|,tres-per-node:|,\
    tres-per-task:|,tres-per-socket:|,tres-alloc:|,EligibleTime:|,Partition:|,ReqNodes:|,Reservation:|,\
    Reason:|,Feature:|";
const FIELDS: usize = 15;
/// The most jobs that are compared with the idle nodes; the scheduler looks at as few.
const MAX_COMPARED: usize = 100;
/// The most elements of an array.
const MAX_ELEMENTS: u64 = 4_000_000;

/// The states of jobs that are counted apart.
pub(super) const STATES: [&str; 6] =
    ["pending", "running", "suspended", "completing", "configuring", "other"];

/// Why jobs wait, in words of a bounded set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    Resources,
    /// Its nodes are out of service, or kept for jobs of other partitions.
    DownOrReserved,
    Priority,
    NodeUnavailable,
    Reservation,
    Limit,
    Dependency,
    Held,
    BeginTime,
    Constraints,
    /// Also a job that the scheduler has not looked at.
    Other,
}

impl Reason {
    pub(super) const ALL: [Self; 11] = [
        Self::Resources,
        Self::DownOrReserved,
        Self::Priority,
        Self::NodeUnavailable,
        Self::Reservation,
        Self::Limit,
        Self::Dependency,
        Self::Held,
        Self::BeginTime,
        Self::Constraints,
        Self::Other,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Resources => "resources",
            Self::DownOrReserved => "down_or_reserved",
            Self::Priority => "priority",
            Self::NodeUnavailable => "node_unavailable",
            Self::Reservation => "reservation",
            Self::Limit => "limit",
            Self::Dependency => "dependency",
            Self::Held => "held",
            Self::BeginTime => "begin_time",
            Self::Constraints => "constraints",
            Self::Other => "other",
        }
    }

    /// A reason of Slurm, or the sentence that it writes instead.
    fn parse(text: &str) -> Self {
        let starts = |all: &[&str]| all.iter().any(|start| text.starts_with(start));
        let ends = |all: &[&str]| all.iter().any(|end| text.ends_with(end));
        match text {
            "Resources" => Self::Resources,
            "Priority" => Self::Priority,
            "BeginTime" => Self::BeginTime,
            _ if starts(&["Nodes required for job are DOWN"]) => Self::DownOrReserved,
            _ if starts(&["ReqNodeNotAvail", "NodeDown", "PartitionDown", "PartitionInactive"]) => {
                Self::NodeUnavailable
            }
            _ if starts(&["Reservation"]) => Self::Reservation,
            _ if starts(&["Dependency"]) => Self::Dependency,
            _ if starts(&["JobHeld", "JobHoldMaxRequeue", "launch failed requeued held"]) => Self::Held,
            _ if starts(&["QOS", "Assoc", "Association", "JobArrayTaskLimit", "Max", "Licenses"]) => {
                Self::Limit
            }
            _ if ends(&["Limit"]) => Self::Limit,
            _ if starts(&[
                "Constraints",
                "BadConstraints",
                "InvalidAccount",
                "InvalidQOS",
                "AccountNotAllowed",
            ]) =>
            {
                Self::Constraints
            }
            _ => Self::Other,
        }
    }
}

/// The pending jobs with one reason.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Pending {
    pub(super) jobs: u64,
    /// GPUs that they ask for.
    pub(super) gpus: u64,
    /// The earliest time, in Unix seconds, since when one that asks for GPUs may start.
    pub(super) since: Option<f64>,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) by_state: BTreeMap<&'static str, u64>,
    pub(super) pending: BTreeMap<Reason, Pending>,
    /// Jobs that wait for resources, of which `MAX_COMPARED` are kept.
    waiting: Vec<Wanted>,
    pub(super) malformed: u64,
}

/// What a job asks for.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    /// The job, or the elements of an array that wait: others once some have started.
    id: String,
    partitions: String,
    /// What its nodes must have, all of it.
    features: Vec<String>,
    nodes: u64,
    /// The type of its GPUs; empty for any.
    kind: String,
    /// GPUs of each node, and of all nodes.
    per_node: u64,
    all: u64,
}

impl Queue {
    pub(super) fn take(&mut self, line: &str) {
        if line.is_empty() {
            return;
        }
        if self.job(line).is_none() {
            self.malformed += 1;
        }
    }

    pub(super) fn jobs(&self) -> u64 {
        self.by_state.values().sum()
    }

    fn job(&mut self, line: &str) -> Option<()> {
        let fields: Vec<&str> = line.splitn(FIELDS, '|').collect();
        let [
            id,
            state,
            nodes,
            tasks,
            per_job,
            per_node,
            per_task,
            per_socket,
            alloc,
            eligible,
            partitions,
            nodelist,
            reservation,
            reason,
            features,
        ] = fields.as_slice()
        else {
            return None;
        };
        // The separator behind the last field is missing where the line was cut off.
        let features = features.strip_suffix('|')?;
        let reason = Reason::parse(reason);
        let (nodes, tasks) = (number(nodes)?, number(tasks)?);
        let jobs = elements(id)?;
        let state = state_of(state);
        *self.by_state.entry(state).or_default() += jobs;
        if state != "pending" {
            return Some(());
        }
        let [per_job, per_node, per_task, per_socket, alloc] =
            [per_job, per_node, per_task, per_socket, alloc].map(|list| Gpus::parse(list));
        let each = per_node.total().max(per_socket.total());
        // What accounting has is exact, where it counts GPUs.
        let (on_nodes, of_tasks) =
            (each.saturating_mul(nodes.max(1)), per_task.total().saturating_mul(tasks.max(1)));
        let asked = [alloc.total(), per_job.total(), on_nodes, of_tasks];
        let all = asked.into_iter().find(|gpus| *gpus > 0).unwrap_or(0);
        let pending = self.pending.entry(reason).or_default();
        pending.jobs += jobs;
        pending.gpus = pending.gpus.saturating_add(all.saturating_mul(jobs));
        let since = eligible.parse::<u64>().ok().map(|seconds| seconds as f64).filter(|_| all > 0);
        pending.since = pending.since.into_iter().chain(since).reduce(f64::min);
        // Which nodes are kept for it by its list of nodes, its reservation or the other parts of a
        // job of several is not known here.
        let is_plain = is_none(nodelist) && is_none(reservation) && !id.contains('+');
        let features = all_of(features).filter(|_| is_plain);
        let Some(features) = features else { return Some(()) };
        if reason == Reason::Resources && all > 0 && self.waiting.len() < MAX_COMPARED {
            let kinds = [&per_node, &per_job, &per_task, &per_socket].map(Gpus::kind);
            let kind = kinds.into_iter().find(|kind| !kind.is_empty()).unwrap_or_default().to_owned();
            let (id, partitions) = ((*id).to_owned(), (*partitions).to_owned());
            let nodes = nodes.max(1);
            self.waiting.push(Wanted { id, partitions, features, nodes, kind, per_node: each, all });
        }
        Some(())
    }

    /// The jobs that wait for resources although idle nodes of their partitions have the GPUs that
    /// they ask for.
    pub(super) fn fitting(&self, nodes: &Nodes) -> Vec<Waiter> {
        let fitting = self.waiting.iter().filter(|wanted| wanted.fits(nodes));
        let name = |wanted: &Wanted| format!("job {} of {}", wanted.id, wanted.partitions);
        fitting.map(|wanted| Waiter::new(&wanted.id, &name(wanted))).collect()
    }
}

impl Wanted {
    fn fits(&self, nodes: &Nodes) -> bool {
        let is_of = |partitions: &[String]| {
            self.partitions.split(',').any(|own| partitions.iter().any(|of| of == own))
        };
        let has_all = |features: &[String]| self.features.iter().all(|wanted| features.contains(wanted));
        let idle = nodes.idle().filter(|node| is_of(&node.partitions) && has_all(&node.features));
        let idle = idle.map(|node| node.gpus.of(&self.kind));
        let (mut count, mut gpus) = (0, 0);
        for of_node in idle.filter(|of_node| *of_node >= self.per_node.max(1)) {
            (count, gpus) = (count + 1, gpus + of_node);
        }
        count >= self.nodes && gpus >= self.all
    }
}

/// The state of a job as one that is counted. A job that was requeued waits as others do.
fn state_of(text: &str) -> &'static str {
    let lower = text.to_ascii_lowercase();
    let same = match lower.as_str() {
        "requeued" | "requeue_fed" | "requeue_hold" | "special_exit" | "resv_del_hold" => "pending",
        "resizing" | "signaling" => "running",
        "stopped" => "suspended",
        "power_up_node" => "configuring",
        other => other,
    };
    STATES.into_iter().find(|known| *known == same).unwrap_or("other")
}

/// Whether a field says that the job has none.
fn is_none(field: &str) -> bool {
    matches!(field.trim(), "" | "(null)" | "N/A" | "n/a")
}

/// The features that a node must have, of `h100&ib`; `None` if the expression says more than that.
fn all_of(features: &str) -> Option<Vec<String>> {
    if is_none(features) {
        return Some(Vec::new());
    }
    let is_plain = |c: char| c.is_alphanumeric() || "&,_-.:=/".contains(c);
    let words = || features.split(['&', ',']).filter(|word| !word.is_empty()).map(str::to_owned);
    features.chars().all(is_plain).then(|| words().collect())
}

/// A number, also as `2K`.
fn number(text: &str) -> Option<u64> {
    match text.strip_suffix('K') {
        Some(thousands) => thousands.parse::<u64>().ok()?.checked_mul(1024),
        None => text.parse().ok(),
    }
}

/// The jobs of a line: 1, or as many as an array has that wait: `9_[1,3,5-99:2%2]`.
fn elements(id: &str) -> Option<u64> {
    let Some((_, list)) = id.split_once("_[") else {
        return id.starts_with(|c: char| c.is_ascii_digit()).then_some(1);
    };
    let list = list.split([']', '%']).next()?;
    let count = |item: &str| {
        let (first, last) = item.split_once('-')?;
        let (last, step) = last.split_once(':').unwrap_or((last, "1"));
        let (first, last, step) = (number(first)?, number(last)?, number(step)?.max(1));
        Some((last.checked_sub(first)? / step).saturating_add(1))
    };
    // A long list is cut off with dots.
    let all = list.split(',').filter(|item| !item.is_empty() && !item.starts_with('.'));
    Some(all.map(|item| count(item).unwrap_or(1)).fold(0, u64::saturating_add).clamp(1, MAX_ELEMENTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_arrays() {
        for (id, count) in [
            ("4711", 1),
            ("6_[0-3]", 4),
            ("6_2", 1),
            ("9_[1,3,5-99%2]", 97),
            ("9_[0-10:5]", 3),
            ("9_[0-99,...]", 100),
            ("9_[7-3]", 1),
            ("9_[]", 1),
            ("9_[0-99999999999]", 4_000_000),
            ("4711+1", 1),
        ] {
            assert_eq!(elements(id), Some(count), "{id}");
        }
        assert_eq!((elements(""), elements("squeue: error")), (None, None));
        assert_eq!((number("2K"), number("3"), number("1-4"), number("")), (Some(2048), Some(3), None, None));
    }

    #[test]
    fn reasons_are_few() {
        let busy =
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions";
        for (text, reason) in [
            ("Resources", Reason::Resources),
            ("None", Reason::Other),
            ("", Reason::Other),
            (busy, Reason::DownOrReserved),
            ("Priority", Reason::Priority),
            ("ReqNodeNotAvail, UnavailableNodes:n[1-4]", Reason::NodeUnavailable),
            ("ReqNodeNotAvail(Unavailable:n3)", Reason::NodeUnavailable),
            ("DependencyNeverSatisfied", Reason::Dependency),
            ("JobHeldUser", Reason::Held),
            ("BeginTime", Reason::BeginTime),
            ("QOSMaxGRESPerUser", Reason::Limit),
            ("AssocGrpGRES", Reason::Limit),
            ("PartitionTimeLimit", Reason::Limit),
            ("JobArrayTaskLimit", Reason::Limit),
            ("ReservationDeleted", Reason::Reservation),
            ("BadConstraints", Reason::Constraints),
            ("Constraints", Reason::Constraints),
            ("burst_buffer/lua: stage in", Reason::Other),
        ] {
            assert_eq!(Reason::parse(text), reason, "{text}");
        }
        assert!(Reason::ALL.is_sorted());
    }

    fn queue(lines: &[&str]) -> Queue {
        let mut queue = Queue::default();
        lines.iter().for_each(|line| queue.take(line));
        queue
    }

    #[test]
    fn gpus_are_those_of_accounting_or_what_the_job_asked_for() {
        for (asked, gpus) in [
            ("3|3|N/A|gres:gpu:8|N/A|N/A|cpu=3", 24),
            ("3|3|gres/gpu:5|N/A|N/A|N/A|cpu=3", 5),
            ("2|4|N/A|N/A|gres:gpu:1|N/A|cpu=4", 4),
            ("2|2|N/A|N/A|N/A|gres:gpu:2|cpu=2", 4),
            ("3|3|N/A|gres:gpu:8|N/A|N/A|cpu=3,gres/gpu=20,gres/gpu:h100=20", 20),
            ("1|1|N/A|N/A|N/A|N/A|cpu=1", 0),
        ] {
            let line = format!("7|PENDING|{asked}|1796058494|main||(null)|Priority|(null)|");
            let pending = queue(&[&line]).pending[&Reason::Priority];
            assert_eq!((pending.jobs, pending.gpus), (1, gpus), "{asked}");
            assert_eq!(pending.since, (gpus > 0).then_some(1_796_058_494.0), "{asked}");
        }
    }

    #[test]
    fn lines_that_are_cut_off_are_no_jobs() {
        let whole = "1|RUNNING|1|1|N/A|gres:gpu:6|N/A|N/A|cpu=1|1796058494|main||(null)|None|(null)|";
        for end in 0..whole.len() {
            let queue = queue(&[&whole[..end]]);
            assert_eq!((queue.jobs(), queue.malformed), (0, u64::from(end > 0)), "{}", &whole[..end]);
        }
        assert_eq!((queue(&[whole]).jobs(), queue(&[whole]).malformed), (1, 0));
        // A reason may have the separator, and features often do.
        let odd = "1|PENDING|1|1|N/A|gres:gpu:6|N/A|N/A|cpu=1|N/A|main||(null)|a|b|(null)|";
        assert_eq!(queue(&[odd]).pending[&Reason::Other], Pending { jobs: 1, gpus: 6, since: None });
        let either = odd.replace("|a|b|(null)|", "|Resources|ib|roce|");
        assert_eq!(queue(&[&either]).pending[&Reason::Resources].jobs, 1);
    }

    /// `n1` is idle with 8 GPUs, `n2` has a job, `n3` is drained, `n4` of another partition.
    fn nodes() -> Nodes {
        let mut nodes = Nodes::default();
        for line in [
            "NodeName=n1 Gres=gpu:h100:8 GresUsed=gpu:h100:0 State=IDLE Partitions=main,all",
            "NodeName=n2 Gres=gpu:h100:8 GresUsed=gpu:h100:1 State=MIXED Partitions=main,all",
            "NodeName=n3 Gres=gpu:h100:8 GresUsed=gpu:h100:0 State=IDLE+DRAIN Partitions=main,all",
            "NodeName=n4 Gres=gpu:a100:4 GresUsed=gpu:a100:0 State=IDLE Partitions=all",
        ] {
            nodes.take(line);
        }
        nodes
    }

    #[test]
    fn a_job_fits_if_idle_nodes_of_its_partition_have_its_gpus() {
        for (asked, partition, reason, fits) in [
            ("1|1|N/A|gres:gpu:8|N/A|N/A|cpu=1", "main", "Resources", true),
            ("1|1|N/A|gres:gpu:8|N/A|N/A|cpu=1", "main", "Priority", false),
            ("1|1|N/A|gres:gpu:9|N/A|N/A|cpu=1", "main", "Resources", false),
            ("2|2|N/A|gres:gpu:4|N/A|N/A|cpu=1", "main", "Resources", false),
            ("2|2|N/A|gres:gpu:4|N/A|N/A|cpu=1", "all", "Resources", true),
            ("2|2|N/A|gres:gpu:4|N/A|N/A|cpu=1", "debug,all", "Resources", true),
            ("1|1|N/A|gres:gpu:a100:4|N/A|N/A|cpu=1", "main", "Resources", false),
            ("1|1|N/A|gres:gpu:a100:4|N/A|N/A|cpu=1", "all", "Resources", true),
            ("1|1|gres:gpu:12|N/A|N/A|N/A|cpu=1", "all", "Resources", true),
            ("1|1|gres:gpu:13|N/A|N/A|N/A|cpu=1", "all", "Resources", false),
            ("1|1|N/A|N/A|N/A|N/A|cpu=1", "main", "Resources", false),
            ("1|1|N/A|gres:gpu:8|N/A|N/A|cpu=1", "main", "None", false),
            (
                "1|1|N/A|gres:gpu:8|N/A|N/A|cpu=1",
                "main",
                "Nodes required for job are DOWN, DRAINED or",
                false,
            ),
        ] {
            let line = format!("7|PENDING|{asked}|1796058494|{partition}||(null)|{reason}|(null)|");
            let fitting = fits.then(|| Waiter::new("7", &format!("job 7 of {partition}")));
            assert_eq!(queue(&[&line]).fitting(&nodes()), fitting.into_iter().collect::<Vec<_>>(), "{line}");
        }
    }

    #[test]
    fn a_job_that_asks_for_certain_nodes_fits_only_if_these_are_idle() {
        let mut nodes = Nodes::default();
        for (name, features) in [("n1", "(null)"), ("n2", "ib,h100")] {
            nodes.take(&format!(
                "NodeName={name} ActiveFeatures={features} Gres=gpu:8 GresUsed=gpu:0 State=IDLE Partitions=main"
            ));
        }
        for (id, count, nodelist, reservation, features, fits) in [
            ("7", 1, "", "(null)", "(null)", true),
            ("7", 1, "(null)", "", "", true),
            ("7", 1, "", "(null)", "ib", true),
            ("7", 1, "", "(null)", "ib&h100", true),
            ("7", 2, "", "(null)", "ib,h100", false),
            ("7", 1, "", "(null)", "roce", false),
            // Not known here.
            ("7", 1, "", "(null)", "ib|roce", false),
            ("7", 1, "", "(null)", "[rack1*1&rack2*1]", false),
            ("7", 1, "n9", "(null)", "(null)", false),
            ("7", 1, "", "weekend", "(null)", false),
            ("7+1", 1, "", "(null)", "(null)", false),
        ] {
            let asked = format!("{count}|{count}|N/A|gres:gpu:8|N/A|N/A|cpu=1|1796058494|main");
            let line = format!("{id}|PENDING|{asked}|{nodelist}|{reservation}|Resources|{features}|");
            let queue = queue(&[&line]);
            assert_eq!(queue.pending[&Reason::Resources].jobs, 1, "{line}");
            assert_eq!(queue.fitting(&nodes).len(), usize::from(fits), "{line}");
        }
    }

    #[test]
    fn a_job_that_was_requeued_waits() {
        for (state, counted) in [
            ("PENDING", "pending"),
            ("REQUEUE_HOLD", "pending"),
            ("SPECIAL_EXIT", "pending"),
            ("REQUEUED", "pending"),
            ("RUNNING", "running"),
            ("RESIZING", "running"),
            ("STOPPED", "suspended"),
            ("COMPLETING", "completing"),
            ("REVOKED", "other"),
        ] {
            let asked = "1|1|N/A|gres:gpu:8|N/A|N/A|cpu=1|N/A|main||(null)";
            let queue = queue(&[&format!("7|{state}|{asked}|launch failed requeued held|(null)|")]);
            assert_eq!(queue.by_state.get(counted), Some(&1), "{state}");
            let held = queue.pending.get(&Reason::Held).map(|pending| pending.gpus);
            assert_eq!(held, (counted == "pending").then_some(8), "{state}");
        }
    }

    const FIELD: &str = "[0-9A-Za-z_:=,\\[\\]-]{0,9}";

    proptest::proptest! {
        #[test]
        fn any_line_is_a_job_or_none(
            line: String,
            fields in proptest::collection::vec(FIELD, FIELDS),
        ) {
            let mut queue = Queue::default();
            queue.take(&line);
            queue.take(&(fields.join("|") + "|"));
            queue.take(&format!("1|PENDING|1K|9|{}|1|a|||Resources|{line}|", [line.as_str(); 5].join("|")));
            let _ = queue.fitting(&Nodes::default());
        }
    }
}
