//! The text of facts, sentences, targets, observations and suspects. It is made here, and no code
//! parses it.

mod facts;
mod jobs;
mod saves;
mod starts;

use core::fmt;
use std::borrow::Cow;

use crate::clause;
use crate::clause::Clause;
use crate::clause::Fact;
use crate::elsewhere::Elsewhere;
use crate::evidence::{Evidence, LastGood, Observation, SettingChange};
use crate::fault::{Fault, Said};
use crate::number::{Num, number};
use crate::suspect::Suspect;
use crate::target::{Place, Storage, Target, Unit};
use saves::of_saves;
use starts::of_start;

/// The most nodes named for one value of a setting, and the most runs named that spiked.
const NAMED: usize = 3;
/// The most characters shown of a value of a setting.
const VALUE_MAX: usize = 60;

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { node } => write!(f, "node {node}"),
            Self::Gpu { node, .. } => write!(f, "node {node}, {}", self.name()),
            Self::Link { node, .. } | Self::Part { node, .. } => write!(f, "node {node}, {}", self.name()),
            Self::Rank { .. } => rank(self, f),
            Self::Ranks { ranks, hosts } => {
                let s = if ranks.len() == 1 { "" } else { "s" };
                write!(f, "rank{s} {}", ranks.join(", "))?;
                if hosts.is_empty() { Ok(()) } else { write!(f, " on {}", hosts.join(", ")) }
            }
            Self::Stage { stage } => write!(f, "stage {stage}"),
            Self::Layer { name } => write!(f, "layer {name}"),
            Self::Batch { step } => write!(f, "data batch of step {step}"),
            Self::Recipe { step } => write!(f, "the batch of step {step}, or the recipe"),
            Self::LearningRate => f.write_str("the learning rate"),
            Self::Setting { key } => write!(f, "setting {key}"),
            Self::Setup => f.write_str("the set-up of the run"),
            Self::Checkpoint { step } => write!(f, "the checkpoint of step {step}"),
            Self::DataLoading => f.write_str("data loading"),
            Self::Saving => f.write_str("saving of checkpoints"),
            Self::Storage(Storage::OfNodes) => f.write_str("storage that the nodes share"),
            Self::Storage(Storage::OfCheckpoints) => f.write_str("storage of the checkpoints"),
            Self::Storage(Storage::SlowCheckpoints) => f.write_str("checkpoint storage"),
            Self::Switch => f.write_str("switch or cable that the nodes share"),
            Self::Power => f.write_str("power or cooling that the nodes share"),
            Self::Signal { name } => f.write_str(name),
            Self::Source { source } => f.write_str(source),
            Self::Incident { place, .. } => f.write_str(place),
            Self::Fleet(Unit::Ranks) => f.write_str("no single rank"),
            Self::Fleet(Unit::Nodes) => f.write_str("no single node"),
        }
    }
}

/// `rank 5 on gpu-7 (local rank 3)`, or as much of it as is known.
fn rank(target: &Target, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Target::Rank { rank, local_rank, node } = target else { return Ok(()) };
    match (rank, local_rank) {
        (Some(rank), _) => write!(f, "rank {rank}")?,
        (None, Some(local)) => write!(f, "local rank {local}")?,
        (None, None) => f.write_str("a rank")?,
    }
    let Some(node) = node else { return Ok(()) };
    write!(f, " on {node}")?;
    match (rank, local_rank) {
        (Some(_), Some(local)) => write!(f, " (local rank {local})"),
        _ => Ok(()),
    }
}

impl Target {
    /// The name of a part without its node: `GPU 3 (GPU-2f3c…)`, `mlx5_0/1 (InfiniBand)`. The
    /// full name of other targets; empty for a GPU of which nothing is known.
    pub fn name(&self) -> String {
        match self {
            Self::Gpu { index, uuid, pci, .. } => {
                let id = if uuid.is_empty() { pci } else { uuid };
                match (index, id.as_str()) {
                    (Some(index), id) => format!("GPU {index} ({id})"),
                    (None, "") => String::new(),
                    (None, _) if !uuid.is_empty() && id.starts_with("GPU-") => id.clone(),
                    (None, id) => format!("the GPU at {id}"),
                }
            }
            Self::Link { name, medium, .. } if medium.is_empty() => name.clone(),
            Self::Link { name, medium, .. } => format!("{name} ({})", medium_name(medium)),
            Self::Part { name, .. } => name.clone(),
            other => other.to_string(),
        }
    }
}

fn medium_name(medium: &str) -> &str {
    match medium {
        "infiniband" => "InfiniBand",
        "roce" => "RoCE",
        "efa" => "EFA",
        "ethernet" => "Ethernet",
        "nvlink" => "NVLink",
        "pcie" => "PCIe",
        other => other,
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => f.write_str(node),
            Self::Other(target) => target.fmt(f),
        }
    }
}

impl Place {
    /// A sort key that does not change with the wording.
    pub fn key(&self) -> Cow<'_, str> {
        match self {
            Self::Node(node) => node.into(),
            Self::Other(target) => target.to_string().into(),
        }
    }
}

impl Suspect {
    /// `rank 17`, `node gpu-042`, `data batch of step 31215`.
    pub fn what(&self) -> String {
        self.target.to_string()
    }

    pub fn why(&self) -> String {
        chain(&self.evidence)
    }

    /// The target and its evidence, as a part of a sentence.
    pub fn clause(&self) -> Clause {
        let (suspect, evidence) = (self.target.clone(), Fact::Evidence(self.evidence.clone()));
        clause!("{suspect}: {evidence}", suspect, evidence)
    }
}

impl Elsewhere {
    /// `3 other runs (a, b, c) and attempt 1 of this one`.
    pub fn words(&self) -> String {
        self.clause().to_string()
    }

    /// The text of [`Self::words`], as a part of a sentence.
    pub fn clause(&self) -> Clause {
        let runs = (!self.runs.is_empty()).then(|| {
            let n = self.runs.len();
            let mut names: Vec<String> = self.runs.iter().take(NAMED).cloned().collect();
            if n > NAMED {
                names.push("...".to_owned());
            }
            clause!("{runs} other run{s} ({names})", runs = n, s = if n == 1 { "" } else { "s" }, names)
        });
        let attempts = (!self.attempts.is_empty()).then(|| {
            let s = if self.attempts.len() == 1 { "" } else { "s" };
            let attempts = Fact::Counts(self.attempts.iter().copied().map(i64::from).collect());
            clause!("attempt{s} {attempts} of this run", s, attempts)
        });
        match (runs, attempts) {
            (Some(runs), Some(attempts)) => clause!("{runs} and {attempts}", runs, attempts),
            (runs, attempts) => runs.or(attempts).unwrap_or_default(),
        }
    }
}

fn joined<T: fmt::Display>(all: &[T], between: &str) -> String {
    all.iter().map(T::to_string).collect::<Vec<_>>().join(between)
}

/// Evidence in one line.
fn chain(evidence: &[Evidence]) -> String {
    joined(evidence, "; ")
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(of) = &self.of {
            write!(f, "{of}: ")?;
        }
        self.observation.fmt(f)?;
        self.score.map_or(Ok(()), |score| write!(f, " (score {:.1})", score.0))
    }
}

impl Observation {
    /// The first part of the observation, and the rest if there is more.
    pub(crate) fn parts(&self) -> (Clause, Option<Clause>) {
        match self {
            Self::SlowClock {
                value: Num(clock), expected: Num(peers), reasons, temperature, power, ..
            } => {
                let clocks = clause!(
                    "SM clock {clock} GHz, its peers under load {peers} GHz ({percent} %)",
                    clock = clock / 1e9,
                    peers = peers / 1e9,
                    percent = Fact::decimal(100.0 * clock / peers, 0),
                );
                (clocks, Some(held_down(reasons, *temperature, *power)))
            }
            Self::LinksDown { nodes, total, at_least, words } => {
                (links_down(nodes, *total, *at_least), Some(Clause::words(words.as_str())))
            }
            other => (clause!("{seen}", seen = other), None),
        }
    }
}

/// The number of ranks and devices that were compared.
fn compared(ranks: u64, devices: u64) -> String {
    match (ranks, devices) {
        (ranks, 0) => format!("{ranks} ranks"),
        (0, devices) => format!("{devices} GPUs and ports"),
        (ranks, devices) => format!("{ranks} ranks and {devices} GPUs and ports"),
    }
}

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SlowClock { .. } | Self::LinksDown { .. } => {
                let (what, rest) = self.parts();
                what.fmt(f)?;
                rest.map_or(Ok(()), |rest| write!(f, "; {rest}"))
            }
            Self::StoppedEarly { .. } | Self::NoHeartbeat { .. } | Self::AllStopped { .. } => {
                stopped(self, f)
            }
            Self::Died { at, words, .. } => write!(f, "died at {at}: {words}"),
            Self::FailedFirst { at, words, .. } => write!(f, "failed first, at {at}: {words}"),
            Self::ExporterSilent { .. }
            | Self::ExporterLost { .. }
            | Self::SourceLost { .. }
            | Self::RanksSilent
            | Self::NodeSilent { .. } => silence(self, f),
            Self::Fault { fault, .. } => self::fault(fault, f),
            Self::Shared { places, nodes, first, evidence } => {
                write!(f, "{places} of {nodes} nodes have it alike, {first} first: {}", chain(evidence))
            }
            Self::NoFault { nodes } => {
                write!(f, "none of {nodes} nodes reported a fault in the ten minutes before")
            }
            Self::NothingStandsOut { ranks, devices } => nothing_stands_out(*ranks, *devices, f),
            Self::AlertFires { alert } => write!(f, "{alert} fires for it"),
            Self::Incident { id, kind } => write!(f, "{} ({id})", kind.title()),
            Self::Reported { words, .. } | Self::Stated { words } => f.write_str(words),
            Self::ComputesLonger { .. }
            | Self::UnevenWork
            | Self::SlowestRotates
            | Self::StageSlower { .. }
            | Self::OwnLoss { .. }
            | Self::WaitsForData { .. }
            | Self::AllWaitForData { .. }
            | Self::StepsWaitForData
            | Self::CheckpointOpen
            | Self::CheckpointSlower
            | Self::SetUpDifferently { .. }
            | Self::Setting { .. }
            | Self::ChangedSinceGood { .. }
            | Self::AlsoDifferent { .. }
            | Self::SettingComputesLonger { .. }
            | Self::SpikedElsewhere(_)
            | Self::RateChanged { .. }
            | Self::LayerOut { .. }
            | Self::OutOfPlace
            | Self::LowestEvaluation { .. } => of_run(self, f),
            Self::ProcessesLeft { job, user, pids } => jobs::processes_left(job, user, pids, f),
            Self::LoadsLonger { .. }
            | Self::SlowerWhileSaving { .. }
            | Self::EachSaveSlower { .. }
            | Self::FullWhileSaving { .. }
            | Self::SlowerTogether { .. } => of_saves(self, f),
            Self::Reading { .. }
            | Self::RowsRemapped { .. }
            | Self::MemoryErrors { .. }
            | Self::IdleInCollective
            | Self::WorksInCollective => of_device(self, f),
            Self::RanksMissing { .. }
            | Self::LateInInit { .. }
            | Self::NoRankOnNode { .. }
            | Self::NoProcess { .. }
            | Self::ProcessSilent { .. }
            | Self::NotConnected { .. }
            | Self::MasterUnreached { .. }
            | Self::NoRasAnswer { .. } => of_start(self, f),
        }
    }
}

fn nothing_stands_out(ranks: u64, devices: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let compared = compared(ranks, devices);
    write!(
        f,
        "the whole run slowed alike and none of {compared} stands out: look at data, evaluation or software"
    )
}

/// Text of the observations about ranks that make no step.
fn stopped(o: &Observation, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match o {
        Observation::StoppedEarly { step, others } => {
            write!(f, "stopped at step {step}, the others reached {others}")
        }
        Observation::NoHeartbeat { seconds } => {
            write!(f, "no heartbeat for {seconds} s while other ranks send theirs")
        }
        Observation::AllStopped { ranks, step } => write!(
            f,
            "all {ranks} ranks stopped at step {step}: look at the collective, storage or data they share"
        ),
        _ => Ok(()),
    }
}

/// Text of the observations about targets that do not report any more.
fn silence(o: &Observation, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    use Observation as O;
    match o {
        O::ExporterSilent { since, reason } => {
            write!(f, "its exporter does not answer since {since}: {reason}")
        }
        O::ExporterLost { source, reason } => {
            write!(f, "its exporter at {source} does not answer: {reason}")
        }
        O::SourceLost { reason } => f.write_str(reason),
        O::RanksSilent => {
            f.write_str("nothing was heard of its ranks since those of the other nodes began to die")
        }
        O::NodeSilent { lasts } => write!(
            f,
            "nothing was heard of the node for {lasts}: its host, its exporter or its driver does \
             not answer"
        ),
        _ => Ok(()),
    }
}

/// The advice about a rank whose own loss deviated in `times` steps, if that is known.
fn replay(times: Option<u32>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const ADVICE: &str = ": replay the batch on another GPU";
    match times {
        None => Ok(()),
        Some(0 | 1) => f.write_str(ADVICE),
        Some(n) => write!(f, ", and it was out of line in {n} steps{ADVICE}"),
    }
}

/// What the other layers did when one deviated.
fn other_layers(together: u64, out: u64, layers: u64) -> String {
    match (together, out) {
        (1, 1) => format!("alone of {layers} layers"),
        (1, n) => format!("before {} others of {layers} layers", n.saturating_sub(1)),
        (n, _) => format!("farthest of {n} that went in one report, of {layers} layers"),
    }
}

/// Text of the observations about the run.
fn of_run(o: &Observation, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    use Observation as O;
    match o {
        O::ComputesLonger { .. } => computes_longer_than_others(o, f),
        O::UnevenWork => f.write_str("many ranks are slow alike: look at how the work is split"),
        O::SlowestRotates => {
            f.write_str("the slowest rank changes from step to step: look at the work, not at a host")
        }
        O::StageSlower { stage, value } => write!(
            f,
            "the ranks of stage {stage} compute {value} times as long as those of the other stages, \
             and agree with each other: the layers are not evenly partitioned"
        ),
        O::OwnLoss { step, value, expected, others, times } => {
            write!(
                f,
                "its own loss was {value} at step {step}, that of the {others} other ranks {expected}"
            )?;
            replay(*times, f)
        }
        O::WaitsForData { since_step, value } => write!(
            f,
            "waits for data longer than the other ranks since step {since_step}, by {} % of the \
             compute time of a step: look at its loader and at the storage of its node",
            number(100.0 * value.0)
        ),
        O::AllWaitForData { value, expected } => write!(
            f,
            "every rank waits for data {value} s a step, usually {expected} s: look at the loader \
             and at the storage behind it"
        ),
        O::StepsWaitForData => f.write_str("the steps wait for it, and no rank alone"),
        O::CheckpointOpen => {
            f.write_str("a checkpoint had begun and did not end: look at the storage that it is written to")
        }
        O::CheckpointSlower => f.write_str("it takes longer to write than before"),
        O::SetUpDifferently { key } => write!(f, "is set up differently: {key}"),
        O::Setting { key, value, expected, on } => {
            let (value, expected) = (short(value), short(expected));
            match on {
                None => write!(f, "{key} is {value}, elsewhere {expected}"),
                Some([these, those]) => {
                    write!(f, "{key} is {value} on {}, {expected} on {}", names(these), names(those))
                }
            }
        }
        O::ChangedSinceGood { change, good } => write!(f, "{change} in {good}"),
        O::AlsoDifferent { changes, more, good } => {
            write!(f, "also different from {good}: {}", joined(changes, "; "))?;
            if *more == 0 { Ok(()) } else { write!(f, "; and {more} more") }
        }
        O::SettingComputesLonger { .. } => computes_longer(o, f),
        O::SpikedElsewhere(elsewhere) => {
            write!(f, "{} spiked at the same place in the data", elsewhere.words())
        }
        O::RateChanged { step, value, expected, before } => {
            write!(f, "it went from {expected} to {value} at step {step}, {before} steps before")
        }
        O::LayerOut { signal, value, expected, since_step, together, out, layers } => {
            let others = other_layers(*together, *out, *layers);
            let out = out_of_line(value.0, expected.0);
            write!(f, "its {signal} is {out} since step {since_step}, {others}")
        }
        O::OutOfPlace => f.write_str("it is out of place as well"),
        O::LowestEvaluation { name } => write!(f, "evaluation {name} was at its lowest there"),
        _ => Ok(()),
    }
}

impl fmt::Display for SettingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: &Option<String>| value.as_deref().map_or_else(|| "not set".to_owned(), short);
        write!(f, "{} is {}, and was {}", self.key, value(&self.after), value(&self.before))
    }
}

impl fmt::Display for LastGood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run { run } => write!(f, "{run}, the last good run"),
            Self::Attempt { attempt } => write!(f, "attempt {attempt} of this run, the last good one"),
            Self::Before => f.write_str("this attempt while it was good"),
        }
    }
}

/// Text of a rank that computes longer than the other ranks.
fn computes_longer_than_others(o: &Observation, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Observation::ComputesLonger { value, others, stage, since_step } = o else { return Ok(()) };
    let stage = stage.map(|stage| format!(" of stage {stage}")).unwrap_or_default();
    let peers = match others {
        1 => format!("the other rank{stage}"),
        n => format!("the other {n} ranks{stage}"),
    };
    write!(f, "computes {value} times as long as {peers} since step {since_step}")
}

/// Text of a comparison of the nodes with one value of a setting with those with another.
fn computes_longer(o: &Observation, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Observation::SettingComputesLonger { key, value, expected, nodes, others, seconds, usual, step } = o
    else {
        return Ok(());
    };
    let count = |n: u64| format!("{n} node{}", if n == 1 { "" } else { "s" });
    let (value, expected) = (short(value), short(expected));
    let (longer, usual) = (Fact::Seconds(*seconds), Fact::Seconds(*usual));
    write!(
        f,
        "{key} is {value} on {}, whose ranks compute {longer} a step; on the {} with {expected} they \
         compute {usual}",
        count(*nodes),
        count(*others),
    )?;
    step.map_or(Ok(()), |step| write!(f, ", and the step of all takes {}", Fact::Seconds(step)))
}

/// Text of the observations about a device.
fn of_device(o: &Observation, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    use Observation as O;
    match o {
        O::Reading { metric, value, expected, unit, mean } => {
            let (unit, mean) = (unit.as_str(), if *mean { " on average" } else { "" });
            write!(f, "{metric} {value} {unit}{mean}, its peers {expected} {unit}")
        }
        O::RowsRemapped { rows, uncorrectable } => {
            let (noun, verb) = if rows.0 == 1.0 { ("row", "was") } else { ("rows", "were") };
            let which = if *uncorrectable { "with uncorrectable errors" } else { "of its memory" };
            write!(f, "{rows} {noun} {which} {verb} remapped today")
        }
        O::MemoryErrors { value, expected } => {
            let usual = if expected.0 < 0.5 { "hardly any".to_owned() } else { number(expected.0.round()) };
            write!(f, "{value} corrected memory errors within an hour, usually {usual}")
        }
        O::IdleInCollective => {
            f.write_str("is idle while the others spin in a collective: its rank did not come to it")
        }
        O::WorksInCollective => {
            f.write_str("still works while the others spin in a collective: its rank has not come to it")
        }
        _ => Ok(()),
    }
}

/// The hardware's reasons for a slow clock, with the temperature and the power.
fn held_down(reasons: &[String], temperature: Option<Num>, power: Option<[Num; 2]>) -> Clause {
    let why = if reasons.is_empty() {
        clause!("the driver gives no reason")
    } else {
        let reasons: Vec<String> = reasons.iter().map(|r| r.replace('_', " ")).collect();
        clause!("held down by {reasons}", reasons)
    };
    let heat = temperature.map(|celsius| clause!(", {celsius} °C", celsius));
    let load = power.map(|[watts, limit]| clause!(", {watts} of {limit} W", watts, limit));
    clause!("{why}{heat}{load}", why, heat, load)
}

fn fault(fault: &Fault, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let title = fault.title();
    match &fault.said {
        Said::Nothing => f.write_str(&title),
        Said::Named { name, hint: Some(hint) } => write!(f, "{title}, {name}: {hint}"),
        Said::Named { name, hint: None } => write!(f, "{title}: {name}"),
        Said::Sentence { text } => f.write_str(text),
    }
}

fn links_down(nodes: &[String], total: u64, at_least: bool) -> Clause {
    let more = total.saturating_sub(nodes.len() as u64);
    let others = match (at_least, more) {
        (true, _) => Some(clause!(" and others")),
        (false, 0) => None,
        (false, more) => Some(clause!(" and {more} more", more)),
    };
    clause!(
        "links of {total}{or_more} nodes ({nodes}{others}): look at the switch or cable that they share",
        total,
        or_more = if at_least { " or more" } else { "" },
        nodes = nodes.to_vec(),
        others,
    )
}

/// How far a value is from its usual one.
pub fn out_of_line(value: f64, usual: f64) -> Clause {
    if !value.is_finite() {
        return clause!("{value}", value);
    }
    clause!("{value} ({times}x its usual {usual})", value, times = value / usual, usual)
}

/// A value, shortened to `VALUE_MAX` characters.
pub fn short(value: &str) -> String {
    if value.chars().count() <= VALUE_MAX {
        return value.to_owned();
    }
    value.chars().take(VALUE_MAX - 1).chain(['…']).collect()
}

/// The first names, and the number of the others.
pub fn names<S: AsRef<str>>(nodes: &[S]) -> String {
    let mut names = nodes.iter().take(NAMED).map(AsRef::as_ref).collect::<Vec<&str>>().join(", ");
    let more = nodes.len().saturating_sub(NAMED);
    if more > 0 {
        names = format!("{names} and {more} more node{}", if more == 1 { "" } else { "s" });
    }
    names
}

impl fmt::Display for Num {
    /// Four significant digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&number(self.0))
    }
}

/// What an incident is about: `llama-70b`, `gpu-042`, `llama-70b on gpu-042 and 2 more`.
pub fn place(run: &str, nodes: &[String]) -> String {
    let nobody = run == crate::NO_RUN;
    let run = if nobody { "" } else { run };
    let nodes = match nodes {
        [] => return if nobody { "no run" } else { run }.to_owned(),
        [node] => node.clone(),
        [node, others @ ..] => format!("{node} and {} more", others.len()),
    };
    if run.is_empty() { nodes } else { format!("{run} on {nodes}") }
}
