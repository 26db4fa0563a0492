//! Targets that can be suspected.

use serde::{Deserialize, Serialize};

/// A target to look at. Its text is its [`Display`](core::fmt::Display).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    Node {
        node: String,
    },
    /// A GPU. Its UUID and PCI address are empty if they are unknown.
    Gpu {
        node: String,
        index: Option<u32>,
        uuid: String,
        pci: String,
    },
    /// A port or a link between GPUs. The medium is empty if only the name is known.
    Link {
        node: String,
        name: String,
        medium: String,
    },
    /// Another part of a node: a mount, a device, a cgroup, a process.
    Part {
        node: String,
        name: String,
    },
    /// A rank. Its number, the number on its node, or both may be unknown.
    Rank {
        rank: Option<u32>,
        local_rank: Option<u32>,
        node: Option<String>,
    },
    /// Ranks that a collective library names together, in the library's own words.
    Ranks {
        ranks: Vec<String>,
        hosts: Vec<String>,
    },
    /// A stage of a pipeline.
    Stage {
        stage: u32,
    },
    Layer {
        name: String,
    },
    /// The data of a step on which other runs or attempts spiked too.
    Batch {
        step: i64,
    },
    /// The data of a step, or the training recipe.
    Recipe {
        step: i64,
    },
    LearningRate,
    /// A setting of the run or of its nodes.
    Setting {
        key: String,
    },
    /// How the run is set up, apart from the settings that are named.
    Setup,
    Checkpoint {
        step: i64,
    },
    DataLoading,
    /// The trainer's saving of checkpoints.
    Saving,
    Storage(Storage),
    /// The switch that links of several nodes share.
    Switch,
    /// The power or cooling that slow GPUs of several nodes share.
    Power,
    /// A signal whose meaning only its owner knows.
    Signal {
        name: String,
    },
    /// A scrape target or stream, by its address.
    Source {
        source: String,
    },
    /// An incident of a storm, by its id, and the runs and nodes that it is about.
    Incident {
        id: String,
        place: String,
    },
    /// The whole fleet: all are alike, so none is suspected.
    Fleet(Unit),
}

/// The storage that is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// Storage that several nodes mount.
    OfNodes,
    /// The storage of a checkpoint that does not complete.
    OfCheckpoints,
    /// The storage of checkpoints that take longer than before.
    SlowCheckpoints,
}

/// The unit in which a fleet is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Ranks,
    Nodes,
}

/// The place that groups evidence: a node with all its parts, or else the target itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    Node(String),
    Other(Box<Target>),
}

/// The identity of a device, by which targets are compared.
#[derive(PartialEq)]
enum Device<'a> {
    Uuid(&'a str),
    Index(&'a str, u32),
    Address(&'a str, &'a str),
    Part(&'a str, &'a str),
    Rank(Option<u32>, Option<u32>, Option<&'a str>),
    Other(&'a Target),
}

impl Target {
    pub fn node(node: impl Into<String>) -> Self {
        Self::Node { node: node.into() }
    }

    /// A rank, and its node if it is known.
    pub fn rank(rank: u32, node: Option<&str>) -> Self {
        Self::Rank { rank: Some(rank), local_rank: None, node: node.map(str::to_owned) }
    }

    /// Whether all are alike, so that none is suspected.
    pub fn is_nobody(&self) -> bool {
        matches!(self, Self::Fleet(_))
    }

    /// Whether several nodes or ranks share the target.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Switch | Self::Power | Self::Storage(Storage::OfNodes | Storage::OfCheckpoints))
    }

    /// The node that the target is or is on.
    pub fn on_node(&self) -> Option<&str> {
        match self {
            Self::Node { node }
            | Self::Gpu { node, .. }
            | Self::Link { node, .. }
            | Self::Part { node, .. } => Some(node),
            Self::Rank { node, .. } => node.as_deref(),
            Self::Ranks { hosts, .. } => hosts.first().map(String::as_str),
            _ => None,
        }
    }

    pub fn place(&self) -> Place {
        self.on_node().map_or_else(|| Place::Other(Box::new(self.clone())), |node| Place::Node(node.into()))
    }

    /// Whether the target is a part of a node, and not the whole node.
    pub fn is_device(&self) -> bool {
        matches!(self, Self::Gpu { .. } | Self::Link { .. } | Self::Part { .. })
    }

    /// Whether both are the same device, however much is known of it. A GPU and its links are the
    /// same.
    pub fn is_same_device(&self, other: &Self) -> bool {
        self.device() == other.device()
    }

    fn device(&self) -> Device<'_> {
        if let Some(uuid) = self.gpu() {
            return Device::Uuid(uuid);
        }
        match self {
            Self::Gpu { node, index: Some(index), .. } => Device::Index(node, *index),
            Self::Gpu { node, pci, .. } => Device::Address(node, pci),
            Self::Link { node, name, .. } | Self::Part { node, name } => Device::Part(node, name),
            Self::Rank { rank, local_rank, node } => {
                Device::Rank(*rank, local_rank.filter(|_| rank.is_none()), node.as_deref())
            }
            other => Device::Other(other),
        }
    }

    /// The UUID of the GPU, also for its links, which exporters name `UUID/nvlink3`.
    fn gpu(&self) -> Option<&str> {
        let uuid = match self {
            Self::Gpu { uuid, .. } => uuid.as_str(),
            Self::Link { name, .. } | Self::Part { name, .. } => name.split('/').next().unwrap_or_default(),
            _ => return None,
        };
        uuid.starts_with("GPU-").then_some(uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: Option<u32>, uuid: &str, pci: &str) -> Target {
        Target::Gpu { node: "n1".into(), index, uuid: uuid.into(), pci: pci.into() }
    }

    fn link(name: &str, medium: &str) -> Target {
        Target::Link { node: "n1".into(), name: name.into(), medium: medium.into() }
    }

    #[test]
    fn a_gpu_and_its_links_are_one_device() {
        let known = gpu(Some(3), "GPU-2f", "0000:1b:00.0");
        assert!(known.is_same_device(&gpu(None, "GPU-2f", "")));
        assert!(known.is_same_device(&link("GPU-2f/nvlink3", "nvlink")));
        assert!(!known.is_same_device(&gpu(Some(3), "GPU-3a", "")));
        assert!(!known.is_same_device(&Target::node("n1")));
        assert!(gpu(Some(3), "", "a").is_same_device(&gpu(Some(3), "", "b")));
        assert!(!gpu(None, "", "a").is_same_device(&gpu(None, "", "b")));
    }

    #[test]
    fn a_port_is_one_whether_or_not_its_medium_is_known() {
        assert!(link("mlx5_0/1", "infiniband").is_same_device(&link("mlx5_0/1", "")));
        assert!(!link("mlx5_0/1", "").is_same_device(&link("mlx5_1/1", "")));
        let rank = Target::rank(5, Some("n1"));
        let local = Target::Rank { rank: Some(5), local_rank: Some(1), node: Some("n1".into()) };
        assert!(rank.is_same_device(&local) && rank != local);
    }

    #[test]
    fn what_is_on_a_node_is_of_its_place() {
        let n1 = Place::Node("n1".into());
        for target in [Target::node("n1"), gpu(Some(0), "", ""), link("p", ""), Target::rank(1, Some("n1"))] {
            assert_eq!(target.place(), n1);
        }
        let ranks = Target::Ranks { ranks: vec!["1".into()], hosts: vec!["n1".into(), "n2".into()] };
        assert_eq!(ranks.place(), n1);
        assert_eq!(Target::rank(1, None).place(), Place::Other(Box::new(Target::rank(1, None))));
    }
}
