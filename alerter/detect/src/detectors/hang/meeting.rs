//! What the nodes of a run show of its start: ranks without a process, nodes that are not connected
//! to the place where the ranks meet, and ranks that NCCL does not hear.
//!
//! A node is only named beside others that are better off, and that have the same master. Where no
//! node gets an answer, it is the master that does not give one; where only one tries, that one and
//! the master are named. Once all ranks have met, connections say nothing any more.

use std::collections::{BTreeMap, BTreeSet};

use super::starting::{LISTED, listed, more};
use crate::node::starts::{Link, Meeting, Unanswered};
use crate::run::{RunState, Starting};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Clause, Fact, MasterLink, Observation, Suspect, Target, clause};

/// A node that has not been connected for less is about to be.
const LASTS: Span = Span::secs(60);

/// What is told of the start of one run.
#[derive(Debug, Default)]
pub(crate) struct Shown<'a> {
    /// By node. Pods of one node have a network each.
    meetings: Vec<(&'a str, Meeting)>,
    unanswered: Vec<&'a Unanswered>,
    /// The node on which a rank has a process.
    processes: BTreeMap<u32, &'a str>,
}

/// A node that is not connected to the master.
struct Lacking<'a> {
    node: &'a str,
    master: &'a str,
    link: MasterLink,
    lasts: Span,
}

/// The nodes that are not connected.
enum Way<'a> {
    /// No node gets an answer from the master, and these try.
    MasterSilent {
        master: &'a str,
        silent: Vec<Lacking<'a>>,
    },
    Nodes(Vec<Lacking<'a>>),
}

impl<'a> Shown<'a> {
    /// `world`: the ranks of the run. The ranks of another world, such as one launcher on each
    /// node, are not its ranks.
    pub(crate) fn new(
        world: Option<u32>,
        mut meetings: Vec<(&'a str, Meeting)>,
        unanswered: Vec<&'a Unanswered>,
    ) -> Self {
        for (_, m) in &mut meetings {
            if world.is_some() && m.world.is_some() && m.world != world {
                (m.ranks, m.absent) = (Vec::new(), Vec::new());
            }
        }
        let mut processes = BTreeMap::new();
        for (node, m) in &meetings {
            m.ranks.iter().for_each(|rank| _ = processes.entry(*rank).or_insert(*node));
        }
        Self { meetings, unanswered, processes }
    }

    /// The node on which the rank has a process.
    pub(super) fn process_on(&self, rank: u32) -> Option<&'a str> {
        self.processes.get(&rank).copied()
    }

    /// The ranks without a process, by node, with the number of ranks that have one there.
    fn absent(&self, s: &Starting) -> impl Iterator<Item = (&'a str, Vec<u32>, u64)> {
        let without = move |rank: &u32| !s.has(*rank) && self.process_on(*rank).is_none();
        let of_node = move |(node, m): &(&'a str, Meeting)| {
            let ranks: Vec<u32> = m.absent.iter().copied().filter(without).collect();
            (!ranks.is_empty()).then_some((*node, ranks, m.ranks.len() as u64))
        };
        self.meetings.iter().filter_map(of_node)
    }

    pub(super) fn absent_ranks(&self, s: &Starting) -> BTreeSet<u32> {
        self.absent(s).flat_map(|(_, ranks, _)| ranks).collect()
    }

    /// Where most nodes meet.
    fn master(&self) -> &str {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, m) in self.meetings.iter().filter(|(_, m)| !m.master.is_empty()) {
            *counts.entry(&m.master).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map_or("", |(master, _)| master)
    }

    /// The nodes that listen there.
    fn listeners(&self) -> impl Iterator<Item = (&'a str, &Meeting)> {
        let master = self.master();
        let of_master = self.meetings.iter().filter(move |(_, m)| m.listens && m.master == master);
        of_master.map(|(node, m)| (*node, m))
    }

    fn way(&self, now: Ts, s: &Starting) -> Way<'_> {
        let master = self.master();
        let clients = || self.meetings.iter().filter(move |(_, m)| !m.listens && m.master == master);
        let is_through = |m: &Meeting| m.ranks.iter().any(|rank| s.is_through(*rank));
        if s.has_met() {
            return Way::Nodes(Vec::new());
        }
        let lacks = clients().filter_map(|(node, m)| match m.link {
            Link::Lacking(link) if now - m.since >= LASTS && !is_through(m) => {
                Some(Lacking { node, master: &m.master, link, lasts: now - m.since })
            }
            _ => None,
        });
        let lacking: Vec<Lacking<'_>> = lacks.collect();
        let connected = clients().filter(|(_, m)| m.link == Link::Connected).count();
        let is_reached = connected > 0 || self.listeners().any(|(_, m)| m.peers > 0);
        let (silent, mut nothing): (Vec<_>, Vec<_>) =
            lacking.into_iter().partition(|one| one.link == MasterLink::Unanswered);
        if !is_reached && !silent.is_empty() {
            return Way::MasterSilent { master, silent };
        }
        // Where few are connected, ranks may meet elsewhere, or have not come that far.
        if !is_reached || 2 * nothing.len() > clients().count() {
            nothing.clear();
        }
        Way::Nodes(silent.into_iter().chain(nothing).collect())
    }

    /// Who keeps the others waiting, as far as processes and sockets show.
    pub(super) fn suspects(&self, now: Ts, s: &Starting) -> Vec<Suspect> {
        let absent = self.absent(s).map(|(node, ranks, there)| {
            let target = match ranks[..] {
                [rank] => Target::rank(rank, Some(node)),
                _ => Target::node(node),
            };
            Suspect::new(target, Observation::NoProcess { missing: ranks.len() as u64, there })
        });
        let mut all: Vec<Suspect> = absent.collect();
        match self.way(now, s) {
            Way::MasterSilent { master, silent } => {
                let why =
                    Observation::MasterUnreached { master: master.to_owned(), nodes: silent.len() as u64 };
                // Of two that listen, nobody knows which is the master.
                let mut listens = self.listeners();
                if let (Some((node, _)), None) = (listens.next(), listens.next()) {
                    all.push(Suspect::new(Target::node(node), why));
                }
                if let [one] = silent.as_slice() {
                    all.push(one.suspect());
                }
            }
            Way::Nodes(lacking) => all.extend(lacking.iter().map(Lacking::suspect)),
        }
        all
    }

    /// The ranks that NCCL does not hear, if its numbers are those of the run. Where it does not
    /// hear most of them, it is the one that asked who is alone.
    fn unheard(&self, f: &RunState) -> Option<&'a Unanswered> {
        let world = f.world.filter(|world| *world > 1)?;
        let is_of_run = |u: &&'a Unanswered| u.size == world && u.count < u64::from(u.size).div_ceil(2);
        self.unanswered.iter().copied().find(is_of_run)
    }

    pub(super) fn unheard_suspects(&self, f: &RunState, s: &Starting) -> Vec<Suspect> {
        let Some(unheard) = self.unheard(f) else { return Vec::new() };
        let suspect = |(rank, host): &(u32, String)| {
            let target = match self.process_on(*rank).filter(|_| !s.has(*rank)) {
                Some(node) => Target::rank(*rank, Some(node)),
                None => f.rank_target(*rank),
            };
            let why = Observation::NoRasAnswer { host: host.clone(), ranks: unheard.size.into() };
            Suspect::new(target, why)
        };
        unheard.ranks.iter().map(suspect).collect()
    }

    /// What is said of it beside the suspects, and the nodes that this names.
    pub(crate) fn clauses(&self, now: Ts, f: &RunState, s: &Starting) -> (Vec<Clause>, Vec<Target>) {
        let (mut all, mut named) = (Vec::new(), Vec::new());
        match self.way(now, s) {
            Way::MasterSilent { master, silent } => {
                let (nodes, master) = (silent.len(), Fact::text(master));
                if let [one] = silent.as_slice() {
                    named.push(Target::node(one.node));
                }
                all.push(match silent.as_slice() {
                    [one] => one.clause(),
                    _ => clause!(
                        "none of {nodes} nodes gets an answer from the master {master}",
                        nodes,
                        master
                    ),
                });
            }
            Way::Nodes(lacking) if !lacking.is_empty() => {
                named.extend(lacking.iter().take(LISTED).map(|one| Target::node(one.node)));
                let parts = lacking.iter().take(LISTED).map(Lacking::clause).collect();
                let (parts, more) = (Fact::joined(parts, ", "), more(lacking.len()));
                all.push(clause!("{parts}{more}", parts, more));
            }
            Way::Nodes(_) => {}
        }
        if let Some((node, m)) = self.listeners().next().filter(|_| !s.has_met()) {
            let (node, master) = (Fact::text(node), Fact::text(&*m.master));
            all.push(clause!(
                "{peers} other hosts are connected to the master {master} on {node}",
                peers = m.peers,
                master,
                node
            ));
        }
        if let Some(unheard) = self.unheard(f) {
            let ranks: Vec<u32> = unheard.ranks.iter().map(|(rank, _)| *rank).collect();
            let count = usize::try_from(unheard.count).unwrap_or(usize::MAX);
            all.push(clause!(
                "NCCL's RAS gets no answer from {count} of {world} ranks: {ranks}{more}",
                count,
                world = unheard.size,
                ranks = listed(&ranks),
                more = more(count),
            ));
        }
        (all, named)
    }
}

impl Lacking<'_> {
    fn suspect(&self) -> Suspect {
        let (master, link, lasts) = (self.master.to_owned(), self.link, self.lasts);
        Suspect::new(Target::node(self.node), Observation::NotConnected { master, link, lasts })
    }

    fn clause(&self) -> Clause {
        let (node, master) = (Fact::text(self.node), Fact::text(self.master));
        let lasts = self.lasts;
        match self.link {
            MasterLink::Unanswered => {
                clause!("{node}: SYN_SENT to the master {master} for {lasts}", node, master, lasts)
            }
            MasterLink::Nothing => {
                clause!("{node}: no connection to the master {master} for {lasts}", node, master, lasts)
            }
        }
    }
}
