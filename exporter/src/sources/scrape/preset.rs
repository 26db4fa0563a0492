//! Recognises frameworks by the names of their series.

/// The facts about a framework's endpoint.
#[derive(Debug, PartialEq)]
pub(super) struct Preset {
    name: &'static str,
    /// The prefix of its names. All series with it are taken.
    prefix: &'static str,
    /// The prefix of a name that no other framework has.
    sign: &'static str,
    pub(super) run: Option<&'static str>,
    pub(super) rank: Option<&'static str>,
    /// Whether the endpoint exposes no steps, so that its values belong to another source's steps.
    pub(super) only_with_steps: bool,
}

const PLAIN: Preset =
    Preset { name: "", prefix: "", sign: "", run: None, rank: None, only_with_steps: false };

/// The frameworks; the last entry stands for any other.
const PRESETS: &[Preset] = &[
    Preset { name: "axolotl", prefix: "axolotl_", sign: "axolotl_", ..PLAIN },
    Preset { name: "prime-rl", prefix: "trainer_", sign: "trainer_last_step_timestamp_seconds", ..PLAIN },
    Preset {
        name: "ray",
        prefix: "ray_train_",
        sign: "ray_train_",
        run: Some("ray_train_run_name"),
        rank: Some("ray_train_worker_world_rank"),
        only_with_steps: true,
    },
    Preset { name: "prometheus", ..PLAIN },
];

pub(super) fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|p| p.name).collect()
}

impl Preset {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|p| p.name == name)
    }

    /// The framework whose series have such a name.
    pub(super) fn of_series(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|p| !p.sign.is_empty() && name.starts_with(p.sign))
    }

    pub(super) fn takes(&self, name: &str) -> bool {
        !self.prefix.is_empty() && name.starts_with(self.prefix)
    }
}
