//! What the nodes of a run show of its start: ranks without a process, nodes that are not connected
//! to the place where the ranks meet, and ranks that NCCL does not hear.
//!
//! A node is only named beside others that are better off. Where no node gets an answer, it is the
//! master that does not give one. Once all ranks have met, connections say nothing any more.

use std::collections::BTreeSet;

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
    pub(crate) meetings: Vec<(&'a str, &'a Meeting)>,
    pub(crate) unanswered: Vec<&'a Unanswered>,
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
    /// No node gets an answer from the master, and so many try.
    MasterSilent {
        master: &'a str,
        nodes: usize,
    },
    Nodes(Vec<Lacking<'a>>),
}

impl<'a> Shown<'a> {
    /// The node on which the rank has a process.
    pub(super) fn process_on(&self, rank: u32) -> Option<&'a str> {
        self.meetings.iter().find(|(_, m)| m.ranks.contains(&rank)).map(|(node, _)| *node)
    }

    /// The ranks without a process, by node, with the number of ranks that have one there.
    fn absent(&self, s: &Starting) -> impl Iterator<Item = (&'a str, Vec<u32>, u64)> {
        let without = move |rank: &u32| !s.has(*rank) && self.process_on(*rank).is_none();
        let of_node = move |(node, m): &(&'a str, &'a Meeting)| {
            let ranks: Vec<u32> = m.absent.iter().copied().filter(without).collect();
            (!ranks.is_empty()).then_some((*node, ranks, m.ranks.len() as u64))
        };
        self.meetings.iter().filter_map(of_node)
    }

    pub(super) fn absent_ranks(&self, s: &Starting) -> BTreeSet<u32> {
        self.absent(s).flat_map(|(_, ranks, _)| ranks).collect()
    }

    fn way(&self, now: Ts, s: &Starting) -> Way<'a> {
        let clients = || self.meetings.iter().filter(|(_, m)| !m.listens);
        let is_through = |m: &Meeting| m.ranks.iter().any(|rank| s.is_through(*rank));
        let lacks = |(node, m): &(&'a str, &'a Meeting)| match m.link {
            Link::Lacking(link) if now - m.since >= LASTS && !is_through(m) => {
                Some(Lacking { node: *node, master: &m.master, link, lasts: now - m.since })
            }
            _ => None,
        };
        if s.has_met() {
            return Way::Nodes(Vec::new());
        }
        let lacking: Vec<Lacking<'a>> = clients().filter_map(lacks).collect();
        let connected = clients().filter(|(_, m)| m.link == Link::Connected).count();
        let is_reached = connected > 0 || self.meetings.iter().any(|(_, m)| m.listens && m.peers > 0);
        let (silent, mut nothing): (Vec<_>, Vec<_>) =
            lacking.into_iter().partition(|one| one.link == MasterLink::Unanswered);
        if let Some(one) = silent.first()
            && !is_reached
            && silent.len() > 1
        {
            return Way::MasterSilent { master: one.master, nodes: silent.len() };
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
            Way::MasterSilent { master, nodes } => {
                let why = || Observation::MasterUnreached { master: master.to_owned(), nodes: nodes as u64 };
                let listens = self.meetings.iter().filter(|(_, m)| m.listens && m.master == master);
                all.extend(listens.map(|(node, _)| Suspect::new(Target::node(*node), why())));
            }
            Way::Nodes(lacking) => all.extend(lacking.into_iter().map(|one| {
                let Lacking { node, master, link, lasts } = one;
                let why = Observation::NotConnected { master: master.to_owned(), link, lasts };
                Suspect::new(Target::node(node), why)
            })),
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

    pub(super) fn unheard_suspects(&self, f: &RunState) -> Vec<Suspect> {
        let Some(unheard) = self.unheard(f) else { return Vec::new() };
        let suspect = |(rank, host): &(u32, String)| {
            let target = match self.process_on(*rank) {
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
            Way::MasterSilent { master, nodes } => {
                let master = Fact::text(master);
                all.push(clause!(
                    "none of {nodes} nodes gets an answer from the master {master}",
                    nodes,
                    master
                ));
            }
            Way::Nodes(lacking) if !lacking.is_empty() => {
                named.extend(lacking.iter().take(LISTED).map(|one| Target::node(one.node)));
                let parts = lacking.iter().take(LISTED).map(Lacking::clause).collect();
                let (parts, more) = (Fact::joined(parts, ", "), more(lacking.len()));
                all.push(clause!("{parts}{more}", parts, more));
            }
            Way::Nodes(_) => {}
        }
        if let Some((node, m)) = self.meetings.iter().find(|(_, m)| m.listens && !s.has_met()) {
            let (node, master) = (Fact::text(*node), Fact::text(&*m.master));
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
