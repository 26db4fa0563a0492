//! The text of what is observed of a start.

use core::fmt;

use crate::evidence::{MasterLink, Observation};

/// Text of the observations about ranks and nodes that a start waits for.
pub(super) fn of_start(o: &Observation, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    use Observation as O;
    match o {
        O::RanksMissing { missing: 1, there } => {
            write!(f, "has not said hello, while {there} ranks have")
        }
        O::RanksMissing { missing, there } => {
            write!(f, "its {missing} ranks have not said hello, while {there} others have")
        }
        O::LateInInit { others } => {
            write!(f, "has not come to the process group, to which {others} ranks have come")
        }
        O::NoRankOnNode { job } => write!(f, "{job} has the node, and no rank said hello there"),
        O::NoProcess { missing: 1, there } => {
            write!(f, "has no process on its node, where its launcher started {there} others")
        }
        O::NoProcess { missing, there } => {
            write!(f, "{missing} of its ranks have no process, {there} others have")
        }
        O::ProcessSilent { ranks: 1, there } => {
            write!(f, "has a process that has not said hello, while {there} ranks have")
        }
        O::ProcessSilent { ranks, there } => {
            write!(f, "its {ranks} ranks have processes that have not said hello, while {there} others have")
        }
        O::NotConnected { master, link: MasterLink::Unanswered, lasts } => {
            write!(f, "SYN_SENT to the master {master} for {lasts}: it gets no answer")
        }
        O::NotConnected { master, link: MasterLink::Nothing, lasts } => {
            write!(f, "no connection to the master {master} for {lasts}, while other nodes have one")
        }
        O::MasterUnreached { master, nodes: 1 } => {
            write!(f, "ranks meet there at {master}, and the one other node that tries gets no answer")
        }
        O::MasterUnreached { master, nodes } => {
            write!(f, "ranks meet there at {master}, and none of {nodes} other nodes gets an answer")
        }
        O::NoRasAnswer { host, ranks } => {
            let host = if host.is_empty() { String::new() } else { format!(" on {host}") };
            write!(f, "NCCL's RAS gets no answer from it{host}, of {ranks} ranks")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    #[test]
    fn a_node_that_never_connected_says_where_to_and_how_long() {
        let lasts = Span::secs(480);
        let master = || "10.0.0.1:29500".to_owned();
        let o = Observation::NotConnected { master: master(), link: MasterLink::Unanswered, lasts };
        assert_eq!(o.to_string(), "SYN_SENT to the master 10.0.0.1:29500 for 8m: it gets no answer");
        let o = Observation::NotConnected { master: master(), link: MasterLink::Nothing, lasts };
        let text = "no connection to the master 10.0.0.1:29500 for 8m, while other nodes have one";
        assert_eq!(o.to_string(), text);
        let o = Observation::NoRasAnswer { host: String::new(), ranks: 64 };
        assert_eq!(o.to_string(), "NCCL's RAS gets no answer from it, of 64 ranks");
    }
}
