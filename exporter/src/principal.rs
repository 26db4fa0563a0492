//! The senders of reports and the owners of runs: a run belongs to the user that opened it, and no
//! other user may report it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// The sender of a report, as far as the kernel identifies it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Principal {
    /// This exporter and its configuration.
    Exporter,
    /// A user of this node.
    User(u32),
    /// A sender on this node whose user is unknown.
    #[default]
    Unknown,
    /// A sender at this address, on another machine or in a network of its own, whose user is
    /// unknown. All addresses of an IPv6 /64 network are represented by its first one.
    Address(IpAddr),
}

/// Orders the entries so that users alternate: a limit on them leaves each user a share.
pub fn in_turn<T>(all: impl IntoIterator<Item = (Principal, T)>) -> Vec<T> {
    let mut of_users: BTreeMap<Principal, VecDeque<T>> = BTreeMap::new();
    for (principal, one) in all {
        of_users.entry(principal).or_default().push_back(one);
    }
    let mut turns = Vec::new();
    while !of_users.is_empty() {
        of_users.retain(|_, rest| {
            turns.extend(rest.pop_front());
            !rest.is_empty()
        });
    }
    turns
}

/// The user of this exporter.
static OWN: LazyLock<u32> = LazyLock::new(|| rustix::process::getuid().as_raw());

impl Principal {
    pub fn from_uid(uid: Option<u32>) -> Self {
        // The kernel uses this for a user without a number here.
        uid.filter(|uid| *uid != u32::MAX).map_or(Self::Unknown, Self::User)
    }

    /// The sender of a datagram to a socket of the file system, as far as the kernel proves it. It
    /// names the process that wrote, not the one that opened the socket: a user can make a program
    /// of root write to a socket, as `sudo` does with its prompt. So a datagram of root has the
    /// rights of an unknown sender.
    pub fn of_datagram(uid: Option<u32>) -> Self {
        Self::from_uid(uid.filter(|uid| *uid != 0))
    }

    pub fn uid(self) -> Option<u32> {
        if let Self::User(uid) = self { Some(uid) } else { None }
    }

    /// The value of a label.
    pub fn label(self) -> String {
        match self {
            Self::Exporter => "exporter".into(),
            Self::User(uid) => uid.to_string(),
            Self::Unknown => "unknown".into(),
            Self::Address(ip) => ip.to_string(),
        }
    }

    /// Whether the kernel shows no user. Each address has a user's share of all limits, but may
    /// report a run that another address opened, because the ranks of one run have many.
    pub fn is_unknown(self) -> bool {
        matches!(self, Self::Unknown | Self::Address(_))
    }

    /// Whether the principal may report every run, as launchers of root do.
    pub fn is_trusted(self) -> bool {
        match self {
            Self::Exporter => true,
            Self::User(uid) => uid == 0 || uid == *OWN,
            Self::Unknown | Self::Address(_) => false,
        }
    }

    /// The principal for a file that `self` wrote and `finder` points at: the one that may report
    /// fewer runs. Each of two users may report runs that the other may not.
    pub fn shown_by(self, finder: Self) -> Self {
        match (self, finder) {
            _ if self == finder || finder.is_trusted() => self,
            (writer, _) if writer.is_trusted() => finder,
            _ => Self::Unknown,
        }
    }

    /// The owner of a run of `self` once `speaker` has reported it; `None` if it may not.
    ///
    /// The better known owner counts: a run that root or an unknown sender opened becomes that of a
    /// user who joins it. Admission decides by which events a user joins root's run.
    pub fn joined_by(self, speaker: Self) -> Option<Self> {
        match (self, speaker) {
            _ if self == speaker => Some(self),
            (Self::Exporter, _) => Some(if speaker.is_unknown() { self } else { speaker }),
            (_, speaker) if speaker.is_trusted() => Some(self),
            (owner, speaker) if owner.is_unknown() => {
                Some(if speaker.is_unknown() { owner } else { speaker })
            }
            (owner, Self::User(_)) if owner.is_trusted() => Some(speaker),
            _ => None,
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exporter => f.write_str("this exporter"),
            Self::User(uid) => write!(f, "uid {uid}"),
            Self::Unknown => f.write_str("a sender without a known uid"),
            Self::Address(ip @ IpAddr::V4(_)) => write!(f, "a sender at {ip}"),
            Self::Address(ip @ IpAddr::V6(_)) => write!(f, "a sender of {ip}/64"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_take_turns() {
        let (ann, bob) = (Principal::User(4_000_001), Principal::User(4_000_002));
        assert_eq!(in_turn([(ann, 1), (ann, 2), (ann, 3), (bob, 4)]), [1, 4, 2, 3]);
        assert_eq!(in_turn(core::iter::empty::<(Principal, u8)>()), [0; 0]);
    }

    #[test]
    fn whose_a_run_is_after_somebody_spoke() {
        // No test runs as these users.
        let (ann, bob, root) = (Principal::User(4_000_001), Principal::User(4_000_002), Principal::User(0));
        let own = Principal::User(*OWN);
        let (us, unknown) = (Principal::Exporter, Principal::Unknown);
        let [pod, other] = [1, 2].map(|n| Principal::Address([10, 77, n, 2].into()));
        for (owner, speaker, then) in [
            (ann, ann, Some(ann)),
            (ann, bob, None),
            (ann, unknown, None),
            (ann, root, Some(ann)),
            (ann, own, Some(ann)),
            (ann, us, Some(ann)),
            (root, ann, Some(ann)),
            (own, ann, Some(ann)),
            (us, ann, Some(ann)),
            (us, unknown, Some(us)),
            (us, root, Some(root)),
            (root, unknown, None),
            (unknown, unknown, Some(unknown)),
            (unknown, ann, Some(ann)),
            (unknown, root, Some(unknown)),
            (pod, pod, Some(pod)),
            (pod, other, Some(pod)),
            (pod, unknown, Some(pod)),
            (unknown, pod, Some(unknown)),
            (pod, ann, Some(ann)),
            (pod, root, Some(pod)),
            (ann, pod, None),
            (root, pod, None),
            (us, pod, Some(us)),
        ] {
            assert_eq!(owner.joined_by(speaker), then, "{speaker} of a run of {owner}");
        }
        assert_eq!(Principal::from_uid(Some(u32::MAX)), unknown);
        assert!(!pod.is_trusted() && pod.uid().is_none() && pod.to_string() == "a sender at 10.77.1.2");
        let kept = serde_json::to_string(&[pod, unknown]).unwrap();
        assert_eq!(kept, r#"[{"address":"10.77.1.2"},"unknown"]"#);
        assert_eq!(serde_json::from_str::<[Principal; 2]>(&kept).unwrap(), [pod, unknown]);
    }

    #[test]
    fn what_one_shows_of_another_is_the_word_of_the_less_trusted() {
        let (ann, bob, root) = (Principal::User(4_000_001), Principal::User(4_000_002), Principal::User(0));
        for (writer, finder, whose) in [
            (ann, ann, ann),
            (ann, bob, Principal::Unknown),
            (root, bob, bob),
            (Principal::Exporter, bob, bob),
            (ann, root, ann),
            (ann, Principal::Exporter, ann),
            (Principal::Unknown, bob, Principal::Unknown),
        ] {
            assert_eq!(writer.shown_by(finder), whose, "{writer}, shown by {finder}");
        }
    }
}
