//! What really happened, which only the scorer may read, and whether a suspect is who did it.

use stepwatch_engine::time::Ts;
use stepwatch_engine::verdict::Suspect;

use super::kind::Kind;

/// Who did it.
#[derive(Debug, Clone, PartialEq)]
pub enum Culprit {
    /// One node, with the ranks of the run that are on the sick part of it.
    Node { node: String, ranks: Vec<u32> },
    /// What these nodes share.
    Switch { nodes: Vec<String> },
    /// A file system that all of them read.
    Storage,
    /// The program or its settings; the rank that failed first, where one did.
    Software { first: Option<u32> },
    /// What was trained on, or how.
    Recipe,
}

#[derive(Debug, Clone)]
pub struct Truth {
    pub run: String,
    pub kind: Kind,
    pub culprit: Culprit,
    /// When anything could be seen of it.
    pub onset: Ts,
    /// When it was over: mended, or the run restarted without it.
    pub until: Ts,
    /// Nodes of the run.
    pub nodes: usize,
}

/// Words by which people know what has no name of its own.
const STORAGE: &[&str] =
    &["storage", "file system", "filesystem", "data load", "data path", "data wait", "input pipeline", "nfs"];
const SOFTWARE: &[&str] = &[
    "software",
    "no single rank",
    "no outlier",
    "no single",
    "whole fleet",
    "all ranks",
    "garbage",
    "script",
    "program",
    "stage",
];
const RECIPE: &[&str] =
    &["data", "batch", "learning rate", "recipe", "optimi", "software", "no single", "hyperparam"];

impl Culprit {
    /// Whether a suspect is the culprit. A node counts when it is named, or a rank of the run on the sick part of it.
    pub fn is(&self, s: &Suspect) -> bool {
        let what = s.what.to_ascii_lowercase();
        let says = |words: &[&str]| words.iter().any(|w| what.contains(w));
        match self {
            Self::Node { node, ranks } => {
                has_word(&what, node) || !names_a_node(&what) && ranks.iter().any(|r| is_rank(&what, *r))
            }
            // Two of them in one breath are what they share.
            Self::Switch { nodes } => {
                let named = nodes.iter().filter(|n| has_word(&what, n)).count();
                says(&["switch", "fabric", "cable"]) || named >= 2
            }
            Self::Storage => says(STORAGE) && !names_a_node(&what),
            Self::Software { first } => {
                first.is_some_and(|r| is_rank(&what, r)) || says(SOFTWARE) && !names_a_node(&what)
            }
            Self::Recipe => says(RECIPE) && !names_a_node(&what),
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

/// `gpu-0042` in `rank 17 on gpu-0042`, and not in `gpu-00421`.
fn has_word(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(part) && !text[at + word.len()..].starts_with(part))
}

fn names_a_node(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .any(|w| w.strip_prefix(super::layout::PREFIX).is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit())))
}

fn is_rank(text: &str, rank: u32) -> bool {
    has_word(text, &format!("rank {rank}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspect(what: &str) -> Suspect {
        Suspect { what: what.into(), why: String::new() }
    }

    #[test]
    fn knows_who_is_who() {
        let node = Culprit::Node { node: "gpu-0042".into(), ranks: vec![17] };
        for (what, right) in [
            ("node gpu-0042, GPU 3 (GPU-2f3c)", true),
            ("rank 16 on gpu-0042", true),
            ("rank 17", true),
            ("rank 17 on gpu-0043", false),
            ("rank 170", false),
            ("node gpu-00421", false),
            ("no single rank", false),
        ] {
            assert_eq!(node.is(&suspect(what)), right, "{what}");
        }
        let switch = Culprit::Switch { nodes: vec!["gpu-0001".into(), "gpu-0002".into()] };
        assert!(switch.is(&suspect("the switch of gpu-0001")) && !switch.is(&suspect("node gpu-0001")));
        let bug = Culprit::Software { first: Some(3) };
        assert!(bug.is(&suspect("rank 3 on gpu-0009")) && bug.is(&suspect("no single rank")));
        assert!(
            !bug.is(&suspect("rank 4 on gpu-0009")) && !Culprit::Storage.is(&suspect("data of gpu-0001"))
        );
    }
}
