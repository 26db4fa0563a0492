//! The truth, which only the scorer may read, and the check whether a suspect is the culprit.

use stepwatch_model::time::Ts;
use stepwatch_model::{Suspect, Target};

use super::kind::Kind;

/// The culprit of a fault.
#[derive(Debug, Clone, PartialEq)]
pub enum Culprit {
    /// One node, with the ranks of the run on its faulty part.
    Node { node: String, ranks: Vec<u32> },
    /// The switch that these nodes share.
    Switch { nodes: Vec<String> },
    /// A file system that all nodes read.
    Storage,
    /// The program or its settings, and the rank that failed first, if there is one.
    Software { first: Option<u32> },
    /// The data or the training recipe.
    Recipe,
}

#[derive(Debug, Clone)]
pub struct Truth {
    pub run: String,
    pub kind: Kind,
    pub culprit: Culprit,
    /// When the fault became visible.
    pub onset: Ts,
    /// When the fault was over: repaired, or the run restarted without it.
    pub until: Ts,
    /// The number of nodes of the run.
    pub nodes: usize,
}

impl Culprit {
    /// Whether a suspect is the culprit. A node counts if it is named, or if a rank of the run on
    /// its faulty part is.
    pub fn is(&self, s: &Suspect) -> bool {
        let target = &s.target;
        match self {
            Self::Node { node, ranks } => {
                hosts(target).any(|host| host == node)
                    || hosts(target).next().is_none() && ranks.iter().any(|rank| is_rank(target, *rank))
            }
            // Two nodes in one suspect stand for what they share.
            Self::Switch { nodes } => {
                *target == Target::Switch
                    || nodes.iter().filter(|n| hosts(target).any(|h| h == *n)).count() >= 2
            }
            Self::Storage => matches!(target, Target::Storage(_) | Target::DataLoading),
            Self::Software { first } => {
                first.is_some_and(|rank| is_rank(target, rank))
                    || matches!(
                        target,
                        Target::Fleet(_) | Target::Stage { .. } | Target::Setting { .. } | Target::Setup
                    )
            }
            Self::Recipe => matches!(
                target,
                Target::Batch { .. }
                    | Target::Recipe { .. }
                    | Target::LearningRate
                    | Target::DataLoading
                    | Target::Fleet(_)
            ),
        }
    }

    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Node { .. } => "node",
            Self::Switch { .. } => "switch",
            Self::Storage => "storage",
            Self::Software { .. } => "software",
            Self::Recipe => "recipe",
        }
    }
}

/// The nodes that a suspect names.
fn hosts(target: &Target) -> impl Iterator<Item = &str> {
    let all: &[String] = if let Target::Ranks { hosts, .. } = target { hosts } else { &[] };
    let one = target.on_node().filter(|_| all.is_empty());
    all.iter().map(String::as_str).chain(one)
}

fn is_rank(target: &Target, rank: u32) -> bool {
    match target {
        Target::Rank { rank: named, .. } => *named == Some(rank),
        Target::Ranks { ranks, .. } => ranks.len() == 1 && ranks[0] == rank.to_string(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use stepwatch_model::{Observation, Unit};

    use super::*;

    fn suspect(target: Target) -> Suspect {
        Suspect::new(target, Observation::OutOfPlace)
    }

    #[test]
    fn knows_who_is_who() {
        let node = Culprit::Node { node: "gpu-0042".into(), ranks: vec![17] };
        let gpu = |node: &str| Target::Gpu {
            node: node.into(),
            index: Some(3),
            uuid: "GPU-2f3c".into(),
            pci: String::new(),
        };
        let nobody = Target::Fleet(Unit::Ranks);
        for (target, right) in [
            (gpu("gpu-0042"), true),
            (Target::rank(16, Some("gpu-0042")), true),
            (Target::rank(17, None), true),
            (Target::rank(17, Some("gpu-0043")), false),
            (Target::rank(170, None), false),
            (Target::node("gpu-00421"), false),
            (nobody.clone(), false),
        ] {
            assert_eq!(node.is(&suspect(target.clone())), right, "{target}");
        }
        let switch = Culprit::Switch { nodes: vec!["gpu-0001".into(), "gpu-0002".into()] };
        assert!(switch.is(&suspect(Target::Switch)) && !switch.is(&suspect(Target::node("gpu-0001"))));
        let bug = Culprit::Software { first: Some(3) };
        assert!(bug.is(&suspect(Target::rank(3, Some("gpu-0009")))) && bug.is(&suspect(nobody)));
        assert!(!bug.is(&suspect(Target::rank(4, Some("gpu-0009")))));
        assert!(
            !Culprit::Storage.is(&suspect(Target::Part { node: "gpu-0001".into(), name: "/data".into() }))
        );
    }
}
