//! Finds the owner of telemetry that does not name its run: the job that it names, the process that
//! sends it, or its service.

use std::collections::{BTreeMap, BTreeSet};

use stepwatch_kit::serve::Ends;
use stepwatch_wire::run_name::{self, By, Named};

use crate::hub::Hub;
use crate::identity::peer::{self, Holder};
use crate::identity::{self, Claim};
use crate::principal::Principal;
use crate::readings::Who;
use crate::roots::Roots;

/// The most senders kept. Above it, all are looked up again.
const MAX_KNOWN: usize = 4096;
/// The most processes that a request may name.
const MAX_NAMED: usize = 8;
/// Seconds after which a sender is looked up again, because its port may belong to another process.
const KNOWN_SECONDS: f64 = 60.0;

/// The run and rank in the telemetry, the ends of the connection, and the sender.
type Sender = (String, u32, Option<Ends>, Principal);

/// The runs that were found for senders, and when.
#[derive(Debug, Default)]
pub(super) struct Owners {
    known: BTreeMap<Sender, (f64, String)>,
}

/// The facts from which a sender's run is found.
pub(super) struct Asked<'a> {
    pub(super) hub: &'a Hub,
    pub(super) ends: Option<Ends>,
    /// The process at the other end of the connection, and the rule's name of its run.
    pub(super) process: Option<(u32, Named)>,
    /// The processes of this node that the telemetry names and that were looked at, if the other
    /// end is not known; `None` for one that does not train.
    pub(super) named: BTreeMap<u32, Option<Named>>,
    pub(super) principal: Principal,
    pub(super) now: f64,
}

impl Owners {
    /// Whether the run of a report is already known.
    pub(super) fn knows(&self, who: &Who, asked: &Asked<'_>) -> bool {
        self.run_of(&sender_of(who, asked), asked.now).is_some()
    }

    /// Sets the run of a report. Returns false if it would have to be looked up and `left` is zero,
    /// or its process was not looked at.
    pub(super) fn settle(&mut self, who: &mut Who, asked: &Asked<'_>, left: &mut usize) -> bool {
        let key = sender_of(who, asked);
        if let Some(run) = self.run_of(&key, asked.now) {
            who.run.clone_from(run);
            return true;
        }
        let is_looked_at = |pid| asked.process.is_some() || asked.named.contains_key(&pid);
        if *left == 0 || !pid_here(who, asked.hub.node()).is_none_or(is_looked_at) {
            return false;
        }
        *left -= 1;
        let run = asked.hub.claim(asked.now, claim(who, asked));
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(key, (asked.now, run.clone()));
        who.run = run;
        true
    }

    fn run_of(&self, sender: &Sender, now: f64) -> Option<&String> {
        self.known.get(sender).filter(|(at, _)| now - at < KNOWN_SECONDS).map(|(_, run)| run)
    }
}

fn sender_of(who: &Who, asked: &Asked<'_>) -> Sender {
    (who.run.clone(), who.rank, asked.ends, asked.principal)
}

/// The process that has the socket at the other end, if it trains rather than forwards the
/// measurements of others.
pub(super) fn process(roots: &Roots, holder: Holder) -> Option<(u32, Named)> {
    let pid = peer::pid_of(roots, holder)?;
    Some((pid, identity::script_named(roots, pid)?))
}

/// The first processes of this node that the telemetry of `unknown` senders names. It may name any
/// number of them, and their users decide how long each takes to read; the next request brings the
/// others again.
pub(super) fn named<'a>(
    roots: &Roots,
    node: &str,
    unknown: impl Iterator<Item = &'a Who>,
) -> BTreeMap<u32, Option<Named>> {
    let pids: BTreeSet<u32> = unknown.filter_map(|who| pid_here(who, node)).collect();
    pids.into_iter().take(MAX_NAMED).map(|pid| (pid, identity::script_named(roots, pid))).collect()
}

fn pid_here(who: &Who, node: &str) -> Option<u32> {
    who.place.pid.filter(|_| who.place.host.as_deref() == Some(node))
}

fn claim(who: &Who, asked: &Asked<'_>) -> Claim {
    let place = &who.place;
    let sender = sender(who, asked);
    let pid = sender.as_ref().map(|(pid, _)| *pid);
    let from = match (pid, asked.ends) {
        (Some(pid), _) => format!("pid {pid}"),
        (None, Some(ends)) => ends.peer.ip().to_string(),
        (None, None) => "a sender".to_owned(),
    };
    let mut claim = Claim {
        kind: "otlp".to_owned(),
        source: format!("{from}, {}, rank {}", who.run, who.rank),
        pid,
        job: place.job.clone(),
        run: who.run.clone(),
        by: None,
        why: "named by its service, for neither its job nor its process is known".to_owned(),
        unnamed: None,
        principal: asked.principal,
    };
    let known = place
        .job
        .as_ref()
        .and_then(|id| asked.hub.jobs(asked.principal).into_iter().find(|(job, _)| job == id));
    if let Some((pid, Named { run, by, why, unnamed, job, .. })) = sender {
        claim.why = format!("pid {pid} sends it: {why}");
        claim.job = job.map(|job| job.id).or(claim.job);
        (claim.run, claim.by, claim.unnamed) = (run, Some(by), Some(unnamed));
    } else if let Some((id, unnamed)) = known {
        claim.why = format!("its attributes have the id of job {id}");
        (claim.run, claim.by, claim.unnamed) = (unnamed.clone(), Some(By::Job), Some(unnamed));
    } else if let (Some(id), Some(name)) = (&place.job, &place.job_name) {
        claim.why = format!("its attributes have job {id}, named {name}");
        let unnamed = run_name::name_of_job(Some(name), id);
        (claim.run, claim.by, claim.unnamed) = (unnamed.clone(), Some(By::Job), Some(unnamed));
    } else if who.certain {
        claim.why = "named by its attributes".into();
    }
    if let Some(attribute) = place.given {
        (claim.run, claim.by) = (who.run.clone(), Some(By::Name));
        claim.why = format!("named by its attribute {attribute}");
    }
    claim
}

/// The process of this node that trains and sends the telemetry, or that the telemetry names.
fn sender(who: &Who, asked: &Asked<'_>) -> Option<(u32, Named)> {
    let named = |pid: u32| Some((pid, asked.named.get(&pid)?.clone()?));
    asked.process.clone().or_else(|| named(pid_here(who, asked.hub.node())?))
}
